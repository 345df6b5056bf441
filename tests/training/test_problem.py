from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from l2l_nas import Candidate, Classification, Data, LayerPool, Metric, Position, Problem, TensorSpec, Tokens
from l2l_nas.errors import DataError
from l2l_nas.space.shapes import check_shapes
from l2l_nas.training.data import Split

POOL = LayerPool([Position("a", Candidate("linear", lambda: nn.Linear(2, 3)))], inputs=TensorSpec((2,)))
X, Y = torch.zeros(6, 2), torch.tensor([0, 1, 2, 0, 1, 2])


def check(train: Split, validation: Split) -> None:
    Problem(POOL, Data(train, validation)).check(check_shapes(POOL))


def test_classification_is_the_task_by_default():
    assert isinstance(Problem(POOL, Data(Split((X,), Y), Split((X,), Y))).task, Classification)


def test_both_splits_are_checked_and_named():
    good = Split((X,), Y)
    check(good, good)
    check(good, Split((X,), torch.zeros_like(Y)))  # one class to measure on is no error
    with pytest.raises(DataError, match="the training data is"):
        check(Split((X[:, :1],), Y), good)
    with pytest.raises(DataError, match="the validation data is"):
        check(good, Split((X[:, :1],), Y))
    with pytest.raises(DataError, match="targets range from 0 to 7"):
        check(good, Split((X,), Y + 5))
    with pytest.raises(DataError, match="differ in dtype or shape"):
        check(good, Split((X,), Y.float()))


def test_a_metric_that_does_not_work_is_told_when_the_data_is_checked():
    data = Data(Split((X,), Y), Split((X,), Y))
    problem = Problem(POOL, data, metrics={"mine": Metric(lambda outputs, targets: outputs)})
    assert problem.measured_task.metrics == {"accuracy": True, "loss": False, "mine": True}
    with pytest.raises(DataError, match=r"metric 'mine' gave a tensor of \[6, 3\]; expected one number"):
        problem.check(check_shapes(POOL))


def test_a_data_set_or_loader_is_taken_in_place_of_data():
    whole = TensorDataset(torch.rand(40, 2), torch.arange(40) % 3)
    for given in (whole, DataLoader(whole)):
        problem = Problem(POOL, given)
        assert [len(part) for part in problem.data.parts.values()] == [24, 8, 8]
        problem.check(check_shapes(POOL))
    problem = Problem(POOL, (DataLoader(whole), whole))
    assert {name: len(part) for name, part in problem.data.parts.items()} == {"training": 40, "validation": 40}
    with pytest.raises(
        DataError, match=r"data is Tensor; expected Data, a Dataset or a DataLoader; .*from_arrays\(x, y\)"
    ):
        Problem(POOL, X)


def test_a_part_without_a_target_that_counts_is_refused_and_named():
    pool = LayerPool(
        [Position("a", Candidate("embed", lambda: nn.Embedding(5, 5)))], inputs=TensorSpec((3,), torch.int64)
    )
    tokens = torch.arange(12).reshape(4, 3) % 5
    good, bad = Split((tokens,), tokens), Split((tokens,), torch.full_like(tokens, -1))
    for parts, name in (((bad, good), "training"), ((good, bad), "validation"), ((good, good, bad), "test")):
        with pytest.raises(DataError, match=f"no target of the {name} data counts"):
            Problem(pool, Data(*parts), task=Tokens()).check(check_shapes(pool))


def test_targets_of_several_classes_a_sample_are_refused_in_one_line():
    data = Data.from_arrays(torch.rand(50_000, 2), torch.arange(100_000).reshape(50_000, 2) % 7)
    with pytest.raises(DataError, match=r"class targets must be int64 \[samples\], got") as caught:
        Problem(POOL, data).check(check_shapes(POOL))
    assert len(str(caught.value)) < 120


class Scaled(Classification):
    """Learns a temperature."""

    def __init__(self, scale):
        self.scale = scale


@pytest.mark.parametrize("scale", [nn.Parameter(torch.ones(())), [nn.Linear(2, 2)]])
def test_a_task_with_parameters_of_its_own_is_refused(scale):
    data = Data(Split((X,), Y), Split((X,), Y))
    with pytest.raises(DataError, match=r"'task.scale.*' has parameters of its own"):
        Problem(POOL, data, task=Scaled(scale)).check(check_shapes(POOL))
    (scale[0] if isinstance(scale, list) else scale).requires_grad_(False)
    Problem(POOL, data, task=Scaled(scale)).check(check_shapes(POOL))


def test_a_task_whose_check_raises_is_told_in_one_line():
    class Odd(Classification):
        def check(self, targets, outputs):
            raise ZeroDivisionError("division by zero")

    data = Data(Split((X,), Y), Split((X,), Y))
    with pytest.raises(DataError, match="the task's check raised ZeroDivisionError: division by zero"):
        Problem(POOL, data, task=Odd()).check(check_shapes(POOL))


def test_a_cost_that_is_no_function_is_refused():
    data = Data(Split((X,), Y), Split((X,), Y))
    assert Problem(POOL, data, costs={"mine": lambda architecture: 1.0}).costs.keys() == {"mine"}
    with pytest.raises(DataError, match=r"costs\['mine'\] is float; expected a function"):
        Problem(POOL, data, costs={"mine": 1.0})
