"""What results say of their origin: versions, machine and data; and what a search and a training write alike."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from l2l_nas.eps.server import ParamServer
from l2l_nas.files import write_atomically, write_json
from l2l_nas.relay.device import name_of
from l2l_nas.relay.trace import Trace, regime
from l2l_nas.report.charts.timeline import timeline_sheet
from l2l_nas.report.png import is_matplotlib_installed, png_of
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.terminal import warn
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool
from l2l_nas.training.data import Data
from l2l_nas.training.export import Export, ExportError, export_network
from l2l_nas.training.overlap import RowHashes
from l2l_nas.training.problem import Problem
from l2l_nas.training.samples import num_groups
from l2l_nas.version import __version__

# what is shown where a user's own data have two parts
NO_TEST = "no test part: no samples were held out, so no figure is of data that the choice did not depend on"


def versions() -> dict[str, str]:
    """What the run ran on."""
    packages = {name: version(name) for name in ("torch", "optuna", "hydra-core", "numpy", "scikit-learn")}
    return {"l2l_nas": __version__, "python": platform.python_version(), **packages}


def hardware(device: torch.device) -> str:
    """The device that the run is on, and the system: "cpu (8 cores), Linux x86_64"."""
    name = f"{os.cpu_count()} cores" if device.type == "cpu" else name_of(device)
    return f"{device.type} ({name}), {platform.system()} {platform.machine()}"


def sizes(data: Data) -> str:
    """How many samples each part has: "1,077 training, 1,440 validation (in 360 groups), 360 test"."""
    groups = _groups(data)
    return ", ".join(
        f"{len(part):,} {name}" + (f" (in {groups[name]:,} groups)" if name in groups else "")
        for name, part in data.parts.items()
    )


def _groups(data: Data) -> dict[str, int]:
    """Of parts whose samples belong together, how many groups there are; of those that figures are measured on."""
    measured = {name: part for name, part in data.parts.items() if name != "training"}
    return {name: count for name, part in measured.items() if (count := num_groups(part)) < len(part)}


def describe_data(data: Data) -> dict[str, Any]:
    """Which data a result is of: samples of each part, groups where they belong together, and digests."""
    groups = _groups(data)
    return {
        "samples": {name: len(part) for name, part in data.parts.items()},
        **({"groups": groups} if groups else {}),
        "digest": data.digest,
        "test_digest": data.test_digest,
    }


def rows_chosen_by(data: Data) -> dict[str, Any]:
    """Of a result: by which samples it chose, for a later run whose test part may have them. See [Note: overlap]."""
    return {"validation_rows": RowHashes.of(data.validation).to_json()}


def identity(choices: Sequence[str], values: Mapping[str, float]) -> dict[str, Any]:
    """What the weights of the best network keep, so that another result file is not taken for theirs."""
    return {"architecture": list(choices), "values": dict(values)}


def write_architecture(folder: RunFolder, pool: LayerPool, architecture: Architecture) -> None:
    """Write the architecture alone, with the names of the positions that it is for.

    Raises:
        StorageError: it could not be written.
    """
    write_json(
        folder.architecture,
        {
            "choices": list(architecture.choices),
            "positions": [position.name for position in pool.positions],
            "digest": architecture.digest,
        },
    )


def write_trace(folder: RunFolder, trace: Trace, console: Console) -> None:
    """What each lane did at the end of a run, for chrome://tracing and as a picture of the last steps."""
    trace.write_chrome(folder.trace)
    console.print(f"trace {folder.trace}: {regime(trace.spans)}", soft_wrap=True)
    if is_matplotlib_installed():
        write_atomically(folder.timeline, png_of(timeline_sheet(trace.spans, last_steps=4)))


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
