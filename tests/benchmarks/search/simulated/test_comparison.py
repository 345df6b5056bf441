from __future__ import annotations

import math

import pytest

from benchmarks.search.simulated.comparison import Difference, Found, Place, difference, lines, mean_of_tasks, summary
from benchmarks.search.simulated.picture import peers_sheet
from l2l_nas.errors import StorageError
from l2l_nas.files import write_json


def played() -> Found:
    found = Found()
    for task, shift in (("a", 0.0), ("b", 0.1)):
        for repetition, (one, other) in enumerate([(0.5, 0.4), (0.6, 0.48), (0.7, 0.56)]):
            found.add(Place("hill", 6.0, task), "race", repetition, one + shift, seconds=0.5)
            found.add(Place("hill", 6.0, task), "random", repetition, other, seconds=0.1)
    return found


def test_differences_are_paired_and_in_points():
    found = difference({0: 0.5, 1: 0.6, 7: 0.1}, {0: 0.4, 1: 0.48, 2: 0.9})
    assert (found.value, found.count) == (pytest.approx(11), 2)
    assert found.error == pytest.approx(1.0)
    assert difference({0: 1.0}, {1: 1.0}) is None
    assert math.isnan(difference({0: 1.0}, {0: 0.5}).error)
    whole = mean_of_tasks([Difference(1.0, 0.3, 5), Difference(3.0, 0.4, 4)])
    assert (whole.value, whole.error, whole.count) == (2.0, pytest.approx(0.25), 4)


def test_a_file_is_read_as_it_was_written(tmp_path):
    found = played()
    found.truths[Place("hill", 6.0, "a")]["random"].pop(1)
    found.write(tmp_path / "found.json")
    again = Found.read(tmp_path / "found.json")
    assert again == found
    assert not again.has(Place("hill", 6.0, "a"), "random", 1)
    assert again.has(Place("hill", 6.0, "a"), "random", 2)
    assert Found.read(tmp_path / "none.json") == Found()


def test_another_file_is_refused_by_name(tmp_path):
    write_json(tmp_path / "found.json", {"benchmark": "images"})
    with pytest.raises(StorageError, match=r"found\.json.*name another file with --out"):
        Found.read(tmp_path / "found.json")


def test_a_summary_holds_every_method_against_one():
    rows = {row["method"]: row for row in summary(played(), "race")}
    assert rows["random"]["test"] == {"a": pytest.approx(0.48), "b": pytest.approx(0.48)}
    assert rows["random"]["minus"]["a"].value == pytest.approx(-12)
    assert rows["random"]["mean"].value == pytest.approx(-17)
    assert rows["race"]["mean"] is None
    said = "\n".join(lines(rows.values(), "race"))
    assert "hill, 6 trainings" in said
    assert "mean -17.00" in said


def test_a_picture_has_a_row_for_each_method_and_a_mark_for_each_budget():
    found = played()
    found.add(Place("hill", 3.0, "a"), "race", 0, 0.5, seconds=0)
    found.add(Place("hill", 3.0, "a"), "random", 0, 0.4, seconds=0)
    (chart,) = peers_sheet(summary(found, "race"), "race").charts
    assert chart.title == "hill"
    assert [name for _, name in chart.y.marks] == ["random"]
    shown = {series.label: series.points for series in chart.series}
    ((three,), (six,)) = shown["3"], shown["6"]
    assert (three.x, six.x) == (pytest.approx(-10), pytest.approx(-17))
    assert three.y < 0 < six.y, "marks of a row stand beside each other"
    assert three.reach is None, "one repetition has no error"
    assert six.reach[0] < -17 < six.reach[1]
    assert peers_sheet(summary(Found(), "race"), "race").charts[0].message
