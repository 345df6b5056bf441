"""SliceGPT (arXiv 2401.15024): the residual stream is turned to its principal components, and the last are left out.

Weights of RMS norms go into the linear layers behind them, so that a rotation passes through a norm. Each sub-layer has
a rotation of its own, by the second moments of the normed stream; between two, the residual connection has the product
of both as a matrix, which is counted among the parameters. These matrices are not fine-tuned, as the article's recovery
leaves them, which adapts linear layers by low-rank terms: the stream is a hundred times larger in its first component
than in most, and a step of Adam that moves all numbers alike would change it most. Signals come from the sliced
sub-layers before. The table of tokens is that of the head and stays as it is: a matrix leads from it to the
stream and one back, which has fewer parameters than two sliced tables. Grouped-query attention changes nothing: what is
inside a sub-layer stays whole.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.models.pruners.llama import (
    PlainLlama,
    PlainNorm,
    Sublayer,
    batched,
    linear_of,
    num_layer_parameters,
    sublayers,
)
from l2l_nas.errors import SettingError


def slicegpt(network: PlainLlama, tokens: Tensor, share: float) -> PlainLlama:
    """Slice so much of the stream that the share of the parameters goes, those of new matrices counted."""
    if any(part.after is not None for part in sublayers(network)):
        raise SettingError("slicegpt: this model's sub-layers have norms behind them; leave this one out of --arms")
    return sliced(network, tokens, width_within(network, share))


def width_within(network: PlainLlama, share: float) -> int:
    """The width of the stream that comes nearest to a share."""
    hidden = network.token.embedding_dim
    layers = [(part.body.first, part.body.last) for part in sublayers(network)]
    inside = sum(layer.out_features for first, _ in layers for layer in first)
    inside += sum(last.in_features for _, last in layers)
    wanted = (1 - share) * num_layer_parameters(network)
    return min(
        range(1, hidden + 1),
        key=lambda width: abs(inside * width + len(layers) * width**2 + 2 * hidden * width - wanted),
    )


@torch.no_grad()
def sliced(network: PlainLlama, tokens: Tensor, width: int) -> PlainLlama:
    """The network with a stream of this width; of the whole width, it computes what it did."""
    states = batched(network.token, tokens)
    basis = _components(states, width)
    network.into = linear_of(basis.T).requires_grad_(False)
    for layer in sublayers(network):
        states = states @ basis @ basis.T
        _fold(layer)
        states = batched(layer, states)
        after = _components(states, width)
        _turn(layer, basis, after)
        basis = after
    assert network.norm.weight is not None
    network.back = linear_of(network.norm.weight[:, None] * basis).requires_grad_(False)
    network.norm.weight = None
    return network


def _components(states: Tensor, width: int) -> Tensor:
    """Principal components of the normed stream [batch, length, hidden], the first so many: [hidden, width]."""
    rows = states.flatten(0, -2)
    moments = torch.zeros(rows.shape[1], rows.shape[1], dtype=torch.float64)
    for part in rows.split(8192):
        wide = part.double()
        normed = wide / wide.square().mean(dim=1, keepdim=True).clamp(min=1e-12).sqrt()
        moments += normed.T @ normed
    vectors = torch.linalg.eigh(moments).eigenvectors  # by ascending values
    return vectors.flip(1)[:, :width].float()


def _fold(layer: Sublayer) -> None:
    """The norm's weights, in the linear layers behind it."""
    norm: PlainNorm = layer.norm
    assert norm.weight is not None
    for linear in layer.body.first:
        linear.weight.mul_(norm.weight)
    norm.weight = None


def _turn(layer: Sublayer, before: Tensor, after: Tensor) -> None:
    """Take a stream in one basis [hidden, width] and give it in another."""
    for linear in layer.body.first:
        linear.weight = torch.nn.Parameter(linear.weight @ before)
        linear.in_features = before.shape[1]
    last = layer.body.last
    last.weight = torch.nn.Parameter(after.T @ last.weight)
    last.out_features = after.shape[1]
    if last.bias is not None:
        last.bias = torch.nn.Parameter(after.T @ last.bias)
    layer.carry = linear_of(after.T @ before).requires_grad_(False)
