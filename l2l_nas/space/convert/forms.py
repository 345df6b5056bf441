"""Forms: how tensors that pass between the parts of a model become values, whose first dimension is the batch."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_leaves, tree_unflatten

BATCHES = (2, 3)  # samples of two recordings
# of a tensor of a model: ("input", name), ("output", block call, leaf), ("made", block call that takes it, leaf), or
# ("module", path, number of the call, leaf) of another module
Ref = tuple[Any, ...]
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


def is_constant(one: object, other: object) -> bool:
    """Whether two leaves that are no tensors are the same."""
    return one is other or (type(one) is type(other) and isinstance(one, PLAIN) and one == other)


@dataclass(frozen=True)
class Form:
    """Shape, dtype and memory layout of a tensor for any number of samples.

    A value is contiguous, and gets its layout again where a layer takes it: kernels sum tensors of another layout in
    another order.
    """

    sizes: tuple[tuple[int, int], ...]  # of each dimension: what a sample adds to it, and what it has without any
    dtype: torch.dtype
    order: tuple[int, ...]  # the dimensions as they lie in memory, the outermost first
    gradient: tuple[int, ...] = ()  # likewise of its gradient, where that is another than a contiguous one's

    @classmethod
    def of(cls, one: Tensor, other: Tensor) -> Form:
        """What two tensors have in common, of as many samples as `BATCHES` says.

        Raises:
            ValueError: they have nothing in common.
        """
        first, second = BATCHES
        is_alike = one.dim() == other.dim() and one.dtype == other.dtype
        sizes = []
        for a, b in zip(one.shape, other.shape, strict=False):
            slope, rest = divmod(b - a, second - first)
            is_alike = is_alike and not rest and a >= slope * first
            sizes.append((slope, a - slope * first))
        if not is_alike:
            raise ValueError(f"{describe(one)} for {first} samples and {describe(other)} for {second}")
        order = layout(one)
        return cls(tuple(sizes), one.dtype, order if order == layout(other) else tuple(range(one.dim())))

    @property
    def dim(self) -> int | None:
        """The dimension of the batch; None if there is none."""
        return next((index for index, (slope, _) in enumerate(self.sizes) if slope), None)

    @property
    def is_plain(self) -> bool:
        """Whether one dimension at most depends on the batch, and is the batch, or the batch times something."""
        return [base for slope, base in self.sizes if slope] in ([], [0])

    def pack(self, tensor: Tensor, batch: int) -> Tensor:
        """Make a value of a tensor: the batch comes first; a tensor that all samples share has a copy for each."""
        if self.gradient and tensor.requires_grad:
            tensor = tensor.view_as(tensor)
            tensor.register_hook(functools.partial(_laid_out, order=self.gradient))
        if self.dim is None:
            return tensor.unsqueeze(0).expand(batch, *tensor.shape)
        value = tensor.movedim(self.dim, 0) if self.dim else tensor
        each = self.sizes[self.dim][0]
        return value if each == 1 else value.unflatten(0, (batch, each))

    def unpack(self, value: Tensor) -> Tensor:
        """Make the model's tensor of a value."""
        if self.dim is None:
            return _laid_out(value[0], self.order)
        rows = value if self.sizes[self.dim][0] == 1 else value.flatten(0, 1)
        return _laid_out(rows.movedim(0, self.dim) if self.dim else rows, self.order)


def layout(tensor: Tensor) -> tuple[int, ...]:
    """The dimensions by stride; those of a tensor with gaps or repeated elements as they are."""
    dims = tuple(range(tensor.dim()))
    strides = tensor.stride()
    order = tuple(sorted(dims, key=lambda d: -strides[d]))
    return order if not tensor.is_contiguous() and tensor.permute(order).is_contiguous() else dims


def _laid_out(tensor: Tensor, order: tuple[int, ...]) -> Tensor:
    if order == tuple(range(tensor.dim())):
        return tensor
    return tensor.permute(order).contiguous().permute([order.index(d) for d in range(tensor.dim())])


def describe(tensor: Tensor) -> str:
    """Shape and dtype."""
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


@dataclass(frozen=True)
class Arg:
    """A tensor among the arguments of a call: which value it is."""

    index: int
    form: Form
    # the model changes it in place, so that it gets a copy: a value may have other readers, and the relay runs a layer
    # again
    is_changed: bool = False


@dataclass(frozen=True)
class Const:
    """An argument or output that is the same in every call."""

    value: Any


@dataclass(frozen=True)
class Unused:
    """A tensor that nothing needs; zeros of this form do."""

    form: Form


@dataclass(frozen=True)
class Alias:
    """An output that is the argument of this number."""

    leaf: int


Leaf = Arg | Const | Unused | Alias


@dataclass(frozen=True)
class ArgTree:
    """Arguments, or outputs, of a module."""

    leaves: tuple[Leaf, ...]
    tree: TreeSpec
    # paths of modules inside a block that hooks of the model listen to: what each of them gave follows what the block
    # gave, in a tuple
    shows: tuple[str, ...] = ()

    def fill(self, values: Sequence[Tensor], arguments: Sequence[Any] = ()) -> Any:
        """The tree with its tensors.

        Args:
            values: at least one; for leaves that are `Arg`.
            arguments: the leaves of the arguments, for leaves that are `Alias`.
        """

        def leaf_of(leaf: Leaf) -> Any:
            if isinstance(leaf, Arg):
                tensor = leaf.form.unpack(values[leaf.index])
                return tensor.clone() if leaf.is_changed else tensor
            if isinstance(leaf, Alias):
                return arguments[leaf.leaf]
            if isinstance(leaf, Const):
                return leaf.value
            sizes = [slope * values[0].shape[0] + base for slope, base in leaf.form.sizes]
            return torch.zeros(sizes, dtype=leaf.form.dtype, device=values[0].device)

        return tree_unflatten([leaf_of(leaf) for leaf in self.leaves], self.tree)

    def pick(self, outputs: object, batch: int) -> tuple[Tensor, ...]:
        """The leaves that are `Arg`, from a tree of this structure, as values.

        Raises:
            TypeError: it has another structure.
        """
        leaves = tree_leaves(outputs)
        wanted = [(leaf, index) for index, leaf in enumerate(self.leaves) if isinstance(leaf, Arg)]
        wanted.sort(key=lambda pair: pair[0].index)
        tensors = [leaves[index] for _, index in wanted] if len(leaves) == len(self.leaves) else leaves
        if len(tensors) != len(wanted) or not all(isinstance(item, Tensor) for item in tensors):
            got = ", ".join(describe(item) if isinstance(item, Tensor) else type(item).__name__ for item in leaves)
            raise TypeError(f"gives {got or 'nothing'} where the model's block gives {self}; return the same")
        return tuple(leaf.form.pack(item, batch) for (leaf, _), item in zip(wanted, tensors, strict=True))

    def __str__(self) -> str:
        return ", ".join(repr(leaf.value) if isinstance(leaf, Const) else "a tensor" for leaf in self.leaves)
