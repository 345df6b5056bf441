"""`search`: find an architecture, write everything about it into a folder, go on after an interruption."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from l2l_nas.cli.launch import report
from l2l_nas.cli.locate import load_problem, shipped
from l2l_nas.cli.progress import Display, Log
from l2l_nas.cli.runs import (
    RunFolder,
    build_optimizer,
    build_relay,
    identity,
    kept_residency,
    locked,
    num_threads,
    set_threads,
    versions,
)
from l2l_nas.cli.schema import RelayConf, SearchConf
from l2l_nas.cli.worker import check_workers, hired
from l2l_nas.cli.worker import identity as identity_of
from l2l_nas.cost.closed_form import MaxParameters, num_parameters
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.storage import STORAGES, FileStorage
from l2l_nas.errors import L2LError, SettingError, StorageError, did_you_mean
from l2l_nas.files import make_folder, write_atomically, write_json
from l2l_nas.relay.interface import cut_sizes
from l2l_nas.relay.trace import Trace, regime
from l2l_nas.report.figures import is_matplotlib_installed
from l2l_nas.report.pictures import write_pictures
from l2l_nas.report.table import best_table, pareto_table
from l2l_nas.report.timeline import draw_timeline
from l2l_nas.search.budget import Budget
from l2l_nas.search.coverage import Coverage
from l2l_nas.search.crew import ProcessCrew
from l2l_nas.search.records import Goal, TrialRecord, counts, distinct, num_evaluated, pareto_front, parse_goals
from l2l_nas.search.samplers import check_sampler
from l2l_nas.search.strategy import Finalist, Search, Stopped
from l2l_nas.search.study import Study, draft_of, quiet_optuna
from l2l_nas.search.team import Team
from l2l_nas.space.constraint import Constraint, NonEmpty
from l2l_nas.space.sampling import build_paths
from l2l_nas.training.data import Batches
from l2l_nas.training.export import ExportError, export_network
from l2l_nas.training.fit import Trainer
from l2l_nas.training.problem import Problem


@hydra.main(version_base="1.3", config_path=str(shipped("conf")), config_name="search")
def main(config: DictConfig) -> float | None:
    """One run, with exit code 2 for bad input and 130 when it was stopped."""
    sweeping = HydraConfig.get().mode == RunMode.MULTIRUN
    conf: SearchConf = OmegaConf.to_object(config)  # type: ignore[assignment]
    if sweeping:
        sweep = HydraConfig.get().sweep
        conf.folder = str(Path(sweep.dir) / str(sweep.subdir))
        if conf.resume and Path(conf.resume) == Path(sweep.dir):
            conf.resume = conf.folder
    try:
        return SearchRun(conf).go()
    except Stopped:
        sys.exit(130)
    except L2LError as error:
        code = report(str(error))
        if not sweeping:
            sys.exit(code)
        if not any(Path(conf.folder).iterdir()):
            Path(conf.folder).rmdir()  # Hydra made it; nothing was written
        return None  # the other runs of the sweep go on; its summary gives the exit code


class SearchRun:
    """Everything that can be refused is built here, before anything is written."""

    def __init__(self, conf: SearchConf) -> None:
        self.conf = conf
        self.console = Console(highlight=False)
        self.folder = RunFolder(Path(conf.resume or conf.folder))
        section = conf.search
        self.is_cold = section.trial_weights == "scratch"  # a warm-up would train what nobody uses
        self.budget = Budget(
            warmup_steps=min(section.warmup_steps, 0) if self.is_cold else section.warmup_steps,
            trials=section.trials,
            steps_per_trial=section.steps_per_trial,
            finalists=section.finalists,
            finalist_steps=section.finalist_steps,
            learning_rate=conf.train.learning_rate,
            finalist_learning_rate=section.finalist_learning_rate,
            checkpoint_seconds=section.checkpoint_seconds,
            population=section.population,
            trial_weights=section.trial_weights,
        )
        if conf.seed < 0:
            raise SettingError(f"seed must be at least 0, got {conf.seed}")
        check_sampler(section.sampler)
        check_workers(conf)
        if conf.relay.storage not in STORAGES:
            raise SettingError(f"relay.storage: no '{conf.relay.storage}'{did_you_mean(conf.relay.storage, STORAGES)}")
        if conf.train.micro_batch < 1:
            raise SettingError(f"train.micro_batch must be at least 1, got {conf.train.micro_batch}")
        if section.max_parameters < 0:
            raise SettingError(f"search.max_parameters must be at least 0, got {section.max_parameters}")
        optimizer = build_optimizer(conf.train.optimizer, conf.adamw, conf.sgd)
        self.problem: Problem = load_problem(
            conf.space.pool,
            conf.space.args,
            source=conf.data.source,
            validation_fraction=conf.data.validation_fraction,
        )
        pool = self.problem.pool
        check_sampler(section.sampler, size=pool.size)
        self.goals: tuple[Goal, ...] = parse_goals(section.objectives, self.problem.task.metrics)
        self.constraints: list[Constraint] = list(self.problem.constraints)
        if section.max_parameters:
            self.constraints.append(MaxParameters(pool, section.max_parameters))
        server = ParamServer(pool, optimizer=optimizer, seed=conf.seed)
        if conf.resume:
            conf.relay = kept_residency(self.folder, conf.relay)
        self.trace = Trace() if conf.relay.trace else None
        sharers = section.workers + 1 if section.workers > 1 else 1
        self.relay = build_relay(server, conf.relay, seed=conf.seed, trace=self.trace, sharers=sharers)
        set_threads(conf.relay.threads, self.relay)
        self.problem.check(self.relay.boundaries)
        self.paths = build_paths(
            section.warmup_paths,
            pool,
            seed=conf.seed,
            size=partial(num_parameters, pool),
            constraints=(NonEmpty(pool), *self.constraints),
        )
        self.paths.path_at(0)  # refuses what nothing satisfies
        batches = Batches(self.problem.data.train, batch_size=conf.train.batch_size, seed=conf.seed)
        samples = min(conf.train.batch_size, len(self.problem.data.train))
        residency = self.relay.residency(
            cut_sizes(samples, conf.train.micro_batch)
        )  # refuses a budget that is too small
        if conf.relay.budget == "auto" and conf.relay.stash != "auto":
            # what half of the free memory holds is decided once, for sums of repeated layers depend on it
            conf.relay = replace(conf.relay, budget="none", keep=residency.keep, slots=residency.slots)
        self.trainer = Trainer(self.relay, self.problem.task, batches, conf.train.micro_batch)
        self.scorer = self.trainer
        if conf.relay.precision != "fp32":  # what is reported is what the exported network, in fp32, will give
            plain = RelayConf(device=conf.relay.device, slots=conf.relay.slots)
            self.scorer = replace(self.trainer, executor=build_relay(server, plain, seed=conf.seed))

    def go(self) -> float:
        """Search, and write what was found; returns the best value of the first goal."""
        started = time.monotonic()
        resume = self._resumes()
        quiet_optuna()
        if not resume:
            make_folder(self.folder.root)
        with locked(self.folder.root), self._pool_in_files(), hired(self) as team:
            return self._go(started, resume=resume, team=team)

    @contextlib.contextmanager
    def _pool_in_files(self) -> Iterator[None]:
        """Keep the pool in scratch files of the run's folder for as long as the search runs, if that is asked for."""
        if self.conf.relay.storage == "ram":
            yield
            return
        storage = FileStorage(self.folder.root / "pool")
        self.relay.server.storage = storage
        try:
            yield
        finally:
            storage.close()
            shutil.rmtree(self.folder.root / "pool", ignore_errors=True)

    def _go(self, started: float, *, resume: bool, team: Team | None) -> float:
        log = Log(self.folder.log)
        study: Study | None = None
        try:
            study = self._study(resume=resume)
            workers = self.conf.search.workers
            with Display(self.console, log, goals=self.goals, budget=self.budget, workers=workers) as display:
                search = self._search(study, display, team)
                if resume:
                    search.restore()
                write_atomically(self.folder.config, OmegaConf.to_yaml(OmegaConf.structured(self.conf)))
                log.write("start", resume=resume, trials=len(study.records), versions=versions())
                self._greet(study, resume=resume)
                best = search.run()
            self._write(best, study.records, search.coverage, seconds=time.monotonic() - started)
            self._write_trace()
            log.write("done", best=best.record.number)
        except (Stopped, KeyboardInterrupt):  # the latter by a second Ctrl-C, or by one before or after the search
            if study is not None:
                log.write("stopped", **counts(study.records))
            done = f" after {num_evaluated(study.records)} of {self.budget.trials} trials, all saved" if study else ""
            self.console.print(
                f"stopped{done}. Go on with the same command and resume={self.folder.root}", soft_wrap=True
            )
            raise Stopped from None
        finally:
            log.close()
            if study is not None:
                study.close()
        return best.metrics[self.goals[0].name]

    def _study(self, *, resume: bool) -> Study:
        return Study(
            self.folder.study,
            pool=self.problem.pool,
            goals=self.goals,
            sampler=self.conf.search.sampler,
            seed=self.conf.seed,
            num_trials=self.conf.search.trials,
            resume=resume,
            data=self.problem.data.digest,
        )

    def _search(self, study: Study, observer: Display, team: Team | None) -> Search:
        crew: ProcessCrew | None = None
        if team is not None:
            about = identity_of(self.problem)
            crew = ProcessCrew(team, self.relay.server, budget=self.budget, watch=observer, identity=about)
        return Search(
            self.relay,
            self.trainer,
            validation=self.problem.data.validation,
            study=study,
            goals=self.goals,
            budget=self.budget,
            checkpoint=Checkpoint(self.folder.weights),
            constraints=self.constraints,
            seed=self.conf.seed,
            observer=observer,
            paths=self.paths,
            scorer=self.scorer,
            crew=crew,
        )

    def _resumes(self) -> bool:
        """Whether to go on with a run. One that was killed before it had a study is started."""
        root = self.folder.root
        if not self.conf.resume:
            if self.folder.study.exists() or self.folder.weights.exists():
                raise StorageError(
                    f"{root} already holds a run; go on with it by resume={root}, or choose another folder"
                )
            return False
        if not root.is_dir():
            if Path(self.conf.folder) == root:
                return False
            raise StorageError(f"resume={root}: no such folder")
        draft = draft_of(self.folder.study).name
        return any(not path.name.startswith(draft) for path in root.iterdir())

    def _greet(self, study: Study, *, resume: bool) -> None:
        pool, bank = self.problem.pool, self.relay.bank
        count = f"{pool.size:,}" if pool.size < 10**9 else f"{pool.size:.1e}"
        self.console.print(
            f"[bold]{self.conf.space.pool}[/bold]: {len(pool)} positions, {count} architectures; "
            f"{len(self.problem.data.train):,} training, {len(self.problem.data.validation):,} validation samples"
        )
        self.console.print(
            f"{self.relay.device.torch_device}: {len(bank.slots)} slots, {bank.num_bytes / 1024:,.0f} KiB; "
            f"sampler {self.conf.search.sampler}, seed {self.conf.seed}, into {self.folder.root}",
            soft_wrap=True,
        )
        workers = self.conf.search.workers
        if workers > 1:
            threads = num_threads(self.conf.relay.threads, self.relay, workers=workers)
            self.console.print(f"{workers} workers, {threads} thread{'s' * (threads > 1)} each")
        if self.is_cold and self.conf.search.warmup_steps:
            self.console.print("no warm-up: with search.trial_weights=scratch nothing would use its weights")
        if resume:
            self.console.print(f"resumed with {len(study.records)} finished trials")

    def _write_trace(self) -> None:
        """What each lane did at the end of the run, for chrome://tracing and as a picture of the last steps."""
        if self.trace is None:
            return
        self.trace.write_chrome(self.folder.trace)
        self.console.print(f"trace {self.folder.trace}: {regime(self.trace.spans)}", soft_wrap=True)
        if is_matplotlib_installed():
            draw_timeline(self.trace.spans, self.folder.timeline, last_steps=4)

    def _write(self, best: Finalist, records: tuple[TrialRecord, ...], coverage: Coverage, *, seconds: float) -> None:
        """Weights and architecture of the best, the export, the result, the pictures; then the tables."""
        architecture = best.record.architecture
        Checkpoint(self.folder.best).save(best.server, extra=identity(architecture.choices, best.metrics))
        write_json(
            self.folder.architecture,
            {
                "choices": list(architecture.choices),
                "positions": [position.name for position in self.problem.pool.positions],
                "digest": architecture.digest,
            },
        )
        exported = self._export(best)
        write_json(
            self.folder.result,
            {
                "best": {
                    "architecture": list(architecture.choices),
                    "values": dict(best.metrics),
                    "trial": best.record.number,
                },
                "pareto": [
                    {"architecture": list(r.architecture.choices), "values": dict(r.values), "trial": r.number}
                    for r in pareto_front(records, self.goals)
                ],
                "trials": counts(records),
                "coverage": coverage.to_json(),
                "objectives": [{"name": goal.name, "maximize": goal.maximize} for goal in self.goals],
                "seconds": round(seconds, 2),
                "versions": versions(),
            },
        )
        pictures = write_pictures(
            self.folder.root,
            records,
            self.goals,
            pool=self.problem.pool,
            boundaries=self.relay.boundaries,
            finalist=replace(best.record, values=best.metrics),
            coverage=coverage,
        )
        console = self.console
        console.print(best_table(records, self.goals))
        if len(self.goals) == 2:
            console.print(pareto_table(records, self.goals))
        found = "  ".join(
            f"{name} {value:,.0f}" if value > 100 else f"{name} {value:.4f}" for name, value in best.metrics.items()
        )
        console.print(f"[bold]best[/bold] (trial {best.record.number}, trained further): {found}", soft_wrap=True)
        rows = [("result", self.folder.result), ("weights", self.folder.best), ("study", self.folder.study)]
        if exported:
            rows.append(("network", self.folder.export / "model.pt2"))
        rows += [("picture", picture) for picture in pictures]
        for label, path in rows:
            console.print(f"  {label:8} {path}", soft_wrap=True)
        if not pictures:
            console.print("  no pictures: matplotlib is missing (pip install 'l2l-nas\\[plots]')", soft_wrap=True)
        console.print(f"{seconds:.0f} s, {len(distinct(records))} architectures")
        if num_evaluated(records) < self.budget.trials:
            console.print(
                f"fewer than the {self.budget.trials} trials asked for: the space has no other allowed architectures"
            )

    def _export(self, best: Finalist) -> bool:
        """Export the best network; one that cannot be traced costs a warning, not the run."""
        shutil.rmtree(self.folder.export, ignore_errors=True)  # of a run that went on, it would be another network
        if not self.conf.export:
            return False
        validation = self.problem.data.validation
        example = tuple(tensor[:4] for tensor in validation.inputs)
        try:
            export_network(best.server, best.record.architecture, self.folder.export, example=example)
        except ExportError as error:
            self.console.print(f"[yellow]warning[/yellow]: {error}", soft_wrap=True)
            return False
        return True
