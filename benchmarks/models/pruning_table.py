"""The table of `python -m benchmarks pruning`: each way to prune beside the search, in standard errors."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.models.passages import paired
from benchmarks.pages.writing import in_errors, markdown

_SEARCH = "search"
_SECONDS = ("search", "prune", "tune")
HEAD = (
    *("removed", "way", "parameters of layers", "pruned, before fine-tuning", "perplexity", "search ahead"),
    *("last words", "search ahead", "their log likelihood: search ahead", "processor"),
)


def name_of(arm: str, share: int) -> str:
    """A row's name: the arm, and the per cent of the layers' parameters that it was to remove."""
    return f"{arm}_{share}"


def table(result: Mapping[str, Any]) -> str:
    """All rows as Markdown, those of one share together.

    "Search ahead" says by how much, over the same windows and passages, in standard errors of the paired differences:
    of log perplexity, of last words that are right, and of their log likelihood. In brackets where the 95 % interval
    holds 0. The errors are over windows and passages alone: each network was made with one seed.
    """
    rows = result["rows"]
    order = list(rows)
    names = sorted(rows, key=lambda one: (int(one.rpartition("_")[2]), order.index(one)))
    return markdown(HEAD, [_cells(rows, name) for name in names])


def _cells(rows: Mapping[str, Any], name: str) -> list[str]:
    row, (arm, _, share) = rows[name], name.rpartition("_")
    search = rows.get(name_of(_SEARCH, int(share)))
    ahead = ["", "", ""] if search is None or arm == _SEARCH else [in_errors(*one) for one in differences(search, row)]
    seconds = sum(row.get(f"{stage}_processor_seconds", 0) for stage in _SECONDS)
    before = f"{perplexity(row['losses_before']):.2f}" if row.get("losses_before") else ""
    hits = _hits(row)
    accuracy, error = statistics.fmean(hits), statistics.stdev(hits) / math.sqrt(len(hits))
    return [
        *(f"{share} %" if int(share) else "", f"`{arm}`" if search is not row else f"**{arm}**"),
        *(f"{row['layer_parameters']:,}", before, f"{perplexity(row['losses']):.2f}", ahead[0]),
        *(f"{100 * accuracy:.1f} ± {100 * error:.1f} %", ahead[1], ahead[2]),
        f"{seconds / 60:.0f} min" if seconds else "",
    ]


def differences(search: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[float, float, int]]:
    """How far the search is ahead, its standard error, and of how many pairs: windows, hits, words' likelihoods."""
    pairs = [
        (other["losses"], search["losses"]),
        (_hits(search), _hits(other)),
        (other["word_losses"], search["word_losses"]),
    ]
    return [(*paired(mine, others), len(mine)) for mine, others in pairs]


def _hits(row: Mapping[str, Any]) -> list[float]:
    return [float(one) for one in row["hits"]]


def perplexity(losses: list[float]) -> float:
    """Of windows' mean losses in nats a token."""
    return math.exp(statistics.fmean(losses))
