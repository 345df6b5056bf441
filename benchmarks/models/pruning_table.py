"""The table of `python -m benchmarks pruning`: each way to prune beside the search, in standard errors."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.models.passages import paired

_SEARCH = "search"
_SECONDS = ("search", "prune", "tune", "measure")


def name_of(arm: str, share: int) -> str:
    """A row's name: the arm, and the per cent of the layers' parameters that it was to remove."""
    return f"{arm}_{share}"


def figures(row: Mapping[str, Any]) -> list[str]:
    """A row's own: parameters of its layers; perplexity without and with fine-tuning; last words; processor time."""
    hits = [int(one) for one in row["hits"]]
    accuracy, error = statistics.fmean(hits), statistics.stdev(hits) / math.sqrt(len(hits))
    before = f"{_perplexity(row['losses_before']):.2f}" if "losses_before" in row else ""
    seconds = [row.get(f"{stage}_processor_seconds", 0) for stage in _SECONDS[:-1]]
    return [
        f"{row['layer_parameters']:,}",
        before,
        f"{_perplexity(row['losses']):.2f}",
        f"{accuracy:.1%} ± {error:.1%}",
        f"{sum(seconds) / 60:.0f} min" if any(seconds) else "",
    ]


def table(result: Mapping[str, Any]) -> list[str]:
    """All rows as Markdown, those of one share together.

    The last columns say by how much the search is ahead in log perplexity and in last words, over the same windows and
    passages, in standard errors of the paired differences.
    """
    rows = result["rows"]
    head = ["removed", "way", "parameters of layers", "perplexity, pruned", "perplexity", "last words", "processor"]
    head += ["search ahead: log perplexity", "search ahead: last words"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for name in sorted(rows, key=lambda one: (int(one.rpartition("_")[2]), list(rows).index(one))):
        arm, _, share = name.rpartition("_")
        search = rows.get(name_of(_SEARCH, int(share)))
        ahead = _ahead(search, rows[name]) if search is not None and arm != _SEARCH else ["", ""]
        lines.append(f"| {' | '.join([f'{share} %', arm, *figures(rows[name]), *ahead])} |")
    return lines


def _ahead(search: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    losses = paired(other["losses"], search["losses"])
    hits = paired(*([float(one) for one in row["hits"]] for row in (search, other)))
    return [
        f"{losses[0]:+.4f} ({_in_errors(*losses)})",
        f"{100 * hits[0]:+.1f} points ({_in_errors(*hits)})",
    ]


def _in_errors(difference: float, error: float) -> str:
    return f"{difference / error:+.1f} errors" if error else "no error"


def _perplexity(losses: list[float]) -> float:
    return math.exp(statistics.fmean(losses))
