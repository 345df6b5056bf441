"""Learning from another network: batches bring what a teacher gives for them (arXiv 1503.02531)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from torch import Tensor
from torch.nn import functional

from l2l_nas.errors import DataError, SettingError
from l2l_nas.relay.interface import Batch, Targets
from l2l_nas.space.values import as_tuple
from l2l_nas.training.data import Batches
from l2l_nas.training.metrics import MeasuredTask
from l2l_nas.training.samples import Loaded
from l2l_nas.training.task import Classification

Teacher = Callable[[Batch], Batch]


class TaughtBatches(Batches):
    """Batches of the training part whose targets are followed by what a teacher gives."""

    def __init__(self, batches: Batches, teacher: Teacher) -> None:
        self._batches, self._teacher = batches, teacher

    def at(self, step: int) -> Loaded:
        return self._taught(self._batches.at(step))

    def ahead(self, start: int, steps: int) -> Iterator[Loaded]:
        return map(self._taught, self._batches.ahead(start, steps))

    def sizes(self, start: int, steps: int) -> set[int]:
        return self._batches.sizes(start, steps)

    def _taught(self, loaded: Loaded) -> Loaded:
        inputs, targets = loaded
        return inputs, (*as_tuple(targets), *self._teacher(inputs))


class TaughtTask(MeasuredTask):
    """A task whose loss asks for what a teacher gives, too; its metrics are the task's, of plain targets.

    Args:
        share: of the teacher in the loss: the divergence of Kullback and Leibler of the network's probabilities from
            the teacher's, summed over the targets that count.
        hidden: weight of hidden states, which are further outputs of both: the mean over them of the squared error, a
            share of the mean square of the teacher's, at each target that counts.

    Raises:
        DataError: another kind of task.
        SettingError: a share outside of 0 to 1, or a weight below 0.
    """

    def __init__(self, task: MeasuredTask, *, share: float, hidden: float = 0.0) -> None:
        if not isinstance(task.plain, Classification):
            raise DataError(
                f"a teacher gives probabilities of classes, which {type(task.plain).__name__} has not; leave it out"
            )
        if not 0 < share <= 1:
            raise SettingError(f"the share of a teacher must be above 0 and at most 1, got {share}")
        if not 0 <= hidden < math.inf:
            raise SettingError(f"the weight of hidden states must be at least 0, got {hidden}")
        super().__init__(task.plain, task.own)
        self._share, self._hidden = share, hidden

    def loss(self, outputs: Batch, targets: Targets) -> Tensor:
        own, taught, *states = targets
        counts = own.flatten() >= 0
        mine, theirs = (tensor.flatten(0, -2)[counts].log_softmax(dim=-1) for tensor in (outputs[0], taught))
        divergence = functional.kl_div(mine, theirs, reduction="sum", log_target=True)
        total = (1 - self._share) * super().loss(outputs[:1], own) + self._share * divergence
        for mine, theirs in zip(outputs[1:], states, strict=True):
            total = total + self._hidden / len(states) * relative_error(mine, theirs, counts)
        return total

    def count(self, targets: Targets) -> float:
        return super().count(targets[0])


def relative_error(states: Tensor, wanted: Tensor, counts: Tensor) -> Tensor:
    """The squared error of hidden states at targets that count, each a share of the mean square there; their sum.

    Args:
        states, wanted: [*targets, ...].
        counts: which of the targets count, in one dimension.
    """
    mine, theirs = (tensor.reshape(len(counts), -1)[counts] for tensor in (states, wanted))
    return ((mine - theirs).square().mean(dim=-1) / theirs.square().mean(dim=-1).clamp_min(1e-12)).sum()
