"""Plays searches on landscapes, at equal steps: the project's race beside what else one would use, without a training.

    python -m benchmarks search_peers --methods race random --budgets 6 --repetitions 10           # a minute
    python -m benchmarks search_peers --peers-python PEERS/bin/python --out FILE.json              # everything

A landscape says what any network of a space would come to after any share of a training, and at its end; how they are
made of real trainings is told in `simulated/landscape.py`, what is charged and compared in `simulated/search.py`. The
landscapes: `gaussian` (draws of the very kind of model that the race has: it favours it) and `trees` (no method's
model), both over the 19.7 million networks of the default space and for three tasks, and `trained` (216 networks of
`small_conv` on Fashion-MNIST, all of them really trained: see `simulated/landscapes.py`). The race is the project's own
code, see `simulated/race.py`; `asha2` and `asha3` are the promoting kind with an eta of 2 and 3, written here; the
others are their own packages.

To compare a change of the race: run this at two commits with the same `--repetitions`. Landscapes, the luck of
trainings, and seeds follow from the repetition, so that figures are paired. With `--out FILE.json`, what is in the file
is not played again.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from benchmarks.options import at_least
from benchmarks.search.simulated.comparison import Found, Place, summary
from benchmarks.search.simulated.landscape import Landscape
from benchmarks.search.simulated.landscapes import LANDSCAPES
from benchmarks.search.simulated.peers import HOW, PEERS, PeerProcess
from benchmarks.search.simulated.race import numbers_for, race
from benchmarks.search.simulated.search import Method, promoting, random_search, searched
from l2l_nas.nas.samplers.base import Genotype
from l2l_nas.nas.study.study import quiet_optuna

_OVER = "race"
# of a landscape, a budget in whole trainings, and a seed, what is returned
Player = Callable[[Landscape, float, int], Genotype]


def _race(landscape: Landscape, budget: float, seed: int) -> Genotype:
    found, ledger = race(landscape, numbers_for(landscape, budget), seed=seed)
    assert ledger.spent <= budget + 0.01, f"a race of {budget} took {ledger.spent}"
    return found


def _own(make: Callable[[Landscape, random.Random], Method]) -> Player:
    return lambda landscape, budget, seed: searched(make(landscape, random.Random(seed)), landscape, budget)[0]


METHODS: dict[str, Player] = {
    "race": _race,
    "random": _own(random_search),
    "asha2": _own(partial(promoting, eta=2, first=1 / 16)),
    "asha3": _own(partial(promoting, eta=3, first=1 / 9)),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    every = [*METHODS, *PEERS]
    parser.add_argument("--methods", nargs="+", choices=every, default=every, metavar="METHOD", help="of %(default)s")
    parser.add_argument("--landscapes", nargs="+", choices=list(LANDSCAPES), default=list(LANDSCAPES))
    parser.add_argument("--budgets", nargs="+", type=at_least(1), default=[3, 6, 12, 25, 50], help="in whole trainings")
    parser.add_argument("--repetitions", type=at_least(1), default=40, help="of each search (40)")
    parser.add_argument("--peers-python", type=Path, help="Python of the environment that has the peers' packages")
    parser.add_argument("--out", type=Path, help="file to write, and to go on with")


def main(options: argparse.Namespace) -> None:
    """Play what is missing, and print it all."""
    quiet_optuna()
    methods = options.methods
    found = Found() if options.out is None else Found.read(options.out)
    players = {name: METHODS[name] for name in methods if name in METHODS}
    wanted = [name for name in methods if name in PEERS]
    process = PeerProcess(options.peers_python) if wanted and options.peers_python else None
    if process is not None:
        found.versions = dict(process.versions)
        players |= {name: partial(_peer, process, name) for name in wanted}
    elif wanted:
        print(f"left out: {', '.join(wanted)}; {HOW}")
    try:
        _play(found, players, options, process)
    finally:
        if process is not None:
            process.close()
    for row in summary(found, _OVER):
        tasks = ", ".join(f"{task} {100 * mean:.2f}" for task, mean in row["test"].items())
        beside = f"; minus {_OVER} {row['mean']}" if row["mean"] else ""
        print(f"{row['landscape']}, {row['budget']:g} trainings, {row['method']}: {tasks}{beside}")


def _play(
    found: Found,
    players: Mapping[str, Player],
    options: argparse.Namespace,
    process: PeerProcess | None,
) -> None:
    """All that is missing, a repetition after the other; the file is written after each."""
    for repetition in range(options.repetitions):
        for name in options.landscapes:
            make, tasks = LANDSCAPES[name]
            for task in tasks:
                landscape = make(task, repetition)
                for budget, (method, player) in itertools.product(options.budgets, players.items()):
                    place = Place(name, float(budget), task)
                    if found.has(place, method, repetition):
                        continue
                    started = _seconds(process)
                    genotype = player(landscape, budget, repetition)
                    seconds = _seconds(process) - started
                    found.add(place, method, repetition, landscape.truth(genotype), seconds=seconds)
        if options.out is not None:
            found.write(options.out)


def _seconds(process: PeerProcess | None) -> float:
    """Processor time, that of the packages among it."""
    return time.process_time() + (process.seconds if process is not None else 0.0)


def _peer(process: PeerProcess, name: str, landscape: Landscape, budget: float, seed: int) -> Genotype:
    return searched(process.method(name, landscape, seed), landscape, budget)[0]
