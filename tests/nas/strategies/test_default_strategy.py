from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from l2l_nas import Require, UniformPaths
from l2l_nas.cost.catalogue import parameters_cost
from l2l_nas.cost.table import Costs, Limit
from l2l_nas.errors import ConstraintError, NonFiniteError
from l2l_nas.nas.callback import Stopped
from l2l_nas.nas.objectives import counts
from l2l_nas.nas.strategies.coverage import Coverage
from l2l_nas.nas.strategies.finalists import choose
from l2l_nas.space.constraint import NonEmpty
from l2l_nas.space.sampling import FairPaths
from l2l_nas.training.fit import Trainer
from tests.nas.problems import GOALS, budget, pool_of, same, search_on, weights_of


def test_steps_are_numbered_through_warm_up_trials_and_finalists(tmp_path, steps):
    pool = pool_of("tanh", "relu", "skip")
    spend = budget(warmup_steps=5, trials=3, steps_per_trial=2, finalists=2, finalist_steps=4)
    search, relay, study, observer = search_on(tmp_path, pool, spend=spend)
    best = search.run()
    assert [step for step, *_ in steps] == list(range(5 + 3 * 2 + 2 * 4))
    paths = UniformPaths(pool, seed=0, constraints=(NonEmpty(pool),))
    assert [path for _, path, *_ in steps[:5]] == [paths.path_at(step) for step in range(5)]
    evaluated = [record.architecture for record in study.records if not record.cached]
    assert [path for _, path, *_ in steps[5:11]] == [a for a in evaluated for _ in range(2)]
    assert all(server is relay.server for *_, server in steps[:11])
    assert len({id(server) for *_, server in steps[11:]}) == 2
    assert [name for name, *_ in observer.phases] == ["warm-up", "search", "finalists"]
    # a finalist has a schedule of its own
    assert steps[11][2] == steps[15][2]
    assert best.values.keys() == {"accuracy", "loss", "parameters"}
    assert observer.trials == list(study.records)
    assert [one.record for one in observer.finalists] == choose(study.records, GOALS, count=2)
    assert tuple(observer.finalists) == search.context.finalists
    assert replace(best, server=None) in search.context.finalists


def test_finalists_leave_the_shared_weights_untouched(tmp_path):
    pool = pool_of("tanh", "relu", "normed")
    search, relay, _, observer = search_on(tmp_path, pool, spend=budget(finalists=3))
    held = {}
    real = observer.phase

    def phase(name, **counts):
        real(name, **counts)
        if name == "finalists":
            held.update(weights_of(relay.server))

    observer.phase = phase
    best = search.run()
    assert same(held, weights_of(relay.server))
    assert best.server is not relay.server
    assert not same({k: v for k, v in held.items() if k in best.server.visited}, weights_of(best.server))


def test_batch_norm_is_scored_with_statistics_of_its_own_path_and_shared_ones_stay(tmp_path, monkeypatch):
    pool = pool_of("normed", depth=2)
    search, relay, _, _ = search_on(tmp_path, pool, spend=budget(warmup_steps=6, trials=1, finalist_steps=0))
    seen = []
    real = Trainer.score_population

    def evaluate(self, architecture, split):
        before = weights_of(search.context.server)
        metrics = real(self, architecture, split)
        assert same(before, weights_of(search.context.server))
        seen.append((self.executor.server, weights_of(self.executor.server), before))
        return metrics

    monkeypatch.setattr(Trainer, "score_population", evaluate)
    search.run()
    server, used, shared = seen[0]
    assert server is not relay.server
    layers = [key for key in shared if "normed" in key]
    assert len(layers) == 2
    for key in layers:
        assert torch.equal(used[key]["weights.0.weight"], shared[key]["weights.0.weight"])
        assert not torch.equal(used[key]["buffers.1.running_mean"], shared[key]["buffers.1.running_mean"])
    assert same(weights_of(relay.server), shared)


def test_recalibrated_statistics_are_those_of_the_training_data(tmp_path):
    pool = pool_of("normed", depth=1)
    search, relay, _, _ = search_on(tmp_path, pool, spend=budget())
    path = pool.architecture(["linear", "normed", "linear"])
    search.context.evaluator.trainer.recalibrate(path, batches=3)
    batches = [search.context.evaluator.batches.at(step)[0][0] for step in range(3)]
    stem, layer = relay.server.state("stem/linear").parameters(), relay.server.state("p0/normed")
    weights = layer.parameters()
    outputs = [
        torch.nn.functional.linear(
            torch.nn.functional.linear(x, stem["weight"], stem["bias"]), weights["0.weight"], weights["0.bias"]
        )
        for x in batches
    ]
    expected = torch.stack([out.mean(dim=0) for out in outputs]).mean(dim=0)
    torch.testing.assert_close(layer.named_buffers()["1.running_mean"], expected)


def test_repeats_are_served_from_the_cache_and_not_counted(tmp_path, steps):
    pool = pool_of("tanh", "relu", depth=2)
    spend = budget(trials=4, warmup_steps=0, finalist_steps=0)
    search, _, study, _ = search_on(tmp_path, pool, spend=spend, sampler="tpe")  # one that repeats itself
    search.run()
    fresh = [record for record in study.records if not record.cached]
    repeats = [record for record in study.records if record.cached]
    assert len({record.architecture for record in fresh}) == len(fresh) == 4
    assert repeats
    known = {record.architecture: record.values for record in fresh}
    for record in repeats:
        assert record.values == known[record.architecture]
    assert len(steps) == 4 * 2


@pytest.mark.slow
def test_a_space_smaller_than_the_trials_asked_for_is_tried_whole(tmp_path):
    pool = pool_of("tanh", "relu", "skip", depth=2)
    spend = budget(trials=50, warmup_steps=0, steps_per_trial=0, finalist_steps=0)
    search, _, study, _ = search_on(tmp_path, pool, spend=spend, sampler="tpe", num_trials=50)
    search.run()
    assert counts(study.records)["complete"] == 9
    assert len({record.architecture for record in study.records}) == 9


@pytest.mark.slow
def test_a_space_of_one_architecture_is_searched(tmp_path):
    for sampler in ("random", "tpe", "nsga2"):
        folder = tmp_path / sampler
        folder.mkdir()
        search, _, study, _ = search_on(folder, pool_of("tanh"), spend=budget(trials=2), sampler=sampler)
        assert search.run().record.number == 0
        assert counts(study.records)["complete"] == 1


def test_what_a_constraint_refuses_is_recorded_with_the_reason_and_never_trained(tmp_path, steps):
    pool = pool_of("tanh", "wide", "skip", depth=2)
    limit = Limit(Costs([parameters_cost(pool)]), "parameters", 100)
    # one that knows no limits
    search, _, study, _ = search_on(tmp_path, pool, spend=budget(trials=4), constraints=[limit], sampler="tpe")
    search.run()
    pruned = [record for record in study.records if record.state == "pruned"]
    assert pruned
    assert counts(study.records)["complete"] == 4
    for record in pruned:
        assert record.reason == limit.violation(record.architecture)
        assert "parameters, allowed 100" in record.reason
    assert all("wide" not in path.choices for _, path, *_ in steps)


@pytest.mark.slow
def test_all_allowed_architectures_are_found_behind_a_tight_constraint(tmp_path):
    pool = pool_of("tanh", "relu", "skip", depth=5)
    only = Require("few layers", lambda a: a.choices.count("skip") == 5 or a.choices[1:6] == ("tanh",) * 5)
    spend = budget(trials=9, warmup_steps=0, steps_per_trial=0, finalist_steps=0)
    search, _, study, _ = search_on(tmp_path, pool, spend=spend, constraints=[only])
    search.run()
    assert counts(study.records)["complete"] == 2


def test_a_trial_that_gives_nan_is_recorded_as_failed_and_the_search_goes_on(tmp_path):
    pool = pool_of("tanh", "poison", depth=2)
    spend = budget(trials=4, warmup_steps=0)
    search, _, study, _ = search_on(tmp_path, pool, spend=spend)
    best = search.run()
    found = counts(study.records)
    assert (found["complete"], found["failed"]) == (1, 3)
    assert best.record.architecture.choices == ("linear", "tanh", "tanh", "linear")
    for record in study.records:
        assert (record.state == "failed") == ("poison" in record.architecture.choices)
        assert record.state == "complete" or "not finite" in record.reason


@pytest.mark.slow
def test_where_everything_fails_the_last_reason_is_told(tmp_path):
    search, _, _, _ = search_on(tmp_path, pool_of("poison"), spend=budget(warmup_steps=0))
    with pytest.raises(ConstraintError, match="0 refused by constraints, 1 failed; the last reason: loss"):
        search.run()
    (tmp_path / "warm").mkdir()
    search, *_ = search_on(tmp_path / "warm", pool_of("poison"), spend=budget())
    with pytest.raises(NonFiniteError):
        search.run()


@pytest.mark.parametrize("stop_at", [1, 3, 5, 7, 9, 11])
def test_a_search_stopped_anywhere_and_resumed_ends_with_the_trials_asked_for(tmp_path, stop_at):
    pool = pool_of("tanh", "relu", "skip", depth=3)
    search, _, study, observer = search_on(tmp_path, pool, spend=budget())
    observer.stop_at, observer.stop = stop_at, Stopped
    with pytest.raises(Stopped):
        search.run()
    before = study.records
    search, _, study, observer = search_on(tmp_path, pool, spend=budget(), resume=True)
    search.run()
    assert study.records[: len(before)] == before
    assert counts(study.records)["complete"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["uniform", "fair"])
def test_warm_up_stopped_and_resumed_is_warm_up_in_one_go(tmp_path, kind):
    pool = pool_of("tanh", "relu", "normed", depth=3)
    spend = budget(warmup_steps=8, trials=1, steps_per_trial=0, finalist_steps=0)
    weights = []
    for name, stops in (("whole", []), ("parts", [3, 2])):
        folder = tmp_path / name
        folder.mkdir()
        for resume, stop_at in enumerate([*stops, -1]):
            paths = FairPaths(pool, seed=0) if kind == "fair" else None
            search, relay, _, observer = search_on(folder, pool, spend=spend, resume=bool(resume), paths=paths)
            observer.stop_at, observer.stop = stop_at, Stopped
            if stop_at > 0:
                with pytest.raises(Stopped):
                    search.run()
            else:
                search.run()
        weights.append(weights_of(relay.server))
        counts_of = search.context.coverage.to_json()["warmup"]
        assert counts_of == warm_coverage(pool, paths or UniformPaths(pool, seed=0), steps=8)
        assert [given["warmup"] for given in observer.coverages] == [counts_of]
    assert same(*weights)


def warm_coverage(pool, paths, *, steps):
    coverage = Coverage(pool)
    for step in range(steps):
        coverage.add("warmup", paths.path_at(step))
    return coverage.to_json()["warmup"]


def test_coverage_counts_trials_on_shared_weights_too(tmp_path):
    pool = pool_of("tanh", "relu", "skip", depth=2)
    search, _, study, _ = search_on(tmp_path, pool, spend=budget(warmup_steps=4, trials=3, steps_per_trial=2))
    search.run()
    chosen = [record.architecture.choices[1] for record in study.records if not record.cached]
    assert search.context.coverage.steps("trials", "p0") == {n: 2 * chosen.count(n) for n in ("tanh", "relu", "skip")}
    assert sum(search.context.coverage.steps("warmup", "p0").values()) == 4
