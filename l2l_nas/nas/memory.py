"""What a search knows from earlier runs of its space: scores of their networks, as its own candidates have them.

[Note: what a score is of] Trials that begin with first weights are scored on weights of their own, after a part of a
whole training or after all of it. Scores on shared weights, on copies of them, or in phases of the user's own say
little of what a network comes to, so of such a run only the finalists count: these were trained by themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from l2l_nas.errors import SettingError, counted, one_line
from l2l_nas.nas.earlier_task import EarlierTask, LearnedFrom, NetworkScore, is_score
from l2l_nas.nas.evaluation.stage_score import by_stage
from l2l_nas.nas.objectives import Goal
from l2l_nas.nas.strategies.finalists import Finalist
from l2l_nas.nas.study.reading import StudyContents
from l2l_nas.space.pool import LayerPool
from l2l_nas.training.overlap import HeldOut, RowHashes

_MOST_NAMED = 2  # names that a line tells, before it counts them


@dataclass(frozen=True)
class Recipe:
    """How a run trained its networks.

    Args:
        is_from_scratch: whether trials were scored on weights of their own; see [Note: what a score is of].
    """

    is_from_scratch: bool
    trial_steps: int
    finalist_steps: int

    @property
    def whole_steps(self) -> int:
        """Of a training to the end: a finalist's, or a trial's where no training is longer."""
        return max(1, self.trial_steps if self.is_from_scratch else 0, self.finalist_steps)


def _free(space: Mapping[str, Any]) -> frozenset[str]:
    """Positions with a choice of their own: what follows another position has none."""
    follows = space.get("follows", {})
    return frozenset(name for name in space["order"] if name not in follows and len(space["candidates"][name]) > 1)


def scores_of(content: StudyContents, recipe: Recipe, metrics: Collection[str], goal: Goal) -> Iterator[NetworkScore]:
    """Of every trial, and of finalists where their trial tells nothing; what has no score of the goal is left out."""
    order, free = content.space["order"], _free(content.space)
    trials = list(_of_trials(content, recipe))
    seen = {(choices, steps) for choices, steps, _ in trials}
    later = [one for one in _of_finalists(content.finalists) if one[:2] not in seen]
    for choices, steps, values in trials + later:
        found = {name: float(value) for name, value in values.items() if name in metrics and is_score(value)}
        if steps > 0 and goal.name in found:
            params = {name: choice for name, choice in zip(order, choices, strict=True) if name in free}
            yield NetworkScore(params, steps, found)


Scores = Iterator[tuple[tuple[str, ...], int, Mapping[str, float]]]


def _of_trials(content: StudyContents, recipe: Recipe) -> Scores:
    if not recipe.is_from_scratch:
        return
    for record in content.records:
        if record.cached:
            continue
        by_steps = {_steps_at(rung): metrics for rung, metrics in record.rungs.items()}
        if record.state.has_score:
            by_steps.setdefault(recipe.trial_steps, {**record.metrics, **record.values})
        for steps, values in by_steps.items():
            yield record.architecture.choices, steps, values


def _of_finalists(finalists: Collection[Finalist]) -> Scores:
    for one in finalists:
        rungs = {_steps_at(rung): metrics for rung, metrics in one.rungs.items()}
        if one.is_trained and one.steps:
            rungs.setdefault(one.steps, one.scores["validation"].values)
        whole = max((int(rung.partition("/")[2]) for rung in one.rungs), default=one.steps)
        for steps, values in by_stage(rungs, whole).items():
            yield one.architecture.choices, steps, values


def _steps_at(rung: str) -> int:
    return int(rung.partition("/")[0])


@dataclass(frozen=True)
class Learner:
    """What is asked of earlier runs by a search that learns from them.

    Args:
        pool: its own.
        goal: its first one.
        metrics: of its task.
        digests: of its data, and of their test part.
        test: its test part, which earlier runs may have chosen by; None: there is none.
    """

    pool: LayerPool
    goal: Goal
    metrics: frozenset[str]
    digests: frozenset[str]
    test: HeldOut | None = None

    @cached_property
    def every(self) -> Mapping[str, frozenset[str]]:
        """Candidates by position."""
        return {one.name: frozenset(c.name for c in one.candidates) for one in self.pool.positions}

    @cached_property
    def candidates(self) -> Mapping[str, frozenset[str]]:
        """By position, of those with a choice."""
        free = {position.name for position in self.pool.free}
        return {name: names for name, names in self.every.items() if name in free and len(names) > 1}


@dataclass(frozen=True)
class Learned:
    """What a search knows when it begins.

    Args:
        notes: what was left out and why, a line each.
        is_default: whether nobody asked for it.
    """

    tasks: tuple[EarlierTask, ...]
    notes: tuple[str, ...] = ()
    is_default: bool = False

    @property
    def summary(self) -> LearnedFrom:
        """The same for a report."""
        networks = sum(task.num_networks for task in self.tasks)
        return LearnedFrom(tuple(task.name for task in self.tasks), networks, self.notes, self.is_default)

    def lines(self) -> Iterator[str]:
        """What to tell of it when the search begins."""
        yield self.summary.line
        yield from (f"search.learn_from: {note}" for note in self.notes)


@dataclass
class EarlierRuns:
    """Collects what earlier runs tell, as tasks by the digest of their data: runs on the same data are one task.

    Attributes:
        notes: what was left out and why, a line each.
        warnings: of earlier runs that chose by the test part's samples.
    """

    learner: Learner
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    _runs: dict[str, dict[Path, EarlierTask]] = field(default_factory=dict)

    def add(self, root: Path, run: EarlierTask, chosen_by: RowHashes | None) -> None:
        """A run, by its folder, and the samples that it chose by. Raises SettingError: nothing in it is alike."""
        self._compare_rows(run.name, chosen_by)
        self._runs.setdefault(run.data, {})[root.resolve()] = self._fitting(run)

    def add_shipped(self, root: Path, run: EarlierTask, chosen_by: RowHashes | None, *, is_own: bool) -> None:
        """One that comes with the space, but for what it tells of the search's own data.

        Args:
            is_own: whether its name says so; so may the digest and the rows of its data.
        """
        asked = self.learner
        if is_own or run.data in asked.digests or (asked.test and chosen_by and asked.test.overlap(chosen_by)):
            self.notes.append(f"{root.name} is left out, as this search has the same data")
        else:
            self._runs.setdefault(run.data, {})[root.resolve()] = self._fitting(run)

    @property
    def learned(self) -> Learned:
        """All of it."""
        tasks, digests = self.tasks(), self.learner.digests
        own = (f"{task.name}: its scores are of this search's own data" for task in tasks if task.data in digests)
        return Learned(tasks, (*self.warnings, *self.notes, *own))

    def tasks(self) -> tuple[EarlierTask, ...]:
        """All of it."""
        found = []
        for data, runs in self._runs.items():
            name = _some([run.name for run in runs.values()])
            whole = max(run.whole_steps for run in runs.values())
            scores = tuple(score for run in runs.values() for score in run.scores)
            found.append(EarlierTask(name, data, whole, scores))
        return tuple(found)

    def kept(self, task: EarlierTask) -> EarlierTask:
        """Without what this space, or its goal, has no use for."""
        scores = (one for one in task.scores if self.learner.goal.name in one.values)
        return replace(task, scores=tuple(self._mapped(scores)))

    def _compare_rows(self, name: str, chosen_by: RowHashes | None) -> None:
        """Note how many of the search's own test samples an earlier run chose by. See [Note: overlap]."""
        if self.learner.test is None:
            return
        if chosen_by is None:
            self.notes.append(f"{name}: it does not tell by which samples it chose; test samples may be among them")
        elif overlap := self.learner.test.overlap(chosen_by):
            self.warnings.append(
                f"warning: {name} chose by {overlap} of this search, whose test score will be too good"
            )

    def _fitting(self, run: EarlierTask) -> EarlierTask:
        """Mapped to this space by names; what is ignored is noted. Raises SettingError: nothing is alike."""
        found = self.kept(run)
        if not found.scores:
            raise SettingError(
                f"search.learn_from={run.name}: another space: no position has a candidate of the same name there and "
                "here"
            )
        every, there = self.learner.every, dict.fromkeys(pair for one in run.scores for pair in one.params.items())
        positions = dict.fromkeys(p for p, _ in there)
        unknown = [p for p in positions if p not in every]
        gone = [f"{p}/{c}" for p, c in there if p in every and c not in every[p]]
        new = [p for p in self.learner.candidates if p not in positions]
        words = []
        if unknown:
            words.append(f"ignored {counted(len(unknown), 'position')} that this space lacks ({_some(unknown)})")
        if gone:
            words.append(f"left out networks with candidates that it lacks ({_some(gone)})")
        if new:
            words.append(f"{counted(len(new), 'position')} here unknown to it ({_some(new)})")
        if words:
            self.notes.append(one_line(f"{run.name}: {'; '.join(words)}"))
        return found

    def _mapped(self, scores: Iterator[NetworkScore]) -> Iterator[NetworkScore]:
        """Those without a candidate that this space lacks, by their candidates at its positions with a choice."""
        every, free = self.learner.every, self.learner.candidates
        for one in scores:
            if all(candidate in every[position] for position, candidate in one.params.items() if position in every):
                params = {p: c for p, c in one.params.items() if p in free}
                if params:
                    yield replace(one, params=params)


def _some(names: Sequence[str]) -> str:
    """The first of them, and how many there are besides."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
