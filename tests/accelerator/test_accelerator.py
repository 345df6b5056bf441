"""On the simulated accelerator alone: that it is late, closed and watched, and that relays leave nothing behind.

Run by `pytest --device=simulated tests/accelerator`; `tests/relay/test_simulated.py` does so.
"""

from __future__ import annotations

import gc
import os
import signal
from itertools import zip_longest

import pytest
import torch

from l2l_nas import UniformPaths
from tests.relay.steps import relay_of, train
from tests.toys import dense_pool, random_data

BYTES = 1 << 16


@pytest.fixture(params=[100, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])])
def forks(request):
    return request.param


@pytest.fixture(params=[50, pytest.param(1000, marks=pytest.mark.slow)])
def architectures(request):
    return request.param


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


def test_what_the_allocator_holds_for_later_is_free():
    from tests.accelerator.simulated import SimulatedAccelerator

    device = SimulatedAccelerator()
    free = device.free_bytes()
    block = device.allocate(BYTES)
    assert device.free_bytes() == free - BYTES
    del block
    torch.accelerator.synchronize()  # a block goes back when the lanes are done with it
    assert device.free_bytes() == free
    assert torch.accelerator.get_memory_info()[0] < free  # the driver's figure


def memory(library):
    """Bytes in use, of the device and pinned; bytes that their allocators ever took."""
    gc.collect()
    (device, _, most), (pinned, _, most_pinned) = library.device_memory(), library.pinned_memory()
    return (device, pinned), (most, most_pinned)


def assert_no_growth(before, after):
    """Streams that are later than before may need a few more of the smallest blocks; one left behind by each of 50
    architectures would be 50."""
    for name, now, then in zip(("in use", "taken at most"), after, before, strict=True):
        growth = {"device": now[0] - then[0], "pinned": now[1] - then[1]}
        print(f"bytes {name}: {growth} more, {dict(zip(growth, now, strict=True))} now")  # pytest -rP shows it
        assert sum(growth.values()) <= 16 * 512


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

    first = min(100, architectures)
    assert_no_growth(memory_after(range(first)), memory_after(range(first, first + architectures)))


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


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_no_lane_waits_for_copies_to_the_device(precision, library):
    """Buffers too come from pinned memory, with each load and again before a backward whose forward changed them."""
    relay = relay_of(dense_pool(), precision=precision)
    path = ("normed", "dense", "running", "normed", "mlp")
    for step in range(5):  # in the first ones buffers and recomputed values are compared
        train(relay, path, step=step)
    relay.drain()
    library.stalls()
    train(relay, path, step=5)
    relay.drain()
    assert {kind.rpartition(" in ")[2].split(":")[0] for kind in library.stalls()} <= {"down", "host"}
