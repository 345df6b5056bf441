"""Devices, and the seeds of random streams."""

from __future__ import annotations

import itertools

import pytest
import torch

from l2l_nas.errors import SettingError
from l2l_nas.relay.device import Cpu, open_device, stream_seed


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
        with device.preserved_generators():
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
