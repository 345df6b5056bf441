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

from l2l_nas.arguments import of_argument
from l2l_nas.errors import SettingError, StorageError
from l2l_nas.nas.earlier_task import EarlierTask, NetworkScore, is_score
from l2l_nas.nas.evaluation.stage_score import by_stage
from l2l_nas.nas.objectives import Goal
from l2l_nas.nas.strategies.default import RANDOM
from l2l_nas.nas.strategies.finalists import Finalist
from l2l_nas.nas.study.journal import readable
from l2l_nas.nas.study.reading import StudyContents
from l2l_nas.runs.fields import value_of
from l2l_nas.runs.folder import SWEEP_CONFIG, RunFolder, is_locked
from l2l_nas.runs.saved import SavedRun, name_in
from l2l_nas.training.overlap import RowHashes, chosen_by

# strategies whose trials train from first weights, where search.trial_weights says so
_PLAIN = ("default", RANDOM)


def read_earlier_run(
    root: Path, name: str, *, goal: Goal, metrics: Collection[str]
) -> tuple[EarlierTask, RowHashes | None]:
    """Read a run's folder.

    Args:
        name: as `search.learn_from` has it.
        goal: of the search that learns from it, which the run must have had as well.
        metrics: that are read besides.

    Returns:
        What it found, and its validation samples; None in place of these: its result does not tell.

    Raises:
        SettingError: nothing can be learned from it.
        StorageError: something in it is missing or damaged.
    """
    with of_argument(f"search.learn_from={name}"):
        return _read(root, name, goal, {*metrics, goal.name})


def _read(root: Path, name: str, goal: Goal, metrics: Collection[str]) -> tuple[EarlierTask, RowHashes | None]:
    folder = RunFolder(root)
    if not root.is_dir():
        raise SettingError("no such folder")
    saved = SavedRun(folder)
    if not folder.config.exists():
        runs = sorted(one for one in root.iterdir() if RunFolder(one).config.is_file())
        if not runs:
            raise SettingError("no run")
        noun = "a sweep" if (root / SWEEP_CONFIG).exists() else "a folder of runs"
        raise SettingError(f"{noun}; name them, such as {runs[0]}")
    config = saved.config
    if saved.command != "search":
        raise SettingError(f"a {saved.noun}, no search")
    if is_locked(root):
        raise SettingError("still at work; wait for it, or leave it out")
    _refuse_other_goal(goal, config)
    if not folder.study.exists():  # killed before its first trial, or lost
        raise SettingError("without a study")
    content = saved.study
    assert content is not None
    if goal not in content.goals:  # of another direction
        raise SettingError(f"{goal.name} the other way round")
    recipe = _Recipe.of(config, folder.config)
    with readable(folder.study):
        scores = tuple(_scores(content, recipe, metrics, goal))
    if not scores:
        raise SettingError(
            "without a score"
            if recipe.is_from_scratch
            else "scored on shared weights, without a network trained by itself"
        )
    whole = max(recipe.whole_steps, *(one.steps for one in scores))
    return EarlierTask(name, content.data, whole, scores), _chosen_by(saved)


def _chosen_by(saved: SavedRun) -> RowHashes | None:
    """The samples that a run chose by, as far as it has a result that tells."""
    with contextlib.suppress(StorageError):  # none yet: scores are in the study
        return chosen_by(saved.result())
    return None


def _refuse_other_goal(goal: Goal, config: Mapping[str, Any]) -> None:
    names = value_of(config, "objectives.names")
    if isinstance(names, list) and goal.name not in names:
        raise SettingError(f"searched for {', '.join(map(str, names))}, not {goal.name}")


@dataclass(frozen=True)
class _Recipe:
    """How a run trained its networks.

    Args:
        is_from_scratch: whether trials were scored on weights of their own; see [Note: what a score is of].
    """

    is_from_scratch: bool
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
        is_from_scratch = (
            value_of(config, "search.trial_weights") == "scratch" and name_in(config, "strategy") in _PLAIN
        )
        return cls(is_from_scratch, *numbers)

    @property
    def whole_steps(self) -> int:
        """Of a training to the end: a finalist's, or a trial's where no training is longer."""
        return max(1, self.trial_steps if self.is_from_scratch else 0, self.finalist_steps)


def _free(space: Mapping[str, Any]) -> frozenset[str]:
    """Positions with a choice of their own: what follows another position has none."""
    follows = space.get("follows", {})
    return frozenset(name for name in space["order"] if name not in follows and len(space["candidates"][name]) > 1)


def _scores(content: StudyContents, recipe: _Recipe, metrics: Collection[str], goal: Goal) -> Iterator[NetworkScore]:
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


def _of_trials(content: StudyContents, recipe: _Recipe) -> Scores:
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
