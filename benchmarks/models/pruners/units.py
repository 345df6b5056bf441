"""Networks with fewer groups of heads and feed-forward units, by FLAP, Wanda-sp, LLM-Pruner's criterion, or one width.

Each query head shares its keys and values with others where the model has grouped-query attention, which the papers'
models had not: what is removed is a whole group, a head of keys and values with its heads of queries, so that all that
stay have the model's own ratio. The score of a group is made of those of its heads as that of a head is of its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.models.pruners.llama import (
    PlainAttention,
    PlainBlock,
    PlainFeedForward,
    PlainLlama,
    batched,
    num_layer_parameters,
    sublayers,
)

# LLM-Pruner's scripts keep the first four and the last two of 32 blocks
_FIRST, _LAST = 4, 2


class Features:
    """Sums over all tokens of what a linear layer takes, each [inside], in float64."""

    def __init__(self, width: int) -> None:
        self.count = 0
        self.total, self.squares, self.sizes = (torch.zeros(width, dtype=torch.float64) for _ in range(3))

    def add(self, inputs: Tensor) -> None:
        """Inputs [..., inside]."""
        rows = inputs.detach().flatten(0, -2).double()
        self.count += len(rows)
        self.total += rows.sum(dim=0)
        self.squares += rows.square().sum(dim=0)
        self.sizes += rows.abs().sum(dim=0)

    @property
    def mean(self) -> Tensor:
        return self.total / self.count

    @property
    def variance(self) -> Tensor:
        return (self.squares / self.count - self.mean.square()).clamp(min=0)


@contextmanager
def watched(layers: Sequence[nn.Linear]) -> Iterator[list[Features]]:
    """The features of what these layers take while the context lasts."""
    found = [Features(layer.in_features) for layer in layers]

    def adding(features: Features) -> Callable[..., None]:
        def add(module: nn.Module, inputs: tuple[Any, ...]) -> None:
            features.add(inputs[0])

        return add

    hooks = [layer.register_forward_pre_hook(adding(one)) for layer, one in zip(layers, found, strict=True)]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def flap(network: PlainLlama, tokens: Tensor, share: float) -> PlainLlama:
    """FLAP (arXiv 2312.11983): features that fluctuate least are replaced by their means, in a bias.

    Score of a feature: its variance times the squared norm of the weights that take it; standardised in
    each sub-layer; that of a group is the mean over its features; the lowest of all sub-layers are removed.
    """
    bodies = [layer.body for layer in sublayers(network)]
    features = _features(network, bodies, tokens)
    parts: list[Tensor] = []
    for body, one in zip(bodies, features, strict=True):
        score = one.variance * body.last.weight.detach().double().square().sum(dim=0)
        score = (score - score.mean()) / score.std()
        parts.append(score.unflatten(0, (body.groups, -1)).mean(dim=1) if _has_heads(body) else score)
    costs = [_cost(body) for body in bodies]
    # a bias for each sub-layer is a part of what is left
    most = share * num_layer_parameters(network) + sum(body.last.out_features for body in bodies) * bool(share)
    for body, one, kept in zip(bodies, features, _cheapest(parts, costs, most), strict=True):
        if len(kept) < _count(body):
            _keep(body, kept, means=one.mean)
    return network


def wanda_sp(network: PlainLlama, tokens: Tensor, share: float) -> PlainLlama:
    """Wanda's criterion (arXiv 2306.11695) for whole units, one share for all blocks (as FLAP compares it).

    Score of a feature: the sum of |weight| times the norm of the feature over the weights that take it. Blocks are
    pruned in order, each by what the pruned ones before it give.
    """
    states = batched(network.embed, tokens)
    for block in network.blocks:
        with watched([block.attention.body.last, block.feed_forward.body.last]) as features:
            batched(block, states)
        _narrow(block, share, [_wanda(*pair) for pair in zip(_bodies(block), features, strict=True)])
        states = batched(block, states)
    return network


def _wanda(body: PlainAttention | PlainFeedForward, features: Features) -> Tensor:
    score = body.last.weight.detach().double().abs().sum(dim=0) * features.squares.sqrt()
    return score.unflatten(0, (_count(body), -1)).sum(dim=1)


def llm_pruner(network: PlainLlama, tokens: Tensor, share: float) -> PlainLlama:
    """LLM-Pruner's criterion (arXiv 2305.11627, element-wise, first order): sums of |weight x gradient|.

    What is coupled is judged together: rows of gate and up with the column of down; all weights of a group of heads.
    The first four and the last two blocks stay whole, as in the authors' scripts; the others have one share.
    """
    for part in tokens.split(4):
        logits = network(part)[:, :-1].flatten(0, 1)
        functional.cross_entropy(logits, part[:, 1:].flatten(), reduction="sum").backward()
    blocks = network.blocks
    pruned = blocks[_FIRST:-_LAST] if len(blocks) > _FIRST + _LAST else blocks
    share = share * num_layer_parameters(network) / sum(_size(block) for block in pruned)
    for block in pruned:
        _narrow(block, share, [_taylor(body) for body in _bodies(block)])
    network.zero_grad()
    return network


def _taylor(body: PlainAttention | PlainFeedForward) -> Tensor:
    count = _count(body)
    parts = [_salience(layer).sum(dim=1).unflatten(0, (count, -1)) for layer in body.first]
    parts.append(_salience(body.last).sum(dim=0).unflatten(0, (count, -1)))
    return sum((part.sum(dim=1) for part in parts), torch.zeros(count))


def _salience(layer: nn.Linear) -> Tensor:
    assert layer.weight.grad is not None
    return (layer.weight * layer.weight.grad).abs().detach()


def one_width(network: PlainLlama, tokens: Tensor, share: float) -> PlainLlama:
    """Feed-forward networks of one width: the units that do most, by mean size of what they give x norm of weights."""
    bodies = [block.feed_forward.body for block in network.blocks]
    features = _features(network, bodies, tokens)
    removed = round(share * num_layer_parameters(network) / sum(_cost(body) for body in bodies))
    for body, one in zip(bodies, features, strict=True):
        score = one.sizes * body.last.weight.detach().double().norm(dim=0)
        _keep(body, _highest(score, _count(body) - removed))
    return network


def _features(
    network: PlainLlama, bodies: Sequence[PlainAttention | PlainFeedForward], tokens: Tensor
) -> list[Features]:
    """What these give, before the last of their linear layers; the logits, which take gigabytes, are not computed."""
    states = batched(network.embed, tokens)
    with watched([body.last for body in bodies]) as features:
        for block in network.blocks:
            states = batched(block, states)
    return features


def _narrow(block: PlainBlock, share: float, scores: Sequence[Tensor]) -> None:
    """Remove a share of a block: as near to it as whole groups of heads come; units make up for the difference."""
    attention, network = _bodies(block)
    groups = round(share * _count(attention))
    units = round((share * _size(block) - groups * _cost(attention)) / _cost(network))
    for body, score, removed in zip((attention, network), scores, (groups, units), strict=True):
        _keep(body, _highest(score, _count(body) - removed))


def _bodies(block: PlainBlock) -> tuple[PlainAttention | PlainFeedForward, ...]:
    return block.attention.body, block.feed_forward.body


def _size(block: nn.Module) -> int:
    return sum(parameter.numel() for parameter in block.parameters())


def _has_heads(body: PlainAttention | PlainFeedForward) -> bool:
    return isinstance(body, PlainAttention)


def _count(body: PlainAttention | PlainFeedForward) -> int:
    return body.groups if isinstance(body, PlainAttention) else body.down.in_features


def _cost(body: PlainAttention | PlainFeedForward) -> int:
    inside = [layer.weight.numel() + (0 if layer.bias is None else layer.bias.numel()) for layer in body.first]
    return (sum(inside) + body.last.weight.numel()) // _count(body)


def _highest(scores: Tensor, count: int) -> list[int]:
    return sorted(scores.topk(max(0, count)).indices.tolist())


def _cheapest(scores: Sequence[Tensor], costs: Sequence[int], most: float) -> list[list[int]]:
    """Remove what scores lowest until no more fits into `most` parameters; what is kept of each sub-layer.

    A group of heads that is too much at the end is passed over for units.
    """
    ranked = sorted((float(value), place, index) for place, one in enumerate(scores) for index, value in enumerate(one))
    kept = [set(range(len(one))) for one in scores]
    for _, place, index in ranked:
        if costs[place] <= most:
            kept[place].remove(index)
            most -= costs[place]
    return [sorted(one) for one in kept]


def _keep(body: PlainAttention | PlainFeedForward, kept: Sequence[int], *, means: Tensor | None = None) -> None:
    """Keep these groups or units; what others give on average goes into a bias, if their means [inside] are given."""
    count = _count(body)
    with torch.no_grad():
        last = body.last
        inside = _places(kept, last.in_features // count)
        if means is not None:
            gone = torch.ones(last.in_features, dtype=torch.bool)
            gone[inside] = False
            lost = (last.weight.double()[:, gone] @ means[gone]).to(last.weight.dtype)
            last.bias = nn.Parameter(lost if last.bias is None else last.bias + lost)
        last.weight = nn.Parameter(last.weight[:, inside].clone())
        last.in_features = len(inside)
        for layer in body.first:
            rows = _places(kept, layer.out_features // count)
            layer.weight = nn.Parameter(layer.weight[rows].clone())
            if layer.bias is not None:
                layer.bias = nn.Parameter(layer.bias[rows].clone())
            layer.out_features = len(rows)


def _places(kept: Sequence[int], size: int) -> Tensor:
    """The places of these, each of so many numbers."""
    return (torch.tensor(kept, dtype=torch.int64)[:, None] * size + torch.arange(size)).flatten()
