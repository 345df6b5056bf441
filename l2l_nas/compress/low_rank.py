"""Low-rank pairs beside frozen matrices (LoRA, arXiv 2106.09685): what is trained, and how it becomes plain again.

A layer with pairs is the layer itself: each `nn.Linear` in it computes with its frozen weight plus the product of two
small matrices, `up @ down`, of which `up` begins with zeros. All other parameters are frozen, too. So states hold
moments of pairs alone, and only gradients of pairs leave the device. A merged weight is the very sum that the layer
computed with, so that nothing changes where pairs are merged.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import SettingError
from l2l_nas.space.candidate import Candidate
from l2l_nas.space.pool import Layer, LayerPool

_ORIGINAL, _DOWN, _UP = (f"parametrizations.weight.{name}" for name in ("original", "0.down", "0.up"))


class LowRankSum(nn.Module):
    """A weight [rows, columns] plus a product of rank `rank`."""

    def __init__(self, shape: Sequence[int], rank: int) -> None:
        super().__init__()
        rows, columns = shape
        rank = min(rank, rows, columns)
        self.down = nn.Parameter(torch.empty(rank, columns))
        self.up = nn.Parameter(torch.zeros(rows, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        """The sum."""
        return _sum(weight, self.up, self.down)


def _sum(weight: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return weight + up @ down


def with_pairs(pool: LayerPool, rank: int) -> LayerPool:
    """The pool with a pair beside each weight of `nn.Linear`, and all else frozen; see the module.

    A weight that layers share has none.

    Raises:
        SettingError: no layer has such a weight.
    """
    factories: dict[object, Callable[[], nn.Module]] = {}  # by kind, so that layers of one kind share templates
    count = 0

    def paired(layer: Layer) -> Candidate:
        nonlocal count
        candidate = layer.candidate
        if candidate.is_skip:
            return candidate
        tied = frozenset(candidate.tied)
        count += len(_linear(pool.build_module(layer, device="meta"), tied))
        kind = (candidate.kind, tied)
        factory = factories.setdefault(kind, partial(_build_paired, candidate.factory, rank, tied))
        return replace(candidate, factory=factory, weights=None)

    candidates: dict[int, list[Candidate]] = {}
    for layer in pool.layers:
        candidates.setdefault(layer.position, []).append(paired(layer))
    if not count:
        raise SettingError("strategy.lora: no layer has an nn.Linear of its own to train pairs beside; leave it out")
    return pool.like(p.with_candidates(candidates[index]) for index, p in enumerate(pool.positions))


def _build_paired(factory: Callable[[], nn.Module], rank: int, tied: frozenset[str]) -> nn.Module:
    module = factory()
    if not all(parameter.is_meta for parameter in module.parameters()):
        module = copy.deepcopy(module)  # it may be the user's own, which is never changed
    chosen = _linear(module, tied)
    module.requires_grad_(False)
    for linear in chosen:
        parametrize.register_parametrization(linear, "weight", LowRankSum(linear.weight.shape, rank))
    return module


def _linear(module: nn.Module, tied: frozenset[str]) -> list[nn.Linear]:
    """Parts with a weight that is trained, and that nothing else has; a weight that is computed is none."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)

    def is_own(part: nn.Linear) -> bool:
        weight = dict(part.named_parameters(recurse=False)).get("weight")
        if weight is None or not weight.requires_grad:
            return False
        return len(names[id(weight)]) == 1 and tied.isdisjoint(names[id(weight)])

    return [part for part in module.modules() if isinstance(part, nn.Linear) and is_own(part)]


def paired_server(server: ParamServer, pool: LayerPool, keys: Sequence[str]) -> ParamServer:
    """A server in memory of a pool `with_pairs`, with weights and buffers of these states; pairs are first ones."""
    found = server.like(pool)
    for key in keys:
        found.prepare([key])
        with server.all_gather(key) as state, found.writing(key) as paired, torch.no_grad():
            tensors = {**state.parameters(), **state.named_buffers()}
            values = {**paired.parameters(), **paired.named_buffers()}
            for name, value in values.items():
                if not name.endswith((_DOWN, _UP)):
                    value.copy_(tensors[_plain(name, values)])
            paired.mark_changed()
    return found


def merge(paired: ParamServer, server: ParamServer, keys: Sequence[str]) -> ParamServer:
    """Weights with their pairs, and buffers, in a server of the pool without pairs; returns that."""
    for key in keys:
        with paired.all_gather(key) as state, server.writing(key) as plain, torch.no_grad():
            tensors: Mapping[str, Tensor] = {**state.parameters(), **state.named_buffers()}
            found = {
                _plain(name, tensors): _merged(name, tensors) for name in tensors if not name.endswith((_DOWN, _UP))
            }
            for name, value in {**plain.parameters(), **plain.named_buffers()}.items():
                value.copy_(found[name])
            plain.mark_changed()
    return server


def _merged(name: str, tensors: Mapping[str, Tensor]) -> Tensor:
    if not _has_pair(name, tensors):
        return tensors[name]
    path = name.removesuffix(_ORIGINAL)
    return _sum(tensors[name], tensors[path + _UP], tensors[path + _DOWN])


def _plain(name: str, tensors: Mapping[str, Tensor]) -> str:
    """What a tensor of a layer with pairs is called without them."""
    return name.removesuffix(_ORIGINAL) + "weight" if _has_pair(name, tensors) else name


def _has_pair(name: str, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a tensor has one; the originals of the layer's own parametrizations have none."""
    return name.endswith(_ORIGINAL) and name.removesuffix(_ORIGINAL) + _UP in tensors
