"""The table of `python -m benchmarks pruning`: each way to prune beside the search, in standard errors."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.pages.writing import in_errors, markdown

HEAD = ("removed", "way", "perplexity", "search ahead", "last words", "search ahead", "their log likelihood")


def name_of(arm: str, share: int) -> str:
    """A row's name: the arm, and the per cent of the layers' parameters that it was to remove."""
    return f"{arm}_{share}"


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """All rows of some results, by what tells them apart, as Markdown; those of one share together.

    "Search ahead" says by how much, over the same windows and passages, in standard errors of the paired differences:
    of log perplexity, of last words that are right, and of their log likelihood. In brackets where the 95 % interval
    holds 0. The errors are over windows and passages alone: each network was made with one seed.
    """
    lines, originals = [], set()
    for words, result in results.items():
        rows = result["rows"]
        for name in sorted(rows, key=lambda one: (int(one.rpartition("_")[2]), list(rows).index(one))):
            cells = _cells(rows, name, words)
            if name != name_of("original", 0) or tuple(cells) not in originals:
                lines.append(cells)
            originals.add(tuple(cells))
    return markdown(HEAD, lines)


def _cells(rows: Mapping[str, Any], name: str, words: str) -> list[str]:
    row, (arm, _, share) = rows[name], name.rpartition("_")
    search = rows.get(name_of("search", int(share)))
    is_other = search is not None and search is not row
    ahead = [in_errors(*one) for one in differences(search, row)] if search is not None and is_other else ["", "", ""]
    removed = f"{share} %" + (f", {words}" if words else "") if int(share) else ""
    shown = f"`{arm}`" if search is not row else f"**{arm}**"
    hits = f"{100 * statistics.fmean(_hits(row)):.1f} %"
    return [removed, shown, f"{perplexity(row['losses']):.2f}", ahead[0], hits, *ahead[1:]]


def differences(search: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[float, float, int]]:
    """How far the search is ahead, its standard error, and of how many pairs: windows, hits, words' likelihoods."""
    pairs = [
        (other["losses"], search["losses"]),
        (_hits(search), _hits(other)),
        (other["word_losses"], search["word_losses"]),
    ]
    return [(*paired(mine, others), len(mine)) for mine, others in pairs]


def paired(mine: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """The mean difference of two measurements of the same items, and its standard error."""
    differences = [a - b for a, b in zip(mine, others, strict=True)]
    spread = statistics.stdev(differences) if len(differences) > 1 else math.nan
    return statistics.fmean(differences), spread / math.sqrt(len(differences))


def _hits(row: Mapping[str, Any]) -> list[float]:
    return [float(one) for one in row["hits"]]


def perplexity(losses: list[float]) -> float:
    """Of windows' mean losses in nats a token."""
    return math.exp(statistics.fmean(losses))
