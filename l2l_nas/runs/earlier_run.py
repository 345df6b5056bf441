"""What another search can learn from a run: scores of its networks, each with the steps that it had.

Everything is read as data, by the readers of folders and studies: nothing that stands in a run's folder is imported.

[Note: what a score is of] Trials that begin with first weights are scored on weights of their own, after a part of a
whole training or after all of it. Scores on shared weights, on copies of them, or in phases of the user's own say
little of what a network comes to, so of such a run only the finalists count: these were trained by themselves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l2l_nas.errors import L2LError, StorageError
from l2l_nas.files import read_json
from l2l_nas.nas.evaluation.stage_score import by_stage
from l2l_nas.nas.memory import is_score
from l2l_nas.nas.objectives import Goal
from l2l_nas.nas.strategies.default import RANDOM
from l2l_nas.nas.strategies.finalists import Finalist
from l2l_nas.nas.study.journal import readable
from l2l_nas.nas.study.reading import StudyContents, load_study, study_contents
from l2l_nas.runs.fields import value_of
from l2l_nas.runs.folder import SWEEP_CONFIG, RunFolder, is_locked
from l2l_nas.runs.resume import last_end
from l2l_nas.runs.saved import SavedRun, name_in
from l2l_nas.training.overlap import RowHashes, chosen_by

# strategies whose trials train from first weights, where search.trial_weights says so
_PLAIN = ("default", RANDOM)


class UnusableRun(L2LError):
    """A run that nothing can be learned from.

    Attributes:
        reason: alike for runs that are left out for the same.
        advice: what to do where the run was named; may be empty.
    """

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(f"{reason}; {advice}" if advice else reason)
        self.reason = reason


@dataclass(frozen=True)
class NetworkScore:
    """A network's metrics on the validation part after so many steps."""

    params: Mapping[str, str]  # candidate by position, of those with a choice
    steps: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class EarlierRun:
    """A run that is read.

    Args:
        data: the digest of its data.
        candidates: by position, of those with a choice.
        positions: of all, in order.
        whole_steps: of a training to the end.
        scores: of trials and finalists.
        chosen_by: its validation samples; None: its result does not tell.
    """

    data: str
    candidates: Mapping[str, frozenset[str]]
    positions: tuple[str, ...]
    whole_steps: int
    scores: tuple[NetworkScore, ...]
    chosen_by: RowHashes | None = None


def read_earlier_run(root: Path, *, goal: Goal, metrics: Collection[str], must_be_finished: bool) -> EarlierRun:
    """Read a run's folder.

    Args:
        goal: of the search that learns from it, which the run must have had as well.
        metrics: that are read besides.
        must_be_finished: whether a run that was stopped or killed is refused.

    Raises:
        UnusableRun: nothing can be learned from it.
        StorageError: something in it is missing or damaged.
    """
    folder = RunFolder(root)
    if not root.is_dir():
        raise UnusableRun("no such folder")
    saved = SavedRun(folder)
    if not folder.config.exists():
        runs = sorted(one for one in root.iterdir() if RunFolder(one).config.is_file())
        if not runs:
            raise UnusableRun("no run")
        noun = "a sweep" if (root / SWEEP_CONFIG).exists() else "a folder of runs"
        raise UnusableRun(noun, f"name them, such as {runs[0]}, or start the new run in it with search.learn_from=auto")
    config = saved.config
    if saved.command != "search":
        raise UnusableRun(f"a {saved.noun}, no search")
    if is_locked(root):
        raise UnusableRun("still at work", "wait for it, or leave it out")
    if must_be_finished and last_end(folder).get("event") != "done":
        raise UnusableRun("unfinished")
    _refuse_other_goal(goal, config)
    if not folder.study.exists():  # killed before its first trial, or lost
        raise UnusableRun("without a study")
    content = study_contents(load_study(folder.study), folder.study)
    if goal not in content.goals:  # of another direction
        raise UnusableRun(f"{goal.name} the other way round")
    recipe = _Recipe.of(config, folder.config)
    with readable(folder.study):
        scores = tuple(_scores(content, recipe, {*metrics, goal.name}, goal))
    if not scores:
        raise UnusableRun(
            "without a score" if recipe.is_cold else "scored on shared weights, without a network trained by itself"
        )
    return EarlierRun(
        content.data,
        _choices(content.space),
        tuple(content.space["order"]),
        max(recipe.whole_steps, *(one.steps for one in scores)),
        scores,
        _chosen_by(folder),
    )


def _chosen_by(folder: RunFolder) -> RowHashes | None:
    """The samples that a run chose by, as far as its result is there and tells."""
    with contextlib.suppress(StorageError):  # damaged: scores are in the study
        return chosen_by(read_json(folder.result)) if folder.result.exists() else None
    return None


def _refuse_other_goal(goal: Goal, config: Mapping[str, Any]) -> None:
    names = value_of(config, "objectives.names")
    if isinstance(names, list) and goal.name not in names:
        raise UnusableRun(f"searched for {', '.join(map(str, names))}, not {goal.name}")


@dataclass(frozen=True)
class _Recipe:
    """How a run trained its networks.

    Args:
        is_cold: whether trials were scored on weights of their own; see [Note: what a score is of].
    """

    is_cold: bool
    trial_steps: int
    finalist_steps: int

    @classmethod
    def of(cls, config: Mapping[str, Any], path: Path) -> _Recipe:
        numbers = []
        for name in ("search.steps_per_trial", "search.finalist_steps"):
            value = value_of(config, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise StorageError(f"{path}: damaged ({name} is {value!r}); restore it")
            numbers.append(value or 0)
        is_cold = value_of(config, "search.trial_weights") == "scratch" and name_in(config, "strategy") in _PLAIN
        return cls(is_cold, *numbers)

    @property
    def whole_steps(self) -> int:
        """Of a training to the end: a finalist's, or a trial's where no training is longer."""
        return max(1, self.trial_steps if self.is_cold else 0, self.finalist_steps)


def _choices(space: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Candidates by position, of those with a choice of its own: what follows another position has none."""
    free = [name for name in space["order"] if name not in space.get("follows", {})]
    return {name: frozenset(space["candidates"][name]) for name in free if len(space["candidates"][name]) > 1}


def _scores(content: StudyContents, recipe: _Recipe, metrics: Collection[str], goal: Goal) -> Iterator[NetworkScore]:
    """Of every network once after each number of steps; what has no score of the goal is left out."""
    order, free = content.space["order"], _choices(content.space)
    seen: set[tuple[object, int]] = set()
    for choices, steps, values in [*_of_trials(content, recipe), *_of_finalists(content.finalists)]:
        found = {name: float(value) for name, value in values.items() if name in metrics and is_score(value)}
        if steps > 0 and goal.name in found and (choices, steps) not in seen:
            seen.add((choices, steps))
            params = {name: choice for name, choice in zip(order, choices, strict=True) if name in free}
            yield NetworkScore(params, steps, found)


Scores = Iterator[tuple[tuple[str, ...], int, Mapping[str, float]]]


def _of_trials(content: StudyContents, recipe: _Recipe) -> Scores:
    if not recipe.is_cold:
        return
    for record in content.records:
        if record.cached:
            continue
        choices = record.architecture.choices
        for rung, metrics in record.rungs.items():
            yield choices, _steps_at(rung), metrics
        if record.state.has_score:
            yield choices, recipe.trial_steps, {**record.metrics, **record.values}


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
