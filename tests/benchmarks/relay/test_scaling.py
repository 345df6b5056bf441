from __future__ import annotations

import json

import pytest

from benchmarks.__main__ import main
from benchmarks.relay.scaling import SHARED, Side, compare, summary


def turn(wall: float, others: float = 0.0, **facts: float) -> dict:
    return {"wall": wall, "cpu": wall, "all_cpu": 2 * wall, "others": others, "facts": facts}


def test_a_side_is_as_many_times_as_fast_as_the_other_takes_longer_and_busy_rounds_can_be_left_out():
    one, two = Side("relay", 1, "one"), Side("relay_chunks", 2, "two")
    one.turns = [turn(2.0), turn(4.0), turn(3.0, others=0.5)]
    two.turns = [turn(1.0), turn(2.0, others=0.3), turn(3.0)]
    assert compare(two, one, "wall")["median"] == 2.0
    quiet = compare(two, one, "wall", is_quiet=True)
    assert (quiet["median"], quiet["pairs"]) == (2.0, 1)
    two.turns[0]["others"] = 0.2
    assert compare(two, one, "wall", is_quiet=True) is None


def test_losses_that_differ_are_said():
    sides = {label: Side(label.split(",")[0], 1, label, [2.0]) for label in ("relay, 1 process", "plain, 1 process")}
    sides["relay_chunks, 1 process"] = Side("relay_chunks", 1, "relay_chunks, 1 process", [2.0])
    for side in sides.values():
        side.turns = [turn(1.0)]
    other = Side("ddp", 2, "ddp, 2 ranks", [2.00001], [turn(1.0)])
    assert summary(other, sides)["losses"]["agrees"]
    other.losses = [2.001]
    assert not summary(other, sides)["losses"]["agrees"]
    chunked = sides["relay_chunks, 1 process"]
    chunked.losses, sides["relay_inline"] = [2.0], Side("relay_inline", 1, "x", [2.0000002], [turn(1.0)])
    assert summary(chunked, sides)["losses"]["agrees"]
    assert not summary(sides["relay_inline"], sides)["losses"]["agrees"]  # to the bit


def test_ranks_that_do_not_divide_the_micro_batches_are_refused(refused):
    said = "error: 3 ranks must divide the micro-batches of 16 samples, all of one size"
    assert refused("scaling", "--ranks", "3") == said


@pytest.mark.slow
def test_two_ranks_are_measured_in_every_way(tmp_path):
    sizes = ["--depth", "2", "--hidden", "32", "--sequence", "8", "--batch", "4", "--micro-batch", "1"]
    assert main(["scaling", *sizes, "--rounds", "1", "--out", str(tmp_path / "found.json")]) == 0
    rows = {row["side"]: row for row in json.loads((tmp_path / "found.json").read_text())["rows"]}
    assert {f"{way}, 2 ranks" for way in SHARED} <= {*rows}
    assert [row["side"] for row in rows.values() if "left_out" in row] == []
    assert rows["relay, 1 process"]["speed_over_relay"]["wall"]["median"] == 1.0
    for way in ("relay_chunks", "relay_inline"):
        row = rows[f"{way}, 2 ranks"]
        share = row["share_of_step"]["all"]
        assert 0 < share["exposed"] <= share["exchanged"] < 1
        # beside it notes, and states that are too small to be divided
        assert 1 <= row["received_over_least"] < 1.5
        assert 0.5 <= row["states_over_one_process"] < 0.7
