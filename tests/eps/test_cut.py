from __future__ import annotations

import pytest
import torch
from torch import nn

from l2l_nas import AdamW, Candidate, LayerPool, Position, TensorSpec
from l2l_nas.eps import cut
from l2l_nas.eps.cut import Cut
from l2l_nas.eps.optimizers.groups import rules_of
from l2l_nas.eps.optimizers.rules import Adafactor, Muon


def layers() -> nn.Module:
    """Parameters of sizes that are no multiple of a block, one of which crosses the link as it is."""
    return nn.Sequential(nn.Linear(50, 70), nn.BatchNorm1d(70), nn.Linear(70, 90), nn.Linear(90, 50, bias=False))


@pytest.fixture(params=[AdamW(), Adafactor()], ids=["by blocks", "by parameters"])
def parts(request, monkeypatch) -> Cut:
    monkeypatch.setattr(cut, "SMALL_BYTES", 0)
    pool = LayerPool([Position("only", Candidate("only", layers))], inputs=TensorSpec((50,)))
    [key] = pool.states
    return Cut(rules_of(pool, request.param).of(key), 4)


def test_a_block_that_is_taken_apart_has_each_range_in_the_row_of_its_rank(parts):
    layout = parts.rules.layout
    block = torch.randn(layout.parameter_bytes // 4).view(torch.uint8)
    rows = torch.zeros(4, parts.part_bytes, dtype=torch.uint8)
    parts.take_apart(block, rows)
    seen = 0
    for part, row in zip(parts.parts, rows, strict=True):
        for index, (start, stop), entry in zip(part.indices, part.ranges, part.layout.parameters, strict=True):
            assert torch.equal(
                entry.view(row).reshape(-1), layout.parameters[index].view(block).reshape(-1)[start:stop]
            )
            seen += stop - start
    assert seen == layout.num_parameters


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_all_ranks_are_put_together_to_the_whole(parts, dtype):
    wire, wires = parts.rules.layout.as_wire(dtype), parts.wires(dtype)
    wanted = torch.randint(0, 100, (wire.parameter_bytes,), dtype=torch.uint8)
    rows = torch.zeros(4, wires.num_bytes, dtype=torch.uint8)
    for part, layout, row in zip(parts.parts, wires.layouts, rows, strict=True):
        for index, (start, stop), entry in zip(part.indices, part.ranges, layout.parameters, strict=True):
            entry.view(row).view(-1).copy_(wire.parameters[index].view(wanted).reshape(-1)[start:stop])
    block = torch.zeros_like(wanted)
    parts.put_together(rows, block, dtype)
    for entry in wire.parameters:
        assert torch.equal(entry.view(block).view(-1).view(torch.uint8), entry.view(wanted).view(-1).view(torch.uint8))


@pytest.mark.parametrize("rule", [Adafactor(), Muon()], ids=["adafactor", "muon"])
def test_a_rule_that_needs_whole_weights_has_each_of_them_on_one_rank(rule, monkeypatch):
    monkeypatch.setattr(cut, "SMALL_BYTES", 0)
    layer = Candidate("only", lambda: nn.Sequential(*(nn.Linear(50, 50, bias=False) for _ in range(3))))
    pool = LayerPool([Position("only", layer)], inputs=TensorSpec((50,)))
    [key] = pool.states
    parts = Cut(rules_of(pool, rule).of(key), 2).parts
    assert sorted(index for part in parts for index in part.indices) == [0, 1, 2]
    assert {ranges for part in parts for ranges in part.ranges} == {(0, 50 * 50)}


def test_a_rank_copies_its_part_at_once_where_it_is_cut_by_blocks(parts):
    most = max(len(runs) for runs in parts.wires(torch.float32).runs)
    assert (most == 1) == (parts.rules.calls[0].rule.name == "adamw")
