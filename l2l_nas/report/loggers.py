"""Callbacks that send the figures of a run to TensorBoard, Weights & Biases or MLflow.

Each has the curves of each network by its training steps, see `Callback.number`, and a curve of all trials by their
numbers: metrics and costs, as `trials/NAME`. The library is imported when the callback is made; the run of the library
begins with the first phase, and ends with the search or the training. What the library raises becomes a warning.

    python -m l2l_nas search 'callbacks=[l2l_nas.report.loggers:TensorBoard]'

    l2l_nas.search(problem, callbacks=[TensorBoard()])
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from l2l_nas.nas.callback import Callback
from l2l_nas.nas.objectives import TrialRecord
from l2l_nas.plugins import optional


class _Logger(Callback):
    """What they have in common: when they begin, and the curve of all trials."""

    _is_open = False

    def phase(self, name: str, *, total: int, done: int) -> None:
        """See `Callback.phase`."""
        if not self._is_open:
            self.begin()
            self._is_open = True

    def trial(self, record: TrialRecord, records: Sequence[TrialRecord]) -> None:
        """See `Callback.trial`."""
        if record.state.has_score:
            for name, value in record.metrics.items():
                self.number(f"trials/{name}", value, step=record.number)

    def number(self, name: str, value: float, *, step: int, trial: int | None = None) -> None:
        """See `Callback.number`."""
        if self._is_open:  # else `begin` has failed, which was told
            self.write(name, float(value), step, trial)

    def end(self) -> None:
        """See `Callback.end`."""
        if self._is_open:
            self._is_open = False
            self.finish()

    def begin(self) -> None:
        """Open what is written to."""
        raise NotImplementedError

    def write(self, name: str, value: float, step: int, trial: int | None) -> None:
        """Write a figure."""
        raise NotImplementedError

    def finish(self) -> None:
        """Close what was written to."""
        raise NotImplementedError


class TensorBoard(_Logger):
    """Writes event files for `tensorboard --logdir FOLDER`, each trial's in a folder of their own there.

    Args:
        folder: to write to; by default `tensorboard/DATE_TIME`.
    """

    def __init__(self, folder: str = "") -> None:
        optional("tensorboard", "TensorBoard needs", extra="loggers")  # else torch says that torch cannot be imported
        self._writer_in = optional("torch.utils.tensorboard", "TensorBoard needs", extra="loggers").SummaryWriter
        self._given, self._folder = folder, ""
        self._writers: dict[int | None, Any] = {}

    def begin(self) -> None:
        """See `_Logger`."""
        self._folder = self._given or f"tensorboard/{datetime.now():%Y-%m-%d_%H-%M-%S.%f}"

    def write(self, name: str, value: float, step: int, trial: int | None) -> None:
        """See `_Logger`."""
        if trial not in self._writers:
            for other in self._writers.keys() - {None}:  # one trial's is open at a time: each has a thread
                self._writers.pop(other).close()
            self._writers[trial] = self._writer_in(self._folder if trial is None else f"{self._folder}/trial_{trial}")
        self._writers[trial].add_scalar(name, value, step)

    def finish(self) -> None:
        """See `_Logger`."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


class WandB(_Logger):
    """Logs into a run of Weights & Biases: the active one, or a new one. Names of a trial's figures end with it.

    Args:
        **settings: of `wandb.init`, such as project, name and mode.
    """

    def __init__(self, **settings: Any) -> None:
        self._wandb = optional("wandb", "WandB needs", extra="loggers")
        self._settings = settings
        self._run: Any = None

    def begin(self) -> None:
        """See `_Logger`."""
        self._is_own = self._wandb.run is None
        self._run = self._wandb.init(**self._settings) if self._is_own else self._wandb.run
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")  # figures of several networks come in any order

    def write(self, name: str, value: float, step: int, trial: int | None) -> None:
        """See `_Logger`."""
        self._run.log({name if trial is None else f"{name}/trial_{trial}": value, "step": step})

    def finish(self) -> None:
        """See `_Logger`."""
        if self._is_own:
            self._run.finish()


class MLflow(_Logger):
    """Logs into a run of MLflow, the active one, or a new one; each trial's figures into a run below it.

    Args:
        **settings: of `mlflow.start_run`, such as run_name and experiment_id.
    """

    def __init__(self, **settings: Any) -> None:
        self._mlflow = optional("mlflow", "MLflow needs", extra="loggers")
        self._settings = settings
        self._of_trials: dict[int, str] = {}

    def begin(self) -> None:
        """See `_Logger`."""
        active = self._mlflow.active_run()
        self._is_own = active is None
        self._run = (active or self._mlflow.start_run(**self._settings)).info
        self._client = self._mlflow.MlflowClient()

    def write(self, name: str, value: float, step: int, trial: int | None) -> None:
        """See `_Logger`."""
        if trial is not None and trial not in self._of_trials:
            below = self._client.create_run(
                self._run.experiment_id, run_name=f"trial {trial}", tags={"mlflow.parentRunId": self._run.run_id}
            )
            self._of_trials[trial] = below.info.run_id
        run = self._run.run_id if trial is None else self._of_trials[trial]
        self._client.log_metric(run, name, value, step=step)

    def finish(self) -> None:
        """See `_Logger`."""
        for run in self._of_trials.values():
            self._client.set_terminated(run)
        self._of_trials.clear()
        if self._is_own:
            self._mlflow.end_run()
