from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from l2l_nas import SGD, Candidate, Classification, LayerPool, ParamServer, Position, Regression, Relay, TensorSpec
from l2l_nas.errors import DataError
from l2l_nas.training import task as task_module
from l2l_nas.training.export import build_network
from l2l_nas.training.task import Tokens

LOGITS = torch.tensor([[2.0, 0, 1], [0, 3, 0], [1, 0, 0], [0, 0, 5]])
CLASSES = torch.tensor([0, 1, 2, 2])


def test_classification_measures_accuracy_and_mean_cross_entropy():
    task = Classification()
    assert task.measure((LOGITS,), CLASSES) == {
        "accuracy": 0.75,
        "loss": pytest.approx(float(functional.cross_entropy(LOGITS, CLASSES))),
    }
    assert task.count(CLASSES) == 4
    parts = sum(float(task.loss((LOGITS[i : i + 2],), CLASSES[i : i + 2])) for i in (0, 2))
    assert parts == pytest.approx(float(task.loss((LOGITS,), CLASSES)))
    assert task.metrics == {"accuracy": True, "loss": False}


def pooled(counted, ignored):
    """Logits and targets: those that count, and some that do not."""
    logits = torch.cat([LOGITS[:counted], torch.tensor([[9.0, -9, 0]]).expand(ignored, 3)])
    return logits, torch.cat([CLASSES[:counted], torch.full((ignored,), -100)])


def test_targets_of_minus_100_do_not_count():
    task = Classification()
    logits, targets = pooled(4, 3)
    assert task.measure((logits,), targets) == task.measure((LOGITS,), CLASSES)
    assert task.loss((logits,), targets) / task.count(targets) == functional.cross_entropy(logits, targets)
    task.check(targets, (TensorSpec((3,)),))


@pytest.mark.parametrize("ignored", [-1, -100])
def test_places_of_minus_1_and_minus_100_do_not_count(ignored):
    logits, targets = LOGITS.view(2, 2, 3), CLASSES.view(2, 2).clone()
    targets[0, 1] = ignored
    task = Tokens()
    assert task.count(targets) == 3
    expected = functional.cross_entropy(LOGITS, targets.flatten(), ignore_index=ignored)
    assert task.loss((logits,), targets) / 3 == expected
    assert task.measure((logits,), targets) == {
        "accuracy": pytest.approx(2 / 3),
        "loss": pytest.approx(float(expected)),
    }
    task.check(targets, (TensorSpec((2, 3)),))
    with pytest.raises(DataError, match="range from -2"):
        task.check(torch.full_like(targets, -2), (TensorSpec((2, 3)),))


@pytest.mark.parametrize("num_bytes", [1, 3 * 4 * 97, 1 << 30], ids=["a place", "some places", "all places"])
def test_figures_of_places_are_the_same_however_many_are_computed_at_a_time(num_bytes, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 7, 97, generator=generator)
    targets = torch.randint(97, (3, 7), generator=generator)
    targets[0, 2:] = -1
    monkeypatch.setattr(task_module, "PIECE", num_bytes)
    counts, is_right, losses = Tokens.places((logits,), targets)
    expected = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="none")
    assert torch.equal(losses.flatten(), expected)
    assert torch.equal(counts, targets >= 0)
    assert torch.equal(is_right, logits.argmax(-1) == targets)


def test_places_of_which_none_counts_have_no_figures():
    counts, is_right, losses = Tokens.places((torch.randn(2, 3, 5),), torch.full((2, 3), -1))
    assert not counts.any()
    assert not is_right.any()
    assert not losses.any()


@pytest.mark.parametrize("task", [Classification(), Tokens()])
def test_a_step_is_the_mean_over_the_targets_that_count(task):
    shape = () if isinstance(task, Classification) and not isinstance(task, Tokens) else (5,)
    pool = LayerPool([Position("only", Candidate("linear", lambda: nn.Linear(4, 3)))], inputs=TensorSpec((*shape, 4)))
    generator = torch.Generator().manual_seed(0)
    x, targets = torch.randn(6, *shape, 4, generator=generator), torch.arange(6).remainder(3)
    targets = targets[:, None].repeat(1, 5) if shape else targets
    targets[:3] = -100
    server, path = ParamServer(pool, optimizer=SGD(), seed=0), pool.architecture(["linear"])
    expected = functional.cross_entropy(build_network(server, path)(x).flatten(0, -2), targets.flatten())
    done = Relay(server, device="cpu").train_step(path, (x,), targets, objective=task, micro_batch=4, lr=0.1, step=0)
    assert done.loss == pytest.approx(expected.item())
    assert done.count == int((targets != -100).sum())


def test_regression_measures_squared_error_and_explained_variance():
    task = Regression()
    targets = torch.tensor([[0.0, 1], [2, 3], [4, 8]])
    outputs = targets + torch.tensor([[1.0, 0], [0, 0], [0, -1]])
    measured = task.measure((outputs,), targets)
    assert measured["loss"] == pytest.approx(2 / 6)
    spread = float(((targets - targets.mean(dim=0)) ** 2).sum())
    assert measured["r2"] == pytest.approx(1 - 2 / spread)
    assert task.measure((targets,), targets)["r2"] == 1
    assert task.measure((torch.ones(2, 1),), torch.ones(2, 1))["r2"] == 0
    assert task.count(targets) == 6


@pytest.mark.parametrize(
    ("targets", "shape", "says"),
    [
        (torch.zeros(4), (3,), "class targets must be int64"),
        (CLASSES[:, None], (3,), r"class targets must be int64 .*; flatten them: y.reshape\(-1\)"),
        (CLASSES, (3, 8), "classification needs logits"),
        (CLASSES, (2,), "targets range from 0 to 2, but the pool's last layer gives 2 classes"),
        (CLASSES - 1, (3,), "targets range from -1 to 1"),
    ],
)
def test_classes_that_cannot_be_learned_are_refused(targets, shape, says):
    with pytest.raises(DataError, match=says):
        Classification().check(targets, (TensorSpec(shape),))


@pytest.mark.parametrize(
    ("targets", "says"),
    [
        (CLASSES[:, None], "regression targets must be float32"),
        (torch.tensor([[1.0], [float("nan")]]), "the targets hold NaN or inf"),
        (torch.zeros(4, 2), "targets are"),
    ],
)
def test_numbers_that_cannot_be_learned_are_refused(targets, says):
    with pytest.raises(DataError, match=says):
        Regression().check(targets, (TensorSpec((1,)),))


def test_what_fits_is_accepted():
    Classification().check(CLASSES, (TensorSpec((3,)),))
    Regression().check(torch.zeros(4, 1), (TensorSpec((1,)),))
