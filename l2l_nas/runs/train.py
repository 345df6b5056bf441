"""A training of one architecture by itself, from scratch or from a run's weights, with an exact resume."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from l2l_nas.cost.closed_form import num_parameters, path_states
from l2l_nas.cost.feasible import check_memory
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import SettingError, StorageError, did_you_mean
from l2l_nas.files import write_atomically, write_json
from l2l_nas.nas.callback import Callbacks, Numbers
from l2l_nas.relay.interface import cut_sizes
from l2l_nas.report.charts.curve import curve_sheet
from l2l_nas.report.history import seconds_of
from l2l_nas.report.network import Network
from l2l_nas.report.png import is_matplotlib_installed, png_of
from l2l_nas.report.table import headline
from l2l_nas.runs.locate import compare_published
from l2l_nas.runs.log import Log, LogFile
from l2l_nas.runs.mesh import mesh_of, refuse_undivided
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
from l2l_nas.runs.parts import Parts, led_parts, problem_of
from l2l_nas.runs.progress import Display
from l2l_nas.runs.ranks import RunRanks, refuse_on_ranks
from l2l_nas.runs.resume import finished_training, training_start
from l2l_nas.runs.run import Run
from l2l_nas.runs.saved import SCRATCH, SavedRun, data_warning
from l2l_nas.runs.settings import RetrainConf
from l2l_nas.runs.terminal import say, warn
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.lead import Lead
from l2l_nas.training.retrain import Pace, Retraining, TrainingSaves, TrainingSteps, Validating, Validation
from l2l_nas.training.schedule import build_schedule
from l2l_nas.training.score import Score, by_part
from l2l_nas.training.weights import SharedWeights, in_one_process


def training_steps(parts: Parts, architecture: Architecture, lead: Lead) -> TrainingSteps:
    """What all that share a training's weights do."""
    conf = parts.conf
    assert isinstance(conf, RetrainConf)
    section = conf.train
    pace = Pace(section.steps, section.validation_steps, section.recalibrate, section.checkpoint_seconds)
    schedule = build_schedule(conf.schedule)(section.learning_rate, section.steps)
    validating = Validating(parts.scorer, parts.problem.data, conf.metric)
    return TrainingSteps(parts.trainer, architecture, pace, schedule, validating, lead)


class TrainRun(Run):
    """Everything that can be refused is built here, before anything is written.

    Args:
        conf: the settings that were given; those of a folder are taken over.
        console: the terminal.
        resume_command: the command that goes on with it.
        files: of whoever started it, written beside the settings.
        ranks: that do it together; None: this process alone.
    """

    conf: RetrainConf

    def __init__(
        self,
        conf: RetrainConf,
        console: Console,
        *,
        resume_command: str,
        files: Mapping[str, str] | None = None,
        ranks: RunRanks | None = None,
    ) -> None:
        start = training_start(conf, files=files)
        super().__init__(start, console, resume_command=resume_command, ranks=ranks)
        conf, ranks = start.conf, self.ranks
        refuse_on_ranks(conf, ranks.size)
        problem = problem_of(conf)
        self.warning = ""
        if start.source is not None:
            with contextlib.suppress(StorageError):  # it has none, which is not needed
                self.warning = data_warning(problem.data, SavedRun(start.source).result(), start.source.root)
        self.architecture = start.choice.of(problem.pool)
        metrics = problem.task.metrics
        metric = conf.metric or next(iter(metrics))
        if metric not in metrics:
            raise SettingError(f"metric: no metric '{metric}'{did_you_mean(metric, metrics)}")
        self.parts = parts = led_parts(replace(conf, metric=metric, objects={"problem": problem}), ranks)
        self.conf = conf = parts.conf  # type: ignore[assignment]
        self.compared = compare_published(problem.pool)
        refuse_undivided(parts.server, self.architecture)
        self.steps = training_steps(parts, self.architecture, ranks.lead)
        if not self.start.goes_on:  # what has run may go on: the figures are estimates
            sizes = cut_sizes(min(conf.train.batch_size, len(problem.data.train)), conf.train.micro_batch)
            check_memory(parts.relay, sizes, self.architecture, storage=conf.relay.storage)
        parts.trainer.check(self.architecture, steps=conf.train.steps)
        ranks.lead.do("begin", (replace(conf, objects={}), self.architecture), lambda conf, architecture: None)

    def _take_on(self, opened: contextlib.ExitStack) -> None:
        """Nothing."""

    def _open(self) -> tuple[Log, float]:
        before = 0.0 if self.start.is_new else seconds_of(SavedRun(self.folder).events)
        return LogFile(self.folder.log), before

    def _display(self) -> Display:
        assert self.log is not None
        return Display(self.console, self.log, lead=self.ranks.lead)

    def _restore(self, seen: Callbacks, display: Display) -> tuple[float, str] | None:
        assert self.log is not None
        self._training = training = Retraining(
            self.steps,
            saves=TrainingSaves(Checkpoint(self.folder.weights), Checkpoint(self.folder.best, keep=2), self._identity),
            watch=_TrainingDisplay(self.log, seen, self.conf.metric),
        )
        self._has_best = training.restore()
        if not (training.validations and self._has_best and training.step == self.conf.train.steps):
            return None
        line = finished_training(self.folder, self.conf)
        return (training.best.values[self.conf.metric], line) if line else None

    def _begin(self, log: Log) -> None:
        """Have the weights to begin with, if it does not go on, and say so."""
        conf, problem, training = self.conf, self.parts.problem, self._training
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
        self._write_settings()  # the run is begun
        log.write("start", step=training.step, weights=conf.weights, versions=versions())
        console = self.console
        console.print(str(self.architecture), soft_wrap=True)
        say(
            console,
            conf.space.pool,
            f": {num_parameters(pool, self.architecture):,} parameters; {sizes(problem.data)} samples; {source}",
        )
        self._greet_ranks(self.compared, self.architecture)
        if self.warning:
            warn(console, self.warning)
        if training.validations:
            console.print(f"resumed at step {training.step} of {conf.train.steps}")
        if self.start.left_out:
            console.print(self.start.left_out, soft_wrap=True)
        if not self._has_best:
            warn(console, f"{self.folder.best}: missing or damaged; the best is searched for anew")

    def _work(self, seen: Callbacks) -> None:
        seen.phase("training", total=self.conf.train.steps, done=self._training.step)
        self._training.run()
        self._numbers = Numbers(seen, "training")

    def _end(self, log: Log) -> float:
        training = self._training
        best = training.best
        server, _ = self._weights.read(self.folder.best)
        scores = training.steps.test(server)
        scores["validation"] = replace(scores["validation"], values=best.values)
        if "test" in scores:
            self._numbers.values("test", scores["test"].values, step=best.step)
        self._write(server, best, training.validations, scores, log)
        log.write("done", step=best.step, values=dict(best.values))
        return best.values[self.conf.metric]

    def _tell_stop(self, log: Log, *, at_once: bool) -> None:
        if at_once:
            self._say_stopped(" at once, all up to the last save is kept")
            return
        log.write("stopped", step=self._training.step)
        self._say_stopped(f" after {self._training.step} of {self.conf.train.steps} steps, all saved")

    def _close(self) -> None:
        super()._close()
        if isinstance(self.log, LogFile):
            self.log.close()

    @property
    def _weights(self) -> SharedWeights:
        return SharedWeights(self.parts.server, self.ranks.lead)

    def _identity(self, values: Mapping[str, float]) -> dict[str, Any]:
        """What the best weights keep, see `identity`."""
        return identity(self.architecture.choices, self._figures(values))

    def _figures(self, values: Mapping[str, float]) -> dict[str, float]:
        parameters = num_parameters(self.parts.problem.pool, self.architecture)
        return {**values, "parameters": float(parameters)}

    def _write(
        self,
        server: ParamServer,
        best: Validation,
        validations: Sequence[Validation],
        scores: Mapping[str, Score],
        log: Log,
    ) -> None:
        """The result, the export, the pictures; then what was reached."""
        conf = self.conf
        checkpoint = Checkpoint(self.folder.best)
        server = in_one_process(server, checkpoint)
        checkpoint.save(server, extra=self._identity(best.values))  # the save before is not needed any more
        result = self._result(best, validations, scores)
        log.write("result", content=result)
        write_json(self.folder.result, result)
        rows = [("result", self.folder.result), ("weights", self.folder.best)]
        if conf.export and export_or_warn(
            self.console,
            server,
            self.architecture,
            self.folder.export,
            problem=self.parts.problem,
            micro_batch=conf.train.micro_batch,
            reported=best.values,
        ):
            rows.append(("network", self.folder.export / "model.pt2"))
        if is_matplotlib_installed():
            write_atomically(self.folder.curve, png_of(curve_sheet(validations, best, metric=conf.metric)))
            rows.append(("picture", self.folder.curve))
        if self.parts.trace is not None:
            write_trace(self.folder, self.parts.trace, self.console)
        last = "; ".join(f"{name} {value:.4f} validation" for name, value in validations[-1].values.items())
        network = Network.from_json({"trial": -1, "architecture": self.architecture.choices, **by_part(scores)})
        for word, validation, line in (("last", validations[-1], last), ("best", best, headline(network))):
            say(self.console, word, f" (step {validation.step}): {line}")
        for score in scores.values():
            if score.problem:
                warn(self.console, score.problem)
        if self.parts.problem.data.test is None:
            self.console.print(NO_TEST, soft_wrap=True)
        for label, path in rows:
            self.console.print(f"  {label:8} {path}", soft_wrap=True)

    def _result(
        self, best: Validation, validations: Sequence[Validation], scores: Mapping[str, Score]
    ) -> dict[str, Any]:
        """What a search's result has, of one architecture; and all validations."""
        conf = self.conf
        found = {
            "architecture": list(self.architecture.choices),
            **by_part(scores),
            "costs": {"parameters": float(num_parameters(self.parts.problem.pool, self.architecture))},
            "values": self._figures(best.values),
            "step": best.step,
        }
        return {
            "best": found,
            "last": {"values": self._figures(validations[-1].values), "step": validations[-1].step},
            "pareto": [found],
            "trials": {"complete": 1, "pruned": 0, "failed": 0, "cached": 0},
            "objectives": [{"name": conf.metric, "maximize": self.parts.problem.task.metrics[conf.metric]}],
            "weights": conf.weights,
            "data": describe_data(self.parts.problem.data) | rows_chosen_by(self.parts.problem.data),
            **mesh_of(self.parts.server, self.architecture),
            "validations": [asdict(validation) for validation in validations],
            "seconds": round(self.seconds, 2),
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
