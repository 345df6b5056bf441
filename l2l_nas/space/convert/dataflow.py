"""The values between the blocks of a model, found from a recording in evaluation and one in training."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten_with_path, tree_unflatten, treespec_tuple

from l2l_nas.errors import SpaceError, is_out_of_memory
from l2l_nas.space.contents import storage_of
from l2l_nas.space.convert.forms import Alias, Arg, ArgTree, Const, Form, Leaf, Ref, Unused, is_constant, layout
from l2l_nas.space.convert.fragments import FragmentDraft, Fragments, is_counted
from l2l_nas.space.convert.parts import BlockCalled, BlockPlan, FragmentPlan, Plan
from l2l_nas.space.convert.recording import BlockCall, Key, Mark, ModuleCall, ModuleOutput, Recording
from l2l_nas.space.operations import tensors_in


class Dataflow:
    """Which values the parts of a model read and write.

    Args:
        model: that was recorded.
        recordings: of `BATCHES`, the second in training.
        inputs: names of the arguments that are tensors, in the order of the leaves; None for other leaves.
        ends: gives the model's output and its losses, of what it returns.
    """

    def __init__(
        self,
        model: nn.Module,
        recordings: tuple[Recording, Recording],
        inputs: Sequence[str | None],
        ends: Callable[[Any], list[Tensor]],
    ) -> None:
        self._recordings = recordings
        self._inputs = inputs
        self._results = [ends(recording.result) for recording in recordings]
        self._calls = recordings[1].calls
        self._labels = [_argument_names(model, call) for call in self._calls]
        _refuse_other_calls(recordings, self._labels)
        leaves = zip(inputs, recordings[0].argument_leaves, recordings[1].argument_leaves, strict=True)
        self._input_forms = {name: _form("the example", a, b) for name, a, b in leaves if name is not None}
        self._refs = self._find_refs()
        made = {ref for refs in self._refs for ref in refs if ref and ref[0] == "made"}
        drafts = Fragments(recordings, sorted(made), self._results).drafts
        self._gradients = self._find_gradients([ref for draft in drafts for ref in draft.refs if ref[0] == "module"])
        outputs = {ref for refs in self._refs for ref in refs if ref and ref[0] == "output"}
        outputs |= {("output", *pair) for draft in drafts for needs in draft.needs for pair in needs.outputs}
        self._written = [[ref for ref in sorted(outputs) if ref[1] == number] for number in range(len(self._calls))]
        self._names: dict[Ref, str] = {("input", name): name for name in self._input_forms}
        for number, refs in enumerate(self._written):
            self._name(refs, self._block_name(number), [str(ref[2]) for ref in refs])
        for draft in drafts:
            self._name(draft.refs, self._fragment_name(draft.index), [self._label(ref) for ref in draft.refs])
        # by output of a block, the argument of the next block that takes it
        self._roles: dict[int, str] = {}
        for number, sources in enumerate(self._refs):
            for label, ref in zip(self._labels[number], sources, strict=True):
                if ref and ref[0] == "output" and ref[1] < number:
                    self._roles.setdefault(ref[2], label)
        self.parts: list[Plan] = []  # in order
        fragments = {draft.index: self._fragment(draft) for draft in drafts}
        for number in range(len(self._calls) + 1):
            self.parts += [fragments[number]] if number in fragments else []
            self.parts += [self._block(number)] if number < len(self._calls) else []

    def _find_refs(self) -> list[list[Ref | None]]:
        """Where each argument of a block comes from. Both recordings, and the gradients' way, must agree on it."""
        found: list[list[Ref | None]] = []
        refs: dict[Any, Ref] = {}
        one, other = self._recordings
        for name, marks in zip(self._inputs, _paired(one.argument_marks, other.argument_marks), strict=True):
            if name is not None:
                refs[marks] = ("input", name)
        for number, (first, call) in enumerate(zip(one.calls, other.calls, strict=True)):
            found.append(
                [
                    None if marks is None else refs.setdefault(marks, ("made", number, leaf))
                    for leaf, marks in enumerate(_paired(first.marks, call.marks))
                ]
            )
            for leaf, marks in enumerate(_paired(first.gives_marks, call.gives_marks)):
                # one with a hook is made by a part, where the model's code hooks it again
                if marks is not None and leaf not in call.aliases and not call.gives[leaf]._backward_hooks:
                    refs[marks] = ("output", number, leaf)
        return found

    def _find_gradients(self, values: Sequence[Ref]) -> dict[int, Tensor]:
        """Gradients by identity of the tensor; their memory layout decides how sums round."""
        leaves = [leaf for call in self._calls for leaf in (*call.takes, *call.gives)]
        leaves += [self._recordings[1].tensor_of(ref) for ref in values]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
        ends = [end for end in self._results[1] if end.requires_grad]
        try:
            gradients = torch.autograd.grad(ends, tensors, [torch.ones_like(end) for end in ends], allow_unused=True)
        except Exception as error:  # of a user's hook, too; the last bits are not worth a refusal
            if is_out_of_memory(error):
                raise
            return {}
        return {id(t): g for t, g in zip(tensors, gradients, strict=True) if g is not None}

    def _form_of(self, ref: Ref) -> Form:
        """The form of a value."""
        if ref[0] == "input":
            return self._input_forms[ref[1]]
        one, other = (recording.tensor_of(ref) for recording in self._recordings)
        path = self._recordings[1].call_of(ref).path
        form = _form(f"the block '{path}'", one, other)
        if not form.is_plain:
            raise SpaceError(
                f"the block '{path}' has a tensor in which the batch has no dimension of its own; choose "
                "blocks further outside"
            )
        gradient = self._gradients.get(id(other))
        order = None if gradient is None else layout(gradient)
        return form if order in (None, tuple(range(len(form.sizes)))) else replace(form, gradient=order)

    def _block_name(self, number: int) -> str:
        call = self._calls[number]
        return call.path if call.nth == 0 else f"{call.path}-{call.nth + 1}"

    def _fragment_name(self, index: int) -> str:
        if index == len(self._calls):
            return "head"
        return "stem" if index == 0 else f"before.{self._block_name(index)}"

    def _label(self, ref: Ref) -> str:
        """The name of the argument that a block takes; for the output of another module, the module's path."""
        if ref[0] == "made":
            return self._labels[ref[1]][ref[2]]
        _, path, nth, leaf = ref
        return path + (f"-{nth + 1}" if nth else "") + (f".{leaf}" if leaf else "")

    def _name(self, refs: Sequence[Ref], name: str, labels: Sequence[str]) -> None:
        """Name the values of a part: the first after the part, the others after the arguments that take them."""
        for ref, label in zip(refs, labels, strict=True):
            value = name if ref == refs[0] else f"{name}+{label}"
            if value in self._names.values():
                value = f"{name}+{self._block_name(ref[1])}.{label}"
            self._names[ref] = value

    def _block(self, number: int) -> BlockPlan:
        call, refs, labels = self._calls[number], self._refs[number], self._labels[number]
        written = self._written[number]
        if not written:
            raise SpaceError(_why_unused(call, labels))
        sources = [refs[labels.index(role)] for ref in written if (role := self._roles.get(ref[2])) in labels]
        first = list(dict.fromkeys(ref for ref in sources if ref))
        if not first and len(written) == 1:
            first = [ref for ref in refs if ref][:1]
        taken, given = ([(f.sizes, f.dtype) for f in map(self._form_of, refs)] for refs in (first, written))
        can_skip = taken == given  # who reads a value lays it out
        reads = list(dict.fromkeys([*(first if can_skip else ()), *(ref for ref in refs if ref)]))
        if not reads:
            raise SpaceError(f"the block '{call.path}' takes no tensor")
        takes: list[Leaf] = [
            Const(item) if ref is None else Arg(reads.index(ref), self._form_of(ref), leaf in call.changes)
            for leaf, (item, ref) in enumerate(zip(call.takes, refs, strict=True))
        ]
        return BlockPlan(
            self._block_name(number),
            tuple(self._names[ref] for ref in reads),
            tuple(self._names[ref] for ref in written),
            call.path,
            BlockCalled(
                ArgTree(tuple(takes), call.takes_tree),
                self._gives(number, written),
                modes=(self._recordings[0].calls[number].modes, call.modes),
                has_gradients=call.has_gradients or any(item.requires_grad for item in tensors_in(call.gives)),
            ),
            can_skip,
        )

    def _gives(self, number: int, values: Sequence[Ref], changed: Collection[int] = frozenset()) -> ArgTree:
        """The outputs of a block, of which a fragment reads `values`; those in `changed` storages are copied."""
        leaves: list[Leaf] = []
        call = self._calls[number]
        for leaf, (one, other) in enumerate(zip(self._recordings[0].calls[number].gives, call.gives, strict=True)):
            ref = ("output", number, leaf)
            if leaf in call.aliases:
                leaves.append(Alias(call.aliases[leaf]))
            elif not isinstance(one, Tensor):
                leaves.append(Const(one))
            elif ref in values:
                leaves.append(Arg(values.index(ref), self._form_of(ref), storage_of(other) in changed))
            else:
                leaves.append(Unused(_form(f"the block '{call.path}'", one, other)))
        if not call.shown:
            return ArgTree(tuple(leaves), call.gives_tree)
        tree = treespec_tuple([call.gives_tree, *(tree for _, tree in call.shown)])
        return ArgTree(tuple(leaves), tree, tuple(path for path, _ in call.shown))

    def _fragment(self, draft: FragmentDraft) -> FragmentPlan:
        evaluation, training = draft.needs
        storages = evaluation.storages | training.storages
        inputs = [
            ("input", name)
            for name, *items in zip(self._inputs, *(one.argument_leaves for one in self._recordings), strict=True)
            if name is not None and any(storage_of(item) in storages for item in items)
        ]
        outputs = sorted(("output", *pair) for pair in evaluation.outputs | training.outputs)
        # a part that is made of weights alone must know the number of samples
        anything = ("input", next(iter(self._input_forms)))
        reads: list[Ref] = [*inputs, *outputs, *dict.fromkeys(draft.inherited.values())] or [anything]
        runs = zip(self._recordings, draft.needs, strict=True)
        changed = {s for recording, needs in runs for index in needs.events for s in recording.events[index].changes}
        arguments: list[Leaf] = []
        for name, item in zip(self._inputs, self._recordings[1].argument_leaves, strict=True):
            ref: Ref = ("input", name)
            if name is None:
                arguments.append(Const(item))
            elif ref in reads:
                arguments.append(Arg(reads.index(ref), self._form_of(ref), storage_of(item) in changed))
            else:
                arguments.append(Unused(self._form_of(ref)))
        used = self._used(draft)
        others = self._others(used, {key: reads.index(ref) for key, ref in draft.inherited.items()})
        calls = {}
        for number, call in enumerate(self._calls):
            leaves = tuple(
                Const(item) if mark is None else Alias(0) for item, mark in zip(call.takes, call.marks, strict=True)
            )
            calls[call.key] = ArgTree(leaves, call.takes_tree), self._gives(number, reads, changed)
        wanted: dict[Key, dict[int, Form]] = {}
        for ref in draft.refs:
            wanted.setdefault(self._recordings[1].call_of(ref).key, {})[ref[-1]] = self._form_of(ref)
        name = self._fragment_name(draft.index)
        return FragmentPlan(
            name,
            tuple(self._names[ref] for ref in reads),
            tuple(self._names[ref] for ref in draft.refs) or (name,),  # the head makes no values
            ArgTree(tuple(arguments), self._recordings[1].argument_tree),
            calls,
            others,
            wanted,
            self._needed(storages | self._changed(draft), others),
            frozenset(path for path, _ in used),
            frozenset(call.path for call in self._calls if call.is_changed_by_hooks),
        )

    def _used(self, draft: FragmentDraft) -> set[Key]:
        """Calls of modules that must run in a fragment: they compute its values, pass them on, or call its blocks."""
        ends = [ref for ref in draft.refs if ref[0] == "module"] + [("module", *key) for key in draft.inherited]
        used: set[Key] = {key for ref in (*draft.refs, *ends) for key in self._recordings[1].call_of(ref).inside}
        used |= {(ref[1], ref[2]) for ref in ends}
        for recording, needs in zip(self._recordings, draft.needs, strict=True):
            storages = needs.storages.union(*(recording.events[index].writes for index in needs.events))
            refs = [*(("output", *pair) for pair in needs.outputs), *ends]
            storages |= {storage_of(recording.tensor_of(ref)) for ref in refs}
            used |= {key for index in needs.events for key in recording.events[index].inside}
            for call in (call for calls in recording.others.values() for call in calls):
                if any(storage_of(leaf) in storages for leaf in call.gives if isinstance(leaf, Tensor)):
                    used.add(call.key)
        return used

    def _others(self, used: set[Key], values: Mapping[ModuleOutput, int]) -> dict[str, tuple[ArgTree | None, ...]]:
        """The outputs of calls that do not run in a fragment: it does not use them, or an earlier fragment ran them.

        Calls whose outputs have no form run. `values` are the numbers of values that earlier fragments made.
        """
        one, other = (recording.others for recording in self._recordings)
        stopped = {key[:2] for key in values}
        around = {key[0] for call in self._calls for key in call.inside}  # blocks inside are counted where they run
        outputs = {}
        for path, calls in other.items():
            runs = [call.key in used - stopped for call in calls]
            must_run = any(runs) and (path in around or not is_counted(calls))
            if all(runs) or must_run:
                continue
            with contextlib.suppress(ValueError):  # of a form, or as evaluation has another number of calls
                outputs[path] = tuple(
                    None if is_run else self._given_by(x, y, values)
                    for is_run, x, y in zip(runs, one.get(path, []), calls, strict=True)
                )
        return outputs

    def _given_by(self, one: ModuleCall, other: ModuleCall, values: Mapping[ModuleOutput, int]) -> ArgTree:
        """What a call gives that does not run; a ValueError where that has no form."""
        leaves: list[Leaf] = []
        for leaf, (x, y) in enumerate(zip(one.gives, other.gives, strict=True)):
            key = (*other.key, leaf)
            if key in values:
                leaves.append(Arg(values[key], self._form_of(("module", *key))))
            elif isinstance(x, Tensor) is not isinstance(y, Tensor):
                raise ValueError("other outputs")
            elif isinstance(x, Tensor):
                leaves.append(Unused(Form.of(x, y)))
            else:
                leaves.append(Const(x if isinstance(x, bool | int | float | str) else None))
        return ArgTree(tuple(leaves), other.gives_tree)

    def _changed(self, draft: FragmentDraft) -> set[int]:
        """Buffers that modules of a fragment change though nothing reads them, such as BatchNorm's count."""
        storages: set[int] = set()
        for recording, needs in zip(self._recordings, draft.needs, strict=True):
            running = {recording.events[index].inside for index in needs.events}
            changes = [event.changes for event in recording.events if event.inside in running]
            storages |= recording.names.keys() & frozenset[int]().union(*changes)
        return storages

    def _needed(self, storages: Collection[int], others: Mapping[str, tuple[ArgTree | None, ...]]) -> tuple[str, ...]:
        gone = tuple(f"{path}." for path, calls in others.items() if None not in calls)
        needed = []
        for storage, names in self._recordings[1].names.items():
            if storage in storages:
                needed += [name for name in names if not name.startswith(gone)] or names
        return tuple(needed)


def _why_unused(call: BlockCall, labels: Sequence[str]) -> str:
    if call.aliases:
        return f"the block '{call.path}' gives back what it takes, and does nothing; leave it out of blocks"
    if call.changes and not tensors_in(call.gives):
        label = labels[min(call.changes)]
        return (
            f"the block '{call.path}' changes '{label}' in place and does not return it; let it return what it makes, "
            "and let the model use that"
        )
    return f"nothing uses what the block '{call.path}' gives; leave it out of blocks"


def _argument_names(model: nn.Module, call: BlockCall) -> list[str]:
    """Names of the arguments of a block, by leaf."""
    tree = tree_unflatten(list(range(len(call.takes))), call.takes_tree)
    positional = list(inspect.signature(model.get_submodule(call.path).forward).parameters)
    labels = [""] * len(call.takes)
    for path, leaf in tree_flatten_with_path(tree)[0]:
        keys: list[Any] = [getattr(key, "idx", getattr(key, "key", key)) for key in path]
        is_named, first, *rest = keys
        name = first if is_named else positional[first] if first < len(positional) else str(first)
        labels[leaf] = re.sub(r"[^\w.+-]", "_", ".".join(map(str, (name, *rest))))
    return labels


def _refuse_other_calls(recordings: tuple[Recording, Recording], labels: Sequence[Sequence[str]]) -> None:
    """Both recordings must call the same blocks alike: what is no tensor is the same in both, and decides nothing."""
    for recording in recordings:
        recording.refuse_random_decisions()
    first, second = ([call.key for call in recording.calls] for recording in recordings)
    if first != second:
        raise SpaceError(
            "in training the model calls other blocks than in evaluation; set what drops blocks at random to 0"
        )
    if not second:
        raise SpaceError(
            "the model's forward calls none of these blocks; are they used, as block(x), not block.forward(x)?"
        )
    idle = [path for path in recordings[1].blocks if path not in {path for path, _ in second}]
    if idle:
        raise SpaceError(f"the model's forward does not call the block '{idle[0]}'; name those that run")
    for one, other, names in zip(recordings[0].calls, recordings[1].calls, labels, strict=True):
        for what, a, b in (("takes", one.takes, other.takes), ("gives", one.gives, other.gives)):
            if [isinstance(x, Tensor) for x in a] != [isinstance(y, Tensor) for y in b]:
                raise SpaceError(
                    f"the block '{one.path}' {what} other things in training than in evaluation, or for other samples"
                )
        for name, x, y in zip(names, one.takes, other.takes, strict=True):
            if not isinstance(x, Tensor) and not is_constant(x, y):
                raise SpaceError(
                    f"the block '{one.path}' takes a {type(x).__name__} as '{name}', which is another one in each "
                    'forward; switch that off (for transformers\' caches: "use_cache": False in the example)'
                )
        for x, y in zip(one.gives, other.gives, strict=True):
            if not isinstance(x, Tensor) and not is_constant(x, y):
                raise SpaceError(
                    f"the block '{one.path}' returns a {type(x).__name__} that is another one for other samples or "
                    "in training; let it return tensors"
                )
    for recording in recordings:
        recording.refuse_decisions()


def _paired(first: Sequence[Mark | None], second: Sequence[Mark | None]) -> list[tuple[Mark, Mark] | None]:
    return [(one, other) if one and other else None for one, other in zip(first, second, strict=True)]


def _form(what: str, one: Tensor, other: Tensor) -> Form:
    try:
        return Form.of(one, other)
    except ValueError as error:
        raise SpaceError(f"{what} has a tensor whose shape depends on more than the batch: {error}") from None
