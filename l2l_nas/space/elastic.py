"""Elastic candidates: smaller layers whose weights are regions of a larger one's.

[Note: cells] Each parameter of the family is cut along the borders of all its regions. The pieces, called cells, are
parameters of their own, each tied between the candidates that use it: it is stored once and updated once a step, with
its own moments and its own step count. What a step does not use is not touched. A candidate's weight is put together
from its cells in the forward, so that autograd gives each cell its gradient.

Weights of one network within another are those of once-for-all networks (arXiv 1908.09791) and slimmable ones
(arXiv 1812.08928). Buffers, such as BatchNorm's statistics, depend on the width: each candidate has its own.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from l2l_nas.arguments import check_function, check_kind, check_table
from l2l_nas.errors import SpaceError, user_code
from l2l_nas.space.build import owner_of
from l2l_nas.space.candidate import Candidate, Factory
from l2l_nas.space.pool import Layer, LayerPool, tied_key

# a dimension of a weight, as intervals from start to stop
Interval = tuple[int, int]
Pieces = tuple[Interval, ...]
# of a parameter, by dimension, the intervals that its cells take: the number among all, and the length
Grid = tuple[tuple[tuple[int, int], ...], ...]
Rule = Callable[[str, tuple[int, ...], tuple[int, ...]], Sequence[Sequence[slice]]]


def leading(name: str, shape: tuple[int, ...], whole: tuple[int, ...]) -> list[list[slice]]:
    """The region of a smaller weight: the first rows and columns, the middle of further dimensions (kernels).

    Args:
        name: of the parameter.
        shape, whole: of the smaller and the larger weight.

    Returns:
        By dimension, the slices of the larger weight, in order.
    """
    starts = [
        0 if index < 2 else (full - size) // 2 for index, (size, full) in enumerate(zip(shape, whole, strict=True))
    ]
    return [[slice(start, start + size)] for start, size in zip(starts, shape, strict=True)]


def elastic(
    name: str, family: Mapping[str, Factory], *, regions: Rule = leading, shares: bool = True
) -> list[Candidate]:
    """Candidates of one position that share their weights; see [Note: cells].

    Args:
        name: what the shared weights are called; unique in the pool.
        family: by name, how each candidate is built. The first is the largest: its factory draws the first weights.
            All take and give tensors of the same shapes, as all candidates of a position do.
        regions: where the weight of a smaller candidate lies in the largest one's, such as heads in a packed matrix.
        shares: whether they share weights at all; else each has its own, as candidates usually do.

    Raises:
        SpaceError: a parameter that the largest does not have, or that is larger than its own.
        SettingError: an argument of another type.
    """
    check_kind("elastic: name", name, str, wanted="text")
    check_table(f"elastic '{name}': family", family, wanted="a dict of functions by name")
    for factory in family.values():
        check_function(f"elastic '{name}': family", factory, wanted="functions that build layers")
    check_function(f"elastic '{name}': regions", regions)
    check_kind(f"elastic '{name}': shares", shares, bool, wanted="True or False")
    if not family:
        raise SpaceError(f"elastic '{name}': family names no candidates")
    if not shares:
        return [Candidate(candidate, factory) for candidate, factory in family.items()]
    shapes = {candidate: _shapes(candidate, factory) for candidate, factory in family.items()}
    largest = next(iter(family))
    grids: dict[str, dict[str, Grid]] = {candidate: {} for candidate in family}
    for parameter, whole in shapes[largest].items():
        boxes = {c: _box(regions, c, parameter, s[parameter], whole) for c, s in shapes.items() if parameter in s}
        borders = [
            sorted({edge for pieces in dim for interval in pieces for edge in interval})
            for dim in zip(*boxes.values(), strict=True)
        ]
        for candidate, box in boxes.items():
            grids[candidate][parameter] = tuple(map(_cells, box, borders))
    for candidate, parameters in shapes.items():
        missing = [parameter for parameter in parameters if parameter not in shapes[largest]]
        if missing:
            raise SpaceError(
                f"elastic '{name}': has a parameter '{missing[0]}' that '{largest}' lacks; name the largest first, "
                "and build all of the same parts",
                candidate=candidate,
            )
    return [_candidate(name, candidate, factory, grids[candidate]) for candidate, factory in family.items()]


def _shapes(candidate: str, factory: Factory) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"), user_code(f"elastic: the factory of '{candidate}'", SpaceError):
        module = factory()
    if not isinstance(module, nn.Module):
        raise SpaceError(f"its factory returned {type(module).__name__}, expected an nn.Module", candidate=candidate)
    return {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}


def _box(
    regions: Rule, candidate: str, parameter: str, shape: tuple[int, ...], whole: tuple[int, ...]
) -> tuple[Pieces, ...]:
    where = f"elastic: '{parameter}' {list(shape)}"
    if len(shape) != len(whole) or any(size > full for size, full in zip(shape, whole, strict=True)):
        raise SpaceError(
            f"{where} is no region of the largest candidate's {list(whole)}; name the largest first",
            candidate=candidate,
        )
    with user_code(f"{where}: regions", SpaceError):
        region = regions(parameter, shape, whole)
    is_right = isinstance(region, Sequence) and len(region) == len(whole)
    if not is_right or not all(
        isinstance(parts, Sequence) and all(isinstance(part, slice) for part in parts) for parts in region
    ):
        raise SpaceError(
            f"{where}: regions= gave {region}; expected a list of slices for each of its {len(whole)} dimensions",
            candidate=candidate,
        )
    box = tuple(tuple(part.indices(full)[:2] for part in parts) for parts, full in zip(region, whole, strict=True))
    sizes = tuple(sum(stop - start for start, stop in pieces) for pieces in box)
    edges = [list(itertools.chain(*pieces)) for pieces in box]
    if sizes != shape or any(ends != sorted(ends) for ends in edges):
        ends = list(itertools.chain(*edges))
        raise SpaceError(
            f"{where}: regions= gave {ends} of {list(whole)}; expected slices in order that make up its shape",
            candidate=candidate,
        )
    return box


def _cells(pieces: Pieces, borders: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Number and length of each interval between the borders of a dimension that lies in these pieces."""
    return tuple(
        (index, stop - start)
        for index, (start, stop) in enumerate(itertools.pairwise(borders))
        if any(first <= start and stop <= last for first, last in pieces)
    )


def _candidate(name: str, candidate: str, factory: Factory, grids: Mapping[str, Grid]) -> Candidate:
    tied = {}
    for parameter, grid in grids.items():
        path, _, leaf = parameter.rpartition(".")
        at = f"{path}." if path else ""
        cells = list(itertools.product(*(((index for index, _ in dim)) for dim in grid)))
        for number, cell in enumerate(cells):
            name_of = parameter if len(cells) == 1 else f"{at}parametrizations.{leaf}.original{number}"
            tied[name_of] = ".".join([name, parameter, *(["-".join(map(str, cell))] if cell else [])])
    return Candidate(candidate, functools.partial(_built, factory, tuple(grids.items())), tied)


def _built(factory: Factory, grids: tuple[tuple[str, Grid], ...]) -> nn.Module:
    module = factory()
    for parameter, grid in grids:
        sizes = tuple(tuple(size for _, size in dim) for dim in grid)
        if any(len(dim) > 1 for dim in sizes):
            parametrize.register_parametrization(*owner_of(module, parameter), Assembled(sizes), unsafe=True)
    return module


class Assembled(nn.Module):
    """Puts a weight together from its cells; see [Note: cells].

    Args:
        sizes: by dimension, the lengths of the cells along it.
    """

    def __init__(self, sizes: tuple[tuple[int, ...], ...]) -> None:
        super().__init__()
        self.sizes = sizes

    def forward(self, *cells: Tensor) -> Tensor:
        """The weight; cells in row-major order."""
        parts = list(cells)
        for dim in reversed(range(len(self.sizes))):
            count = len(self.sizes[dim])
            parts = [
                torch.cat(parts[i : i + count], dim) if count > 1 else parts[i] for i in range(0, len(parts), count)
            ]
        return parts[0]

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, ...]:
        """The cells of a weight."""
        parts = [weight]
        for dim, sizes in enumerate(self.sizes):
            parts = [piece for part in parts for piece in part.split(list(sizes), dim)]
        return tuple(part.clone(memory_format=torch.contiguous_format) for part in parts)


def cut_out(module: nn.Module) -> nn.Module:
    """The same module with plain weights: what its cells make up."""
    for part in list(module.modules()):
        for leaf, how in list(getattr(part, "parametrizations", {}).items()):
            if isinstance(how[0], Assembled):
                parametrize.remove_parametrizations(part, leaf)
    return module


def cell_states(pool: LayerPool) -> dict[str, Layer]:
    """States that are parts of a larger weight: by key, a layer that uses it."""
    return {
        tied_key(group): layer
        for layer in pool.layers
        for name, group in layer.candidate.tied.items()
        if "parametrizations." in name
    }
