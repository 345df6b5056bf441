"""The predicted cost of a training step, as a run's folder has it in `plan.json`, described for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from l2l_nas.cost.hardware import origin_of
from l2l_nas.cost.table import readable
from l2l_nas.report.charts.grid import Cell, Grid
from l2l_nas.report.charts.tables import Table, TableColumn, TableRow

_LANES = {
    "compute": "the device",
    "up": "the link to it",
    "down": "the link from it",
    "host": "the updates",
    "disk": "the reading and writing of states",
    "issue": "the thread that issues work",
    "round": "the rounding of weights for the link",
}
_LEAST_USE = 0.005  # of a step; lanes with less in every row are left out
# title, which figure of a row, and as which cost it is written
_FIGURES = (
    ("parameters", "parameters", "parameters"),
    ("step", "step_ms", "step_ms"),
    ("step of plain training", "plain_ms", "step_ms"),
    ("device memory", "device_bytes", "device_bytes"),
    ("host memory", "host_bytes", "device_bytes"),
)


@dataclass(frozen=True)
class Planned:
    """Predictions for a space on some hardware."""

    words: str  # for what they are
    steps: Table  # what a step of the smallest, median and largest architecture takes
    lanes: Grid  # how busy each lane is in them

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Planned:
        """As `plan` writes it.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: it is something else.
        """
        hardware, rows = content["hardware"], content["rows"]
        if not rows:
            raise ValueError("no architecture")
        words = (
            f"For {hardware['name']} ({origin_of(dict(hardware['sources']))}), with {int(content['batch_size']):,} "
            f"samples a step. The whole pool takes {readable('device_bytes', int(content['pool_bytes']))} of host "
            "memory. These are predictions; the search did not measure them."
        )
        return cls(words, _steps(rows), _lanes(rows))


def _steps(rows: Sequence[Mapping[str, Any]]) -> Table:
    columns = [
        TableColumn("architecture", ""),
        *(TableColumn(title) for title, *_ in _FIGURES),
        TableColumn("busiest lane"),
    ]
    cells = [
        (
            str(row["name"]),
            *(readable(cost, float(row[figure])) for _, figure, cost in _FIGURES),
            f"{row['binds']}, {float(row['use'].get(row['binds'], 0.0)):.0%}",
            str(row["missing"]),
        )
        for row in rows
    ]
    if any(missing for *_, missing in cells):
        columns.append(TableColumn("does not fit", "words"))
    return Table(tuple(columns), tuple(TableRow(one[: len(columns)]) for one in cells), is_whole=True)


def _lanes(rows: Sequence[Mapping[str, Any]]) -> Grid:
    used = [{str(lane): float(share) for lane, share in row["use"].items()} for row in rows]
    named = dict.fromkeys(lane for use in used for lane in use)
    lanes = [lane for lane in named if any(use.get(lane, 0.0) >= _LEAST_USE for use in used)]
    cells = {
        str(row["name"]): tuple(Cell(f"{use.get(lane, 0.0):.0%}", heat=min(1.0, use.get(lane, 0.0))) for lane in lanes)
        for row, use in zip(rows, used, strict=True)
    }
    caption = (
        "Each cell has the share of a step in which a lane works. No step is faster than its busiest lane. The lanes: "
        + "; ".join(f"{lane} is {_LANES[lane]}" for lane in lanes if lane in _LANES)
    )
    return Grid("How busy each lane is", tuple(lanes), cells, caption)
