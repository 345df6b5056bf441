"""Rank 0 leads, the others follow."""

from __future__ import annotations

import re

import pytest

from tests.parallel.ranked import Ranks, errors_of

pytestmark = pytest.mark.timeout(90)
ADDED = ["1 states", "added to 16", "2 states", "added to 32", "2 states", "added to 64"]


def led(folder, size, how, patience_s=10):
    with Ranks(folder, size, "leads", how, folder / "nothing", PATIENCE_S=patience_s) as ranks:
        return ranks.ended()


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_do_what_rank_0_does_and_drop_what_it_drops(size, tmp_path):
    first, *others = led(tmp_path, size, "")
    assert [(one.code, one.err) for one in (first, *others)] == [(0, "")] * size
    assert first.out == ", ".join(["1", *ADDED, "loads", "nothing to load", "2 states"]) + "\n"
    assert {one.out for one in others} == {", ".join(["1", *ADDED, "loads", "2 states"]) + "\n"}


def test_what_a_function_of_rank_0_raises_ends_the_action_on_all(tmp_path):
    first, other = led(tmp_path, 2, "stops")
    assert (first.code, other.code) == (0, 0), (first, other)
    added = ["1 states", "added to 16", "2 states", "added to 32", "2 states"]
    assert other.out == ", ".join(["1", *added, "loads", "2 states"]) + "\n"
    assert "stopped, loads, nothing to load" in first.out


def test_rank_0_knows_that_another_rank_was_asked_to_stop(tmp_path):
    assert [one.code for one in led(tmp_path, 2, "asks")] == [0, 0]


@pytest.mark.slow
def test_rank_0_may_take_long_by_itself(tmp_path):
    assert [one.code for one in led(tmp_path, 2, "waits", patience_s=3)] == [0, 0]


def test_what_ends_the_program_of_rank_0_is_said_once_and_ends_all(tmp_path):
    results = led(tmp_path, 2, "refuses")
    (line,) = errors_of(results)
    assert line == "error: trials must be at least 1"
    assert [one.code for one in results] == [2, 2]


@pytest.mark.parametrize("who", [0, 1])
def test_a_rank_that_fails_in_an_action_is_named(who, tmp_path):
    results = led(tmp_path, 2, f"breaks {who}")
    (line,) = errors_of(results)
    assert re.match(rf"error: rank {who} \(.*my layer is broken", line), line
    assert [one.code for one in results] == [1 + (rank != who) for rank in range(2)]
