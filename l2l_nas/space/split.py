"""How the tensors of a layer are divided among ranks: a plan beside the candidate, as data.

[Note: divided layers] A plan names parts of a layer's module, and says of each how its tensors are divided, as
Megatron-LM does (arXiv 1909.08053, section 3). The module stays plain: it works on the heads, units or channels that it
has, whether these are all or a part. What a plan does not name is whole on every rank, and computed alike on all.

    {"qkv": Column(parts=3), "out": Row(), "heads": Attribute(), "up": Column(), "down": Row()}

`take` gives a rank's part of a tensor, and `join` the tensor of all parts, to the bit: first weights, checkpoints and
exports know whole tensors alone. Nothing here communicates; `l2l_nas.parallel` builds the modules that do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from numbers import Integral
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from l2l_nas.arguments import check_count, check_kind, check_list, check_whole, shown
from l2l_nas.errors import SettingError, SpaceError, user_code

# whether a layer is tried out, on whatever device it can be: for no rank waits there for another
TRIED_OUT: ContextVar[bool] = ContextVar("tried out", default=False)

_MOST_ADVISED = 64  # ranks that an error proposes at most


@dataclass(frozen=True)
class SplitRule:
    """How the tensors of one part of a module are divided among ranks.

    Names of tensors are those within the part, such as "weight"; the part may also be a parameter itself, named "".
    """

    def dim(self, name: str, size: int) -> int | None:
        """The dimension along which a tensor is divided among `size` ranks; None: it is whole on every rank."""
        return None

    def groups(self, length: int) -> tuple[int, ...]:
        """Lengths of what lies one behind the other along the dimension, each of which is divided by itself."""
        return (length,)

    def piece(self, length: int, rank: int, size: int) -> tuple[int, int]:
        """Where a rank's piece of a group of this length begins and ends."""
        return rank * length // size, (rank + 1) * length // size

    def units(self, length: int) -> int:
        """How many indivisible units, such as heads, a group of this length has."""
        return length

    def check(self, what: str, length: int, size: int) -> None:
        """Refuse a length that so many ranks do not divide.

        Args:
            what: the tensor's name, for the error.

        Raises:
            SpaceError: with the numbers of ranks that would.
        """
        counts = [self.units(group) for group in self.groups(length)]
        if any(count % size for count in counts):
            odd, group = next(pair for pair in zip(counts, self.groups(length), strict=True) if pair[0] % size)
            units = "" if odd == group else f" units of {group // odd:,}"
            raise SpaceError(f"'{what}' has {odd:,}{units} to divide among {size} ranks; {advised(counts)}")

    def take(self, tensor: Tensor, name: str, rank: int, size: int) -> Tensor | None:
        """A rank's part of a whole tensor, a view where it can be; None where the rank has nothing of it."""
        dim = self.dim(name, size)
        if dim is None:
            return tensor
        pieces, start = [], 0
        for length in self.groups(tensor.shape[dim]):
            begin, end = self.piece(length, rank, size)
            pieces.append(tensor.narrow(dim, start + begin, end - begin))
            start += length
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)

    def join(self, parts: Sequence[Tensor | None], name: str) -> Tensor:
        """The whole tensor of what `take` gave each rank, in the order of ranks. Of a whole one it is the first."""
        tensors = [part for part in parts if part is not None]
        dim = self.dim(name, len(parts))
        if dim is None or len(parts) == 1:
            return tensors[0]
        lengths = self.groups(sum(part.shape[dim] for part in tensors))
        pieces = [
            part.split([end - begin for begin, end in (self.piece(g, rank, len(parts)) for g in lengths)], dim)
            for rank, part in enumerate(tensors)
        ]
        return torch.cat([piece for group in zip(*pieces, strict=True) for piece in group], dim)

    def holds(self, name: str, rank: int, size: int) -> bool:
        """Whether a rank has anything of a tensor."""
        return True

    def is_whole(self, name: str, size: int) -> bool:
        """Whether every rank has all of a tensor."""
        return self.dim(name, size) is None


@dataclass(frozen=True)
class Column(SplitRule):
    """A linear layer or convolution, divided by its outputs: each rank computes some of them, of the whole input.

    Args:
        parts: how many layers of equal width it stands for, one behind the other, each of which is divided (3 for
            queries, keys and values in one); or the width of each.
        unit: outputs that stay together, such as the size of a head.
    """

    parts: int | tuple[int, ...] = 1
    unit: int = 1

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_count(f"{name}: unit", self.unit, least=1)
        if isinstance(self.parts, Integral):
            object.__setattr__(self, "parts", check_count(f"{name}: parts", self.parts, least=1))
            return
        parts = check_list(f"{name}: parts", self.parts, of=Integral, wanted="widths")
        object.__setattr__(self, "parts", tuple(check_count(f"{name}: parts", part, least=1) for part in parts))
        if not parts:
            raise SettingError(f"{name}: parts takes a number or widths, got none")

    def dim(self, name: str, size: int) -> int | None:
        return 0

    def groups(self, length: int) -> tuple[int, ...]:
        if not isinstance(self.parts, int):
            return self.parts
        if length % self.parts:
            raise SpaceError(f"{length:,} are not {self.parts} parts of one width; give parts= that are")
        return (length // self.parts,) * self.parts

    def units(self, length: int) -> int:
        return _units(length, self.unit)


@dataclass(frozen=True)
class Row(Column):
    """A linear layer or convolution, divided by its inputs: the outputs are the sum of what all ranks compute.

    Its bias is whole, and added to the sum.

    Args:
        parts, unit: of the inputs; see `Column`.
        is_input_whole: whether the input is whole, so that each rank takes its piece of it; else it is what a part
            that is divided by columns gives.
    """

    is_input_whole: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kind("Row: is_input_whole", self.is_input_whole, bool, wanted="True or False")
        if self.is_input_whole and self.parts != 1:
            raise SettingError("Row: an input that is whole is one part; leave parts= or is_input_whole= out")

    def dim(self, name: str, size: int) -> int | None:
        return None if name == "bias" else 1


@dataclass(frozen=True)
class Grouped(SplitRule):
    """A grouped convolution, such as a depthwise one, divided by whole groups.

    Args:
        is_input_whole: see `Row`.
    """

    is_input_whole: bool = False

    def __post_init__(self) -> None:
        check_kind("Grouped: is_input_whole", self.is_input_whole, bool, wanted="True or False")

    def dim(self, name: str, size: int) -> int | None:
        return 0


@dataclass(frozen=True)
class KeyValue(SplitRule):
    """The linear layer of keys, or of values, that groups of heads of queries share (arXiv 2305.13245).

    As many ranks as there are heads, or fewer, divide it as `Column` does. Of more ranks each has all of it, and hands
    on the one head that its queries use.

    Args:
        heads: of keys and values.
        unit: size of a head.
    """

    heads: int
    unit: int

    def __post_init__(self) -> None:
        check_count("KeyValue: heads", self.heads, least=1)
        check_count("KeyValue: unit", self.unit, least=1)

    def dim(self, name: str, size: int) -> int | None:
        return None if size > self.heads else 0

    def check(self, what: str, length: int, size: int) -> None:
        if self.heads % size and size % self.heads:
            raise SpaceError(
                f"'{what}' has {self.heads} heads to divide among {size} ranks; {advised([self.heads])}, and multiples "
                f"of {self.heads} would share it"
            )

    def outputs(self, rank: int, size: int) -> tuple[int, int]:
        """Where the outputs that a rank's queries use begin and end."""
        begin, end = self.piece(self.heads, rank, size)
        return begin * self.unit, max(end, begin + 1) * self.unit


@dataclass(frozen=True)
class Vocabulary(SplitRule):
    """An embedding of tokens, or the linear layer that scores them, divided by tokens.

    Ranks need not divide their number: the first ranks have one more.
    """

    def dim(self, name: str, size: int) -> int | None:
        return 0

    def piece(self, length: int, rank: int, size: int) -> tuple[int, int]:
        each, more = divmod(length, size)
        begin = rank * each + min(rank, more)
        return begin, begin + each + (rank < more)

    def check(self, what: str, length: int, size: int) -> None:
        if length < size:
            raise SpaceError(f"'{what}' has {length} tokens to divide among {size} ranks; at most {length} ranks can")


@dataclass(frozen=True)
class Channels(SplitRule):
    """A parameter by channel, or a module that treats each channel by itself, such as BatchNorm, divided by channels.

    Args:
        unit: channels that stay together.
    """

    unit: int = 1

    def __post_init__(self) -> None:
        check_count("Channels: unit", self.unit, least=1)

    def dim(self, name: str, size: int) -> int | None:
        return None if name == "num_batches_tracked" else 0

    def units(self, length: int) -> int:
        return _units(length, self.unit)


@dataclass(frozen=True)
class Within(SplitRule):
    """A module of whole weights that works on parts, such as a norm of each head: its gradients are sums over ranks."""


@dataclass(frozen=True)
class Experts(SplitRule):
    """A container of experts, of which each rank has some, whole.

    Its forward takes tokens and whatever else is alike on all ranks, and gives the sum of what its children give. A
    child that is missing gives nothing; the others keep their names.

    Args:
        count: of experts.
        chosen: that a token takes, which costs of writing go by; None: all.
    """

    count: int
    chosen: int | None = field(default=None, repr=False, compare=False)  # divides nothing

    def __post_init__(self) -> None:
        check_count("Experts: count", self.count, least=1)
        if self.chosen is not None:
            check_count("Experts: chosen", self.chosen, least=1, most=self.count)

    def check(self, what: str, length: int, size: int) -> None:
        if self.count % size:
            raise SpaceError(f"'{what}' has {self.count} experts to divide among {size} ranks; {advised([self.count])}")

    def owner(self, name: str, size: int) -> int:
        """The rank that has the expert to which a tensor belongs."""
        return int(name.partition(".")[0]) * size // self.count

    def take(self, tensor: Tensor, name: str, rank: int, size: int) -> Tensor | None:
        return tensor if self.holds(name, rank, size) else None

    def holds(self, name: str, rank: int, size: int) -> bool:
        return self.owner(name, size) == rank

    def is_whole(self, name: str, size: int) -> bool:
        return size == 1


@dataclass(frozen=True)
class Attribute(SplitRule):
    """A whole number that the module keeps, such as how many heads it has, or a field of a dataclass that it keeps."""

    def divided(self, what: str, number: int, size: int) -> int:
        """A rank's share.

        Raises:
            SpaceError: the ranks do not divide it.
        """
        self.check(what, number, size)
        return number // size


@dataclass(frozen=True)
class Dropped(SplitRule):
    """An `nn.Dropout` whose input is divided.

    Args:
        along: the dimension of the input: -1 for units of a linear layer, 1 for channels of an image.
    """

    along: int = -1

    def __post_init__(self) -> None:
        check_whole("Dropped: along", self.along)


@dataclass(frozen=True)
class Attended(SplitRule):
    """A module whose `scaled_dot_product_attention`, with dropout, is on this rank's heads."""


Splits = Mapping[str, SplitRule]


@runtime_checkable
class HasSplits(Protocol):
    """A module that knows how it is divided, where its candidate does not say otherwise."""

    def splits(self) -> Splits:
        """The plan; see [Note: divided layers]."""


def own_splits(module: nn.Module) -> Splits:
    """What a module says itself; an attribute of that name that is no method says nothing.

    Raises:
        SpaceError: its `splits` raised, or gave something else.
    """
    if not isinstance(module, HasSplits) or not callable(getattr(type(module), "splits", None)):
        return {}
    with user_code("its method splits", SpaceError):
        splits: object = module.splits()
    if not isinstance(splits, Mapping) or not all(isinstance(rule, SplitRule) for rule in splits.values()):
        raise SpaceError(
            f"its method splits returned {shown(splits)}, expected a dict of rules, such as Column(), by part"
        )
    return splits


class SplitPlan:
    """What a plan makes of a layer's tensors on a number of ranks.

    Args:
        splits: rules by the name of a part of the module; "" is the module itself.
        size: number of ranks.
    """

    def __init__(self, splits: Splits, size: int) -> None:
        self.splits = dict(splits)
        self.size = size

    def rule_of(self, name: str) -> tuple[SplitRule, str]:
        """The rule of a tensor of the layer, and its name within the part that the rule is of."""
        path = name
        while True:
            if path in self.splits:
                return self.splits[path], name[len(path) :].removeprefix(".")
            if not path:
                return SplitRule(), name
            path = path.rpartition(".")[0]

    def take(self, tensor: Tensor, name: str, rank: int) -> Tensor | None:
        """A rank's part of the tensor of this name, of its shape, such as its moments; None if it has nothing of it."""
        rule, rest = self.rule_of(name)
        return rule.take(tensor, rest, rank, self.size)

    def join(self, parts: Sequence[Tensor | None], name: str) -> Tensor:
        """The whole tensor, of the parts of all ranks."""
        rule, rest = self.rule_of(name)
        return rule.join(parts, rest)

    def holds(self, name: str, rank: int) -> bool:
        """Whether a rank has anything of the tensor of this name."""
        rule, rest = self.rule_of(name)
        return rule.holds(rest, rank, self.size)

    def is_whole(self, name: str) -> bool:
        """Whether every rank has all of the tensor of this name, and the same numbers in it."""
        rule, rest = self.rule_of(name)
        return rule.is_whole(rest, self.size)


def under(prefix: str, splits: Splits) -> dict[str, SplitRule]:
    """The plan of a part as one of the module that has it under this name."""
    return {f"{prefix}.{name}" if name else prefix: rule for name, rule in splits.items()}


def _units(length: int, unit: int) -> int:
    if length % unit:
        raise SpaceError(f"{length:,} are not whole units of {unit}; give unit= that divides them")
    return length // unit


def advised(counts: Sequence[int]) -> str:
    """Which numbers of ranks divide all of these, as the end of an error."""
    whole = math.gcd(*counts)
    fitting = [str(size) for size in range(2, min(whole, _MOST_ADVISED) + 1) if whole % size == 0]
    if not fitting:
        return "only 1 would divide it"
    return f"{', '.join(fitting[:-1])}{' or ' if fitting[1:] else ''}{fitting[-1]} would divide it"
