"""The shape check: on meta, one forward for each candidate, and errors that name the culprit."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec, skip
from l2l_nas.errors import ShapeError, SpaceError
from l2l_nas.space.candidate import describe
from l2l_nas.space.shapes import check_shapes

LINEAR = partial(nn.Linear, 4, 4)
SPEC = TensorSpec((4,))


class Calls:
    """A factory that counts its calls."""

    def __init__(self, module=LINEAR):
        self.module, self.count = module, 0

    def __call__(self):
        self.count += 1
        return self.module()


class Module(nn.Module):
    """A module of one function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def check(*factories, inputs=SPEC):
    candidates = [Candidate(f"c{index}", factory) for index, factory in enumerate(factories)]
    return check_shapes(LayerPool([Position("p", candidates)], inputs=inputs))


def test_it_gives_the_specs_of_all_values():
    pool = LayerPool(
        [Position("p", [Candidate("c", partial(nn.Linear, 4, 2))]), Position("q", [skip()])], inputs=TensorSpec((3, 4))
    )
    shapes = check_shapes(pool)
    assert list(map(describe, shapes.takes)) == ["[batch, 3, 4] float32", "[batch, 3, 2] float32"]
    assert list(map(describe, shapes.gives)) == ["[batch, 3, 2] float32"] * 2
    assert describe(shapes.outputs) == "[batch, 3, 2] float32"


def test_an_output_that_differs_is_named_with_got_and_expected():
    with pytest.raises(ShapeError) as caught:
        check(partial(nn.Linear, 4, 4), partial(nn.Linear, 4, 5))
    error = caught.value
    assert (error.position, error.candidate) == ("p", "c1")
    assert (error.got, error.expected) == ("[batch, 5] float32", "[batch, 4] float32")
    assert "'c0' gives that" in str(error)


def test_a_layer_that_does_not_fit_its_input_is_named():
    with pytest.raises(SpaceError, match=r"position 'p': candidate 'c0': raised on input \[batch, 4\] float32"):
        check(partial(nn.Linear, 5, 4))


def test_a_factory_that_raises_is_named():
    with pytest.raises(SpaceError, match="candidate 'c0': its factory raised ZeroDivisionError"):
        check(lambda: 1 / 0)


def test_a_layer_that_changes_its_input_is_refused():
    with pytest.raises(SpaceError, match="changes its input in place"):
        check(partial(nn.ReLU, inplace=True))


def test_a_layer_that_changes_its_input_only_in_training_is_refused():
    with pytest.raises(SpaceError, match="changes its input in place"):
        check(partial(nn.Dropout, inplace=True))


def test_a_tensor_that_is_a_plain_attribute_is_refused():
    module = nn.Sequential(nn.Linear(4, 4))
    module[0].table = torch.ones(3)
    with pytest.raises(SpaceError, match=r"'0\.table' as a plain attribute"):
        check(lambda: module)


@pytest.mark.parametrize("function", [torch.sum, torch.t])
def test_an_output_without_batch_dimension_is_refused(function):
    with pytest.raises(SpaceError, match="batch dimension"):
        check(partial(Module, function))


@pytest.mark.parametrize("function", [lambda x: {"x": 3}, lambda x: {}, lambda x: (), lambda x: (x, 3)])
def test_an_output_that_is_no_tensor_is_refused(function):
    with pytest.raises(SpaceError, match="returns a tensor, or a tuple, dict or dataclass of tensors"):
        check(partial(Module, function))


def test_tuples_pass():
    shapes = check(partial(Module, lambda x, m: (x, m)), inputs=(TensorSpec((4,)), TensorSpec((4,), torch.bool)))
    assert describe(shapes.outputs) == "[batch, 4] float32, [batch, 4] bool"


def test_tied_parameters_must_agree_in_shape():
    tied = {"weight": "w"}
    pool = LayerPool(
        [
            Position("p", [Candidate("c", partial(nn.Linear, 4, 3), tied=tied)]),
            Position("q", [Candidate("c", partial(nn.Linear, 3, 4), tied=tied)]),
        ],
        inputs=TensorSpec((4,)),
    )
    with pytest.raises(SpaceError, match=r"position 'q'.*ties 'weight' \[4, 3\] to 'w', which is \[3, 4\]"):
        check_shapes(pool)


@pytest.mark.parametrize("depth", [2, 8])
def test_the_work_grows_with_the_sum_of_candidates_not_with_the_product(depth):
    factories = [[Calls() for _ in range(5)] for _ in range(depth)]
    positions = [
        Position(f"p{index}", [Candidate(f"c{number}", factory) for number, factory in enumerate(row)])
        for index, row in enumerate(factories)
    ]
    check_shapes(LayerPool(positions, inputs=TensorSpec((4,))))
    assert [factory.count for row in factories for factory in row] == [1] * (5 * depth)
