"""What a network that was taken apart is made of, as `result.json` has it: scores of blocks, a prediction, sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from l2l_nas.errors import counted
from l2l_nas.nas.objectives import Goal
from l2l_nas.report.charts.chart import Axis, Chart, Point, Series, axis_label, line
from l2l_nas.report.charts.grid import DASH, Cell, Grid
from l2l_nas.report.charts.tables import Table, TableColumn, TableRow
from l2l_nas.report.network import TEST, VALIDATION, Network, finite
from l2l_nas.report.text import format_value, with_error

_MAX_CELLS = 6000
_TAKEN = "\N{BLACK STAR}"
_DIVERGENCE = "how far the network's probabilities are from the original's, in nats, of all tokens"


@dataclass(frozen=True)
class TakenApart:
    """Of a search with `strategy=blockwise`."""

    scores: Grid  # of each candidate by position; which networks took it
    prediction: str  # how far it was off, in words; empty where no network was scored whole
    sizes: Table | None  # what was found of each size; None where none were asked for
    front: Chart | None = None  # the same and the original as a picture

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> TakenApart | None:
        """As `result.json` has it; None where no network was taken apart.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: it is something else.
        """
        if not content.get("blocks"):
            return None
        first, *_ = content["objectives"]
        goal = str(first["name"])
        sizes, original = content.get("sizes", []), content.get("original")
        prediction = content.get("prediction")
        return cls(
            _scores(content, sizes),
            " ".join(filter(None, (_words(prediction) if prediction else "", rates_line(content.get("rates"))))),
            _sizes(sizes, goal, original) if sizes else None,
            _front(sizes, Goal(goal, bool(first["maximize"])), original) if sizes and original else None,
        )


def text_table(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Table | None:
    """What `evaluate` measured on texts; None where it measured nothing.

    Args:
        found: values and errors by metric, by network, by text.
    """
    names = sorted({name for one in found.values() for name in one}, key=lambda name: (name != "original", name))
    rows = []
    for what, of in sorted(found.items()):
        for metric in dict.fromkeys(str(name) for one in of.values() for name in one["values"]):
            cells = [_measured(of.get(name), metric) for name in names]
            rows.append(TableRow((what, metric, *cells)))
    columns = (TableColumn("measured on", ""), TableColumn("", ""), *map(TableColumn, names))
    return Table(columns, tuple(rows), is_whole=True) if rows else None


def _measured(one: Mapping[str, Any] | None, name: str) -> str:
    value = None if one is None else one["values"].get(name)
    if one is None or value is None:
        return DASH
    error = one["errors"].get(name)
    return with_error(name, finite(value), None if error is None else finite(error))


def _scores(content: Mapping[str, Any], sizes: Sequence[Mapping[str, Any]]) -> Grid:
    rows: dict[str, dict[str, float]] = {}
    for key, block in content["blocks"].items():
        position, candidate = str(key).split("/")
        rows.setdefault(position, {})[candidate] = finite(block["score"])
    title = "What each block costs"
    taken = {f"{one['removed']:g}": one["best"]["architecture"] for one in sizes if one["best"]}
    networks = taken or {_TAKEN: content["best"]["architecture"]}
    if any(len(choices) != len(rows) for choices in networks.values()):
        raise ValueError("an architecture of another space")
    columns = tuple(dict.fromkeys(name for row in rows.values() if len(row) > 1 for name in row))
    if len(rows) * len(columns) > _MAX_CELLS:
        return Grid(title, message="This space is too large for such a table.")
    widest = max((abs(score) for row in rows.values() for score in row.values()), default=0.0) or 1.0
    cells = {}
    for index, (position, row) in enumerate(rows.items()):
        marks = {name: [mark for mark, choices in networks.items() if choices[index] == name] for name in row}
        own = next(iter(row))
        if len(row) > 1:
            cells[position] = tuple(
                None if name not in row else _cell(row[name], marks[name], widest, is_own=name == own)
                for name in columns
            )
    scored_by = str(content.get("scored_by", content["objectives"][0]["name"]))  # runs begun before it was told
    alone = "if this candidate alone replaces the original's layer"
    kinds = {
        "error": "how far a candidate's outputs are from those of the original's layer",
        "divergence": f"how far the network's probabilities are from the original's, in nats, {alone}",
        "recall": f"{_DIVERGENCE}, and of those that stand again in a text, {alone}",
    }
    what = kinds.get(scored_by, f"how much worse {scored_by} is {alone}")
    behind = "the sizes whose networks took it" if taken else f"{_TAKEN} where the best network took it"
    caption = (
        f"Each cell has {what}, then {behind}. Orange is worse, blue better than the original; colours go by the root."
    )
    return Grid(title, columns, cells, caption)


def _cell(score: float, marks: Sequence[str], widest: float, *, is_own: bool) -> Cell:
    heat = math.copysign(math.sqrt(abs(score) / widest), -score) if score else 0.0
    return Cell(DASH if is_own else f"{score:+.3g}", ", ".join(marks), None if is_own and not marks else heat)


def _words(prediction: Mapping[str, Any]) -> str:
    networks, pairs, name = prediction["networks"], prediction["pairs"], str(prediction["metric"])
    error, factor, pair_factor = prediction["error"], finite(prediction["factor"]), finite(prediction["pair_factor"])
    off = "" if error is None else f" What is predicted without a network is off by {finite(error):.3g} {name} of it."
    return (
        f"{counted(len(networks), 'network')} and {counted(len(pairs), 'pair')} of blocks were measured before the "
        f"trials. By these, a network is worse by {factor:.3g} times the sum of its blocks' scores, and by "
        f"{pair_factor:.3g} times what its pairs cost beyond their sums.{off}"
    )


def rates_line(rates: Mapping[str, Any] | None) -> str:
    """Which learning rates of finalists were tried, and how each did; empty where none were."""
    if not rates:
        return ""
    name, chosen = str(rates["metric"]), finite(rates["chosen"])
    tried = [(finite(one["rate"]), one["value"]) for one in rates["tried"]]
    shown = ", ".join(f"{rate:g} ({'not finite' if v is None else format_value(name, finite(v))})" for rate, v in tried)
    how = f"Learning rates tried for a tenth of the steps, and the {name} behind them"
    return f"{how}: {shown}; finalists have {chosen:g}."


def _sizes(sizes: Sequence[Mapping[str, Any]], goal: str, original: Mapping[str, Any] | None) -> Table:
    parts = {VALIDATION: f"{goal}, validation", TEST: f"{goal}, test"}
    columns = (TableColumn("removed"), TableColumn("parameters"), *map(TableColumn, parts.values()))
    rows = []
    if original:
        whole, before = original["costs"].get("parameters"), finite(original["values"][goal])
        shown = DASH if whole is None else format_value("parameters", finite(whole))
        rows.append(TableRow(("0, the original", shown, format_value(goal, before), DASH)))
    for one in sizes:
        removed = f"{finite(one['removed']):.3g}"
        if not one["best"]:
            rows.append(TableRow((removed, DASH, DASH, DASH)))
            continue
        network = Network.from_json(one["best"])
        scores = [network.scored(part, goal) if goal in network.part(part) else DASH for part in parts]
        count = network.costs.get("parameters")
        shown = DASH if count is None else format_value("parameters", count)
        rows.append(TableRow((removed, shown, *scores), network.trial))
    return Table(columns, tuple(rows), is_whole=True)


def _front(sizes: Sequence[Mapping[str, Any]], goal: Goal, original: Mapping[str, Any]) -> Chart | None:
    """The first objective over the parameters; None where nothing was found."""
    found = {network.trial: network for network in (Network.from_json(one["best"]) for one in sizes if one["best"])}
    whole = Point(finite(original["costs"]["parameters"]), finite(original["values"][goal.name]))
    points = [
        Point(costs["parameters"], value, reach=(value - error, value + error), trial=trial)
        for trial, one in found.items()
        if "parameters" in (costs := one.costs) and (value := one.values.get(goal.name)) is not None
        for error in [one.error(VALIDATION, goal.name) or 0.0]
    ]
    if not points:
        return None
    ordered = sorted([*points, whole], key=lambda point: point.x)
    ends = [end for point in ordered for end in point.reach or (point.y,)]
    return Chart(
        f"{goal.name} against parameters: the original, and the best network of each size",
        Axis.counting("number of parameters (less is better)", [point.x for point in ordered]),
        Axis.around(axis_label(goal, "validation"), ends, (0.1, 0.1)),
        (
            line("stairs", [(point.x, point.y) for point in ordered]),
            Series("final", (whole,), "the original"),
            Series("front", tuple(points), "the best network of each size; the bars are one standard error"),
        ),
    )
