"""Metrics and their standard errors, gathered chunk by chunk.

[Note: error bars] A standard error says by how much a metric would vary had other samples been drawn, for the network
as it is: not by how much another training of it would. It is found by leaving out one group of samples after the other
(the jackknife: Efron and Stein, The Annals of Statistics 9(3), 1981), which needs nothing of a metric but that it can
be measured on a part of the samples. For accuracy it comes to sqrt(p (1 - p) / n). Samples are dealt out to
min(samples, 50) groups at random, the same way every time: in the order of the data, where samples of a class may come
one after the other, groups would be more alike than chance makes them, and the error too small.

[Note: outputs] Where metrics follow from sums over samples (`SummedMetrics`), a chunk's outputs are dropped once it is
summed up. Other metrics want all outputs at once, on the host: what would not fit there is refused at the first chunk.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from l2l_nas.eps.host import free_memory_bytes
from l2l_nas.errors import DataError
from l2l_nas.relay.interface import Batch
from l2l_nas.training.metrics import summed
from l2l_nas.training.score import Score
from l2l_nas.training.task import Task

# left out one after the other; more give a steadier estimate and take longer
_GROUPS = 50

Totals = dict[str, Tensor]


class Tally:
    """What is known of the metrics of one network, while its outputs come in chunk by chunk.

    Args:
        task: whose metrics they are.
        samples: how many there will be in all.
        with_errors: whether standard errors are wanted too. See [Note: error bars].
    """

    def __init__(self, task: Task, samples: int, *, with_errors: bool = False) -> None:
        self._task = task
        self._summed = summed(task)
        self._samples = samples
        self._groups = min(samples, _GROUPS) if with_errors else 0
        if with_errors:
            self._group_of = torch.randperm(samples, generator=torch.Generator().manual_seed(0)) % self._groups
        self._seen = 0
        self._totals: Totals = {}
        self._by_group: list[Totals] = [{} for _ in range(self._groups)]
        self._outputs: list[Batch] = []
        self._targets: list[Tensor] = []

    def add(self, outputs: Batch, targets: Tensor) -> None:
        """Take the next samples.

        Args:
            outputs: tensors whose first dimension is the sample.
            targets: likewise.

        Raises:
            DataError: the task raised, or all outputs together would not fit into the host's memory.
        """
        if self._summed is None:
            self._refuse_too_large(outputs, len(targets))
            self._outputs.append(outputs)
            self._targets.append(targets)
        else:
            _add(self._totals, self._summed.totals(outputs, targets))
            for group, totals in enumerate(self._by_group):
                rows = (self._group_of[self._seen : self._seen + len(targets)] == group).nonzero().flatten()
                if len(rows):
                    _add(totals, self._summed.totals(tuple(tensor[rows] for tensor in outputs), targets[rows]))
        self._seen += len(targets)

    def metrics(self) -> dict[str, float]:
        """All metrics of the samples taken.

        Raises:
            DataError: as `MeasuredTask.measure`.
        """
        if self._summed is not None:
            return self._summed.finish(self._totals)
        return self._task.measure(*self._whole())

    def score(self) -> Score:
        """All metrics, and their standard errors.

        Raises:
            DataError: as `MeasuredTask.measure`, on all samples.
        """
        values = self.metrics()
        try:
            return Score(values, jackknife([self._without(group) for group in range(self._groups)]))
        except DataError as error:  # a metric of the user's own: it costs the error bar, not the result
            return Score(values, problem=f"no error bars: on a part of the samples, {error}")

    def _without(self, group: int) -> dict[str, float]:
        """All metrics of the samples that are not in a group."""
        if self._summed is not None:
            rest: Totals = {}
            for other, totals in enumerate(self._by_group):
                if other != group:
                    _add(rest, totals)
            return self._summed.finish(rest) if rest else {}
        outputs, targets = self._whole()
        rows = (self._group_of != group).nonzero().flatten()
        return self._task.measure(tuple(tensor[rows] for tensor in outputs), targets[rows]) if len(rows) else {}

    def _whole(self) -> tuple[Batch, Tensor]:
        if len(self._targets) > 1:
            self._outputs = [tuple(torch.cat(parts) for parts in zip(*self._outputs, strict=True))]
            self._targets = [torch.cat(self._targets)]
        return self._outputs[0], self._targets[0]

    def _refuse_too_large(self, outputs: Batch, samples: int) -> None:
        if self._outputs:
            return
        wanted = sum(tensor.nbytes for tensor in outputs) * self._samples // samples
        if 2 * wanted > free_memory_bytes():  # chunks are joined into one more copy
            raise DataError(
                f"the metrics need the outputs of all {self._samples:,} samples at once, {wanted / 2**30:.1f} GiB; "
                "derive the task from SummedMetrics, with `totals` and `finish`, and leave out Problem(metrics=), or "
                "measure on fewer samples"
            )


def _add(into: Totals, totals: Mapping[str, Tensor]) -> None:
    for name, value in totals.items():
        into[name] = into[name] + value if name in into else value


def jackknife(without: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The standard error of each metric, from what it is without one group of samples after the other.

    Returns:
        By name; without those that are not finite on every part, and empty for fewer than two groups.
    """
    groups = len(without)
    found = {}
    for name in without[0] if groups > 1 else ():
        values = [one[name] for one in without]
        mean = math.fsum(values) / groups
        error = math.sqrt((groups - 1) / groups * math.fsum((value - mean) ** 2 for value in values))
        if math.isfinite(error):
            found[name] = error
    return found
