from __future__ import annotations

import zlib
from functools import partial

import optuna
import pytest

from l2l_nas import AdamW, ParamServer, Relay
from l2l_nas.cost.closed_form import path_states
from l2l_nas.errors import SettingError
from l2l_nas.nas.evaluation.evaluator import Evaluator
from l2l_nas.nas.objectives import counts
from l2l_nas.nas.samplers.registry import SAMPLERS
from l2l_nas.training.data import Batches
from l2l_nas.training.fit import Trainer
from l2l_nas.training.task import Classification
from tests.nas.problems import budget, data, pool_of, search_on


def evaluator_on(server: ParamServer) -> Evaluator:
    split = data()
    trainer = Trainer(Relay(server), Classification(), Batches(split.train, batch_size=16, seed=0), 16)
    return Evaluator(trainer.executor, trainer, validation=split.validation, budget=budget())


@pytest.mark.parametrize("names", [("tanh", "relu"), ("tanh", "normed")])
def test_a_trial_notes_the_weights_it_is_scored_with(monkeypatch, names):
    pool = pool_of(*names)
    path = pool.architecture(["linear", *names, "linear"])
    evaluate, used = Trainer.score_population, []

    def score(self, architectures, split):
        weights = (self.executor.server.state(key).weights for key in path_states(pool, architectures[0]))
        used.append("".join(f"{zlib.crc32(block.numpy().data):08x}" for block in weights))
        return evaluate(self, architectures, split)

    monkeypatch.setattr(Trainer, "score_population", score)
    evaluator = evaluator_on(ParamServer(pool, optimizer=AdamW(), seed=0))
    result = evaluator.run(budget().trial_segment(path, 0))
    assert result.error is None
    assert result.provenance["crc32"] == used[0]
    assert result.provenance["visits"] == [2, 2, 2, 2]


def test_of_networks_scored_together_one_that_gives_no_number_has_no_score():
    pool = pool_of("tanh", "poison")
    good, bad = (pool.architecture(["linear", "tanh", name, "linear"]) for name in ("tanh", "poison"))
    found = evaluator_on(ParamServer(pool, optimizer=AdamW(), seed=0)).score_all([bad, good])
    assert found[0] is None
    assert found[1].keys() == {"accuracy", "loss"}


@pytest.mark.slow
def test_trials_that_train_nothing_are_evaluated_together_and_score_as_alone(tmp_path, monkeypatch):
    pool = pool_of("tanh", "relu", "wide", "skip", depth=3)
    sizes, records = [], {}
    real = Trainer.score_population
    monkeypatch.setitem(SAMPLERS, "random", lambda seed, trials: optuna.samplers.RandomSampler(seed=seed))

    def score_population(self, architectures, split, **options):
        sizes.append(len(architectures))
        return real(self, architectures, split, **options)

    monkeypatch.setattr(Trainer, "score_population", score_population)
    for population in (1, 7):
        folder = tmp_path / str(population)
        folder.mkdir()
        spend = budget(trials=20, steps_per_trial=0, population=population)
        search, _, study, _ = search_on(folder, pool, spend=spend)
        search.run()
        records[population] = [(r.architecture, r.values) for r in study.records if not r.cached]
        for record in study.records:  # what was proposed twice has the first one's values
            assert record.values == next(r for r in study.records if r.architecture == record.architecture).values
    assert sizes == [*[1] * 20, 7, 7, 6]
    assert records[7] == records[1]  # Optuna's random sampler proposes the same, whoever tells it what


@pytest.mark.slow
def test_trials_that_train_or_that_measure_batchnorm_go_one_by_one(tmp_path, monkeypatch):
    sizes, real = [], Trainer.score_population

    def score_population(self, architectures, split, **options):
        sizes.append(len(architectures))
        return real(self, architectures, split, **options)

    monkeypatch.setattr(Trainer, "score_population", score_population)
    for name, pool, steps_per_trial in (("trains", pool_of("tanh", "relu"), 1), ("norm", pool_of("tanh", "normed"), 0)):
        folder = tmp_path / name
        folder.mkdir()
        search, _, study, _ = search_on(folder, pool, spend=budget(steps_per_trial=steps_per_trial, population=9))
        search.run()
        assert counts(study.records)["complete"] == 4
    assert set(sizes) == {1}


def test_work_that_ranks_could_not_be_told_of_is_refused():
    evaluator = evaluator_on(ParamServer(pool_of("tanh", "relu"), optimizer=AdamW(), seed=0))
    assert evaluator.do(_steps, 2) == 2 * evaluator.batches.batch_size
    assert evaluator.do(partial(_steps, count=3)) == 3 * evaluator.batches.batch_size
    with pytest.raises(SettingError, match="not a lambda"):
        evaluator.do(lambda evaluator: None)


def _steps(evaluator, count):
    return count * evaluator.batches.batch_size
