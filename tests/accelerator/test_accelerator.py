"""On the simulated accelerator alone: that it is late, closed and watched, and that relays leave nothing behind.

Run by `pytest --device=simulated tests/accelerator`; `tests/relay/test_simulated.py` does so.
"""

from __future__ import annotations

import gc
import os
import signal
from dataclasses import replace

import pytest
import torch

from l2l_nas import UniformPaths
from l2l_nas.errors import L2LError
from l2l_nas.relay import executor
from l2l_nas.relay.plan import plan_training
from tests.accelerator.build import compiler
from tests.relay.steps import relay_of, train
from tests.toys import dense_pool, random_data

BYTES = 1 << 16
PATH = ("normed", "partial", "dense", "dense", "normed", "dense", "mlp")
OPTIONS = {
    "default": {},
    "host stash": {"stash": "host"},
    "exact": {"update": "exact", "stash": "host", "slots": 3},
    "serial": {"update": "serial", "slots": 4, "keep": 3},
}
# (what waits, for what): the loss of these alone makes accesses race; for others another wait stands in, or the order
# of a lane or stream
COMMON = {
    ("forward", "load"), ("backward", "load"), ("enter", "load"), ("load", "free"),
    ("free", "forward"), ("send", "backward"), ("send", "leave"),
}  # fmt: skip
STORED = {("forward", "store"), ("store", "forward")}
CHECKED = {("check", "send")}
SEEN = {
    "default": COMMON,
    "host stash": COMMON | STORED,
    "exact": COMMON | STORED | CHECKED | {("backward", "fetch")},
    "serial": COMMON | CHECKED,
}


@pytest.fixture(autouse=True)
def _simulated(request):
    if request.config.getoption("--device") != "simulated":
        pytest.skip("runs with --device=simulated" + ("" if compiler() else ", which needs a C++ compiler"))


@pytest.fixture
def library():
    from tests.accelerator.simulated import library

    return library


@pytest.fixture
def pinned():
    from tests.accelerator.simulated import SimulatedAccelerator

    block = SimulatedAccelerator().allocate_host(BYTES)
    return block.fill_(7)


def test_the_host_cannot_touch_device_memory():
    tensor = torch.ones(4, device="simulated")
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        import ctypes

        ctypes.string_at(tensor.data_ptr(), 4)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGSEGV


def test_a_copy_that_nobody_waited_for_is_seen_whenever_it_was_done(library, pinned, races_are_expected):
    stream, memory = torch.Stream("simulated"), torch.zeros(BYTES, dtype=torch.uint8, device="simulated")
    torch.accelerator.current_stream().synchronize()
    with stream:
        memory.copy_(pinned, non_blocking=True)
    while not stream.query():  # it is done, and yet no wait says so
        pass
    memory.sum()
    assert any("read after write" in race for race in library.races())


def test_what_a_copy_will_fill_holds_rubbish_until_then(library, pinned, races_are_expected):
    stream, memory = torch.Stream("simulated"), torch.zeros(BYTES, dtype=torch.uint8, device="simulated")
    torch.accelerator.current_stream().synchronize()
    with stream:
        library.delay(0.2)
        memory.copy_(pinned, non_blocking=True)
        event = torch.Event("simulated")
        event.record(stream)
    assert memory.sum().item() != 7 * BYTES
    torch.accelerator.current_stream().wait_event(event)
    event.synchronize()
    assert memory.sum().item() == 7 * BYTES


def test_pinned_memory_that_a_host_writes_under_a_copy_is_seen(library, pinned, races_are_expected):
    memory = torch.zeros(BYTES, dtype=torch.uint8, device="simulated")
    memory.copy_(pinned, non_blocking=True)
    library.host_access(pinned, True, "a write")
    assert any("write after read" in race for race in library.races())


def trained(monkeypatch, options, *, op=None, lost=None):
    """Train with plans that lost a kind of wait: the kinds that there were, and the error if there was one."""
    kinds = set()

    def planned(path, **options):
        plan = plan_training(path, **options)
        steps = []
        for step in plan.steps:
            kinds.update((step.op, plan.steps[one].op) for one in step.after)
            kept = tuple(one for one in step.after if (step.op, plan.steps[one].op) != (op, lost))
            steps.append(replace(step, after=kept))
        return replace(plan, steps=tuple(steps))

    monkeypatch.setattr(executor, "plan_training", planned)
    relay = relay_of(dense_pool(depth=6), lanes="threads", **options)
    error = None
    try:
        for step in range(2):
            train(relay, PATH, step=step, upcoming=PATH)
        relay.drain()
    except L2LError as caught:
        error = caught
    relay.close()
    return kinds, error


@pytest.mark.parametrize("name", OPTIONS)
def test_each_kind_of_wait_that_is_lost_is_seen(name, monkeypatch, library, races_are_expected):
    kinds, error = trained(monkeypatch, OPTIONS[name])
    assert error is None
    assert not library.races()
    seen = set()
    for op, lost in kinds:
        error = trained(monkeypatch, OPTIONS[name], op=op, lost=lost)[1]
        if library.races():
            seen.add((op.value, lost.value))
    assert seen >= SEEN[name]


def test_a_ticket_that_no_longer_orders_threads_is_seen(monkeypatch, library, races_are_expected):
    from l2l_nas.relay.lanes import Ticket

    trained(monkeypatch, OPTIONS["host stash"])
    assert not library.races()
    monkeypatch.setattr(Ticket, "wait", lambda ticket: ticket._lock.acquire() and ticket._lock.release())
    trained(monkeypatch, OPTIONS["host stash"])
    assert library.races()


def test_forks_and_scores_leave_no_memory_behind(library):
    relay = relay_of(dense_pool())
    base, path = relay.server, ("normed", "dense", "running", "partial", "mlp")
    train(relay, path)
    relay.drain()
    inputs, _ = random_data(base.pool, 5, seed=0)

    def reserved_after(count):
        for step in range(count):
            relay.use(base.fork(base.visited))
            train(relay, path, step=step)
            relay.drain()
            relay.predict(base.pool.architecture(path), inputs, micro_batch=2)
        gc.collect()
        return library.device_memory()[2], library.pinned_memory()[2]

    assert_no_growth(reserved_after(20), reserved_after(100))


def assert_no_growth(before, after):
    """A stream that is later may need a few more of the smallest blocks; one block left at each step would be more."""
    (device, pinned), (device_after, pinned_after) = before, after
    assert device_after - device <= 8 * 512
    assert pinned_after == pinned


def test_architectures_in_a_row_take_no_new_memory(library):
    relay = relay_of(dense_pool(width=4, depth=5))
    paths = UniformPaths(relay.server.pool, seed=0)

    def reserved_after(steps):
        for step in steps:
            train(relay, paths.path_at(step).choices, step=step)
        relay.drain()
        return library.device_memory()[2], library.pinned_memory()[2]

    assert_no_growth(reserved_after(range(100)), reserved_after(range(100, 300)))


def test_a_step_synchronises_no_stream(library):
    relay = relay_of(dense_pool())
    path = ("normed", "dense", "running", "partial", "mlp")
    for step in range(2):
        train(relay, path, step=step)
    relay.drain()
    library.stalls()
    train(relay, path, step=2)
    relay.drain()
    assert not [kind for kind in library.stalls() if "synchronised" in kind]
