"""The training loop and evaluation, for any executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import SettingError, StorageError
from l2l_nas.relay.interface import Batch, Executor, cut_sizes
from l2l_nas.relay.resident import Resident
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.data import Batches, Split
from l2l_nas.training.schedule import Cosine
from l2l_nas.training.score import Score, score_of
from l2l_nas.training.task import Task

# evaluation keeps the activations of this many samples at once
_CHUNK = 1024


@dataclass(frozen=True)
class Saves:
    """Where and how often training is saved, so that it can go on as if it had not been interrupted.

    Batches, paths, learning rates and the random numbers of dropout are functions of (seed, step): the states and the
    step to go on with are all there is to keep.

    Args:
        checkpoint: holds nothing else.
        every_steps: at most so many steps are lost.

    Raises:
        SettingError: fewer than 1 step.
    """

    checkpoint: Checkpoint
    every_steps: int

    def __post_init__(self) -> None:
        if self.every_steps < 1:
            raise SettingError(f"every_steps must be at least 1, got {self.every_steps}")

    def save(self, server: ParamServer, *, next_step: int) -> None:
        """Save now.

        Raises:
            StorageError: a file could not be written; the save before is whole.
        """
        self.checkpoint.save(server, extra={"step": next_step})

    def resume(self, server: ParamServer, *, save: int | None = None) -> int:
        """Load the states; returns the step to go on with, 0 where nothing was saved yet.

        The executor comes first: with fp16, it gives the server the loss scale that is loaded here.

        Args:
            save: the number of an older save that was kept; the newest by default.

        Raises:
            StorageError: as `Checkpoint.load`, or it does not say at which step it was saved.
        """
        if save is None and not self.checkpoint.exists():
            return 0
        extra = self.checkpoint.load(server, save=save)
        if not isinstance(extra.get("step"), int):
            raise StorageError(f"{self.checkpoint.folder}: holds weights, but not the step of a training to go on with")
        return int(extra["step"])


@dataclass(frozen=True)
class Trainer:
    """What all training of a run has in common.

    Args:
        executor: runs the layers.
        task: loss and metrics.
        batches: the training data, by step.
        micro_batch: samples at a time.
    """

    executor: Executor
    task: Task
    batches: Batches
    micro_batch: int

    def fit(
        self,
        path_at: Callable[[int], Architecture],
        *,
        start: int,
        steps: int,
        schedule: Cosine,
        offset: int = 0,
        after_step: Callable[[int, float], None] = lambda step, loss: None,
        saves: Saves | None = None,
    ) -> None:
        """Train.

        To go on after an interruption, give `start=saves.resume(server)`, and fewer `steps`.

        Args:
            path_at: the architecture of a step; asked for once, in order, one step ahead.
            start: first step: it decides the batch, the path and the random numbers.
            steps: how many.
            schedule: of the learning rate, over step - offset.
            after_step: called with each step and its loss, before that step is saved.
            saves: when to save; the last step is always saved.

        Raises:
            NonFiniteError: the loss or a gradient is not finite.
            StorageError: a save could not be written; the save before is whole.
            SettingError: saves of an executor that keeps its weights to itself.
        """
        if saves is not None and isinstance(self.executor, Resident):
            raise SettingError("Resident keeps its weights to itself, so they cannot be saved; train with Relay")
        end = start + steps
        architecture = path_at(start) if steps > 0 else None
        for step in range(start, end):
            assert architecture is not None
            upcoming = path_at(step + 1) if step + 1 < end else None
            inputs, targets = self.batches.at(step)
            result = self.executor.train_step(
                architecture,
                inputs,
                targets,
                objective=self.task,
                micro_batch=self.micro_batch,
                lr=schedule.at(step - offset),
                step=step,
                upcoming=upcoming,
            )
            after_step(step, result.loss)
            if saves is not None and ((step + 1) % saves.every_steps == 0 or step + 1 == end):
                saves.save(self.executor.server, next_step=step + 1)
            architecture = upcoming

    def has_buffers(self, architecture: Architecture) -> bool:
        """Whether a layer of this architecture has any, such as BatchNorm's statistics."""
        server = self.executor.server
        return any(server.layout(layer.key).buffers for layer in server.pool.path(architecture))

    def recalibrate(self, architecture: Architecture, *, batches: int = 8) -> None:
        """Measure BatchNorm statistics of one architecture on the first batches; without buffers, do nothing."""
        if self.has_buffers(architecture):
            self.executor.recalibrate(architecture, [self.batches.at(step)[0] for step in range(batches)])

    def evaluate(self, architecture: Architecture, split: Split) -> dict[str, float]:
        """All metrics of a split, in evaluation mode."""
        return evaluate(self.executor, architecture, split, task=self.task, micro_batch=self.micro_batch)

    def score(self, architecture: Architecture, split: Split) -> Score:
        """All metrics of a split as `evaluate` finds them, and their standard errors."""
        (outputs,) = predict_population(self.executor, [architecture], split, micro_batch=self.micro_batch)
        return score_of(self.task.measure, outputs, split.targets)

    def evaluate_population(
        self, architectures: Sequence[Architecture], split: Split, *, max_bytes: int | None = None
    ) -> list[dict[str, float]]:
        """All metrics of a split for each of these architectures, in evaluation mode, in one pass where it fits."""
        return evaluate_population(
            self.executor, architectures, split, task=self.task, micro_batch=self.micro_batch, max_bytes=max_bytes
        )


def evaluate(
    executor: Executor, architecture: Architecture, split: Split, *, task: Task, micro_batch: int
) -> dict[str, float]:
    """All metrics of a split, in evaluation mode."""
    return evaluate_population(executor, [architecture], split, task=task, micro_batch=micro_batch)[0]


def evaluate_population(
    executor: Executor,
    architectures: Sequence[Architecture],
    split: Split,
    *,
    task: Task,
    micro_batch: int,
    max_bytes: int | None = None,
) -> list[dict[str, float]]:
    """All metrics of a split for each of these architectures, in evaluation mode.

    Args:
        max_bytes: of activations that wait on the device.
    """
    outputs = predict_population(executor, architectures, split, micro_batch=micro_batch, max_bytes=max_bytes)
    return [task.measure(batch, split.targets) for batch in outputs]


def predict_population(
    executor: Executor,
    architectures: Sequence[Architecture],
    split: Split,
    *,
    micro_batch: int,
    max_bytes: int | None = None,
) -> list[Batch]:
    """Outputs for all samples of a split, for each of these architectures, in evaluation mode, on the host.

    Args:
        max_bytes: of activations that wait on the device.
    """
    chunks = [
        executor.predict_population(
            architectures,
            tuple(tensor[start : start + _CHUNK] for tensor in split.inputs),
            micro_batch=min(micro_batch, _CHUNK),
            max_bytes=max_bytes,
        )
        for start in range(0, len(split), _CHUNK)
    ]
    # of one architecture, by chunk
    return [tuple(torch.cat(parts) for parts in zip(*batches, strict=True)) for batches in zip(*chunks, strict=True)]


def predict_by(call: Callable[[Batch], Batch], split: Split, *, micro_batch: int) -> Batch:
    """Outputs of any function of a batch, in the very micro-batches in which an executor computes them.

    The order of a sum may depend on the number of samples: only so can outputs be compared bit for bit.
    """
    done: list[Batch] = []
    start = 0
    for first in range(0, len(split), _CHUNK):
        for size in cut_sizes(min(_CHUNK, len(split) - first), min(micro_batch, _CHUNK)):
            done.append(call(tuple(tensor[start : start + size] for tensor in split.inputs)))
            start += size
    return tuple(torch.cat(parts) for parts in zip(*done, strict=True))
