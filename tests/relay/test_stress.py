"""Faults on purpose: each kind of wait, taken out of a plan, makes the result wrong; with all of them it is exact.

Lanes are real threads. What the wait is for is slow, so that what no longer waits comes first, and slots that are free
are poisoned. Waits for a visit are not here, as on a CPU a visit is over before anything behind it is submitted. Nor
are those that other waits, or the order of one lane, imply: `REDUNDANT`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import pytest
import torch

from l2l_nas import Clip
from l2l_nas.errors import L2LError
from l2l_nas.relay import step as step_module
from l2l_nas.relay.plan import Op, Plan
from l2l_nas.relay.planner import plan_training
from l2l_nas.relay.schedule import LANE as LANE_OF
from l2l_nas.relay.trace import Trace
from tests.equivalence.plain import Plain
from tests.relay.steps import PATH, in_time, is_same, relay_of, tensors, train
from tests.relay.stress import ORDERS, Stress, poison
from tests.toys import dense_pool, repeated_pool

SLOW_S = 0.03
DENSE = ("dense", "partial", "dense", "dense", "dense", "dense", "mlp")
NORMED = ("normed", *DENSE[1:])
AGAIN = (*["dense"] * 6, "head")


@dataclass(frozen=True)
class Fault:
    """A wait that is lost.

    Args:
        op: the kind of step that no longer waits,
        lost: for steps of this kind.
        slow: operations that take long.
        layer: only the steps of this layer, where it is given.
        first: the first training step whose plan has the fault.
        options: of the relay.
        knows_ahead: whether it is told the next path.
        path: through six shared layers and a head, or through six of their own.
    """

    op: Op
    lost: Op
    slow: tuple[str, ...]
    layer: int | None = None
    first: int = 0
    options: dict = field(default_factory=dict)
    knows_ahead: bool = True
    path: tuple[str, ...] = DENSE

    def taken_from(self, plan: Plan) -> Plan:
        """The plan without it."""
        for index, step in enumerate(plan.steps):
            kept = tuple(other for other in step.after if plan.steps[other].op is not self.lost)
            if step.op is self.op and kept != step.after and self.layer in (None, step.layer):
                return replace(plan, steps=(*plan.steps[:index], step._replace(after=kept), *plan.steps[index + 1 :]))
        return plan


HOST = {"stash": "host"}
EXACT = {"update": "exact"}
FAULTS = {
    "a visit before its load": Fault(Op.FORWARD, Op.LOAD, ("load",), layer=3),
    "a backward visit before its load": Fault(Op.BACKWARD, Op.LOAD, ("load",), layer=2),
    "a visit of the tail before its load": Fault(
        Op.ENTER, Op.LOAD, ("load",), layer=5, options={"keep": 3, "slots": 3}
    ),
    "a slot freed before its gradients are sent": Fault(Op.FREE, Op.SEND, ("send",)),
    "a slot freed before its buffers are saved": Fault(Op.FREE, Op.SAVE, ("save",), path=NORMED),
    "a visit before the gradients of the last one are sent": Fault(Op.BACKWARD, Op.SEND, ("send",), path=AGAIN),
    "an update before its gradient is sent": Fault(Op.UPDATE, Op.SEND, ("send",)),
    "a judgement before all gradients are sent": Fault(Op.CHECK, Op.SEND, ("send",), options=EXACT),
    "a load before an update of the last step": Fault(
        Op.LOAD, Op.AWAIT, ("update",), layer=0, first=1, knows_ahead=False
    ),
    "the next path's load before its update": Fault(Op.LOAD, Op.UPDATE, ("update",), layer=len(DENSE)),
    "a visit before its input is fetched": Fault(Op.BACKWARD, Op.FETCH, ("fetch",), options=HOST | {"slots": 7}),
    "a frame written before it is stored": Fault(Op.FORWARD, Op.STORE, ("store",), options=HOST),
    "a visit before the last plan's load": Fault(Op.FORWARD, Op.CARRY, ("load",), first=1),
}


def pool_of(fault):
    return repeated_pool(depth=6) if fault.path[-1] == "head" else dense_pool(depth=6)


def steps_of(fault, step_of):
    """Three steps on one path, each knowing the next; one micro-batch where a layer is repeated."""
    micro_batch = 5 if fault.path[-1] == "head" else 2
    return [step_of(step, micro_batch).loss for step in range(3)]


def outcome(fault, monkeypatch, *, is_whole):
    """Losses and weights, or the error."""
    relay = relay_of(
        pool_of(fault), lanes="threads", stress=Stress(1, 0.0, dict.fromkeys(fault.slow, SLOW_S)), **fault.options
    )
    changed = []

    def planned(path, **options):
        plan = real(path, **options)
        broken = plan if is_whole or len(changed) < fault.first else fault.taken_from(plan)
        changed.append(broken is not plan)
        return broken

    real = step_module.plan_training
    monkeypatch.setattr(step_module, "plan_training", planned)
    upcoming = fault.path if fault.knows_ahead else None
    try:
        losses = in_time(
            lambda: steps_of(
                fault, lambda n, size: train(relay, fault.path, step=n, micro_batch=size, upcoming=upcoming)
            )
        )
        found = losses, tensors(relay.server)
    except L2LError as error:
        found = type(error).__name__, {}
    finally:
        monkeypatch.undo()
    assert any(changed) != is_whole, "no plan has such a wait"
    return found


def plain(fault):
    """Losses and masters of a plain loop."""
    reference = Plain(relay_of(pool_of(fault)).server, seed=0)

    class Result:
        def __init__(self, loss):
            self.loss = loss

    class Shim:
        server = reference.server

        @staticmethod
        def train_step(*args, **kwargs):
            return Result(reference.step(*args, **kwargs))

    losses = steps_of(fault, lambda n, size: train(Shim, fault.path, step=n, micro_batch=size))
    values = {
        (key, f"{kind}.{name}"): tensor.detach()
        for key, module in reference.modules.items()
        for kind, named in (("weights", module.named_parameters()), ("buffers", module.named_buffers()))
        for name, tensor in named
    }
    return losses, values


def equals(found, expected):
    return found[0] == expected[0] and all(torch.equal(found[1][name], value) for name, value in expected[1].items())


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_with_all_waits_the_result_is_exact_and_without_one_it_is_wrong(name, monkeypatch):
    fault = FAULTS[name]
    expected = plain(fault)
    assert equals(outcome(fault, monkeypatch, is_whole=True), expected)
    assert not equals(outcome(fault, monkeypatch, is_whole=False), expected)


REDUNDANT = {
    "an input fetched before it is stored": (Op.FETCH, Op.STORE, DENSE),
    "buffers loaded before they are saved": (
        Op.LOAD, Op.SAVE, ("normed", "dense", "partial", "dense", "normed", "partial", "head")
    ),
}  # fmt: skip


LANE = {op: lane for op, lane in LANE_OF.items() if lane in ("up", "down")} | {Op.FREE: "up"}


@pytest.mark.parametrize("name", REDUNDANT)
def test_a_wait_that_may_be_lost_is_implied_by_others(name):
    op, lost, choices = REDUNDANT[name]
    pool = repeated_pool(depth=6) if choices[-1] == "head" else dense_pool(depth=6)
    relay = relay_of(pool)
    spill = relay.stash.spill(frozenset(relay.stash.spillable))
    steps = plan_training(relay.path(pool.architecture(choices)), slots=2, spill=spill).steps
    before: list[set[int]] = []
    last: dict[str, int] = {}
    for index, step in enumerate(steps):
        after = [i for i in step.after if not (step.op is op and steps[i].op is lost)]
        after += [last[LANE[step.op]]] if LANE.get(step.op) in last else []
        before.append({i for other in after for i in (other, *before[other])})
        last[LANE.get(step.op, "")] = index
    # nothing reads what these wait for until they are done
    pairs = [
        (index, i)
        for index, step in enumerate(steps)
        for i in step.after
        if step.op is op and steps[i].op is lost and (steps[i].layer == step.layer or op is Op.FETCH)
    ]
    assert all(i in before[index] for index, i in pairs)
    assert pairs or op is Op.LOAD


def test_without_the_wait_for_the_last_plan_s_slots_gradients_on_their_way_are_overwritten(
    monkeypatch, races_are_expected
):
    """Without poison, whose place in the lane of the loads would imply the wait."""
    fault = Fault(Op.LOAD, Op.CARRY, ())
    real = step_module.plan_training

    def trained(*, is_whole, slow_s=SLOW_S):
        relay = relay_of(dense_pool(depth=1), lanes="threads", slots=1)
        add = relay.server.gradients.add

        def slowly(key, *args, **kwargs):
            time.sleep(slow_s if key == "layer0/dense" else 0)
            add(key, *args, **kwargs)

        relay.server.gradients.add = slowly
        if not is_whole:
            monkeypatch.setattr(step_module, "plan_training", lambda path, **o: fault.taken_from(real(path, **o)))
        for step, first in enumerate(["dense", "partial"]):
            in_time(lambda step=step, first=first: train(relay, [first, "linear"], step=step))
        return tensors(relay.server)

    expected = relay_of(dense_pool(depth=1), lanes="inline")
    for step, first in enumerate(["dense", "partial"]):
        train(expected, [first, "linear"], step=step)
    assert is_same(expected.server, trained(is_whole=True))
    # a machine that is slow itself may be late enough
    tries = (trained(is_whole=False, slow_s=SLOW_S * 4**tried) for tried in range(4))
    assert any(not is_same(expected.server, one) for one in tries)


def test_a_free_slot_is_poisoned():
    relay = relay_of(dense_pool(), lanes="threads", stress=Stress(0, 0.0))
    train(relay, ["normed", "dense", "dense", "dense", "mlp"])
    relay.drain()
    for slot in relay.bank.slots:
        for block in slot.blocks:
            assert block.view(torch.float32).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_poison_is_not_a_number_in_every_precision(dtype):
    block = torch.zeros(64, dtype=torch.uint8)
    poison(block)
    assert block.view(dtype).isnan().all()


def test_delays_are_as_long_as_it_is_told_and_the_same_for_the_same_seed():
    assert Stress(0, 0.0, {"load": 0.02}).delay_s("load") == 0.02
    assert Stress(0, 0.0, {"send": 0.02}).delay_s("load") == 0
    assert Stress(3).delay_s("load") == Stress(3).delay_s("load") <= 0.001


def test_paced_work_takes_as_long_as_on_the_machine_and_gives_the_same_numbers():
    def pace(op, name):
        return 0.02 if op == "load" else 0.0

    trace = Trace()
    stress = Stress(longest_delay_s=0.0, pace=pace, is_poisoning=False)
    paced = relay_of(dense_pool(), lanes="threads", stress=stress, trace=trace)
    plain = relay_of(dense_pool())
    assert train(paced, PATH).loss == train(plain, PATH).loss
    paced.drain()
    assert is_same(paced.server, tensors(plain.server))
    loads = [span.end_s - span.start_s for span in trace.spans if span.op == "load"]
    assert loads
    assert min(loads) >= (0.02 if paced.device.mark() is None else 0.015)  # a stream comes late to where it begins
    paced.close()


@pytest.mark.parametrize("update", ORDERS)
def test_updates_that_lag_behind_are_done_for_their_own_step(update):
    """Of a path's layers those that the next path lacks are waited for by nothing but the next check."""
    options = {"update": update, "clip": Clip(0.5, "layer" if update == "eager" else "global")}
    expected = relay_of(dense_pool(depth=6), lanes="inline", **options)
    slow = relay_of(dense_pool(depth=6), lanes="threads", stress=Stress(1, 0.0, {"update": 0.01}), **options)
    paths = [DENSE, ("normed", *DENSE[1:-1], "linear"), DENSE, ("dense", "normed", *DENSE[2:])]
    found = []
    for relay in (expected, slow):
        losses = [train(relay, path, step=step, upcoming=paths[(step + 1) % 4]).loss for step, path in enumerate(paths)]
        relay.drain()
        found.append(losses)
    assert found[0] == found[1]
    assert is_same(slow.server, tensors(expected.server))
