"""What a search learns from earlier runs: read when it begins, and from then on kept in its own folder.

[Note: memory of a run] `memory.json` in a run's folder has all that its sampler knows from earlier runs, so that the
run goes on as it was when these are gone. Another search may name that file, or one that somebody made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from l2l_nas.arguments import check_path
from l2l_nas.contents.fields import Fields
from l2l_nas.errors import L2LError, SettingError, StorageError, one_line
from l2l_nas.files import read_json, write_atomically
from l2l_nas.nas.memory import EarlierTask, Memory, Remembered
from l2l_nas.nas.objectives import Goal
from l2l_nas.report.recalled import Recalled
from l2l_nas.report.text import counted
from l2l_nas.runs.earlier_run import EarlierRun, NetworkScore, UnusableRun, read_earlier_run
from l2l_nas.runs.folder import SWEEP_CONFIG, RunFolder
from l2l_nas.runs.locate import is_builtin
from l2l_nas.runs.settings import SearchConf
from l2l_nas.space.pool import LayerPool
from l2l_nas.training.overlap import HeldOut, RowHashes
from l2l_nas.training.problem import Problem

AUTO, SHIPPED = "auto", "shipped"
_Network = TypeVar("_Network", NetworkScore, Remembered)
# scores of the default space on three tasks, written by `python -m benchmarks shipped_memory`
SHIPPED_FILE = Path(__file__).with_name("shipped_memory.json")
_OF_RUNS = ("config.yaml", SWEEP_CONFIG)  # by which a folder is known that holds a run, or several
_MOST_NAMED = 2  # runs that a line names, before it counts them


@dataclass(frozen=True)
class Learner:
    """What is asked of earlier runs by a search that learns from them.

    Args:
        pool: its own.
        goal: its first one.
        metrics: of its task, and whether more is better.
        digests: of its data, and of their test part.
        source: of its data, where the settings name it; else empty.
        folder: its own, which it does not learn from.
        test: its test part, which earlier runs may have chosen by; None: there is none.
    """

    pool: LayerPool
    goal: Goal
    metrics: Mapping[str, bool]
    digests: frozenset[str]
    source: str
    folder: Path
    test: HeldOut | None = None

    @property
    def positions(self) -> tuple[str, ...]:
        """Of its pool, in order."""
        return tuple(position.name for position in self.pool.positions)

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
    """

    memory: Memory
    notes: tuple[str, ...] = ()

    @property
    def recalled(self) -> Recalled:
        """The same for a report."""
        return Recalled.of(self.memory.tasks, self.notes)

    def lines(self) -> Iterator[str]:
        """What to tell of it when the search begins."""
        names = ", ".join(task.name for task in self.memory.tasks)
        yield f"memory: {self.recalled.source}{': ' * bool(names)}{names}"
        yield from (f"memory: {note}" for note in self.notes)


def learned_by(conf: SearchConf, problem: Problem, goal: Goal) -> Learned | None:
    """What a search knows from earlier runs; None where its settings name none.

    One that goes on knows what it knew when it began; see [Note: memory of a run].

    Args:
        goal: its first one.

    Raises:
        SettingError, StorageError: see `learn`, and `stored_memory`.
    """
    text, folder = conf.search.learn_from, RunFolder(Path(conf.resume or conf.folder))
    if not text:
        return None
    learner = Learner(
        problem.pool,
        goal,
        metrics=problem.measured_task.metrics,
        digests=frozenset({problem.data.digest, problem.data.test_digest} - {""}),
        source=conf.data.source if is_builtin(conf.space.pool) else "",
        folder=folder.root,
        test=None if problem.data.test is None else HeldOut(problem.data.test),
    )
    goes_on = bool(conf.resume) and folder.config.exists()  # one that was killed before it had settings begins
    if goes_on and (folder.memory.exists() or folder.is_begun):
        return stored_memory(folder, learner)
    return learn(text, learner)


def learn(text: str, learner: Learner) -> Learned:
    """Read what `search.learn_from` names.

    Args:
        text: names with commas between them: folders of runs; files such as a run's `memory.json`; "auto", all finished
            runs of the same space that lie beside the search's own folder; "shipped", what comes with the program.

    Raises:
        SettingError: something that is named is no run, or nothing can be learned from it.
        StorageError: it is damaged.
    """
    names = [name.strip() for name in text.split(",")]
    if len(names) > 1 and os.path.isdir(text):  # several names may be longer than one can be
        raise SettingError(f"search.learn_from={text}: it has a comma in its name; rename the folder, or link to it")
    if not all(names):
        raise SettingError(f"search.learn_from={text}: a name is empty; write RUN,RUN, auto, shipped or FILE.json")
    tasks = _Tasks(learner)
    for name in names:
        check_path("search.learn_from", name)
    for name in sorted(dict.fromkeys(names), key=AUTO.__eq__):  # last: what is named is not left out by it
        if name == AUTO:
            tasks.add_all_beside()
        elif name == SHIPPED:
            tasks.add_shipped()
        elif Path(name).is_file() or name.endswith(".json"):
            tasks.add_file(Path(name), name)
        else:
            tasks.add_run(Path(name), name)
    memory = tasks.memory()
    own = (
        f"{task.name}: its scores are of this search's own data"
        for task in memory.tasks
        if task.data in learner.digests
    )
    return Learned(memory, (*tasks.warnings, *tasks.notes, *own))


@dataclass
class _Tasks:
    """Earlier tasks, as they are gathered: by the digest of their data, since runs on the same data are one task."""

    learner: Learner
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)  # of earlier runs that chose by the test part's samples
    _runs: dict[str, list[tuple[str, EarlierRun]]] = field(default_factory=dict)
    _files: dict[str, list[EarlierTask]] = field(default_factory=dict)
    _folders: set[Path] = field(default_factory=set)

    def add_run(self, root: Path, name: str) -> None:
        """One that is named. Raises SettingError, StorageError."""
        if root.resolve() == self.learner.folder.resolve():
            raise SettingError(f"search.learn_from={name}: this is the folder of the run itself; leave it out")
        if root.resolve() in self._folders:
            return
        try:
            self._add(root, name, self._read(root))
        except UnusableRun as error:
            raise SettingError(f"search.learn_from={name}: {error}") from None

    def add_all_beside(self) -> None:
        """All that can be learned from, of those in the folder that the search's own is in."""
        own, left = self.learner.folder, dict[str, list[str]]()
        beside = sorted(own.absolute().parent.iterdir()) if own.absolute().parent.is_dir() else []
        found = 0
        for root in beside:
            if not any((root / one).is_file() for one in _OF_RUNS) or root.resolve() in {own.resolve(), *self._folders}:
                continue
            name = str(own.parent / root.name)
            try:
                run = self._read(root, must_be_finished=True)
                if (run.positions, run.candidates) != (self.learner.positions, self.learner.candidates):
                    raise UnusableRun("of another space")
                self._add(root, name, run)
                found += 1
            except UnusableRun as error:
                left.setdefault(error.reason, []).append(root.name)
            except L2LError:  # damaged
                left.setdefault("unreadable", []).append(root.name)
        if not found:
            self.notes.append(f"no finished run of this space lies in {own.parent}")
        if left:
            self.notes.append(f"auto leaves out {_grouped(left)}")

    def add_shipped(self) -> None:
        """What comes with the program, without what it tells of the search's own data: known by digest, name or rows.

        Raises:
            SettingError: nothing of it is of use here.
        """
        asked, content = self.learner, read_json(SHIPPED_FILE)
        memory = Memory.from_json(content, SHIPPED_FILE)
        own = {name for name, digests in content["same_data"].items() if asked.digests & set(digests)}
        own |= {task.name for task in memory.tasks if task.name == Path(asked.source).stem}
        rows = {name: RowHashes.from_json(one) for name, one in content["validation_rows"].items()}
        own |= {name for name, one in rows.items() if one and asked.test and asked.test.overlap(one)}
        self.notes += [f"{SHIPPED} leaves out {name}: this search has the same data" for name in sorted(own)]
        self._add_tasks([task for task in memory.tasks if task.name not in own], SHIPPED)

    def add_file(self, path: Path, name: str) -> None:
        """Tasks of a file. Raises SettingError, StorageError."""
        content, goal = read_json(path), self.learner.goal
        tasks = Memory.from_json(content, path).tasks
        metrics = Fields(Fields(content, path).table("metrics", default={}), f"{path}: metrics")
        if metrics.truth(goal.name, default=goal.maximize) is not goal.maximize:
            raise SettingError(f"search.learn_from={name}: {goal.name} the other way round")
        self._add_tasks(tasks, name)

    def _add_tasks(self, tasks: Sequence[EarlierTask], name: str) -> None:
        kept, goal = self.kept(tasks, name), self.learner.goal.name
        if tasks and not kept:
            has_goal = any(goal in one.values for task in tasks for one in task.networks)
            raise SettingError(f"search.learn_from={name}: {_NOTHING_ALIKE if has_goal else f'no network has {goal}'}")
        for task in kept:
            self._files.setdefault(task.data, []).append(task)

    def kept(self, tasks: Sequence[EarlierTask], name: str) -> tuple[EarlierTask, ...]:
        """Those with networks that have a score of the goal and that this space has."""
        found = []
        for task in tasks:
            scored = [one for one in task.networks if self.learner.goal.name in one.values]
            networks = self._fitting(scored, f"{name}, {task.name}")
            # a name is shown on terminals, and it may be anybody's
            found += [replace(task, name=one_line(task.name) or name, networks=networks)] if networks else []
        return tuple(found)

    def memory(self) -> Memory:
        """All of it; steps become shares of the longest training on the same data."""
        found = []
        for data in dict.fromkeys([*self._runs, *self._files]):
            runs, files = self._runs.get(data, []), self._files.get(data, [])
            whole = max((run.whole_steps for _, run in runs), default=1)
            sources = [[Remembered(one.params, one.steps / whole, one.values) for one in run.scores] for _, run in runs]
            sources += [list(task.networks) for task in files]
            names = [*(name for name, _ in runs), *(task.name for task in files)]
            found.append(EarlierTask(_some(list(dict.fromkeys(names))), data, tuple(_once(sources))))
        return Memory(tuple(found))

    def _read(self, root: Path, *, must_be_finished: bool = False) -> EarlierRun:
        asked = self.learner
        return read_earlier_run(root, goal=asked.goal, metrics=asked.metrics, must_be_finished=must_be_finished)

    def _add(self, root: Path, name: str, run: EarlierRun) -> None:
        scores = self._fitting(run.scores, name)
        if not scores:
            raise UnusableRun(_NOTHING_ALIKE)
        self._compare_rows(name, run.chosen_by)
        self._runs.setdefault(run.data, []).append((name, replace(run, scores=scores)))
        self._folders.add(root.resolve())

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

    def _fitting(self, networks: Sequence[_Network], name: str) -> tuple[_Network, ...]:
        """Those of another space that this one has, by their candidates at its positions with a choice.

        What is ignored is noted: networks with a candidate that this space lacks, and positions.
        """
        every, free = self.learner.every, self.learner.candidates
        there = dict.fromkeys(pair for one in networks for pair in one.params.items())
        lacking = {(p, c) for p, c in there if p in every and c not in every[p]}
        known = [one for one in networks if lacking.isdisjoint(one.params.items())]
        mapped = (replace(one, params={p: c for p, c in one.params.items() if p in free}) for one in known)
        fitting = tuple(one for one in mapped if one.params)
        positions = dict.fromkeys(p for p, _ in there)
        unknown = [p for p in positions if p not in every]
        gone = [f"{p}/{c}" for p, c in there if (p, c) in lacking]
        new = [p for p in free if p not in positions]
        words = []
        if unknown:
            words.append(f"ignored {counted(len(unknown), 'position')} that this space lacks ({_some(unknown)})")
        if gone:
            words.append(f"left out networks with candidates that it lacks ({_some(gone)})")
        if new:
            words.append(f"{counted(len(new), 'position')} here unknown to it ({_some(new)})")
        if fitting and words:
            self.notes.append(one_line(f"{name}: {'; '.join(words)}"))
        return fitting


_NOTHING_ALIKE = "another space: no position has a candidate of the same name there and here"


def _once(sources: Iterable[Sequence[Remembered]]) -> Iterator[Remembered]:
    """What any has, without what one before has too: a copied run, or a memory of it, tells nothing a second time."""
    seen = set[tuple[object, ...]]()
    for networks in sources:
        keys = [(frozenset(one.params.items()), one.share, frozenset(one.values.items())) for one in networks]
        yield from (one for key, one in zip(keys, networks, strict=True) if key not in seen)
        seen.update(keys)


def _some(names: Sequence[str]) -> str:
    """The first of them, and how many there are besides."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _grouped(left: Mapping[str, Sequence[str]]) -> str:
    """Runs by why they are left out: "a and b (unfinished), 4 runs (of another space)"."""
    groups = []
    for reason, names in left.items():
        who = " and ".join(names) if len(names) <= _MOST_NAMED else counted(len(names), "run")
        groups.append(f"{who} ({reason})")
    return ", ".join(groups)


def write_memory(folder: RunFolder, learned: Learned, metrics: Mapping[str, bool]) -> None:
    """Keep it in the run's folder; see [Note: memory of a run].

    Args:
        metrics: of the task, and whether more is better.

    Raises:
        StorageError: it could not be written.
    """
    content = {**learned.memory.to_json(), "notes": list(learned.notes), "metrics": {**metrics}}
    write_atomically(folder.memory, json.dumps(content, separators=(",", ":")) + "\n")


def stored_memory(folder: RunFolder, learner: Learner) -> Learned:
    """What a run knows that goes on, without candidates that have left its pool.

    Raises:
        StorageError: it is missing or damaged.
    """
    path = folder.memory
    try:
        content = read_json(path)
        tasks = Memory.from_json(content, path).tasks
        notes = [one_line(note) for note in content["notes"]]
    except (StorageError, KeyError, TypeError, AttributeError):
        how = "damaged" if path.is_file() else "missing"
        raise StorageError(
            f"{path}: {how}, and this run began with a memory of earlier runs; restore it from a copy, or start a new "
            "run in another folder"
        ) from None
    return Learned(Memory(_Tasks(learner).kept(tasks, str(path))), tuple(notes))
