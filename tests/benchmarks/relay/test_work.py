from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.relay.work import StackSizes, TokenLoss
from l2l_nas.errors import SettingError
from tests.benchmarks.stacks import TINY


def test_the_stack_is_an_embedding_blocks_and_a_head():
    assert [position.name for position in TINY.pool.positions] == ["embedding", "block_000", "block_001", "head"]
    assert TINY.num_parameters == sum(p.numel() for module in TINY.modules() for p in module.parameters())


def test_every_side_starts_from_the_same_weights_and_tokens():
    first, second = TINY.modules(), replace(TINY).modules()
    pairs = zip((p for m in first for p in m.parameters()), (p for m in second for p in m.parameters()), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert torch.equal(TINY.tokens, replace(TINY).tokens)


def test_candidates_of_a_position_cost_the_same_and_are_different_layers():
    work = replace(TINY, candidates=3)
    block = work.pool.positions[1]
    assert len({candidate.kind for candidate in block.candidates}) == 3
    assert work.num_parameters == TINY.num_parameters


def test_the_loss_is_summed_over_tokens():
    logits = torch.zeros(2, 3, 20)
    targets = torch.zeros(2, 3, dtype=torch.int64)
    assert TokenLoss().count(targets) == 6
    torch.testing.assert_close(TokenLoss().loss((logits,), targets), 6 * torch.log(torch.tensor(20.0)))


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"depth": 0}, "depth must be at least 1, got 0"),
        ({"candidates": 0}, "candidates must be at least 1"),
        ({"hidden": 6, "heads": 4}, "hidden must be a multiple of heads, got 6 and 4"),
        ({"device": "abacus"}, "device must be"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(sizes, says):
    with pytest.raises(SettingError, match=says):
        StackSizes(**sizes)
