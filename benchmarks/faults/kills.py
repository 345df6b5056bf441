"""`kill -9` at random moments of every command: no finished trial is lost, and the next command goes on by itself.

    python -m benchmarks kills [--kills 500] [--seed 0] [--out FILE]

Each life of a command is killed once to four times, that of a sweep six to eight times, and resumed each time, with the
words that anybody would give; then it is let finish. A file of the user's lies in the folder from the first moment.
Looked at: after each kill, that every trial of the log is in the study; that no resume is refused; at the end, that
trials and weights are whole, that the user's file is, and that nothing of a killed process is left. Commands run in
processes forked from one that has imported everything.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults import forks
from benchmarks.options import at_least
from l2l_nas.nas.study.reading import read_study
from tests.cli.runs import events, write_pool

POOL = "space.pool=tiny.py:build"
TINY = (
    "search.trial_weights=shared",
    "search.warmup_steps=8",
    "search.trials=10",
    "search.steps_per_trial=1",
    "search.finalists=1",
    "search.finalist_steps=2",
    "search.checkpoint_seconds=0",
    "export=false",
)
# so long a command may take that is not killed
PATIENCE_S = 600.0
MINE = "notes.txt"  # of the user's
_ADVICE = "start without resume"  # what the harness follows, as a user would


@dataclass(frozen=True)
class Scenario:
    """A command that is killed.

    Args:
        words: without its folder.
        share: how often it is chosen.
        key: names its folder; empty where it writes none.
        resumes: whether a second call is asked to go on.
        least, most: kills of one life.
        check: examines the folder when all is done; says what is wrong.
    """

    name: str
    words: tuple[str, ...]
    share: int
    check: Callable[[Path], str]
    key: str = "folder"
    resumes: bool = True
    least: int = 1
    most: int = 4

    def command(self, *, again: bool) -> tuple[str, ...]:
        """The words of the first call, or of one that goes on."""
        named = [f"{self.key}=out"] if self.key else []
        return (*self.words, *named, *(["resume=out"] if again and self.resumes else []))


def trials_of(path: Path) -> dict[int, list[str]]:
    """Finished trials of a run's study, by number, read from a copy as a reader would see it now."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch, path.name)
        shutil.copy(path, copy)
        _, records = read_study(copy)
        return {record.number: list(record.architecture.choices) for record in records}


def trials_in_database(path: Path) -> dict[int, list[str]]:
    """The same of a study in an SQLite file."""
    with tempfile.TemporaryDirectory() as scratch:
        for part in path.parent.glob(path.name + "*"):
            shutil.copy(part, Path(scratch, part.name))
        copy = Path(scratch, path.name)
        if not copy.exists():
            return {}
        with sqlite3.connect(copy) as base:
            if not base.execute("SELECT name FROM sqlite_master WHERE name = 'trials'").fetchone():
                return {}
            rows = base.execute(
                "SELECT trials.number, value_json FROM trials JOIN trial_user_attributes USING (trial_id) "
                "WHERE key = 'architecture' AND state NOT IN ('RUNNING', 'WAITING')"
            ).fetchall()
        return {int(number): json.loads(text) for number, text in rows}


def lost_trials(place: Path) -> str:
    """What the logs tell of that no study has."""
    for log in place.glob("out/**/log.jsonl"):
        study = log.parent / "study.log"
        saved = trials_of(study) if study.exists() else trials_in_database(place / "shared.db")
        for event in events(log.parent):
            if saved.get(event["number"]) != event["architecture"]:
                return f"{log.parent.name}: trial {event['number']} of the log is not in the study"
    return ""


def leftovers(place: Path) -> str:
    """What a killed process left."""
    odd = ("*.tmp*", "**/*.tmp*", "**/l2l_nas-states-*", "**/pool", "**/*.db-journal")
    found = sorted({str(path.relative_to(place)) for pattern in odd for path in place.glob(pattern)})
    return f"left: {', '.join(found)}" if found else ""


def age(place: Path) -> None:
    """Have what a killed process left appear a minute old: younger folders may be another's that has just begun."""
    for left in place.glob("**/l2l_nas-states-*"):
        os.utime(left, times=(time.time() - 61, time.time() - 61))


def whole_weights(folder: Path) -> str:
    """Whether every file that a manifest names is there, with its checksum, and nothing else is."""
    import hashlib

    from l2l_nas.eps.manifest import Manifest

    manifest = Manifest.read(folder / "manifest.json")
    for entry in manifest.entries.values():
        if hashlib.sha256((folder / entry["file"]).read_bytes()).hexdigest() != entry["sha256"]:
            return f"{folder.name}/{entry['file']} is damaged"
    extra = {path.name for path in folder.glob("*.safetensors")} - manifest.files
    return f"{folder.name} holds {len(extra)} files that no save names" if extra else ""


def check_search(folder: Path) -> str:
    """A finished search."""
    from l2l_nas.runs.saved import load_found

    numbers = [event["number"] for event in events(folder)]
    if len(set(numbers)) != len(numbers):
        return "a trial is in the log twice"
    result = json.loads((folder / "result.json").read_text())
    if result["trials"]["complete"] != 10:
        return f"{result['trials']} trials instead of 10"
    if not (folder / "report.html").exists():
        return "no report.html"
    load_found(str(folder), pool=f"{folder.parent / 'tiny.py'}:build")
    return whole_weights(folder / "weights") or whole_weights(folder / "best")


def check_in_database(folder: Path) -> str:
    """One whose study is in a database."""
    from l2l_nas.runs.saved import load_found

    trials = trials_in_database(folder.parent / "shared.db")
    if len(trials) < 10:
        return f"{len(trials)} trials in the study"
    load_found(str(folder), pool=f"{folder.parent / 'tiny.py'}:build")
    return whole_weights(folder / "weights") or whole_weights(folder / "best")


def check_training(folder: Path) -> str:
    """A finished training."""
    result = json.loads((folder / "result.json").read_text())
    steps = [validation["step"] for validation in result["validations"]]
    if steps != sorted(set(steps)) or steps[-1] != 30:
        return f"validations at the steps {steps}"
    return whole_weights(folder / "weights") or whole_weights(folder / "best")


def check_sweep(folder: Path) -> str:
    """Two finished runs."""
    runs = [path for path in folder.iterdir() if path.is_dir()]
    if len(runs) != 2:  # of a sampled one, a number may be left out: its trial was killed while it was asked for
        return f"runs {sorted(path.name for path in runs)}"
    for run in runs:
        if json.loads((run / "result.json").read_text())["trials"]["complete"] != 10:
            return f"run {run.name} is not finished"
    return next((said for run in runs if (said := whole_weights(run / "weights"))), "")


def check_export(folder: Path) -> str:
    """What its manifest names is there, and nothing else."""
    named = {about["file"] for about in json.loads((folder / "export.json").read_text())["formats"].values()} - {None}
    there = {path.name for path in folder.iterdir()}
    return "" if there == named | {"export.json"} else f"holds {sorted(there)}, the manifest names {sorted(named)}"


def check_page(path: Path) -> str:
    """A whole page."""
    return "" if path.read_text().rstrip().endswith("</html>") else "a page that is not whole"


def scenarios() -> tuple[Scenario, ...]:
    """All commands."""
    search = ("search", POOL, *TINY)
    sweep = ("search", "-m", POOL, *TINY)
    return (
        Scenario("search", search, 10, check_search),
        Scenario("search with states in files", (*search, "relay.storage=file"), 6, check_search),
        Scenario("search with two workers", (*search, "search.workers=2"), 3, check_search),
        Scenario(
            "search with two workers on weights of their own",
            (*search, "search.trial_weights=fork", "search.workers=2"),
            3,
            check_search,
        ),
        Scenario("sweep with two workers", (*sweep, "seed=0,1", "search.workers=2"), 1, check_sweep, least=4, most=8),
        Scenario(
            "search with its study in a database",
            (*search, "search.trial_weights=fork", "search.storage=sqlite:///shared.db"),
            6,
            check_in_database,
        ),
        Scenario(
            "train",
            (
                "train",
                "run=run",
                POOL,
                "train.steps=30",
                "train.validation_steps=4",
                "train.checkpoint_seconds=0",
                "export=false",
            ),
            6,
            check_training,
        ),
        Scenario("sweep of combinations", (*sweep, "seed=0,1"), 4, check_sweep, least=6, most=8),
        Scenario(
            "sampled sweep",
            (*sweep, "hydra/sweeper=l2l", "hydra.sweeper.trials=2", "train.learning_rate=interval(0.001,0.01)"),
            4,
            check_sweep,
            least=6,
            most=8,
        ),
        Scenario(
            "export",
            ("export", "run=run", "space.pool=tiny.py:build", "formats=[state_dict]"),
            4,
            check_export,
            "out",
            resumes=False,
        ),
        Scenario("report", ("report", "run=run"), 3, check_page, "out", resumes=False),
        Scenario(
            "evaluate", ("evaluate", "run=run", "space.pool=tiny.py:build"), 2, lambda path: "", "", resumes=False
        ),
    )


class Killer:
    """Kills, resumes and checks."""

    def __init__(self, base: Path, scratch: Path, generator: random.Random) -> None:
        self.base = base
        self.place = scratch / "life"
        self.generator = generator
        self.seconds: dict[str, float] = {}
        self.kills: Counter[str] = Counter()
        self.early: Counter[str] = Counter()
        self.started: list[int] = []  # processes of this life

    def _start(self, scenario: Scenario, *, again: bool) -> forks.Process:
        process = forks.command(self.place, *scenario.command(again=again))
        self.started.append(process.number)
        return process

    def live(self, scenario: Scenario, wanted: int) -> str:
        """One life: so many kills, then the end; what was wrong."""
        self.started = []
        wrong = self._live(scenario, wanted)
        left = forks.left_of(self.started)
        return wrong or left

    def _live(self, scenario: Scenario, wanted: int) -> str:
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.base, self.place)
        mine = self.place / "out" / MINE if scenario.key == "folder" else None
        if mine is not None:
            mine.parent.mkdir()
            mine.write_text(MINE)
        done, begun = 0, False
        while done < wanted:
            process, begun = self._start(scenario, again=begun), True
            # so early that it can be killed as often as it should be
            moment = self.generator.uniform(0, self.seconds.get(scenario.name, 1.0) / scenario.least)
            code = process.wait(moment)
            if code is None:
                process.kill()
                if "workers" in scenario.name:
                    time.sleep(0.3)  # they end by themselves
                age(self.place)
                done += 1
                self.kills[scenario.name] += 1
                said = [line for line in process.errors.splitlines() if not _of_tracker(line)]
                if said and _ADVICE in said[0]:
                    begun = False  # it was about to end by itself: there is nothing to go on with
                elif said:
                    return f"killed after {moment:.3f} s, it said: {said[0][:400]}"
            elif _ADVICE in process.errors and begun:
                begun = False  # killed before there was anything to go on with
            elif code != 0:
                return f"ended with {code}: {(process.errors or process.output).strip()[-600:]}"
            else:
                self.early[scenario.name] += 1
                if not done:  # the machine is less busy now
                    self.seconds[scenario.name] = time.monotonic() - process.started
                break  # it was done before
            wrong = lost_trials(self.place)
            if wrong:
                return f"killed after {moment:.3f} s: {wrong}"
        process = self._start(scenario, again=begun)
        began = time.monotonic()
        code = process.wait(PATIENCE_S)
        if _ADVICE in process.errors and begun:
            process = self._start(scenario, again=False)
            code = process.wait(PATIENCE_S)
        if code is None:
            process.kill_group()
            process.wait(10)
            return f"no end after {PATIENCE_S:.0f} s"
        if code != 0:
            return f"the last resume ended with {code}: {(process.errors or process.output).strip()[-600:]}"
        if not wanted:
            self.seconds[scenario.name] = time.monotonic() - began
        target = self.place / "out"
        if mine is not None and mine.read_text() != MINE:
            return "the user's file was changed"
        return lost_trials(self.place) or scenario.check(target) or leftovers(self.place)


def _of_tracker(line: str) -> bool:
    """Whether loky says that it cleans up behind a process that was killed."""
    return "resource_tracker" in line or line.strip() == "warnings.warn("


def build(place: Path) -> None:
    """A finished run beside its pool."""
    write_pool(place)
    made = forks.command(place, "search", POOL, *TINY, "folder=run")
    assert made.wait(PATIENCE_S) == 0, made.errors


def _part_of_names(text: str) -> str:
    names = [one.name for one in scenarios()]
    if not any(text in name for name in names):
        raise argparse.ArgumentTypeError(f"invalid choice: no name has '{text}' in it; there are {', '.join(names)}")
    return text


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=at_least(1), default=500)
    parser.add_argument("--seed", type=at_least(0), default=0)
    about = "those alone that have this in their names, such as workers"
    parser.add_argument("--scenario", type=_part_of_names, default="", help=about)
    parser.add_argument("--minutes", type=float, default=600.0, help="it may take")
    parser.add_argument("--out", type=Path)


def main(asked: argparse.Namespace) -> int:
    """0 if nothing was lost."""
    forks.preload()
    generator = random.Random(asked.seed)
    began = time.monotonic()
    chosen = [one for one in scenarios() if asked.scenario in one.name]
    failures: list[dict[str, str]] = []
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as scratch:
        base = Path(scratch, "base")
        base.mkdir()
        build(base)
        killer = Killer(base, Path(scratch), generator)
        lives = 0
        for scenario in chosen:  # how long each takes when it is not killed
            wrong = killer.live(scenario, 0)
            print(f"{scenario.name}: {killer.seconds.get(scenario.name, 0):.1f} s {wrong}", flush=True)
            failures += [{"scenario": scenario.name, "wrong": wrong}] if wrong else []
        while sum(killer.kills.values()) < asked.kills and time.monotonic() - began < 60 * asked.minutes:
            scenario = generator.choices(chosen, weights=[one.share for one in chosen])[0]
            wrong = killer.live(scenario, generator.randint(scenario.least, scenario.most))
            lives += 1
            if wrong:
                failures.append({"scenario": scenario.name, "wrong": wrong})
                print(f"{scenario.name}: {wrong}", flush=True)
            if lives % 2 == 0:
                done = sum(killer.kills.values())
                seconds = time.monotonic() - began
                print(f"{done} kills, {lives} lives, {len(failures)} failures, {seconds:.0f} s", flush=True)
    found = {
        "kills": sum(killer.kills.values()),
        "lives": lives,
        "seed": asked.seed,
        "by_command": dict(killer.kills),
        "ended_before_the_kill": dict(killer.early),
        "seconds_of_a_life": {name: round(seconds, 2) for name, seconds in killer.seconds.items()},
        "failures": failures,
        "seconds": round(time.monotonic() - began),
    }
    print(json.dumps({**found, "failures": len(failures)}))
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=2) + "\n")
    return bool(failures)
