"""One network trained by itself: scored on the validation data on the way, the best weights saved, an exact resume.

[Note: validations] It changes nothing of the training. BatchNorm's statistics are measured anew, as the search
does for every score, on a copy of the weights, and that copy is saved if its score is the best so far. Where no layer
has statistics, the weights themselves are scored. So neither the number of validations nor an interruption shows in the
weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from l2l_nas.cost.closed_form import path_states
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import NonFiniteError, SettingError, StorageError
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.data import Data, other_data
from l2l_nas.training.fit import Trainer
from l2l_nas.training.schedule import Schedule


@dataclass(frozen=True)
class Validation:
    """The validation data seen after so many steps.

    Args:
        step: how many steps were done.
        values: all metrics.
        train_loss: mean over the steps since the validation before; None where there were none.
        lr: learning rate of the last step.
    """

    step: int
    values: Mapping[str, float]
    train_loss: float | None
    lr: float | None

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Validation:
        """As `dataclasses.asdict` gave it.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: it is something else.
        """
        values = {str(name): float(value) for name, value in content["values"].items()}
        train_loss, lr = (None if content[name] is None else float(content[name]) for name in ("train_loss", "lr"))
        return cls(int(content["step"]), values, train_loss, lr)


class Watch(Protocol):
    """Sees a training go by."""

    def step(self, done: int, loss: float) -> None:
        """So many steps are done."""

    def validation(self, validation: Validation, *, is_best: bool) -> None:
        """The validation data was scored."""

    def poll(self) -> None:
        """Between two steps. Whatever it raises stops the training, after what is done was saved."""


@dataclass(frozen=True)
class Pace:
    """How long, and how often.

    Args:
        steps: of training; with 0, there is one validation.
        validation_steps: from one validation to the next; there is one before the first step and one after the last.
        recalibrate: batches on which BatchNorm's statistics are measured for a validation; 0 leaves the running ones.
        checkpoint_seconds: at most so much training is lost.

    Raises:
        SettingError: one is out of range.
    """

    steps: int
    validation_steps: int
    recalibrate: int
    checkpoint_seconds: float

    def __post_init__(self) -> None:
        for name, least in (("steps", 0), ("validation_steps", 1), ("recalibrate", 0), ("checkpoint_seconds", 0)):
            value = getattr(self, name)
            if not least <= value < math.inf:
                raise SettingError(f"train.{name} must be at least {least}, got {value}")


@dataclass
class _TrainingCourse:
    """What is stored beside the weights."""

    step: int = 0
    validations: list[Validation] = field(default_factory=list)
    best: int = -1  # index of the best validation
    losses: float = 0.0  # their sum since the last validation
    num_losses: int = 0

    def to_json(self, data: Data) -> dict[str, Any]:
        return {**asdict(self), "data": data.digest}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any], data: Data) -> _TrainingCourse:
        other = other_data(saved["data"], data.digest)
        if other:
            raise StorageError(f"trained with other {other} data; go on with the data it was started with")
        found = cls(
            step=int(saved["step"]),
            validations=[Validation.from_json(validation) for validation in saved["validations"]],
            best=int(saved["best"]),
            losses=float(saved["losses"]),
            num_losses=int(saved["num_losses"]),
        )
        if found.step < 0 or found.num_losses < 0 or not -1 <= found.best < len(found.validations):
            raise ValueError("numbers that no training has")
        return found


class Retraining:
    """Trains one architecture.

    Args:
        trainer: its executor has the weights to begin with.
        scorer: for validations; the trainer itself, unless its executor computes in low precision.
        architecture: what is trained.
        data: its validation samples are scored.
        metric: decides which validation is the best.
        pace: how long, and how often.
        schedule: of the learning rate.
        last: where the training is saved, to go on with.
        best: where the best weights are saved. It should keep two saves: a training that is cut off between a best
            validation and its next save goes on with the best validation before.
        identity: what to keep with the best weights, from their values.
        watch: sees it go by.
    """

    def __init__(
        self,
        trainer: Trainer,
        scorer: Trainer,
        architecture: Architecture,
        *,
        data: Data,
        metric: str,
        pace: Pace,
        schedule: Schedule,
        last: Checkpoint,
        best: Checkpoint,
        identity: Callable[[Mapping[str, float]], Mapping[str, Any]],
        watch: Watch,
    ) -> None:
        self._trainer = trainer
        self._scorer = scorer
        self._architecture = architecture
        self._data = data
        self._metric = metric
        self._is_more_better = trainer.task.metrics[metric]
        self._pace = pace
        self._schedule = schedule
        self._last = last
        self._best = best
        self._identity = identity
        self._watch = watch
        self._server = trainer.executor.server
        self._course = _TrainingCourse()
        self._saved_at = time.monotonic()

    @property
    def step(self) -> int:
        """How many steps are done."""
        return self._course.step

    @property
    def validations(self) -> tuple[Validation, ...]:
        """All validations so far."""
        return tuple(self._course.validations)

    @property
    def best(self) -> Validation:
        """The best validation so far; there must have been one."""
        return self._course.validations[self._course.best]

    def restore(self) -> bool:
        """Go on from the last save; without one, from the start.

        Returns:
            False if the best weights so far are missing or damaged: then the validations to come decide.

        Raises:
            StorageError: it is damaged, or of another space, optimizer, seed or data, or no training's.
            SettingError: more steps are done than are asked for.
        """
        if not self._last.exists():
            return True
        saved = self._last.load(self._server, needs=path_states(self._server.pool, self._architecture))
        try:
            self._course = _TrainingCourse.from_json(saved, self._data)
            for validation in self._course.validations:
                validation.values[self._metric]  # a KeyError where it lacks
        except StorageError as error:
            raise StorageError(f"{self._last.folder}: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise StorageError(f"{self._last.folder}: holds weights, but not of a training ({error})") from None
        if self.step > self._pace.steps:
            raise SettingError(
                f"train.steps={self._pace.steps}: {self.step} steps are done; ask for at least as many, or train in "
                "another folder"
            )
        return self._restore_best()

    def _restore_best(self) -> bool:
        """Let the newest save of the best weights be that of the best validation known."""
        wanted = self._identity(self.best.values)
        for save in reversed(self._best.saves):
            copy = self._server.fork(())
            try:
                found = self._best.load(copy, save=save, needs=path_states(copy.pool, self._architecture))
            except StorageError:
                continue
            if found == wanted:
                if save != self._best.saves[-1]:
                    self._best.save(copy, extra=wanted)
                return True
        self._course.best = -1
        return False

    def run(self) -> Validation:
        """Train to the end; returns the best validation.

        Raises:
            NonFiniteError: a loss, gradient or metric is not finite; the last save is whole.
            StorageError: something could not be saved.
        """
        if self._course.best < 0:
            self._validate()
            self._save()  # from here on, the weights it began with are not needed
        self._poll()
        self._trainer.fit(
            lambda step: self._architecture,
            start=self.step,
            steps=self._pace.steps - self.step,
            schedule=self._schedule,
            after_step=self._after_step,
        )
        self._save()
        return self.best

    def _after_step(self, step: int, loss: float) -> None:
        course = self._course
        course.step = step + 1
        course.losses += loss
        course.num_losses += 1
        self._watch.step(course.step, loss)
        is_due = time.monotonic() - self._saved_at >= self._pace.checkpoint_seconds
        if course.step % self._pace.validation_steps == 0 or course.step == self._pace.steps:
            is_due |= self._validate()  # at most one save of the best is ahead of the training's own
        if is_due:
            self._save()
        self._poll()

    def _poll(self) -> None:
        try:
            self._watch.poll()
        except BaseException:
            self._save()
            raise

    def _save(self) -> None:
        self._last.save(self._server, extra=self._course.to_json(self._data))
        self._saved_at = time.monotonic()

    def _validate(self) -> bool:
        """Score, and keep the weights if they are the best so far; whether they are."""
        course = self._course
        server, values = self._score()
        for name, value in values.items():
            if not math.isfinite(value):
                raise NonFiniteError(f"the {name} on the validation data", layer=None, step=course.step)
        train_loss = course.losses / course.num_losses if course.num_losses else None
        validation = Validation(
            course.step, values, train_loss, self._schedule.at(course.step - 1) if course.step else None
        )
        is_best = course.best < 0 or self._is_better(values, self.best.values)
        if is_best:
            self._best.save(server, extra=self._identity(values))
            course.best = len(course.validations)
        course.validations.append(validation)
        course.losses, course.num_losses = 0.0, 0
        self._watch.validation(validation, is_best=is_best)
        return is_best

    def _is_better(self, values: Mapping[str, float], than: Mapping[str, float]) -> bool:
        a, b = values[self._metric], than[self._metric]
        return a > b if self._is_more_better else a < b

    def _score(self) -> tuple[ParamServer, dict[str, float]]:
        """The weights that are scored, and all their metrics. See [Note: validations]."""
        server, executor = self._server, self._scorer.executor
        if self._pace.recalibrate and self._trainer.has_buffers(self._architecture):
            keys = path_states(server.pool, self._architecture)
            server.prepare(keys)
            server = server.fork(keys)
        try:
            executor.use(server)
            if server is not self._server:
                self._scorer.recalibrate(self._architecture, batches=self._pace.recalibrate)
            return server, self._scorer.evaluate(self._architecture, self._data.validation)
        finally:
            executor.use(self._server)
