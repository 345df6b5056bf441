"""`-m hydra/sweeper=l2l`: runs whose settings a sampler chooses, recorded in `sweep.db` in the sweep's folder."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn
from omegaconf import Container, DictConfig, OmegaConf, open_dict, read_write

from l2l_nas.cli.jobs import Job
from l2l_nas.cli.ranges import Swept, read_swept
from l2l_nas.cli.sweeper import SWEEP_FILE, BaseSweeper, Meter, report_failure
from l2l_nas.cost.table import UNITS
from l2l_nas.errors import L2LError, SettingError, StorageError, without_passwords_in
from l2l_nas.files import is_temporary, make_folder, read_json, write_atomically, write_json
from l2l_nas.nas.objectives import Goal, parse_goals
from l2l_nas.nas.study.sqlite_file import draft_of
from l2l_nas.nas.study.study import quiet_optuna
from l2l_nas.nas.sweeps.sweep_study import SweepRecord, SweepStudy, check_sweep
from l2l_nas.report.charts.progress import sweep_sheet
from l2l_nas.report.png import is_matplotlib_installed, png_of
from l2l_nas.report.table import run_line, settings_text, swept_table
from l2l_nas.runs.build import locked
from l2l_nas.runs.changes import rule_of
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.inherit import resume_sweep
from l2l_nas.runs.locate import load_problem
from l2l_nas.runs.settings import SearchConf, settings

_DECIDED = {name for name, default, _ in settings(SearchConf) if default is None}


class SamplerSweeper(BaseSweeper):
    """Runs led by a sampler. A run that fails is recorded so and does not end the sweep.

    Args:
        trials: runs in all, those before a resume included.
        jobs, params: see `BaseSweeper`.
        sampler, seed: who chooses.
        objectives: what is optimised; the first objective of the runs if there are none.
    """

    def __init__(
        self, *, trials: int, jobs: int, sampler: str, objectives: Sequence[str], seed: int, params: Mapping[str, Any]
    ) -> None:
        super().__init__(jobs=jobs, params=params)
        self._trials = trials
        self._sampler = sampler
        self._objectives = list(objectives)
        self._seed = seed

    def sweep(self, arguments: list[str]) -> list[list[JobReturn]]:
        """See `Sweeper.sweep`, and `launch` for what it returns; exits with 2 where a run failed."""
        quiet_optuna()
        if self.jobs < 1:
            raise SettingError(f"hydra.sweeper.jobs must be at least 1, got {self.jobs}")
        overrides = self.parse(arguments)
        asks_to_resume = any(override.key_or_group == "resume" for override in overrides)
        overrides = [override for override in overrides if override.key_or_group != "resume"]
        base = self.compose([str(one.input_line) for one in overrides if not one.is_sweep_override()])
        # numbers that are decided where nobody says them are whole ones
        swept = read_swept(overrides, lambda name: 0 if name in _DECIDED else OmegaConf.select(base, name))
        check_sweep(self._sampler, swept.settings, num_trials=self._trials)
        goals = self._goals(swept)
        resume = _resumes(self.root, asked=asks_to_resume)
        make_folder(self.root)
        with locked(self.root):
            study = SweepStudy(
                self.root / SWEEP_FILE,
                settings=swept.settings,
                goals=goals,
                sampler=self._sampler,
                seed=self._seed,
                num_trials=self._trials,
                fixed=_fixed(base, swept),
                resume=resume,
            )
            try:
                self.begin()
                returned = _Sweep(self, swept, study, goals, total=self._trials).run()
                has_failures = any(record.state == "failed" for record in study.records)
            finally:
                study.close()
        if has_failures:
            sys.exit(2)
        return returned

    def _goals(self, swept: Swept) -> tuple[Goal, ...]:
        """What is optimised, in the direction that the runs' own task gives it."""
        refused: list[L2LError] = []
        # all are composed, so that a word that is wrong is refused before anything is written
        for conf in [_search_conf(self.compose(swept.overrides(values))) for values in swept.corners()]:
            try:
                problem = load_problem(
                    conf.space.pool,
                    conf.space.args,
                    source=conf.data.source,
                    validation_fraction=conf.data.validation_fraction,
                    test_fraction=conf.data.test_fraction,
                )
            except L2LError as error:
                refused.append(error)  # of others, the pool may be one that can be built
                continue
            metrics = problem.measured_task.metrics
            if not self._objectives:
                return parse_goals(conf.objectives.names[:1], metrics)
            known = {**metrics, "seconds": False}
            return parse_goals(self._objectives, known, tuple(UNITS), setting="hydra.sweeper.objectives")
        raise refused[0]


class _Sweep:
    """A sweep under way: what is asked next, what became of it, what is written at the end."""

    def __init__(
        self, sweeper: BaseSweeper, swept: Swept, study: SweepStudy, goals: Sequence[Goal], *, total: int
    ) -> None:
        self._sweeper = sweeper
        self._swept = swept
        self._study = study
        self._goals = goals
        self._root = sweeper.root
        self._meter = Meter(total, done=sum(record.state != "running" for record in study.records))
        self._total = total

    def run(self) -> list[list[JobReturn]]:
        """All runs."""
        if self._study.records:
            self._say(f"resumed with {self._meter.done} finished runs")
        try:
            returned = self._sweeper.launch(self._ask, self._done, self._meter)
        except SystemExit:
            self._study.stopped()
            raise
        self._finish()
        return returned

    def _ask(self) -> Job | None:
        while (record := self._study.ask()) is not None:
            overrides = (*self._swept.overrides(record.settings), self._sweeper.resume_word())
            job = Job(record.number, overrides, self._root / str(record.number))
            self._say(f"run {job.number}, {self._meter.begin()}: {settings_text(record.settings)}")
            if job.folder.exists():
                if record.number not in self._study.left_behind:
                    raise StorageError(f"{job.folder} is in the way of a new run; move it")
                self._sweeper.wait_for(job.folder)
                if RunFolder(job.folder).result.exists():
                    self._done(job, "")
                    continue
            return job
        return None

    def _done(self, job: Job, error: str) -> None:
        values, seconds, reason = (None, 0.0, error) if error else _outcome(job.folder, self._goals)
        self._study.tell(job.number, values=values, reason=reason, seconds=seconds)
        self._meter.done += 1
        report_failure(job.folder, reason)
        records = self._study.records
        if values is not None:
            best = records[self._study.front[0]] if len(self._goals) == 1 else None
            self._say(run_line(records[job.number], self._goals, best=best))
        self._write(records)

    def _write(self, records: Sequence[SweepRecord], importances: Mapping[str, float] | None = None) -> None:
        rows = {record.number: _row(record, self._root) for record in records}
        front = [records[number] for number in self._study.front]
        best = min(front, key=self._cost, default=None)
        content: dict[str, Any] = {
            "settings": {setting.name: str(setting) for setting in self._swept.settings},
            "objectives": [{"name": goal.name, "maximize": goal.maximize} for goal in self._goals],
            "best": rows[best.number] if best else None,
            "pareto": [rows[record.number] for record in front if len(self._goals) == 2],
            "importances": dict(importances or {}),
            "runs": list(rows.values()),
        }
        write_json(self._root / "sweep.json", content)

    def _cost(self, record: SweepRecord) -> float:
        goal = self._goals[0]
        return -record.values[goal.name] if goal.maximize else record.values[goal.name]

    def _finish(self) -> None:
        records, importances = self._study.records, self._study.importances()
        self._write(records, importances)
        console = self._sweeper.console
        console.print(swept_table(records, self._goals, front=self._study.front))
        failed = [str(record.number) for record in records if record.state == "failed"]
        if failed:
            self._say(f"runs that failed: {', '.join(failed)}; sweep.json says why")
        if len(records) < self._total:
            self._say(f"fewer than the {self._total} runs asked for: there are no other combinations")
        rows = [("sweep", self._root / "sweep.json"), ("study", self._root / SWEEP_FILE)]
        if is_matplotlib_installed():
            picture = self._root / "sweep.png"
            write_atomically(picture, png_of(sweep_sheet(records, self._goals, importances)))
            rows.append(("picture", picture))
        for label, path in rows:
            console.print(f"  {label:8} {path}", soft_wrap=True)

    def _say(self, text: str) -> None:
        self._sweeper.console.print(text, soft_wrap=True)


def _resumes(root: Path, *, asked: bool) -> bool:
    """Whether to go on with a sweep. One that was killed before it had a study is started."""
    draft = draft_of(root / SWEEP_FILE).name
    others = (
        [path.name for path in root.iterdir() if not (path.name.startswith(draft) or is_temporary(path.name))]
        if root.is_dir()
        else []
    )
    if asked:
        if others and SWEEP_FILE not in others:
            raise StorageError(f"{root}: holds no sweep ({SWEEP_FILE}); check the folder, or start without resume")
        return bool(others)
    if SWEEP_FILE in others:
        raise StorageError(
            f"{root} already holds a sweep; go on with it by: {resume_sweep('search', root)}; or choose another folder"
        )
    if others:
        raise StorageError(f"{root} is not empty ({others[0]}); choose another folder")
    return False


def _search_conf(config: DictConfig) -> SearchConf:
    with read_write(config), open_dict(config):
        del config["hydra"]
    return OmegaConf.to_object(config)  # type: ignore[return-value]


def _fixed(base: DictConfig, swept: Swept) -> dict[str, Any]:
    """By setting, what all runs of the sweep share; what cannot change their results is left out."""
    names = [setting.name for setting in swept.settings]
    found: dict[str, Any] = {}
    for name, _, _ in settings(SearchConf):
        if rule_of(name).is_free or any(f"{name}.".startswith(f"{one}.") for one in names):
            continue
        value = OmegaConf.select(base, name)
        value = OmegaConf.to_container(value) if isinstance(value, Container) else value
        found[name] = without_passwords_in(value)
        if isinstance(found[name], dict):
            found[name] = {key: one for key, one in found[name].items() if f"{name}.{key}" not in names}
    return found


def _outcome(folder: Path, goals: Sequence[Goal]) -> tuple[dict[str, float] | None, float, str]:
    """What a run found, its seconds; or why it counts as failed."""
    try:
        result = read_json(RunFolder(folder).result)
        seconds = float(result["seconds"])
        found = {**result["best"]["values"], "seconds": seconds}
        values = {goal.name: float(found[goal.name]) for goal in goals}
    except (StorageError, KeyError, TypeError, ValueError) as error:
        return None, 0.0, f"its result cannot be used ({error})"
    if not all(math.isfinite(value) for value in values.values()):
        return None, seconds, f"its values are not finite: {values}"
    return values, seconds, ""


def _row(record: SweepRecord, root: Path) -> dict[str, Any]:
    return {
        "run": record.number,
        "folder": str(root / str(record.number)),
        "state": record.state,
        "settings": dict(record.settings),
        "values": dict(record.values),
        "seconds": record.seconds,
        "reason": record.reason,
    }
