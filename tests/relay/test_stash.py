"""The stash: one arena for all architectures."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec
from l2l_nas.relay.device import Cpu
from l2l_nas.relay.path import RING
from l2l_nas.relay.stash import Stash


class Paired(nn.Module):
    def forward(self, x):
        return x[:, :1].expand(-1, 3), x[:, :1].expand(-1, 3) > 0


class Single(nn.Module):
    def forward(self, x, flags):
        return x[:, :1]


POOL = LayerPool(
    [Position("pair", Candidate("paired", Paired)), Position("single", Candidate("single", Single))],
    inputs=TensorSpec((2,)),
)


def stash_of():
    return Stash(POOL, Cpu())


def test_it_has_room_for_the_input_of_every_position_and_micro_batch():
    arena = stash_of().lay_out((4, 4, 1)).own
    assert [[[tuple(t.shape) for t in batch] for batch in value] for value in arena.values()] == [
        [[(4, 2)], [(4, 2)], [(1, 2)]],
        [[(4, 3), (4, 3)], [(4, 3), (4, 3)], [(1, 3), (1, 3)]],
    ]
    assert arena["pair"][0][1].dtype == torch.bool


def test_rooms_do_not_overlap():
    frames = [tensor for value in stash_of().lay_out((4, 3)).own.values() for batch in value for tensor in batch]
    for number, frame in enumerate(frames):
        frame.fill_(number)
    for number, frame in enumerate(frames):
        assert (frame == (number if frame.dtype != torch.bool else bool(number))).all()


def test_smaller_batches_use_the_same_memory():
    stash = stash_of()
    large = stash.lay_out((8, 8))
    arena = stash.arena.data_ptr()
    stash.lay_out((2,))
    assert stash.arena.data_ptr() == arena
    assert stash.lay_out((8, 8)) is large


def test_a_larger_batch_makes_the_arena_grow_and_leaves_no_room_in_the_old_one():
    stash = stash_of()
    small = stash.lay_out((1,))
    stash.lay_out((64,))
    assert stash.lay_out((1,)) is not small
    start, end = stash.arena.data_ptr(), stash.arena.data_ptr() + stash.arena.numel()
    assert all(
        start <= t.data_ptr() < end for value in stash.lay_out((1,)).own.values() for batch in value for t in batch
    )


def test_spilled_inputs_share_a_ring_on_the_device_and_have_a_place_each_on_the_host():
    stash = stash_of()
    arena = stash.lay_out((4, 1), frozenset(["pair"]))
    assert list(arena.own) == [""]
    assert list(arena.host) == ["pair"]
    places = {frame["pair"][0][0].data_ptr() for frame in arena.ring}
    assert len(places) == RING
    start, end = stash.arena.data_ptr(), stash.arena.data_ptr() + stash.arena.numel()
    for frame in arena.ring:
        for tensor, away in zip(frame["pair"][1], arena.host["pair"][1], strict=True):
            assert tensor.shape == away.shape
            assert start <= tensor.data_ptr() < end
            assert not start <= away.data_ptr() < end


def test_with_everything_spilled_device_memory_does_not_depend_on_depth():
    needs = {}
    for depth in (3, 30):
        positions = [Position(f"p{index}", Candidate("c", partial(nn.Linear, 5, 5))) for index in range(depth)]
        stash = Stash(LayerPool(positions, inputs=TensorSpec((5,))), Cpu())
        assert len(stash.spillable) == depth - 1
        needs[depth] = stash.needs_bytes((4, 4), frozenset(stash.spillable))
    assert needs[3] == needs[30]


def test_what_is_said_to_be_needed_is_what_is_taken():
    for spilled in (frozenset(), frozenset(["pair"])):
        stash = stash_of()
        stash.lay_out((4, 3), spilled)
        assert stash.arena.numel() == stash.needs_bytes((4, 3), spilled)


def test_low_precision_halves_floats_and_nothing_else():
    stash = Stash(POOL, Cpu(), torch.bfloat16)
    dtypes = [tensor.dtype for value in stash.lay_out((1,)).own.values() for batch in value for tensor in batch]
    assert dtypes == [torch.bfloat16, torch.bfloat16, torch.bool]


def test_what_reads_most_decides_how_many_spilled_values_are_on_the_device_at_a_time():
    class Summed(nn.Module):
        def forward(self, *given):
            return sum(given)

    names = [f"p{index}" for index in range(5)]
    positions = [Position(name, Candidate("c", partial(nn.Linear, 5, 5)), reads=("",)) for name in names]
    pool = LayerPool([*positions, Position("last", Candidate("sum", Summed), reads=names)], inputs=TensorSpec((5,)))
    assert Stash(pool, Cpu()).frames == 5 + 1  # what the last position writes is for the loss
