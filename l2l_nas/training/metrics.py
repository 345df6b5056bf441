"""Metrics: those of a task and those of the user's own, and the checks on what they give."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from l2l_nas.arguments import check_kind, shown
from l2l_nas.errors import DataError, SettingError, user_code
from l2l_nas.relay.interface import Batch, Targets, each
from l2l_nas.space.candidate import Specs
from l2l_nas.space.values import as_tuple
from l2l_nas.training.task import SampleMetrics, SummedMetrics, Task

# samples and numbers of a trial measurement
_SAMPLES = 256
_NUMBERS = 1 << 20


@dataclass(frozen=True)
class Metric:
    """A figure of your own, measured on a whole data set beside those of the task.

    Args:
        measure: an object with `update(outputs, targets)` and `compute()`, and maybe `reset()`, such as torchmetrics':
            it sees the data set part by part, and a copy of it is used. Or a function of all outputs (the tensor, or a
            tuple if the network gives several) and all targets at once. One number comes of it.
        maximize: whether more is better.

    Raises:
        SettingError: one of these is something else.
    """

    measure: Any
    maximize: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.measure, type) or not (self.is_streaming or callable(self.measure)):
            raise SettingError(
                f"Metric: measure takes a function, or an object with update and compute, got {shown(self.measure)}"
            )
        check_kind("Metric: maximize", self.maximize, bool, wanted="True or False")

    @property
    def is_streaming(self) -> bool:
        return _is_streaming(self.measure)


class Running:
    """Streaming metrics on their way through a data set: copies, so that those given stay as they are."""

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        self._meters: dict[str, Any] = {}
        for name, metric in metrics.items():
            with user_code(f"metric '{name}'", DataError):
                self._meters[name] = copy.deepcopy(metric.measure)
                getattr(self._meters[name], "reset", bool)()

    def update(self, outputs: Batch, targets: Targets) -> None:
        """The next samples; a DataError where a metric raised."""
        given = outputs[0] if len(outputs) == 1 else outputs
        for name, meter in self._meters.items():
            _guarded(f"metric '{name}'", partial(meter.update, given, targets))

    def compute(self) -> dict[str, float]:
        """Each of them, of the samples so far; a DataError where a metric raised, or gave no number."""
        return {name: _number(name, _guarded(f"metric '{name}'", one.compute)) for name, one in self._meters.items()}


class MeasuredTask:
    """A task with further metrics; whatever is measured is examined.

    Args:
        task: whose loss it is.
        own: further metrics by name; an object of torchmetrics that says whether more is better is one as it is.

    Attributes:
        plain: the task itself.

    Raises:
        DataError: a name that the task has, or that is no plain word.
    """

    def __init__(self, task: Task, own: Mapping[str, Any]) -> None:
        own = {name: _as_metric(metric) for name, metric in own.items()}
        for name, metric in own.items():
            if not name.isidentifier():
                raise DataError(f"metric {name!r}: its name may hold only letters, digits and _")
            if name in task.metrics:
                raise DataError(f"metric '{name}': the task has one of this name; rename yours")
            if not isinstance(metric, Metric):
                kind = type(metric).__name__
                what = f"{kind}(...)" if _is_streaming(metric) else "function"
                raise DataError(f"metric '{name}' is {kind}; write Metric({what}, maximize=...)")
        self.plain = task
        self.own = own
        self.streaming = {name: metric for name, metric in own.items() if metric.is_streaming}
        self.metrics: Mapping[str, bool] = {**task.metrics, **{name: one.maximize for name, one in own.items()}}

    def loss(self, outputs: Batch, targets: Targets) -> Tensor:
        return self.plain.loss(outputs, targets)

    def count(self, targets: Targets) -> float:
        return self.plain.count(targets)

    def measure(self, outputs: Batch, targets: Targets) -> dict[str, float]:
        """All metrics of a data set; NaN and inf are left to the caller.

        Raises:
            DataError: something raised, or gave other things than one number for each metric.
        """
        running = Running(self.streaming)
        running.update(outputs, targets)
        found = {**self.measure_gathered(outputs, targets), **running.compute()}
        if self.is_summed:
            found |= self.finish(self.totals(outputs, targets))
        return {name: found[name] for name in self.metrics}

    @property
    def is_summed(self) -> bool:
        """Whether the task's own metrics follow from sums over samples."""
        # a `measure` of a subclass's own may measure anything
        measure: object = type(self.plain).measure
        return isinstance(self.plain, SummedMetrics) and measure is SummedMetrics.measure

    @property
    def per_sample(self) -> SampleMetrics | None:
        """What gives metrics of the task from figures of each sample; see `SummedMetrics.per_sample`."""
        return self.plain.per_sample if self.is_summed and isinstance(self.plain, SummedMetrics) else None

    @property
    def gathered(self) -> tuple[str, ...]:
        """Metrics that are measured on all outputs at once."""
        own = (name for name, metric in self.own.items() if not metric.is_streaming)
        return (*(() if self.is_summed else self.plain.metrics), *own)

    def measure_gathered(self, outputs: Batch, targets: Targets) -> dict[str, float]:
        """These, of all outputs; raises as `measure`."""
        found: dict[str, float] = {}
        if not self.is_summed:
            found = self._checked(_guarded("the task's measure", partial(self.plain.measure, outputs, targets)))
        given = outputs[0] if len(outputs) == 1 else outputs
        for name, metric in self.own.items():
            if not metric.is_streaming:
                found[name] = _number(name, _guarded(f"metric '{name}'", partial(metric.measure, given, targets)))
        return found

    def totals(self, outputs: Batch, targets: Targets) -> dict[str, Tensor]:
        """The task's sums over these samples; a DataError where the task raised."""
        assert isinstance(self.plain, SummedMetrics)
        return _guarded("the task's measure", partial(self.plain.totals, outputs, targets))  # type: ignore[return-value]

    def finish(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        """The task's own metrics, from the sums; raises as `measure`."""
        assert isinstance(self.plain, SummedMetrics)
        return self._checked(_guarded("the task's measure", partial(self.plain.finish, totals)))

    def _checked(self, found: object) -> dict[str, float]:
        wanted = list(self.plain.metrics)
        if not isinstance(found, Mapping):
            raise DataError(
                f"the task's measure gave {_described(found)}; expected a dict with a number for each of "
                f"{', '.join(wanted)}"
            )
        if set(found) != set(wanted):
            missing = [name for name in wanted if name not in found]
            extra = [str(name) for name in found if name not in wanted]
            wrong = [f"misses {', '.join(missing)}"] * bool(missing) + [f"also has {', '.join(extra)}"] * bool(extra)
            raise DataError(
                f"the task's measure {' and '.join(wrong)}; its metrics are {', '.join(wanted)}: make the two agree"
            )
        return {name: _number(name, found[name]) for name in wanted}

    def check(self, targets: Targets, outputs: Specs) -> None:
        self.plain.check(targets, outputs)

    def try_out(self, targets: Targets, outputs: Specs) -> None:
        """Measure random outputs once, so that a metric that does not work is reported before any training."""
        per_sample = sum(math.prod(spec.shape) for spec in outputs)
        samples = max(1, min(len(as_tuple(targets)[0]), _SAMPLES, _NUMBERS // max(1, per_sample)))
        generator = torch.Generator().manual_seed(0)
        random = (torch.randn(samples, *spec.shape, generator=generator) for spec in outputs)
        some = each(targets, lambda tensor: tensor[:samples])
        self.measure(tuple(t.to(spec.dtype) for t, spec in zip(random, outputs, strict=True)), some)


def of_samples(task: Task) -> SampleMetrics | None:
    """The task itself, if nothing but figures of each sample is wanted of its outputs."""
    whole = measured(task)
    found: object = whole.per_sample
    return whole.per_sample if found is whole.plain and not whole.own else None


def measured(task: Task) -> MeasuredTask:
    """The task with whatever it measures examined."""
    return task if isinstance(task, MeasuredTask) else MeasuredTask(task, {})


def _as_metric(given: Any) -> Any:
    is_known = isinstance(getattr(given, "higher_is_better", None), bool)
    if isinstance(given, Metric) or not (is_known and _is_streaming(given)):
        return given
    return Metric(given, maximize=given.higher_is_better)


def _is_streaming(measure: Any) -> bool:
    methods = (getattr(measure, name, None) for name in ("update", "compute"))
    return not isinstance(measure, type) and all(map(callable, methods))


def _guarded(what: str, call: Callable[[], object]) -> object:
    with torch.no_grad(), user_code(what, DataError):
        return call()


def _number(name: str, value: object) -> float:
    """The value as a float, if it is one number."""
    if (isinstance(value, Tensor) and value.numel() == 1) or (isinstance(value, np.ndarray) and value.size == 1):
        value = value.item()
    if isinstance(value, Real):
        return float(value)
    raise DataError(f"metric '{name}' gave {_described(value)}; expected one number")


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {list(value.shape)}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "nothing (None)" if value is None else f"a {type(value).__name__}"
