"""Metrics and their standard errors, gathered chunk by chunk.

[Note: error bars] A standard error says by how much a metric would vary had other samples been drawn, for the network
as it is: not by how much another training of it would. Samples that belong together, such as four images of one digit,
are a group (`Samples.groups`), and other groups might have been drawn; without groups each sample is one.

Where a metric is a function of sums of figures of each sample, such as a ratio of two sums, its error is that of its
linear part (Woodruff, Journal of the American Statistical Association 66, 1971; Wolter, Introduction to Variance
Estimation, chapter 6): u = sum of slope_k * figure_k over the figures of a group, slope_k being the derivative of the
metric by the sum of that figure; the variance is n / (n - 1) times the sum of (u - mean)^2 over all n groups. For
accuracy it is p (1 - p) / (n - 1), for a mean over tokens that of the ratio of losses to tokens of a sequence. Only
sums of products of figures are kept, so that it does not depend on how samples are cut in batches, or shared by ranks.

Metrics that no figures of a sample give (macro F1, explained variance, functions of the user's own) are measured
without one part of the samples after the other (the jackknife: Efron and Stein, The Annals of Statistics 9(3), 1981).
Groups are dealt out to min(groups, 50) parts at random, the same way every time.

A streaming metric is an object, of which nothing can be left out again. It has one copy for each of 10 parts instead,
and its standard error is that of the mean of these (the random group method: Wolter, chapter 2).

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

from l2l_nas.eps.agreement import all_reduce_min
from l2l_nas.eps.exchange import Alone, Exchange
from l2l_nas.eps.host import free_memory_bytes
from l2l_nas.errors import DataError
from l2l_nas.relay.interface import Batch, Targets, each
from l2l_nas.space.values import as_tuple
from l2l_nas.training.metrics import MeasuredTask, Running, measured
from l2l_nas.training.score import Score
from l2l_nas.training.task import SampleMetrics, Task

# left out one after the other; more give a steadier estimate and take longer
_PARTS = 50
# of streaming metrics: fewer, since each is measured by itself
_STREAM_PARTS = 10
# `finish` is asked for sums of so many copies of the samples, so that one copy more is a small step, and a whole one
_COPIES = 1 << 10

Totals = dict[str, Tensor]


class Tally:
    """What is known of the metrics of one network, while its outputs come in chunk by chunk.

    Args:
        task: whose metrics they are.
        groups: of each sample, the number of the group that it belongs to, from 0; int64 [samples].
        with_errors: whether all standard errors are wanted, or only those that figures of each sample give. See
            [Note: error bars].
        reduced: the task itself, where figures of each sample come in the place of outputs. See [Note: outputs].
        exchange: with the other ranks, all of which take the same samples.
    """

    def __init__(
        self,
        task: Task,
        groups: Tensor,
        *,
        with_errors: bool = False,
        reduced: SampleMetrics | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        whole = measured(task)
        self._names = tuple(whole.metrics)
        self._groups, self._seen = groups, 0
        self._figures = None if whole.per_sample is None else _Figures(whole.per_sample, groups)
        self._reduced = reduced
        exact = () if whole.per_sample is None else whole.per_sample.metrics
        parts = _dealt(groups) if with_errors and not set(self._names) <= set(exact) else groups[:0]
        self._parts = parts
        num_parts = int(parts.max()) + 1 if len(parts) else 0
        self._meters: list[_Sums | _Stream | _Gathered] = []
        if whole.is_summed:
            self._meters.append(_Sums(whole, num_parts, reduced))
        if whole.streaming:
            self._meters.append(_Stream(whole, min(num_parts, _STREAM_PARTS)))
        if whole.gathered:
            self._meters.append(_Gathered(whole, num_parts, len(groups), exchange or Alone()))

    def add(self, outputs: Batch, targets: Targets) -> None:
        """Take the next samples.

        Raises:
            DataError: the task raised, or all outputs together would not fit into the host's memory.
        """
        taken = slice(self._seen, self._seen + len(as_tuple(targets)[0]))
        if self._figures is not None:
            figures = outputs[0] if self._reduced is not None else self._figures.task.figures(outputs, targets)
            self._figures.add(figures, self._groups[taken])
        for meter in self._meters:
            meter.add(outputs, targets, self._parts[taken])
        self._seen = taken.stop

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
        errors |= {} if self._figures is None else self._figures.errors()
        return Score(values, {name: errors[name] for name in self._names if name in errors}, problem)


def _dealt(groups: Tensor) -> Tensor:
    """Of each sample, the part that it is dealt to: its group's."""
    number = int(groups.max()) + 1 if len(groups) else 0
    order = torch.randperm(number, generator=torch.Generator().manual_seed(0))
    return (order % min(number, _PARTS))[groups] if number else groups


class _Figures:
    """Sums of figures of each sample, and of their products over groups."""

    def __init__(self, task: SampleMetrics, groups: Tensor) -> None:
        self.task = task
        self._count = int(groups.max()) + 1 if len(groups) else 0
        self._totals, self._sizes = torch.zeros(2, len(task.names), dtype=torch.float64)
        self._products = torch.zeros(len(task.names), len(task.names), dtype=torch.float64)
        # of samples that each are a group, nothing is kept
        is_single = self._count == len(groups)
        self._of_groups = None if is_single else torch.zeros(self._count, len(task.names), dtype=torch.float64)

    def add(self, figures: Tensor, groups: Tensor) -> None:
        self._totals += figures.sum(dim=0)
        self._sizes += figures.abs().sum(dim=0)
        if self._of_groups is None:
            self._products += figures.T @ figures
        else:
            self._of_groups.index_add_(0, groups, figures)

    def errors(self) -> dict[str, float]:
        """By metric; without those that are not finite, or others on the samples taken several times over."""
        if self._count < 2:
            return {}
        products = self._products if self._of_groups is None else self._of_groups.T @ self._of_groups
        products = products - self._totals.outer(self._totals) / self._count  # around the mean
        values, copied = self._finish(self._totals), self._finish(_COPIES * self._totals)
        steps = [
            (self._finish(_COPIES * self._totals + one), self._finish(_COPIES * self._totals - one))
            for one in self._sizes.diag()
        ]
        found = {}
        for name, value in values.items():
            if not math.isclose(value, copied[name], rel_tol=1e-6):
                continue
            # a figure whose sum is nothing is nothing at each sample
            rises = [(more[name] - less[name]) / 2 for more, less in steps]
            slopes = torch.tensor(rises, dtype=torch.float64) * _COPIES / self._sizes.where(self._sizes > 0, 1.0)
            variance = float(slopes @ products @ slopes) * self._count / (self._count - 1)
            if math.isfinite(variance):
                found[name] = math.sqrt(max(0.0, variance))
        return found

    def _finish(self, totals: Tensor) -> dict[str, float]:
        return self.task.finish(dict(zip(self.task.names, totals, strict=True)))


class _Sums:
    def __init__(self, task: MeasuredTask, parts: int, figures: SampleMetrics | None) -> None:
        self._task = task
        self._figures = figures
        self._totals: Totals = {}
        self._by_part: list[Totals] = [{} for _ in range(parts)]

    def add(self, outputs: Batch, targets: Targets, parts: Tensor) -> None:
        _add(self._totals, self._summed(outputs, targets))
        for part, totals in enumerate(self._by_part):
            some = _chosen(outputs, targets, parts == part)
            if some is not None:
                _add(totals, self._summed(*some))

    def _summed(self, outputs: Batch, targets: Targets) -> Totals:
        return self._task.totals(outputs, targets) if self._figures is None else self._figures.summed(outputs[0])

    def values(self) -> dict[str, float]:
        return self._task.finish(self._totals)

    def errors(self) -> dict[str, float]:
        return jackknife([self._without(part) for part in range(len(self._by_part))])

    def _without(self, part: int) -> dict[str, float]:
        rest: Totals = {}
        for other, totals in enumerate(self._by_part):
            if other != part:
                _add(rest, totals)
        return self._task.finish(rest) if rest else {}


class _Stream:
    def __init__(self, task: MeasuredTask, parts: int) -> None:
        self._whole = Running(task.streaming)
        self._by_part = [Running(task.streaming) for _ in range(parts)]

    def add(self, outputs: Batch, targets: Targets, parts: Tensor) -> None:
        self._whole.update(outputs, targets)
        for part, running in enumerate(self._by_part):
            some = _chosen(outputs, targets, parts % len(self._by_part) == part)
            if some is not None:
                running.update(*some)

    def values(self) -> dict[str, float]:
        return self._whole.compute()

    def errors(self) -> dict[str, float]:
        count = len(self._by_part)
        if count < 2:
            return {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a class that a part lacks
            found = [running.compute() for running in self._by_part]
        by_name = {name: [one[name] for one in found] for name in found[0]}
        return {
            name: statistics.stdev(values) / math.sqrt(count)
            for name, values in by_name.items()
            if all(map(math.isfinite, values))  # a part may lack what a figure is of
        }


class _Gathered:
    def __init__(self, task: MeasuredTask, parts: int, samples: int, exchange: Exchange) -> None:
        self._task = task
        self._num_parts = parts
        self._samples = samples
        self._exchange = exchange
        self._chunks: list[tuple[Batch, Targets, Tensor]] = []

    def add(self, outputs: Batch, targets: Targets, parts: Tensor) -> None:
        if not self._chunks:
            self._refuse_too_large(outputs, len(as_tuple(targets)[0]))
        self._chunks.append((outputs, targets, parts))

    def values(self) -> dict[str, float]:
        return self._task.measure_gathered(*self._whole()[:2])

    def errors(self) -> dict[str, float]:
        outputs, targets, parts = self._whole()
        others = (_chosen(outputs, targets, parts != part) for part in range(self._num_parts))
        return jackknife([{} if some is None else self._task.measure_gathered(*some) for some in others])

    def _whole(self) -> tuple[Batch, Targets, Tensor]:
        if len(self._chunks) > 1:
            outputs, targets, parts = zip(*self._chunks, strict=True)
            wanted = tuple(map(torch.cat, zip(*map(as_tuple, targets), strict=True)))
            whole = tuple(map(torch.cat, zip(*outputs, strict=True)))
            self._chunks = [(whole, wanted[0] if isinstance(targets[0], Tensor) else wanted, torch.cat(parts))]
        return self._chunks[0]

    def _refuse_too_large(self, outputs: Batch, samples: int) -> None:
        wanted = sum(tensor.nbytes for tensor in outputs) * self._samples // samples
        if 2 * wanted > all_reduce_min(
            self._exchange, free_memory_bytes(), "free memory"
        ):  # chunks are joined into one more copy
            raise DataError(
                f"{', '.join(self._task.gathered)}: measured on the outputs of all {self._samples:,} samples at once, "
                f"{wanted / 2**30:.1f} GiB; derive the task from SummedMetrics, with `totals` and `finish`, and give a "
                "metric as an object with `update` and `compute`, or measure on fewer samples"
            )


def _chosen(outputs: Batch, targets: Targets, chosen: Tensor) -> tuple[Batch, Targets] | None:
    rows = chosen.nonzero().flatten()
    return (tuple(t[rows] for t in outputs), each(targets, lambda tensor: tensor[rows])) if len(rows) else None


def _add(into: Totals, totals: Mapping[str, Tensor]) -> None:
    for name, value in totals.items():
        into[name] = into[name] + value if name in into else value


def jackknife(without: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The standard error of each metric, from what it is without one part of the samples after the other.

    Returns:
        By name; without those that are not finite on every part, and empty for fewer than two parts.
    """
    parts = len(without)
    found = {}
    for name in without[0] if parts > 1 else ():
        values = [one[name] for one in without]
        mean = math.fsum(values) / parts
        error = math.sqrt((parts - 1) / parts * math.fsum((value - mean) ** 2 for value in values))
        if math.isfinite(error):
            found[name] = error
    return found
