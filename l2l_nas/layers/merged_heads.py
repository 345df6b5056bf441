"""Keys and values of several heads become those of one.

A head's keys and values may be any linear map of what they are, if queries and the last matrix take its inverse on. So
heads are turned to be alike before they are merged (arXiv 2412.20677, by orthogonal matrices). Here the merged numbers
are principal components of those of the heads, weighed by what queries or the last matrix make of them. A map of keys
must commute with rotary positions: in each plane that turns it is a complex number.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_LEAST = 1e-9  # of a metric's eigenvalues, a share of the largest


@dataclass(frozen=True)
class HeadMaps:
    """How each group of heads becomes one, and what that is for each of them; float64."""

    down: Tensor  # [groups, size, heads of a group * size], from their numbers to those of the merged head
    up: Tensor  # [groups, heads of a group, size, size], back to each

    def merged(self, rows: Tensor) -> Tensor:
        """Rows of a weight or bias of all heads [heads * size, ...] as those of the merged ones."""
        grouped = rows.double().reshape(len(self.down), self.down.shape[2], -1)
        return (self.down @ grouped).reshape(-1, *rows.shape[1:]).to(rows.dtype)

    def taken_on(self, rows: Tensor) -> Tensor:
        """Rows of what works on all heads [queries * size, ...], so that it works on the merged ones.

        So many queries in a row work on one head.
        """
        groups, heads, size, _ = self.up.shape
        each = rows.double().reshape(groups, heads, -1, size, rows[0].numel())
        turned = self.up.mT[:, :, None] @ each
        return turned.reshape(rows.shape).to(rows.dtype)


def value_maps(values: Tensor, last: Tensor, groups: int) -> HeadMaps:
    """Maps of values.

    Args:
        values: [heads, size, heads, size], mean or summed products of the heads' values.
        last: [queries, size, outside], of the last matrix, transposed: what it makes of each head of queries.
        groups: how many heads come of them.
    """
    metric = (last @ last.mT).unflatten(0, (len(values), -1)).sum(1)
    return HeadMaps(*_maps(metric.unflatten(0, (groups, -1)), _by_group(values, groups)))


def key_maps(keys: Tensor, queries: Tensor, groups: int, turning: int) -> HeadMaps:
    """Maps of keys.

    Args:
        keys: [heads, size, heads, size], mean or summed products of the heads' keys before they turn.
        queries: [heads, size, size], those of queries with themselves, summed over those of a head.
        groups: how many heads come of them.
        turning: numbers of a head that turn with the place, from its begin; its halves belong together.
    """
    size, half = keys.shape[1], turning // 2
    each = len(keys) // groups
    down, up = (queries.new_zeros(groups, *shape) for shape in ((size, each, size), (each, size, size)))
    if turning < size:
        rest = slice(turning, size)
        metric = queries[:, rest, rest].unflatten(0, (groups, -1))
        some_down, some_up = _maps(metric, _by_group(keys[:, rest, :, rest], groups))
        down[:, rest, :, rest] = some_down.unflatten(2, (each, -1))
        up[:, :, rest, rest] = some_up
    if half:
        place = torch.arange(half)
        some_down, some_up = _maps(*_planes(keys, queries, groups, half))
        for full, numbers in ((down.transpose(1, 2), some_down[:, :, 0]), (up, some_up[..., 0, 0])):
            numbers = numbers.transpose(1, 2)  # [groups, heads of a group, planes]
            full[:, :, place, place] = full[:, :, place + half, place + half] = numbers.real
            full[:, :, place + half, place] = numbers.imag
            full[:, :, place, place + half] = -numbers.imag
    return HeadMaps(down.flatten(2), up)


def _planes(keys: Tensor, queries: Tensor, groups: int, half: int) -> tuple[Tensor, Tensor]:
    """What `_maps` takes of the first numbers of heads, whose halves are complex: [groups, planes, ...]."""
    first, second = slice(half), slice(half, 2 * half)

    def products(one: slice, other: slice) -> Tensor:
        """[planes, heads, heads], of one number of each plane with another."""
        return keys[:, one, :, other].diagonal(dim1=1, dim2=3).permute(2, 0, 1)

    real = products(first, first) + products(second, second)
    whole = torch.complex(real, products(second, first) - products(first, second))
    parts = whole.unflatten(2, (groups, -1)).unflatten(1, (groups, -1)).diagonal(dim1=1, dim2=3)
    sizes = queries.diagonal(dim1=1, dim2=2)
    metric = (sizes[:, first] + sizes[:, second]).unflatten(0, (groups, -1)).transpose(1, 2)
    return metric[..., None, None].to(whole.dtype), parts.permute(3, 0, 1, 2)


def _by_group(products: Tensor, groups: int) -> Tensor:
    """[groups, heads of a group * size, the same], of products [heads, size, heads, size]."""
    parts = products.unflatten(2, (groups, -1)).unflatten(0, (groups, -1))
    return parts.diagonal(dim1=0, dim2=3).permute(4, 0, 1, 2, 3).flatten(3).flatten(1, 2)


def _maps(metric: Tensor, products: Tensor) -> tuple[Tensor, Tensor]:
    """The n numbers from which the numbers of heads are given most nearly, in the metric of each.

    Args:
        metric: [..., heads, n, n].
        products: [..., heads * n, heads * n].

    Returns:
        The map to these numbers, [..., n, heads * n]; and from them to each head, [..., heads, n, n].
    """
    heads, size = metric.shape[-3:-1]
    values, vectors = torch.linalg.eigh(metric)
    values = values.clamp(min=1e-30).maximum(_LEAST * values[..., -1:])
    roots = values.sqrt()[..., None, :]
    root, inverse = (vectors * one @ vectors.mH for one in (roots, 1 / roots))
    parts = products.unflatten(-1, (heads, size)).unflatten(-3, (heads, size))
    weighed = torch.einsum("...aij,...ajbk,...bkl->...aibl", root, parts, root).flatten(-2).flatten(-3, -2)
    best = torch.linalg.eigh(weighed).eigenvectors[..., -size:].unflatten(-2, (heads, size))
    down = torch.einsum("...aij,...ajn->...ain", root, best).flatten(-3, -2).mH
    up = inverse @ best
    # what trains weights takes steps of one size: those of merged heads are as large as a head's
    sizes = up.abs().square().sum(-2).mean(-2).sqrt()
    return down * sizes[..., None], up / sizes[..., None, None, :]
