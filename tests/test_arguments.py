"""Arguments are checked at the call, and errors name them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from l2l_nas.arguments import check_count, check_kind, check_list, check_number, check_table, shown
from l2l_nas.errors import SettingError


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize("value", [True, 2.0, "2", None, -1, 11, math.nan, [2]])
def test_what_is_no_count_within_bounds_is_refused_by_the_arguments_name(value):
    with pytest.raises(SettingError, match=r"^slots "):
        check_count("slots", value, most=10)


@pytest.mark.parametrize("value", [True, "2", None, -1, 11, math.nan, math.inf, 10**400, 0])
def test_what_is_no_finite_number_within_bounds_is_refused_by_the_arguments_name(value):
    with pytest.raises(SettingError, match=r"^rate "):
        check_number("rate", value, most=10, above=0)


def test_numpys_numbers_are_numbers():
    assert check_count("slots", np.int64(3)) == 3
    assert check_count("slots", 0) == 0
    assert check_number("rate", np.float32(0.5)) == 0.5


def test_another_kind_is_refused_and_a_class_in_place_of_an_object_is_told_so():
    assert check_kind("pool", {}, dict, wanted="a dict") == {}
    with pytest.raises(SettingError, match=r"pool takes a dict, got 5 \(int\)"):
        check_kind("pool", 5, dict, wanted="a dict")
    with pytest.raises(SettingError, match=r"write dict\(\.\.\.\)"):
        check_kind("pool", dict, dict, wanted="a dict")


@pytest.mark.parametrize("value", [5, "ab", {"a": 1}, None, [1, "b"]])
def test_what_is_no_list_of_its_kind_is_refused(value):
    with pytest.raises(SettingError, match=r"^layers"):
        check_list("layers", value, of=int, wanted="numbers")
    assert check_list("layers", (1, 2), of=int, wanted="numbers") == [1, 2]


@pytest.mark.parametrize("value", [5, None, [("a", 1)], dict, {1: "a"}])
def test_what_is_no_dict_by_text_is_refused(value):
    with pytest.raises(SettingError, match=r"^tied"):
        check_table("tied", value, wanted="a dict of names")
    assert check_table("tied", {"a": 1}, wanted="a dict of names") == {"a": 1}


def test_any_object_can_be_shown_in_one_short_line():
    assert len(shown("a\nb" * 1000)) < 110
    assert "Unprintable" in shown(Unprintable())


def test_a_class_in_place_of_what_a_protocol_asks_for_is_refused_by_name():
    from l2l_nas.eps.optimizers.base import Optimizer

    with pytest.raises(SettingError, match="rule takes an optimizer"):
        check_kind("rule", dict, Optimizer, wanted="an optimizer")
