from __future__ import annotations

import random

import pytest

from benchmarks.search.simulated.landscapes import LANDSCAPES, TABLE
from benchmarks.search.simulated.search import random_search, searched
from benchmarks.search.simulated.tables import POSITIONS, TableLandscape, fill
from benchmarks.search.standalone import MetricsTable, all_architectures
from l2l_nas.runs.locate import load_problem
from tests.benchmarks.search.ranked import problem


def test_a_landscape_answers_what_was_trained(tmp_path):
    path, trained = tmp_path / "table.json", []
    small = problem()
    fill(small, path, steps=20, tick=lambda: trained.append(1))
    table = MetricsTable.read(path)
    architectures = all_architectures(small)
    assert len(trained) == len(architectures)
    landscape = TableLandscape(table, tuple(position.name for position in small.pool.positions))
    for architecture in architectures:
        (metrics,) = table.rows[architecture]
        assert landscape.score(architecture.choices, 1.0) == metrics["validation accuracy"]
        assert landscape.score(architecture.choices, 0.1) == metrics["accuracy after 2"]
        between = sorted((metrics["accuracy after 2"], metrics["accuracy after 3"]))
        assert between[0] <= landscape.score(architecture.choices, 0.12) <= between[1]
        assert landscape.truth(architecture.choices) == metrics["accuracy"]
    fill(small, path, steps=20, tick=lambda: trained.append(1))
    assert len(trained) == len(architectures), "nothing is trained twice"


def test_every_network_of_the_space_was_trained():
    table = MetricsTable.read(TABLE)
    space = load_problem("small_conv", {}, source="digits", validation_fraction=0.2, test_fraction=0.2)
    assert set(table.rows) == set(all_architectures(space))
    assert tuple(position.name for position in space.pool.positions) == POSITIONS
    make, (task,) = LANDSCAPES["trained"]
    landscape = make(task, 0)
    _, ledger = searched(random_search(landscape, random.Random(0)), landscape, 10_000)
    assert len(ledger.trained) == 216
    assert max(landscape.truth(one) for one in ledger.trained) == pytest.approx(0.749)
