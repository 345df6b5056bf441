"""On the simulated accelerator alone: a wait that is lost is seen, by the checker of races and not by its harm.

Which waits must be seen is computed: what other waits, lanes and the host imply is nothing that could be seen
(`waits.py`). An order that comes about by chance, such as of threads that take a lock, hides a race in that run; so
each loss is tried a few times, in runs in which what must be waited for is slow.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from l2l_nas.eps.inbox import GradientInbox
from l2l_nas.eps.layout import align
from l2l_nas.eps.scale import Clip
from l2l_nas.errors import L2LError, LaneError
from l2l_nas.relay import step as step_module
from l2l_nas.relay.access import StateAccess
from l2l_nas.relay.device_states import DeviceStates
from l2l_nas.relay.plan import Op, Plan
from l2l_nas.relay.planner import plan_training
from l2l_nas.space.pool import LayerPool
from tests.accelerator.waits import Order
from tests.relay.steps import relay_of, train
from tests.relay.stress import AHEAD, CHECKED, Stress
from tests.toys import dense_pool, repeated_pool

PATH = ("normed", "partial", "dense", "dense", "normed", "dense", "mlp")
OTHER = ("dense", "dense", "normed", "partial", "dense", "normed", "linear")  # has no layer of PATH
REPEATED = ("running", "partial", "normed", "dense", "dense", "dense", "head")
SHARED = ("running", "dense", "partial", "normed", "skip", "skip", "head")
TURNED = ("dense", "partial", "normed", "running", "skip", "skip", "head")
TRIES = 8
PACED = Stress(longest_delay_s=0.0, pace=lambda op, layer: 0.03 if op == "backward" else 0.0, is_poisoning=False)


def slow(op: str) -> Stress:
    """Nothing but that work of a kind is late."""
    return Stress(longest_delay_s=0.0, slow={op: 0.02}, is_poisoning=False)


@dataclass(frozen=True)
class Scenario:
    """How a relay trains.

    Args:
        paths: one after the other, again and again.
        knows_next: whether a step is told the next path.
        warm_up: steps with all waits. In the first ones a relay compares what it recomputes, and the host waits.
        pool: whose paths they are.
    """

    options: dict[str, Any] = field(default_factory=dict)
    paths: tuple[tuple[str, ...], ...] = (PATH,)
    knows_next: bool = True
    warm_up: int = 4
    pool: Callable[..., LayerPool] = dense_pool

    def trained(self, monkeypatch, *, op=None, lost=None) -> tuple[list[Plan], L2LError | None]:
        """Train, after a warm-up with plans that lost a kind of wait: the plans as they were, and an error."""
        plans: list[Plan] = []

        def planned(path, **options):
            plan = plan_training(path, **options)
            plans.append(plan)
            if len(plans) <= self.warm_up:
                return plan
            kind = (op, lost)
            return replace(plan, steps=tuple(
                step._replace(after=tuple(one for one in step.after if (step.op, plan.steps[one].op) != kind))
                for step in plan.steps
            ))  # fmt: skip

        monkeypatch.setattr(step_module, "plan_training", planned)
        relay = relay_of(self.pool(depth=6), lanes="threads", **self.options)
        error = None
        try:
            for step in range(self.warm_up + 2):
                path, upcoming = (self.paths[place % len(self.paths)] for place in (step, step + 1))
                train(relay, path, step=step, upcoming=upcoming if self.knows_next else None)
            relay.drain()
        except L2LError as caught:
            error = caught
        with contextlib.suppress(L2LError):
            relay.close()
        return plans, error


SCENARIOS = {
    "default": Scenario(),
    "host stash": Scenario({"stash": "host"}),
    "exact": Scenario({"update": "exact", "stash": "host", "slots": 3}),
    "checked": Scenario({"update": CHECKED, "slots": 4, "keep": 3}),
    "ahead": Scenario({"update": AHEAD, "stash": "host", "stress": slow("backward")}),
    # the next path begins with a layer that is updated ahead here; the next steps are not ahead
    "ahead, clipped": Scenario({"update": AHEAD, "clip": Clip(0.001)}, (SHARED, TURNED), warm_up=0, pool=repeated_pool),
    "late updates": Scenario({"stress": slow("update")}),
    "late gradients": Scenario({"stress": slow("send")}),
    "late saves": Scenario({"update": "exact", "stash": "host", "slots": 3, "stress": slow("save")}),
    "late loads": Scenario({"stress": slow("load")}),
    "unknown paths": Scenario({"stress": slow("send")}, paths=(PATH, OTHER), knows_next=False),
    "device states": Scenario({"resident": "all"}),
    "device states ahead": Scenario({"update": AHEAD, "resident": "all"}),
}
# what waits, for what, and where its loss is seen; others stand in for every other wait
SEEN = {
    ("forward", "load"): "default",
    ("backward", "load"): "default",
    ("enter", "load"): "default",
    ("load", "free"): "default",
    ("load", "update"): "default",
    ("free", "forward"): "default",
    ("free", "save"): "default",
    ("free", "send"): "default",
    ("save", "forward"): "default",
    ("send", "backward"): "default",
    ("send", "leave"): "default",
    ("forward", "store"): "host stash",
    ("store", "forward"): "host stash",
    ("backward", "fetch"): "exact",
    ("backward", "save"): "late saves",
    ("check", "send"): "exact",
    ("save", "tail"): "checked",
    ("load", "check"): "ahead, clipped",
    ("load", "await"): "late updates",
    ("forward", "carry"): "late gradients",
    ("load", "carry"): "unknown paths",
    ("update", "send"): "late loads",
}
LOUD = ("update", "send")  # an update that finds no gradient fails, or it reads one that is on its way


@pytest.mark.parametrize(("kind", "name"), SEEN.items(), ids=map(" waits for ".join, SEEN))
def test_a_wait_that_is_lost_is_seen(kind, name, monkeypatch, library, races_are_expected):
    op, lost = map(Op, kind)
    for _ in range(TRIES):
        error = SCENARIOS[name].trained(monkeypatch, op=op, lost=lost)[1]
        if library.races() or (kind == LOUD and isinstance(error, LaneError)):
            return
    pytest.fail("no race was seen")


@pytest.mark.parametrize("name", SCENARIOS)
def test_with_all_waits_nothing_races_and_others_stand_in_for_each_whose_loss_is_not_seen(name, monkeypatch, library):
    plans, error = SCENARIOS[name].trained(monkeypatch)
    assert error is None
    assert not library.races()
    kinds = {(step.op, plan.steps[one].op) for plan in plans for step in plan.steps for one in step.after}
    order = Order(plans)
    assert {(op.value, lost.value) for op, lost in kinds if not order.stands_in(op, lost)} <= SEEN.keys()


def test_a_ticket_that_no_longer_orders_threads_is_seen(monkeypatch, library, races_are_expected):
    from l2l_nas.relay.lanes import Future

    monkeypatch.setattr(Future, "wait", lambda future: future._lock.acquire() and future._lock.release())
    SCENARIOS["host stash"].trained(monkeypatch)
    assert library.races()


def staged_without_a_wait(monkeypatch):
    from tests.accelerator.simulated import SimulatedAccelerator

    put, follow, staging = SimulatedAccelerator.put, SimulatedAccelerator.stream_wait, threading.local()

    def unawaited(device, tensor):
        staging.now = True
        try:
            return put(device, tensor)
        finally:
            staging.now = False

    monkeypatch.setattr(SimulatedAccelerator, "put", unawaited)
    monkeypatch.setattr(
        SimulatedAccelerator, "stream_wait", lambda device, mark: getattr(staging, "now", False) or follow(device, mark)
    )


def read_without_a_wait(monkeypatch):
    opened = StateAccess.open

    def open_now(access, key, slot):
        with access.storage.reading(key) as state:
            state.written = None  # the mark behind its update
        return opened(access, key, slot)

    monkeypatch.setattr(StateAccess, "open", open_now)


def written_without_a_wait(monkeypatch):
    allocate = GradientInbox.allocate

    def allocated(inbox, *about):
        block = allocate(inbox, *about)
        block.read = None  # the mark behind the update that read it
        return block

    monkeypatch.setattr(GradientInbox, "allocate", allocated)


def brought_without_a_wait(monkeypatch):
    bring = DeviceStates.bring

    def brought(states, keys):
        device = states._device
        device.wait = lambda mark: None
        try:
            bring(states, keys)
        finally:
            del device.wait

    monkeypatch.setattr(DeviceStates, "bring", brought)


def summed_without_a_wait(monkeypatch):
    sums = GradientInbox._sum

    def summed(inbox, key, queued):
        if len(queued.parts) > 1:
            inbox.give_back(queued.parts[1:])  # before anything was read
            time.sleep(0.1)  # until a visit has taken them
        return sums(inbox, key, queued)

    monkeypatch.setattr(GradientInbox, "_sum", summed)


def streams_without_waits(monkeypatch):
    from tests.accelerator.simulated import SimulatedAccelerator

    monkeypatch.setattr(SimulatedAccelerator, "stream_wait", lambda device, mark: None)


def the_host_without_waits(monkeypatch):
    from tests.accelerator.simulated import SimulatedAccelerator

    monkeypatch.setattr(SimulatedAccelerator, "wait", lambda device, mark: None)


def allocated_without_a_wait(monkeypatch):
    from tests.accelerator.simulated import SimulatedAccelerator

    def allocate(device, num_bytes):
        block = torch.zeros(align(num_bytes), dtype=torch.uint8, device=device.torch_device)
        for stream in device._streams.values():
            block.record_stream(stream)
        return block

    monkeypatch.setattr(SimulatedAccelerator, "allocate", allocate)


def pinned_without_a_fence(monkeypatch):
    from tests.accelerator.simulated import SimulatedAccelerator

    class Open:
        def is_over(self):
            return True

    monkeypatch.setattr(SimulatedAccelerator.blocks, "_fence", Open)


@pytest.mark.parametrize(
    ("lose", "options"),
    [
        (streams_without_waits, {}),
        (the_host_without_waits, {}),
        (allocated_without_a_wait, {}),
        (pinned_without_a_fence, {"stress": slow("load")}),
        (staged_without_a_wait, {}),
        (read_without_a_wait, {"resident": "all"}),
        (read_without_a_wait, {"resident": "all", "update": "exact"}),
        (written_without_a_wait, {"resident": "all"}),
        (brought_without_a_wait, {"resident": "all", "precision": "bf16"}),
        (summed_without_a_wait, {"resident": "all", "slots": 3, "stress": PACED}),
    ],
    ids=[
        "streams",
        "the host",
        "new blocks",
        "pinned blocks",
        "staged inputs",
        "updated weights",
        "updated weights, checked",
        "gradients that were read",
        "states that come",
        "sums of gradients",
    ],
)
def test_each_wait_that_no_plan_has_is_seen_when_it_is_lost(lose, options, monkeypatch, library, races_are_expected):
    def trained():
        relay = relay_of(repeated_pool(depth=6), lanes="threads", **options)
        with contextlib.suppress(L2LError):
            for step in range(3):
                train(relay, REPEATED, step=step, upcoming=REPEATED)
            relay.close()

    trained()
    assert not library.races()
    lose(monkeypatch)
    for _ in range(TRIES):
        trained()
        if library.races():
            return
    pytest.fail("no race was seen")
