"""Accuracies of 100 networks on the way, as they were trained for other benches: what landscapes are made of.

`search_chain` trained 100 random networks of the default space twice, and scored them after four shares of the steps
and on the test part. 45 to 60 of the same networks were trained a third time (`race_design_*.json`),
and scored after eleven.
Here each training is brought to the same seven columns: the validation accuracy after `SHARES` of the steps, taken
between its scores along the logarithm of the share, and the test accuracy at the end. The third trainings had a little
fewer or more steps, so their mean is moved to that of the other two. The first score of `search_chain` is after a
tenth; what it was after a twentieth is drawn from a regression on the next two columns that the third trainings give.

Accuracies are taken as minus the logarithm of the error, -log(1 - accuracy), in which networks differ alike.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import RESULTS
from l2l_nas.nas.samplers.base import Floats

TASKS = ("cluttered_digits", "cifar10_5k", "fashion_mnist_6k")
SHARES = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
COLUMNS = len(SHARES) + 1  # and the test part
_LOGS = np.log(SHARES)
# of the steps, after which `search_chain` scored: a trial, and three rounds of eight, four and two
_STAGES = (0.1, 8 / 35, 17 / 35, 1.0)


def bent(accuracy: Floats) -> Floats:
    """Minus the logarithm of the error."""
    found: Floats = -np.log(np.maximum(1 - accuracy, 1e-3))
    return found


def unbent(values: Floats) -> Floats:
    """The other way round."""
    found: Floats = 1 - np.exp(-values)
    return found


@dataclass(frozen=True)
class Measured:
    """Trainings of one task.

    Args:
        task: its name.
        genotypes: candidate names by position.
        curves: of shape [trainings, networks, columns]; NaN where a network was not trained a third time.
    """

    task: str
    genotypes: tuple[tuple[str, ...], ...]
    curves: Floats


def measured(task: str) -> Measured:
    """What lies in `benchmarks/results` of a task, a name of `TASKS`."""
    chain = json.loads((RESULTS / f"search_chain_{task}.json").read_text())
    third = json.loads((RESULTS / f"race_design_{task}.json").read_text())
    genotypes = tuple(tuple(text.split()) for text in chain["architectures"])
    return joined(task, genotypes, _twice(chain), _third(third, genotypes))


def _twice(chain: Mapping[str, Any]) -> Floats:
    """Of shape [2, networks, columns], without the first column."""
    stages = chain["stages"]
    names = ["trial", *(name for name in stages if name.startswith("after ")), "validation"]
    scores, test = np.array([stages[name] for name in names]), np.array(stages["test"])
    found = np.full((*test.shape, COLUMNS), np.nan)
    for training, network in np.ndindex(test.shape):
        found[training, network, 1:-1] = np.interp(_LOGS[1:], np.log(_STAGES), bent(scores[:, training, network]))
    found[:, :, -1] = bent(test)
    return found


def _third(content: Mapping[str, Any], genotypes: tuple[tuple[str, ...], ...]) -> Floats:
    """Of shape [networks, columns], NaN for those that were not trained a third time."""
    places = {genotype: place for place, genotype in enumerate(genotypes)}
    found = np.full((len(genotypes), COLUMNS), np.nan)
    for row in content["rows"]:
        place = places.get(tuple(row["architecture"].split()))
        if place is not None:
            shares = np.log([int(end) / content["steps"] for end in row["looks"]])
            scores = bent(np.array([score["accuracy"] for score in row["looks"].values()]))
            found[place, :-1] = np.interp(_LOGS, shares, scores)
            found[place, -1] = bent(np.array(row["test"]["accuracy"]))
    return found


def joined(task: str, genotypes: tuple[tuple[str, ...], ...], twice: Floats, third: Floats) -> Measured:
    """Three trainings side by side.

    Args:
        twice: without the first column, which is filled here.
        third: its mean is moved to that of the others.
    """
    twice, third = twice.copy(), third.copy()
    known = ~np.isnan(third[:, 0])
    moved = np.nanmean(twice[:, known, 1:], axis=(0, 1)) - third[known, 1:].mean(axis=0)
    third[:, 1:] += moved
    third[:, 0] += moved[0]
    rows = _beside_one(third[known, 1:3])
    factors, *_ = np.linalg.lstsq(rows, third[known, 0], rcond=None)
    deviation = float((third[known, 0] - rows @ factors).std(ddof=3))
    rng = np.random.default_rng(5)
    for training in twice:
        training[:, 0] = _beside_one(training[:, 1:3]) @ factors + deviation * rng.standard_normal(len(training))
    return Measured(task, genotypes, np.concatenate([twice, third[None]]))


def _beside_one(columns: Floats) -> Floats:
    return np.concatenate([np.ones((len(columns), 1)), columns], axis=1)
