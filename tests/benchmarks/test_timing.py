from __future__ import annotations

import gc

import pytest
import torch

from benchmarks.timing import interleave, machine, ratio


def test_sides_take_turns_in_an_order_that_rotates_and_warm_ups_are_not_counted():
    calls: list[tuple[str, int]] = []
    ticks: list[str] = []
    sides = {name: lambda number, name=name: calls.append((name, number)) for name in "abc"}
    seconds = interleave(sides, rounds=2, warmup=1, tick=ticks.append)
    assert calls == [("a", 0), ("b", 0), ("c", 0), ("b", 1), ("c", 1), ("a", 1), ("c", 2), ("a", 2), ("b", 2)]
    assert {name: len(values) for name, values in seconds.items()} == {"a": 2, "b": 2, "c": 2}
    assert ticks == [name for name, _ in calls]


def test_garbage_collection_is_on_again_even_after_an_error():
    def fail(number: int) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        interleave({"a": fail}, rounds=1)
    assert gc.isenabled()


def test_the_interval_of_a_ratio_is_that_of_a_median():
    # 20 pairs: the 6th smallest and the 6th largest enclose the median with a probability of at least 95 %
    found = ratio([float(value) for value in range(1, 21)], [1.0] * 20)
    assert found == {"median": 10.5, "low": 6.0, "high": 15.0, "pairs": 20}


def test_few_pairs_have_an_interval_as_wide_as_they_are():
    assert ratio([1.0, 3.0, 2.0], [1.0] * 3) == {"median": 2.0, "low": 1.0, "high": 3.0, "pairs": 3}


def test_the_machine_is_named():
    found = machine(torch.device("cpu"))
    assert found["gpu"] == "none"
    assert found["threads"] == torch.get_num_threads()
    assert found["cpu"]
