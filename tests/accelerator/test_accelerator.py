"""On the simulated accelerator alone: that it is late, closed and watched, and that relays leave nothing behind.

Run by `pytest --device=simulated tests/accelerator`; `tests/relay/test_simulated.py` does so.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
from dataclasses import replace
from itertools import zip_longest

import pytest
import torch

from l2l_nas import UniformPaths
from l2l_nas.eps.gradients import GradientQueue
from l2l_nas.errors import L2LError
from l2l_nas.relay import executor
from l2l_nas.relay.plan import plan_training
from l2l_nas.relay.residents import Residents
from l2l_nas.relay.stress import Stress
from tests.accelerator.build import compiler
from tests.relay.steps import relay_of, train
from tests.toys import dense_pool, random_data, repeated_pool

BYTES = 1 << 16
PATH = ("normed", "partial", "dense", "dense", "normed", "dense", "mlp")
REPEATED = ("running", "partial", "normed", "dense", "dense", "dense", "head")
SLOW = Stress(longest_delay_s=0.0, pace=lambda op, layer: 0.03 if op == "backward" else 0.0, is_poisoning=False)
OPTIONS = {
    "default": {},
    "host stash": {"stash": "host"},
    "exact": {"update": "exact", "stash": "host", "slots": 3},
    "serial": {"update": "serial", "slots": 4, "keep": 3},
    "ahead": {"update": "ahead", "stash": "host"},
    "residents": {"resident": "all"},
    "residents ahead": {"update": "ahead", "resident": "all"},
}
# (what waits, for what): the loss of these alone makes accesses race; for others another wait stands in, or the order
# of a lane or stream
COMMON = {
    ("forward", "load"), ("backward", "load"), ("enter", "load"), ("load", "free"),
    ("free", "forward"), ("send", "backward"), ("send", "leave"),
}  # fmt: skip
STORED = {("forward", "store"), ("store", "forward")}
CHECKED = {("check", "send")}
BOUND = {("forward", "load"), ("backward", "load"), ("send", "backward"), ("send", "leave")}
SEEN = {
    "default": COMMON | {("load", "update")},
    "host stash": COMMON | STORED,
    "exact": COMMON | STORED | CHECKED | {("backward", "fetch")},
    "serial": COMMON | CHECKED,
    "ahead": COMMON | STORED | {("load", "check")},
    "residents": BOUND,
    "residents ahead": BOUND,
}


@pytest.fixture(autouse=True)
def _simulated(request):
    if request.config.getoption("--device") != "simulated":
        pytest.skip("runs with --device=simulated" + ("" if compiler() else ", which needs a C++ compiler"))


@pytest.fixture(params=[100, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def forks(request):
    return request.param


@pytest.fixture(params=[200, pytest.param(1000, marks=pytest.mark.slow)])
def architectures(request):
    return request.param


@pytest.fixture
def library():
    from tests.accelerator.simulated import library

    return library


def lane():
    from tests.accelerator.simulated import SimulatedAccelerator

    return SimulatedAccelerator()._streams["up"]


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
    stream, memory = lane(), torch.zeros(BYTES, dtype=torch.uint8, device="simulated")
    torch.accelerator.current_stream().synchronize()
    with stream:
        memory.copy_(pinned, non_blocking=True)
    while not stream.query():  # it is done, and yet no wait says so
        pass
    memory.sum()
    assert any("read after write" in race for race in library.races())


def test_what_a_copy_will_fill_holds_rubbish_until_then(library, pinned, races_are_expected):
    stream, memory = lane(), torch.zeros(BYTES, dtype=torch.uint8, device="simulated")
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


def staged_without_a_wait(monkeypatch):
    from tests.accelerator.simulated import SimulatedAccelerator

    put, follow, staging = SimulatedAccelerator.put, SimulatedAccelerator.follow, threading.local()

    def unawaited(device, tensor):
        staging.now = True
        try:
            return put(device, tensor)
        finally:
            staging.now = False

    monkeypatch.setattr(SimulatedAccelerator, "put", unawaited)
    monkeypatch.setattr(
        SimulatedAccelerator, "follow", lambda device, mark: getattr(staging, "now", False) or follow(device, mark)
    )


def updated_without_a_wait(monkeypatch):
    @contextlib.contextmanager
    def updating(residents, key):
        with residents._device.stream("host"):
            yield residents._own[key].state

    monkeypatch.setattr(Residents, "updating", updating)


def brought_without_a_wait(monkeypatch):
    move = Residents.move

    def moved(residents, coming, leaving):
        device = residents._device
        device.wait = lambda mark: None
        try:
            move(residents, coming, leaving)
        finally:
            del device.wait

    monkeypatch.setattr(Residents, "move", moved)


def summed_without_a_wait(monkeypatch):
    gather = GradientQueue.gather

    def gathered(queue, key, pending):
        if len(pending.parts) > 1:
            queue.give_back(pending.parts[1:])  # before anything was read
            time.sleep(0.1)  # until a visit has taken them
        return gather(queue, key, pending)

    monkeypatch.setattr(GradientQueue, "gather", gathered)


@pytest.mark.parametrize(
    ("lose", "options"),
    [
        (staged_without_a_wait, {}),
        (updated_without_a_wait, {"resident": "all"}),
        (updated_without_a_wait, {"resident": "all", "update": "exact"}),
        (brought_without_a_wait, {"resident": "all", "precision": "bf16"}),
        (summed_without_a_wait, {"resident": "all", "slots": 3, "stress": SLOW}),
    ],
    ids=["staged inputs", "updates of residents", "updates checked", "states that come", "sums of gradients"],
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
    trained()
    assert library.races()


def memory(library):
    """Bytes in use, of the device and pinned; bytes that their allocators ever took."""
    gc.collect()
    (device, _, most), (pinned, _, most_pinned) = library.device_memory(), library.pinned_memory()
    return (device, pinned), (most, most_pinned)


def assert_no_growth(before, after):
    """A stream that is later than before may need one more of the smallest blocks; what is left behind needs many."""
    for now, then in zip(after, before, strict=True):
        assert sum(now) - sum(then) <= 8 * 512


@pytest.mark.parametrize("resident", [None, "all"])
def test_forks_and_scores_leave_no_memory_behind(resident, library, forks):
    relay = relay_of(dense_pool(width=4, depth=2), resident=resident)
    base, path = relay.server, ("dense", "normed", "linear")
    train(relay, path)
    relay.drain()
    inputs, _ = random_data(base.pool, 4, seed=0)

    def memory_after(count):
        for step in range(count):
            relay.use(base.fork(base.visited))
            train(relay, path, step=step, batch=4)
            relay.drain()
            relay.predict(base.pool.architecture(path), inputs, micro_batch=2)
        return memory(library)

    assert_no_growth(memory_after(20), memory_after(forks))


@pytest.mark.parametrize("resident", [None, "all"])
def test_architectures_in_a_row_take_no_new_memory(resident, library, architectures):
    relay = relay_of(dense_pool(width=4, depth=5), resident=resident)
    pool = relay.server.pool
    for step, names in enumerate(zip_longest(*([one.name for one in p.candidates] for p in pool.positions))):
        train(relay, [name or p.candidates[0].name for name, p in zip(names, pool.positions, strict=True)], step=step)
    paths = UniformPaths(pool, seed=0)

    def memory_after(steps):
        for step in steps:
            train(relay, paths.path_at(step).choices, step=step)
        relay.drain()
        return memory(library)

    assert_no_growth(memory_after(range(100)), memory_after(range(100, 100 + architectures)))


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
