"""How recurrent layers begin from attention: its heads' matrices, slow decays, and a last layer fitted to what it adds.

A head of linear attention is a head of attention without its softmax: values are written by keys, and queries read
(arXiv 2408.15237, section 3). Queries that share keys and values get copies of them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from l2l_nas.layers.least_squares import Moments, fit
from l2l_nas.layers.style import Residual

_SHORTEST, _LONGEST = 8.0, 512.0  # tokens over which states decay to 1/e, in the first and in the last head
_OPEN = 2.0  # what gates are fitted to, before their activation


def heads_of(original: Any, count: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Matrices of queries, keys and values, [count * size, hidden] each.

    Raises:
        ValueError: attention of other heads.
    """
    if (original.heads.count, original.size) != (count, size):
        raise ValueError(f"attention of {original.heads.count} heads of {original.size}, not of {count} of {size}")
    each = count // original.heads.shared

    def repeated(weight: Tensor) -> Tensor:
        return weight.unflatten(0, (-1, size)).repeat_interleave(each, dim=0).flatten(0, 1)

    return original.query.weight, repeated(original.key.weight), repeated(original.value.weight)


def slow_steps(count: int) -> Tensor:
    """Of each head, what softplus makes a decay of: a few tokens in the first, many in the last."""
    exponents = torch.linspace(0, 1, count) if count > 1 else torch.ones(1)
    rates = 1 / (_SHORTEST * (_LONGEST / _SHORTEST) ** exponents)
    return before_softplus(rates)


def before_softplus(values: Tensor) -> Tensor:
    """What softplus makes these of."""
    return values + (-torch.expm1(-values)).log()


def only_present(conv: nn.Conv1d) -> None:
    """Have a convolution give each token as it is."""
    conv.weight.zero_()
    conv.weight[:, :, -1] = 1
    if conv.bias is not None:
        conv.bias.zero_()


def fit_gate(layer: Residual, weight: Tensor, inputs: tuple[Tensor, ...]) -> None:
    """Have rows of a gate [rows, hidden] give one number for all tokens, as nearly as inputs let them."""
    row = nn.Linear(weight.shape[1], 1, bias=False, device=weight.device)
    row.weight.zero_()

    def pair(x: Tensor) -> tuple[Tensor, Tensor]:
        return layer.before(x), torch.full_like(x[..., :1], _OPEN)

    fit(row, Moments.of(inputs[:1], pair))
    weight.copy_(row.weight.expand_as(weight))


def fit_last(layer: Any, original: Residual, inputs: tuple[Tensor, ...]) -> None:
    """Fit the last layer to what the original adds."""
    fit(layer.out, Moments.of(inputs, partial(_adds, layer, original)))


def _adds(layer: Any, original: Residual, x: Tensor, *documents: Tensor) -> tuple[Tensor, Tensor]:
    return layer.read(x, None, *documents)[0], original.adds(x, *documents)
