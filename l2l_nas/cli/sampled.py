"""`-m hydra/sweeper=l2l`: runs whose settings a sampler chooses, recorded in `sweep.db` in the sweep's folder.

Runs are launched in batches, as Hydra's own sweepers launch them. A launcher returns when all runs of a batch are over,
or raises when one of them took its process down: then those without an outcome are launched again one by one, as often
as `nas/retries.py` has it.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import Container, DictConfig, OmegaConf, open_dict, read_write

from l2l_nas.cli.hydra_errors import explain_value, is_of_hydra
from l2l_nas.cli.launch import report
from l2l_nas.cli.ranges import Swept, read_swept, refuse_places
from l2l_nas.cli.sweep import NO_RESULT, SWEEP_FILE, failure_of
from l2l_nas.cost.table import UNITS
from l2l_nas.errors import L2LError, SettingError, StorageError, described, without_passwords_in
from l2l_nas.files import (
    is_temporary,
    make_folder,
    read_bytes,
    read_json,
    remove_leftovers,
    write_atomically,
    write_json,
)
from l2l_nas.nas.objectives import Goal, parse_goals
from l2l_nas.nas.study.sqlite_file import draft_of
from l2l_nas.nas.study.study import quiet_optuna
from l2l_nas.nas.sweeps.sweep_study import SweepRecord, SweepStudy, check_sweep
from l2l_nas.report.charts.progress import sweep_sheet
from l2l_nas.report.history import read_events
from l2l_nas.report.png import is_matplotlib_installed, png_of
from l2l_nas.report.table import run_line, settings_text, swept_table
from l2l_nas.runs.build import locked
from l2l_nas.runs.fields import settings
from l2l_nas.runs.folder import SWEEP_NAMES, RunFolder, refuse_taken
from l2l_nas.runs.inherit import SWEEP_CONFIG, resume_sweep
from l2l_nas.runs.locate import load_problem
from l2l_nas.runs.progress import time_to_go
from l2l_nas.runs.settings import SearchConf, rule_of
from l2l_nas.runs.terminal import open_terminal

_DECIDED = {name for name, default, _ in settings(SearchConf) if default is None}


class SamplerSweeper(Sweeper):
    """Runs led by a sampler. A run that fails is recorded so and does not end the sweep.

    Args:
        trials: runs in all, those before a resume included.
        jobs: runs of a batch.
        sampler, seed: who chooses.
        objectives: what is optimised; the first objective of the runs if there are none.
        params: what is swept, if a config file says it; the command line comes after it.
    """

    def __init__(
        self, *, trials: int, jobs: int, sampler: str, objectives: Sequence[str], seed: int, params: Mapping[str, Any]
    ) -> None:
        self._trials = trials
        self._jobs = jobs
        self._sampler = sampler
        self._objectives = list(objectives)
        self._seed = seed
        self._params = dict(params)
        self._hydra_context: HydraContext
        self._config: DictConfig
        self._launcher: Launcher

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """See `Sweeper.setup`."""
        self._hydra_context = hydra_context
        self._config = config
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        """See `Sweeper.sweep`: of each batch what its launcher returned; exits with 2 where a run failed."""
        quiet_optuna()
        if self._jobs < 1:
            raise SettingError(f"hydra.sweeper.jobs must be at least 1, got {self._jobs}")
        parser = OverridesParser.create(config_loader=self._hydra_context.config_loader)
        words = [*(f"{name}={value}" for name, value in self._params.items()), *arguments]
        by_name = {override.key_or_group: override for override in parser.parse_overrides(words)}
        refuse_places(list(by_name.values()))
        asks_to_resume = by_name.pop("resume", None) is not None
        overrides = list(by_name.values())
        base = self.compose([str(one.input_line) for one in overrides if not one.is_sweep_override()])
        # numbers that are decided where nobody says them are whole ones
        swept = read_swept(overrides, lambda name: 0 if name in _DECIDED else OmegaConf.select(base, name))
        check_sweep(self._sampler, swept.settings, num_trials=self._trials)
        goals = self._goals(swept)
        root = self.root
        resume = _resumes(root, asked=asks_to_resume, num_trials=self._trials)
        make_folder(root)
        with locked(root):
            study = SweepStudy(
                root / SWEEP_FILE,
                settings=swept.settings,
                goals=goals,
                sampler=self._sampler,
                seed=self._seed,
                num_trials=self._trials,
                fixed=_fixed(base, swept),
                resume=resume,
            )
            try:
                remove_leftovers(root)
                content = without_passwords_in(OmegaConf.to_container(self._config, resolve=False))
                write_atomically(root / SWEEP_CONFIG, OmegaConf.to_yaml(OmegaConf.create(content)))
                returned = _Sweep(self, swept, study, goals, total=self._trials).run(self._jobs)
                has_failures = any(record.state == "failed" for record in study.records)
            finally:
                study.close()
        if has_failures:
            sys.exit(2)
        return returned

    @property
    def root(self) -> Path:
        """The sweep's folder; each run has one below it."""
        return Path(self._config.hydra.sweep.dir)

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        """The configuration of a run.

        Raises:
            HydraException: there is none.
        """
        return self._hydra_context.config_loader.load_sweep_config(self._config, list(overrides))

    def launch(self, batch: Sequence[_Job]) -> Sequence[JobReturn]:
        """What the launcher returns; it raises whatever it raises."""
        # launchers count from a number on; the folder is named by the run's own
        words = [[*job.overrides, f"hydra.sweep.subdir={job.number}"] for job in batch]
        return self._launcher.launch(words, initial_job_idx=batch[0].number)

    def _goals(self, swept: Swept) -> tuple[Goal, ...]:
        """What is optimised, in the direction that the runs' own task gives it."""
        refused: list[L2LError] = []
        # all are composed, so that a word that is wrong is refused before anything is written
        for conf in [_search_conf(self.compose(swept.overrides(values))) for values in swept.corners()]:
            try:
                problem = load_problem(
                    conf.space.pool,
                    conf.space.args,
                    **asdict(conf.data),
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


@dataclass(frozen=True)
class _Job:
    """A run of a sweep: its number, its settings as the command line takes them, and where it is written."""

    number: int
    overrides: tuple[str, ...]
    folder: Path


class _Sweep:
    """A sweep under way: what is asked next, what became of it, what is written at the end."""

    def __init__(
        self, sweeper: SamplerSweeper, swept: Swept, study: SweepStudy, goals: Sequence[Goal], *, total: int
    ) -> None:
        self._sweeper = sweeper
        self._root = sweeper.root
        self._resume = "resume='" + str(self._root).replace("\\", "\\\\").replace("'", "\\'") + "'"
        self._swept = swept
        self._study = study
        self._goals = goals
        self._total = total
        self._console = open_terminal()
        self._done = self._before = sum(record.state != "running" for record in study.records)
        self._started = time.monotonic()
        self._lost: set[int] = set()  # runs of a batch whose launcher lost a process

    def run(self, jobs: int) -> list[Sequence[JobReturn]]:
        """All runs, so many at a time."""
        if self._study.records:
            self._say(f"resumed with {self._done} finished runs")
        returned: list[Sequence[JobReturn]] = []
        while batch := self._ask(1 if self._lost & self._running else jobs):
            returned.append(self._launch(batch))
        self._finish()
        return returned

    @property
    def _running(self) -> set[int]:
        return {record.number for record in self._study.records if record.state == "running"}

    def _ask(self, most: int) -> list[_Job]:
        """The next runs; none when all are done."""
        batch: list[_Job] = []
        while len(batch) < most and (record := self._study.ask()) is not None:
            if record.state == "failed":
                self._report(record)
                continue
            # a run goes on in its own folder, one that has none is started
            overrides = (*self._swept.overrides(record.settings), self._resume)
            job = _Job(record.number, overrides, self._root / str(record.number))
            done = self._done - self._before
            left = time_to_go((time.monotonic() - self._started) / done * (self._total - self._done) if done else None)
            begun = self._done + len(batch) + 1
            self._say(f"run {job.number}, {begun} of {self._total}, {left}: {settings_text(record.settings)}")
            if job.folder.exists() and job.number not in self._study.left_behind:
                raise StorageError(f"{job.folder} is in the way of a new run; move it")
            try:
                self._sweeper.compose(overrides)
            except Exception as error:
                if not is_of_hydra(error):
                    raise
                self._record(job, explain_value(error, overrides))
            else:
                batch.append(job)
        return batch

    def _launch(self, batch: Sequence[_Job]) -> Sequence[JobReturn]:
        returned: Sequence[JobReturn] = ()
        try:
            returned = self._sweeper.launch(batch)
        except Exception as error:
            if not any(job.folder.exists() for job in batch):
                raise L2LError(f"hydra/launcher: cannot launch ({type(error).__name__}: {error})") from error
            report(f"hydra/launcher: {type(error).__name__}: {described(error)}; runs without a result begin again")
        for job in batch:
            reason = failure_of(job.folder)
            if reason == NO_RESULT and not returned:
                self._lost.add(job.number)
                self._study.lost(job.number, progress=_num_trials(job.folder))
            else:
                self._record(job, reason)
        return returned

    def _record(self, job: _Job, error: str) -> None:
        values, seconds, reason = (None, 0.0, error) if error else _outcome(job.folder, self._goals)
        self._study.tell(job.number, values=values, reason=reason, seconds=seconds)
        self._report(self._study.records[job.number])

    def _report(self, record: SweepRecord) -> None:
        """A run is over."""
        self._done += 1
        records = self._study.records
        if record.state == "failed":
            report(f"{self._root / str(record.number)}: {record.reason}")
        else:
            best = records[self._study.front[0]] if len(self._goals) == 1 else None
            self._say(run_line(record, self._goals, best=best))
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
        self._console.print(swept_table(records, self._goals, front=self._study.front))
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
            self._say(f"  {label:8} {path}")

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


def _resumes(root: Path, *, asked: bool, num_trials: int) -> bool:
    """Whether to go on with a sweep. One that was killed before it had a study is started."""
    if (root / SWEEP_FILE).exists():
        if asked:
            return True
        raise StorageError(
            f"{root} already holds a sweep; go on with it by: {resume_sweep('search', root)}; or choose another folder"
        )
    draft = draft_of(root / SWEEP_FILE).name
    names = [path.name for path in root.iterdir()] if root.is_dir() else []
    if asked and not all(name.startswith(draft) or is_temporary(name) for name in names):
        raise StorageError(f"{root}: holds no sweep ({SWEEP_FILE}); check the folder, or start without resume")
    if RunFolder(root).holds_run:
        raise StorageError(f"{root} already holds a run, which is no sweep; choose another folder")
    refuse_taken(root, (*SWEEP_NAMES, *map(str, range(num_trials))))
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


def _num_trials(folder: Path) -> int:
    """How many trials a run has finished, as far as its log tells."""
    log = RunFolder(folder).log
    events = read_events(read_bytes(log).decode("utf-8", "replace")) if log.exists() else []
    return sum(event["event"] == "trial" for event in events)


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
