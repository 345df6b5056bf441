"""After a multirun: one table and one `summary.json` of all its runs."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig
from rich.console import Console

from l2l_nas.cli.runs import RunFolder
from l2l_nas.errors import StorageError
from l2l_nas.files import read_json, write_json
from l2l_nas.report.table import sweep_table

_begun: list[Path] = []  # folders of sweeps of this process


class SweepSummary(Callback):
    """Hydra calls it around jobs; it remembers each job's folder and overrides."""

    def __init__(self) -> None:
        self._jobs: list[tuple[Path, list[str]]] = []
        self._failed = False

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Remember the sweep's folder."""
        _begun[:] = [Path(config.hydra.sweep.dir)]

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Remember a job of a sweep."""
        if config.hydra.mode != RunMode.MULTIRUN:
            return
        sweep = config.hydra.sweep
        self._jobs.append((Path(sweep.dir) / str(sweep.subdir), list(config.hydra.overrides.task)))

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: Any) -> None:
        """Remember whether it failed: a search returns its best value, a refused one nothing."""
        self._failed |= job_return.status is not JobStatus.COMPLETED or job_return.return_value is None

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Write and print the summary; exit with 2 where a run failed."""
        sweep = Path(config.hydra.sweep.dir)
        if not self._jobs:  # a launcher ran them in other processes
            found = sorted(path for path in sweep.iterdir() if RunFolder(path).config.exists())
            self._jobs = [(path, []) for path in found]
            self._failed = any(not RunFolder(path).result.exists() for path in found)
        rows: list[dict[str, Any]] = []
        for folder, overrides in self._jobs:
            row: dict[str, Any] = {"folder": str(folder), "overrides": overrides}
            try:
                result = read_json(RunFolder(folder).result)
                for goal in result["objectives"]:
                    row[goal["name"]] = result["best"]["values"][goal["name"]]
                row["seconds"] = result["seconds"]
            except (StorageError, KeyError):
                pass  # that run failed and said so
            rows.append(row)
        if not any(folder.exists() for folder, _ in self._jobs):
            remove_empty_sweep()
            sys.exit(2)
        write_json(sweep / "summary.json", rows)
        console = Console(highlight=False)
        common = set[str]() if len(rows) < 2 else set.intersection(*(set(row["overrides"]) for row in rows))
        console.print(
            sweep_table([{**row, "overrides": [o for o in row["overrides"] if o not in common]} for row in rows])
        )
        console.print(f"  summary {sweep / 'summary.json'}", soft_wrap=True)
        if self._failed:
            sys.exit(2)


def remove_empty_sweep() -> None:
    """A sweep of which every run was refused leaves nothing of what Hydra wrote."""
    while _begun:
        sweep = _begun.pop()
        with contextlib.suppress(OSError):
            if [path.name for path in sweep.iterdir()] == ["multirun.yaml"]:
                (sweep / "multirun.yaml").unlink()
                sweep.rmdir()
