"""Metrics: those of a task and those of the user's own, and the checks on what they give."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Real

import numpy as np
import torch
from torch import Tensor

from l2l_nas.errors import DataError, user_code
from l2l_nas.relay.interface import Batch
from l2l_nas.space.shapes import Specs
from l2l_nas.training.task import SummedMetrics, Task

# samples and numbers of a trial measurement
_SAMPLES = 256
_NUMBERS = 1 << 20


@dataclass(frozen=True)
class Metric:
    """A figure of your own, measured on a whole data set beside those of the task.

    Args:
        measure: of the network's outputs (the tensor, or a tuple if it gives several) and the targets; one number.
        maximize: whether more is better.
    """

    measure: Callable[..., float]
    maximize: bool = True


class MeasuredTask:
    """A task with further metrics; whatever is measured is looked at.

    Args:
        task: whose loss it is.
        own: further metrics by name.

    Raises:
        DataError: a name that the task has, or that is no plain word.
    """

    def __init__(self, task: Task, own: Mapping[str, Metric]) -> None:
        for name, metric in own.items():
            if not name.isidentifier():
                raise DataError(f"metric {name!r}: its name may hold only letters, digits and _")
            if name in task.metrics:
                raise DataError(f"metric '{name}': the task has one of this name; rename yours")
            if not isinstance(metric, Metric):
                raise DataError(f"metric '{name}' is {type(metric).__name__}; write Metric(function, maximize=...)")
        self._task = task
        self._own = dict(own)
        self.metrics: Mapping[str, bool] = {**task.metrics, **{name: one.maximize for name, one in own.items()}}

    def loss(self, outputs: Batch, targets: Tensor) -> Tensor:
        """The task's."""
        return self._task.loss(outputs, targets)

    def count(self, targets: Tensor) -> float:
        """The task's."""
        return self._task.count(targets)

    def measure(self, outputs: Batch, targets: Tensor) -> dict[str, float]:
        """All metrics of a data set; NaN and inf are left to the caller.

        Raises:
            DataError: something raised, or gave other things than one number for each metric.
        """
        result = self._checked(_guarded("the task's measure", partial(self._task.measure, outputs, targets)))
        given = outputs[0] if len(outputs) == 1 else outputs
        for name, metric in self._own.items():
            result[name] = _number(name, _guarded(f"metric '{name}'", partial(metric.measure, given, targets)))
        return result

    @property
    def is_summed(self) -> bool:
        """Whether all metrics follow from sums over samples: those of the task do, and there are no others."""
        return not self._own and summed(self._task) is not None

    def totals(self, outputs: Batch, targets: Tensor) -> dict[str, Tensor]:
        """The task's sums over these samples.

        Raises:
            DataError: the task raised.
        """
        assert isinstance(self._task, SummedMetrics)
        return _guarded("the task's measure", partial(self._task.totals, outputs, targets))  # type: ignore[return-value]

    def finish(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        """All metrics, from the sums.

        Raises:
            DataError: as `measure`.
        """
        assert isinstance(self._task, SummedMetrics)
        return self._checked(_guarded("the task's measure", partial(self._task.finish, totals)))

    def _checked(self, found: object) -> dict[str, float]:
        """The task's own metrics, if these are one number for each of them."""
        wanted = list(self._task.metrics)
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

    def check(self, targets: Tensor, outputs: Specs) -> None:
        """The task's."""
        self._task.check(targets, outputs)

    def try_out(self, targets: Tensor, outputs: Specs) -> None:
        """Measure random outputs once, so that a metric that does not work is told before any training.

        Raises:
            DataError: as `measure`.
        """
        per_sample = sum(math.prod(spec.shape) for spec in outputs)
        samples = max(1, min(len(targets), _SAMPLES, _NUMBERS // max(1, per_sample)))
        generator = torch.Generator().manual_seed(0)
        random = (torch.randn(samples, *spec.shape, generator=generator) for spec in outputs)
        self.measure(tuple(t.to(spec.dtype) for t, spec in zip(random, outputs, strict=True)), targets[:samples])


def summed(task: Task) -> SummedMetrics | MeasuredTask | None:
    """The task, if its metrics follow from sums over samples; None if its `measure` wants all outputs at once."""
    if isinstance(task, MeasuredTask):
        return task if task.is_summed else None
    # a `measure` of a subclass's own may measure anything
    measure: object = type(task).measure
    return task if isinstance(task, SummedMetrics) and measure is SummedMetrics.measure else None


def _guarded(what: str, call: Callable[[], object]) -> object:
    with user_code(what, DataError):
        return call()


def _number(name: str, value: object) -> float:
    """The value as a float.

    Raises:
        DataError: it is not one number.
    """
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
