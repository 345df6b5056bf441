from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
import torch

from l2l_nas import Architecture
from l2l_nas.cost.catalogue import parameters_cost
from l2l_nas.cost.table import Cost, Costs
from l2l_nas.errors import ConstraintError, SettingError
from l2l_nas.nas.callback import Stopped
from l2l_nas.nas.evaluation.early_stopping import (
    Halving,
    NeverStop,
    build_early_stop,
    place_among,
    ranked_points,
)
from l2l_nas.nas.evaluation.evaluator import sample_of
from l2l_nas.nas.objectives import Goal, State, TrialRecord, counts, num_evaluated
from l2l_nas.nas.samplers.registry import SAMPLERS
from l2l_nas.training.data import Split
from l2l_nas.training.fit import Trainer
from tests.nas.problems import GOALS, budget, pool_of, search_on

ACCURACY = (Goal("accuracy", True),)


def named(number: int) -> Architecture:
    return Architecture((str(number),))


def reference_order(points):
    """Fronts by brute force, worst case and all."""
    left, fronts = set(points), []
    while left:
        fronts.append(
            {p for p in left if not any(q != p and all(x <= y for x, y in zip(q, p, strict=True)) for q in left)}
        )
        left -= fronts[-1]
    return fronts


def test_points_are_ordered_front_by_front():
    generator = random.Random(0)
    for size in (1, 2, 7, 40):
        points = {(generator.randrange(8), generator.randrange(8)) for _ in range(size)}
        order = ranked_points(points)
        assert len(order) == len(points)
        for front in reference_order(points):
            head, order = order[: len(front)], order[len(front) :]
            assert set(head) == front


def test_within_a_front_the_ends_come_first_then_who_has_more_room():
    front = [(0.0, 10.0), (1.0, 9.0), (1.5, 8.5), (6.0, 3.0), (10.0, 0.0)]
    assert ranked_points(front) == [(0.0, 10.0), (10.0, 0.0), (6.0, 3.0), (1.5, 8.5), (1.0, 9.0)]


def test_with_one_goal_the_order_is_that_of_the_values_and_equals_share_a_place():
    points = [(3.0,), (1.0,), (2.0,), (2.0,), (9.0,)]
    assert ranked_points(set(points)) == [(1.0,), (2.0,), (3.0,), (9.0,)]
    assert [place_among(point, points) for point in points] == [4, 1, 2, 2, 5]


def test_the_first_five_at_a_rung_go_on_and_then_only_the_better_half():
    rule = Halving(ACCURACY)
    values = [0.9, 0.8, 0.7, 0.6, 0.5, 0.65, 0.75, 0.1, 0.95]
    said = [rule.stop_reason(named(i), "10/40", {"accuracy": value}) for i, value in enumerate(values)]
    assert said[:5] == [None] * 5
    assert said[5] == "stopped after 10 of 40 steps: number 4 of 6 there by accuracy"
    assert said[6] is None  # third of seven, of which four go on
    assert said[7] == "stopped after 10 of 40 steps: number 8 of 8 there by accuracy"
    assert said[8] is None
    assert rule.stop_reason(named(9), "20/40", {"accuracy": 0.0}) is None  # nobody else is at that rung


def test_in_the_long_run_half_of_them_go_on():
    rule = Halving(ACCURACY)
    generator = random.Random(0)
    said = [rule.stop_reason(named(i), "1/4", {"accuracy": generator.random()}) for i in range(300)]
    assert said[50:].count(None) / 250 == pytest.approx(0.5, abs=0.08)


def test_with_two_goals_nobody_on_the_better_fronts_is_stopped():
    rule = Halving(GOALS)
    for i in range(8):  # a front, and a point behind each of it
        rule.stop_reason(named(2 * i), "1/4", {"accuracy": i / 10, "parameters": 100 * i})
        rule.stop_reason(named(2 * i + 1), "1/4", {"accuracy": i / 10 - 0.05, "parameters": 100 * i + 50})
    assert rule.stop_reason(named(90), "1/4", {"accuracy": 0.35, "parameters": 310}) is None
    assert "by accuracy and parameters" in rule.stop_reason(named(91), "1/4", {"accuracy": 0.3, "parameters": 390})


def test_a_trial_that_is_begun_again_is_counted_once():
    rule = Halving(ACCURACY)
    for i in range(5):
        rule.stop_reason(named(i), "1/4", {"accuracy": 0.5})
    for _ in range(3):
        assert rule.stop_reason(named(5), "1/4", {"accuracy": 0.1}).endswith("number 6 of 6 there by accuracy")


def test_what_earlier_trials_had_is_learned_from_their_records():
    rule = Halving(GOALS)
    records = [
        TrialRecord(
            i,
            named(i),
            State.COMPLETE if i % 2 else State.STOPPED,
            metrics={"accuracy": 0.99, "parameters": 100.0},
            rungs={"10/40": {"accuracy": 0.5 + i / 100}},
        )
        for i in range(6)
    ]
    rule.learn([*records, TrialRecord(9, named(5), State.COMPLETE, cached=True)])
    said = rule.stop_reason(named(10), "10/40", {"accuracy": 0.49, "parameters": 100})
    assert said == "stopped after 10 of 40 steps: number 7 of 7 there by accuracy and parameters"
    assert rule.stop_reason(named(11), "10/40", {"accuracy": 0.56, "parameters": 100}) is None


def test_rules_by_name_and_their_rungs():
    assert isinstance(build_early_stop("none", GOALS), NeverStop)
    assert isinstance(build_early_stop("halving", GOALS), Halving)
    spend = budget(trial_weights="fork", steps_per_trial=200)
    assert (spend.rungs, replace(spend, early_stop="halving").rungs) == ((), (50, 100))
    assert replace(spend, early_stop="halving", steps_per_trial=8).rungs == (2, 4)
    with pytest.raises(SettingError, match=r"search\.early_stop: no rule 'halvin'; did you mean 'halving'"):
        build_early_stop("halvin", GOALS)


def test_a_trial_is_scored_on_1024_random_samples_that_follow_from_the_seed():
    split = Split((torch.arange(10_240.0)[:, None],), torch.arange(10_240))
    part, again, other = (sample_of(split, seed=seed) for seed in (3, 3, 4))
    assert len(part) == len(torch.unique(part.targets)) == 1024
    assert torch.equal(part.inputs[0][:, 0].long(), part.targets)
    assert torch.equal(part.targets, again.targets)
    assert not torch.equal(part.targets, other.targets)
    taking_turns = torch.bincount(part.targets % 10, minlength=10)
    assert taking_turns.min() > 60
    small = Split((torch.zeros(60, 1),), torch.zeros(60))
    assert sample_of(small, seed=3) is small


class Every:
    """Stops every trial of some numbers at its first or second rung, and remembers what it was asked."""

    def __init__(self, first=(), second=()) -> None:
        self.asked: list[tuple[Architecture, str, dict]] = []
        self.stops = {"2/8": set(first), "4/8": set(second)}
        self._order: dict[Architecture, int] = {}

    def stop_reason(self, architecture, rung, values):
        number = self._order.setdefault(architecture, len(self._order))
        self.asked.append((architecture, rung, dict(values)))
        return f"enough at {rung}" if number in self.stops[rung] else None

    def learn(self, records):
        self.learned = list(records)


def spend(**changes):
    return budget(**{"trials": 6, "steps_per_trial": 8, "trial_weights": "fork", "early_stop": "halving", **changes})


def test_a_stopped_trial_takes_no_further_step_and_is_recorded_with_what_it_had(tmp_path, monkeypatch):
    trained = []
    real = Trainer.fit

    def fit(self, path_at, *, start, steps, **options):
        trained.extend(range(start, start + steps))
        real(self, path_at, start=start, steps=steps, **options)

    monkeypatch.setattr(Trainer, "fit", fit)
    pool, rule = pool_of("tanh", "relu", "skip", depth=3), Every(first=[1], second=[3])
    search, _, study, _ = search_on(tmp_path, pool, spend=spend(), early_stop=rule)
    search.run()
    records = [record for record in study.records if not record.cached]
    assert [record.state for record in records] == [
        "complete",
        "stopped",
        "complete",
        "stopped",
        "complete",
        "complete",
    ]
    assert trained[:4] == [0, 1, 2, 3]
    first = 4
    expected = [range(first + 8 * i, first + 8 * i + length) for i, length in enumerate((8, 2, 8, 4, 8, 8))]
    assert trained[4:-3] == list(itertools.chain(*expected))
    assert [list(record.rungs) for record in records] == [["2/8", "4/8"], ["2/8"], *[["2/8", "4/8"]] * 4]
    assert records[1].reason == "enough at 2/8"
    assert records[1].values == {}
    assert records[1].metrics["parameters"] > 0
    assert records[1].weights == {}
    found = counts(study.records)
    assert (found["complete"], found["stopped"], found["pruned"], found["failed"]) == (4, 2, 0, 0)
    assert num_evaluated(study.records) == 6


def test_the_judge_is_told_metrics_and_costs_and_rung_values_are_kept_without_the_costs(tmp_path):
    pool, rule = pool_of("tanh", "relu", depth=2), Every()
    costs = Costs([parameters_cost(pool), Cost("latency_ms", lambda architecture: 5.0, is_measured=True)])
    goals = (Goal("accuracy", True), Goal("latency_ms", False))
    search, _, study, _ = search_on(tmp_path, pool, spend=spend(trials=2), early_stop=rule, costs=costs, goals=goals)
    search.run()
    for _, _, values in rule.asked:
        assert values.keys() == {"accuracy", "loss", "parameters", "latency_ms"}
    assert study.records[0].rungs["2/8"].keys() == {"accuracy", "loss"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fork", "scratch"])
@pytest.mark.parametrize("names", [("tanh", "relu", "skip"), ("tanh", "reading", "normed")])
def test_a_trial_that_goes_on_ends_as_if_nobody_had_looked(tmp_path, kind, names):
    """Scores, and checksums of all weights it was scored with: BatchNorm's statistics are examined on a copy."""
    found = []
    for rule in ("none", "halving"):
        folder = tmp_path / rule
        folder.mkdir()
        search, _, study, _ = search_on(
            folder,
            pool_of(*names),
            spend=spend(trials=4, trial_weights=kind, early_stop=rule, finalist_steps=12),
            early_stop=Every(),
        )
        search.run()
        found.append([(r.architecture, r.values, r.weights) for r in study.records])
    assert found[0] == found[1]


@pytest.mark.slow
def test_a_stopped_trial_is_not_tried_again_and_answers_repeats(tmp_path):
    pool = pool_of("tanh", "relu", depth=1)
    search, _, study, _ = search_on(tmp_path, pool, spend=spend(trials=20), early_stop=Every(first=[0]))
    search.run()
    fresh = [record for record in study.records if not record.cached]
    assert sorted(record.state for record in fresh) == ["complete", "stopped"]
    stopped = next(record for record in fresh if record.state == "stopped")
    repeats = [r for r in study.records if r.cached and r.architecture == stopped.architecture]
    assert {(r.state, r.reason) for r in repeats} <= {("stopped", stopped.reason)}
    assert counts(study.records)["stopped"] == 1


@pytest.mark.slow
def test_a_search_that_is_interrupted_judges_later_trials_as_one_in_one_go(tmp_path):
    """The random sampler is seeded anew on a resume, so what is compared is what the rule knows."""
    pool = pool_of("tanh", "relu", "skip", depth=4)
    settings = {"spend": spend(trials=14), "num_trials": 14}
    rule = Halving(GOALS)
    search, _, study, observer = search_on(tmp_path, pool, early_stop=rule, **settings)
    observer.stop_at, observer.stop = 60, Stopped
    with pytest.raises(Stopped):
        search.run()
    finished = {r.architecture for r in study.records}
    assert 3 < len(finished) < 14
    other = Halving(GOALS)
    search, _, study, _ = search_on(tmp_path, pool, early_stop=other, resume=True, **settings)
    known = {rung: {a: v for a, v in there.items() if a in finished} for rung, there in rule._seen.items()}
    assert {rung: there for rung, there in other._seen.items() if there} == {r: t for r, t in known.items() if t}
    search.run()
    assert num_evaluated(study.records) == 14


def test_nan_at_a_rung_fails_the_trial(tmp_path):
    pool = pool_of("tanh", "poison", depth=1)
    search, _, study, _ = search_on(tmp_path, pool, spend=spend(trials=2, warmup_steps=0), early_stop=Every())
    search.run()
    assert {r.state for r in study.records if "poison" in r.architecture.choices} == {"failed"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "goals"),
    [*((name, GOALS) for name in SAMPLERS), ("tpe", ACCURACY)],
)
def test_every_sampler_copes_with_stopped_trials(tmp_path, name, goals):
    pool = pool_of("tanh", "relu", "skip", depth=4)
    search, _, study, _ = search_on(
        tmp_path,
        pool,
        spend=spend(trials=12, warmup_steps=0, finalist_steps=0),
        early_stop=Every(first=range(1, 12, 2)),
        sampler=name,
        num_trials=12,
        goals=goals,
    )
    search.run()
    found = counts(study.records)
    assert (found["complete"], found["stopped"]) == (6, 6)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"trial_weights": "shared"}, "search.early_stop=halving stops trials on weights of their own"),
        ({"steps_per_trial": 7}, "7 are too few to tell"),
        ({"early_stop": "never"}, "no rule 'never'"),
    ],
)
def test_budgets_that_early_stopping_does_not_fit_are_refused(changes, says):
    with pytest.raises(SettingError, match=says):
        spend(**changes)


def test_a_rule_that_stops_every_trial_is_told_of_where_none_finished(tmp_path):
    class All(NeverStop):
        def stop_reason(self, architecture, rung, values):
            return "lags"

    search = search_on(tmp_path, pool_of("tanh", "relu"), spend=spend(trials=2), early_stop=All())[0]
    with pytest.raises(
        ConstraintError, match=r"0 failed, 2 stopped early by search\.early_stop; the last reason: lags"
    ):
        search.run()
