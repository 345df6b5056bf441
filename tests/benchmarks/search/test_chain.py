from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from benchmarks.benches import BENCHES
from benchmarks.search import chain
from benchmarks.search.standalone import MetricsTable, sampled_architectures
from l2l_nas import ParamServer, Relay
from l2l_nas.errors import SettingError
from l2l_nas.nas.evaluation.evaluator import Evaluator
from l2l_nas.nas.evaluation.segment import Segment
from l2l_nas.nas.strategies.budget import Budget
from l2l_nas.nas.strategies.warm_up import WarmUp
from l2l_nas.runs.fields import changed
from l2l_nas.runs.locate import load_problem
from l2l_nas.runs.numbers import decide_numbers
from l2l_nas.runs.settings import SearchConf
from l2l_nas.training.data import Data
from l2l_nas.training.problem import Problem
from tests.benchmarks.search.ranked import problem, settings
from tests.benchmarks.stacks import Counted


def chain_settings(place, **given):
    few = {"steps": 2, "trials": 7, "architectures": 20, "trial_weights": "shared", "warmup_steps": 12}
    return settings(place, **{**few, "training_steps": 15, **given})


RACED = {"trial_weights": "scratch", "warmup_steps": 0}


@pytest.mark.slow
def test_a_tiny_space_from_end_to_end(tmp_path):
    watch, given = Counted(), chain_settings(tmp_path)
    chain.check(given)
    result = chain.search_chain(given, watch)
    assert watch.done == watch.total == 9 * 2 * 15 + 2 * (12 + 9 * (2 + 15))
    assert json.loads(json.dumps(result)) == result
    assert np.shape(result["alone"]["validation"]) == np.shape(result["alone"]["test"]) == (9, 2)
    assert {name: np.shape(runs) for name, runs in result["stages"].items()} == dict.fromkeys(
        ("trial", "after 2", "after 6", "validation", "test"), (2, 9)
    )
    assert result["steps"] == {"search": 12 + 7 * 2 + 8 * 2 + 4 * 4 + 2 * 9, "random_search": 5 * 15, "networks": 5}
    assert [row["stage"] for row in result["chain"]] == [
        "the best of all 9",
        "the best of 7 trials",
        "the best of 8 by trial score",
        "the same, trained from shared weights",
        "the best of 4 after 2 steps",
        "the best of 2 after 6 steps",
        "chosen by validation",
        "random search, the best of 5",
    ]
    again = Counted()
    assert chain.search_chain(given, again) == result  # which reads the table
    assert again.total == watch.total - 9 * 2 * 15


@pytest.mark.slow
def test_from_first_weights_all_stages_are_of_the_trainings_alone(tmp_path):
    watch, given = Counted(), chain_settings(tmp_path, **RACED)
    chain.check(given)
    result = chain.search_chain(given, watch)
    assert watch.done == watch.total == 9 * 2 * 15
    assert chain._recipe(given).interim == (2, 4, 8)
    assert json.loads(json.dumps(result)) == result
    assert list(result["stages"]) == ["trial", "after 4", "after 8", "validation", "test"]
    for part in ("validation", "test"):
        assert result["stages"][part] == [list(row) for row in zip(*result["alone"][part], strict=True)]
    assert result["steps"]["search"] == 7 * 2 + 8 * 2 + 4 * 4 + 2 * 7
    assert [row["stage"] for row in result["chain"]][2:5] == [
        "the best of 8 by trial score",
        "the best of 4 after 4 steps",
        "the best of 2 after 8 steps",
    ]
    assert [row["sampler"] for row in result["rows"]] == ["trial score", "after 4", "after 8"]
    again = Counted()
    assert chain.search_chain(given, again) == result
    assert again.total == 0


@pytest.mark.slow
def test_stages_are_scored_as_a_search_scores_them(tmp_path):
    """The race's trial and validations are what `Evaluator` gives for the same steps, weights and batches."""
    given = chain_settings(tmp_path, **RACED)
    result = chain.search_chain(given, Counted())
    problem, budget = given.asked_problem, chain._budget(given)
    recipe = chain._recipe(given)
    relay = Relay(ParamServer(problem.pool, optimizer=recipe.optimizer, seed=0), device="cpu", seed=0)
    evaluator = Evaluator(
        relay,
        recipe.trainer(problem, relay, seed=0),
        validation=problem.data.validation,
        budget=budget,
        test=problem.data.test,
    )
    one = sampled_architectures(problem, 20, seed=0)[3]
    trial = evaluator.run(Segment.of_trial(one, 5, budget, done=0, server=None))
    server, done, found = trial.server, budget.steps_per_trial, [trial.metrics["accuracy"]]
    for spend in budget.rounds:
        round_result = evaluator.run(
            replace(Segment.of_finalist(one, 3, budget, spend=spend, done=done), server=server)
        )
        server, scores = round_result.server, round_result.scores
        done += spend.steps
        found.append(scores["validation"].values["accuracy"])
    names = ["trial", "after 4", "after 8", "validation"]
    assert found == pytest.approx([result["stages"][name][0][3] for name in names], abs=1e-6)
    assert scores["test"].values["accuracy"] == pytest.approx(result["stages"]["test"][0][3], abs=1e-6)


@pytest.mark.slow
def test_the_truth_is_the_test_part_and_nothing_is_chosen_by_it(tmp_path):
    for name in ("as_it_is", "changed"):
        (tmp_path / name).mkdir()
    known = chain.search_chain(chain_settings(tmp_path / "as_it_is", training_steps=40), Counted())
    changed = problem()
    changed.data.parts["test"].targets.neg_().add_(1)
    found = chain.search_chain(chain_settings(tmp_path / "changed", problem=changed, training_steps=40), Counted())
    for held in (lambda given: given["stages"]["trial"], lambda given: given["stages"]["validation"]):
        assert held(found) == held(known)
    assert found["alone"]["validation"] == known["alone"]["validation"]
    assert np.allclose(found["alone"]["test"], 1 - np.array(known["alone"]["test"]))
    assert np.allclose(found["stages"]["test"], 1 - np.array(known["stages"]["test"]))


SPEND = Budget(
    warmup_steps=0, trials=64, steps_per_trial=1, finalists=6, finalist_steps=1, learning_rate=1.0,
    finalist_learning_rate=1.0,
)  # fmt: skip


def played(trial, *, validation=None, alone=None, networks=10, interim=(), **spent):
    """Searches among 100 networks, of which number i is right in i of 100 cases, unless something else is reported."""
    truth = np.arange(100) / 100
    alone = np.stack([truth] * 3, axis=1) if alone is None else alone
    stages = {"trial": trial, "validation": truth if validation is None else validation, "test": truth}
    figures = {"validation": alone, "test": alone}
    given = {name: np.asarray(values)[None] for name, values in {**stages, **dict(interim)}.items()}
    return chain.Played(figures, given, budget=replace(SPEND, **spent), networks=networks, seed=0)


@pytest.mark.slow
def test_each_round_loses_what_its_look_does_not_tell():
    truth = np.arange(100) / 100
    race = {"trial_weights": "scratch", "finalists": 8, "finalist_steps": 114, "finalist_rounds": 4}
    interim = {"after 9": truth, "after 24": truth, "after 54": truth}
    assert [one.steps for one in replace(SPEND, **race).rounds] == [8, 15, 30, 60]  # behind a trial's one step
    rows = played(truth, interim=interim, **race).rows(1.0)
    assert [row["stage"] for row in rows[2:]] == [
        "the best of 8 by trial score",
        "the best of 4 after 9 steps",
        "the best of 2 after 24 steps",
        "the best of 1 after 54 steps",
        "chosen by validation",
        "random search, the best of 10",
    ]
    assert [row["lost"]["value"] for row in rows[2:-1]] == [0, 0, 0, 0, 0]
    rows = played(truth, interim={**interim, "after 24": -truth}, **race).rows(1.0)
    # of the four that are left the lower two go on: two places of 64 in 100 behind the best
    assert rows[4]["lost"]["value"] == pytest.approx(2 * 100 / 65 / 100, abs=0.005)
    assert [row["lost"]["value"] for row in (rows[2], rows[3], rows[5], rows[6])] == [0, 0, 0, 0]


@pytest.mark.slow
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


@pytest.mark.parametrize("weights", chain.WEIGHTS)
def test_it_searches_as_a_search_that_is_told_nothing(tmp_path, weights):
    conf = changed(SearchConf(), {"search.trial_weights": weights})
    problem = load_problem("image_blocks", {}, source="cluttered_digits", validation_fraction=0.2, test_fraction=0.2)
    conf, decided = decide_numbers(conf, problem, phases=[WarmUp()], pace=None)
    assert decided is not None
    given = settings(tmp_path, problem=problem, **{**BENCHES["search_chain"].defaults, "trial_weights": weights})
    found = chain._budget(given)
    assert {name: getattr(found, name) for name in asdict(decided)} == asdict(decided)
    assert conf.train.batch_size == chain.BATCH
    assert conf.train.learning_rate == chain.LEARNING_RATE
    assert not conf.search.finalist_learning_rate


def test_a_sample_is_of_different_networks_and_all_where_there_are_no_more():
    assert len(set(sampled_architectures(problem(), 5, seed=0))) == 5
    assert sampled_architectures(problem(), 5, seed=0) != sampled_architectures(problem(), 5, seed=1)
    assert len(sampled_architectures(problem(), 50, seed=0)) == 9
    with pytest.raises(SettingError, match="at least 3 architectures, 2 were found"):
        sampled_architectures(problem(), 2, seed=0)


def test_what_cannot_be_measured_is_refused(tmp_path):
    with pytest.raises(SettingError, match="seeds must be at least 2"):
        chain.check(chain_settings(tmp_path, seeds=1))
    with pytest.raises(SettingError, match="trial_weights: no such weights as 'scrtch'; did you mean 'scratch'"):
        chain.check(chain_settings(tmp_path, trial_weights="scrtch"))
    with pytest.raises(SettingError, match="warmup_steps: with trial_weights=scratch there is no warm-up"):
        chain.check(chain_settings(tmp_path, trial_weights="scratch"))
    two = Problem(problem().pool, Data(problem().data.train, problem().data.validation))
    with pytest.raises(SettingError, match="networks are measured on a test part"):
        chain.check(chain_settings(tmp_path, problem=two))


@pytest.mark.slow
def test_a_table_holds_both_parts(tmp_path):
    chain.search_chain(chain_settings(tmp_path), Counted())
    rows = MetricsTable.read(tmp_path / "trained_alone.json").rows
    assert {"accuracy", "loss", "validation accuracy", "validation loss"} == next(iter(rows.values()))[0].keys()
