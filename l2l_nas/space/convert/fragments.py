"""Where a model's work between its blocks is done: in as few fragments as can be, and once.

[Note: computed once] Several fragments may need the same tensor: a feature map that a recurrent block takes in each
round, the stem's output that the head adds. The first fragment that makes it writes it as a value, and the others read
that. A fragment runs the model's own forward, so it can write only what a module gives, and read it only in place of
that module's call. What a forward computes from it by operations of its own is computed in each fragment again; so is
what all samples share, such as a table of positions: as a value it would be copied for each of them.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from l2l_nas.errors import SpaceError
from l2l_nas.space.contents import storage_of
from l2l_nas.space.convert.forms import Form, Ref, is_constant
from l2l_nas.space.convert.recording import Key, ModuleCall, ModuleOutput, Needs, Recording


@dataclass
class FragmentDraft:
    """A fragment in the making."""

    index: int  # how many calls of blocks come before it
    refs: list[Ref]  # what it makes
    needs: tuple[Needs, Needs] = (Needs(), Needs())  # what they are made of, in each recording
    # what modules gave in earlier fragments and this one reads, and the values that these are
    inherited: dict[ModuleOutput, Ref] = field(default_factory=dict)
    run: frozenset[Key] = frozenset()  # modules that it must run although earlier fragments ran them


class Fragments:
    """Which fragment makes what.

    Args:
        refs: what blocks take and no block gives.
        results: the model's output and losses, in each recording.
    """

    def __init__(
        self, recordings: tuple[Recording, Recording], refs: Sequence[Ref], results: Sequence[Sequence[Tensor]]
    ) -> None:
        self._recordings = recordings
        self._results = results
        self._shared = [self._shareable(recording) for recording in recordings]
        self._owners: dict[tuple[int, int], FragmentDraft] = {}
        self._makers: dict[ModuleOutput, tuple[FragmentDraft | None, int]] = {}  # and how many drafts were asked
        self.drafts: list[FragmentDraft] = []  # in order, the head last
        for draft in self._arranged(refs):
            self._find_needs(draft)
            self.drafts.append(draft)
            self._refuse_twice(draft)

    def _arranged(self, refs: Sequence[Ref]) -> list[FragmentDraft]:
        """As few drafts as possible, each as close as possible to the first block that takes what it makes."""
        made = sorted(refs)
        earliest = {ref: max(self._needs(ref, index).earliest for index in (0, 1)) for ref in made}
        indices: list[int] = []
        for ref in made:  # by the block that takes it first, the latest place where it can be made
            if not any(earliest[ref] <= index <= ref[1] for index in indices):
                indices.append(ref[1])
        drafts = {index: FragmentDraft(index, []) for index in sorted(indices)}
        for ref in made:
            drafts[max(index for index in indices if earliest[ref] <= index <= ref[1])].refs.append(ref)
        return [*drafts.values(), FragmentDraft(len(self._recordings[1].calls), [])]

    def _needs(self, ref: Ref, index: int, draft: FragmentDraft | None = None) -> Needs:
        """What a tensor is made of in a recording; for a draft, the walk stops at what earlier drafts make."""
        recording = self._recordings[index]
        tensors, before = self._results[index], len(recording.events)
        if ref[0] != "result":
            call = recording.call_of(ref)
            tensors, before = [recording.tensor_of(ref)], call.end if ref[0] == "module" else call.start
        if draft is None:
            return recording.needs(tensors, before)

        def stop(storage: int, before: int, written: int) -> list[ModuleOutput]:
            for call, leaves in self._shared[index].get(storage, ()):
                if written < call.end <= before and call.key not in draft.run:
                    outputs = [(*call.key, leaf) for leaf in leaves]
                    if all(self._maker(one, draft.index) for one in outputs):
                        return outputs
            return []

        return recording.needs(tensors, before, stop)

    def _find_needs(self, draft: FragmentDraft) -> None:
        """Find what a draft needs. It reads what earlier drafts made, except from modules that run in it anyway."""
        wanted: list[Ref] = draft.refs or [("result",)]
        while True:
            first, second = (
                functools.reduce(operator.or_, (self._needs(ref, index, draft) for ref in wanted)) for index in (0, 1)
            )
            draft.needs = first, second
            ends = first.ends | second.ends
            run = {key[:2] for key in ends if self._runs(key, draft, 0) or self._runs(key, draft, 1)}
            if not run:
                break
            draft.run |= run
        for key in sorted(ends):
            maker = self._maker(key, draft.index)
            assert maker is not None
            ref = draft.inherited[key] = self._ref_of(key, draft.index)
            if ref not in maker.refs and ref[0] == "module":
                maker.refs.append(ref)

    def _runs(self, output: ModuleOutput, draft: FragmentDraft, index: int) -> bool:
        call = self._recordings[index].others[output[0]][output[1]]
        return any(call.start <= event < call.end for event in draft.needs[index].events)

    def _maker(self, output: ModuleOutput, index: int) -> FragmentDraft | None:
        """The first draft before this one that makes all of a module's output."""
        maker, first = self._makers.get(output, (None, 0))
        for number, draft in enumerate(self.drafts[first:], first):
            if maker is not None or draft.index >= index:
                break
            self._makers[output] = None, number + 1
            if self._runs(output, draft, 1) and all(
                self._needs(("module", *output), r, draft).events <= draft.needs[r].events for r in (0, 1)
            ):
                self._makers[output] = maker, _ = draft, number
        return maker if maker is not None and maker.index < index else None

    def _ref_of(self, output: ModuleOutput, index: int) -> Ref:
        """The value that an output is: what a block takes, where that is the very tensor and not detached from it."""
        path, nth, leaf = output
        for draft in self.drafts:
            for ref in draft.refs if draft.index < index else ():
                if ref[0] == "made" and all(
                    recording.others[path][nth].gives_marks[leaf] == recording.calls[ref[1]].marks[ref[2]]
                    for recording in self._recordings
                ):
                    return ref
        return ("module", *output)

    def _shareable(self, recording: Recording) -> dict[int, list[tuple[ModuleCall, list[int]]]]:
        """By storage, the calls whose outputs in it may become values, the outermost module first."""
        calls_of: dict[int, list[tuple[ModuleCall, list[int]]]] = {}
        around = {key[0] for call in recording.calls for key in call.inside}
        for path, calls in recording.others.items():
            first, second = (one.others.get(path, []) for one in self._recordings)
            if len(first) != len(second) or path in around or not is_counted(calls):
                continue
            for call, one, other in zip(calls, first, second, strict=True):
                leaves_of: dict[int, list[int]] = {}
                for leaf, item in enumerate(call.gives):
                    if isinstance(item, Tensor):
                        leaves_of.setdefault(storage_of(item), []).append(leaf)
                for storage, leaves in leaves_of.items() if _is_known(one, other) else ():
                    if all(self._may_be_value(one, other, leaf) for leaf in leaves):
                        calls_of.setdefault(storage, []).append((call, leaves))
        return {storage: sorted(pairs, key=lambda p: (p[0].start, -p[0].end)) for storage, pairs in calls_of.items()}

    def _may_be_value(self, one: ModuleCall, other: ModuleCall, leaf: int) -> bool:
        evaluation, training = self._recordings
        form = Form.of(one.gives[leaf], other.gives[leaf])
        is_last = evaluation.is_last(one, leaf) and training.is_last(other, leaf)
        # in evaluation a dropout gives what it takes
        return is_last and training.is_own_work(other, leaf) and form.is_plain and form.dim is not None

    def _refuse_twice(self, draft: FragmentDraft) -> None:
        """Refuse two fragments that run the same random operation or change the same buffer: it must run once."""
        for recording, needs in zip(self._recordings, draft.needs, strict=True):
            for index in needs.events:
                event = recording.events[index]
                changed = event.changes & recording.names.keys()
                for what in (*([-index - 1] if event.is_random else ()), *changed):
                    if self._owners.setdefault((id(recording), what), draft) is not draft:
                        raise SpaceError(
                            f"what '{event.where}' computes is used in several places between the blocks, but it may "
                            "run once only: it draws random numbers or changes a buffer; make it a block, too"
                        )


def is_counted(calls: Iterable[ModuleCall]) -> bool:
    """Whether a part that runs one of these calls of a module runs all of them, or stands in for each."""
    return len({call.inside for call in calls}) == 1


def _is_known(one: ModuleCall, other: ModuleCall) -> bool:
    """Whether all outputs of a call have forms, so that others can stand in for them."""
    try:
        for x, y in zip(one.gives, other.gives, strict=True):
            if isinstance(x, Tensor) and isinstance(y, Tensor):
                Form.of(x, y)
            elif not is_constant(x, y):
                return False
    except ValueError:  # of a form, or as there are more outputs in one than in the other
        return False
    return one.gives_tree == other.gives_tree
