"""What a point of a chart says of its trial or network when one points at it; the first line is the title."""

from __future__ import annotations

from l2l_nas.cost.table import UNITS, with_unit
from l2l_nas.nas.objectives import TrialRecord
from l2l_nas.report.network import Network
from l2l_nas.report.results import Results
from l2l_nas.report.text import format_choices, format_value
from l2l_nas.training.score import PARTS

GONE = "with candidates that the space no longer has"


def trial_tip(record: TrialRecord) -> str:
    """What is known of a trial, a line for each thing."""
    lines = [f"Trial {record.number}"]
    lines += [
        f"trial score: {labelled(name, value)}" if name not in UNITS else labelled(name, value)
        for name, value in record.values.items()
    ]
    if not record.state.has_score:
        lines.append(f"{record.state.label}: {record.reason or record.state.meaning}")
    if not record.in_space:
        lines.append(GONE)
    return "\n".join([*lines, format_choices(record.architecture)])


def network_tip(results: Results, network: Network) -> str:
    """What a finalist came to on each part of the data, and what it costs."""
    goals = [goal.name for goal in results.goals if goal.name not in network.costs]
    lines = [f"Trial {network.trial}, trained further"]
    for part in PARTS:
        lines += [f"{part}: {name} {network.scored(part, name)}" for name in goals if name in network.part(part)]
    lines += [labelled(name, value) for name, value in network.costs.items()]
    return "\n".join([*lines, format_choices(network.architecture)])


def labelled(name: str, value: float) -> str:
    """A value with its unit or its name."""
    return with_unit(name, value) if name in UNITS else f"{name} {format_value(name, value)}"
