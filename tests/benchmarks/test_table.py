from __future__ import annotations

import io

import pytest
from rich.console import Console

from benchmarks.table import bench_table, format_bytes, format_ratio, left_out_lines
from tests.benchmarks.examples import ALL, agreement, interval, throughput


def shown(result) -> str:
    console = Console(width=80, file=io.StringIO())
    console.print(bench_table(result))
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ALL)
def test_every_table_stays_within_80_columns_and_cuts_nothing(name):
    text = shown(ALL[name])
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


def test_memory_is_a_table_of_sizes_by_sides_with_its_growth():
    lines = [line.split() for line in shown(ALL["depth"]).splitlines()]
    assert ["depth", "relay_host", "relay", "plain"] in lines
    assert ["growth", "x", "1.00", "x", "8.15", "x", "31.40"] in lines


def test_ratios_beyond_the_reference_have_a_line_of_their_own():
    text = shown(throughput())
    assert "over relay" in text
    assert "1.012 (0.992 to 1.032)" in text
    assert "bitwise" in text
    assert "to 6e-08" in text


def test_a_side_that_computes_something_else_stands_out():
    result = throughput()
    result["rows"][1]["agreement"] = agreement(0.3, agrees=False)
    assert "NO: 3.0e-01" in shown(result)


def test_what_changed_on_the_device_side_is_shown():
    assert "10, 12" in shown(ALL["switching"])
    assert "the same" in shown(ALL["switching"])


def test_each_ranking_has_a_line_with_its_interval_and_the_controls_stand_below():
    lines = shown(ALL["ranking"]).splitlines()
    assert "Rankings of 4 architectures, against the mean of 2 trainings alone" in lines[0]
    row = next(line for line in lines if line.startswith(" uniform"))
    assert " ".join(row.split()) == "uniform 0.80 (0.74 to 0.85) 0.012 0.90 0.21 (-0.12 to 0.30)"
    names = [line[1:].split("  ")[0] for line in lines[4:9]]
    assert names == ["uniform", "fair", "parameters", "seed, by seed", "seed, by others"]
    assert lines[13].strip() == "Samples: 6,000 training, 1,000 validation"
    assert lines[12].strip() == "uniform 0.0123, fair 0.0123, parameters 0.0300"


def test_each_reason_to_leave_something_out_is_one_line():
    assert left_out_lines(ALL["depth"]) == ["left out: fsdp2: cannot be measured"]
    assert left_out_lines(ALL["throughput"]) == ["left out: l2l_pytorch: not installed: pip install it"]
    assert left_out_lines({"left_out": [{"depth": 384, "left_out": "too large"}]}) == ["left out: depth 384: too large"]


def test_a_ratio_is_shown_with_its_interval():
    assert format_ratio(interval(1.005)) == "1.005 (0.985 to 1.025)"
    assert format_ratio(None) == "-"


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(None, "-"), (512, "0.5 KiB"), (4214784, "4.02 MiB"), (3 * 2**30, "3 GiB"), (2000 * 2**30, "2,000 GiB")],
)
def test_bytes_are_shown_in_the_largest_fitting_unit(num_bytes, text):
    assert format_bytes(num_bytes) == text
