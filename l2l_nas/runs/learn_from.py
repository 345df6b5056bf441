"""What a search learns from earlier runs: read when it begins, and from then on kept in its own folder.

[Note: earlier tasks of a run] `earlier_tasks.json` in a run's folder has all that its sampler knows from earlier runs,
so that the run goes on as it was when these are gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from l2l_nas.arguments import check_path
from l2l_nas.errors import SettingError, StorageError, one_line
from l2l_nas.files import read_json, write_atomically
from l2l_nas.nas.earlier_task import EarlierTask, NetworkScore
from l2l_nas.nas.objectives import Goal
from l2l_nas.report.learned_from import LearnedFrom
from l2l_nas.report.text import counted
from l2l_nas.runs.earlier_run import read_earlier_run
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.groups import shipped
from l2l_nas.runs.locate import is_builtin
from l2l_nas.runs.saved import SavedRun
from l2l_nas.runs.settings import SHIPPED, SearchConf
from l2l_nas.space.pool import LayerPool
from l2l_nas.training.overlap import HeldOut, RowHashes
from l2l_nas.training.problem import Problem

_MOST_NAMED = 2  # names that a line tells, before it counts them


@dataclass(frozen=True)
class Learner:
    """What is asked of earlier runs by a search that learns from them.

    Args:
        pool: its own.
        goal: its first one.
        metrics: of its task.
        digests: of its data, and of their test part.
        folder: its own, which it does not learn from.
        test: its test part, which earlier runs may have chosen by; None: there is none.
        shipped: runs that come with its space.
        source: of its data, where the settings name it; else empty.
    """

    pool: LayerPool
    goal: Goal
    metrics: frozenset[str]
    digests: frozenset[str]
    folder: Path
    test: HeldOut | None = None
    shipped: tuple[Path, ...] = ()
    source: str = ""

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


def shipped_runs(pool: str) -> tuple[Path, ...]:
    """Folders of runs that come with a space, in order; none of a user's own."""
    place = shipped("search_spaces") / f"{pool}_runs"
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
        folder=folder.root,
        test=None if problem.data.test is None else HeldOut(problem.data.test),
        shipped=shipped_runs(conf.space.pool),
        source=conf.data.source if is_builtin(conf.space.pool) else "",
    )
    goes_on = bool(conf.resume) and folder.config.exists()  # one that was killed before it had settings begins
    if goes_on and (folder.earlier_tasks.exists() or _had_learned(folder)):
        return stored_tasks(folder, learner)
    if goes_on and is_default and folder.is_begun:  # what comes with the space was of no use
        return None
    try:
        return replace(learn(names, learner), is_default=is_default)
    except SettingError:  # the space ships no runs, or for other goals
        if not is_default:
            raise
        return None


def _had_learned(folder: RunFolder) -> bool:
    """Whether a run that goes on tells that it began with what earlier runs found."""
    return any(event["event"] == "learned_from" for event in SavedRun(folder).events)


def learn(names: Sequence[str], learner: Learner) -> Learned:
    """Read what `search.learn_from` names.

    Args:
        names: folders of runs, or "shipped", what comes with the space.

    Raises:
        SettingError: something that is named is no run, or nothing can be learned from it.
        StorageError: it is damaged.
    """
    reader = _Reader(learner)
    for name in dict.fromkeys(names):
        check_path("search.learn_from", name)
        if name == SHIPPED:
            reader.add_shipped()
        else:
            reader.add(Path(name), name)
    tasks = reader.tasks()
    own = (f"{task.name}: its scores are of this search's own data" for task in tasks if task.data in learner.digests)
    return Learned(tasks, (*reader.warnings, *reader.notes, *own))


@dataclass
class _Reader:
    """Reads earlier runs, as tasks by the digest of their data: runs on the same data are one task."""

    learner: Learner
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)  # of earlier runs that chose by the test part's samples
    _runs: dict[str, dict[Path, EarlierTask]] = field(default_factory=dict)

    def add(self, root: Path, name: str) -> None:
        """One that is named. Raises SettingError, StorageError."""
        if root.resolve() == self.learner.folder.resolve():
            raise SettingError(f"search.learn_from={name}: this is the folder of the run itself; leave it out")
        run, chosen_by = self._read(root, name)
        self._compare_rows(name, chosen_by)
        self._runs.setdefault(run.data, {})[root.resolve()] = self._fitting(run)

    def add_shipped(self) -> None:
        """Those that come with the space, but for what they tell of the search's own data: by digest, name or rows.

        Raises:
            SettingError: there are none, or nothing of them is of use here.
        """
        asked = self.learner
        if not asked.shipped:
            raise SettingError(f"search.learn_from={SHIPPED}: no runs come with this space; name some, or leave it out")
        for root in asked.shipped:
            run, chosen_by = self._read(root, root.name)
            is_own = run.data in asked.digests or root.name == Path(asked.source).stem
            if is_own or (asked.test and chosen_by and asked.test.overlap(chosen_by)):
                self.notes.append(f"{root.name} is left out, as this search has the same data")
            else:
                self._runs.setdefault(run.data, {})[root.resolve()] = self._fitting(run)

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

    def _read(self, root: Path, name: str) -> tuple[EarlierTask, RowHashes | None]:
        return read_earlier_run(root, name, goal=self.learner.goal, metrics=self.learner.metrics)

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
    path, reader = folder.earlier_tasks, _Reader(learner)
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
    kept = (reader.kept(replace(task, name=one_line(task.name))) for task in found)
    return Learned(tuple(task for task in kept if task.scores), notes, is_default)
