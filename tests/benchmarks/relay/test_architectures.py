from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.relay import architectures
from benchmarks.relay.architectures import ideals, mutants
from tests.benchmarks.stacks import TINY, Counted, settings


@pytest.mark.slow
def test_switching_makes_nothing_new_on_the_device_side():
    watch = Counted()
    result = architectures.switching(settings(depth=3, candidates=4, steps=30), watch)
    assert watch.done == watch.total == 30
    assert result["nothing_new"]
    assert result["device_side_before"]["device_bytes"] > 0
    assert result["architectures"] == 30
    assert len(result["seconds_by_block"]["switching"]) == 2


@pytest.mark.slow
def test_a_population_gives_the_results_of_one_by_one():
    watch = Counted()
    result = architectures.population(settings(depth=4, candidates=4, architectures=12), watch)
    assert watch.done == watch.total
    assert [row["population"] for row in result["rows"]] == ["mutants", "uniform"]
    for row in result["rows"]:
        assert row["results_equal"]
        assert row["distinct_prefixes"] <= row["layers"] == 12 * 6


def test_mutants_differ_from_a_parent_in_one_block_and_from_each_other():
    work = replace(TINY, depth=6, candidates=4)
    found = mutants(work, 16)
    assert len(set(found)) == 16
    # every fourth has the same parent: two children differ in one place or two
    apart = [sum(a != b for a, b in zip(found[0].choices, other.choices, strict=True)) for other in found[4::4]]
    assert all(1 <= places <= 2 for places in apart)
    assert found == mutants(work, 16)


def test_the_ideal_counts_shared_prefixes_once():
    work = replace(TINY, depth=2, candidates=2)
    pool = work.pool
    paths = [pool.architecture(["tokens", "block0", last, "linear"]) for last in ("block0", "block1")]
    found = ideals(pool, paths)
    assert (found["layers"], found["distinct_prefixes"], found["distinct_layers"]) == (8, 6, 5)
    block = sum(p.numel() for p in work.modules()[1].parameters())
    head = sum(p.numel() for p in work.modules()[3].parameters())
    assert found["ideal"] == pytest.approx((4 * block + 2 * head) / (3 * block + 2 * head), abs=1e-4)
    assert found["layers_over_prefixes"] == pytest.approx(8 / 6, abs=1e-4)
