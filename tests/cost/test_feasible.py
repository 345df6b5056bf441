from __future__ import annotations

import re
from itertools import product

import pytest

from l2l_nas import Require
from l2l_nas.cost.catalogue import parameters_cost
from l2l_nas.cost.closed_form import num_parameters
from l2l_nas.cost.feasible import check_limits, least
from l2l_nas.cost.flops import Flops
from l2l_nas.cost.table import Cost, Costs, Limit
from l2l_nas.errors import ConstraintError
from l2l_nas.space.constraint import first_violation
from l2l_nas.space.shapes import check_shapes
from tests.report.examples import small_pool
from tests.toys import dense_pool, repeated_pool


def costs_of(pool, *more: Cost) -> Costs:
    flops = Flops(pool, check_shapes(pool))
    return Costs([parameters_cost(pool), Cost("flops", flops, flops.of_layer), *more])


def everything(pool):
    return [
        pool.architecture(names)
        for names in product(*([candidate.name for candidate in position.candidates] for position in pool.positions))
    ]


@pytest.mark.parametrize("name", ["parameters", "flops"])
def test_the_least_is_what_going_through_all_finds(name):
    pool = small_pool(depth=3)
    costs = costs_of(pool)
    cheapest = least(pool, costs, name)
    assert costs.value(name, cheapest) == min(costs.value(name, one) for one in everything(pool))


def test_the_empty_network_is_never_the_least():
    pool = dense_pool(depth=2)
    only_skips = type(pool)(pool.positions[:2], inputs=pool.inputs)
    costs = costs_of(only_skips)
    cheapest = least(only_skips, costs, "parameters")
    assert cheapest.choices.count("skip") == 1
    real = [one for one in everything(only_skips) if only_skips.path(one)]
    assert num_parameters(only_skips, cheapest) == min(num_parameters(only_skips, one) for one in real)


def test_a_limit_one_below_the_least_is_refused_with_the_nearest_miss_and_the_least_is_not():
    pool = small_pool()
    costs = costs_of(pool)
    check_limits(pool, costs, [Limit(costs, "parameters", 30)])
    with pytest.raises(ConstraintError) as caught:
        check_limits(pool, costs, [Limit(costs, "parameters", 29)])
    assert str(caught.value) == (
        "search.limits.parameters=29: no architecture needs so little; the least is 30 parameters "
        "(stem, 3*skip, head): allow at least that"
    )


def test_limits_that_only_together_allow_nothing_are_told_with_the_nearest_miss():
    """Parameters are few with skips, the others' cost is low without: 2 of 3 skips cost 50 and 1."""
    pool = small_pool()
    costs = costs_of(pool, Cost("shortness", lambda architecture: float(architecture.choices.count("skip"))))
    check_limits(pool, costs, [Limit(costs, "parameters", 50), Limit(costs, "shortness", 2)])
    with pytest.raises(ConstraintError) as caught:
        check_limits(pool, costs, [Limit(costs, "parameters", 49), Limit(costs, "shortness", 2)])
    assert "search.limits.parameters=49 together with search.limits.shortness=2" in str(caught.value)
    assert "the nearest has 50 parameters" in str(caught.value)


def test_a_cost_that_is_no_sum_is_led_to_its_least_and_that_is_told():
    pool = repeated_pool(depth=4)
    costs = costs_of(pool)
    smallest = min(num_parameters(pool, one) for one in everything(pool))
    check_limits(pool, costs, [Limit(costs, "parameters", smallest)])
    with pytest.raises(ConstraintError, match=rf"the nearest has {smallest} parameters"):
        check_limits(pool, costs, [Limit(costs, "parameters", smallest - 1)])


def test_other_constraints_are_kept_to_and_named_where_they_are_to_blame():
    pool = small_pool()
    costs = costs_of(pool)
    wide = Require("something wide", lambda architecture: "wide" in architecture.choices)
    check_limits(pool, costs, [Limit(costs, "parameters", 106)], constraints=[wide])
    with pytest.raises(ConstraintError, match="the nearest has 106 parameters"):
        check_limits(pool, costs, [Limit(costs, "parameters", 105)], constraints=[wide])
    miracle = Require("a miracle", lambda architecture: False)
    with pytest.raises(ConstraintError, match="requires a miracle"):
        check_limits(pool, costs, [Limit(costs, "parameters", 106)], constraints=[miracle])


def measured(pool, found: list, *, scale: float = 1.0) -> Costs:
    """A latency of 1 ms for each layer, and which architectures were measured."""

    def latency(architecture):
        found.append(architecture)
        return scale * len(pool.path(architecture))

    return costs_of(pool, Cost("latency_ms", latency, is_measured=True))


def test_of_a_measured_limit_that_is_met_little_is_measured():
    pool, found = dense_pool(depth=4), []
    costs = measured(pool, found)
    check_limits(pool, costs, [Limit(costs, "latency_ms", 1)])
    assert len(found) <= 3


def test_a_measured_limit_that_nothing_meets_costs_a_few_measurements_and_names_the_fastest():
    pool, found = dense_pool(depth=4), []
    costs = measured(pool, found)
    with pytest.raises(ConstraintError) as caught:
        check_limits(pool, costs, [Limit(costs, "latency_ms", 0.5)])
    assert re.search(
        r"search.limits.latency_ms=0.5: none of \d+ architectures measured keeps to it; the nearest has 1 ms "
        r"\(4\*skip, linear\)",
        str(caught.value),
    )
    assert len(found) <= 40
    assert len(set(found)) == len(found)


def test_what_other_limits_refuse_is_not_measured():
    pool, found = dense_pool(depth=4), []
    costs = measured(pool, found)
    limits = [Limit(costs, "parameters", 60), Limit(costs, "latency_ms", 0.5)]
    deep = Require("two layers", lambda architecture: len(pool.path(architecture)) >= 2)
    with pytest.raises(ConstraintError, match="the nearest has 2 ms"):
        check_limits(pool, costs, limits, constraints=[deep])
    assert all(first_violation(architecture, [deep, limits[0]]) is None for architecture in found)
