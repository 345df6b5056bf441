"""Where a model's work between its blocks is done: in as few fragments as can be, and once.

[Note: computed once] Several fragments may need the same tensor: a feature map that a recurrent block takes in each
round, the stem's output that the head adds. The first fragment that makes it writes it as a value, and the others read
that. A fragment runs the model's own forward, so it can write only what a module gives, and read it only in place of
that module's call. What a forward computes from it by operations of its own is computed in each fragment again; so is
what all samples share, such as a table of positions: as a value it would be copied for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from l2l_nas.errors import SpaceError
from l2l_nas.space.contents import storage_of
from l2l_nas.space.convert.events import Given, Key, ModuleCall, Needs, history
from l2l_nas.space.convert.forms import BATCHES, Form, Ref, is_constant
from l2l_nas.space.convert.recording import Recording


@dataclass
class FragmentDraft:
    """A fragment in the making.

    Args:
        place: how many calls of blocks come before it.
        refs: what it makes.
        needs: what they are made of, in each recording.
        given: what modules gave in earlier fragments and this one reads, and the values that these are.
    """

    place: int
    refs: list[Ref]
    needs: list[tuple[Recording, Needs]] = field(default_factory=list)
    given: dict[Given, Ref] = field(default_factory=dict)
    run: frozenset[Key] = frozenset()  # modules that it must run although earlier fragments ran them
    events: dict[int, frozenset[int]] = field(default_factory=dict)  # what it runs, by identity of the recording


class Fragments:
    """Which fragment makes what.

    Args:
        recordings: of `BATCHES`.
        refs: what blocks take and no block gives.
        results: the model's output and losses, in each recording.

    Attributes:
        drafts: by place, the head last.

    Raises:
        SpaceError: something that must run once would run in several.
    """

    def __init__(
        self, recordings: tuple[Recording, Recording], refs: Sequence[Ref], results: Sequence[Sequence[Tensor]]
    ) -> None:
        self._recordings = recordings
        self._results = results
        self._shared = [self._shareable(recording) for recording in recordings]
        self._owners: dict[tuple[int, int], FragmentDraft] = {}
        self._makers: dict[Given, tuple[FragmentDraft | None, int]] = {}  # and how many drafts were asked
        self.drafts: list[FragmentDraft] = []
        for draft in self._placed(refs):
            self._find_needs(draft)
            self.drafts.append(draft)
            self._refuse_twice(draft)

    def _placed(self, refs: Sequence[Ref]) -> list[FragmentDraft]:
        """As few drafts as possible, each as close as possible to the first block that takes what it makes."""
        made = sorted(refs)
        earliest = {ref: max(self._needs(ref, r).earliest for r in self._recordings) for ref in made}
        indices: list[int] = []
        for ref in made:  # by the block that takes it first, the latest place where it can be made
            if not any(earliest[ref] <= index <= ref[1] for index in indices):
                indices.append(ref[1])
        drafts = {index: FragmentDraft(index, []) for index in sorted(indices)}
        for ref in made:
            drafts[max(index for index in indices if earliest[ref] <= index <= ref[1])].refs.append(ref)
        return [*drafts.values(), FragmentDraft(len(self._recordings[1].calls), [])]

    def _needs(self, ref: Ref, recording: Recording, draft: FragmentDraft | None = None) -> Needs:
        """What a tensor is made of; for a draft, the walk stops at what earlier drafts make."""
        tensors: Sequence[object]
        if ref[0] == "given":
            call = recording.others[ref[1]][ref[2]]
            tensors, before = [call.gives[ref[3]]], call.end
        elif ref[0] == "result":
            tensors, before = self._results[self._recordings.index(recording)], len(recording.events)
        else:
            block = recording.calls[ref[1]]
            tensors, before = [block.takes[ref[2]]], block.start
        if draft is None:
            return recording.needs(tensors, before)
        shared = self._shared[self._recordings.index(recording)]

        def stop(storage: int, before: int, written: int) -> list[Given]:
            for call, leaves in shared.get(storage, ()):
                if written < call.end <= before and call.key not in draft.run:
                    outputs = [(*call.key, leaf) for leaf in leaves]
                    if all(self._maker(one, draft.place) for one in outputs):
                        return outputs
            return []

        return recording.needs(tensors, before, stop)

    def _find_needs(self, draft: FragmentDraft) -> None:
        """Find what a draft needs. It reads what earlier drafts made, except from modules that run in it anyway."""
        wanted: list[Ref] = [*draft.refs, *([] if draft.refs else [("result",)])]
        while True:
            draft.needs = [(r, self._needs(ref, r, draft)) for ref in wanted for r in self._recordings]
            for recording in self._recordings:
                events = (needs.events for run_in, needs in draft.needs if run_in is recording)
                draft.events[id(recording)] = frozenset().union(*events)
            given = {key for _, needs in draft.needs for key in needs.given}
            run = {key[:2] for key in given if any(self._runs(key, draft, r) for r in self._recordings)}
            if not run:
                break
            draft.run |= run
        for key in sorted(given):
            maker = self._maker(key, draft.place)
            assert maker is not None
            draft.given[key] = self._ref_of(key, draft.place)
            if draft.given[key] not in maker.refs and draft.given[key][0] == "given":
                maker.refs.append(draft.given[key])

    def _runs(self, output: Given, draft: FragmentDraft, recording: Recording) -> bool:
        call = recording.others[output[0]][output[1]]
        return any(call.start <= index < call.end for index in draft.events[id(recording)])

    def _maker(self, output: Given, index: int) -> FragmentDraft | None:
        """The first draft before this one that makes all of a module's output."""
        maker, first = self._makers.get(output, (None, 0))
        for number, draft in enumerate(self.drafts[first:], first):
            if maker is not None or draft.place >= index:
                break
            self._makers[output] = None, number + 1
            if self._runs(output, draft, self._recordings[1]) and all(
                self._needs(("given", *output), r, draft).events <= draft.events[id(r)] for r in self._recordings
            ):
                self._makers[output] = maker, _ = draft, number
        return maker if maker is not None and maker.place < index else None

    def _ref_of(self, output: Given, index: int) -> Ref:
        """The value that an output is. A block may take the same tensor, which then is the value."""
        for draft in self.drafts:
            for ref in draft.refs if draft.place < index else ():
                if ref[0] == "made" and all(_is_taken(output, ref, recording) for recording in self._recordings):
                    return ref
        return ("given", *output)

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
        form = Form.of(one.gives[leaf], other.gives[leaf], BATCHES)
        is_last = evaluation.is_last(one, leaf) and training.is_last(other, leaf)
        # in evaluation a dropout gives what it takes
        return is_last and training.is_own_work(other, leaf) and form.is_plain and form.dim is not None

    def _refuse_twice(self, draft: FragmentDraft) -> None:
        """Refuse two fragments that run the same random operation or change the same buffer: it must run once."""
        for recording, needs in draft.needs:
            for index in needs.events:
                event = recording.events[index]
                changed = event.changes & recording.names.keys()
                for what in (*([-index - 1] if event.is_random else ()), *changed):
                    if self._owners.setdefault((id(recording), what), draft) is not draft:
                        raise SpaceError(
                            f"what '{event.where}' computes is used in several places between the blocks, but it may "
                            "run once only: it draws random numbers or changes a buffer; make it a block, too"
                        )


def _is_taken(output: Given, made: Ref, recording: Recording) -> bool:
    """Whether a block took the very tensor that a module gave, and not what was detached from it."""
    path, nth, leaf = output
    module, block = recording.others[path][nth], recording.calls[made[1]]
    same_memory = module.marks[leaf] == block.marks[made[2]]
    return same_memory and history(module.gives[leaf]) == block.histories[made[2]]


def is_counted(calls: Iterable[ModuleCall]) -> bool:
    """Whether a part that runs one of these calls of a module runs all of them, or stands in for each."""
    return len({call.inside for call in calls}) == 1


def _is_known(one: ModuleCall, other: ModuleCall) -> bool:
    """Whether all outputs of a call have forms, so that others can stand in for them."""
    if one.gives_tree != other.gives_tree:
        return False
    for x, y in zip(one.gives, other.gives, strict=True):
        if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
            if not is_constant(x, y):
                return False
            continue
        try:
            Form.of(x, y, BATCHES)
        except ValueError:
            return False
    return True
