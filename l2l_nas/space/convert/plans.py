"""The positions of a converted model, before their layers are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from l2l_nas.space.convert.events import Key, Modes
from l2l_nas.space.convert.forms import ArgTree, Form


class _Shared:
    """Data that all copies of a layer share."""

    def __deepcopy__(self, memo: object) -> Self:
        return self


@dataclass(frozen=True)
class BlockCalled(_Shared):
    """How a model calls a block.

    Args:
        takes, gives: of the call.
        modes: by the model's mode, whether it trains, that of modules inside the block: see `modes_of`.
        has_gradients: whether it trains what is in the block: not within `torch.no_grad()`.
    """

    takes: ArgTree
    gives: ArgTree
    modes: tuple[Modes, Modes] = ((), ())
    has_gradients: bool = True


@dataclass(frozen=True)
class PositionPlan(_Shared):
    """A position to be made.

    Args:
        reads, writes: names of values.
    """

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True)
class BlockPlan(PositionPlan):
    """A block.

    Args:
        can_skip: whether what it reads first has the form of what it writes.
    """

    path: str
    called: BlockCalled
    can_skip: bool


@dataclass(frozen=True)
class FragmentPlan(PositionPlan):
    """What lies before, between or behind blocks.

    Args:
        arguments: of the model; those that are `Arg` are the first values.
        calls: of each call of a block, what it takes and gives; leaves that are `Arg` are values of the fragment.
        others: by path of a module, what each of its calls gives where it does not run; None for those that run.
        wanted: what it makes, with its form: by block call leaves of its arguments, by call of another module leaves
            that it gives.
        needed: names of parameters and buffers.
        is_head: whether it gives the model's output.
    """

    arguments: ArgTree
    calls: Mapping[Key, tuple[ArgTree, ArgTree]]
    others: Mapping[str, tuple[ArgTree | None, ...]]
    wanted: Mapping[Key, Mapping[int, Form]]
    needed: tuple[str, ...]
    is_head: bool
