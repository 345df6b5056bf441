"""The positions of a converted model, before their layers are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from l2l_nas.space.convert.events import Key
from l2l_nas.space.convert.forms import ArgTree, Form
from l2l_nas.space.convert.parts import BlockCalled


@dataclass(frozen=True)
class PositionPlan:
    """A position to be made.

    Args:
        reads, writes: names of values.
        forms: of what it writes.
    """

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True)
class BlockPlan(PositionPlan):
    """A block.

    Args:
        called: how the model calls it.
        can_skip: whether what it reads first has the form of what it writes.
    """

    path: str
    called: BlockCalled
    can_skip: bool


@dataclass(frozen=True)
class FragmentPlan(PositionPlan):
    """What lies before, between or behind blocks.

    Args:
        arguments: of the model.
        calls: of blocks, what they take and give in this part.
        others: of calls of other modules that do not run in it, what they give; None for those that run.
        wanted: what it makes: leaves of the arguments of blocks, and of what other modules give.
        needed: names of parameters and buffers.
        is_head: whether it gives the model's output.
    """

    arguments: ArgTree
    calls: Mapping[Key, tuple[ArgTree, ArgTree]]
    others: Mapping[str, tuple[ArgTree | None, ...]]
    wanted: Mapping[Key, Mapping[int, Form]]
    needed: tuple[str, ...]
    is_head: bool
