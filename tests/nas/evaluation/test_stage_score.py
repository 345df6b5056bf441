"""After which steps a stage is scored, what its score is, and that it leaves the training as it is."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from l2l_nas import AdamW, ParamServer
from l2l_nas.errors import NonFiniteError
from l2l_nas.nas.evaluation.segment import ScoredOn, Segment
from l2l_nas.nas.evaluation.stage_score import score_steps, stage_score
from l2l_nas.training.fit import Trainer
from l2l_nas.training.score import Score
from tests.nas.evaluation.test_evaluator import evaluator_on
from tests.nas.problems import pool_of


@pytest.mark.parametrize(
    ("done", "steps", "total", "expected"),
    [
        (0, 74, 740, (74,)),
        (74, 95, 740, (169,)),  # below 40 %: the last one alone
        (169, 190, 740, (297, 328, 359)),  # none before 40 %
        (359, 381, 740, (642, 691, 740)),
        (0, 740, 740, (642, 691, 740)),  # a training without a halt
        (0, 12, 12, (10, 11, 12)),
        (9, 1, 12, (10,)),  # no place for more
        (9, 2, 12, (11,)),
        (0, 0, 740, (0,)),
        (0, 0, 0, (0,)),
        (0, 1, 1, (1,)),
    ],
)
def test_a_stage_is_scored_three_times_from_forty_percent_of_the_steps_on(done, steps, total, expected):
    assert score_steps(done, steps, total) == expected


def rungs(**accuracies):
    return {f"{name[1:]}/100": {"accuracy": value, "loss": 1 - value} for name, value in accuracies.items()}


def test_the_score_is_the_mean_of_the_last_three_and_its_error_knows_their_spread():
    found = stage_score(rungs(s20=0.1, s40=0.5, s50=0.6, s60=0.4, s70=0.8), Score({}, {"accuracy": 0.03}))
    assert found.values == {"accuracy": pytest.approx(0.6), "loss": pytest.approx(0.4)}
    assert found.steps == (50, 60, 70)
    assert found.errors == {"accuracy": pytest.approx(math.hypot(0.03, 0.2 / math.sqrt(3)))}


def test_early_scores_are_none_of_it_and_one_alone_has_the_error_of_the_samples():
    assert stage_score(rungs(s10=0.1, s39=0.5), Score({})) is None
    found = stage_score(rungs(s10=0.1, s39=0.5, s40=0.7), Score({}, {"accuracy": 0.03}))
    assert (found.values["accuracy"], found.steps, found.errors) == (0.7, (40,), {"accuracy": 0.03})


def segment(pool, *names, **changes):
    architecture = pool.architecture(["linear", *names, "linear"])
    given = {"weights": "scratch", "start": 0, "steps": 30, "learning_rate": 0.01, "scored_on": ScoredOn.ERRORS}
    return Segment("finalist 1", architecture, **{**given, **changes})


@pytest.mark.parametrize("names", [("tanh", "relu"), ("tanh", "reading"), ("tanh", "normed")])
def test_scores_on_the_way_change_nothing_of_the_training(names, monkeypatch):
    pool = pool_of(*dict.fromkeys(names))
    results = []
    for scored_on in (ScoredOn.ERRORS, ScoredOn.VALIDATION):
        evaluator = evaluator_on(ParamServer(pool, optimizer=AdamW(), seed=0))
        results.append(evaluator.run(segment(pool, *names, scored_on=scored_on)))
    often, once = results
    assert list(often.rungs) == ["26/30", "28/30", "30/30"]
    assert not once.rungs
    assert often.rungs["30/30"] == often.metrics == once.metrics
    for key in once.server.visited:
        for name, tensor in once.server.state(key).tensors().items():
            assert torch.equal(often.server.state(key).tensors()[name], tensor), (key, name)
    # what a shorter training of the same rates comes to
    evaluator = evaluator_on(ParamServer(pool, optimizer=AdamW(), seed=0))
    shorter = evaluator.run(replace(segment(pool, *names), steps=26, total=30, scored_on=ScoredOn.VALIDATION))
    assert often.rungs["26/30"] == shorter.metrics


def test_what_is_not_finite_on_its_way_has_failed(monkeypatch):
    pool = pool_of("tanh")
    evaluator = evaluator_on(ParamServer(pool, optimizer=AdamW(), seed=0))
    monkeypatch.setattr(Trainer, "evaluate", lambda self, architecture, split: {"accuracy": math.nan, "loss": 1.0})
    result = evaluator.run(segment(pool, "tanh", "tanh"))
    assert isinstance(result.error, NonFiniteError)
    assert "at step 26" in str(result.error)
