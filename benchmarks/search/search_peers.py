"""Plays searches on landscapes, at equal steps: the project's race beside what else one would use, without a training.

    python -m benchmarks search_peers --methods race,random --budgets 6 --repetitions 10           # a minute
    python -m benchmarks search_peers --peers-python PEERS/bin/python --out FILE.json              # everything

A landscape says what any network of a space would come to after any share of a training, and at its end; how they are
made of real trainings is told in `simulated/landscape.py`, what is charged and compared in `simulated/search.py`. The
landscapes: `gaussian` (draws of the very kind of model that the race has: it favours it) and `trees` (no method's
model), both over the 19.7 million networks of the default space and for three tasks, and `trained` (216 networks of
`small_conv` on Fashion-MNIST, all of them really trained: see `simulated/tables.py`). The race is the project's own
code, see `simulated/race.py`, and `race_memory` is the same with the 100 networks of each of the other two tasks to
learn from; `asha2` and `asha3` are the promoting kind with an eta of 2 and 3, written here; the others are their own
packages.

To compare a change of the race: run this at two commits with the same `--repetitions`, or give `race` a rival in
`METHODS` below. Landscapes, the luck of trainings, and seeds follow from the repetition, so that figures are paired
(`--first` begins at another one). With `--out FILE.json`, what is in the file is not played again, and FILE.png
shows it.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.options import at_least, numbers
from benchmarks.search.simulated.comparison import Found, Place, lines, summary
from benchmarks.search.simulated.landscape import Landscape
from benchmarks.search.simulated.landscapes import LANDSCAPES, TABLE
from benchmarks.search.simulated.peers import HOW, PEERS, PeerProcess
from benchmarks.search.simulated.picture import peers_sheet
from benchmarks.search.simulated.race import numbers_for, race
from benchmarks.search.simulated.search import promoting, random_search, searched
from benchmarks.search.simulated.tables import train
from l2l_nas.errors import SettingError, did_you_mean
from l2l_nas.files import write_atomically
from l2l_nas.nas.samplers.base import Genotype
from l2l_nas.nas.study.study import quiet_optuna
from l2l_nas.report.png import is_matplotlib_installed, png_of

_OVER = "race"
_REMEMBERS = "race_memory"
# of a landscape, a budget in whole trainings, and a seed, what is returned
Player = Callable[[Landscape, float, int], Genotype]


def _race(landscape: Landscape, budget: float, seed: int, *, remembers: bool = False) -> Genotype:
    memory = landscape.memory if remembers else None
    found, ledger = race(landscape, numbers_for(landscape, budget), seed=seed, memory=memory)
    assert ledger.spent <= budget + 0.01, f"a race of {budget} took {ledger.spent}"
    return found


def _random(landscape: Landscape, budget: float, seed: int) -> Genotype:
    return searched(random_search(landscape, random.Random(seed)), landscape, budget)[0]


def _asha(landscape: Landscape, budget: float, seed: int, *, eta: int, first: float) -> Genotype:
    return searched(promoting(landscape, random.Random(seed), eta=eta, first=first), landscape, budget)[0]


METHODS: dict[str, Player] = {
    "race": _race,
    _REMEMBERS: partial(_race, remembers=True),
    "random": _random,
    "asha2": partial(_asha, eta=2, first=1 / 16),
    "asha3": partial(_asha, eta=3, first=1 / 9),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--methods", default=",".join((*METHODS, *PEERS)), help="of: %(default)s")
    parser.add_argument("--landscapes", default=",".join(LANDSCAPES), help="of: %(default)s")
    parser.add_argument("--budgets", type=numbers, default=[3, 6, 12, 25, 50], help="in whole trainings (3,6,12,25,50)")
    parser.add_argument("--repetitions", type=at_least(1), default=40, help="of each search (40)")
    parser.add_argument("--first", type=at_least(0), default=0, help="number of the first repetition (0)")
    parser.add_argument("--peers-python", type=Path, help="Python of the environment that has the peers' packages")
    parser.add_argument("--train", metavar="FASHION", help="train the networks of `trained` that are missing, no more")
    parser.add_argument("--out", type=Path, help="file to write, and to go on with")


def main(options: argparse.Namespace) -> None:
    """Play what is missing, and print it all."""
    if options.train:
        train(options.train, TABLE)
        return
    quiet_optuna()
    landscapes = _known(options.landscapes, LANDSCAPES, "landscape")
    methods = _known(options.methods, (*METHODS, *PEERS), "method")
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
        _play(found, players, landscapes, options, process)
    finally:
        if process is not None:
            process.close()
    rows = summary(found, _OVER)
    print("\n".join(lines(rows, _OVER)))
    if options.out is not None and is_matplotlib_installed():
        write_atomically(options.out.with_suffix(".png"), png_of(peers_sheet(rows, _OVER)))


def _play(
    found: Found,
    players: Mapping[str, Player],
    landscapes: Sequence[str],
    options: argparse.Namespace,
    process: PeerProcess | None,
) -> None:
    """All that is missing, a repetition after the other; the file is written after each."""
    for repetition in range(options.first, options.first + options.repetitions):
        for name in landscapes:
            make, tasks = LANDSCAPES[name]
            for task in tasks:
                landscape = make(task, repetition)
                for budget, (method, player) in itertools.product(options.budgets, players.items()):
                    place = Place(name, float(budget), task)
                    if found.has(place, method, repetition) or (method == _REMEMBERS and landscape.memory is None):
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


def _known(text: str, names: Sequence[str] | Mapping[str, object], what: str) -> list[str]:
    """Names with commas between them.

    Raises:
        SettingError: one that is none.
    """
    found = text.split(",")
    for name in found:
        if name not in names:
            raise SettingError(f"no {what} '{name}'{did_you_mean(name, list(names))}")
    return found
