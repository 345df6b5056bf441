"""Devices, and the seeds of random streams."""

from __future__ import annotations

import itertools

import pytest
import torch

from l2l_nas.errors import SettingError
from l2l_nas.relay.accelerator import Cuda
from l2l_nas.relay.device import Cpu, open_device, stream_seed
from l2l_nas.space.randomness import preserved_generators


@pytest.mark.parametrize("name", ["gpu", "mps", "cuda:99", "cpu:x", "", "meta"])
def test_a_device_that_cannot_be_used_is_refused(name):
    with pytest.raises(SettingError, match="device"):
        open_device(name)


def test_auto_finds_a_device():
    assert open_device().torch_device.type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_memory_is_zeroed_and_aligned():
    block = Cpu().allocate(257)
    assert block.numel() == 512
    assert not block.any()
    assert block.data_ptr() % 64 == 0


def test_the_callers_random_numbers_are_left_alone():
    device = Cpu()
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)

    def fail():
        with preserved_generators(device.torch_device):
            device.seed(5)
            torch.rand(9)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.equal(torch.rand(2), expected)


def test_a_seed_replays_the_numbers_of_torch_manual_seed():
    Cpu().seed(2**62 + 5)
    own = torch.rand(3)
    torch.manual_seed(2**62 + 5)
    assert torch.equal(own, torch.rand(3))


def test_stream_seeds_do_not_collide_and_every_bit_is_even():
    seeds = [stream_seed(*values) for values in itertools.product(range(10), repeat=4)]
    assert len(set(seeds)) == 10**4
    assert all(0 <= seed < 2**63 for seed in seeds)
    for bit in range(63):
        ones = sum(seed >> bit & 1 for seed in seeds)
        assert abs(ones - 5000) < 250  # five standard deviations


def test_stream_seeds_depend_on_each_value_and_its_place():
    base = (1, 2, 3, 4)
    others = [(5, 2, 3, 4), (1, 5, 3, 4), (1, 2, 5, 4), (1, 2, 3, 5), (4, 3, 2, 1), (-1, 2, 3, 4)]
    assert len({stream_seed(*values) for values in (base, *others)}) == 7


def test_stream_seeds_never_change():
    assert stream_seed(0, 0, 0, 0) == 1195769770526638388


class CaptureState:
    """A generator of CUDA before torch 2.13: it takes no draw outside of a capture that it was told of."""

    def __init__(self, offset, *, is_capturing=False):
        self.offset = offset
        self.is_capturing = is_capturing

    def clone_state(self):
        return CaptureState(self.offset)

    def graphsafe_set_state(self, other):
        self.offset, self.is_capturing = other.offset, other.is_capturing

    def draw(self):
        if self.is_capturing:
            raise RuntimeError("Offset increment outside graph capture encountered unexpectedly.")
        self.offset += 4
        return self.offset


class RecordingCuda(Cuda):
    """Records what is done about a capture that fails; there is no CUDA here, and nothing is shown of it."""

    def __init__(self):
        self.random = CaptureState(8)
        self._generators = (self.random,)
        self.current, self.capturing = "compute", set()

    def _current_stream(self):
        return self.current

    def _resume(self, stream):
        self.current = stream

    def _end_allocations(self, pool):
        if pool not in self.capturing:
            raise RuntimeError("endAllocatePool: not currently recording to mempool_id")
        self.capturing.remove(pool)

    def begin(self, pool):
        self.current = "capture"
        self.random.is_capturing = True
        self.capturing.add(pool)

    def end(self, pool):
        self.random.is_capturing = False
        self.capturing.remove(pool)
        self.current = "compute"


def capture(device, *, error, is_ended):
    with device._left_usable("pool"):
        device.begin("pool")
        if error is None or is_ended:
            device.end("pool")
        if error is not None:
            raise error


@pytest.mark.parametrize("is_ended", [False, True])
def test_a_capture_that_fails_leaves_stream_generator_and_allocator_usable(is_ended):
    device = RecordingCuda()
    with pytest.raises(RuntimeError, match="previous error during capture"):
        capture(
            device, error=RuntimeError("operation failed due to a previous error during capture"), is_ended=is_ended
        )
    assert device.random.draw() == 12
    assert device.current == "compute"
    assert not device.capturing


def test_a_capture_that_works_leaves_the_generator_that_graphs_know():
    device = RecordingCuda()
    device.random.clone_state = None
    capture(device, error=None, is_ended=True)
    assert device.random.draw() == 12
