from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from benchmarks.search.standalone import (
    MetricsTable,
    Recipe,
    all_architectures,
    default_steps,
    identity,
    train_alone,
)
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import SettingError, StorageError
from l2l_nas.relay.relay import Relay
from l2l_nas.space.candidate import Candidate, Position, TensorSpec, skip
from l2l_nas.space.constraint import Require
from l2l_nas.space.pool import LayerPool
from l2l_nas.training.data import Data
from l2l_nas.training.problem import Problem
from l2l_nas.training.schedule import Cosine
from tests.benchmarks.search.ranked import problem

RECIPE = Recipe(3, batch=16)


def filled(path, *, seeds=2, architectures=None):
    table = MetricsTable(path, identity(problem(), RECIPE))
    table.fill(problem(), RECIPE, architectures=architectures or all_architectures(problem()), seeds=seeds)
    return table


def test_every_architecture_is_listed_once_and_those_refused_are_not():
    assert len(set(all_architectures(problem()))) == 9
    pool = LayerPool.repeated(
        [Candidate("a", nn.Identity), skip()],
        depth=3,
        inputs=TensorSpec((2,)),
        last=Candidate("head", partial(nn.Linear, 2, 2)),
    )
    shared = Problem(pool, problem().data)
    assert [one.choices.count("a") for one in all_architectures(shared)] == [3, 2, 1, 0]
    wanted = Require("a dense layer", lambda one: "dense" in one.choices)
    assert len(all_architectures(problem(constraints=(wanted,)))) == 5


def test_a_space_that_is_too_large_or_leaves_nothing_to_rank_is_refused():
    large = LayerPool([Position(f"p{i}", [Candidate(c, nn.Identity) for c in "abcd"]) for i in range(7)], inputs=SPEC)
    with pytest.raises(SettingError, match=r"has 16,384; at most 4,096"):
        all_architectures(Problem(large, problem().data))
    small = LayerPool([Position("p", [Candidate(c, nn.Identity) for c in "ab"])], inputs=SPEC)
    with pytest.raises(SettingError, match="at least 3 architectures, the space allows 2"):
        all_architectures(Problem(small, problem().data))


SPEC = TensorSpec((2,))


def test_by_default_six_passes_are_trained_and_at_least_300_steps():
    assert default_steps(problem()) == 300
    many = Data.from_arrays(torch.rand(12800, 2), torch.arange(12800) % 2, validation_fraction=0.25, test_fraction=0.25)
    assert default_steps(Problem(problem().pool, many)) == 600
    with pytest.raises(SettingError, match="at least 1, got 0"):
        Recipe(0)


def test_training_alone_is_what_the_relay_gives_bit_for_bit():
    one = all_architectures(problem())[0]
    found = train_alone(problem(), one, RECIPE, seed=3)
    server = ParamServer(problem().pool, optimizer=RECIPE.optimizer, seed=3)
    trainer = RECIPE.trainer(problem(), Relay(server, device="cpu", seed=3), seed=3)
    trainer.fit(lambda step: one, start=0, steps=RECIPE.steps, schedule=Cosine(RECIPE.learning_rate, RECIPE.steps))
    assert {name: found[name] for name in ("accuracy", "loss")} == trainer.evaluate(one, problem().data.test)
    assert found != train_alone(problem(), one, RECIPE, seed=4)


def test_a_table_of_before_is_still_one_of_these():
    assert identity(problem(), RECIPE)["recipe"].keys() == {
        "steps", "batch", "learning_rate", "weight_decay", "optimizer",
    }  # fmt: skip
    assert identity(problem(), replace(RECIPE, interim=(1,)))["recipe"]["looks"] == [1]


def test_looks_on_the_way_change_nothing_of_the_end():
    one = all_architectures(problem())[0]
    recipe = Recipe(6, batch=16)
    plain = train_alone(problem(), one, recipe, seed=3)
    found = train_alone(problem(), one, replace(recipe, interim=(2, 5)), seed=3)
    assert found.items() > plain.items()
    more = {"accuracy after 2", "loss after 2", "accuracy after 5", "loss after 5"}
    assert found.keys() - plain.keys() == more
    assert found["loss after 2"] != found["loss after 5"] != found["validation loss"]


def test_a_table_is_read_as_it_was_written(tmp_path):
    table = filled(tmp_path / "table.json")
    again = MetricsTable.read(tmp_path / "table.json")
    assert again.rows == table.rows
    assert again.made_of == identity(problem(), RECIPE)
    assert again.seconds == pytest.approx(table.seconds, abs=0.1)
    assert {"accuracy", "loss", "validation accuracy", "validation loss"} == again.rows[
        all_architectures(problem())[0]
    ][1].keys()


def test_an_interrupted_table_goes_on_and_ends_as_if_nothing_had_been(tmp_path):
    whole = filled(tmp_path / "whole.json")
    cut = MetricsTable(tmp_path / "cut.json", identity(problem(), RECIPE))
    left = iter(range(7))

    def interrupt():
        if next(left) == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut.fill(problem(), RECIPE, architectures=all_architectures(problem()), seeds=2, tick=interrupt)
    found = MetricsTable.read(tmp_path / "cut.json")
    assert len(found.rows) == 7
    trained = []
    found.fill(problem(), RECIPE, architectures=all_architectures(problem()), seeds=2, tick=lambda: trained.append(1))
    assert len(trained) == 2 * 9 - 7
    assert MetricsTable.read(tmp_path / "cut.json").rows == whole.rows


def test_all_of_one_seed_come_before_the_next(tmp_path):
    architectures = all_architectures(problem())
    table = filled(tmp_path / "table.json", seeds=1)
    assert not table.missing(architectures, 1)
    assert table.missing(architectures, 3) == [(one, seed) for seed in (1, 2) for one in architectures]


@pytest.mark.parametrize(
    ("other", "recipe", "says"),
    [
        (problem(), Recipe(4, batch=16), "recipe"),
        (problem(), Recipe(3, batch=16, weight_decay=0.0), "recipe"),
        (problem(5), RECIPE, "space"),
        (problem(act=nn.ReLU), RECIPE, "space"),
        (problem(seed=1), RECIPE, "data"),
        (problem(5, seed=1), RECIPE, "space and data"),
        (problem(), RECIPE, ""),
    ],
)
def test_a_table_knows_what_it_was_made_of(tmp_path, other, recipe, says):
    table = filled(tmp_path / "table.json", architectures=all_architectures(problem())[:1])
    assert MetricsTable.read(table.path).unlike(identity(other, recipe)) == says


def test_a_table_with_more_looks_serves_and_goes_on_as_it_began(tmp_path):
    architectures, more = all_architectures(problem())[:2], replace(RECIPE, interim=(1, 2))
    table = MetricsTable(tmp_path / "table.json", identity(problem(), more))
    table.fill(problem(), more, architectures=architectures[:1], seeds=1)
    for fewer in (RECIPE, replace(RECIPE, interim=(2,))):
        assert not MetricsTable.read(table.path).unlike(identity(problem(), fewer))
    for other in (replace(more, interim=(1, 2, 3)), replace(more, steps=4)):
        assert MetricsTable.read(table.path).unlike(identity(problem(), other)) == "recipe"
    table.fill(problem(), RECIPE, architectures=architectures, seeds=1)
    first, second = MetricsTable.read(table.path).rows.values()
    assert first[0].keys() == second[0].keys()


def test_samples_of_every_part_decide_the_identity():
    known = identity(problem(), RECIPE)["data"]
    for part in ("training", "validation", "test"):
        other = problem()
        other.data.parts[part].targets[0] += 1
        assert identity(other, RECIPE)["data"] != known


@pytest.mark.parametrize(
    "change",
    [
        {"rows": {"a b": [[1]]}},
        {"rows": {"a b": [["x", "y"]]}},
        {"rows": []},
        {"made_of": {"space": "?"}},
        {"metrics": None},
        {"seconds": "x"},
    ],
    ids=str,
)
def test_a_file_that_is_no_table_is_refused(tmp_path, change):
    path = filled(tmp_path / "table.json", architectures=all_architectures(problem())[:1]).path
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(StorageError, match=r"table\.json: not a table of stand-alone accuracies"):
        MetricsTable.read(path)
    path.write_text("[]")
    with pytest.raises(StorageError, match="not a table"):
        MetricsTable.read(path)
