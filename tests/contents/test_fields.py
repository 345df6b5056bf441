"""Fields of files: each is what it must be, or named."""

from __future__ import annotations

import pytest

from l2l_nas.contents.fields import Fields
from l2l_nas.errors import SettingError, StorageError

NAN, INF = float("nan"), float("inf")


def test_what_is_right_is_taken():
    fields = Fields({"a": 3, "b": 4.0, "c": "x", "d": {"e": 1}, "f": None}, "f.json")
    assert (fields.whole("a"), fields.whole("b"), fields.number("b"), fields.number("a")) == (3, 4, 4.0, 3.0)
    assert (fields.text("c"), fields.table("d")) == ("x", {"e": 1})
    assert (fields.whole("f", default=7), fields.number("g", default=None), fields.text("g", default="y")) == (
        7,
        None,
        "y",
    )
    assert fields.table("f", default={}) == {}


@pytest.mark.parametrize("value", [None, True, "3", [3], {}, NAN, INF, -1, 1.5, 10**400, 1e308])
def test_what_is_no_whole_number_is_refused_by_name(value):
    with pytest.raises(StorageError, match=r"f\.json: a is .*, expected a whole number from 0 to 100; get it again"):
        Fields({"a": value}, "f.json").whole("a", most=100)


@pytest.mark.parametrize("value", [None, True, "3", [3], {}, NAN, INF, -INF, -1, 10**400, 1e308])
def test_what_is_no_finite_number_is_refused_by_name(value):
    with pytest.raises(StorageError, match=r"f\.json: a is .*, expected a finite number, at least 0"):
        Fields({"a": value}, "f.json").number("a")


@pytest.mark.parametrize("value", [None, 3, ["x"], {1: 2}])
def test_what_is_no_text_or_table_is_refused_by_name(value):
    with pytest.raises(StorageError, match="expected a text"):
        Fields({"a": value}, "f.json").text("a")
    with pytest.raises(StorageError, match="expected values by name"):
        Fields({"a": value}, "f.json").table("a")


def test_a_missing_field_and_a_file_of_something_else_are_told_with_the_error_that_is_asked_for():
    with pytest.raises(SettingError, match="config: a is missing, expected a text; name it"):
        Fields({}, "config", advice="name it", error=SettingError).text("a")
    with pytest.raises(StorageError, match=r"f\.json: holds \[1\], expected fields by name"):
        Fields([1], "f.json")


def test_a_long_value_is_not_shown_whole():
    with pytest.raises(StorageError) as caught:
        Fields({"a": "x\n" * 9999}, "f.json").whole("a")
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)
