from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from l2l_nas import Classification, Regression, TensorSpec
from l2l_nas.errors import DataError

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
        (torch.zeros(4, 2, dtype=torch.int64), (3,), "class targets must be int64"),
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
