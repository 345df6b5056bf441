"""Trials that train a copy of the shared weights, or first weights."""

from __future__ import annotations

import gc
import weakref

import pytest

from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import ConstraintError, NonFiniteError
from l2l_nas.nas.callback import Stopped
from l2l_nas.nas.objectives import counts
from l2l_nas.training.fit import Trainer
from tests.nas.problems import budget, pool_of, same, search_on, weights_of


@pytest.fixture
def before_and_after(monkeypatch):
    """Shared weights when the trials began and when the finalists did."""
    seen = []

    def watch(search, relay, observer):
        real = observer.phase

        def phase(name, **figures):
            real(name, **figures)
            if name != "warm-up":
                seen.append(weights_of(relay.server))

        observer.phase = phase
        return seen

    return watch


@pytest.mark.parametrize("kind", ["fork", "scratch"])
@pytest.mark.parametrize("names", [("tanh", "relu", "skip"), ("tanh", "normed", "skip")])
def test_trials_on_a_copy_leave_the_pool_untouched(tmp_path, steps, before_and_after, kind, names):
    pool = pool_of(*names)
    spend = budget(trials=3, steps_per_trial=2, finalists=2, trial_weights=kind)
    search, relay, study, observer = search_on(tmp_path, pool, spend=spend)
    shared = relay.server
    seen = before_and_after(search, relay, observer)
    best = search.run()
    assert relay.server is shared
    assert same(*seen)
    assert same(seen[0], weights_of(shared))
    own = [*[0, 1] * 3, *[0, 1, 2] * 2] if kind == "scratch" else [*range(4, 4 + 3 * 2 + 2 * 3)]
    assert [step for step, *_ in steps] == [0, 1, 2, 3, *own]
    trained = [server for *_, server in steps[4:10]]
    assert all(server is not shared for server in trained)
    assert [lr for _, _, lr, _ in steps[4:6]] == [lr for _, _, lr, _ in steps[6:8]]  # each trial has its own schedule
    assert not search.context.coverage.to_json()["trials"]["p0"]["tanh"]
    assert best.server is not shared
    assert counts(study.records)["complete"] == 3


def test_a_fork_begins_with_the_pool_s_weights_and_scratch_with_the_seed_s(tmp_path, monkeypatch):
    pool = pool_of("tanh", "relu")
    begun = []
    real = Trainer.fit

    def fit(self, path_at, *, start, steps, **options):
        begun.append((self.executor.server, weights_of(self.executor.server)))
        real(self, path_at, start=start, steps=steps, **options)

    monkeypatch.setattr(Trainer, "fit", fit)
    for kind in ("fork", "scratch"):
        folder = tmp_path / kind
        folder.mkdir()
        begun.clear()
        search, relay, _, _ = search_on(folder, pool, spend=budget(trials=1, trial_weights=kind))
        search.run()
        shared = weights_of(relay.server)
        assert len(begun) == 3
        for server, weights in begun[1:]:  # the trial and the finalist
            if kind == "fork":
                assert weights
                assert same(weights, {key: shared[key] for key in weights})
            else:
                assert not weights  # all are made on their first visit
                assert server.seed == relay.server.seed


@pytest.mark.slow
def test_copies_are_dropped_after_their_trial(tmp_path, monkeypatch):
    copies = []
    real = ParamServer.fork

    def fork(self, keys):
        gc.collect()
        assert sum(copy() is not None for copy in copies) == 0
        copy = real(self, keys)
        copies.append(weakref.ref(copy))
        return copy

    monkeypatch.setattr(ParamServer, "fork", fork)
    pool = pool_of("tanh", "relu")
    search, *_ = search_on(tmp_path, pool, spend=budget(trials=4, trial_weights="fork"))
    search.run()
    assert len(copies) == 5


@pytest.mark.parametrize("kind", ["fork", "scratch"])
def test_nan_in_a_trial_on_a_copy_fails_that_trial_alone(tmp_path, before_and_after, kind):
    pool = pool_of("tanh", "poison", depth=2)
    spend = budget(trials=4, warmup_steps=0, trial_weights=kind)
    search, relay, study, observer = search_on(tmp_path, pool, spend=spend)
    shared = relay.server
    seen = before_and_after(search, relay, observer)
    best = search.run()
    found = counts(study.records)
    assert (found["complete"], found["failed"]) == (1, 3)
    assert best.record.architecture.choices == ("linear", "tanh", "tanh", "linear")
    assert same(*seen)
    assert relay.server is shared


class Kaboom(Exception):
    pass


@pytest.mark.parametrize("error", [Kaboom, Stopped, KeyboardInterrupt, NonFiniteError])
@pytest.mark.parametrize("where", ["fit", "score_population"])
def test_the_relay_serves_the_pool_again_whatever_a_trial_raises(tmp_path, monkeypatch, error, where):
    pool = pool_of("tanh", "relu")
    spend = budget(warmup_steps=0, trials=1, trial_weights="fork")
    search, relay, study, _ = search_on(tmp_path, pool, spend=spend)
    shared = relay.server

    def fail(self, *_, **__):
        assert self.executor.server is not shared
        raise NonFiniteError("loss", layer=None, step=0) if error is NonFiniteError else error

    monkeypatch.setattr(Trainer, where, fail)
    with pytest.raises(ConstraintError if error is NonFiniteError else error):
        search.run()
    assert relay.server is shared
    assert [record.state for record in study.records] == (["failed"] if error is NonFiniteError else [])


def test_an_update_of_a_copy_that_fails_late_does_not_reach_the_pool(tmp_path, monkeypatch):
    search, relay, _, _ = search_on(tmp_path, pool_of("tanh"), spend=budget(warmup_steps=0, trial_weights="fork"))
    shared = relay.server
    real = type(relay).drain
    failed = []

    def drain(self):
        real(self)
        if self.server is not shared and not failed:
            failed.append(True)
            raise NonFiniteError("gradient", layer="p0/tanh", step=1)

    relay.use(shared.fork(()))
    monkeypatch.setattr(type(relay), "drain", drain)
    search.context.evaluator._use_pool()
    assert failed
    assert relay.server is shared


@pytest.mark.slow
def test_a_trial_on_a_copy_may_be_stopped_at_any_step(tmp_path):
    pool = pool_of("tanh", "relu", depth=3)
    spend = budget(warmup_steps=0, trials=2, steps_per_trial=50, trial_weights="fork")
    search, relay, study, observer = search_on(tmp_path, pool, spend=spend)
    observer.stop_at, observer.stop = 10, Stopped
    before = relay.server
    with pytest.raises(Stopped):
        search.run()
    assert study.records == ()
    assert relay.server is before
    search, _, study, _ = search_on(tmp_path, pool, spend=spend, resume=True)
    search.run()
    assert counts(study.records)["complete"] == 2


@pytest.mark.parametrize(("kind", "steps_per_trial"), [("shared", 2), ("shared", 0), ("fork", 2), ("scratch", 2)])
def test_each_trial_records_the_weights_it_was_scored_with_in_the_saved_study(tmp_path, kind, steps_per_trial):
    pool = pool_of("tanh", "relu", depth=2)
    spend = budget(warmup_steps=4, trials=3, steps_per_trial=steps_per_trial, trial_weights=kind)
    search, _, study, _ = search_on(tmp_path, pool, spend=spend)
    search.run()
    again = search_on(tmp_path, pool, spend=spend, resume=True)[2]
    assert [record.weights for record in again.records] == [record.weights for record in study.records]
    for record in again.records:
        weights = record.weights
        assert weights["kind"] == kind
        assert len(weights["visits"]) == 4
        assert len(weights["crc32"]) == 8 * 4
        if kind == "scratch":
            assert weights["visits"] == [2] * 4
        if kind == "fork":
            assert weights["visits"][0] == 4 + 2  # the stem: all of warm-up, and the trial


def test_of_a_population_only_what_is_not_finite_fails(tmp_path):
    pool = pool_of("tanh", "relu", "poison", depth=2)
    spend = budget(trials=9, steps_per_trial=0, warmup_steps=0, population=9)
    search, _, study, _ = search_on(tmp_path, pool, spend=spend)
    search.run()
    for record in study.records:
        assert (record.state == "failed") == ("poison" in record.architecture.choices)
    assert counts(study.records)["failed"] == 5
