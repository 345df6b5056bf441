"""Learning from another network: batches bring what a teacher gives for them (arXiv 1503.02531)."""

from __future__ import annotations

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
    """Batches of the training part whose targets are followed by the first output of a teacher."""

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
        return inputs, (*as_tuple(targets), self._teacher(inputs)[0])


class TaughtTask(MeasuredTask):
    """A task whose loss asks for what a teacher gives, too; its metrics are the task's, of plain targets.

    Args:
        share: of the teacher in the loss: the divergence of Kullback and Leibler of the network's probabilities from
            the teacher's, summed over the targets that count.

    Raises:
        DataError: another kind of task.
        SettingError: a share outside of 0 to 1.
    """

    def __init__(self, task: MeasuredTask, *, share: float) -> None:
        if not isinstance(task.plain, Classification):
            raise DataError(
                f"a teacher gives probabilities of classes, which {type(task.plain).__name__} has not; leave it out"
            )
        if not 0 < share <= 1:
            raise SettingError(f"the share of a teacher must be above 0 and at most 1, got {share}")
        super().__init__(task.plain, task.own)
        self._share = share

    def loss(self, outputs: Batch, targets: Targets) -> Tensor:
        own, taught = targets
        counts = own.flatten() >= 0
        mine, theirs = (tensor.flatten(0, -2)[counts].log_softmax(dim=-1) for tensor in (outputs[0], taught))
        divergence = functional.kl_div(mine, theirs, reduction="sum", log_target=True)
        return (1 - self._share) * super().loss(outputs, own) + self._share * divergence

    def count(self, targets: Targets) -> float:
        return super().count(targets[0])
