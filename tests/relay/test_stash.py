"""The stash: one arena for all architectures."""

from __future__ import annotations

import torch

from l2l_nas import TensorSpec
from l2l_nas.relay.device import Device
from l2l_nas.relay.stash import DeviceStash

PAIR = (TensorSpec((3,)), TensorSpec((3,), torch.bool))


def stash_of():
    return DeviceStash([(TensorSpec((2,)),), PAIR, (TensorSpec((1,)),)], Device("cpu"))


def test_it_has_room_for_the_input_of_every_position_and_micro_batch():
    cut = stash_of().cut((4, 4, 1))
    assert [[[tuple(t.shape) for t in batch] for batch in position] for position in cut] == [
        [[(4, 2)], [(4, 2)], [(1, 2)]],
        [[(4, 3), (4, 3)], [(4, 3), (4, 3)], [(1, 3), (1, 3)]],
    ]
    assert cut[1][0][1].dtype == torch.bool


def test_rooms_do_not_overlap():
    rooms = [tensor for position in stash_of().cut((4, 3)) for batch in position for tensor in batch]
    for number, room in enumerate(rooms):
        room.fill_(number)
    for number, room in enumerate(rooms):
        assert (room == (number if room.dtype != torch.bool else bool(number))).all()


def test_smaller_batches_use_the_same_memory():
    stash = stash_of()
    large = stash.cut((8, 8))
    arena = stash.arena.data_ptr()
    stash.cut((2,))
    assert stash.arena.data_ptr() == arena
    assert stash.cut((8, 8)) is large


def test_a_larger_batch_makes_the_arena_grow_and_leaves_no_room_in_the_old_one():
    stash = stash_of()
    small = stash.cut((1,))
    stash.cut((64,))
    assert stash.cut((1,)) is not small
    start, end = stash.arena.data_ptr(), stash.arena.data_ptr() + stash.arena.numel()
    assert all(start <= t.data_ptr() < end for position in stash.cut((1,)) for batch in position for t in batch)
