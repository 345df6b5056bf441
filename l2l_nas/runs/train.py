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
from l2l_nas.eps.optimizers.groups import freeze
from l2l_nas.eps.optimizers.registry import build_optimizer
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.storage import own_storage
from l2l_nas.errors import L2LError, SettingError, StorageError, did_you_mean
from l2l_nas.files import make_folder, read_json, write_atomically, write_json, write_yaml
from l2l_nas.nas.callback import Stopped
from l2l_nas.relay.interface import cut_sizes
from l2l_nas.relay.relay import Relay
from l2l_nas.relay.trace import Trace
from l2l_nas.report.charts.curve import curve_sheet
from l2l_nas.report.network import Network
from l2l_nas.report.png import is_matplotlib_installed, png_of
from l2l_nas.report.table import headline
from l2l_nas.runs.build import (
    NO_TEST,
    build_relay,
    build_scorer,
    data_warning,
    decide_memory,
    described,
    identity,
    locked,
    pool_in_files,
    set_threads,
    sizes,
    versions,
    write_architecture,
    write_trace,
)
from l2l_nas.runs.chosen import (
    ORIGINAL,
    SCRATCH,
    ChosenArchitecture,
    is_architecture,
    read_choice,
    run_of,
    weights_folder,
)
from l2l_nas.runs.command_line import resume_command
from l2l_nas.runs.export import export_or_warn
from l2l_nas.runs.fields import check_bounds, declared
from l2l_nas.runs.folder import RunFolder, refuse_taken, tidy
from l2l_nas.runs.groups import completed
from l2l_nas.runs.inherit import go_on, inherit, must_stay
from l2l_nas.runs.locate import load_problem
from l2l_nas.runs.plan import check_memory
from l2l_nas.runs.progress import Log, Meter, StopSignals
from l2l_nas.runs.saved_config import own_names, own_names_in, read_config, value_in
from l2l_nas.runs.section_settings import RelayConf
from l2l_nas.runs.settings import RetrainConf, rule_of
from l2l_nas.runs.terminal import say, warn
from l2l_nas.training.data import Batches
from l2l_nas.training.fit import Trainer
from l2l_nas.training.problem import Problem
from l2l_nas.training.retrain import Pace, Retraining, Validation
from l2l_nas.training.schedule import build_schedule
from l2l_nas.training.score import Score, by_part, tested


class TrainRun:
    """Everything that can be refused is built here, before anything is written.

    Args:
        conf: the settings that were given; those of a folder are taken over.
        given: names of those that somebody asked for.
        again: the command that goes on with it, if it is not that of one training.
        files: that Hydra would write, see `hydra_files`.
        console: the terminal.
    """

    def __init__(
        self, conf: RetrainConf, *, given: Collection[str], again: str, files: Mapping[str, str], console: Console
    ) -> None:
        check_bounds(conf)
        self.conf = conf
        self.again = again
        self.files = files
        self.console = console
        self.folder = RunFolder(Path(conf.resume or conf.folder))
        self.source: RunFolder | None = None  # the run whose architecture or weights it begins with
        before = self._as_before(given) if self._resumes() else None
        choice = before or self._as_in_the_run(given)
        self.conf = conf = completed(replace(self.conf, folder=str(self.folder.root), resume=""))
        check_bounds(conf)
        section = conf.train
        self.pace = Pace(section.steps, section.validation_steps, section.recalibrate, section.checkpoint_seconds)
        self.schedule = build_schedule(conf.schedule)(section.learning_rate, section.steps)
        self.problem: Problem = load_problem(
            conf.space.pool,
            conf.space.args,
            **asdict(conf.data),
        )
        self.others = ""
        if self.source is not None and self.source.result.exists():
            with contextlib.suppress(StorageError):  # it is not needed
                self.others = data_warning(self.problem.data, read_json(self.source.result), self.source.root)
        self.architecture = choice.of(self.problem.pool)
        metrics = self.problem.task.metrics
        metric = conf.metric or next(iter(metrics))
        if metric not in metrics:
            raise SettingError(f"metric: no metric '{metric}'{did_you_mean(metric, metrics)}")
        self.trace = Trace() if conf.relay.trace else None
        self.relay, memory = self._relay()
        self.conf = conf = replace(conf, metric=metric, relay=memory)
        samples = min(section.batch_size, len(self.problem.data.train))
        if not conf.resume:  # what has run may go on: the figures are estimates
            check_memory(self.relay, cut_sizes(samples, section.micro_batch), self.architecture)
        batches = Batches(self.problem.data.train, batch_size=section.batch_size, seed=conf.seed)
        self.trainer = Trainer(self.relay, self.problem.task, batches, section.micro_batch)
        self.trainer.check(self.architecture, steps=section.steps)
        self.scorer = build_scorer(self.trainer, conf.relay, seed=conf.seed)

    def _relay(self) -> tuple[Relay, RelayConf]:
        """The relay, and its settings with what stays on the device decided."""
        conf = self.conf
        optimizer = build_optimizer(conf.optimizer)
        pool = freeze(self.problem.pool, optimizer)
        self.problem = replace(self.problem, pool=pool)
        storage = own_storage(conf.relay.storage, pool=pool, optimizer=optimizer)
        server = ParamServer(pool, optimizer=optimizer, seed=conf.seed, storage=storage)
        relay = build_relay(server, conf.relay, seed=conf.seed, trace=self.trace)
        set_threads(conf.relay.threads, relay)
        self.problem.check(relay.shapes)
        samples = min(conf.train.batch_size, len(self.problem.data.train))
        return relay, decide_memory(relay, conf.relay, samples=samples, micro_batch=conf.train.micro_batch)

    def _resumes(self) -> bool:
        """Whether to go on with a training."""
        root = self.folder.root
        if not self.conf.resume:
            if any(path.exists() for path in (self.folder.study, self.folder.weights, self.folder.result)):
                kind = "search" if self.folder.study.exists() else "train"
                line = resume_command(kind, root, own_names_in(self.folder.config))
                raise StorageError(f"{root} already holds a run; go on with it by: {line}; or choose another folder")
            refuse_taken(root)
            return False
        if self.folder.config.exists() or not root.is_dir():
            return True  # `go_on` refuses what is no training
        # killed before it had settings, perhaps with an architecture
        refuse_taken(root, but=(".hydra", "architecture.json")[: 1 + is_architecture(self.folder.architecture)])
        return False

    def _as_before(self, given: Collection[str]) -> ChosenArchitecture | None:
        """The settings and the architecture that this training was started with, but for what is given."""
        conf = self.conf
        # compared below, by what they name
        asked = {name: getattr(conf, name) for name in ("run", "architecture", "trial") if name in given}
        weights = conf.weights
        found = go_on("train", conf, given=frozenset(given) - asked.keys() - {"weights"})
        if found is None:
            return None
        self.conf = conf = found
        has_begun = self.folder.architecture.exists()
        before = read_choice(
            *(("", str(self.folder.architecture)) if has_begun else (conf.run, conf.architecture)),
            trial=-1 if has_begun else conf.trial,
        )
        if asked:
            run = asked.get("run", "" if "architecture" in asked else conf.run)
            now = read_choice(run, asked.get("architecture", ""), trial=asked.get("trial", -1))
            is_same = conf.architecture == ORIGINAL if now.choices is None else now.choices == before.choices
            if not is_same:
                words = " ".join(f"{name}={value}" for name, value in asked.items())
                raise SettingError(
                    f"{words} is not the architecture that {self.folder.root} trains; leave it out, or train it in "
                    "another folder"
                )
        if "weights" in given:
            source = str(weights_folder(weights, run=run_of(Path(conf.run or conf.architecture))) or SCRATCH)
            if source != conf.weights:
                raise must_stay(self.folder, "weights", conf.weights, source, rule_of("weights").why)
        return before

    def _as_in_the_run(self, given: Collection[str]) -> ChosenArchitecture:
        """The architecture, and settings of the run that it or its weights are from."""
        conf = self.conf
        choice = read_choice(conf.run, conf.architecture, trial=conf.trial)
        run = run_of(Path(conf.run or conf.architecture))
        weights = weights_folder(conf.weights, run=run)
        self.source = run = run or (run_of(weights) if weights else None)
        if weights is not None:
            conf = replace(conf, weights=str(weights))
        if run is not None:
            conf = inherit(
                conf, run, given=given, exempt=[one.name for one in declared(RetrainConf) if not one.is_inherited]
            )
            conf = replace(conf, metric=conf.metric or _metric_of(read_config(run.config)))
        self.conf = conf
        return choice

    def go(self) -> float:
        """Train, and write what came of it; returns the best value of the metric."""
        started = time.monotonic()
        make_folder(self.folder.root)
        try:
            with locked(self.folder.root):
                tidy(self.folder)
                with pool_in_files(self.relay.server, self.folder.root, self.conf.relay):
                    best = self._go(started)
        except L2LError:
            with contextlib.suppress(OSError):
                self.folder.root.rmdir()  # if nothing was written: the weights to begin with were refused
            raise
        return best.values[self.conf.metric]

    def _go(self, started: float) -> Validation:
        log = Log(self.folder.log)
        try:
            with StopSignals() as signals, Meter(self.console) as meter:
                training = self._training(_TrainingDisplay(log, meter, signals, self.conf))
                self._begin(training, log)
                meter.go_on(training.step, self.conf.train.steps)
                best = self._run(training, log)
            self._write(best, training.validations, seconds=time.monotonic() - started)
            log.write("done", step=best.step, values=dict(best.values))
            return best
        finally:
            log.close()
            self.problem.data.close()

    def _training(self, watch: _TrainingDisplay) -> Retraining:
        return Retraining(
            self.trainer,
            self.scorer,
            self.architecture,
            data=self.problem.data,
            metric=self.conf.metric,
            pace=self.pace,
            schedule=self.schedule,
            last=Checkpoint(self.folder.weights),
            best=Checkpoint(self.folder.best, keep=2),
            identity=self._identity,
            watch=watch,
        )

    def _identity(self, values: Mapping[str, float]) -> dict[str, Any]:
        return identity(self.architecture.choices, self._figures(values))

    def _figures(self, values: Mapping[str, float]) -> dict[str, float]:
        return {**values, "parameters": float(num_parameters(self.problem.pool, self.architecture))}

    def _begin(self, training: Retraining, log: Log) -> None:
        """Have the weights to begin or go on with, and say so."""
        conf, pool = self.conf, self.problem.pool
        brought = any(layer.candidate.has_weights for layer in pool.path(self.architecture))
        first = f"from the weights that {conf.space.pool} brings" if brought else "from scratch"
        source = f"weights of {conf.weights}" if conf.weights != SCRATCH else f"{first}, seed {conf.seed}"
        has_best = training.restore()
        if not training.validations and conf.weights != SCRATCH:
            keys = path_states(pool, self.architecture)
            missing = Checkpoint(Path(conf.weights)).load_weights(self.relay.server, keys)
            if missing:
                source += f"; {len(missing)} of {len(keys)} layers are not in there and begin from seed {conf.seed}"
        write_architecture(self.folder, pool, self.architecture)
        self.folder.write_hydra(self.files)  # before the settings, as a sweep knows its runs by them
        write_yaml(self.folder.config, asdict(conf))  # the run is begun
        log.write("start", step=training.step, weights=conf.weights, versions=versions())
        console = self.console
        console.print(str(self.architecture), soft_wrap=True)
        data = self.problem.data
        say(
            console,
            conf.space.pool,
            f": {num_parameters(pool, self.architecture):,} parameters; {sizes(data)} samples; {source}",
        )
        if self.others:
            warn(console, self.others)
        if training.validations:
            console.print(f"resumed at step {training.step} of {conf.train.steps}")
        if not has_best:
            warn(console, f"{self.folder.best}: missing or damaged; the best is searched for anew")

    def _run(self, training: Retraining, log: Log) -> Validation:
        resume = self.again or resume_command("train", self.folder.root, own_names(asdict(self.conf)))
        try:
            return training.run()
        except Stopped:
            log.write("stopped", step=training.step)
            done = f"after {training.step} of {self.conf.train.steps} steps, all saved"
            self.console.print(f"stopped {done}. Go on with: {resume}", soft_wrap=True)
            raise
        except KeyboardInterrupt:  # the second Ctrl-C
            self.console.print(f"stopped at once. Go on from the last save with: {resume}", soft_wrap=True)
            raise Stopped from None

    def _write(self, best: Validation, validations: Sequence[Validation], *, seconds: float) -> None:
        """The result, the export, the pictures; then what was reached."""
        conf = self.conf
        server = ParamServer(self.problem.pool, optimizer=self.relay.server.optimizer, seed=conf.seed)
        checkpoint = Checkpoint(self.folder.best)
        checkpoint.load(server)
        checkpoint.save(server, extra=self._identity(best.values))  # the save before is not needed any more
        scores = self._scores(server, best)
        write_json(self.folder.result, self._result(best, validations, scores, seconds=seconds))
        rows = [("result", self.folder.result), ("weights", self.folder.best)]
        if conf.export and export_or_warn(
            self.console,
            server,
            self.architecture,
            self.folder.export,
            problem=self.problem,
            micro_batch=conf.train.micro_batch,
            reported=best.values,
        ):
            rows.append(("network", self.folder.export / "model.pt2"))
        if is_matplotlib_installed():
            write_atomically(self.folder.curve, png_of(curve_sheet(validations, best, metric=conf.metric)))
            rows.append(("picture", self.folder.curve))
        if self.trace is not None:
            write_trace(self.folder, self.trace, self.console)
        last = "; ".join(f"{name} {value:.4f} validation" for name, value in validations[-1].values.items())
        network = Network.from_json({"trial": -1, "architecture": self.architecture.choices, **by_part(scores)})
        for word, validation, line in (("last", validations[-1], last), ("best", best, headline(network))):
            say(self.console, word, f" (step {validation.step}): {line}")
        for score in scores.values():
            if score.problem:
                warn(self.console, score.problem)
        if self.problem.data.test is None:
            self.console.print(NO_TEST, soft_wrap=True)
        for label, path in rows:
            self.console.print(f"  {label:8} {path}", soft_wrap=True)

    def _scores(self, server: ParamServer, best: Validation) -> dict[str, Score]:
        """What the best weights score on the part that chose them, and, this once, on the test part."""
        parts = {"validation": self.problem.data.validation, "test": self.problem.data.test}
        executor = self.scorer.executor
        before = executor.server
        executor.use(server)
        try:
            scores = {
                name: tested(self.scorer, self.architecture, part) for name, part in parts.items() if part is not None
            }
        finally:
            executor.use(before)
        return {**scores, "validation": replace(scores["validation"], values=best.values)}

    def _result(
        self, best: Validation, validations: Sequence[Validation], scores: Mapping[str, Score], *, seconds: float
    ) -> dict[str, Any]:
        """What a search's result has, of one architecture; and all validations."""
        conf = self.conf
        found = {
            "architecture": list(self.architecture.choices),
            **by_part(scores),
            "costs": {"parameters": float(num_parameters(self.problem.pool, self.architecture))},
            "values": self._figures(best.values),
            "step": best.step,
        }
        return {
            "best": found,
            "last": {"values": self._figures(validations[-1].values), "step": validations[-1].step},
            "pareto": [found],
            "trials": {"complete": 1, "pruned": 0, "failed": 0, "cached": 0},
            "objectives": [{"name": conf.metric, "maximize": self.problem.task.metrics[conf.metric]}],
            "weights": conf.weights,
            "data": described(self.problem.data),
            "validations": [asdict(validation) for validation in validations],
            "seconds": round(seconds, 2),
            "versions": versions(),
        }


class _TrainingDisplay:
    """Shows a training, logs its validations, stops it on Ctrl-C."""

    def __init__(self, log: Log, meter: Meter, signals: StopSignals, conf: RetrainConf) -> None:
        self._log = log
        self._meter = meter
        self._signals = signals
        self._conf = conf
        self._seen = ""

    def step(self, done: int, loss: float) -> None:
        """See `Watch.step`."""
        stopping = "stopping after this step; again: at once" if self._signals.is_asked else ""
        text = f"step {done}/{self._conf.train.steps}  loss {loss:.4f}  {self._seen}"
        self._meter.advance(1, stopping or text)

    def validation(self, validation: Validation, *, is_best: bool) -> None:
        """See `Watch.validation`."""
        self._log.write("validation", **asdict(validation), is_best=is_best)
        metric = self._conf.metric
        self._seen = f"{metric} {validation.values[metric]:.4f} at step {validation.step}"

    def poll(self) -> None:
        """See `Watch.poll`."""
        self._signals.poll()


def _metric_of(config: Mapping[str, Any]) -> str:
    """The first objective of a search, or the metric of a training; empty if its settings do not tell."""
    is_search = isinstance(config.get("search"), dict)
    objectives = value_in(config, "objectives.names") if is_search else [config.get("metric")]
    first = objectives[0] if isinstance(objectives, list) and objectives else ""
    return first if isinstance(first, str) else ""
