"""Host memory of weights as they cross the link: stored, or rounded for each load."""

from __future__ import annotations

import pytest
import torch

from l2l_nas import Clip
from l2l_nas.eps.file_storage import FileStorage
from l2l_nas.eps.layout import wire_layout_of
from l2l_nas.eps.wire import WireMemory
from l2l_nas.relay.config import PRECISIONS
from tests.relay.pinning import PinningCpu
from tests.relay.steps import OTHER, PATH, is_same, relay_of, tensors, train
from tests.toys import dense_pool, random_data

PATHS = [PATH, OTHER, PATH, PATH, OTHER]


def trained(device=None, *, ends=True, **options):
    """A relay after some steps, what they lost, and what it predicts then."""
    relay = relay_of(dense_pool(), update="exact", clip=Clip(0.5), **options | ({"device": device} if device else {}))
    found = [
        train(relay, path, step=step, upcoming=PATHS[(step + 1) % len(PATHS)]).loss for step, path in enumerate(PATHS)
    ]
    if ends:
        relay.drain()
    inputs, _ = random_data(relay.pool, 4, seed=9)
    return relay, (found, relay.predict(relay.pool.architecture(PATH), inputs, micro_batch=2)[0].tolist())


def wire_bytes(server, key, dtype):
    return wire_layout_of(server.pool, key, dtype).parameter_bytes


def stored_bytes(server):
    """Of host memory that the device copies from: weights in another dtype, and masters."""
    states = [server.state(key) for key in server.visited]
    blocks = [state.wire for state in states if state.wire is not None]
    return sum(block.numel() for block in (*blocks, *(state.weights for state in states if state.is_pinned)))


def test_what_is_not_to_be_stored_gets_no_block_but_for_a_copy():
    assert WireMemory(stores=False).allocate(1) is None
    assert WireMemory(stores=False).stage(1000).numel() == 1000
    assert WireMemory().allocate(1 << 20).numel() == 1 << 20


@pytest.mark.slow
@pytest.mark.parametrize("lanes", ["inline", "threads"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("makes", [lambda: None, PinningCpu, lambda: PinningCpu(late=True)], ids=["any", "pin", "late"])
def test_what_is_rounded_for_each_load_gives_the_bits_of_what_is_stored(makes, precision, lanes):
    shared = {"precision": precision, "lanes": lanes}
    stored, expected = trained(makes(), **shared)
    relay, found = trained(makes(), pinned=None, **shared)
    assert found == expected
    assert is_same(relay.server, tensors(stored.server))
    assert stored_bytes(relay.server) == 0


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("makes", [lambda: None, PinningCpu], ids=["any", "pin"])
def test_bytes_of_a_parameter_in_half_precision(makes, precision):
    every, _ = trained(makes(), precision=precision)
    none, _ = trained(makes(), precision=precision, pinned=None)
    server = every.server
    expected = sum(wire_bytes(server, key, PRECISIONS[precision]) for key in server.visited)
    assert stored_bytes(server) == expected > 0
    assert stored_bytes(none.server) == 0
    assert all(none.server.state(key).wire is None for key in none.server.visited)


def test_masters_in_fp32_lie_where_the_device_copies_from_and_nothing_is_stored_twice():
    relay, _ = trained(PinningCpu())
    server = relay.server
    states = [server.state(key) for key in server.visited]
    assert all(state.is_pinned and state.wire is None for state in states)
    fork = server.fork(server.visited)
    assert all(fork.state(key).is_pinned and fork.state(key).wire is None for key in fork.visited)


def test_masters_that_were_there_before_the_relay_are_copied():
    device = PinningCpu()
    relay, expected = trained(device)
    other = relay_of(dense_pool(), device=None or PinningCpu(), update="exact", clip=Clip(0.5))
    for key in relay.server.visited:
        other.server.pin_masters(WireMemory(stores=False))
        other.server.state(key)
    assert not any(other.server.state(key).is_pinned for key in other.server.visited)
    found = [train(other, path, step=step).loss for step, path in enumerate(PATHS)]
    other.drain()
    assert found == expected[0]
    assert is_same(other.server, tensors(relay.server))
    assert all(other.server.state(key).wire is not None for key in relay.server.visited)


def test_states_in_files_are_rounded_for_each_load(tmp_path):
    for precision in ("fp32", "bf16"):
        stored, expected = trained(PinningCpu(), precision=precision)
        storage = FileStorage(tmp_path / precision)
        relay, found = trained(PinningCpu(), precision=precision, storage=storage, lanes="threads")
        assert found == expected
        assert is_same(relay.server, tensors(stored.server))
        assert stored_bytes(relay.server) == 0


def test_a_change_by_the_user_is_loaded_whether_copies_are_stored_or_not():
    given = []
    for pinned in ("all", None):
        relay, _ = trained(PinningCpu(), precision="bf16", pinned=pinned)
        state = relay.server.state(relay.server.visited[0])
        state.views[0].mul_(2)
        state.mark_changed()
        given.append(train(relay, PATH, step=7).loss)
    assert given[0] == given[1]
    assert torch.tensor(given).isfinite().all()
