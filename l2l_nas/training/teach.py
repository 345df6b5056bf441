"""Learning from another network: batches bring what a teacher gives for them (arXiv 1503.02531)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from l2l_nas.errors import DataError, SettingError
from l2l_nas.relay.interface import Batch, Targets
from l2l_nas.space.candidate import Specs
from l2l_nas.space.values import as_tuple
from l2l_nas.training.data import Batches
from l2l_nas.training.metrics import MeasuredTask, measured
from l2l_nas.training.samples import SCORING, Key, Loaded, Samples, check_rows, read
from l2l_nas.training.task import PIECE, Classification, SampleMetrics, Task

Teacher = Callable[[Batch], Batch]
_MOST_BYTES = 1 << 30  # of what a teacher gives for samples that are scored


class TaughtBatches(Batches):
    """Batches of the training part whose targets are followed by what a teacher gives."""

    def __init__(self, batches: Batches, teacher: Teacher) -> None:
        self._batches, self._teacher = batches, teacher

    @property
    def batch_size(self) -> int:
        return self._batches.batch_size

    def at(self, step: int) -> Loaded:
        return _taught(self._batches.at(step), self._teacher)

    def ahead(self, start: int, steps: int) -> Iterator[Loaded]:
        return (_taught(loaded, self._teacher) for loaded in self._batches.ahead(start, steps))

    def sizes(self, start: int, steps: int) -> set[int]:
        return self._batches.sizes(start, steps)


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
        _refuse_without_classes(task, "leave it out")
        if not 0 < share <= 1:
            raise SettingError(f"the share of a teacher must be above 0 and at most 1, got {share}")
        super().__init__(task.plain, task.own)
        self._share = share

    def loss(self, outputs: Batch, targets: Targets) -> Tensor:
        own, taught = targets
        counts = own.flatten() >= 0
        mine, theirs = (tensor.flatten(0, -2)[counts].log_softmax(dim=-1) for tensor in (outputs[0], taught))
        divergence = functional.kl_div(mine, theirs, reduction="sum", log_target=True)
        return (1 - self._share) * super().loss(outputs[:1], own) + self._share * divergence

    def count(self, targets: Targets) -> float:
        return super().count(targets[0])


class TaughtSamples(Samples):
    """Samples whose targets are followed by what a teacher gives, asked anew each time that they are read.

    Args:
        whole: the samples.
        teacher: gives tensors [batch, ...].
        sample_bytes: of what it gives for one sample. So few are read together that no more than 1 GiB waits.
    """

    def __init__(self, whole: Samples, teacher: Teacher, *, sample_bytes: int) -> None:
        self._whole, self._teacher = whole, teacher
        self.is_sequential, self.drops_last, self.groups = whole.is_sequential, whole.drops_last, whole.groups
        self.at_once = max(1, _MOST_BYTES // max(1, sample_bytes))

    def __len__(self) -> int:
        return len(self._whole)

    def batch(self, rows: Tensor, *, key: Key = SCORING) -> Loaded:
        check_rows(self, rows, key)
        return _taught(read(self._whole, rows, key=key), self._teacher)


class Divergence(SampleMetrics):
    """How far a network's probabilities are from a teacher's: the mean divergence of Kullback and Leibler, in nats.

    Outputs are logits [batch, ..., classes]. Targets are those of the task, [batch, ...], and the teacher's logits; the
    mean is over targets that count.

    Args:
        task: whose targets they are.

    Raises:
        DataError: it has no classes.
    """

    names = ("targets", "divergence")
    metrics: Mapping[str, bool] = {"divergence": False}

    def __init__(self, task: Task) -> None:
        _refuse_without_classes(measured(task), "use another strategy.scores")

    def loss(self, outputs: Batch, targets: Targets) -> Tensor:
        return self.figures(outputs, targets)[:, 1].sum()

    def count(self, targets: Targets) -> float:
        return int((as_tuple(targets)[0] >= 0).sum())

    def figures(self, outputs: Batch, targets: Targets) -> Tensor:
        own, taught = targets
        counts = own >= 0
        mine, theirs = outputs[0].flatten(0, -2), taught.flatten(0, -2)
        found = torch.zeros(counts.numel(), dtype=torch.float64, device=mine.device)
        # in pieces, as those of `Tokens`
        for some in counts.flatten().nonzero().flatten().split(max(1, PIECE // (4 * mine.shape[1]))):
            known, wanted = (logits[some].float().log_softmax(dim=-1) for logits in (mine, theirs))
            each = functional.kl_div(known, wanted, reduction="none", log_target=True)
            found[some] = each.sum(dim=1, dtype=torch.float64)
        return torch.stack([part.view(len(own), -1).sum(dim=1) for part in (counts.double(), found)], dim=1)

    def finish(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        return {"divergence": float(totals["divergence"]) / int(totals["targets"])}

    def check(self, targets: Targets, outputs: Specs) -> None:
        """Nothing: the task has checked its own targets."""


def _taught(loaded: Loaded, teacher: Teacher) -> Loaded:
    inputs, targets = loaded
    return inputs, (*as_tuple(targets), *teacher(inputs))


def _refuse_without_classes(task: MeasuredTask, advice: str) -> None:
    if not isinstance(task.plain, Classification):
        raise DataError(
            f"a teacher gives probabilities of classes, which {type(task.plain).__name__} has not; {advice}"
        )
