"""The schedule: executor, checker and simulator go by one."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings

from l2l_nas.cost.chain import LANES, Chain, RelayShape
from l2l_nas.relay import step as step_module
from l2l_nas.relay.executor import PlanExecutor
from l2l_nas.relay.lanes import Future
from l2l_nas.relay.plan import Op
from l2l_nas.relay.planner import plan_training
from l2l_nas.relay.schedule import LANE, PlanSchedule
from tests.relay.plans import _Checker
from tests.relay.steps import PATH, relay_of, train
from tests.relay.stress import AHEAD, CHECKED
from tests.relay.test_plan import chains
from tests.toys import dense_pool, repeated_pool


@settings(derandomize=True, deadline=None, max_examples=60, database=None)
@given(chains())
def test_the_checker_takes_for_certain_what_the_schedule_waits_for(chain):
    schedule = PlanSchedule()
    for plan, path, options in chain:
        works, waits, before = {}, {}, []

        def submit(step, after, waits=waits, works=works):
            works[len(waits)] = step
            waits[len(waits)] = after
            return len(waits) - 1

        schedule.slots, schedule.updates = {}, {}  # the checker looks at one plan
        awaited = schedule.issue(plan, str, submit)
        for after in waits.values():
            before.append({one for other in after for one in (other, *before[other])})
        checker = _Checker(plan, path, **options)
        numbers = [index for index, step in enumerate(plan.steps) if step.op in LANE]
        assert [plan.steps[index] for index in numbers] == list(works.values())
        for work, index in enumerate(numbers):
            known = {other for other, place in enumerate(numbers) if checker.before[index] >> place & 1}
            assert before[work] == known
        for slot in range(options["slots"]):  # what the next plan finds is what was done since the last load
            users = [work for work, step in works.items() if slot in (step.slot, *step.tail)]
            loads = [users.index(work) for work in users if works[work].op is Op.LOAD]
            assert {*users[loads[-1] if loads else 0 :]} <= {*schedule.slots.get(slot, ())}
        sends = [work for work, step in works.items() if step.op is Op.SEND][:1]
        assert awaited == sorted({*sends, *(w for w, step in works.items() if step.op in (Op.SAVE, Op.CHECK))})


SCENARIOS = {
    "eager": ({}, dense_pool(), PATH),
    "checked, stash on the host": ({"update": CHECKED, "stash": "host", "slots": 3}, dense_pool(), PATH),
    "ahead, a long tail": ({"update": AHEAD, "slots": 4, "keep": 3}, dense_pool(), PATH),
    "repeated layers": ({"slots": 3}, repeated_pool(), ["dense", "running", "dense", "dense", "head"]),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_what_the_executor_submits_are_the_pieces_of_the_simulator(name, monkeypatch):
    options, pool, choices = SCENARIOS[name]
    relay = relay_of(pool, lanes="threads", **options)
    monkeypatch.setattr(PlanExecutor, "is_updating", True)  # it forgets no update that is over
    submitted: list[tuple[str, str, tuple[int, ...], int]] = []
    numbers: dict[Future, int] = {}
    plans = []

    def noted(lane, do, after, options):
        rank = options.get("rank", 0)
        submitted.append((lane, options["label"].op, tuple(numbers[future] for future in after), rank))
        future = do(after=after, **options)
        numbers[future] = len(numbers)
        return future

    compute, submit = relay.lanes.compute, relay.lanes.submit
    monkeypatch.setattr(
        relay.lanes, "compute", lambda do, *, after, **more: noted("compute", partial(compute, do), after, more)
    )
    monkeypatch.setattr(
        relay.lanes, "submit", lambda lane, do, *, after, **more: noted(lane, partial(submit, lane, do), after, more)
    )
    monkeypatch.setattr(
        step_module, "plan_training", lambda path, **more: plans.append(plan_training(path, **more)) or plans[-1]
    )
    for step in range(4):
        train(relay, choices, step=step, upcoming=choices)
    relay.drain()
    chain = Chain(relay.numbered(pool.architecture(choices)).layers, RelayShape())
    for plan in plans:
        chain.add(plan)
    work = list(chain.work)
    pieces = [piece for plan in chain.plans for piece in plan]
    assert len(pieces) == len(submitted)
    assert [(LANES[p.lane], work[p.work].op.value, p.after, p.rank) for p in pieces] == submitted
