"""Sums over the ranks that share a layer, as autograd sees them.

Megatron-LM's conjugate pair (arXiv 1909.08053, section 3): `forked` is f, `summed` is g. Each does nothing on meta,
where shapes are all there is, and on one rank.

[Note: one order of collectives] All ranks of a group run the same layers on the same micro-batches, so that they call
the same collectives in the same order. None lies under a condition on data: those of experts, of which each rank has
others, stand before and behind all of them, and go backward even where no token came.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from l2l_nas.space.split import TRIED_OUT


class Reducer(Protocol):
    """Ranks that share layers. Tensors are contiguous, of one shape and dtype on all of them."""

    @property
    def rank(self) -> int:
        """The number of this process among them, from 0."""

    @property
    def size(self) -> int:
        """How many they are."""

    def sum(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over ranks: the same bits on each."""

    def maximum(self, tensor: Tensor) -> None:
        """Replace a tensor by the largest of each of its numbers."""


class GroupReducer:
    """The ranks of a process group, where nothing watches them; in a world, `World.reducer` does.

    Args:
        group: of torch.distributed; None: all processes.
    """

    is_joined = True

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def sum(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor, group=self._group)

    def maximum(self, tensor: Tensor) -> None:
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._group)


@dataclass(frozen=True)
class Unjoined:
    """A `Reducer` for plans: one of several ranks of which no other is there. Shapes are right, numbers are not."""

    rank: int
    size: int

    def sum(self, tensor: Tensor) -> None:
        """Leave the tensor as it is."""

    def maximum(self, tensor: Tensor) -> None:
        """Leave the tensor as it is."""


class Ranks:
    """The ranks that share a layer, as its module keeps them: a copy of the module has the same, no check walks in.

    Args:
        reducer: what sums over them.
    """

    __slots__ = ("_reducer", "rank", "size")  # without a `__dict__`, whose counters would look like a module's state

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self.rank, self.size = reducer.rank, reducer.size

    @property
    def reducer(self) -> Reducer:
        """What sums over them. A layer that is tried out waits for no other rank, which may try it out elsewhere."""
        waits = getattr(self._reducer, "is_joined", False)
        return Unjoined(self.rank, self.size) if waits and TRIED_OUT.get() else self._reducer

    def __deepcopy__(self, memo: dict[int, Any]) -> Ranks:
        return self

    def is_idle(self, tensor: Tensor) -> bool:
        """Whether there is nothing to exchange of a tensor."""
        return self.size == 1 or tensor.is_meta

    def total(self, tensor: Tensor) -> Tensor:
        """A new tensor: the sum over ranks."""
        result = tensor.detach().clone(memory_format=torch.contiguous_format)
        self.reducer.sum(result)
        return result


class _Fork(torch.autograd.Function):
    """Identity; in the backward, one sum over ranks of the gradients of all its inputs."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.reducer = ranks.reducer
        return tuple(x.view_as(x) for x in inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        dtype = gradients[0].dtype
        for gradient in gradients[1:]:
            dtype = torch.promote_types(dtype, gradient.dtype)
        total = torch.cat([gradient.flatten().to(dtype) for gradient in gradients])
        ctx.reducer.sum(total)
        pieces = total.split([gradient.numel() for gradient in gradients])
        shaped = (piece.view(g.shape).to(g.dtype) for piece, g in zip(pieces, gradients, strict=True))
        return (None, *shaped)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, ranks: Ranks, x: Tensor, *beside: Any) -> Tensor:
        ctx.rest = (None,) * len(beside)
        return ranks.total(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, gradient, *ctx.rest


class _Slice(torch.autograd.Function):
    """A piece of a tensor that is whole on every rank; the gradient is that of all pieces, which may overlap."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, x: Tensor, dim: int, begin: int, end: int) -> Tensor:
        ctx.reducer, ctx.shape, ctx.place = ranks.reducer, x.shape, (dim, begin, end - begin)
        return x.narrow(*ctx.place)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None, None, None]:
        whole = gradient.new_zeros(ctx.shape)
        whole.narrow(*ctx.place).copy_(gradient)
        ctx.reducer.sum(whole)
        return None, whole, None, None, None


class _Gather(torch.autograd.Function):
    """The whole of what each rank has a piece of, without overlaps."""

    @staticmethod
    def forward(ctx: Any, ranks: Ranks, x: Tensor, dim: int, begin: int, length: int) -> Tensor:
        ctx.place = (dim, begin, x.shape[dim])
        shape = list(x.shape)
        shape[dim] = length
        whole = x.new_zeros(shape)
        whole.narrow(*ctx.place).copy_(x)
        ranks.reducer.sum(whole)  # gloo gathers no pieces of unlike sizes
        return whole

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor, None, None, None]:
        return None, gradient.narrow(*ctx.place), None, None, None


def summed(x: Tensor, ranks: Ranks, *, beside: Sequence[Any] = ()) -> Tensor:
    """Megatron's g: the sum over ranks, whose gradient is that of each summand.

    Args:
        beside: tensors whose backward follows this one's in any case, though `x` may depend on none of them.
    """
    return x if ranks.is_idle(x) else _Sum.apply(ranks, x, *beside)


def sliced(x: Tensor, ranks: Ranks, dim: int, begin: int, end: int) -> Tensor:
    """A rank's piece of a tensor that is whole on every rank; pieces of ranks may overlap."""
    if ranks.is_idle(x):
        return x.narrow(dim, begin, end - begin)
    return _Slice.apply(ranks, x, dim, begin, end)


def gathered(x: Tensor, ranks: Ranks, dim: int, begin: int, length: int) -> Tensor:
    """All pieces, one behind the other.

    Args:
        begin: where this rank's piece does.
        length: of the whole.
    """
    if x.is_meta:
        shape = list(x.shape)
        shape[dim] = length
        return x.new_empty(shape) + x.sum()  # which has a gradient where the pieces have one
    return x if ranks.size == 1 else _Gather.apply(ranks, x, dim, begin, length)


def forked(ranks: Ranks, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Megatron's f: the same tensors, whose gradients are summed over ranks, all of them in one message.

    Tensors that have no gradient are left as they are.
    """
    chosen = [i for i, x in enumerate(inputs) if x.requires_grad] if torch.is_grad_enabled() else []
    if not chosen or ranks.is_idle(inputs[chosen[0]]):
        return inputs
    results = list(inputs)
    for index, x in zip(chosen, _Fork.apply(ranks, *(inputs[i] for i in chosen)), strict=True):
        results[index] = x
    return tuple(results)


# by identity and version, the inputs of parts of the layer that runs, and what `forked` gave of each
_FORKED: ContextVar[dict[tuple[int, int], tuple[Tensor, Tensor]] | None] = ContextVar("forked inputs", default=None)


@contextmanager
def one_fork_each() -> Iterator[None]:
    """Have `entered` fork a tensor once in this block, however many parts of a layer read it."""
    token = _FORKED.set({})
    try:
        yield
    finally:
        _FORKED.reset(token)


def entered(x: Tensor, ranks: Ranks) -> Tensor:
    """What a part that is divided by columns takes of its input: f, shared by all parts that read the same tensor."""
    if not (x.requires_grad and torch.is_grad_enabled()) or ranks.is_idle(x):
        return x
    known = _FORKED.get()
    if known is None:
        return forked(ranks, x)[0]
    key = id(x), x._version
    if key not in known:
        known[key] = x, forked(ranks, x)[0]  # the tensor too, so that its identity is not used again
    return known[key][1]
