"""Ranks that fail, and go on: counted, each part by itself.

    python -m benchmarks ranks [--part failures] [--moments 20] [--seed 0] [--out FILE]

- failures: a rank of a training is killed, stopped, raises, meets NaN or lacks memory, at moments drawn from the seed,
  a part of them within saves. The others end within 60 s, with one line, which names this rank unless it was killed; no
  exit code is 0; and every fourth run (of those in saves, each) is resumed, to the bits of one that was never stopped.
- trials: trials of a search fail on one rank. All other trials are there, with the scores of a search in which none
  fails; the cost is the time from the fault until all ranks have joined anew.
- shared: the same on shared weights; where one rank alone fails, the search ends with one line, and is resumed.
- ends: short trainings, of which each rank returns 0.
- architectures: another architecture at every step, and what a rank holds meanwhile.
- orders: random paths under random delays of the lanes, with other free memory on each rank, compared before each
  exchange.
- refusals: what ranks cannot do is one line, exit code 2, within 10 s.

Ranks are processes forked from one that has imported everything. What becomes of ranks that torchrun starts anew is
in tests/parallel/test_torchrun.py.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.faults import forks, rank_lives
from benchmarks.faults.rank_faults import KINDS, OF_TRIALS, Fault
from benchmarks.faults.rank_lives import SIZE, TRAIN, Found, Life
from benchmarks.options import at_least
from tests.cli.runs import write_pool

_LAST = 0.85  # of all moments: behind them no layer trains
_SAVED = 5  # moments within saves, for each 20 of all
_EVERY = 4  # which run is resumed
_FAILING = (1, 4, 7, 9)  # trials of a search, of 12


class Counting:
    """Lives side by side, each in a folder of its own, and what came of them.

    Args:
        scratch: for the folders.
        asked: the options.
    """

    def __init__(self, scratch: Path, asked: argparse.Namespace) -> None:
        self._scratch, self.asked = scratch, asked
        self._count = 0

    def place(self) -> Path:
        """A folder with the pool."""
        self._count += 1
        place = self._scratch / f"{self._count}"
        place.mkdir()
        write_pool(place)
        return place

    def all(self, lives: list[Callable[[Path], Life]]) -> list[Found]:
        """What all of them found, in order; some run at a time."""
        results: dict[int, Found] = {}
        running: dict[int, tuple[Path, Life]] = {}
        waiting = list(enumerate(lives))
        while waiting or running:
            while waiting and len(running) < self.asked.at_once:
                number, begin = waiting.pop(0)
                place = self.place()
                running[number] = (place, begin(place))
            for number, (place, life) in list(running.items()):
                found = next(life, None)
                if found is not None:
                    results[number] = found
                    del running[number]
                    shutil.rmtree(place, ignore_errors=True)
                    _show(len(results), len(lives), found)
            time.sleep(0.003)
        return [results[number] for number in range(len(lives))]

    def one(self, life: Callable[[Path], Life]) -> Found:
        """What it found."""
        return self.all([life])[0]


def _show(done: int, of: int, found: Found) -> None:
    wrong = found.get("wrong")
    if wrong or done % 10 == 0 or of < 10:
        print(f"{done} of {of} {json.dumps({'fault': found.get('fault'), 'wrong': wrong})[:900]}", flush=True)


def failures(counting: Counting) -> Found:
    """Each kind on each rank."""
    asked, generator = counting.asked, random.Random(f"{counting.asked.seed} failures")
    ways = {False: [*TRAIN, "train.checkpoint_seconds=1000"], True: [*TRAIN, "train.checkpoint_seconds=0"]}
    whole = {in_save: counting.one(partial(rank_lives.whole, words=words)) for in_save, words in ways.items()}
    lives: list[Callable[[Path], Life]] = []
    for kind in asked.kind or KINDS:
        for rank in range(SIZE):
            counts = {way: whole[way]["counts"][rank] for way in ways}
            for number in range(asked.moments + (0 if "nan" in kind else asked.moments * _SAVED // 20)):
                in_save = number >= asked.moments
                most = counts[in_save]["in_saves"] if in_save else int(_LAST * counts[in_save]["exchanges"])
                fault = Fault(kind, rank, generator.randint(1, most), in_save)
                wanted = whole[in_save]["outcome"] if in_save or number % _EVERY == 0 else None
                lives.append(partial(rank_lives.failure, words=ways[in_save], fault=fault, wanted=wanted))
    found = counting.all(lives)
    table = {}
    for kind in asked.kind or KINDS:
        own = [one for one in found if one["fault"]["kind"] == kind]
        others = [
            one["ended_s"][rank] for one in own for rank in one.get("ended_s", {}) if rank != one["fault"]["rank"]
        ]
        table[kind] = {
            "failures": len(own),
            "in_saves": sum(one["fault"]["in_save"] for one in own),
            "others_ended_s": _spread(others),
            "resumed": sum("resumed" in one for one in own),
            "of_these_without_a_save": sum("nothing" in one.get("resumed", "") for one in own),
            "wrong": sum(bool(one["wrong"]) for one in own),
        }
    return {"table": table, "runs": found}


def _spread(numbers: list[float]) -> list[float]:
    return [min(numbers), round(statistics.median(numbers), 2), max(numbers)] if numbers else []


def trials(counting: Counting) -> Found:
    """Searches in which some trials fail on one rank."""
    asked, generator = counting.asked, random.Random(f"{counting.asked.seed} trials")
    whole = counting.one(partial(rank_lives.trials, faults=[], wanted=None))
    assert not whole["wrong"], whole
    lives: list[Callable[[Path], Life]] = []
    for number in range(-(-asked.moments * len(OF_TRIALS) * SIZE // len(_FAILING))):
        faults = []
        for index, trial in enumerate(_FAILING):
            kind, rank = OF_TRIALS[(number + index) % 3], (number + index // 2) % SIZE
            faults.append(Fault(kind, rank, generator.randint(1, whole["forwards"][rank][trial]), trial=trial))
        lives.append(partial(rank_lives.trials, faults=faults, wanted=whole["trials"]))
    found = counting.all(lives)
    happened = Counter(one["fault"] for life in found for one in life.get("happened", []))
    return {
        "searches": len(found),
        "failed_trials": dict(happened),
        "cost_s": _spread([cost for one in found for cost in one.get("cost_s", [])]),
        "wrong": [one for one in found if one["wrong"]],
    }


def shared(counting: Counting) -> Found:
    """The same on shared weights: five of each kind, for 20 moments."""
    generator = random.Random(f"{counting.asked.seed} shared")
    lives: list[Callable[[Path], Life]] = []
    for number in range(-(-counting.asked.moments // 4) * len(OF_TRIALS) * 2):
        fault = Fault(OF_TRIALS[number % 3], generator.randrange(SIZE), generator.randint(1, 60), trial=number % 12)
        lives.append(partial(rank_lives.shared, update=("eager", "exact")[number // 3 % 2], fault=fault))
    found = counting.all(lives)
    ways = Counter(f"{one['update']} {one['fault']['kind']} {('resumed', 'went on')[one['went_on']]}" for one in found)
    return {"searches": len(found), "ways": dict(ways), "wrong": [one for one in found if one["wrong"]]}


def ends(counting: Counting) -> Found:
    """A hundred, for 20 moments."""
    found = counting.all([rank_lives.clean_end] * (5 * counting.asked.moments))
    return {"trainings": len(found), "codes": dict(Counter(str(one["codes"]) for one in found)),
            "wrong": [one for one in found if one["wrong"]]}  # fmt: skip


def architectures(counting: Counting) -> Found:
    """A thousand, for 20 moments."""
    asked = counting.asked
    found = counting.one(partial(rank_lives.counted, name="architectures", count=50 * asked.moments, seed=asked.seed))
    for rank in found["ranks"]:
        pairs = rank.pop("seconds")
        for which, name in enumerate(("time", "processor_time")):
            ratios = [pair["changing"][which] / pair["fixed"][which] for pair in pairs]
            cuts = statistics.quantiles(_medians(ratios, random.Random(0)), n=40)
            found_ratio = [round(one, 3) for one in (statistics.median(ratios), cuts[0], cuts[-1])]
            rank[f"changing_over_fixed_{name}"] = found_ratio  # with the interval of the median
        for name in ("device_bytes", "host_bytes", "groups", "threads", "descriptors"):
            if len({row[name] for row in rank["held"]}) > 1:
                found["wrong"].append(f"{name}: {[row[name] for row in rank['held']]}")
    return found


def _medians(numbers: list[float], generator: random.Random) -> list[float]:
    return [statistics.median(generator.choices(numbers, k=len(numbers))) for _ in range(2000)]


def orders(counting: Counting) -> Found:
    """A thousand, for 20 moments."""
    asked = counting.asked
    found = counting.one(partial(rank_lives.counted, name="orders", count=50 * asked.moments, seed=asked.seed))
    digests = [rank["digests"] for rank in found["ranks"]]
    if len(digests) != SIZE or digests[0] != digests[1]:
        found["wrong"].append(f"other orders: {digests}")
    return found


def refusals(counting: Counting) -> Found:
    """Five of each, for 20 moments."""
    times = -(-counting.asked.moments // 4)
    names = [name for name in rank_lives.REFUSALS for _ in range(times)]
    found = counting.all([partial(rank_lives.refused, name=name) for name in names])
    table = {}
    for name in rank_lives.REFUSALS:
        own = [one for one in found if one["refusal"] == name]
        seconds = _spread([one for each in own for one in each["seconds"]])
        table[name] = {"tried": len(own), "seconds": seconds, "wrong": sum(bool(one["wrong"]) for one in own)}
    return {
        "table": table,
        "lines": sorted({line for one in found for line in one["lines"]}),
        "wrong": [one for one in found if one["wrong"]],
    }


PARTS: dict[str, Callable[[Counting], Found]] = {
    one.__name__: one for one in (failures, trials, shared, ends, architectures, orders, refusals)
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--part", choices=list(PARTS), action="append", help="of it alone; may be said again")
    parser.add_argument("--kind", choices=KINDS, action="append", help="of failures")
    parser.add_argument("--moments", type=at_least(1), default=20, help="of each kind on each rank; the rest as many")
    parser.add_argument("--at-once", type=at_least(1), default=2, help="runs side by side")
    parser.add_argument("--seed", type=at_least(0), default=0)
    parser.add_argument("--out", type=Path)


def _wrong_in(content: Any) -> Iterator[Any]:
    if isinstance(content, dict):
        if isinstance(content.get("wrong"), list):
            yield from content["wrong"]
        for one in content.values():
            yield from _wrong_in(one)
    elif isinstance(content, list):
        for one in content:
            yield from _wrong_in(one)


def main(asked: argparse.Namespace) -> int:
    """0 if all was as it should be."""
    forks.preload()
    found: Found = json.loads(asked.out.read_text()) if asked.out and asked.out.exists() else {}
    is_wrong = False
    for name in asked.part or PARTS:
        began = time.monotonic()
        memory = Path("/dev/shm")
        with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as scratch:
            part = PARTS[name](Counting(Path(scratch), asked))
        found[name] = {"seed": asked.seed, **part, "took_s": round(time.monotonic() - began)}
        wrong = list(_wrong_in(part))
        is_wrong = is_wrong or bool(wrong)
        short = {key: value for key, value in found[name].items() if key != "runs"}
        print(f"{name}: {len(wrong)} wrong {json.dumps(short)[:3000]}", flush=True)
        if asked.out:
            asked.out.write_text(json.dumps(found, indent=1) + "\n")
    return int(is_wrong)
