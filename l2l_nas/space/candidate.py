"""Candidates and positions: what may be built, and where."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from l2l_nas.arguments import check_function, check_kind, check_list, check_sizes, check_table
from l2l_nas.errors import SpaceError, located
from l2l_nas.space.build import Existing
from l2l_nas.space.split import SplitRule, Splits

Factory = Callable[[], nn.Module]


@dataclass(frozen=True)
class TensorSpec:
    """Shape (without the batch dimension) and dtype of one tensor that flows between layers.

    Raises:
        SettingError: a size that is no whole number above 0, or no dtype.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        # a list from a config would never equal a shape
        object.__setattr__(self, "shape", check_sizes("TensorSpec: shape", self.shape))
        check_kind("TensorSpec: dtype", self.dtype, torch.dtype, wanted="a dtype, such as torch.float32")

    @classmethod
    def of(cls, tensor: Tensor) -> TensorSpec:
        """The spec of a batch: its shape without the first dimension."""
        check_kind("TensorSpec.of: tensor", tensor, Tensor, wanted="a tensor [batch, ...]")
        return cls(tuple(tensor.shape[1:]), tensor.dtype)

    def __str__(self) -> str:
        return f"[batch, {', '.join(map(str, self.shape))}] {str(self.dtype).removeprefix('torch.')}"


Specs = tuple[TensorSpec, ...]


def describe(specs: Specs) -> str:
    """Specs as a reader wants them: `[batch, 16, 8, 8] float32`."""
    return ", ".join(map(str, specs)) or "none"


@dataclass(frozen=True)
class FirstWeights:
    """First weights that exist somewhere, such as in a file, and are read when a layer is first needed.

    Args:
        read: of a parameter's name, a tensor of its shape, of any floating dtype. It is called once for each parameter,
            at the first visit, and never while a pool is checked.
        fingerprint: tells these weights from others. A run does not go on with a pool whose fingerprints differ.

    Raises:
        SettingError: no function, or no text.
    """

    read: Callable[[str], Tensor]
    fingerprint: str

    def __post_init__(self) -> None:
        check_function("FirstWeights: read", self.read)
        check_kind("FirstWeights: fingerprint", self.fingerprint, str, wanted="text")


@dataclass(frozen=True)
class Candidate:
    """A named way to build the layer at a position.

    Args:
        name: what architectures and reports call it; unique at its position.
        factory: builds the layer, a plain `nn.Module`. It is called for the first weights, and once for every slot.
            Two `functools.partial`s of the same class and arguments share their templates. A module that exists, given
            here or returned, is copied: its weights are the layer's first weights, and it is never changed.
        tied: names of parameters of the module that are shared with other layers, mapped to the name of what they
            share: `{"weight": "token_embedding"}` in an embedding and in a head makes them use one matrix.
        weights: first weights to use instead of the factory's; buffers are the factory's.
        split: how the module is divided among ranks, by the name of a part of it; see [Note: divided layers]. None: as
            the module's own method `splits` says, or else not at all; {}: not at all.

    Raises:
        SettingError: a part is something else.
    """

    name: str
    factory: Factory
    tied: Mapping[str, str] = field(default_factory=dict)
    is_skip: bool = False
    weights: FirstWeights | None = None
    split: Splits | None = None

    def __post_init__(self) -> None:
        if isinstance(self.factory, nn.Module):
            object.__setattr__(self, "factory", Existing(self.factory))
        check_kind("Candidate: name", self.name, str, wanted="text")
        check_function(f"Candidate '{self.name}': factory", self.factory, wanted="a function, or a module")
        tied = check_table(f"Candidate '{self.name}': tied", self.tied, wanted="a dict of names by parameter")
        for value in tied.values():
            check_kind(f"Candidate '{self.name}': tied", value, str, wanted="names")
        check_kind(f"Candidate '{self.name}': is_skip", self.is_skip, bool, wanted="True or False")
        if self.weights is not None:
            check_kind(f"Candidate '{self.name}': weights", self.weights, FirstWeights, wanted="FirstWeights")
        if self.split is not None:
            what = f"Candidate '{self.name}': split"
            for rule in check_table(what, self.split, wanted="a dict of rules by part").values():
                check_kind(what, rule, SplitRule, wanted="rules, such as Column() and Row()")

    @property
    def has_weights(self) -> bool:
        """Whether its first weights are given, and not drawn."""
        return self.weights is not None or isinstance(self.factory, Existing)

    @property
    def kind(self) -> object:
        """What shapes the computation: candidates of equal kind may run in the same template.

        Parameter names and shapes are not enough (two layers may differ in a stride), so a kind is the factory itself:
        for a `partial`, its function and arguments; for anything else, the object.
        """
        factory = self.factory
        if isinstance(factory, Existing):
            return id(factory.module)
        if isinstance(factory, functools.partial):
            key = (factory.func, factory.args, tuple(sorted(factory.keywords.items())))
            try:
                hash(key)
            except TypeError:
                return id(factory)
            # 1 == 1.0 == True, but a layer may treat them differently
            return key, repr(key)
        return factory if isinstance(factory, type) else id(factory)


def skip(name: str = "skip") -> Candidate:
    """The identity: leaves a position out, which makes depth variable. It costs no load and no visit."""
    return Candidate(name, nn.Identity, is_skip=True)


@dataclass(frozen=True)
class Position:
    """One place in the sequence, with its candidates; see [Note: values].

    Args:
        reads: values that its layers take, in order: names of positions before it, of what they write, of the pool's
            inputs. By default, what the position before it writes; for the first one, all inputs.
        writes: values that its layers give. By default one of the position's own name, which may be several tensors;
            with several names, each is one tensor.
        follows: a position before it with candidates of the same names, whose choice is its own, too: the cells of a
            network that are all alike.

    Raises:
        SpaceError: no candidates, two of one name, or a value named twice.
        SettingError: a name that is no text.
    """

    name: str
    candidates: tuple[Candidate, ...]
    reads: tuple[str, ...] | None
    writes: tuple[str, ...]
    follows: str | None

    def __init__(
        self,
        name: str,
        candidates: object,
        reads: str | Sequence[str] | None = None,
        writes: str | Sequence[str] | None = None,
        follows: str | None = None,
    ) -> None:
        items = tuple(candidates) if isinstance(candidates, list | tuple) else (candidates,)
        check_kind("Position: name", name, str, wanted="text")
        if follows is not None:
            check_kind("Position: follows", follows, str, wanted="the name of a position")
        with located(name):
            reads = None if reads is None else _value_names("reads", reads)
            writes = _value_names("writes", name if writes is None else writes)
            if not items:
                raise SpaceError("has no candidates; give it at least one layer or remove it")
            for item in items:
                if not isinstance(item, Candidate):
                    got = type(item).__name__
                    raise SpaceError(f"candidates takes Candidate objects, got {got}; write Candidate(name, factory)")
            names = [item.name for item in items]
            for candidate in names:
                if names.count(candidate) > 1:
                    raise SpaceError("two candidates of this name; rename one", position=name, candidate=candidate)
        vars(self).update(name=name, candidates=items, reads=reads, writes=writes, follows=follows)

    def with_candidates(self, candidates: Sequence[Candidate]) -> Position:
        """The same place with other candidates."""
        return Position(self.name, candidates, self.reads, self.writes, self.follows)

    def __getitem__(self, name: str) -> Candidate:
        for candidate in self.candidates:
            if candidate.name == name:
                return candidate
        names = ", ".join(item.name for item in self.candidates)
        raise SpaceError(f"no candidate '{name}'; it has {names}", position=self.name)


def _value_names(what: str, names: str | Sequence[str]) -> tuple[str, ...]:
    listed = [names] if isinstance(names, str) else names
    values = tuple(check_list(f"Position: {what}", listed, of=object, wanted="values"))
    if not values:
        raise SpaceError(f"{what} nothing; name at least one value")
    for name in values:
        if not isinstance(name, str):
            raise SpaceError(f"{what} {name!r}; values are named by text")
        if values.count(name) > 1:
            raise SpaceError(f"{what} '{name}' twice; name it once")
    return values
