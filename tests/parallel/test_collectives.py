"""Sums over ranks, as autograd sees them."""

from __future__ import annotations

import torch

from l2l_nas.parallel.collectives import Ranks, forked


class Twin:
    """One of two ranks, of which the other one has the same numbers."""

    rank, size = 0, 2

    def __init__(self):
        self.messages = 0

    def sum(self, tensor):
        self.messages += 1
        tensor.mul_(2)


def test_gradients_of_several_types_travel_together_and_none_is_rounded_to_the_type_of_another():
    narrow = torch.zeros(3, dtype=torch.bfloat16, requires_grad=True)
    wide = torch.zeros(2, requires_grad=True)
    reducer, fine = Twin(), 1 + 2.0**-20  # which bfloat16 rounds to 1
    first, second = forked(Ranks(reducer), narrow, wide)
    ((first * 3).float().sum() + (second * fine).sum()).backward()
    assert narrow.grad.tolist() == [6.0] * 3
    assert wide.grad.tolist() == [2 * fine] * 2
    assert (narrow.grad.dtype, wide.grad.dtype, reducer.messages) == (torch.bfloat16, torch.float32, 1)
