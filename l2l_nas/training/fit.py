"""The training loop and evaluation, for any executor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from l2l_nas.relay.interface import Executor
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.data import Batches, Split
from l2l_nas.training.schedule import Cosine
from l2l_nas.training.task import Task

# evaluation keeps the activations of this many samples at once
_CHUNK = 1024


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
    ) -> None:
        """Train.

        Args:
            path_at: the architecture of a step.
            start: first step: it decides the batch, the path and the random numbers.
            steps: how many.
            schedule: of the learning rate, over step - offset.
            after_step: called with each step and its loss.

        Raises:
            NonFiniteError: the loss or a gradient is not finite.
        """
        for step in range(start, start + steps):
            inputs, targets = self.batches.at(step)
            result = self.executor.train_step(
                path_at(step),
                inputs,
                targets,
                objective=self.task,
                micro_batch=self.micro_batch,
                lr=schedule.at(step - offset),
                step=step,
            )
            after_step(step, result.loss)

    def recalibrate(self, architecture: Architecture, *, batches: int = 8) -> None:
        """Measure BatchNorm statistics of one architecture on the first batches; without buffers, do nothing."""
        if any(
            self.executor.server.layout(layer.key).buffers for layer in self.executor.server.pool.path(architecture)
        ):
            self.executor.recalibrate(architecture, [self.batches.at(step)[0] for step in range(batches)])

    def evaluate(self, architecture: Architecture, split: Split) -> dict[str, float]:
        """All metrics of a split, in evaluation mode."""
        return evaluate(self.executor, architecture, split, task=self.task, micro_batch=self.micro_batch)


def evaluate(
    executor: Executor, architecture: Architecture, split: Split, *, task: Task, micro_batch: int
) -> dict[str, float]:
    """All metrics of a split, in evaluation mode."""
    chunks = [
        executor.predict(
            architecture,
            tuple(tensor[start : start + _CHUNK] for tensor in split.inputs),
            micro_batch=min(micro_batch, _CHUNK),
        )
        for start in range(0, len(split), _CHUNK)
    ]
    outputs = tuple(torch.cat(parts) for parts in zip(*chunks, strict=True))
    return task.measure(outputs, split.targets)
