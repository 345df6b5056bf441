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
    """What tells a tensor from any other of a recording.

    Args:
        memory: where it lies, how, and how often something was written into it.
        history: whether gradients pass through it, and whether a hook changes them.
    """

    memory: tuple[object, ...]
    history: tuple[bool, bool]


def mark(leaf: object) -> Mark | None:
    """The mark of a tensor; None for anything else.

    Raises:
        SpaceError: it was made in inference mode, where nothing of this is known.
    """
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
    """An operation outside the blocks, or a block.

    Args:
        reads, writes, changes: storages; those that it changes in place are among those that it writes.
        inside: calls of the modules that run, from the outermost on.
        block: number of the block; None for an operation.
        is_random: whether it draws random numbers.
    """

    reads: frozenset[int]
    writes: frozenset[int]
    inside: tuple[Key, ...] = ()
    block: int | None = None
    changes: frozenset[int] = frozenset()
    is_random: bool = False

    @property
    def where(self) -> str:
        """The module that runs, for messages."""
        return self.inside[-1][0] if self.inside else "the model's forward"


@dataclass
class ModuleCall:
    """One call of a module.

    Args:
        path, nth: of the module; how many calls of it came before.
        inside: calls of the modules that run around it.
        start, end: number of events before it began, and before it ended.
        gives, gives_marks: leaves of its outputs; a block's are followed by those of what it shows.
        is_hooked: whether the model itself listens to it by hooks.
    """

    path: str
    nth: int
    inside: tuple[Key, ...]
    start: int
    end: int = 0
    gives: list[Any] = field(default_factory=list)
    gives_tree: TreeSpec = field(default_factory=treespec_tuple)
    gives_marks: list[Mark | None] = field(default_factory=list)
    is_hooked: bool = False

    @property
    def key(self) -> Key:
        """Which call it is."""
        return self.path, self.nth


@dataclass(kw_only=True)
class BlockCall(ModuleCall):
    """One call of a block.

    Args:
        takes, marks: leaves of its arguments, when it begins.
        modes: of modules inside it: see `modes_of`.
        has_gradients: whether gradients are recorded where it begins: not within `torch.no_grad()`.
        changes: leaves of its arguments that it changes in place.
        shown: path of each module inside it that hooks of the model listen to, and the tree of what that gave.
        aliases: outputs that are arguments: by leaf of the outputs, the leaf of the arguments.
    """

    takes: list[Any]
    takes_tree: TreeSpec
    marks: list[Mark | None]
    modes: Modes
    has_gradients: bool
    changes: frozenset[int] = frozenset()
    shown: list[tuple[str, TreeSpec]] = field(default_factory=list)
    aliases: dict[int, int] = field(default_factory=dict)
