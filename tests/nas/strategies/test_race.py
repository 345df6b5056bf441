"""A race: trials from first weights are the first steps of the finalists' training."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from l2l_nas import AdamW, ParamServer, Relay
from l2l_nas.errors import SettingError
from l2l_nas.nas.evaluation.evaluator import Evaluator
from l2l_nas.nas.objectives import Goal
from l2l_nas.nas.strategies.trials import TrialLoop
from l2l_nas.training.data import Batches
from l2l_nas.training.fit import Trainer
from l2l_nas.training.schedule import Cosine
from l2l_nas.training.task import Classification
from tests.nas.problems import budget, change_finalists, data, pool_of, search_on

ACCURACY = (Goal("accuracy", True),)
RACE = {
    "warmup_steps": 0, "trials": 7, "steps_per_trial": 3, "finalists": 3, "finalist_steps": 12, "finalist_rounds": 2,
    "trial_weights": "scratch",
}  # fmt: skip


def raced(folder, *, goals=ACCURACY, **changes):
    folder.mkdir(exist_ok=True)
    pool = pool_of("tanh", "relu", "normed", "skip", depth=3)
    search, _, _, observer = search_on(folder, pool, spend=budget(**{**RACE, **changes}), goals=goals)
    best = search.run()
    return search, best, observer


def same_weights(a, b):
    assert set(a.visited) == set(b.visited)
    for key in a.visited:
        for name, tensor in a.state(key).tensors().items():
            assert torch.equal(b.state(key).tensors()[name], tensor), (key, name)


def test_the_best_has_the_weights_of_one_training_without_a_halt(tmp_path):
    search, best, _ = raced(tmp_path)
    assert [(one.finalists, one.steps) for one in search.context.budget.rounds] == [(3, 4), (2, 5)]
    assert best.steps == 12
    assert list(best.rungs) == ["3/12", "5/12", "6/12", "7/12", "10/12", "11/12", "12/12"]
    assert best.rungs["3/12"]["accuracy"] == best.record.values["accuracy"]
    architecture, split = best.record.architecture, data()
    relay = Relay(ParamServer(search.context.pool, optimizer=AdamW(), seed=0))
    trainer = Trainer(relay, Classification(), Batches(split.train, batch_size=16, seed=0), 16)
    trainer.fit(lambda step: architecture, start=0, steps=3, schedule=Cosine(0.01, 12))
    trainer.recalibrate(architecture)
    assert trainer.evaluate(architecture, split.validation)["accuracy"] == best.record.values["accuracy"]
    trainer.fit(lambda step: architecture, start=3, steps=9, schedule=Cosine(0.01, 12))
    trainer.recalibrate(architecture)
    assert trainer.evaluate(architecture, split.validation) == best.scores["validation"].values
    same_weights(best.server, relay.server)


def test_weights_of_trials_that_are_not_at_hand_are_made_again_and_are_the_same(tmp_path, monkeypatch):
    _, best, saved = raced(tmp_path / "held")
    monkeypatch.setattr(TrialLoop, "_hold", lambda self, record, server: None)
    _, again, made = raced(tmp_path / "made")
    assert [one.entry() for one in saved.finalists] == [one.entry() for one in made.finalists]
    assert best.entry() == again.entry()
    same_weights(best.server, again.server)


def test_the_trainings_of_trials_that_go_on_are_not_done_twice(tmp_path, monkeypatch):
    steps, real = [], Trainer.fit

    def fit(self, path_at, *, start, steps: int, **more):
        counted.append(steps)
        real(self, path_at, start=start, steps=steps, **more)

    counted = steps
    monkeypatch.setattr(Trainer, "fit", fit)
    search, _, _ = raced(tmp_path)
    assert sum(counted) == search.context.budget.steps == 7 * 3 + 3 * 4 + 2 * 5


@pytest.mark.slow
@pytest.mark.parametrize(("goals", "most"), [(ACCURACY, 4), ((*ACCURACY, Goal("parameters", False)), 1)])
def test_no_more_weights_are_held_than_there_are_finalists(tmp_path, monkeypatch, goals, most):
    real, alive, counts = Evaluator.run, weakref.WeakSet(), []

    def run(self, segment, **options):
        result = real(self, segment, **options)
        if segment.name.startswith("the trial"):
            alive.add(result.server)
            gc.collect()
            counts.append(len(alive))
        return result

    monkeypatch.setattr(Evaluator, "run", run)
    raced(tmp_path, goals=goals, finalist_rounds=1)
    assert max(counts) <= most


@pytest.mark.slow
def test_the_weights_of_those_left_behind_are_gone_by_the_last_round(tmp_path, monkeypatch):
    alive, counts = weakref.WeakSet(), []

    def changed(segment, result):
        gc.collect()
        counts.append(len(alive))
        alive.add(result.server)
        return result

    change_finalists(monkeypatch, changed)
    raced(tmp_path, finalists=4, finalist_steps=24, finalist_rounds=3)  # of 4, 2, 1
    assert len(counts) == 7
    assert counts[-1] == 1


def test_where_no_finalist_is_trained_a_trial_is_a_training_of_its_own(tmp_path, monkeypatch):
    rates, real = [], Trainer.fit

    def fit(self, path_at, *, start, steps, schedule, offset=0, **more):
        rates.append([schedule.at(step - offset) for step in range(start, start + steps)])
        real(self, path_at, start=start, steps=steps, schedule=schedule, offset=offset, **more)

    monkeypatch.setattr(Trainer, "fit", fit)
    for steps, whole in ((12, 12), (0, 3)):  # of finalists that there may be later, or of none
        rates.clear()
        raced(tmp_path / str(steps), finalists=0, finalist_rounds=1, finalist_steps=steps)
        assert rates == [[Cosine(0.01, whole).at(step) for step in range(3)]] * 7


def test_trials_and_finalists_that_cannot_be_one_training_are_refused():
    with pytest.raises(SettingError, match=r"search\.finalist_steps must be above search\.steps_per_trial=3, got 3"):
        budget(**{**RACE, "finalist_steps": 3})
    with pytest.raises(SettingError, match=r"search\.finalist_learning_rate=0\.02 and train\.learning_rate=0\.01"):
        budget(**RACE, finalist_learning_rate=0.02)
    budget(**{**RACE, "finalists": 0, "finalist_steps": 0}, finalist_learning_rate=0.02)
