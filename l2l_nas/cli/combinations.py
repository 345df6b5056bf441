"""`-m`: every combination of the values given, then one table and one `summary.json` of all runs."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn

from l2l_nas.cli.jobs import Job
from l2l_nas.cli.ranges import empty_sweep
from l2l_nas.cli.sweeper import SWEEP_FILE, BaseSweeper, Meter, report_failure
from l2l_nas.errors import SettingError, StorageError
from l2l_nas.files import read_json, write_json
from l2l_nas.report.table import sweep_table
from l2l_nas.runs.folder import SWEEP_NAMES, RunFolder, refuse_taken


class CombinationsSweeper(BaseSweeper):
    """Every combination, in the order of Hydra's own sweeper. A run that fails does not end it."""

    def sweep(self, arguments: list[str]) -> list[list[JobReturn]]:
        """See `Sweeper.sweep`, and `launch` for what it returns; exits with 2 where a run failed."""
        overrides = self.parse(arguments)
        combinations = list(itertools.product(*map(_words, overrides)))
        for words in combinations:
            self.compose(words)
        if (self.root / SWEEP_FILE).exists():
            raise StorageError(f"{self.root} holds a sweep of hydra/sweeper=l2l; name it, or choose another folder")
        if not any(override.key_or_group == "resume" for override in overrides):
            refuse_taken(self.root, (*SWEEP_NAMES, *map(str, range(len(combinations)))))
        jobs = [
            Job(number, words, self.root / str(number), (self.resume_word(),))
            for number, words in enumerate(combinations)
        ]
        self.begin()
        returned, errors = self._run(jobs)
        if not any(job.folder.exists() for job in jobs):
            self.remove_empty()
            sys.exit(2)
        self._summarise(jobs)
        if any(errors.values()):
            sys.exit(2)
        return returned

    def _run(self, jobs: Sequence[Job]) -> tuple[list[list[JobReturn]], dict[int, str]]:
        """What launchers returned; and what went wrong with each, or nothing."""
        common = _common(jobs)
        meter = Meter(len(jobs))
        errors: dict[int, str] = {}
        waiting = iter(jobs)

        def ask() -> Job | None:
            job = next(waiting, None)
            if job is not None:
                varied = " ".join(word for word in job.overrides if word not in common)
                self.console.print(f"run {job.number}, {meter.begin()}: {varied}", soft_wrap=True)
                if job.folder.exists():
                    self.wait_for(job.folder)
            return job

        def done(job: Job, error: str) -> None:
            meter.done += 1
            errors[job.number] = error
            report_failure(job.folder, error)
            if not error:
                self.console.print(f"run {job.number} is done")

        return self.launch(ask, done, meter), errors

    def _summarise(self, jobs: Sequence[Job]) -> None:
        rows: list[dict[str, Any]] = []
        for job in jobs:
            row: dict[str, Any] = {"folder": str(job.folder), "overrides": list(job.overrides)}
            try:
                result = read_json(RunFolder(job.folder).result)
                for goal in result["objectives"]:
                    row[goal["name"]] = result["best"]["values"][goal["name"]]
                row["seconds"] = result["seconds"]
            except (StorageError, KeyError, TypeError):
                pass  # that run failed and said so
            rows.append(row)
        write_json(self.root / "summary.json", rows)
        common = _common(jobs)
        self.console.print(
            sweep_table([{**row, "overrides": [o for o in row["overrides"] if o not in common]} for row in rows])
        )
        self.console.print(f"  summary {self.root / 'summary.json'}", soft_wrap=True)


def _words(override: Override) -> list[str]:
    """One override for each value."""
    if not override.is_sweep_override():
        return [str(override.input_line)]
    key = override.get_key_element()
    if not override.is_discrete_sweep():
        raise SettingError(
            f"{override.key_or_group}: an interval is for a sampler to choose from: add hydra/sweeper=l2l, or write "
            "choice(...) or range(...)"
        )
    values = list(override.sweep_string_iterator())
    if not values:
        raise empty_sweep(override)
    return [f"{key}={value}" for value in values]


def _common(jobs: Sequence[Job]) -> set[str]:
    """What all runs have; nothing if there is one alone."""
    return set[str]() if len(jobs) < 2 else set.intersection(*(set(job.overrides) for job in jobs))
