"""What a model does between its blocks: which tensors each block takes and gives, and what each is made of.

[Note: recording] A forward is recorded operation by operation. From a tensor that a block takes, `Recording.needs` goes
back through the operations that made it, to outputs of blocks before it, to inputs of the model, and to its weights. So
a part of the model is known by what it computes, wherever in the model's code that is written. It may stop at what a
module gave: see [Note: computed once].
"""

from __future__ import annotations

import bisect
import heapq
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, treespec_tuple
from torch.utils.hooks import RemovableHandle

from l2l_nas.errors import SpaceError
from l2l_nas.space.build import named_tensors
from l2l_nas.space.contents import storage_of
from l2l_nas.space.convert.forms import Ref
from l2l_nas.space.operations import OperationLog, tensors_in, written_by

Modes = tuple[tuple[str, type[nn.Module], bool], ...]  # of modules in a block: path, class, whether they train
Key = tuple[str, int]  # a call of a module: its path, and how many calls of it came before
ModuleOutput = tuple[str, int, int]  # what a module gave: its call, and the leaf
_TO_PYTHON = (torch.ops.aten._local_scalar_dense, torch.ops.aten.equal, torch.ops.aten.is_nonzero)


class Mark(NamedTuple):
    """What tells a tensor from any other of a recording."""

    memory: tuple[object, ...]  # where it lies, how, and how often something was written into it
    history: tuple[bool, bool]  # whether gradients pass through it, and whether a hook changes them


def _mark(leaf: object) -> Mark | None:
    """The mark of a tensor; None for anything else. Of one made in inference mode nothing of this is known."""
    if not isinstance(leaf, Tensor):
        return None
    if leaf.is_inference():
        raise SpaceError("a tensor of the model was made in torch.inference_mode(); write torch.no_grad() instead")
    memory = storage_of(leaf), leaf.storage_offset(), leaf.shape, leaf.stride(), leaf.dtype, leaf._version
    return Mark(memory, _history(leaf))


def _history(tensor: Tensor) -> tuple[bool, bool]:
    return tensor.requires_grad, bool(tensor._backward_hooks)


def _modes_of(module: nn.Module, mode: bool) -> Modes:
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
    modes: Modes
    has_gradients: bool  # whether gradients are recorded where it begins: not within `torch.no_grad()`
    changes: frozenset[int] = frozenset()  # leaves of its arguments that it changes in place
    # path of each module inside it that hooks of the model listen to, and the tree of what that gave
    shown: list[tuple[str, TreeSpec]] = field(default_factory=list)
    # outputs that are arguments: by leaf of the outputs, the leaf of the arguments
    aliases: dict[int, int] = field(default_factory=dict)
    is_changed_by_hooks: bool = False  # whether a user's hook on it gives something else than it was given


@dataclass(frozen=True)
class Needs:
    """What tensors are made of."""

    events: frozenset[int] = frozenset()  # numbers of the operations that made them
    storages: frozenset[int] = frozenset()  # of all that went into them
    outputs: frozenset[tuple[int, int]] = frozenset()  # of blocks: number of the call and of the leaf
    ends: frozenset[ModuleOutput] = frozenset()  # what modules gave, where the walk stopped

    def __or__(self, other: Needs) -> Needs:
        return Needs(
            self.events | other.events,
            self.storages | other.storages,
            self.outputs | other.outputs,
            self.ends | other.ends,
        )

    @property
    def earliest(self) -> int:
        """The first fragment that can make them: how many blocks must have run."""
        return max((call + 1 for call, _ in self.outputs), default=0)


class Recording(OperationLog):
    """A forward of a model.

    Args:
        model: not changed, but for its buffers and modes.
        blocks: their paths.
        arguments: of the model, positional and by keyword.
        training: the mode that it is put into.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[str],
        arguments: tuple[Sequence[Any], Mapping[str, Any]],
        *,
        training: bool,
    ) -> None:
        super().__init__()
        model.train(training)
        self.blocks = tuple(blocks)
        self.calls: list[BlockCall] = []  # of blocks, in order
        self.others: dict[str, list[ModuleCall]] = {}  # by path, the calls of another module
        self.events: list[Event] = []
        self.names: dict[int, list[str]] = {}  # by storage, of the parameter or buffer
        for name, tensor in named_tensors(model, remove_duplicate=False):
            self.names.setdefault(storage_of(tensor), []).append(name)
        self.arguments = arguments
        self.argument_leaves, self.argument_tree = tree_flatten(arguments)
        marks = [_mark(leaf) for leaf in self.argument_leaves]
        self._decisions: list[tuple[Tensor, int, str]] = []
        self._alive: list[object] = []
        self._stack: list[ModuleCall] = []
        self._shown: list[tuple[str, list[Any], TreeSpec]] = []
        self._in_block = False
        self._mode, self._autocast = training, _autocast_types()
        handles = []
        for path, module in model.named_modules():
            block = next((block for block in blocks if path.startswith(f"{block}.")), None)
            if block is not None:
                show = partial(self._show, path.removeprefix(f"{block}."))
                handles.append(module.register_forward_hook(show))
            elif path:
                is_block = path in blocks
                enter, leave = (self._enter_block, self._leave_block) if is_block else (self._enter, self._leave)
                handles += self._around_hooks(module) if is_block else []
                # hooks that a user put on a block belong to it: it takes what they take, and gives what they give
                enter = partial(enter, path)
                handles.append(module.register_forward_pre_hook(enter, with_kwargs=True, prepend=is_block))
                handles.append(module.register_forward_hook(leave))
        try:
            with self:
                self.result = model(*arguments[0], **arguments[1])
        finally:
            for handle in handles:
                handle.remove()
        # the model may ask for the gradient of its input
        pairs = zip(marks, self.argument_leaves, strict=True)
        self.argument_marks = [before and before._replace(history=_history(leaf)) for before, leaf in pairs]
        # by storage, the events that write it; and those that are read and never written
        self.writers: dict[int, list[int]] = {}
        for index, event in enumerate(self.events):
            for storage in event.writes:
                self.writers.setdefault(storage, []).append(index)
        explained = self.writers.keys() | self.names.keys() | _storages(arguments)
        operations = [event for event in reversed(self.events) if event.block is None]
        self._unknown = {storage: event for event in operations for storage in event.reads - explained}

    def _around_hooks(self, block: nn.Module) -> list[RemovableHandle]:
        """Listen on both sides of the hooks that a block has, for those that change what it takes or gives."""
        given: list[Any] = []

        def note(items: object) -> None:
            given[:] = tree_leaves(items)

        def compare(items: object) -> None:
            leaves = tree_leaves(items)
            is_same = len(leaves) == len(given) and all(map(operator.is_, leaves, given))
            self.calls[-1].is_changed_by_hooks |= not is_same

        return [
            block.register_forward_pre_hook(lambda _, *given: note(given), with_kwargs=True, prepend=True),
            block.register_forward_pre_hook(lambda _, *given: compare(given), with_kwargs=True),
            block.register_forward_hook(lambda _, args, outputs: note(outputs), prepend=True),
            block.register_forward_hook(lambda _, args, outputs: compare(outputs)),
        ]

    @property
    def _inside(self) -> tuple[Key, ...]:
        return tuple(call.key for call in self._stack)

    def _enter(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        calls = self.others.setdefault(path, [])
        calls.append(ModuleCall(path, len(calls), self._inside, len(self.events)))
        self._stack.append(calls[-1])

    def _enter_block(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        if _autocast_types() != self._autocast:
            raise SpaceError(
                f"the block '{path}' runs within torch.autocast, which a part of the model does not; take that out of "
                "the model's forward: relay.precision=bf16 computes in low precision"
            )
        leaves, tree = tree_flatten((args, kwargs))
        call = BlockCall(
            path,
            sum(call.path == path for call in self.calls),
            self._inside,
            len(self.events),
            takes=leaves,
            takes_tree=tree,
            marks=[_mark(leaf) for leaf in leaves],
            modes=_modes_of(module, self._mode),
            has_gradients=torch.is_grad_enabled(),
        )
        self.calls.append(call)
        self._in_block = True

    def _show(self, path: str, module: nn.Module, args: Any, outputs: Any) -> None:
        if len(module._forward_hooks) > 1:  # this one, and one of the model's own
            self._shown.append((path, *tree_flatten(outputs)))

    def _leave(self, module: nn.Module, args: Any, outputs: Any) -> None:
        call = self._stack.pop()
        call.end = len(self.events)
        call.gives, call.gives_tree = tree_flatten(outputs)
        call.gives_marks = [_mark(leaf) for leaf in call.gives]
        call.is_hooked = len(module._forward_hooks) + len(module._forward_pre_hooks) > 2  # two are of this class

    def _leave_block(self, module: nn.Module, args: Any, outputs: Any) -> None:
        self._in_block = False
        call = self.calls[-1]
        call.gives, call.gives_tree = tree_flatten(outputs)
        call.gives_marks = [_mark(leaf) for leaf in call.gives]
        storages = _storages((call.takes, call.gives))
        for inner, leaves, tree in self._shown:
            call.shown.append((inner, tree))
            call.gives += leaves  # those that are views of what it takes or gives are no further outputs
            call.gives_marks += [None if storages & _storages(leaf) else _mark(leaf) for leaf in leaves]
        self._shown.clear()
        pairs = enumerate(zip(call.marks, map(_mark, call.takes), strict=True))
        call.changes = frozenset(leaf for leaf, (a, b) in pairs if a and b and a.memory != b.memory)
        leaf_of = {argument: leaf for leaf, argument in enumerate(call.marks) if argument}
        call.aliases = {leaf: leaf_of[made] for leaf, made in enumerate(call.gives_marks) if made in leaf_of}
        made = [leaf for leaf, leaf_mark in zip(call.gives, call.gives_marks, strict=True) if leaf_mark is not None]
        self.events.append(Event(_storages(call.takes), _storages(made), block=len(self.calls) - 1))

    def after(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Record an operation."""
        if self._in_block:
            return
        self._alive.append((args, kwargs, result))
        changed = _storages(written_by(func, args, kwargs))
        event = Event(
            _storages((args, kwargs)),
            _storages(result) | changed,
            self._inside,
            changes=changed,
            is_random=torch.Tag.nondeterministic_seeded in func.tags,
        )
        if func.overloadpacket in _TO_PYTHON:
            self._decisions += [(item, len(self.events), event.where) for item in args if isinstance(item, Tensor)]
        self.events.append(event)

    def call_of(self, ref: Ref) -> ModuleCall:
        """The call of the block that takes or gives a tensor, or of the other module that gives it."""
        return self.others[ref[1]][ref[2]] if ref[0] == "module" else self.calls[ref[1]]

    def tensor_of(self, ref: Ref) -> Any:
        """What a block takes, or what it or another module gives."""
        return self.calls[ref[1]].takes[ref[2]] if ref[0] == "made" else self.call_of(ref).gives[ref[-1]]

    def needs(
        self,
        tensors: Sequence[object],
        before: int | None = None,
        stop: Callable[[int, int, int], Collection[ModuleOutput]] = lambda storage, before, written: (),
    ) -> Needs:
        """What tensors are made of, by operations before that number.

        Args:
            stop: of a storage, the number of the operation that reads it and that of the last one before it that
                wrote it (-1 if there is none): what modules gave in between, where the walk ends.
        """
        wanted: set[int] = set()
        events: set[int] = set()
        outputs: set[tuple[int, int]] = set()
        ends: set[ModuleOutput] = set()
        queue: list[int] = []  # numbers of events, the last one first

        def go_on(storages: Iterable[int], before: int) -> None:
            for storage in storages:
                writers = self.writers.get(storage, ())
                index = bisect.bisect_left(writers, before)
                stops = stop(storage, before, writers[index - 1] if index else -1)
                ends.update(stops)
                if stops:
                    wanted.discard(storage)
                elif index:
                    heapq.heappush(queue, -writers[index - 1])

        def want(storages: Iterable[int], before: int) -> None:
            new = [storage for storage in storages if storage not in wanted]
            wanted.update(new)
            go_on(new, before)

        want(_storages(tensors), len(self.events) if before is None else before)
        last = len(self.events)
        while queue:
            index = -heapq.heappop(queue)
            event = self.events[index]
            written = wanted & event.writes
            if index == last or not written:
                continue
            last = index
            if event.block is None:
                events.add(index)
                want(event.reads, index)
            else:
                pairs = self._outputs_in(event.block, wanted)
                outputs |= pairs
                wanted -= _storages([self.calls[event.block].gives[leaf] for _, leaf in pairs])
            go_on(written & wanted, index)
        for storage in wanted & self._unknown.keys():  # such as one that a block left in an attribute
            raise SpaceError(
                f"'{self._unknown[storage].where}' uses a tensor that is no argument, parameter or buffer, and that no "
                "block returns; have the block return it, use register_buffer, or choose blocks further outside"
            )
        return Needs(frozenset(events), frozenset(wanted), frozenset(outputs), frozenset(ends))

    def _outputs_in(self, block: int, storages: set[int]) -> set[tuple[int, int]]:
        call = self.calls[block]
        return {
            (block, leaf)
            for leaf, made in enumerate(call.gives_marks)
            if made is not None and made.memory[0] in storages and leaf not in call.aliases
        }

    def is_last(self, call: ModuleCall, leaf: int) -> bool:
        """Whether a tensor is to the end as a module gave it, and neither has a hook."""
        item = call.gives[leaf]
        return not call.is_hooked and not item._backward_hooks and _mark(item) == call.gives_marks[leaf]

    def is_own_work(self, call: ModuleCall, leaf: int) -> bool:
        """Whether a module made a tensor that it gives; not one that it was given, or a weight."""
        storage = storage_of(call.gives[leaf])
        writers = self.writers.get(storage)
        return writers is not None and writers[0] >= call.start and storage not in self.names

    def refuse_random_decisions(self) -> None:
        """Refuse Python numbers read off random tensors between blocks: `if torch.rand(()) < p`."""
        for tensor, before, where in self._decisions:
            if any(self.events[index].is_random for index in self.needs([tensor], before).events):
                raise SpaceError(
                    f"'{where}' decides by a random number what it does; set what drops blocks at random to 0"
                )

    def refuse_decisions(self) -> None:
        """Refuse Python numbers read off tensors that depend on the example or on blocks: parts cannot know them."""
        args, kwargs = self.arguments
        listed = [*kwargs.items(), *((f"argument {number}", item) for number, item in enumerate(args, 1))]
        names = {storage_of(item): str(name) for name, item in listed if isinstance(item, Tensor)}
        for tensor, before, where in self._decisions:
            needs = self.needs([tensor], before)
            read = [f"'{name}'" for storage, name in names.items() if storage in needs.storages]
            read += [f"what '{self.calls[number].path}' gives" for number, _ in sorted(needs.outputs)]
            if read:
                raise SpaceError(
                    f"'{where}' reads a number off a tensor between the blocks (.item(), or `if` on a tensor), which "
                    f"depends on {read[0]}, so that it may do other things for other samples; give arguments for which "
                    "it does not, or choose blocks further outside"
                )


def _storages(tree: object) -> frozenset[int]:
    return frozenset(map(storage_of, tensors_in(tree)))


def _autocast_types() -> list[str]:
    return [kind for kind in ("cpu", "cuda", "xpu", "mps") if torch.is_autocast_enabled(kind)]
