"""Closed forms for smaller layers, against brute force and plain least squares."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import nn

from l2l_nas.layers.least_squares import _ROWS, Moments, fit, fit_product, kept_units, places


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def correlated(rows, width):
    return random(rows, width) @ random(width, width, seed=1) + random(width, seed=2)


def moments(taken, given):
    return Moments.of((taken, given), lambda x, y: (x, y))


def loss(weight, kept, taken):
    """What is lost at least, if a layer takes these numbers alone."""
    given = taken @ weight.t()
    fitted = torch.linalg.lstsq(taken[:, kept], given).solution
    return float((taken[:, kept] @ fitted - given).square().sum())


def removed_one_by_one(weight, taken, count, size, parts):
    """Backward elimination by fitting anew without each unit."""
    left, most = list(range(weight.shape[1] // size)), weight.shape[1] // size // parts
    while len(left) > count:
        free = [unit for unit in left if sum(one // most == unit // most for one in left) > count // parts]
        without = {unit: places(torch.tensor([one for one in left if one != unit]), size) for unit in free}
        left.remove(min(free, key=lambda unit: loss(weight, without[unit], taken)))
    return left


@pytest.mark.parametrize(("size", "parts", "count"), [(1, 1, 5), (1, 3, 6), (2, 1, 3), (3, 1, 2), (2, 3, 3)])
def test_units_are_those_of_backward_elimination(size, parts, count):
    weight, taken = random(7, 12, seed=3), correlated(200_000, 12)
    kept = kept_units(weight, moments(taken, taken), count, size=size, parts=parts)
    assert kept.tolist() == removed_one_by_one(weight, taken[:2000], count, size, parts)


def test_of_units_that_are_alike_one_stays_also_where_many_go_at_once():
    taken, weight = random(20_000, 40), random(8, 80, seed=3)
    taken = torch.cat((taken, taken + 1e-3 * random(20_000, 40, seed=4)), dim=1)
    kept = kept_units(weight, moments(taken, taken), 40)
    assert sorted(int(unit) % 40 for unit in kept) == list(range(40))


@pytest.mark.parametrize(("count", "parts"), [(0, 1), (13, 1), (5, 3)])
def test_units_that_cannot_be_are_refused(count, parts):
    taken = random(50, 12)
    with pytest.raises(ValueError, match=f"cannot keep {count} of 12 units"):
        kept_units(random(7, 12), moments(taken, taken), count, parts=parts)


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_layer_is_fitted_as_by_least_squares_and_stays_if_it_is_right(has_bias):
    taken = correlated(100_000, 6)
    given = taken @ random(6, 4, seed=5) + 3.0 + random(100_000, 4, seed=6)
    layer = nn.Linear(6, 4, bias=has_bias).double()
    columns = torch.cat((taken, torch.ones(len(taken), 1, dtype=torch.float64)), dim=1) if has_bias else taken
    expected = torch.linalg.lstsq(columns, given).solution
    with torch.no_grad():
        fit(layer, moments(taken, given))
        torch.testing.assert_close(layer(taken), columns @ expected, atol=2e-2, rtol=1e-2)
        right = copy.deepcopy(layer)
        fit(right, moments(taken[:3], layer(taken[:3])))  # three rows, six numbers
        torch.testing.assert_close(right.weight, layer.weight)


def test_few_rows_change_little():
    layer, taken = nn.Linear(50, 4, bias=False).double(), random(3, 50)
    before = layer.weight.detach().clone()
    with torch.no_grad():
        fit(layer, moments(taken, random(3, 4, seed=1)))
        assert (taken @ (layer.weight - before).t() - (random(3, 4, seed=1) - taken @ before.t())).norm() > 1


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_product_gives_what_no_other_of_its_rank_gives_more_nearly(has_bias):
    whole = nn.Linear(6, 9, bias=has_bias).double()
    product = nn.Sequential(nn.Linear(6, 2, bias=False), nn.Linear(2, 9, bias=has_bias)).double()
    taken = correlated(500, 6)
    with torch.no_grad():
        fit_product(product, whole, moments(taken, taken))
        given = whole(taken)
        about = given.mean(0) if has_bias else torch.zeros(9, dtype=torch.float64)
        least = torch.linalg.svdvals(given - about)[2:].square().sum()
        torch.testing.assert_close((product(taken) - given).square().sum(), least)


def test_sums_do_not_depend_on_how_many_rows_are_taken_at_a_time(monkeypatch):
    taken, given = random(10, 3, 4), random(10, 3, 2, seed=1)
    expected = moments(taken, given)
    monkeypatch.setattr("l2l_nas.layers.least_squares._ROWS", 7)
    found = moments(taken, given)
    assert found.rows == expected.rows == 30
    for name in ("taken", "given", "gram", "cross"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))
    torch.testing.assert_close(found.cross, given.flatten(0, 1).t() @ taken.flatten(0, 1))


def test_sums_over_many_samples_take_no_more_memory_than_those_over_few():
    there = []

    def pair(x):
        there.append(sum(isinstance(one, torch.Tensor) and one.shape == (7, 7) for one in gc.get_objects()))
        return x, x[:, :2]

    taken = random(5 * _ROWS, 7).float()
    sums = Moments.of((taken,), pair)
    assert there[1:] == [there[1]] * 4
    torch.testing.assert_close(sums.gram, taken.double().t() @ taken.double(), rtol=1e-5, atol=1e-2)
    assert sums.rows == 5 * _ROWS


@pytest.mark.parametrize("has_bias", [True, False])
def test_products_of_what_a_layer_gives_follow_from_those_of_what_it_takes(has_bias):
    layer, taken = nn.Linear(6, 4, bias=has_bias).double(), correlated(50, 6)
    with torch.no_grad():
        given = layer(taken)
        torch.testing.assert_close(moments(taken, given).products(layer), given.t() @ given)


def test_of_what_several_layers_share_sums_and_their_inverse_stay():
    taken, weight = random(50, 11), random(3, 11)
    shared = moments(taken, taken[:, :3])
    kept_units(weight, shared, 5)
    assert sum(isinstance(one, torch.Tensor) and one.shape == (11, 11) for one in gc.get_objects()) == 2
