"""Auxiliary losses: what a layer adds to the loss of a step, such as the load-balancing loss of a router.

[Note: auxiliary losses] A layer adds a loss by a call, not by an attribute or a further output: an attribute would be
stored between calls, which a layer may not do, and an output would be another shape than that of the position's other
candidates. The call may stand at any depth in the layer. Only a step of training collects; a layer that runs in
evaluation, or outside of this library, runs as if the call was not there.

An auxiliary loss is a mean over the samples of its micro-batch. It is weighted by the share that these samples are of
the step's, so that its scale is the same however a mini-batch is cut. The step minimises the task's loss plus these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from l2l_nas.errors import SpaceError

_COLLECTED: ContextVar[list[Tensor] | None] = ContextVar("auxiliary losses", default=None)


def add_loss(value: Tensor) -> None:
    """Add an auxiliary loss to the step's loss; call it in a layer's forward.

    Args:
        value: a scalar of floating type, the mean over the samples that the layer is given.

    Raises:
        SpaceError: `value` is something else.
    """
    if not isinstance(value, Tensor):
        raise SpaceError(
            f"adds a loss that is no tensor but {type(value).__name__}; call add_loss(value) with a tensor"
        )
    if not value.is_floating_point():
        dtype = str(value.dtype).removeprefix("torch.")
        raise SpaceError(f"adds a loss of {dtype}; a loss is a floating number: add_loss(value.float().mean())")
    if value.dim():
        raise SpaceError(f"adds a loss of shape {list(value.shape)}; a loss is one number: add_loss(value.mean())")
    collected = _COLLECTED.get()
    if collected is not None:
        collected.append(value)


@contextmanager
def collect_losses() -> Iterator[list[Tensor]]:
    """A list that gets the auxiliary losses which layers add in this block, in order.

    A training loop of your own adds them to its loss: `loss = loss + sum(losses)` on a whole mini-batch.
    """
    collected: list[Tensor] = []
    token = _COLLECTED.set(collected)
    try:
        yield collected
    finally:
        _COLLECTED.reset(token)


def weighted(losses: Sequence[Tensor], weight: float) -> list[tuple[Tensor, Tensor | None]]:
    """The auxiliary losses that have a gradient, each with this weight, as `torch.autograd.backward` takes both."""
    return [(loss, torch.full_like(loss, weight)) for loss in losses if loss.requires_grad]
