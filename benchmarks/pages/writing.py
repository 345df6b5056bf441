"""What blocks of a page are written with: raw results, Markdown, and figures beside their intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks import RESULTS
from l2l_nas.files import read_json
from l2l_nas.report.interval import is_resolved


def raw(name: str) -> Any:
    """What `benchmarks/results/NAME.json` holds."""
    return read_json(RESULTS / f"{name}.json")


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |") for line in lines)


def bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def ratio(about: Mapping[str, float], digits: int = 2) -> str:
    """A median with its interval: `1.01 (0.99 to 1.04)`."""
    return f"{about['median']:.{digits}f} ({about['low']:.{digits}f} to {about['high']:.{digits}f})"


def points(about: Mapping[str, float], digits: int = 1) -> str:
    """A mean difference of shares in points, with its 95 % interval: `+2.1 (0.9 to 3.3)`."""
    mean, low, high = (100 * about[name] for name in ("mean", "low", "high"))
    return f"{mean:+.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def in_errors(difference: float, error: float, count: int) -> str:
    """A difference in standard errors; in brackets where its 95 % interval holds 0, so that it is not resolved."""
    ahead = difference / error if error else math.inf
    return f"{ahead:+.1f}" if is_resolved(difference, error, count) else f"({ahead:+.1f})"


def format_bytes(num_bytes: float | None) -> str:
    """As KiB, MiB or GiB, three digits; a dash for none."""
    if num_bytes is None:
        return "-"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}" if num_bytes < 1000 * size else f"{num_bytes / size:,.0f} {unit}"
    return f"{num_bytes / 1024:.3g} KiB"
