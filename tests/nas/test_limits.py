"""Costs and limits in a search: what is recorded, what is refused and when, what is measured."""

from __future__ import annotations

import math

import pytest

from l2l_nas.cost.catalogue import parameters_cost
from l2l_nas.cost.table import Cost, Costs, Limit, in_order, unmeasured
from l2l_nas.errors import ConstraintError
from l2l_nas.nas.objectives import Goal, counts, pareto_front
from l2l_nas.nas.strategies.trials import Trials
from l2l_nas.nas.strategies.warm_up import WarmUp
from l2l_nas.space.constraint import Require
from l2l_nas.training.fit import Trainer
from tests.nas.problems import Classification, budget, change_finalists, pool_of, search_on

SPEND = {"warmup_steps": 0, "steps_per_trial": 0, "finalist_steps": 0}


class Bench:
    """A latency of 1 ms for each layer, and what was measured when."""

    def __init__(self, pool) -> None:
        self.pool = pool
        self.measured: list = []

    def __call__(self, architecture) -> float:
        self.measured.append(architecture)
        return float(len(self.pool.path(architecture)))


def table(pool) -> tuple[Costs, Bench]:
    bench = Bench(pool)
    return Costs([parameters_cost(pool), Cost("latency_ms", bench, is_measured=True)]), bench


def test_constraints_that_measure_are_asked_last():
    pool = pool_of("tanh", "skip")
    costs, _ = table(pool)
    slow, large, plain = Limit(costs, "latency_ms", 3), Limit(costs, "parameters", 9), Require("x", lambda a: True)
    assert in_order([slow, large, plain]) == (large, plain, slow)
    assert unmeasured([slow, large, plain]) == (large, plain)


def test_every_trial_has_all_costs_in_the_saved_study(tmp_path):
    pool = pool_of("tanh", "wide", "skip")
    costs, bench = table(pool)
    limit = Limit(costs, "parameters", 700)
    goals = (Goal("accuracy", True), Goal("latency_ms", False))
    search, _, study, _ = search_on(
        tmp_path, pool, spend=budget(**SPEND, trials=7), costs=costs, constraints=[limit], goals=goals
    )
    best = search.run()
    again, bench_again = table(pool)
    resumed = search_on(tmp_path, pool, spend=budget(**SPEND), costs=again, goals=goals, resume=True)[2]
    assert [record.metrics for record in resumed.records] == [record.metrics for record in study.records]
    assert {record.state for record in resumed.records} == {"complete", "pruned"}
    for record in resumed.records:
        assert record.metrics["parameters"] == costs.value("parameters", record.architecture)
        if record.state == "complete":
            assert record.metrics.keys() == {"accuracy", "loss", "parameters", "latency_ms"}
            assert again.value("latency_ms", record.architecture) == len(pool.path(record.architecture))
        else:
            assert record.metrics.keys() == {"parameters"}  # refused before anything was measured
            assert "parameters, allowed 700" in record.reason
    assert bench_again.measured == []  # what the first run measured is known
    assert len(bench.measured) == len(set(bench.measured)) == counts(study.records)["complete"]
    assert best.costs["latency_ms"] == len(pool.path(best.record.architecture))


@pytest.mark.slow
def test_a_latency_is_measured_before_the_training_and_its_limit_refuses_with_the_reason(tmp_path, monkeypatch):
    pool = pool_of("tanh", "relu", "skip", depth=4)
    costs, bench = table(pool)
    trained: list = []
    real = Trainer.fit

    def fit(self, path_at, *, start, steps, **options):
        trained.append((path_at(start), len(bench.measured)))
        real(self, path_at, start=start, steps=steps, **options)

    monkeypatch.setattr(Trainer, "fit", fit)
    limit = Limit(costs, "latency_ms", 4)  # stem, head and two more
    search, _, study, _ = search_on(
        tmp_path, pool, spend=budget(warmup_steps=12, trials=6, finalist_steps=0), costs=costs, constraints=[limit]
    )
    search.run()
    refused = [record for record in study.records if record.state == "pruned"]
    assert refused
    for record in refused:
        assert record.reason == f"{len(pool.path(record.architecture))} ms, allowed 4 (search.limits.latency_ms)"
        assert record.metrics["latency_ms"] == len(pool.path(record.architecture))
    measured_at = {architecture: number for number, architecture in enumerate(bench.measured)}
    for architecture, known in trained[1:7]:
        assert measured_at[architecture] < known
        assert len(pool.path(architecture)) <= 4
    assert len(set(bench.measured)) == len(bench.measured)


def test_warm_up_measures_nothing(tmp_path):
    """A path that is too slow trains layers that others use, and measuring would take longer than training."""
    pool = pool_of("tanh", "relu", "skip", depth=4)
    costs, bench = table(pool)
    search, _, _, _ = search_on(
        tmp_path, pool, spend=budget(warmup_steps=20), costs=costs, constraints=[Limit(costs, "latency_ms", 4)]
    )
    WarmUp().run(search.context)
    assert bench.measured == []
    assert search.context.coverage.steps("warmup", "p0")["tanh"] > 0


@pytest.mark.slow
def test_all_that_a_measured_limit_allows_are_found_and_then_the_search_ends(tmp_path):
    pool = pool_of("tanh", "relu", "skip", depth=3)
    costs, bench = table(pool)
    limit = Limit(costs, "latency_ms", 3)  # one layer between stem and head at most
    search, _, study, _ = search_on(
        tmp_path, pool, spend=budget(**SPEND, trials=20), costs=costs, constraints=[limit], num_trials=20
    )
    search.run()
    found = [record.architecture for record in study.records if record.state == "complete" and not record.cached]
    assert len(found) == 1 + 3 * 2
    refused = [record.architecture for record in study.records if record.state == "pruned"]
    assert len(set(refused)) == 20
    assert len(refused) < 150  # the way out of a spent space does not come back to what was refused
    assert len(bench.measured) == len(set(bench.measured)) == 27


def test_what_a_limit_refuses_is_no_finalist_of_a_run_that_goes_on(tmp_path, monkeypatch):
    pool = pool_of("tanh", "wide", "skip", depth=2)
    costs, _ = table(pool)
    search, _, study, _ = search_on(tmp_path, pool, spend=budget(**SPEND, trials=9), costs=costs)
    search.run()
    assert any("wide" in record.architecture.choices for record in study.records)
    limit = Limit(costs, "parameters", 100)
    search, _, study, _ = search_on(
        tmp_path, pool, spend=budget(**SPEND, trials=9, finalists=9), costs=costs, constraints=[limit], resume=True
    )
    finalists = []

    def changed(segment, result):
        finalists.append(segment.architecture)
        return result

    change_finalists(monkeypatch, changed)
    search.run()
    assert len(finalists) == 4
    assert all("wide" not in architecture.choices for architecture in finalists)
    front = pareto_front(search.context.allowed(study.records), (Goal("accuracy", True), Goal("parameters", False)))
    assert front
    assert all("wide" not in record.architecture.choices for record in front)


def test_finalists_that_are_equal_on_the_first_goal_are_resolved_by_the_others(tmp_path):
    pool = pool_of("tanh", "relu", "skip", depth=2)
    costs, _ = table(pool)
    goals = (Goal("nothing", True), Goal("latency_ms", False))

    class Constant(Classification):
        metrics = {"nothing": True}

        def measure(self, outputs, targets):
            return {"nothing": 1.0}

    search, _, _, _ = search_on(
        tmp_path, pool, spend=budget(**SPEND, trials=9, finalists=9), costs=costs, goals=goals, task=Constant()
    )
    best = search.run()
    assert best.record.architecture.choices == ("linear", "skip", "skip", "linear")


class Strange(Classification):
    """A metric that is not finite every second time, or always."""

    metrics = {"accuracy": True, "odd": True}

    def __init__(self, value: float, *, always: bool = False) -> None:
        self.value, self.always, self.calls = value, always, 0

    def measure(self, outputs, targets):
        self.calls += 1
        return {"accuracy": 0.5, "odd": self.value if self.always or self.calls % 2 else 1.0}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_metric_that_is_not_finite_fails_the_trial_by_name(tmp_path, value):
    pool = pool_of("tanh", "relu", "skip")
    goals = (Goal("odd", True),)
    search, _, study, _ = search_on(
        tmp_path, pool, spend=budget(**SPEND, trials=4, population=1), goals=goals, task=Strange(value)
    )
    Trials().run(search.context)
    states = [record.state for record in study.records if not record.cached]
    assert states == ["failed", "complete", "failed", "complete"]
    failed = next(record for record in study.records if record.state == "failed")
    assert failed.reason.startswith(f"the odd on the validation data ({value}) is not finite at step 0; lower")
    assert "update" not in failed.reason


def test_where_all_trials_give_nan_the_run_ends_with_the_metric_s_name(tmp_path):
    pool = pool_of("tanh", "relu")
    search, _, _, _ = search_on(
        tmp_path, pool, spend=budget(**SPEND), goals=(Goal("odd", True),), task=Strange(math.nan, always=True)
    )
    with pytest.raises(ConstraintError, match=r"4 failed; the last reason: the odd on the validation data \(nan\)"):
        search.run()
