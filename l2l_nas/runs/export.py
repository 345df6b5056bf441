"""The best network of a run as plain PyTorch, and what a user must know of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from l2l_nas.eps.server import ParamServer
from l2l_nas.runs.origin import versions
from l2l_nas.runs.terminal import warn
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.export import Export, ExportError, export_network
from l2l_nas.training.problem import Problem


def export_or_warn(
    console: Console,
    server: ParamServer,
    architecture: Architecture,
    folder: Path,
    *,
    problem: Problem,
    micro_batch: int,
    reported: Mapping[str, float],
) -> bool:
    """Export what a run has found; a network that cannot be exported costs a warning, not the run.

    Returns:
        Whether there is a program.
    """
    try:
        export = export_network(
            server,
            architecture,
            folder,
            problem=problem,
            micro_batch=micro_batch,
            about={"weights": str(folder.parent / "best"), "reported": dict(reported), "versions": versions()},
        )
    except ExportError as error:
        warn(console, str(error))
        return False
    for line in (*map(str, export.refused.values()), *doubts(export, reported)):
        warn(console, line)
    return "program" in export.formats


def doubts(export: Export, reported: Mapping[str, float]) -> list[str]:
    """What a user must know: formats in which the first metric is another than reported, by more than rounding."""
    name = next(iter(export.values))
    if name not in reported:
        return []
    expected = reported[name]
    return [
        f"{how}: {name} {done.values[name]!r} on the validation data, reported {expected!r}; "
        f"outputs differ by {done.difference:.1e} at most from the relay's on this CPU"
        for how, done in export.formats.items()
        if not math.isclose(done.values[name], expected, rel_tol=1e-6)
    ]
