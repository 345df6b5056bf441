"""Metrics and their standard errors, gathered chunk by chunk.

[Note: error bars] A standard error says by how much a metric would vary had other samples been drawn, for the network
as it is: not by how much another training of it would. It is found by leaving out one group of samples after the other
(the jackknife: Efron and Stein, The Annals of Statistics 9(3), 1981), which needs nothing of a metric but that it can
be measured on a part of the samples. For accuracy it comes to sqrt(p (1 - p) / n). Samples are dealt out to
min(samples, 50) groups at random, the same way every time: in the order of the data, where samples of a class may come
one after the other, groups would be more alike than chance makes them, and the error too small.

A streaming metric is an object, of which nothing can be left out again. It has one copy for each of 10 groups instead,
and its standard error is that of the mean of these (the random group method: Wolter, Introduction to Variance
Estimation, chapter 2). For a mean over samples, such as accuracy, the two agree.

[Note: outputs] Where metrics follow from sums over samples (`SummedMetrics`) or stream, a chunk's outputs are dropped
once they are counted. Where figures of each sample are enough (`SampleMetrics`), these come in the place of outputs,
which do not leave the device. Other metrics want all outputs at once, on the host: what would not fit there is refused
at the first chunk.
"""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from l2l_nas.eps.exchange import Alone, Exchange, least
from l2l_nas.eps.host import free_memory_bytes
from l2l_nas.errors import DataError
from l2l_nas.relay.interface import Batch, Targets, each
from l2l_nas.space.values import as_tuple
from l2l_nas.training.metrics import MeasuredTask, Running, measured
from l2l_nas.training.score import Score
from l2l_nas.training.task import SampleMetrics, Task

# left out one after the other; more give a steadier estimate and take longer
_GROUPS = 50
# of streaming metrics: fewer, since each is measured by itself
_STREAM_GROUPS = 10

Totals = dict[str, Tensor]


class Tally:
    """What is known of the metrics of one network, while its outputs come in chunk by chunk.

    Args:
        task: whose metrics they are.
        samples: how many there will be in all.
        with_errors: whether standard errors are wanted too. See [Note: error bars].
        reduced: the task itself, where figures of each sample come in the place of outputs. See [Note: outputs].
        exchange: with the other ranks, all of which take the same samples.
    """

    def __init__(
        self,
        task: Task,
        samples: int,
        *,
        with_errors: bool = False,
        reduced: SampleMetrics | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        whole = measured(task)
        self._names = tuple(whole.metrics)
        groups = min(samples, _GROUPS) if with_errors else 0
        order = torch.randperm(samples, generator=torch.Generator().manual_seed(0)) if with_errors else None
        self._group_of = torch.zeros(samples, dtype=torch.int64) if order is None else order % groups
        self._seen = 0
        self._meters: list[_Sums | _Stream | _Gathered] = []
        if whole.is_summed:
            self._meters.append(_Sums(whole, groups, reduced))
        if whole.streaming:
            self._meters.append(_Stream(whole, min(groups, _STREAM_GROUPS)))
        if whole.gathered:
            self._meters.append(_Gathered(whole, groups, samples, exchange or Alone()))

    def add(self, outputs: Batch, targets: Targets) -> None:
        """Take the next samples.

        Raises:
            DataError: the task raised, or all outputs together would not fit into the host's memory.
        """
        count = len(as_tuple(targets)[0])
        for meter in self._meters:
            meter.add(outputs, targets, self._group_of[self._seen : self._seen + count])
        self._seen += count

    def metrics(self) -> dict[str, float]:
        """All metrics of the samples taken; raises as `MeasuredTask.measure`."""
        found = {name: value for meter in self._meters for name, value in meter.values().items()}
        return {name: found[name] for name in self._names}

    def score(self) -> Score:
        """All metrics, and their standard errors; raises as `MeasuredTask.measure` on all samples."""
        values = self.metrics()
        errors, problem = dict[str, float](), ""
        for meter in self._meters:
            try:
                errors |= meter.errors()
            except DataError as error:  # a metric of the user's own: it costs the error bar, not the result
                problem = f"no error bars: on a part of the samples, {error}"
        return Score(values, {name: errors[name] for name in self._names if name in errors}, problem)


class _Sums:
    def __init__(self, task: MeasuredTask, groups: int, figures: SampleMetrics | None) -> None:
        self._task = task
        self._figures = figures
        self._totals: Totals = {}
        self._by_group: list[Totals] = [{} for _ in range(groups)]

    def add(self, outputs: Batch, targets: Targets, groups: Tensor) -> None:
        _add(self._totals, self._summed(outputs, targets))
        for group, totals in enumerate(self._by_group):
            some = _of_group(outputs, targets, groups == group)
            if some is not None:
                _add(totals, self._summed(*some))

    def _summed(self, outputs: Batch, targets: Targets) -> Totals:
        return self._task.totals(outputs, targets) if self._figures is None else self._figures.summed(outputs[0])

    def values(self) -> dict[str, float]:
        return self._task.finish(self._totals)

    def errors(self) -> dict[str, float]:
        return jackknife([self._without(group) for group in range(len(self._by_group))])

    def _without(self, group: int) -> dict[str, float]:
        rest: Totals = {}
        for other, totals in enumerate(self._by_group):
            if other != group:
                _add(rest, totals)
        return self._task.finish(rest) if rest else {}


class _Stream:
    def __init__(self, task: MeasuredTask, groups: int) -> None:
        self._whole = Running(task.streaming)
        self._by_group = [Running(task.streaming) for _ in range(groups)]

    def add(self, outputs: Batch, targets: Targets, groups: Tensor) -> None:
        self._whole.update(outputs, targets)
        for group, running in enumerate(self._by_group):
            some = _of_group(outputs, targets, groups % max(1, len(self._by_group)) == group)
            if some is not None:
                running.update(*some)

    def values(self) -> dict[str, float]:
        return self._whole.compute()

    def errors(self) -> dict[str, float]:
        count = len(self._by_group)
        if count < 2:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a class that a group lacks
            found = [running.compute() for running in self._by_group]
        by_name = {name: [one[name] for one in found] for name in found[0]}
        return {
            name: statistics.stdev(values) / math.sqrt(count)
            for name, values in by_name.items()
            if all(map(math.isfinite, values))  # a group may lack what a figure is of
        }


class _Gathered:
    def __init__(self, task: MeasuredTask, groups: int, samples: int, exchange: Exchange) -> None:
        self._task = task
        self._groups = groups
        self._samples = samples
        self._exchange = exchange
        self._parts: list[tuple[Batch, Targets, Tensor]] = []

    def add(self, outputs: Batch, targets: Targets, groups: Tensor) -> None:
        if not self._parts:
            self._refuse_too_large(outputs, len(groups))
        self._parts.append((outputs, targets, groups))

    def values(self) -> dict[str, float]:
        return self._task.measure_gathered(*self._whole()[:2])

    def errors(self) -> dict[str, float]:
        outputs, targets, groups = self._whole()
        parts = (_of_group(outputs, targets, groups != group) for group in range(self._groups))
        return jackknife([{} if some is None else self._task.measure_gathered(*some) for some in parts])

    def _whole(self) -> tuple[Batch, Targets, Tensor]:
        if len(self._parts) > 1:
            outputs, targets, groups = zip(*self._parts, strict=True)
            wanted = tuple(map(torch.cat, zip(*map(as_tuple, targets), strict=True)))
            whole = tuple(map(torch.cat, zip(*outputs, strict=True)))
            self._parts = [(whole, wanted[0] if isinstance(targets[0], Tensor) else wanted, torch.cat(groups))]
        return self._parts[0]

    def _refuse_too_large(self, outputs: Batch, samples: int) -> None:
        wanted = sum(tensor.nbytes for tensor in outputs) * self._samples // samples
        if 2 * wanted > least(self._exchange, free_memory_bytes()):  # chunks are joined into one more copy
            raise DataError(
                f"{', '.join(self._task.gathered)}: measured on the outputs of all {self._samples:,} samples at once, "
                f"{wanted / 2**30:.1f} GiB; derive the task from SummedMetrics, with `totals` and `finish`, and give a "
                "metric as an object with `update` and `compute`, or measure on fewer samples"
            )


def _of_group(outputs: Batch, targets: Targets, chosen: Tensor) -> tuple[Batch, Targets] | None:
    rows = chosen.nonzero().flatten()
    return (tuple(t[rows] for t in outputs), each(targets, lambda tensor: tensor[rows])) if len(rows) else None


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
