"""`-m hydra/sweeper=l2l`: runs whose settings a sampler chooses, recorded in `sweep.log` in the sweep's folder.

Runs are launched in batches, as Hydra's own sweepers launch them. A launcher returns when all runs of a batch are over,
or raises when one of them took its process down: that ends the sweep, and what was running goes on with a resume.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import Container, DictConfig, OmegaConf, open_dict, read_write

from l2l_nas.cli.launch import report
from l2l_nas.cli.ranges import distribution_of, refuse_places
from l2l_nas.cli.sweep import SWEEP_FILE, failure_of, launcher_failed
from l2l_nas.cost.table import UNITS
from l2l_nas.errors import L2LError, StorageError, without_passwords_in
from l2l_nas.files import is_temporary, make_folder, read_json, remove_leftovers, write_atomically, write_json
from l2l_nas.nas.objectives import Goal, parse_goals
from l2l_nas.nas.study.journal import draft_of
from l2l_nas.nas.study.study import quiet_optuna
from l2l_nas.nas.sweep_study import SweepRecord, SweepStudy, Values, check_sweep, ends_of
from l2l_nas.report.table import run_line, settings_text, swept_table
from l2l_nas.runs.fields import check_bounds, declared, settings
from l2l_nas.runs.folder import SWEEP_NAMES, RunFolder, locked, refuse_taken
from l2l_nas.runs.locate import load_problem
from l2l_nas.runs.progress import time_to_go
from l2l_nas.runs.settings import SearchConf, SweeperConf
from l2l_nas.runs.sweep_words import SWEEP_CONFIG, resume_sweep
from l2l_nas.runs.terminal import open_terminal

_DECIDED = {name for name, default, _ in settings(SearchConf) if default is None}


class SamplerSweeper(Sweeper):
    """Runs led by a sampler. A run that fails is recorded so and does not end the sweep.

    Args:
        conf: see `SweeperConf`.
    """

    def __init__(self, **conf: Any) -> None:
        self._conf = SweeperConf(**conf)
        self._console = open_terminal()
        self._context: HydraContext
        self._config: DictConfig
        self._launcher: Launcher
        self._root: Path  # the sweep's folder; each run has one below it
        self._shared: list[str]  # overrides that all runs have
        self._swept: dict[str, Override]
        self._study: SweepStudy

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """See `Sweeper.setup`."""
        self._context, self._config = hydra_context, config
        self._root = Path(config.hydra.sweep.dir)
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        """See `Sweeper.sweep`: of each batch what its launcher returned; exits with 2 where a run failed."""
        quiet_optuna()
        conf, root = self._conf, self._root
        check_bounds(conf, "hydra.sweeper.")
        parser = OverridesParser.create(config_loader=self._context.config_loader)
        words = [*(f"{name}={value}" for name, value in conf.params.items()), *arguments]
        overrides = {override.key_or_group: override for override in parser.parse_overrides(words)}
        refuse_places(list(overrides.values()))
        is_resumed = overrides.pop("resume", None) is not None
        self._shared = [str(one.input_line) for one in overrides.values() if not one.is_sweep_override()]
        self._swept = {name: one for name, one in overrides.items() if one.is_sweep_override()}
        # composed, so that a wrong word is refused before anything is written
        base = self._compose(self._shared)
        distributions = {
            # numbers that are decided where nobody says them are whole ones
            name: distribution_of(override, 0 if name in _DECIDED else OmegaConf.select(base, name))
            for name, override in self._swept.items()
        }
        check_sweep(conf.sampler, distributions)
        goals, fixed = self._goals(distributions), _fixed(base, distributions)
        resume = self._resumes(is_asked=is_resumed)
        make_folder(root)
        with locked(root):
            self._study = SweepStudy(
                root / SWEEP_FILE,
                distributions,
                goals,
                fixed,
                sampler=conf.sampler,
                seed=conf.seed,
                num_runs=conf.trials,
                resume=resume,
            )
            refuse_taken(root, [str(number) for number in range(len(self._study.records), conf.trials)])
            remove_leftovers(root)
            content = without_passwords_in(OmegaConf.to_container(self._config, resolve=False))
            write_atomically(root / SWEEP_CONFIG, OmegaConf.to_yaml(OmegaConf.create(content)))
            returned = self._run()
            self._finish()
        if any(record.state == "failed" for record in self._study.records):
            sys.exit(2)
        return returned

    def _goals(self, distributions: Mapping[str, Any]) -> tuple[Goal, ...]:
        """What is optimised, in the direction that the runs' own task gives it."""
        ends = {name: ends_of(one) for name, one in distributions.items()}
        rows = range(max(map(len, ends.values())))  # every choice, and both ends of every range, occur in one
        corners = [{name: values[row % len(values)] for name, values in ends.items()} for row in rows]
        refused: list[L2LError] = []
        for config in [self._compose(self._words(values)) for values in corners]:
            with read_write(config), open_dict(config):
                del config["hydra"]
            conf: Any = OmegaConf.to_object(config)
            try:
                problem = load_problem(conf.space.pool, conf.space.args, **asdict(conf.data))
            except L2LError as error:
                refused.append(error)  # of others, the pool may be one that can be built
                continue
            metrics = problem.measured_task.metrics
            if not self._conf.objectives:
                return parse_goals(conf.objectives.names[:1], metrics)
            known = {**metrics, "seconds": False}
            return parse_goals(self._conf.objectives, known, tuple(UNITS), setting="hydra.sweeper.objectives")
        raise refused[0]

    def _words(self, values: Values) -> list[str]:
        """The overrides of a run: those that all share, then its own."""
        return [*self._shared, *(f"{self._swept[name].get_key_element()}={value}" for name, value in values.items())]

    def _compose(self, overrides: Sequence[str]) -> DictConfig:
        return self._context.config_loader.load_sweep_config(self._config, list(overrides))

    def _resumes(self, *, is_asked: bool) -> bool:
        """Whether to go on with a sweep. One that was killed before it had a study is started."""
        root = self._root
        if (root / SWEEP_FILE).exists():
            if is_asked:
                return True
            again = resume_sweep("search", root)
            raise StorageError(f"{root} already holds a sweep; go on with it by: {again}; or choose another folder")
        draft = draft_of(root / SWEEP_FILE).name
        names = [path.name for path in root.iterdir()] if root.is_dir() else []
        if is_asked and not all(name.startswith(draft) or is_temporary(name) for name in names):
            raise StorageError(f"{root}: holds no sweep ({SWEEP_FILE}); check the folder, or start without resume")
        if RunFolder(root).holds_run:
            raise StorageError(f"{root} already holds a run, which is no sweep; choose another folder")
        refuse_taken(root, (*SWEEP_NAMES, *map(str, range(self._conf.trials))))
        return False

    def _run(self) -> list[Sequence[JobReturn]]:
        """All runs, a batch at a time."""
        study, total = self._study, self._conf.trials
        before, started = _num_over(study), time.monotonic()
        if study.records:
            self._say(f"resumed with {before} finished runs")
        returned: list[Sequence[JobReturn]] = []
        while True:
            batch: dict[int, list[str]] = {}
            while len(batch) < self._conf.jobs and (record := study.ask()) is not None:
                done = _num_over(study)
                pace = (time.monotonic() - started) / (done - before) if done > before else None
                left = time_to_go(pace * (total - done) if pace is not None else None)
                shown = settings_text(record.settings)
                self._say(f"run {record.number}, {done + len(batch) + 1} of {total}, {left}: {shown}")
                batch[record.number] = self._words_of(record)
            if not batch:
                return returned
            try:
                returned.append(self._launcher.launch(list(batch.values()), initial_job_idx=min(batch)))
            except Exception as error:
                is_begun = any((self._root / str(number)).exists() for number in batch)
                raise launcher_failed("search", self._root, error, is_begun=is_begun) from error
            for number in batch:
                self._record(number)

    def _words_of(self, record: SweepRecord) -> list[str]:
        place = str(self._root).replace("\\", "\\\\").replace("'", "\\'")
        # it goes on in its folder, or is started there; launchers count from a number on, a folder has the run's own
        return [*self._words(record.settings), f"resume='{place}'", f"hydra.sweep.subdir={record.number}"]

    def _record(self, number: int) -> None:
        """A run is over."""
        folder, goals = self._root / str(number), self._study.goals
        values, error = _outcome(folder, goals)
        self._study.tell(number, values)
        records = self._records()
        if error:
            report(f"{folder}: {error}")
        else:
            best = records[self._study.front[0]] if len(goals) == 1 else None
            self._say(run_line(records[number], goals, best=best))
        self._write(records, {})

    def _records(self) -> list[SweepRecord]:
        """All runs, with what their folders tell."""
        found = []
        for record in self._study.records:
            folder = self._root / str(record.number)
            reason = _outcome(folder, self._study.goals)[1] if record.state == "failed" else ""
            found.append(replace(record, seconds=_seconds(folder), reason=reason))
        return found

    def _write(self, records: Sequence[SweepRecord], importances: Mapping[str, float]) -> None:
        rows = [
            {"run": record.number, "folder": str(self._root / str(record.number)), **asdict(record)}
            for record in records
        ]
        for row in rows:
            del row["number"]
        goals = self._study.goals
        goal = goals[0]
        front = sorted(self._study.front, key=lambda number: records[number].values[goal.name], reverse=goal.maximize)
        content = {
            "settings": self._study.settings,
            "objectives": [{"name": goal.name, "maximize": goal.maximize} for goal in goals],
            "best": rows[front[0]] if front else None,
            "pareto": [rows[number] for number in self._study.front if len(goals) == 2],
            "importances": dict(importances),
            "runs": rows,
        }
        write_json(self._root / "sweep.json", content)

    def _finish(self) -> None:
        records, study = self._records(), self._study
        self._write(records, study.importances())
        self._console.print(swept_table(records, study.goals, front=study.front))
        failed = [str(record.number) for record in records if record.state == "failed"]
        if failed:
            self._say(f"runs that failed: {', '.join(failed)}; sweep.json says why")
        if len(records) < self._conf.trials:
            self._say(f"fewer than the {self._conf.trials} runs asked for: there are no other combinations")
        for label, path in (("sweep", self._root / "sweep.json"), ("study", self._root / SWEEP_FILE)):
            self._say(f"  {label:8} {path}")

    def _say(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


def _num_over(study: SweepStudy) -> int:
    return sum(record.state != "running" for record in study.records)


def _fixed(base: DictConfig, swept: Mapping[str, Any]) -> dict[str, Any]:
    """By setting, what all runs of the sweep share; what cannot change their results is left out."""
    found: dict[str, Any] = {}
    for one in declared(SearchConf):
        is_free = one.resume is not None and one.resume.is_free
        if is_free or any(f"{one.name}.".startswith(f"{name}.") for name in swept):
            continue
        value = OmegaConf.select(base, one.name)
        value = without_passwords_in(OmegaConf.to_container(value) if isinstance(value, Container) else value)
        if isinstance(value, dict):
            value = {key: item for key, item in value.items() if f"{one.name}.{key}" not in swept}
        found[one.name] = value
    return found


def _outcome(folder: Path, goals: Sequence[Goal]) -> tuple[dict[str, float] | None, str]:
    """What a run found; or why it counts as failed."""
    if error := failure_of(folder):
        return None, error
    try:
        result = read_json(RunFolder(folder).result)
        found = {**result["best"]["values"], "seconds": float(result["seconds"])}
        values = {goal.name: float(found[goal.name]) for goal in goals}
    except (StorageError, KeyError, TypeError, ValueError) as error:
        return None, f"its result cannot be used ({error})"
    if not all(math.isfinite(value) for value in values.values()):
        return None, f"its values are not finite: {values}"
    return values, ""


def _seconds(folder: Path) -> float:
    """What a run took; 0 where it has no result."""
    try:
        return float(read_json(RunFolder(folder).result)["seconds"])
    except (StorageError, KeyError, TypeError, ValueError):
        return 0.0
