from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from l2l_nas import Classification, Metric, TensorSpec
from l2l_nas.errors import DataError
from l2l_nas.training.metrics import MeasuredTask, Running

LOGITS = torch.tensor([[2.0, 0, 1], [0, 3, 0], [1, 0, 0], [0, 0, 5]])
CLASSES = torch.tensor([0, 1, 2, 2])


def top2(outputs, targets):
    return (outputs.topk(2, dim=-1).indices == targets[:, None]).any(dim=-1).float().mean()


class Odd(Classification):
    """A task whose `measure` gives something else."""

    def __init__(self, given) -> None:
        self.given = given

    def measure(self, outputs, targets):
        if isinstance(self.given, Exception):
            raise self.given
        return self.given


def test_metrics_of_ones_own_stand_beside_those_of_the_task():
    own = {"top2": Metric(top2), "spread": Metric(lambda outputs, targets: outputs.std(), maximize=False)}
    task = MeasuredTask(Classification(), own)
    assert task.metrics == {"accuracy": True, "loss": False, "top2": True, "spread": False}
    measured = task.measure((LOGITS,), CLASSES)
    assert list(measured) == ["accuracy", "loss", "top2", "spread"]
    assert measured["top2"] == 0.75
    assert measured["spread"] == pytest.approx(float(LOGITS.std()))
    assert task.count(CLASSES) == 4
    assert float(task.loss((LOGITS,), CLASSES)) == float(Classification().loss((LOGITS,), CLASSES))
    with pytest.raises(DataError, match="class targets must be int64"):
        task.check(CLASSES.float(), (TensorSpec((3,)),))


def test_several_outputs_come_as_a_tuple():
    seen = []
    task = MeasuredTask(Classification(), {"mine": Metric(lambda outputs, targets: seen.append(outputs) or 1.0)})
    task.measure((LOGITS, CLASSES), CLASSES)
    assert isinstance(seen[0], tuple)
    assert seen[0][1] is CLASSES


@pytest.mark.parametrize(
    "value", [1, 0.5, np.float32(0.5), np.array([0.5]), torch.tensor([[0.5]]), torch.tensor(1), True]
)
def test_whatever_is_one_number_is_taken(value):
    found = MeasuredTask(Classification(), {"mine": Metric(lambda o, t: value)}).measure((LOGITS,), CLASSES)["mine"]
    assert type(found) is float
    assert found == float(value if isinstance(value, bool | int | float) else value.item())


def test_nan_is_left_to_the_trial():
    task = MeasuredTask(Classification(), {"mine": Metric(lambda o, t: float("nan"))})
    assert math.isnan(task.measure((LOGITS,), CLASSES)["mine"])
    task.try_out(CLASSES, (TensorSpec((3,)),))


WRONG = [
    ({"accuracy": 1.0}, "the task's measure misses loss; its metrics are accuracy, loss"),
    ({"accuracy": 1.0, "loss": 1.0, "f1": 1.0}, "the task's measure also has f1; its metrics are accuracy, loss"),
    ((0.5, 0.6), "gave a tuple of 2; expected a dict with a number for each of accuracy, loss"),
    (None, r"gave nothing \(None\); expected a dict"),
    ({"accuracy": torch.ones(3), "loss": 1.0}, r"metric 'accuracy' gave a tensor of \[3\]; expected one number"),
    ({"accuracy": None, "loss": 1.0}, r"metric 'accuracy' gave nothing \(None\); expected one number"),
    (KeyError("f1"), "the task's measure raised KeyError: 'f1'"),
]


@pytest.mark.parametrize(("given", "says"), WRONG, ids=[says[:40] for _, says in WRONG])
def test_a_task_that_does_not_keep_its_word_is_one_line(given, says):
    task = MeasuredTask(Odd(given), {})
    with pytest.raises(DataError, match=says):
        task.measure((LOGITS,), CLASSES)
    with pytest.raises(DataError, match=says):  # and before any training
        task.try_out(CLASSES, (TensorSpec((3,)),))


def test_a_metric_of_ones_own_that_raises_is_named():
    task = MeasuredTask(Classification(), {"mine": Metric(lambda outputs, targets: outputs[0, 99])})
    with pytest.raises(DataError, match=r"metric 'mine' raised IndexError: index 99 is out of bounds"):
        task.try_out(CLASSES, (TensorSpec((3,)),))


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"accuracy": Metric(top2)}, "metric 'accuracy': the task has one of this name"),
        ({"top 2": Metric(top2)}, "letters, digits and _"),
        ({"top2": top2}, r"metric 'top2' is function; write Metric\(function, maximize=...\)"),
    ],
)
def test_names_and_things_that_are_no_metric_are_refused(own, says):
    with pytest.raises(DataError, match=says):
        MeasuredTask(Classification(), own)


def test_a_metric_is_tried_out_on_few_samples_of_the_outputs_shape():
    seen = []

    def note(outputs, targets):
        seen.append((tuple(outputs.shape), len(targets)))
        return 0.0

    task = MeasuredTask(Classification(), {"mine": Metric(note)})
    task.try_out(torch.arange(5000) % 3, (TensorSpec((3,)),))
    task.try_out(torch.arange(40) % 3, (TensorSpec((3,)),))
    assert seen == [((256, 3), 256), ((40, 3), 40)]


class Hits:
    """A streaming metric."""

    def __init__(self):
        self.hits = self.count = 0

    def update(self, outputs, targets):
        self.hits += int((outputs.argmax(dim=-1) == targets).sum())
        self.count += len(targets)

    def compute(self):
        return self.hits / self.count


def test_a_streaming_metric_is_copied_and_equals_the_function():
    hits = Hits()
    hits.update(LOGITS, CLASSES)  # not begun anew where it has no reset
    task = MeasuredTask(Classification(), {"hits": Metric(Hits()), "used": Metric(hits)})
    assert task.gathered == ()
    assert task.measure((LOGITS,), CLASSES) == {
        **Classification().measure((LOGITS,), CLASSES),
        "hits": 0.75,
        "used": 0.75,
    }
    assert (hits.count, task.metrics["hits"]) == (4, True)


def test_torchmetrics_are_taken_as_they_are():
    torchmetrics = pytest.importorskip("torchmetrics")
    f1 = torchmetrics.classification.MulticlassF1Score(3)
    f1.update(LOGITS, 2 - CLASSES)  # which is reset
    task = MeasuredTask(Classification(), {"f1": f1, "error": Metric(torchmetrics.MeanMetric(), maximize=False)})
    task.streaming.pop("error")
    assert task.metrics["f1"] is True
    wanted = torchmetrics.functional.classification.multiclass_f1_score(LOGITS, CLASSES, 3)
    running = Running(task.streaming)
    for rows in (slice(0, 1), slice(1, 4)):
        running.update((LOGITS[rows],), CLASSES[rows])
    assert running.compute() == {"f1": float(wanted)}
    error = torchmetrics.classification.MulticlassCalibrationError(3)
    assert MeasuredTask(Classification(), {"calibration": error}).metrics["calibration"] is False
    with pytest.raises(
        DataError, match=r"metric 'mean' is MeanMetric; write Metric\(MeanMetric\(...\), maximize=...\)"
    ):
        MeasuredTask(Classification(), {"mean": torchmetrics.MeanMetric()})


@pytest.mark.parametrize("when", ["update", "compute"])
def test_a_streaming_metric_that_raises_is_named(when):
    class Odd(Hits):
        pass

    def broken(*given):
        raise ZeroDivisionError("division by zero")

    setattr(Odd, when, broken)
    task = MeasuredTask(Classification(), {"odd": Metric(Odd())})
    with pytest.raises(DataError, match="metric 'odd' raised ZeroDivisionError"):
        task.try_out(CLASSES, (TensorSpec((3,)),))
