"""The charts of the benches that time and count the relay beside its peers, from what they write as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.search.charts import chain_sheet, nas201_sheet, ranking_sheet
from benchmarks.table import STORAGE_SIDES, format_bytes
from l2l_nas.report.charts.chart import Axis, Chart, Point, Series, Sheet, line

Result = Mapping[str, Any]

_NOTHING = "nothing could be measured"


def bench_sheet(result: Result) -> Sheet:
    """The charts of a bench.

    Args:
        result: what it writes as JSON.

    Raises:
        KeyError: no bench of this name is known.
    """
    return _SHEETS[result["bench"]](result)


def _memory(result: Result) -> Sheet:
    """Device bytes over depth or batch, both axes logarithmic: a flat line is constant memory."""
    size = result["bench"]
    measured = [row for row in result["rows"] if row["device_bytes"] is not None]
    title = f"Device-side memory of a training step by {size}"
    if not measured:
        return Sheet((Chart(title, message=_NOTHING),))
    growth = result[f"last_{size}_over_first"]
    series = []
    for index, side in enumerate(dict.fromkeys(row["side"] for row in measured)):
        places = [(row[size], row["device_bytes"]) for row in measured if row["side"] == side]
        series.append(line(f"side{index}", places, f"{side} (x {growth[side]:.2f})" if side in growth else side))
    sizes = sorted({row[size] for row in measured})
    volumes = [row["device_bytes"] for row in measured]
    low, high = min(volumes), max(volumes)
    ticks = [2.0**power for power in range(10, 50) if low / 2 <= 2.0**power <= high * 2]
    unit = "blocks" if size == "depth" else f"samples, micro-batches of {result['settings']['micro_batch']}"
    x = Axis(
        f"{size} ({unit}), log scale", sizes[0] / 1.1, sizes[-1] * 1.1, is_log=True,
        marks=tuple((value, str(value)) for value in sizes),
    )  # fmt: skip
    y = Axis(
        "peak bytes on the device, log scale", low / 1.3, high * 1.3, is_log=True,
        marks=tuple((value, format_bytes(value)) for value in ticks if low / 1.3 <= value <= high * 1.3),
    )  # fmt: skip
    return Sheet((Chart(title, x, y, tuple(series)),))


def _intervals(title: str, label: str, names: Sequence[str], groups: Mapping[str, Mapping[str, Any]]) -> Sheet:
    """Medians with their intervals, one below the other; a line at 1 is what they are compared with.

    Args:
        title: of the chart.
        label: what the ratios are.
        names: of the rows.
        groups: by label, ratios by name of a row; several groups stand close together.
    """
    series, ends = [], [1.0]
    for index, (group, ratios) in enumerate(groups.items()):
        offset = (index - (len(groups) - 1) / 2) * 0.26
        points = tuple(
            Point(
                ratios[name]["median"], row + offset, (ratios[name]["low"], ratios[name]["high"]),
                f"{ratios[name]['median']:.2f}",
            )
            for row, name in enumerate(names) if name in ratios
        )  # fmt: skip
        series.append(Series(f"side{index}", points, group, is_across=True))
        ends += [end for point in points for end in point.reach or ()]
    low, high = min(ends), max(ends)
    x = Axis(label, low - 0.08 * (high - low or 1), high + 0.12 * (high - low or 1), level=1.0)
    height_in = max(3.0, 1.6 + 0.5 * len(names))
    return Sheet((Chart(title, x, Axis.of_names("", names), tuple(series)),), panel_in=(8.0, height_in))


def _throughput(result: Result) -> Sheet:
    """Every side's ratio with its interval, one colour a depth."""
    rows, over = result["rows"], result["over"]
    title = f"Time of a training step over {over}"
    if not rows:
        return Sheet((Chart(title, message=_NOTHING),))
    sides = [side for side in dict.fromkeys(row["side"] for row in rows) if side != over]
    groups = {
        f"{depth} blocks": {
            row["side"]: row["over"][over] for row in rows if row["depth"] == depth and over in row["over"]
        }
        for depth in dict.fromkeys(row["depth"] for row in rows)
    }
    label = f"seconds over those of {over} (1 = as fast; less is better)"
    return _intervals(f"{title}, median and 95 % interval", label, sides, groups)


def _ratios(result: Result, over: str, names: Mapping[str, str]) -> dict[str, Mapping[str, float]]:
    """Ratios over one side, by the names of the sides that have one."""
    return {names.get(row["side"], row["side"]): row["over"][over] for row in result["rows"] if over in row["over"]}


def _storage(result: Result) -> Sheet:
    """Ratios of the step time, and what is written."""
    ratios = _ratios(result, "ram", {"file": "states in files", "control": "control: in memory again"})
    title = f"Layers in files over layers in memory; {format_bytes(result['written_bytes_a_step'])} written a step"
    label = "seconds of a step over those in memory (1 = as fast), median and 95 % interval"
    return _intervals(title, label, list(ratios), {"": ratios})


def _larger(result: Result) -> Sheet:
    """Ratios of the step time."""
    ratios = _ratios(result, "ram", STORAGE_SIDES)
    sizes = (format_bytes(result[name]) for name in ("states_bytes", "memory_bytes"))
    title = "Training a pool of {} on a machine with {} of memory".format(*sizes)
    label = "seconds of a step over those from memory (1 = as fast), median and 95 % interval"
    return _intervals(title, label, list(ratios), {"": ratios})


def _workers(result: Result) -> Sheet:
    """How many times as fast as one process."""
    ratios = _ratios(result, result["over"], {"control": "control: one process again"})
    title = f"Trials a second with workers over one process, {result['cores']} cores"
    label = "times as fast (1 = as fast), median and 95 % interval"
    return _intervals(title, label, list(ratios), {"": ratios})


def _switching(result: Result) -> Sheet:
    """The ratio of every block of steps, and the medians with their intervals."""
    blocks = result["seconds_by_block"]
    series, values = [], [1.0]
    for index, (label, name, key) in enumerate(
        (("switching / fixed", "switching", "switching_over_fixed"), ("control", "control", "control"))
    ):
        ratios = [a / b for a, b in zip(blocks[name], blocks["fixed"], strict=True)]
        about = result[key]
        interval = (about["low"], about["high"])
        shown = f"{label}, median {about['median']:.3f} ({about['low']:.3f} to {about['high']:.3f}), right of all"
        median = Point(len(ratios) + 1.5 + index, about["median"], interval)
        points = (*(Point(block, ratio) for block, ratio in enumerate(ratios, start=1)), median)
        series.append(Series(f"side{index}", points, shown))
        values += [*ratios, *interval]
    numbers = range(1, len(blocks["fixed"]) + 3)
    x = Axis.around(f"block of {result['block_steps']} steps", numbers, (0.05, 0.05), is_count=True)
    low, high = min(values), max(values)
    margin = 0.08 * (high - low or 1)
    y = Axis("seconds over those of the fixed", low - margin, high + margin, level=1.0)
    title = f"Another architecture at every step: {result['switching_over_fixed']['median']:.3f} of a fixed one's time"
    return Sheet((Chart(title, x, y, tuple(series)),))


_POPULATIONS = {"mutants": "one-position mutants of 4 parents", "uniform": "uniform draws"}


def _population(result: Result) -> Sheet:
    """Measured speed-up beside the ideal."""
    rows = result["rows"]
    ideal, measured = [], []
    for index, row in enumerate(rows):
        speedup = row["speedup"]
        ideal.append(Point(index - 0.17, row["ideal"]))
        note = f"{row['speedup_over_ideal']:.2f} of the ideal"
        measured.append(Point(index + 0.17, speedup["median"], (speedup["low"], speedup["high"]), note))
    names = tuple(
        (index, f"{row['architectures']} {_POPULATIONS[row['population']]}") for index, row in enumerate(rows)
    )
    top = 1.2 * max(max(row["ideal"], row["speedup"]["high"]) for row in rows)
    chart = Chart(
        "A population evaluated together: speed-up over one by one",
        Axis("", -0.7, len(rows) - 0.3, marks=names),
        Axis("times as fast (more is better)", 0.0, top, level=1.0),
        (
            Series("side0", tuple(ideal), "ideal: shared work done once"),
            Series("side1", tuple(measured), "measured"),
        ),
    )
    return Sheet((chart,))


_SHEETS = {
    "depth": _memory,
    "batch": _memory,
    "throughput": _throughput,
    "switching": _switching,
    "population": _population,
    "storage": _storage,
    "larger_than_memory": _larger,
    "nas201": nas201_sheet,
    "workers": _workers,
    "ranking": ranking_sheet,
    "search_chain": chain_sheet,
}
