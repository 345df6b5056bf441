"""Reads what another search can learn from a run, when it begins; from then on it is kept in the search's own folder.

Everything is read as data, by the readers of folders and studies: nothing that stands in a run's folder is imported.

[Note: earlier tasks of a run] `earlier_tasks.json` in a run's folder has all that its sampler knows from earlier runs,
so that the run goes on as it was when these are gone.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from l2l_nas.arguments import check_path, of_argument
from l2l_nas.errors import SettingError, StorageError, one_line
from l2l_nas.files import read_json, write_atomically
from l2l_nas.nas.earlier_task import EarlierTask
from l2l_nas.nas.memory import EarlierRuns, Learned, Learner, Recipe, scores_of
from l2l_nas.nas.objectives import Goal
from l2l_nas.nas.strategies.default import RANDOM
from l2l_nas.nas.study.journal import readable
from l2l_nas.runs.fields import value_of
from l2l_nas.runs.folder import SWEEP_CONFIG, RunFolder, is_locked
from l2l_nas.runs.groups import shipped as shipped_folder
from l2l_nas.runs.locate import is_builtin
from l2l_nas.runs.saved import SavedRun, name_in
from l2l_nas.runs.settings import SHIPPED, SearchConf
from l2l_nas.training.overlap import HeldOut, RowHashes, chosen_by
from l2l_nas.training.problem import Problem

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
    recipe = _recipe_of(config, folder.config)
    with readable(folder.study):
        scores = tuple(scores_of(content, recipe, metrics, goal))
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


def _recipe_of(config: Mapping[str, Any], path: Path) -> Recipe:
    """How a run trained its networks. Raises StorageError: a number in its settings is none."""
    numbers = []
    for name in ("search.steps_per_trial", "search.finalist_steps"):
        value = value_of(config, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            raise StorageError(f"{path}: damaged ({name} is {value!r}); restore it")
        numbers.append(value or 0)
    is_from_scratch = value_of(config, "search.trial_weights") == "scratch" and name_in(config, "strategy") in _PLAIN
    return Recipe(is_from_scratch, *numbers)


def shipped_runs(pool: str) -> tuple[Path, ...]:
    """Folders of runs that come with a space, in order; none of a user's own."""
    place = shipped_folder("search_spaces") / f"{pool}_runs"
    return tuple(sorted(place.iterdir())) if is_builtin(pool) and place.is_dir() else ()


def learned_by(conf: SearchConf, problem: Problem, goal: Goal, *, is_default: bool) -> Learned | None:
    """What a search knows from earlier runs; None where its settings name none.

    One that goes on knows what it knew when it began; see [Note: earlier tasks of a run].

    Args:
        goal: its first one.
        is_default: whether nobody named what is learned from: then what is of no use is left out, without an error.

    Raises:
        SettingError, StorageError: see `learn`, and `stored_tasks`.
    """
    names, folder = conf.search.learn_from, RunFolder(Path(conf.resume or conf.folder))
    if not names:
        return None
    learner = Learner(
        problem.pool,
        goal,
        metrics=frozenset(problem.measured_task.metrics),
        digests=frozenset({problem.data.digest, problem.data.test_digest} - {""}),
        test=None if problem.data.test is None else HeldOut(problem.data.test),
    )
    goes_on = bool(conf.resume) and folder.config.exists()  # one that was killed before it had settings begins
    if goes_on and (folder.earlier_tasks.exists() or _had_learned(folder)):
        return stored_tasks(folder, learner)
    if goes_on and is_default and folder.is_begun:  # what comes with the space was of no use
        return None
    try:
        own = conf.data.source if is_builtin(conf.space.pool) else ""
        found = learn(names, learner, folder=folder.root, shipped=shipped_runs(conf.space.pool), source=own)
        return replace(found, is_default=is_default)
    except SettingError:  # the space ships no runs, or for other goals
        if not is_default:
            raise
        return None


def _had_learned(folder: RunFolder) -> bool:
    """Whether a run that goes on tells that it began with what earlier runs found."""
    return any(event["event"] == "learned_from" for event in SavedRun(folder).events)


def learn(
    names: Sequence[str], learner: Learner, *, folder: Path, shipped: Sequence[Path] = (), source: str = ""
) -> Learned:
    """Read what `search.learn_from` names.

    Args:
        names: folders of runs, or "shipped", what comes with the space.
        folder: of the search, which it does not learn from.
        shipped: runs that come with its space.
        source: of its data, where the settings name it; else empty.

    Raises:
        SettingError: something that is named is no run, or nothing can be learned from it.
        StorageError: it is damaged.
    """
    found = EarlierRuns(learner)

    def read(root: Path, name: str) -> tuple[EarlierTask, RowHashes | None]:
        return read_earlier_run(root, name, goal=learner.goal, metrics=learner.metrics)

    for name in dict.fromkeys(names):
        root = check_path("search.learn_from", name)
        if name != SHIPPED:
            if root.resolve() == folder.resolve():
                raise SettingError(f"search.learn_from={name}: this is the folder of the run itself; leave it out")
            found.add(root, *read(root, name))
            continue
        if not shipped:
            raise SettingError(f"search.learn_from={SHIPPED}: no runs come with this space; name some, or leave it out")
        for one in shipped:
            found.add_shipped(one, *read(one, one.name), is_own=one.name == Path(source).stem)
    return found.learned


def write_tasks(folder: RunFolder, learned: Learned) -> None:
    """Keep it in the run's folder; see [Note: earlier tasks of a run]. Raises StorageError: it could not be written."""
    tasks = [task.to_json() for task in learned.tasks]
    content = {"tasks": tasks, "notes": list(learned.notes), "is_default": learned.is_default}
    write_atomically(folder.earlier_tasks, json.dumps(content, separators=(",", ":")) + "\n")


def stored_tasks(folder: RunFolder, learner: Learner) -> Learned:
    """What a run knows that goes on, without candidates that have left its pool.

    Raises:
        StorageError: it is missing or damaged.
    """
    path, runs = folder.earlier_tasks, EarlierRuns(learner)
    try:
        content = read_json(path)
        found = [EarlierTask.from_json(one, f"{path}: task {n}") for n, one in enumerate(content["tasks"], start=1)]
        notes, is_default = tuple(one_line(note) for note in content["notes"]), content["is_default"] is True
    except (StorageError, KeyError, TypeError, AttributeError):
        how = "damaged" if path.is_file() else "missing"
        raise StorageError(
            f"{path}: {how}, and this run began with what earlier runs found; restore it from a copy, or start a new "
            "run in another folder"
        ) from None
    # a name is shown on terminals
    kept = (runs.kept(replace(task, name=one_line(task.name))) for task in found)
    return Learned(tuple(task for task in kept if task.scores), notes, is_default)
