"""A training of one architecture by itself, from scratch or from a run's weights, with an exact resume."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from l2l_nas.cost.closed_form import num_parameters, path_states
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import SettingError, StorageError, did_you_mean
from l2l_nas.files import make_folder, write_atomically, write_json, write_yaml
from l2l_nas.nas.callback import Callbacks, Numbers, Stopped, build_callbacks
from l2l_nas.relay.interface import cut_sizes
from l2l_nas.report.charts.curve import curve_sheet
from l2l_nas.report.history import seconds_of
from l2l_nas.report.network import Network
from l2l_nas.report.png import is_matplotlib_installed, png_of
from l2l_nas.report.table import headline
from l2l_nas.runs.build import at_work, check_memory
from l2l_nas.runs.fields import check_bounds
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.groups import completed
from l2l_nas.runs.locate import compare_published, load_problem
from l2l_nas.runs.log import Log, LogFile
from l2l_nas.runs.mesh import left_whole, mesh_of, refuse_undivided
from l2l_nas.runs.origin import (
    NO_TEST,
    describe_data,
    export_or_warn,
    identity,
    rows_chosen_by,
    sizes,
    versions,
    write_architecture,
    write_trace,
)
from l2l_nas.runs.progress import Display
from l2l_nas.runs.ranks import RunRanks, greet_ranks, refuse_on_ranks
from l2l_nas.runs.resume import finished_training, refuse_start, training_start
from l2l_nas.runs.saved import SCRATCH, SavedRun, data_warning
from l2l_nas.runs.settings import RetrainConf
from l2l_nas.runs.shared import Objects, TrainingComponents, build_shared
from l2l_nas.runs.terminal import say, warn
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.lead import Lead
from l2l_nas.training.retrain import Pace, Retraining, TrainingSaves, TrainingSteps, Validating, Validation
from l2l_nas.training.schedule import build_schedule
from l2l_nas.training.score import Score, by_part
from l2l_nas.training.weights import SharedWeights


def training_steps(
    conf: RetrainConf, training: TrainingComponents, architecture: Architecture, lead: Lead
) -> TrainingSteps:
    """What all that share a training's weights do."""
    section = conf.train
    pace = Pace(section.steps, section.validation_steps, section.recalibrate, section.checkpoint_seconds)
    schedule = build_schedule(conf.schedule)(section.learning_rate, section.steps)
    validating = Validating(training.scorer, training.problem.data, conf.metric)
    return TrainingSteps(training.trainer, architecture, pace, schedule, validating, lead)


class TrainRun:
    """Everything that can be refused is built here, before anything is written.

    Args:
        conf: the settings that were given; those of a folder are taken over.
        explicit: names of those that somebody asked for.
        resume_command: the command that goes on with it.
        files: that Hydra would write, see `hydra_files`.
        console: the terminal.
        ranks: that do it together; None: this process alone.
    """

    def __init__(
        self,
        conf: RetrainConf,
        *,
        explicit: Collection[str],
        resume_command: str,
        files: Mapping[str, str],
        console: Console,
        ranks: RunRanks | None = None,
    ) -> None:
        check_bounds(conf)
        self.is_resumed = bool(conf.resume)
        self.resume_command = resume_command
        self.files = files
        self.console = console
        self.ranks = ranks = ranks or RunRanks()
        self.folder = RunFolder(Path(conf.resume or conf.folder))
        self.is_new = not self.is_resumed or not self.folder.config.exists()
        self.callbacks = build_callbacks([*conf.callbacks.values()])
        start = training_start(conf, self.folder, explicit=explicit)
        self.left_out = start.left_out
        conf = completed(replace(start.conf, folder=str(self.folder.root), resume=""))
        refuse_on_ranks(conf, ranks.consensus.size)
        check_bounds(conf)
        problem = load_problem(conf.space.pool, conf.space.args, **asdict(conf.data))
        self.warning = ""
        if start.source is not None:
            with contextlib.suppress(StorageError):  # it has none, which is not needed
                self.warning = data_warning(problem.data, SavedRun(start.source).result(), start.source.root)
        self.architecture = start.choice.of(problem.pool)
        metrics = problem.task.metrics
        metric = conf.metric or next(iter(metrics))
        if metric not in metrics:
            raise SettingError(f"metric: no metric '{metric}'{did_you_mean(metric, metrics)}")
        objects = Objects(problem)
        built = ranks.lead.do("build", (conf,), lambda conf: build_shared(conf, objects, ranks))
        conf, self.components, server = built
        problem, relay = self.components.problem, self.components.relay
        self.compared = compare_published(problem.pool)
        refuse_undivided(server, self.architecture)
        self.conf = conf = replace(conf, metric=metric)
        self.steps = training_steps(conf, self.components, self.architecture, ranks.lead)
        samples = min(conf.train.batch_size, len(problem.data.train))
        if not self.is_resumed:  # what has run may go on: the figures are estimates
            sizes = cut_sizes(samples, conf.train.micro_batch)
            check_memory(relay, sizes, self.architecture, storage=conf.relay.storage)
        self.components.trainer.check(self.architecture, steps=conf.train.steps)
        ranks.lead.do("begin", (conf, self.architecture), lambda conf, architecture: None)

    def go(self) -> float:
        """Train, and write what came of it; returns the best value of the metric."""
        started = time.monotonic()
        make_folder(self.folder.root)
        with at_work(self.folder, self.components.relay.server, self.conf.relay, lead=self.ranks.lead):
            if self.is_new:  # still, now that nobody else writes there
                refuse_start(self.folder, resume=self.is_resumed)
            best = self._go(started)
        return best.values[self.conf.metric]

    def _go(self, started: float) -> Validation:
        before = 0.0 if self.is_new else seconds_of(SavedRun(self.folder).events)
        log = LogFile(self.folder.log)
        seen: Callbacks | None = None
        try:
            with Display(self.console, log, lead=self.ranks.lead) as display:
                seen = display.beside(self.callbacks)
                training = self._training(_TrainingDisplay(log, seen, self.conf.metric))
                has_best = training.restore()
                is_trained = training.validations and has_best and training.step == self.conf.train.steps
                line = finished_training(self.folder, self.conf) if is_trained else ""
                if line:
                    self.console.print(line, markup=False, soft_wrap=True)
                    return training.best
                self._begin(training, log, has_best=has_best)
                seen.phase("training", total=self.conf.train.steps, done=training.step)
                best = self._run(training, log, seen)
            server, _ = self._weights.read(self.folder.best)
            scores = training.steps.test(server)
            scores["validation"] = replace(scores["validation"], values=best.values)
            if "test" in scores:
                Numbers(seen, "training").values("test", scores["test"].values, step=best.step)
            seconds = before + time.monotonic() - started
            self._write(server, best, training.validations, scores, log, seconds=seconds)
            log.write("done", step=best.step, values=dict(best.values))
            return best
        finally:
            if seen is not None:
                seen.end()
            log.close()
            self.components.problem.data.close()

    def _training(self, watch: _TrainingDisplay) -> Retraining:
        return Retraining(
            self.steps,
            saves=TrainingSaves(Checkpoint(self.folder.weights), Checkpoint(self.folder.best, keep=2), self._identity),
            watch=watch,
        )

    def _begin(self, training: Retraining, log: Log, *, has_best: bool) -> None:
        """Have the weights to begin with, if it does not go on, and say so."""
        conf, problem = self.conf, self.components.problem
        pool = problem.pool
        brought = any(layer.candidate.has_weights for layer in pool.path(self.architecture))
        first = f"from the weights that {conf.space.pool} brings" if brought else "from scratch"
        source = f"weights of {conf.weights}" if conf.weights != SCRATCH else f"{first}, seed {conf.seed}"
        if not training.validations and conf.weights != SCRATCH:
            keys = path_states(pool, self.architecture)
            missing = self._weights.load_some(Path(conf.weights), keys)
            if missing:
                source += f"; {len(missing)} of {len(keys)} layers are not in there and begin from seed {conf.seed}"
        write_architecture(self.folder, pool, self.architecture)
        self.folder.write_hydra(self.files)  # before the settings, as a sweep knows its runs by them
        write_yaml(self.folder.config, asdict(conf))  # the run is begun
        log.write("start", step=training.step, weights=conf.weights, versions=versions())
        console = self.console
        console.print(str(self.architecture), soft_wrap=True)
        say(
            console,
            conf.space.pool,
            f": {num_parameters(pool, self.architecture):,} parameters; {sizes(problem.data)} samples; {source}",
        )
        if self.compared:
            console.print(self.compared, soft_wrap=True)
        greet_ranks(console, self.components.relay.server, conf, samples=len(problem.data.train))
        if whole := left_whole(self.components.relay.server, self.architecture):
            console.print(f"whole on every rank: {', '.join(whole)}", soft_wrap=True)
        if self.warning:
            warn(console, self.warning)
        if training.validations:
            console.print(f"resumed at step {training.step} of {conf.train.steps}")
        if self.left_out:
            console.print(self.left_out, soft_wrap=True)
        if not has_best:
            warn(console, f"{self.folder.best}: missing or damaged; the best is searched for anew")

    def _run(self, training: Retraining, log: Log, seen: Callbacks) -> Validation:
        try:
            return training.run()
        except Stopped:
            by = f"by callback {type(seen.stopped_by).__name__}" if seen.stopped_by is not None else ""
            log.write("stopped", step=training.step)
            done = f"after {training.step} of {self.conf.train.steps} steps, all saved"
            words = " ".join(filter(None, ("stopped", by, done)))
            self.console.print(f"{words}. Go on with: {self.resume_command}", soft_wrap=True, markup=False)
            raise Stopped(*filter(None, [by])) from None  # a sweep goes on after a run that a callback stopped
        except KeyboardInterrupt:  # the second Ctrl-C
            self.console.print(f"stopped at once. Go on from the last save with: {self.resume_command}", soft_wrap=True)
            raise Stopped from None

    @property
    def _weights(self) -> SharedWeights:
        return SharedWeights(self.components.relay.server, self.ranks.lead)

    def _identity(self, values: Mapping[str, float]) -> dict[str, Any]:
        """What the best weights keep, see `identity`."""
        return identity(self.architecture.choices, self._figures(values))

    def _figures(self, values: Mapping[str, float]) -> dict[str, float]:
        parameters = num_parameters(self.components.problem.pool, self.architecture)
        return {**values, "parameters": float(parameters)}

    def _write(
        self,
        server: ParamServer,
        best: Validation,
        validations: Sequence[Validation],
        scores: Mapping[str, Score],
        log: Log,
        *,
        seconds: float,
    ) -> None:
        """The result, the export, the pictures; then what was reached."""
        conf = self.conf
        checkpoint = Checkpoint(self.folder.best)
        if server.world.size > 1:  # it has a part of the weights
            server = server.another()
            checkpoint.load(server)
        checkpoint.save(server, extra=self._identity(best.values))  # the save before is not needed any more
        result = self._result(best, validations, scores, seconds=seconds)
        log.write("result", content=result)
        write_json(self.folder.result, result)
        rows = [("result", self.folder.result), ("weights", self.folder.best)]
        if conf.export and export_or_warn(
            self.console,
            server,
            self.architecture,
            self.folder.export,
            problem=self.components.problem,
            micro_batch=conf.train.micro_batch,
            reported=best.values,
        ):
            rows.append(("network", self.folder.export / "model.pt2"))
        if is_matplotlib_installed():
            write_atomically(self.folder.curve, png_of(curve_sheet(validations, best, metric=conf.metric)))
            rows.append(("picture", self.folder.curve))
        if self.components.trace is not None:
            write_trace(self.folder, self.components.trace, self.console)
        last = "; ".join(f"{name} {value:.4f} validation" for name, value in validations[-1].values.items())
        network = Network.from_json({"trial": -1, "architecture": self.architecture.choices, **by_part(scores)})
        for word, validation, line in (("last", validations[-1], last), ("best", best, headline(network))):
            say(self.console, word, f" (step {validation.step}): {line}")
        for score in scores.values():
            if score.problem:
                warn(self.console, score.problem)
        if self.components.problem.data.test is None:
            self.console.print(NO_TEST, soft_wrap=True)
        for label, path in rows:
            self.console.print(f"  {label:8} {path}", soft_wrap=True)

    def _result(
        self, best: Validation, validations: Sequence[Validation], scores: Mapping[str, Score], *, seconds: float
    ) -> dict[str, Any]:
        """What a search's result has, of one architecture; and all validations."""
        conf = self.conf
        found = {
            "architecture": list(self.architecture.choices),
            **by_part(scores),
            "costs": {"parameters": float(num_parameters(self.components.problem.pool, self.architecture))},
            "values": self._figures(best.values),
            "step": best.step,
        }
        return {
            "best": found,
            "last": {"values": self._figures(validations[-1].values), "step": validations[-1].step},
            "pareto": [found],
            "trials": {"complete": 1, "pruned": 0, "failed": 0, "cached": 0},
            "objectives": [{"name": conf.metric, "maximize": self.components.problem.task.metrics[conf.metric]}],
            "weights": conf.weights,
            "data": describe_data(self.components.problem.data) | rows_chosen_by(self.components.problem.data),
            **mesh_of(self.components.relay.server, self.architecture),
            "validations": [asdict(validation) for validation in validations],
            "seconds": round(seconds, 2),
            "versions": versions(),
        }


class _TrainingDisplay:
    """Shows a training, logs its validations, stops it on Ctrl-C."""

    def __init__(self, log: Log, display: Callbacks, metric: str) -> None:
        self._log = log
        self._metric = metric
        self._seen = ""
        self._display = display
        self._numbers = Numbers(display, "training")
        self.poll = display.poll

    def step(self, done: int, loss: float) -> None:
        """See `Watch.step`."""
        self._display.advance(done, detail=f"loss {loss:.4f}  {self._seen}")
        self._numbers.values("train", {"loss": loss}, step=done)

    def validation(self, validation: Validation, *, is_best: bool) -> None:
        """See `Watch.validation`."""
        self._log.write("validation", **asdict(validation), is_best=is_best)
        self._numbers.values("validation", validation.values, step=validation.step)
        self._seen = f"{self._metric} {validation.values[self._metric]:.4f} at step {validation.step}"
