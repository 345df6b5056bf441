"""What a recording is made of: operations, calls of blocks and of other modules, and what tells their tensors apart."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, treespec_tuple

from l2l_nas.errors import SpaceError
from l2l_nas.space.contents import storage_of

Modes = tuple[tuple[str, type[nn.Module], bool], ...]
Key = tuple[str, int]  # a call of a module: its path, and how many calls of it came before
ModuleOutput = tuple[str, int, int]  # what a module gave: its call, and the leaf


class Mark(NamedTuple):
    """What tells a tensor from any other of a recording."""

    memory: tuple[object, ...]  # where it lies, how, and how often something was written into it
    history: tuple[bool, bool]  # whether gradients pass through it, and whether a hook changes them


def mark(leaf: object) -> Mark | None:
    """The mark of a tensor; None for anything else. Of one made in inference mode nothing of this is known."""
    if not isinstance(leaf, Tensor):
        return None
    if leaf.is_inference():
        raise SpaceError("a tensor of the model was made in torch.inference_mode(); write torch.no_grad() instead")
    memory = storage_of(leaf), leaf.storage_offset(), leaf.shape, leaf.stride(), leaf.dtype, leaf._version
    return Mark(memory, history(leaf))


def history(tensor: Tensor) -> tuple[bool, bool]:
    """The history of a mark."""
    return tensor.requires_grad, bool(tensor._backward_hooks)


def modes_of(module: nn.Module, mode: bool) -> Modes:
    """Modules inside another that are in another mode than what is around them: path, class, whether they train."""
    modes: dict[str, tuple[type[nn.Module], bool]] = {}
    for path, inner in module.named_modules():
        outer = [outer for outer in modes if not outer or path.startswith(f"{outer}.")]
        if inner.training is not (modes[outer[-1]][1] if outer else mode):
            modes[path] = type(inner), inner.training
    return tuple((path, *mode_of) for path, mode_of in modes.items())


@dataclass
class Event:
    """An operation outside the blocks, or a block."""

    reads: frozenset[int]  # storages
    writes: frozenset[int]
    inside: tuple[Key, ...] = ()  # calls of the modules that run, from the outermost on
    block: int | None = None  # its number; None for an operation
    changes: frozenset[int] = frozenset()  # what it changes in place, of what it writes
    is_random: bool = False  # whether it draws random numbers

    @property
    def where(self) -> str:
        """The module that runs, for messages."""
        return self.inside[-1][0] if self.inside else "the model's forward"


@dataclass
class ModuleCall:
    """One call of a module."""

    path: str
    nth: int  # how many calls of it came before
    inside: tuple[Key, ...]  # calls of the modules that run around it
    start: int  # number of events before it began, and before it ended
    end: int = 0
    # leaves of its outputs; a block's are followed by those of what it shows
    gives: list[Any] = field(default_factory=list)
    gives_tree: TreeSpec = field(default_factory=treespec_tuple)
    gives_marks: list[Mark | None] = field(default_factory=list)
    is_hooked: bool = False  # whether the model itself listens to it by hooks

    @property
    def key(self) -> Key:
        """Which call it is."""
        return self.path, self.nth


@dataclass(kw_only=True)
class BlockCall(ModuleCall):
    """One call of a block."""

    takes: list[Any]  # leaves of its arguments, when it begins
    takes_tree: TreeSpec
    marks: list[Mark | None]
    modes: Modes  # of modules inside it: see `modes_of`
    has_gradients: bool  # whether gradients are recorded where it begins: not within `torch.no_grad()`
    changes: frozenset[int] = frozenset()  # leaves of its arguments that it changes in place
    # path of each module inside it that hooks of the model listen to, and the tree of what that gave
    shown: list[tuple[str, TreeSpec]] = field(default_factory=list)
    # outputs that are arguments: by leaf of the outputs, the leaf of the arguments
    aliases: dict[int, int] = field(default_factory=dict)
