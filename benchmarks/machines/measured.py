"""The page of `python -m benchmarks gpu`: what was measured on a device beside what had been predicted for it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, FileSystemLoader
from markupsafe import Markup

from benchmarks.table import format_bytes
from l2l_nas.report.charts.chart import Axis, Chart, Point, Series, line
from l2l_nas.report.html.frame import asset, environment, policy
from l2l_nas.report.text import counted

_DASH = "\N{EN DASH}"


@cache
def _environment() -> Environment:
    """That of all pages, with the template beside this file."""
    pages = environment()
    assert pages.loader is not None
    return pages.overlay(loader=ChoiceLoader([FileSystemLoader(Path(__file__).parent), pages.loader]))


def render_measured(result: Mapping[str, Any]) -> str:
    """The page.

    Args:
        result: what `python -m benchmarks gpu` writes as JSON.

    Returns:
        A whole HTML document.
    """
    chart = steps_chart(result)
    return (
        _environment()
        .get_template("measured.html.j2")
        .render(
            title="Measured on a GPU" if result["machine"]["gpu"] != "none" else "A trial without a GPU",
            style=Markup(asset("page.css")),
            policy=policy(""),
            machine=result["machine"],
            lead=_lead(result),
            chart=None if chart.message else chart,
            sections=[_section(name, section, result) for name, section in result["sections"].items()],
            made=result["made"],
        )
    )


def steps_chart(result: Mapping[str, Any]) -> Chart:
    """Measured times of steps over those predicted; on the line both are equal."""
    title = "Time of a training step: measured over predicted, in ms"
    rows = result["sections"].get("steps", {}).get("rows", [])
    series, ends = [], []
    for style, source in zip(("best", "cached"), result["predictions"], strict=False):
        predicted = result["predictions"][source]["figures"].get("steps", {})
        points = tuple(
            Point(predicted[row["name"]], row["value"]) for row in rows if row["value"] and row["name"] in predicted
        )
        series.append(Series(style, points, f"predicted with {source}"))
        ends += [value for point in points for value in (point.x, point.y)]
    if not ends:
        return Chart(title, message="no step was both predicted and measured")
    low, high = min(ends) / 1.2, max(ends) * 1.2
    x = Axis("predicted, ms, log scale", low, high, is_log=True)
    y = Axis("measured, ms, log scale", low, high, is_log=True)
    return Chart(title, x, y, (line("stairs", [(low, low), (high, high)], "both equal"), *series))


def _lead(result: Mapping[str, Any]) -> list[str]:
    sections = result["sections"].values()
    count = sum(row["value"] is not None for section in sections for row in section["rows"])
    failed = [name for name, section in result["sections"].items() if section["failed"]]
    texts = [
        f"{counted(count, 'figure')} in {result['seconds']:.0f} s. Predictions were made before their section ran."
    ]
    texts += [f"{source}: {about['what']}" for source, about in result["predictions"].items()]
    if result["machine"]["gpu"] == "none":
        texts.append("No figure on this page was measured on a GPU: it shows that the script runs.")
    if failed:
        texts.append(f"Not complete: {', '.join(failed)}.")
    return texts


def _section(name: str, section: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    known = {source: about["figures"].get(name, {}) for source, about in result["predictions"].items()}
    known = {source: figures for source, figures in known.items() if figures}
    titles = ["measured"]
    for source in known:
        titles += [f"predicted with {source}", "measured over it"]
    rows = []
    for row in section["rows"]:
        unit = section["unit"] or ("bytes" if "bytes" in row["name"] else "")
        figures = [_figure(row["value"], unit)]
        for predicted in known.values():
            figures += _beside(row["value"], predicted.get(row["name"]), unit)
        rows.append({"name": row["name"], "figures": figures, "note": row["note"]})
    notes = [f"It took {section['seconds']:.0f} s."]
    if section["failed"]:
        notes.append(f"It did not end: {section['failed']}")
    return {"name": name, "about": section["about"], "titles": titles, "rows": rows, "notes": notes}


def _beside(value: float | None, predicted: float | None, unit: str) -> list[str]:
    ratio = f"{value / predicted:.2f}" if value is not None and predicted else _DASH
    return [_figure(predicted, unit), ratio]


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return _DASH
    if unit == "bytes":
        return format_bytes(value)
    text = f"{value:,.0f}" if abs(value) >= 10000 or value == int(value) else f"{value:.4g}"
    return f"{text} {unit}".rstrip()
