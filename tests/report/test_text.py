from __future__ import annotations

import pytest

from l2l_nas.report.text import format_value, shorten
from l2l_nas.space.architecture import Architecture, format_choices


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("accuracy", 0.97314, "0.9731"),
        ("loss", 0.0, "0.0000"),
        ("loss", 0.00001234, "1.234e-05"),
        ("parameters", 1234567.0, "1,234,567"),
        ("device_bytes", 4096.0, "4.0 KiB"),
        ("latency_ms", 1.23456, "1.235 ms"),
    ],
)
def test_a_count_has_separators_and_a_metric_four_decimals(name: str, value: float, text: str) -> None:
    assert format_value(name, value) == text


def test_equal_neighbours_are_folded_and_others_are_not() -> None:
    assert format_choices(Architecture(("a", "b", "b", "b", "a", "skip", "skip"))) == "a, 3*b, a, 2*skip"


def test_of_a_long_architecture_the_middle_is_counted() -> None:
    text = format_choices(Architecture(("stem", *(["a", "a", "b"] * 20), "head")))
    assert text.startswith("stem, 2*a, b, 2*a, b")
    assert text.endswith("2*a, b, head")
    shown = text.split(", ")
    hidden = int(text.partition("(")[2].partition(" more)")[0])
    assert len(shown) == 25
    counts = (1 if "*" not in term else int(term[0]) for term in shown if "more" not in term)
    assert sum(counts) + hidden == 62


def test_a_long_name_keeps_both_ends() -> None:
    assert shorten("conv3", 5) == "conv3"
    assert shorten("transformer_gelu_wide", 9) == "tran…wide"
    assert len(shorten("transformer", 8)) == 8
