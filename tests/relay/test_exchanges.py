"""What ranks exchange: by the plan alone, counted and checked. No other rank is there, see `PaperRanks`."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from l2l_nas import SGD, AdamW, Clip, ParamServer, Relay
from l2l_nas.eps import cut
from l2l_nas.eps.exchange import Alone, Channel, PaperRanks
from l2l_nas.eps.sharded import server_of
from l2l_nas.relay import schedule
from l2l_nas.relay.executor import PlanExecutor
from l2l_nas.relay.path import PathLayer
from l2l_nas.relay.plan import Op
from l2l_nas.relay.planner import plan_training
from l2l_nas.relay.trace import NET, Trace, TraceSpan, exposed_s
from tests.relay.exchanges import ExchangeChecker
from tests.relay.plans import PlanError, check_plan
from tests.relay.stress import AHEAD, Stress, relay_under
from tests.toys import BothHeads, dense_pool, random_data

PATH = ["normed", "dense", "frozen", "partial", "mlp"]


@pytest.fixture(autouse=True)
def small_states_are_cut(monkeypatch):
    monkeypatch.setattr(cut, "SMALL_BYTES", 0)


def relay_of(size=2, rank=0, optimizer=None, **options) -> Relay:
    server = server_of(dense_pool(48), PaperRanks(size, rank), optimizer=optimizer or AdamW(), seed=5)
    return relay_under(server, device="cpu", seed=3, chunks=4, **options)


def train(relay: Relay, steps: int = 3) -> None:
    path = relay.pool.architecture(PATH)
    for step in range(steps):
        inputs, targets = random_data(relay.pool, 9, seed=step)
        relay.train_step(
            path, inputs, targets, objective=BothHeads(), micro_batch=2, lr=1e-3, step=step, upcoming=path
        )  # fmt: skip


OPTIONS = [
    {},
    {"lanes": "threads", "slots": 3, "stress": Stress(7, 0.0005), "update": AHEAD, "clip": Clip(1.5)},
    {"lanes": "threads", "precision": "bf16", "stress": Stress(8, 0.0005)},
]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("options", OPTIONS)
def test_what_is_exchanged_is_what_the_plans_say_in_their_order(options, size):
    relay = relay_of(size, **options)
    with ExchangeChecker(relay) as checker:
        train(relay)
    checker.check()
    assert all(checker.num_bytes[channel] > 0 for channel in Channel)
    relay.close()


def exchange_something(executor, step, job):
    exchange = job.states.server.exchange
    exchange.all_gather(torch.zeros(4), torch.empty(exchange.size, 4), Channel.SEND, "of no use")


@pytest.mark.parametrize("op", [Op.UPDATE, Op.CHECK, Op.FORWARD])
def test_an_exchange_in_an_update_or_a_check_or_a_visit_is_refused(monkeypatch, op):
    do = PlanExecutor._WORK[op]

    def mutant(executor, step, job):
        exchange_something(executor, step, job)
        do(executor, step, job)

    monkeypatch.setattr(PlanExecutor, "_WORK", {**PlanExecutor._WORK, op: mutant})
    relay = relay_of(update="exact", clip=Clip(1.0))
    with ExchangeChecker(relay) as checker:
        train(relay)
    with pytest.raises(PlanError, match=f"'of no use' is exchanged on channel send in '{op.value} .*exchanges nothing"):
        checker.check()


def test_an_order_that_is_not_the_plan_s_is_refused(monkeypatch):
    send, first = PlanExecutor._WORK[Op.SEND], []

    def mutant(executor, step, job):  # of each two gradients the second one goes first
        first.append((executor, step, job))
        if len(first) == 2:
            send(*first.pop())
            send(*first.pop())

    monkeypatch.setattr(PlanExecutor, "_WORK", {**PlanExecutor._WORK, Op.SEND: mutant})
    relay = relay_of(update="exact")
    with ExchangeChecker(relay) as checker:
        train(relay, 1)
    assert not first
    with pytest.raises(PlanError, match=r"exchange \d+ on channel send is .* and by the plan"):
        checker.check()


def test_an_exchange_too_many_or_too_few_is_refused():
    relay = relay_of()
    with ExchangeChecker(relay) as checker:
        train(relay, 1)
    seen = checker._seen
    for wrong in (seen[:-1], [*seen, seen[-1]]):
        checker._seen = wrong
        with pytest.raises(PlanError, match=r"exchanges on channel .* by the plans"):
            checker.check()


def test_a_plan_whose_updates_would_exchange_is_refused(monkeypatch):
    path = [PathLayer(i, (i,), reads=(i,), writes=(i + 1,)) for i in range(3)]
    plan = plan_training(path, slots=2)
    check_plan(plan, path, slots=2, trains=True)
    monkeypatch.setattr(schedule, "COLLECTIVES", {**schedule.COLLECTIVES, Op.UPDATE: Channel.SEND})
    with pytest.raises(PlanError, match=r"an update exchanges .* lane 'host', whose order is a matter of time"):
        check_plan(plan, path, slots=2, trains=True)


def test_a_channel_of_two_lanes_is_refused(monkeypatch):
    path = [PathLayer(i, (i,), reads=(i,), writes=(i + 1,)) for i in range(3)]
    plan = plan_training(path, slots=2)
    monkeypatch.setattr(schedule, "COLLECTIVES", {**schedule.COLLECTIVES, Op.LOAD: Channel.SEND})
    with pytest.raises(PlanError, match="channel send"):
        check_plan(plan, path, slots=2, trains=True)


def test_a_trace_has_exchanges_in_a_row_of_their_own():
    trace = Trace()
    relay = relay_of(lanes="threads", trace=trace)
    train(relay)
    relay.close()
    spans = [span for span in trace.spans if span.lane == NET]
    ops = Counter(span.op for span in spans)
    assert set(ops) == {"gather", "reduce", "agree"}
    assert ops["agree"] == 2 * 3 + 1  # at the begin of each step, and its losses; before the first, checksums
    for span in spans:  # each lies within the load or send of its layer
        if span.op != "agree":
            own = [one for one in trace.spans if one.lane in ("up", "down") and one.step == span.step]
            assert any(one.start_s <= span.start_s and span.end_s <= one.end_s for one in own)
    assert 0 < exposed_s(trace.spans) <= sum(span.end_s - span.start_s for span in spans)
    before = len(trace.spans)
    other = relay_of(optimizer=SGD())
    train(other, 1)
    assert len(trace.spans) == before


def test_exposed_is_what_no_layer_hides():
    def span(lane, start_s, end_s):
        return TraceSpan(lane, "x", "", 0, start_s, end_s)

    spans = [span("compute", 0, 4), span(NET, 3, 6), span(NET, 5, 7), span("up", 0, 9), span("compute", 6.5, 8)]
    assert exposed_s(spans) == pytest.approx(2.5)
    assert exposed_s(spans, start_s=0, end_s=5) == pytest.approx(1)


@pytest.mark.parametrize("size", [1, 2])
def test_what_ranks_exchange_runs_beside_the_layers_by_default(size):
    assert relay_of(size).lanes.is_beside == (size > 1)


@pytest.mark.parametrize("options", [{}, {"update": "exact", "clip": Clip(0.5)}, {"device_budget": "all"}])
def test_one_process_exchanges_nothing(monkeypatch, options):
    for name in ("all_gather", "all_to_all"):
        monkeypatch.setattr(Alone, name, None)
    server = server_of(dense_pool(48), Alone(), optimizer=AdamW(), seed=5)
    assert type(server) is ParamServer
    train(Relay(server, device="cpu", seed=3, **options))
