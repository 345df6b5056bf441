from __future__ import annotations

import json

import numpy as np
import pytest

from l2l_nas.bench import chain
from l2l_nas.bench.agreement import FINALISTS
from l2l_nas.bench.standalone import Table, sampled_architectures
from l2l_nas.cli.locate import load_problem
from l2l_nas.cli.schema import SearchSection, TrainConf
from l2l_nas.errors import SettingError
from l2l_nas.search.division import division
from l2l_nas.training.data import Data
from l2l_nas.training.problem import Problem
from tests.bench.ranked import problem, settings
from tests.bench.stacks import Counted


def told_of(place, **told):
    return settings(place, **{"steps": 2, "trials": 7, "architectures": 20, **told})


def test_a_tiny_space_from_end_to_end(tmp_path):
    watch, told = Counted(), told_of(tmp_path)
    chain.check(told)
    result = chain.search_chain(told, watch)
    assert watch.done == watch.total == 9 * 2 * 3 + 2 * (12 + 9 * (2 + 3))
    assert json.loads(json.dumps(result)) == result
    assert np.shape(result["alone"]["validation"]) == np.shape(result["alone"]["test"]) == (9, 2)
    assert {name: np.shape(runs) for name, runs in result["stages"].items()} == dict.fromkeys(
        ("trial", "validation", "test"), (2, 9)
    )
    assert result["steps"] == {"search": 12 + 7 * 2 + 6 * 3, "random_search": 15 * 3, "networks": 15}
    assert [row["stage"] for row in result["chain"]] == [
        "the best of all 9",
        "the best of 7 trials",
        "the best of 6 by trial score",
        "the same, trained from shared weights",
        "chosen by validation",
        "random search, the best of 9",
    ]
    again = Counted()
    assert chain.search_chain(told, again) == result  # which reads the table
    assert again.total == watch.total - 9 * 2 * 3


def test_the_truth_is_the_test_part_and_nothing_is_chosen_by_it(tmp_path):
    for name in ("as_it_is", "turned"):
        (tmp_path / name).mkdir()
    known = chain.search_chain(told_of(tmp_path / "as_it_is", training_steps=20), Counted())
    turned = problem()
    turned.data.parts["test"].targets.neg_().add_(1)
    found = chain.search_chain(told_of(tmp_path / "turned", problem=turned, training_steps=20), Counted())
    for kept in (lambda told: told["stages"]["trial"], lambda told: told["stages"]["validation"]):
        assert kept(found) == kept(known)
    assert found["alone"]["validation"] == known["alone"]["validation"]
    assert np.allclose(found["alone"]["test"], 1 - np.array(known["alone"]["test"]))
    assert np.allclose(found["stages"]["test"], 1 - np.array(known["stages"]["test"]))


def played(trial, *, validation=None, alone=None, trials=64, networks=10):
    """Searches among 100 networks, of which number i is right in i of 100 cases, unless something else is told."""
    truth = np.arange(100) / 100
    alone = np.stack([truth] * 3, axis=1) if alone is None else alone
    stages = {"trial": trial, "validation": truth if validation is None else validation, "test": truth}
    figures = {"validation": alone, "test": alone}
    told = {name: np.asarray(values)[None] for name, values in stages.items()}
    return chain.Played(figures, told, trials=trials, networks=networks, seed=0)


def test_scores_that_tell_the_truth_lose_nothing_and_those_that_tell_nothing_lose_what_chance_does():
    truth = np.arange(100) / 100
    rows = played(truth).rows(1.0)
    assert rows[0]["value"] == 0.99
    assert rows[0]["low"] == rows[0]["high"]
    assert rows[1]["lost"]["value"] == pytest.approx(0.0055, abs=0.002)  # the largest of 64 of 100
    assert [row["lost"]["value"] for row in rows[2:5]] == [0, 0, 0]
    assert rows[5]["value"] == pytest.approx(0.99 - 90 / 11 / 100, abs=0.005)  # the largest of 10
    generator = np.random.default_rng(0)
    chance = [played(generator.permutation(truth)).rows(1.0)[2]["lost"]["value"] for _ in range(12)]
    assert np.mean(chance) == pytest.approx(0.985 - 6 / 7, abs=0.05)  # the largest of 6 instead of 64
    wrong = played(-truth).rows(1.0)
    assert wrong[2]["lost"]["value"] > 0.85
    misled = played(truth, validation=-truth).rows(1.0)
    assert misled[4]["lost"]["value"] == pytest.approx(0.078, abs=0.02)  # the last of six instead of the first
    assert played(truth).ahead()["value"] == pytest.approx(0.99 - 0.0055 - 0.908, abs=0.005)


def test_the_best_of_equal_networks_is_no_better_than_they_are():
    noise = np.random.default_rng(0).normal(0.5, 0.01, size=(100, 3))
    rows = played(np.zeros(100), alone=noise).rows(1.0)
    assert noise.max() > 0.52
    assert all(row["value"] == pytest.approx(0.5, abs=0.015) for row in rows[:3])


def test_where_less_is_better_figures_are_told_as_they_are_and_losses_count_upwards():
    truth = np.arange(100) / 100
    rows = played(truth).rows(-1.0)
    assert rows[0]["value"] == -0.99
    assert rows[1]["lost"]["value"] > 0


def test_it_searches_as_a_search_that_is_told_nothing():
    train, search = TrainConf(), SearchSection()
    assert (train.batch_size, train.learning_rate) == (chain.BATCH, chain.LEARNING_RATE)
    problem = load_problem("digits_conv", {}, source="digits", validation_fraction=0.2, test_fraction=0.2)
    found = division(
        problem.pool, samples=len(problem.data.train), batch_size=train.batch_size,
        steps_per_trial=search.steps_per_trial, finalists=search.finalists, said={},
    )  # fmt: skip
    assert (search.finalist_learning_rate, found.finalist_steps, search.finalists) == (
        chain.FINALIST_LEARNING_RATE,
        chain.FINALIST_STEPS,
        FINALISTS,
    )
    from l2l_nas.bench.benches import BENCHES

    bench = BENCHES["search_chain"].defaults
    assert (bench["warmup_steps"], bench["trials"], bench["steps"]) == (
        found.warmup_steps,
        found.trials,
        search.steps_per_trial,
    )


def test_a_sample_is_of_different_networks_and_all_where_there_are_no_more():
    assert len(set(sampled_architectures(problem(), 5, seed=0))) == 5
    assert sampled_architectures(problem(), 5, seed=0) != sampled_architectures(problem(), 5, seed=1)
    assert len(sampled_architectures(problem(), 50, seed=0)) == 9
    with pytest.raises(SettingError, match="at least 3 architectures, 2 were found"):
        sampled_architectures(problem(), 2, seed=0)


def test_what_cannot_be_measured_is_refused(tmp_path):
    with pytest.raises(SettingError, match="seeds must be at least 2"):
        chain.check(told_of(tmp_path, seeds=1))
    two = Problem(problem().pool, Data(problem().data.train, problem().data.validation))
    with pytest.raises(SettingError, match="networks are measured on a test part"):
        chain.check(told_of(tmp_path, problem=two))


def test_a_table_holds_both_parts(tmp_path):
    chain.search_chain(told_of(tmp_path), Counted())
    rows = Table.read(tmp_path / "trained_alone.json").rows
    assert {"accuracy", "loss", "validation accuracy", "validation loss"} == next(iter(rows.values()))[0].keys()
