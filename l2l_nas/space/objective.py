"""Objectives that learn: a task with parameters is the last layer of its pool.

[Note: objectives that learn] Such a task is a module. Its pool gets one more position, whose only layer holds a copy of
the task, hands on what it is given, and so is of every path: its parameters are streamed, updated, saved and resumed as
those of any layer. The loss of a step is what the copy gives, with the weights of this step. Metrics, too, are those of
a copy, with the weights that were learned.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from l2l_nas.errors import SpaceError
from l2l_nas.space.candidate import Candidate, Position
from l2l_nas.space.pool import Layer, LayerPool

_NAME = "objective"


class ObjectiveLayer(nn.Module):
    """Holds a task; see [Note: objectives that learn]."""

    # a loss is computed in float32, whatever layers compute in
    keep_dtype = True

    def __init__(self, task: nn.Module) -> None:
        super().__init__()
        self.task = task

    def forward(self, *outputs: Tensor) -> Any:
        """Hand on the inputs."""
        return outputs[0] if len(outputs) == 1 else outputs


def with_objective(pool: LayerPool, task: object) -> LayerPool:
    """The pool, with a task that learns as its last layer, and without one that it had before.

    Raises:
        SpaceError: the pool has a position of the name "objective".
    """
    before = objective_layer(pool)
    if before is not None:
        if _held(before).task is task:
            return pool
        reads = pool.positions[-1].reads
        pool = LayerPool(pool.positions[:-1], inputs=pool.sources, outputs=reads, shared=pool.shared)
    if not isinstance(task, nn.Module) or not any(parameter.requires_grad for parameter in task.parameters()):
        return pool
    if any(position.name == _NAME for position in pool.positions):
        raise SpaceError("this name is reserved for a task with parameters; rename the position", position=_NAME)
    last = Position(_NAME, Candidate("learned", ObjectiveLayer(task)), reads=pool.wiring.outputs)
    return LayerPool([*pool.positions, last], inputs=pool.sources, shared=pool.shared)


def objective_layer(pool: LayerPool) -> Layer | None:
    """The layer of a pool's task, if that learns."""
    last = pool.layers[-1]
    return last if isinstance(_held(last), ObjectiveLayer) else None


def _held(layer: Layer) -> Any:
    return getattr(layer.candidate.factory, "module", None)


def learned_by(modules: Iterable[nn.Module], task: Any) -> Any:
    """The task that is a layer among these, with the weights that it has there; else the task given."""
    return next((module.task for module in modules if isinstance(module, ObjectiveLayer)), task)
