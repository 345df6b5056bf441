"""What is predicted of a run, as files in a folder: `plan.json`, and a picture of the lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from l2l_nas.cost.profiles import find_hardware
from l2l_nas.cost.step_time import StepTime
from l2l_nas.eps.optimizers.base import Optimizer
from l2l_nas.files import write_atomically, write_json
from l2l_nas.report.charts.timeline import timeline_sheet
from l2l_nas.report.png import is_matplotlib_installed, png_of
from l2l_nas.runs.build import extremes
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.plan import MemoryLimits, Planner, PlanRow, Proposal, Shared
from l2l_nas.runs.section_settings import RelayConf
from l2l_nas.runs.settings import SearchConf
from l2l_nas.training.problem import Problem

_STEPS = 2  # in the picture


def write_plan(
    path: Path,
    planner: Planner,
    rows: Sequence[PlanRow],
    settings: Mapping[str, Any],
    **found: Sequence[Proposal] | Sequence[Shared],
) -> None:
    """Write predictions.

    Args:
        path: of the JSON file.
        settings: that they are for, see `plan_settings`.
        found: what else was found.

    Raises:
        StorageError: it could not be written.
    """
    write_json(
        path,
        {
            "kind": "predicted",
            "hardware": planner.hardware.to_json(),
            "batch_size": planner.batch_size,
            **settings,
            "rows": [row.to_json() for row in rows],
            **{name: [one.to_json() for one in several] for name, several in found.items()},
        },
    )


def plan_run(folder: RunFolder, problem: Problem, conf: SearchConf, optimizer: Optimizer) -> None:
    """Write what a search's steps would take on the hardware that it names into its folder, for its page.

    Args:
        problem: with all constraints that take no time to ask.

    Raises:
        SettingError: no such hardware.
        StorageError: it could not be written.
    """
    hardware = find_hardware(conf.search.hardware)
    planner = Planner(
        problem,
        optimizer=optimizer,
        hardware=hardware,
        memory=MemoryLimits(hardware.device_bytes, hardware.host_bytes),
        batch_size=min(conf.train.batch_size, len(problem.data.train)),
    )
    step_time = planner.step_time(conf.relay, conf.train.micro_batch)
    rows = planner.rows(step_time, extremes(problem, seed=conf.seed))
    write_plan(folder.plan, planner, rows, plan_settings(planner, conf.relay, conf.train.micro_batch))
    draw_plan(folder.plan_picture, step_time, rows[-1])


def plan_settings(planner: Planner, relay: RelayConf, micro_batch: int) -> dict[str, Any]:
    """What `plan.json` says of the settings."""
    parallel = {"data": planner.data, "tensor": planner.mesh.tensor, "chunks": planner.mesh.chunks}
    return {
        "pool_bytes": planner.pool_bytes(relay),
        "micro_batch": micro_batch,
        "relay": asdict(relay),
        "parallel": parallel,
    }


def draw_plan(path: Path, step_time: StepTime, row: PlanRow) -> None:
    """Draw what each lane does in the steps of an architecture, where matplotlib is installed.

    Raises:
        StorageError: it could not be written.
    """
    if is_matplotlib_installed():
        spans = step_time.predict(row.architecture, with_spans=True).simulation.spans
        title = f"Predicted for {step_time.hardware.name}: the {row.name} architecture"
        write_atomically(path, png_of(timeline_sheet(spans, title=title, last_steps=_STEPS)))
