"""`kill -9` at random moments of every command: no finished trial is lost, and the next command goes on by itself.

    python -m benchmarks kills [--kills 500] [--scenario report] [--seed 0] [--out FILE]

Each life of a command is killed once to four times, that of a sweep six to eight times, and resumed each time, with the
words that anybody would give; then it is let finish. A file of the user's lies in the folder from the first moment.
Looked at: after each kill, that every trial that the study had is in it; that no resume is refused; at the end, that
trials and weights are whole, that the user's file is, and that nothing of a killed process is left. A search of
`experiment=smaller` must find what one finds that nothing interrupts, bit for bit. Commands run in processes forked
from one that has imported everything.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.faults import forks
from benchmarks.faults.scenarios import PATIENCE_S, Scenario, scenarios, trials_of
from benchmarks.options import at_least
from l2l_nas.files import write_json

MINE = "notes.txt"  # of the user's
_ADVICE = "start without resume"  # what the harness follows, as a user would


def lost_trials(place: Path, seen: dict[tuple[str, int], list[str]]) -> str:
    """What studies had before, and have no more.

    Args:
        seen: trials by study and number, as they were read before; what is read now is added.
    """
    for path in place.glob("out/**/study.log"):
        name, saved = str(path.relative_to(place)), trials_of(path)
        for (study, number), choices in seen.items():
            if study == name and saved.get(number) != choices:
                return f"{name}: trial {number} was there, and is lost"
        seen.update({(name, number): choices for number, choices in saved.items()})
    return ""


def leftovers(place: Path) -> str:
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
        seen: dict[tuple[str, int], list[str]] = {}
        while done < wanted:
            process, begun = self._start(scenario, again=begun), True
            # so early that it can be killed as often as it should be
            code = process.wait(self.generator.uniform(0, self.seconds.get(scenario.name, 1.0) / scenario.least))
            moment = time.monotonic() - process.started
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
                if not done:  # the machine is less busy now
                    self.seconds[scenario.name] = time.monotonic() - process.started
                break  # it was done before
            wrong = lost_trials(self.place, seen)
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
        return lost_trials(self.place, seen) or scenario.check(target) or leftovers(self.place)


def _of_tracker(line: str) -> bool:
    """Whether loky says that it cleans up behind a process that was killed."""
    return "resource_tracker" in line or line.strip() == "warnings.warn("


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kills", type=at_least(1), default=500)
    parser.add_argument("--seed", type=at_least(0), default=0)
    parser.add_argument("--scenario", choices=[one.name for one in scenarios()], help="it alone")
    parser.add_argument("--out", type=Path)


def main(asked: argparse.Namespace) -> int:
    """0 if nothing was lost."""
    forks.preload()
    generator = random.Random(asked.seed)
    began = time.monotonic()
    chosen = [one for one in scenarios() if asked.scenario in (None, one.name)]
    failures: list[dict[str, str]] = []
    with tempfile.TemporaryDirectory(dir=forks.FAST) as scratch:
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
        while sum(killer.kills.values()) < asked.kills:
            scenario = generator.choices(chosen, weights=[one.share for one in chosen])[0]
            wrong = killer.live(scenario, generator.randint(scenario.least, scenario.most))
            lives += 1
            failures += [{"scenario": scenario.name, "wrong": wrong}] if wrong else []
            print(f"{sum(killer.kills.values())} kills, {lives} lives: {scenario.name} {wrong}", flush=True)
    found = {
        "kills": sum(killer.kills.values()),
        "lives": lives,
        "seed": asked.seed,
        "by_command": dict(killer.kills),
        "failures": failures,
        "seconds": round(time.monotonic() - began),
    }
    print(json.dumps(found))
    if asked.out:
        write_json(asked.out, found)
    return bool(failures)
