"""Layouts: where tensors lie, aliases, and what is refused."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec
from l2l_nas.eps.layout import ALIGNMENT_BYTES, layout_of, layout_of_module
from l2l_nas.errors import SpaceError
from tests.toys import Twice, dense_pool


def test_every_tensor_is_aligned_and_none_overlap():
    for key in dense_pool(width=5).states:
        layout = layout_of(dense_pool(width=5), key)
        for entries, size in ((layout.parameters, layout.parameter_bytes), (layout.buffers, layout.buffer_bytes)):
            ends = [entry.offset_bytes + entry.numel * entry.dtype.itemsize for entry in entries]
            assert all(entry.offset_bytes % ALIGNMENT_BYTES == 0 for entry in entries)
            assert all(end <= entry.offset_bytes for end, entry in zip(ends, entries[1:], strict=False))
            assert size % ALIGNMENT_BYTES == 0
            assert size >= max(ends, default=0)


def test_views_have_shape_and_dtype_and_write_through():
    layout = layout_of_module(nn.BatchNorm1d(3))
    block = torch.zeros(layout.buffer_bytes, dtype=torch.uint8)
    views = {entry.name: entry.view(block) for entry in layout.buffers}
    assert views["num_batches_tracked"].dtype == torch.int64
    assert views["num_batches_tracked"].shape == ()
    views["running_var"].fill_(2)
    assert layout.buffers[1].view(block).tolist() == [2, 2, 2]


def test_a_parameter_of_two_names_is_one_entry():
    layout = layout_of_module(Twice(4))
    assert layout.aliases == (("second.weight", "first.weight"),)
    assert layout.num_parameters == 4 * 4 + 4 + 4


def test_a_parameter_that_is_not_float32_is_refused():
    pool = LayerPool([Position("p", [Candidate("c", partial(nn.Linear, 2, 2, dtype=torch.float64))])], inputs=())
    with pytest.raises(SpaceError, match=r"position 'p': candidate 'c': parameter 'weight' is torch.float64"):
        layout_of(pool, "p/c")


def test_a_tie_must_name_every_alias():
    candidate = Candidate("c", partial(Twice, 4), tied={"first.weight": "w"})
    with pytest.raises(SpaceError, match=r"tie 'second.weight' as well"):
        layout_of(LayerPool([Position("p", [candidate])], inputs=TensorSpec((4,))), "p/c")
