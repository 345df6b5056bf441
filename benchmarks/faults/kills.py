"""`kill -9` at random moments of every command: no finished trial is lost, and the next command goes on by itself.

    python -m benchmarks kills [--kills 500] [--scenario smaller] [--seed 0] [--out FILE]

Each life of a command is killed once to four times, that of a sweep six to eight times, and resumed each time, with the
words that anybody would give; then it is let finish. A file of the user's lies in the folder from the first moment.
Looked at: after each kill, that every trial of the log is in the study; that no resume is refused; at the end, that
trials and weights are whole, that the user's file is, and that nothing of a killed process is left. Commands run in
processes forked from one that has imported everything.

A search of `experiment=smaller` is killed in named phases and in saves, and must find what one finds that nothing
interrupts, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.faults import forks
from benchmarks.faults.scenarios import PATIENCE_S, SAVING, Scenario, scenarios, trials_of
from benchmarks.options import at_least
from tests.cli.runs import events

MINE = "notes.txt"  # of the user's
_ADVICE = "start without resume"  # what the harness follows, as a user would


def lost_trials(place: Path) -> str:
    """What the logs tell of that no study has."""
    for log in place.glob("out/**/log.jsonl"):
        saved = trials_of(log.parent / "study.log")
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


class Killer:
    """Kills, resumes and checks."""

    def __init__(self, base: Path, scratch: Path, generator: random.Random) -> None:
        self.base = base
        self.place = scratch / "life"
        self.generator = generator
        self.seconds: dict[str, float] = {}
        self.kills: Counter[str] = Counter()
        self.early: Counter[str] = Counter()
        self.phases: dict[str, Counter[str]] = {}  # in which kills fell, of commands whose moments are named
        self.lengths: dict[str, dict[str, float]] = {}  # of these phases, in s
        self.started: list[int] = []  # processes of this life

    def _start(self, scenario: Scenario, *, again: bool) -> forks.Process:
        process = forks.command(self.place, *scenario.command(again=again))
        self.started.append(process.number)
        return process

    def _wait(self, process: forks.Process, scenario: Scenario) -> int | None:
        """Until the moment of the next kill; the exit code if the command ends before."""
        length = self.seconds.get(scenario.name, 1.0)
        if not scenario.moments:
            # so early that it can be killed as often as it should be
            return process.wait(self.generator.uniform(0, length / scenario.least))
        moment = scenario.moments[self.kills[scenario.name] % len(scenario.moments)]
        name, is_saving, _ = moment.partition(SAVING)
        folder, part = self.place / "out", self.generator.random()
        before = len(events(folder, "phase"))

        def is_begun() -> bool:
            return name in [event["name"] for event in events(folder, "phase")[before:]]

        code = process.wait(PATIENCE_S, until=is_begun)
        if code is None:
            code = process.wait(part * self.lengths[scenario.name].get(name, 0.0))
        if code is None and is_saving:
            code = process.wait(PATIENCE_S, until=lambda: self._is_stopped_saving(process))
        return code

    def _is_stopped_saving(self, process: forks.Process) -> bool:
        """Whether a file of weights is not whole yet; if so, the process has stopped there."""
        if not self._is_saving():
            return False
        os.kill(process.number, signal.SIGSTOP)
        os.waitid(os.P_PID, process.number, os.WSTOPPED | os.WEXITED | os.WNOWAIT)  # it stops a while after the signal
        if self._is_saving():
            return True
        os.kill(process.number, signal.SIGCONT)  # it was faster
        return False

    def _is_saving(self) -> bool:
        out = self.place / "out"
        folders = [out / "weights", out / "best", *out.glob("sizes/*/best")]
        return any(one.name.endswith(".tmp") for each in folders if each.is_dir() for one in os.scandir(each))

    def _note_phase(self, scenario: Scenario) -> None:
        """Where a kill fell: the last phase that the log names, and whether a file of weights was not whole yet."""
        if scenario.moments:
            begun = ["start", *(event["name"] for event in events(self.place / "out", "phase"))]
            self.phases.setdefault(scenario.name, Counter())[begun[-1] + SAVING * self._is_saving()] += 1

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
            code = self._wait(process, scenario)
            moment = time.monotonic() - process.started
            if code is None:
                process.kill()
                self._note_phase(scenario)
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
            self.lengths[scenario.name] = lengths_of_phases(self.place / "out") if scenario.moments else {}
        target = self.place / "out"
        if mine is not None and mine.read_text() != MINE:
            return "the user's file was changed"
        return lost_trials(self.place) or scenario.check(target) or leftovers(self.place)


def lengths_of_phases(folder: Path) -> dict[str, float]:
    """How long the first phase of each name took in a run, in s."""
    begun = [(event["name"], event["time"]) for event in events(folder, "phase")]
    ends = [*(moment for _, moment in begun[1:]), events(folder, "done")[-1]["time"]]
    found = [(name, end - moment) for (name, moment), end in zip(begun, ends, strict=True)]
    return dict(reversed(found))


def _of_tracker(line: str) -> bool:
    """Whether loky says that it cleans up behind a process that was killed."""
    return "resource_tracker" in line or line.strip() == "warnings.warn("


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
    is_fast = memory.is_dir() and not any(one.moments for one in chosen)  # there no save takes long enough to be hit
    with tempfile.TemporaryDirectory(dir=memory if is_fast else None) as scratch:
        base = Path(scratch, "base")
        base.mkdir()
        for build in dict.fromkeys(one.build for one in chosen):
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
        "by_phase": {name: dict(counts) for name, counts in killer.phases.items()},
        "ended_before_the_kill": dict(killer.early),
        "seconds_of_a_life": {name: round(seconds, 2) for name, seconds in killer.seconds.items()},
        "failures": failures,
        "seconds": round(time.monotonic() - began),
    }
    print(json.dumps({**found, "failures": len(failures)}))
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=2) + "\n")
    return bool(failures)
