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
from dataclasses import KW_ONLY, asdict, dataclass, field
from typing import Any, Protocol

from l2l_nas.cost.closed_form import path_states
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import NonFiniteError, SettingError, StorageError
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.data import Data, other_data
from l2l_nas.training.fit import Trainer, tested
from l2l_nas.training.lead import Lead, Solo
from l2l_nas.training.schedule import Schedule
from l2l_nas.training.score import Score
from l2l_nas.training.weights import SharedWeights


@dataclass(frozen=True)
class Validation:
    """The validation data seen after so many steps."""

    step: int
    values: Mapping[str, float]  # all metrics
    train_loss: float | None  # mean over the steps since the validation before; None where there were none
    lr: float | None  # learning rate of the last step

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
    """Sees a training go by. Whatever it raises stops the training, after what is done was saved."""

    def step(self, done: int, loss: float) -> None:
        """So many steps are done."""

    def validation(self, validation: Validation, *, is_best: bool) -> None:
        """The validation data was scored."""

    def poll(self) -> None:
        """Between two steps."""


@dataclass(frozen=True)
class Pace:
    """How long, and how often. Raises SettingError: one is out of range."""

    steps: int  # of training; with 0, there is one validation
    validation_steps: int  # from one validation to the next; there is one before the first step and one after the last
    recalibrate: int  # batches on which BatchNorm's statistics are measured for a validation; 0 leaves the running ones
    checkpoint_seconds: float  # at most so much training is lost

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


@dataclass(frozen=True)
class Validating:
    """How the weights of a training are scored."""

    scorer: Trainer  # the trainer itself, unless its executor computes in low precision
    data: Data  # its validation samples are scored
    metric: str  # decides which validation is the best

    def is_better(self, values: Mapping[str, float], than: Mapping[str, float]) -> bool:
        a, b = values[self.metric], than[self.metric]
        return a > b if self.scorer.task.metrics[self.metric] else a < b


@dataclass(frozen=True)
class TrainingSaves:
    """Where a training is saved."""

    last: Checkpoint  # the training, to go on with
    # the best weights. It should keep two saves: a training that is cut off between a best validation and its next
    # save goes on with the best validation before.
    best: Checkpoint
    # what to keep with the best weights, from their values
    identity: Callable[[Mapping[str, float]], Mapping[str, Any]]


@dataclass(frozen=True)
class TrainingSteps:
    """What all that share the weights of a training do; see `lead.py`."""

    trainer: Trainer  # its executor has the weights to begin with
    architecture: Architecture
    pace: Pace
    schedule: Schedule  # of the learning rate
    validating: Validating
    lead: Lead = field(default_factory=Solo)

    def fit(self, start: int, after_step: Callable[[int, float], None]) -> None:
        """Train from a step on, to the last one. See `Trainer.fit`."""

        def here(start: int, after_step: Callable[[int, float], None]) -> None:
            def noted(step: int, loss: float) -> None:
                self.lead.note(f"step {step + 1}")
                after_step(step, loss)

            self.trainer.fit(
                lambda step: self.architecture,
                start=start,
                steps=self.pace.steps - start,
                schedule=self.schedule,
                after_step=noted,
            )

        self.lead.do("train", (start, after_step), here)

    def score(self) -> tuple[ParamServer, dict[str, float]]:
        """The weights that are scored, and all their metrics. See [Note: validations]."""
        return self.lead.do("score", (), self._score)

    def test(self, server: ParamServer) -> dict[str, Score]:
        """What weights score on the validation part and, this once, on the test part."""
        return self.lead.do("test", (server,), self._test)

    def actions(self) -> dict[str, Callable[..., Any]]:
        """What those do that follow, by the names that `Lead.do` is given."""
        return {"train": self.fit, "score": self.score, "test": self.test}

    def _score(self) -> tuple[ParamServer, dict[str, float]]:
        own, scorer, architecture = self.trainer.executor.server, self.validating.scorer, self.architecture
        server = own
        if self.pace.recalibrate and self.trainer.has_buffers(architecture):
            keys = path_states(server.pool, architecture)
            server.prepare(keys)
            server = server.fork(keys)
        try:
            scorer.executor.use(server)
            if server is not own:
                scorer.recalibrate(architecture, batches=self.pace.recalibrate)
            return server, scorer.evaluate(architecture, self.validating.data.validation)
        finally:
            scorer.executor.use(own)

    def _test(self, server: ParamServer) -> dict[str, Score]:
        data, scorer = self.validating.data, self.validating.scorer
        before = scorer.executor.server
        scorer.executor.use(server)
        try:
            parts = {"validation": data.validation, "test": data.test}
            return {name: tested(scorer, self.architecture, part) for name, part in parts.items() if part is not None}
        finally:
            scorer.executor.use(before)


@dataclass(eq=False)
class Retraining:
    """Trains one architecture."""

    steps: TrainingSteps
    _: KW_ONLY
    saves: TrainingSaves
    watch: Watch

    def __post_init__(self) -> None:
        self._pace, self._validating, self._lead = self.steps.pace, self.steps.validating, self.steps.lead
        self._server = self.steps.trainer.executor.server
        self._weights = SharedWeights(self._server, self._lead)
        self._course = _TrainingCourse()
        self._saved_at = time.monotonic()

    @property
    def step(self) -> int:
        return self._course.step

    @property
    def validations(self) -> tuple[Validation, ...]:
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
        last = self.saves.last
        if not last.exists():
            return True
        saved = self._weights.load(last, needs=path_states(self._server.pool, self.steps.architecture))
        try:
            self._course = _TrainingCourse.from_json(saved, self._validating.data)
            for validation in self._course.validations:
                validation.values[self._validating.metric]  # a KeyError where it lacks
        except StorageError as error:
            raise StorageError(f"{last.folder}: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise StorageError(f"{last.folder}: holds weights, but not of a training ({error})") from None
        if self.step > self._pace.steps:
            raise SettingError(
                f"train.steps={self._pace.steps}: {self.step} steps are done; ask for at least as many, or train in "
                "another folder"
            )
        return self._restore_best()

    def _restore_best(self) -> bool:
        """Let the newest save of the best weights be that of the best validation known."""
        best, wanted = self.saves.best, self.saves.identity(self.best.values)
        for save in reversed(best.saves):
            needs = path_states(self._server.pool, self.steps.architecture)
            try:
                copy, found = self._weights.read(best.folder, save=save, needs=needs)
            except StorageError:
                continue
            if found == wanted:
                if save != best.saves[-1]:
                    self._weights.save(best, copy, extra=wanted)
                return True
        self._course.best = -1
        return False

    def run(self) -> Validation:
        """Train to the end; returns the best validation.

        Raises:
            NonFiniteError: a loss, gradient or metric is not finite; the last save is whole.
            StorageError: something could not be saved.
        """
        self._lead.note(f"step {self.step}")
        if self._course.best < 0:
            self._validate()
            self._save()  # from here on, the weights it began with are not needed
        self._tell(self.watch.poll)
        self.steps.fit(self.step, self._after_step)
        self._save()
        return self.best

    def _after_step(self, step: int, loss: float) -> None:
        course = self._course
        course.step = step + 1
        course.losses += loss
        course.num_losses += 1
        is_due = time.monotonic() - self._saved_at >= self._pace.checkpoint_seconds
        if course.step % self._pace.validation_steps == 0 or course.step == self._pace.steps:
            is_due |= self._validate()  # at most one save of the best is ahead of the training's own
        if is_due:
            self._save()
        self._tell(self.watch.step, course.step, loss)  # a stop leaves out no validation
        self._tell(self.watch.poll)

    def _tell(self, hook: Callable[..., None], *args: Any, **more: Any) -> None:
        try:
            hook(*args, **more)
        except BaseException:
            self._save()
            raise

    def _save(self) -> None:
        extra = {**asdict(self._course), "data": self._validating.data.digest}
        self._weights.save(self.saves.last, self._server, extra=extra)
        self._saved_at = time.monotonic()

    def _validate(self) -> bool:
        """Score, and keep the weights if they are the best so far; whether they are."""
        course = self._course
        server, values = self.steps.score()
        for name, value in values.items():
            if not math.isfinite(value):
                raise NonFiniteError(f"the {name} on the validation data", layer=None, step=course.step)
        train_loss = course.losses / course.num_losses if course.num_losses else None
        lr = self.steps.schedule.at(course.step - 1) if course.step else None
        validation = Validation(course.step, values, train_loss, lr)
        is_best = course.best < 0 or self._validating.is_better(values, self.best.values)
        if is_best:
            self._weights.save(self.saves.best, server, extra=self.saves.identity(values))
            course.best = len(course.validations)
        course.validations.append(validation)
        course.losses, course.num_losses = 0.0, 0
        self._tell(self.watch.validation, validation, is_best=is_best)
        return is_best
