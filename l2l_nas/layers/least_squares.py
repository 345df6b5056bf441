"""Closed forms by which a smaller layer begins near a larger one, from second moments of what the larger one takes.

Units or heads are removed one after the other, the cheapest first, where a cost is what is lost after all others are
fitted again (optimal brain surgeon, for structures: arXiv 2302.04089, section 3; arXiv 2403.12983). A linear layer is
fitted by least squares to what it should give, its bias too if it has one (arXiv 2312.11983, section 3.3). A product of
two matrices is the nearest one in what it gives, not in its weights (arXiv 2403.07378, section 3.1).

All is computed in float64. With n numbers that a layer takes, memory grows with n * n and time with n * n * n.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

_ROWS = 4096  # at a time
_ROUNDS = 16  # in which units are removed
T = TypeVar("T")
_SHARED: ContextVar[dict[Hashable, tuple[Any, tuple[object, ...]]] | None] = ContextVar("shared", default=None)


@dataclass(frozen=True)
class Moments:
    """Sums over rows of what a linear layer takes and should give, in float64."""

    rows: int
    taken: Tensor  # [inside]
    given: Tensor  # [outside]
    gram: Tensor  # [inside, inside], of products of what it takes
    cross: Tensor  # [outside, inside], of products of both
    squares: Tensor  # [inside], of what it takes, about zero also where the others are about means
    _components: WeakKeyDictionary[nn.Linear, Tensor] = field(default_factory=WeakKeyDictionary, repr=False)

    @staticmethod
    def of(inputs: tuple[Tensor, ...], pair: Callable[..., tuple[Tensor, Tensor]]) -> Moments:
        """Sums over samples, of which some are computed at a time.

        Args:
            inputs: [samples, ...] each; without a sample there are no sums.
            pair: gives for some samples what the layer takes, [..., inside], and should give, [..., outside].
        """
        first = inputs[0]
        size = max(1, _ROWS * len(first) * first.shape[-1] // max(1, first.numel()))
        rows = 0
        totals: list[Tensor] = []
        for some in zip(*(tensor.split(size) for tensor in inputs), strict=True):
            taken, given = (side.flatten(0, -2) for side in pair(*some))
            sums = taken.sum(0), given.sum(0), taken.t() @ taken, given.t() @ taken
            rows += len(taken)
            if totals:
                for total, part in zip(totals, sums, strict=True):
                    total.add_(part)  # one sum at a time: there are as many parts as samples need
            else:
                totals = [part.double() for part in sums]
        taken, given, gram, cross = totals
        return Moments(rows, taken, given, gram, cross, gram.diagonal())

    def some(self, kept: Tensor) -> Moments:
        """Those of a layer that takes only these of the numbers."""
        gram = self.gram[kept][:, kept]
        return Moments(self.rows, self.taken[kept], self.given, gram, self.cross[:, kept], self.squares[kept])

    def about(self, layer: nn.Linear) -> Moments:
        """Those about the means, if the layer has a bias, which takes these on."""
        return self if layer.bias is None else self._centred

    @cached_property
    def _centred(self) -> Moments:
        gram = self.gram - torch.outer(self.taken, self.taken) / self.rows
        cross = self.cross - torch.outer(self.given, self.taken) / self.rows
        zeros = torch.zeros_like
        return Moments(self.rows, zeros(self.taken), zeros(self.given), gram, cross, self.squares)

    @cached_property
    def ridge(self) -> Tensor:
        """What is added to the diagonal of `gram`, [inside], so that few rows change little.

        Of each number its mean square, for each number that the layer takes: the best of some shares.
        """
        least = 1e-5 * self.squares + 1e-9 * self.squares.mean() + 1e-30  # above the rounding of float32 sums
        return torch.maximum(self.gram.diagonal(), least) * len(least) / self.rows

    def factor(self) -> Tensor:
        """The Cholesky factor of `gram` with its ridge, which is as large and not kept."""
        gram = self.gram.clone()
        gram.diagonal().add_(self.ridge)
        return torch.linalg.cholesky(gram)

    @cached_property
    def inverse(self) -> Tensor:
        """The inverse of `gram` with its ridge."""
        return torch.cholesky_inverse(self.factor())

    def products(self, layer: nn.Linear) -> Tensor:
        """Sums of products of what a layer gives, [outside, outside], that takes what was summed."""
        weight, gram = layer.weight.double(), self.gram
        if layer.bias is not None:
            ones = torch.cat((self.taken, self.taken.new_tensor([self.rows])))
            gram = torch.cat((torch.cat((gram, self.taken[:, None]), dim=1), ones[None]))
            weight = torch.cat((weight, layer.bias.double()[:, None]), dim=1)
        return weight @ gram @ weight.t()

    def components(self, layer: nn.Linear) -> Tensor:
        """Principal components of what a layer gives, the largest last, [outside, outside]; computed once."""
        if layer not in self._components:
            weight = layer.weight.double()
            self._components[layer] = torch.linalg.eigh(weight @ self.gram @ weight.t()).eigenvectors
        return self._components[layer]


@contextmanager
def shared_sums() -> Iterator[None]:
    """Within it, what several layers that begin as one original need of its inputs is computed once; see `once`."""
    token = _SHARED.set({})
    try:
        yield
    finally:
        _SHARED.reset(token)


def once(what: str, of: tuple[object, ...], make: Callable[[], T]) -> T:
    """What follows from an original and its inputs alone; in `shared_sums` it is made once, and neither may change.

    Args:
        what: tells apart what follows from the same objects.
        of: these objects; equal ones are not the same.
        make: makes it.
    """
    known = _SHARED.get()
    if known is None:
        return make()
    key = (what, *map(id, of))
    if key not in known:
        known[key] = make(), of  # while they are here, no other object has their identities
    made: T = known[key][0]
    return made


def fit(layer: nn.Linear, moments: Moments) -> None:
    """Change a layer by as little as gives what it should: its weights, and its bias if it has one."""
    about = moments.about(layer)
    before = layer.weight.double()
    left = about.cross - before @ about.gram
    layer.weight.copy_(before + torch.cholesky_solve(left.t(), about.factor()).t())
    if layer.bias is not None:
        layer.bias.copy_((moments.given - layer.weight.double() @ moments.taken) / moments.rows)


def fit_product(product: nn.Module, whole: nn.Linear, moments: Moments) -> None:
    """Give two linear layers, one behind the other, the product that gives most nearly what one layer gives.

    What that one gives is projected on its largest principal components. Both parts get the roots of their sizes.
    """
    first, second = product.children()
    assert isinstance(first, nn.Linear)
    assert isinstance(second, nn.Linear)
    about = moments.about(second)
    weight = whole.weight.double()
    outer = about.components(whole)[:, -first.out_features :]
    inner = outer.t() @ weight
    roots = inner.norm(dim=1).clamp(min=1e-30).sqrt()
    first.weight.copy_(inner / roots[:, None])
    second.weight.copy_(outer * roots)
    if second.bias is not None:
        second.bias.copy_((weight - outer @ inner) @ (moments.taken / moments.rows))
        second.bias.add_(0 if whole.bias is None else whole.bias)


def kept_units(weight: Tensor, moments: Moments, count: int, *, size: int = 1, parts: int = 1) -> Tensor:
    """Which units of what a linear layer takes to keep, by what is lost without the others after it is fitted again.

    Args:
        weight: of the layer, [outside, inside].
        count: of units.
        size: numbers of a unit, which lie together, as those of a head do.
        parts: equal parts of the units, in order, of which the same number is kept.

    Returns:
        Their numbers, ascending, int64 [count].

    Raises:
        ValueError: so many cannot be kept.
    """
    units = weight.shape[1] // size
    if not 0 < count <= units or count % parts:
        raise ValueError(f"cannot keep {count} of {units} units, of each of {parts} parts the same number")
    at_once = 1 if parts > 1 or size > 1 else max(1, (units - count) // _ROUNDS)
    inverse = moments.inverse
    is_kept = torch.ones(units, dtype=torch.bool)
    weight = weight.double()
    while (more := int(is_kept.sum()) - count) > 0:
        costs = _costs(weight, inverse, size).masked_fill(~is_kept, torch.inf)
        by_part = is_kept.view(parts, -1)
        costs.view(parts, -1)[by_part.sum(1) <= count // parts] = torch.inf
        gone = _cheapest(weight, inverse, costs, min(at_once, more)) if at_once > 1 else costs.argmin()[None]
        is_kept[gone] = False
        weight, inverse = _without(places(gone, size), weight, inverse)
    return is_kept.nonzero().flatten()


def places(units: Tensor, size: int) -> Tensor:
    """The numbers that units of a size consist of, int64 [units * size]."""
    return (units[:, None] * size + torch.arange(size)).flatten()


def _cheapest(weight: Tensor, inverse: Tensor, costs: Tensor, count: int) -> Tensor:
    """So many of the cheapest single numbers that are cheap together, as two that are alike are not."""
    some = costs.argsort()[: 2 * count]
    some = some[costs[some] < torch.inf]
    weight, inverse = weight[:, some], inverse[some][:, some]
    gone: list[int] = []
    for _ in range(count):
        costs = _costs(weight, inverse, 1)
        costs[gone] = torch.inf
        gone.append(int(costs.argmin()))
        weight, inverse = _without(torch.tensor(gone[-1:]), weight, inverse)
    return some[gone]


def _costs(weight: Tensor, inverse: Tensor, size: int) -> Tensor:
    """What is lost without each unit, after the others are fitted again."""
    if size == 1:
        return weight.square().sum(0) / inverse.diagonal()
    blocks = inverse.unflatten(0, (-1, size)).unflatten(2, (-1, size)).diagonal(dim1=0, dim2=2).permute(2, 0, 1)
    parts = weight.t().unflatten(0, (-1, size))
    return (parts * torch.linalg.solve(blocks, parts)).sum((1, 2))


def _without(gone: Tensor, weight: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """The weights fitted again without these numbers, and the inverse; rows and columns of the numbers stay as ones."""
    solved = torch.linalg.solve(inverse[gone][:, gone], inverse[gone])
    weight = weight - weight[:, gone] @ solved
    inverse = inverse - inverse[:, gone] @ solved
    weight[:, gone] = 0
    inverse[gone] = inverse[:, gone] = 0
    inverse[gone, gone] = 1
    return weight, inverse
