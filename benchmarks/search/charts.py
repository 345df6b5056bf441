"""The charts of the benches of searching: samplers on NAS-Bench-201, rankings, the stages of a search."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.table import format_interval, runs_of
from l2l_nas.report.charts.chart import Axis, Chart, Point, Series, Sheet, line

_TICKS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
_DATA_SETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet16-120"}
# the stage that a ranking is of, where it has another name
_STAGES = {"trial score": "trial", "finalist": "validation"}


def nas201_sheet(result: Mapping[str, Any]) -> Sheet:
    """A chart for each data set: points below the optimum of the best value seen; a mark for what is returned."""
    samplers = list(dict.fromkeys(row["sampler"] for row in result["rows"]))
    returned = {(row["sampler"], row["dataset"]): row["handed_out"]["mean"] for row in result["rows"]}
    charts = []
    for dataset, optimum in result["optimum"].items():
        series: list[Series] = []
        for index, sampler in enumerate(samplers):
            gaps = [max(optimum - value, 1e-3) for value in result["curves"][f"{sampler}/{dataset}"]]
            first = min(9, len(gaps) - 1)  # what the very first evaluations find is luck
            series.append(line(f"side{index}", enumerate(gaps[first:], start=first + 1), sampler))
            last = Point(len(gaps) * 1.04, max(optimum - returned[sampler, dataset], 1e-3))
            series.append(Series(f"side{index}", (last,)))
        charts.append(_gap_chart(f"{_DATA_SETS.get(dataset, dataset)}, optimum {optimum:.2f}", series))
    title = f"NAS-Bench-201, mean of {result['runs']} runs: line, the best value seen; mark, what is returned"
    return Sheet(tuple(charts), title, is_row=True, panel_in=(3.7, 4.5))


def _gap_chart(title: str, series: Sequence[Series]) -> Chart:
    points = [point for one in series for point in one.points]
    low, high = min(point.y for point in points) / 1.2, max(point.y for point in points) * 1.2
    ticks = tuple((tick, f"{tick:g}") for tick in _TICKS if low <= tick <= high)
    y = Axis("points below the optimum, log scale", low, high, is_log=True, marks=ticks)
    x = Axis.around("evaluations", [point.x for point in points], (0.03, 0.03), is_count=True)
    return Chart(title, x, y, tuple(series))


def ranking_sheet(result: Mapping[str, Any]) -> Sheet:
    """A chart for the parameter count and one for each path sampler; a dot is an architecture."""
    metric, controls = result["metric"], result["controls"]
    alone = [statistics.fmean(seeds) for seeds in result["alone"]]
    across = f"{metric} trained alone"
    title = f"parameter count\ntau {format_interval(controls['parameters']['tau'])}"
    charts = [_scatter(title, across, "parameters", list(zip(alone, result["parameters"], strict=True)))]
    for index, row in enumerate(result["rows"]):
        scores = [statistics.fmean(values) for values in zip(*result["scores"][row["sampler"]], strict=True)]
        over = format_interval(row["over_parameters"]["tau"])
        title = f"{row['sampler']} paths\ntau {format_interval(row['tau'])}\nover parameters {over}"
        places = list(zip(alone, scores, strict=True))
        charts.append(_scatter(title, across, f"{metric} with shared weights", places, style=f"side{index}"))
    runs = len(next(iter(result["scores"].values())))
    ceiling = format_interval(controls["seed_against_the_others"]["tau"])
    title = (
        f"{len(alone)} architectures trained alone, and ranked without that\n"
        f"{len(result['alone'][0])} seeds, {runs} supernets; one seed against the others: tau {ceiling}"
    )
    return Sheet(tuple(charts), title, is_row=True, panel_in=(3.4, 4.4))


def chain_sheet(result: Mapping[str, Any]) -> Sheet:
    """Charts for trial scores and for finalists' last ones, a dot is a network; and what is left after each stage."""
    metric = result["metric"]
    alone = [statistics.fmean(seeds) for seeds in result["alone"]["test"]]
    charts = []
    for index, row in enumerate((result["rows"][0], result["rows"][-1])):
        stage = result["stages"][_STAGES.get(row["sampler"], row["sampler"])]
        scores = [statistics.fmean(values) for values in zip(*stage, strict=True)]
        title = f"{row['sampler']}\ntau {format_interval(row['tau'])}"
        places = list(zip(alone, scores, strict=True))
        across, up = f"{metric} trained alone, test part", f"{metric}, validation part"
        charts.append(_scatter(title, across, up, places, style=f"side{index}"))
    charts.append(_stages(result["chain"], metric))
    title = f"{len(alone)} networks trained alone, and through the stages of {runs_of(result)}"
    return Sheet(tuple(charts), title, is_row=True, panel_in=(4.0, 4.6))


def _stages(rows: Sequence[Mapping[str, Any]], metric: str) -> Chart:
    # a few searches far off may put the mean outside of what 95 % of them came to
    points = tuple(
        Point(
            row["value"], place, (min(row["low"], row["value"]), max(row["high"], row["value"])), f"{row['value']:.4f}"
        )
        for place, row in enumerate(rows)
    )
    ends = [end for point in points for end in point.reach or ()]
    return Chart(
        "What is left after each stage",
        Axis.around(f"{metric}, test part; bars: 95 % of searches", ends, (0.05, 0.25)),
        Axis.of_names("", [row["stage"] for row in rows]),
        (Series("side0", points[:-1], is_across=True), Series("reference", points[-1:], is_across=True)),
    )


def _scatter(title: str, across: str, up: str, places: Sequence[tuple[float, float]], *, style: str = "cloud") -> Chart:
    xs, ys = zip(*places, strict=True)
    return Chart(
        title,
        Axis.around(across, xs, (0.05, 0.05)),
        Axis.around(up, ys, (0.05, 0.05)),
        (Series(style, tuple(Point(x, y) for x, y in places)),),
    )
