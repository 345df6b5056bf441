from __future__ import annotations

import pytest

from l2l_nas.cost.catalogue import parameters_cost
from l2l_nas.cost.flops import Flops
from l2l_nas.cost.table import Cost, Costs, Limit, readable, with_unit
from l2l_nas.errors import SettingError
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.sampling import UniformPaths
from l2l_nas.space.shapes import check_shapes
from tests.toys import dense_pool, language_pool

A, B = Architecture(("a",)), Architecture(("a", "b"))


def costs() -> tuple[Costs, list[str]]:
    """The length of an architecture, as a cost that is free and as one that is measured; and what was computed."""
    asked: list[str] = []

    def compute(name):
        return lambda architecture: asked.append(name) or 1000.0 * len(architecture.choices)

    return Costs([Cost("flops", compute("flops")), Cost("latency_ms", compute("latency_ms"), is_measured=True)]), asked


def test_what_is_measured_is_measured_once_and_only_when_asked_for():
    table, asked = costs()
    assert list(table) == ["flops", "latency_ms"]
    assert table.figures(A) == {"flops": 1000}
    assert table.figures(A, measure=["latency_ms"]) == {"flops": 1000, "latency_ms": 1000}
    assert table.figures(A) == {"flops": 1000, "latency_ms": 1000}  # known by now
    assert table.figures(B) == {"flops": 2000}
    assert asked.count("latency_ms") == 1


def test_what_an_earlier_run_measured_is_not_measured_again():
    table, asked = costs()
    table.remember(A, {"latency_ms": 7.0, "flops": 7.0, "accuracy": 0.5})
    assert table.figures(A) == {"flops": 1000, "latency_ms": 7}
    assert table.value("latency_ms", A) == 7
    assert "latency_ms" not in asked


def test_a_limit_tells_got_and_allowed_and_by_how_much():
    table, _ = costs()
    limit = Limit(table, "flops", 1500)
    assert limit.violation(A) is None
    assert limit.excess(A) == 0
    assert limit.violation(B) == "2,000 FLOPs, allowed 1,500 (search.limits.flops)"
    assert limit.excess(B) == pytest.approx(1 / 3)
    assert Limit(table, "flops", 2000).violation(B) is None  # at most, not below
    assert Limit(table, "latency_ms", 0.25).violation(A) == "1000 ms, allowed 0.25 (search.limits.latency_ms)"


@pytest.mark.parametrize(
    ("name", "most", "says"), [("flop", 1, "did you mean 'flops'"), ("flops", 0, "above 0, got 0")]
)
def test_a_limit_that_makes_no_sense_is_refused(name, most, says):
    with pytest.raises(SettingError, match=says):
        Limit(costs()[0], name, most)


def test_values_are_told_with_their_unit():
    assert with_unit("parameters", 1234.0) == "1,234 parameters"
    assert with_unit("streamed_bytes", 5e6) == "5,000,000 streamed bytes"
    assert with_unit("latency_ms", 1.23456) == "1.235 ms"
    assert with_unit("mine", 0.5) == "0.5 mine"


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("parameters", 1234.0, "1,234"),
        ("streamed_bytes", 26952.0, "26.3 KiB"),
        ("device_bytes", 123456789.0, "117.7 MiB"),
        ("latency_ms", 1.23456, "1.235 ms"),
        ("mine", 0.5, "0.5"),
    ],
)
def test_tables_tell_bytes_as_people_do(name, value, text):
    assert readable(name, value) == text


@pytest.mark.parametrize("depth", [3, 8])
def test_sums_over_layers_are_the_costs_themselves(depth):
    pool = dense_pool(depth=depth)
    flops = Flops(pool, check_shapes(pool))
    table = Costs([parameters_cost(pool), Cost("flops", flops, flops.of_layer), Cost("own", lambda one: 1.0)])
    sums, draws = table.sums(pool), UniformPaths(pool, seed=0)
    assert sums.keys() == {"parameters", "flops"}
    for step in range(20):
        architecture = draws.path_at(step)
        for name, cost in sums.items():
            assert cost(architecture) == table.value(name, architecture)


def test_weights_that_layers_share_are_no_sum_over_layers():
    pool = language_pool()
    table = Costs([parameters_cost(pool)])
    assert table.sums(pool) == {}
