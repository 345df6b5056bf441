"""Random search beside a search: what it trains, what it returns, and that the search is as it was without it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from l2l_nas.cost.closed_form import num_parameters
from l2l_nas.errors import NonFiniteError, SettingError
from l2l_nas.nas.evaluation.early_stopping import NeverStop
from l2l_nas.nas.evaluation.segment import SegmentResult
from l2l_nas.nas.objectives import Goal, counts
from l2l_nas.nas.strategies.random_search import plan, play
from l2l_nas.report.network import RandomBaseline
from l2l_nas.space.constraint import NonEmpty, Require
from l2l_nas.space.sampling import UniformPaths
from l2l_nas.training.data import Data
from l2l_nas.training.samples import Split
from l2l_nas.training.score import Score
from tests.nas.problems import budget, pool_of, search_on

SPEND = {"warmup_steps": 20, "trials": 5, "steps_per_trial": 2, "finalists": 2, "finalist_steps": 15}


def draws(pool, *constraints):
    paths = UniformPaths(pool, seed=3, constraints=(NonEmpty(pool), *constraints))
    return (paths.path_at(step) for step in range(100))


def test_different_networks_have_all_steps_of_a_search_between_them():
    spend = budget(**SPEND)
    assert spend.steps == 20 + 5 * 2 + 2 * 15
    trainings = plan(spend, draws(pool_of("tanh", "relu", "wide", depth=3)), steps=spend.steps)
    assert len({training.architecture for training in trainings}) == len(trainings) == 4
    # as a finalist in a race: from step 0 on, no longer
    assert [(training.start, training.steps) for training in trainings] == [(0, 15)] * 4
    assert {(t.weights, t.learning_rate) for t in trainings} == {("scratch", spend.finalist_learning_rate)}


@pytest.mark.parametrize(
    ("steps", "each"),
    [(0, []), (7, [7]), (15, [15]), (40, [15, 15, 10]), (46, [15, 15, 15, 1]), (59, [15, 15, 15, 14])],
)
def test_the_last_network_has_the_steps_that_are_left(steps, each):
    trainings = plan(budget(**SPEND), draws(pool_of("tanh", "relu", "wide", depth=3)), steps=steps)
    assert [training.steps for training in trainings] == each


def test_a_space_with_fewer_networks_has_all_of_them_trained_as_finalists_are():
    trainings = plan(budget(**SPEND), draws(pool_of("tanh", "relu", depth=1)), steps=60)
    assert [training.steps for training in trainings] == [15, 15]


def test_limits_hold_for_its_networks_too():
    pool = pool_of("tanh", "wide", depth=3)
    small = Require("few parameters", lambda one: num_parameters(pool, one) <= 100)
    assert all(num_parameters(pool, t.architecture) <= 100 for t in plan(budget(**SPEND), draws(pool, small), steps=60))


def test_no_more_is_drawn_than_is_wanted_and_nothing_is_trained_where_nothing_is_allowed():
    some = draws(pool_of("tanh", "relu", "wide", depth=3))
    assert len(plan(budget(**SPEND), some, steps=60)) == 4
    assert len(list(some)) > 80
    assert plan(budget(**SPEND), [], steps=60) == []


class Told:
    """A executor that gives these scores on the validation part, or refuses."""

    def __init__(self, *values, name="accuracy", order=None):
        self.values, self.name = values, name
        self.order = list(order or range(len(values)))
        self.segments = []

    def submit(self, segment, *, after_step):
        self.segments.append(segment)

    def finished(self):
        index = self.order.pop(0)
        value = self.values[index]
        if value is None:
            return [(self.segments[index], SegmentResult(error=NonFiniteError("gradient", layer=None, step=1)))]
        scores = {part: Score({self.name: value + (part == "test")}) for part in ("validation", "test")}
        return [(self.segments[index], SegmentResult(scores))]


@pytest.mark.parametrize(
    ("values", "maximize", "best"),
    [
        ((0.5, 0.7, 0.6, 0.1), True, 1),
        ((0.5, 0.7, 0.6, 0.1), False, 3),
        ((None, 0.2, None, 0.1), True, 1),
        ((0.4, 0.7, 0.7, 0.1), True, 1),
    ],
)
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0)])
def test_the_best_on_the_validation_part_is_told_whoever_is_done_first(values, maximize, best, order):
    trainings = plan(budget(**SPEND), draws(pool_of("tanh", "relu", "wide", depth=3)), steps=60)
    goal = Goal("accuracy", maximize)
    found = play(
        Told(*values, order=order),
        trainings,
        goal,
        costs=lambda one: {"parameters": 1.0},
        after_step=lambda index, loss: None,
    )
    assert found.architecture == trainings[best].architecture
    entry = found.entry()
    assert entry["validation"] == {"accuracy": values[best]}
    assert entry["test"] == {"accuracy": values[best] + 1}
    assert (entry["networks"], entry["total_steps"], entry["steps"]) == (4, 60, 15)
    assert entry["costs"] == {"parameters": 1.0}
    lost = [list(trainings[index].architecture.choices) for index, value in enumerate(values) if value is None]
    assert [one["architecture"] for one in entry["failed"]] == lost  # they count, and are told
    assert all("gradient" in one["reason"] for one in entry["failed"])
    assert RandomBaseline.from_json(json.loads(json.dumps(entry))).failed == len(lost)


def test_its_best_is_chosen_by_the_same_mean_as_finalists_are():
    trainings = plan(budget(**SPEND), draws(pool_of("tanh", "relu", "wide", depth=3)), steps=30)

    class Late(Told):
        def finished(self):
            (one, result), *more = super().finished()
            before = 0.9 if one.name.startswith("network 2") else 0.1
            rungs = {"13/15": {"accuracy": before}, "14/15": {"accuracy": before}, "15/15": result.metrics}
            return [(one, replace(result, rungs=rungs)), *more]

    found = play(
        Late(0.8, 0.7), trainings, Goal("accuracy", True), costs=lambda one: {}, after_step=lambda index, loss: None
    )
    assert found.architecture == trainings[1].architecture
    assert found.entry()["compared_by"]["values"] == {"accuracy": pytest.approx(2.5 / 3)}
    best = RandomBaseline.from_json(found.entry()).best
    assert best.compared_by["accuracy"] == pytest.approx(2.5 / 3)
    assert best.validation == {"accuracy": 0.7}


def test_where_no_network_can_be_trained_there_is_none():
    trainings = plan(budget(**SPEND), draws(pool_of("tanh", "relu", "wide", depth=3)), steps=60)
    goal = Goal("accuracy", True)
    assert play(Told(*[None] * 4), trainings, goal, costs=lambda one: {}, after_step=lambda index, loss: None) is None


@pytest.mark.slow
def test_a_search_hands_out_the_same_with_it_and_without(tmp_path):
    found = []
    for kind in ("none", "random"):
        (tmp_path / kind).mkdir()
        search, relay, study, _ = search_on(
            tmp_path / kind, pool_of("tanh", "relu", "normed", depth=3), spend=budget(**SPEND, baseline=kind)
        )
        best = search.run()
        weights = {key: relay.server.state(key).weights.clone() for key in relay.server.visited}
        found.append((best.record.architecture, best.scores, search.context.finalists, study.records, weights))
        assert (search.context.baseline is None) == (kind == "none")
    (*plain, weights), (*other, same) = found
    assert plain[0] == other[0]
    assert plain[1] == other[1]
    assert [one.scores for one in plain[2]] == [one.scores for one in other[2]]
    assert all((weights[key] == same[key]).all() for key in weights)
    assert search.context.baseline.steps == 15
    assert search.context.baseline.total_steps == search.context.baseline.search_steps == 60
    assert search.context.baseline.scores["validation"].values["accuracy"] > 0.5


def test_what_cannot_be_played_is_refused():
    with pytest.raises(SettingError, match=r"search\.baseline: no such baseline as 'ramdon'.*random"):
        budget(**SPEND, baseline="ramdon")
    with pytest.raises(SettingError, match="trains networks as long as finalists, and there are none"):
        budget(**{**SPEND, "finalists": 0}, baseline="random")


def test_random_search_has_the_steps_that_were_taken_not_those_planned(tmp_path):
    class Rule(NeverStop):
        def stop_reason(self, architecture, rung, values):
            return "lags" if "relu" in architecture.choices else None

    spend = budget(
        warmup_steps=0,
        trials=8,
        steps_per_trial=8,
        finalists=1,
        finalist_steps=20,
        trial_weights="scratch",
        early_stop="halving",
        baseline="random",
    )
    search, _, study, _ = search_on(
        tmp_path, pool_of("tanh", "relu", depth=3), spend=spend, early_stop=Rule(), goals=(Goal("accuracy", True),)
    )
    search.run()
    assert (counts(study.records)["complete"], counts(study.records)["stopped"]) == (1, 7)
    taken = 1 * 8 + 7 * 2 + (20 - 8)
    assert search.context.ledger.search_steps == taken < spend.steps
    assert search.context.baseline.search_steps == taken


def test_random_networks_meet_no_mini_batch_that_finalists_do_not(tmp_path):
    """The fifth mini-batch has one sample, on which no batch norm trains; finalists end before it."""
    x = torch.randn(65 + 20, 2, generator=torch.Generator().manual_seed(0))
    parts = [Split(part, (part[:, 0] > 0).long()) for part in x.split([65, 20])]
    spend = budget(
        warmup_steps=0, trials=3, steps_per_trial=2, finalists=2, finalist_steps=4, trial_weights="scratch",
        baseline="random",
    )  # fmt: skip
    search, *_ = search_on(
        tmp_path, pool_of("normed", "tanh", depth=3), spend=spend, split=Data(*parts), goals=(Goal("accuracy", True),)
    )
    search.run()
    found = search.context.baseline
    assert (found.total_steps, found.networks, found.failed) == (search.context.ledger.search_steps, 3, {})


def test_its_networks_are_drawn_by_another_seed_than_the_search_s(tmp_path, monkeypatch):
    spend = budget(warmup_steps=0, trials=2, steps_per_trial=2, finalists=1, finalist_steps=4, baseline="random")
    search, _, _, _ = search_on(
        tmp_path, pool_of("tanh", "relu", depth=3), spend=spend, goals=(Goal("accuracy", True),)
    )
    seeds, draw = [], type(search.context).random_architectures
    monkeypatch.setattr(
        type(search.context), "random_architectures", lambda self, seed: seeds.append(seed) or draw(self, seed)
    )
    search.run()
    assert seeds
    # those of a sweep, too, which counts from the seed that is asked for
    assert all(abs(seed - search.context.seed) > 10_000 for seed in seeds)
