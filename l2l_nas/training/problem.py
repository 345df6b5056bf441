"""A problem: a pool, the data it learns from, and the task."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from l2l_nas.arguments import of_argument
from l2l_nas.errors import DataError, user_code
from l2l_nas.relay.interface import Targets, count_of
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.candidate import Specs, TensorSpec, describe
from l2l_nas.space.constraint import Constraint
from l2l_nas.space.contents import contents
from l2l_nas.space.objective import with_objective
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.shapes import Shapes
from l2l_nas.space.values import as_tuple
from l2l_nas.training.data import Data
from l2l_nas.training.metrics import MeasuredTask, Metric
from l2l_nas.training.samples import Loaded, Samples, Split
from l2l_nas.training.task import Classification, Task, refuse_constant

_KINDS: dict[str, tuple[type | tuple[type, ...], str]] = {
    "pool": (LayerPool, "a LayerPool"),
    "data": (Data, "Data, a Dataset or a DataLoader; of arrays, Data.from_arrays(x, y)"),
    "constraints": ((tuple, list), "a tuple of constraints"),
    "metrics": (Mapping, "a dict of Metric by name"),
    "costs": (Mapping, "a dict of functions by name"),
}


@dataclass(frozen=True)
class Problem:
    """What a pool file's `build` returns when it brings its own data.

    Args:
        pool: the layers to choose from.
        data: to train and to measure on: `Data`, or what `Data.from_dataset` takes, a data set or `DataLoader` to be
            cut in three, or a tuple of two or three of them.
        task: classification by default. One that is a module with parameters learns: the problem's `pool` has one more
            position, "objective", which holds them.
        constraints: which architectures are allowed, such as
            `Require("a convolution", lambda architecture: "conv3" in architecture.choices)`.
        metrics: further objectives, measured on the network's outputs: `{"top5": Metric(top5)}`.
        costs: further objectives and limits, figures of an architecture of which less is better:
            `{"convolutions": lambda architecture: architecture.choices.count("conv3")}`.

    Raises:
        DataError: a part is something else, or `data` cannot be used.
    """

    pool: LayerPool
    data: Data
    task: Task = field(default_factory=Classification)
    constraints: tuple[Constraint, ...] = ()
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    costs: Mapping[str, Callable[[Architecture], float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given: object = self.data
        with of_argument("Problem: data"):
            if isinstance(given, Dataset | DataLoader) or type(given).__module__.partition(".")[0] == "datasets":
                object.__setattr__(self, "data", Data.from_dataset(given))
            elif isinstance(given, tuple) and 2 <= len(given) <= 3:
                object.__setattr__(self, "data", Data.from_dataset(*given))
        for name, (kinds, wanted) in _KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kinds):
                raise DataError(f"Problem: {name} is {type(value).__name__}; expected {wanted}")
        object.__setattr__(self, "pool", with_objective(self.pool, self.task))
        for part in ("metrics", "loss", "count", "measure", "check"):
            if isinstance(self.task, type) or not hasattr(self.task, part):
                raise DataError(
                    f"Problem: task is {_described(self.task)} without '{part}'; expected an object as Task is"
                )
        if not isinstance(self.task.metrics, Mapping) or not self.task.metrics:
            raise DataError("Problem: the task's metrics must be a dict: by name, whether more is better")
        for number, constraint in enumerate(self.constraints):
            if not callable(getattr(constraint, "violation", None)):
                raise DataError(
                    f"Problem: constraints[{number}] is {_described(constraint)} without a method 'violation'; write "
                    "Require(REASON, FUNCTION)"
                )
        for name, cost in self.costs.items():
            if not callable(cost):
                raise DataError(
                    f"Problem: costs[{name!r}] is {type(cost).__name__}; expected a function of an architecture"
                )

    @cached_property
    def measured_task(self) -> MeasuredTask:
        """The task, with the metrics beside its own; a DataError where one cannot be a metric."""
        return MeasuredTask(self.task, self.metrics)

    def check(self, shapes: Shapes) -> None:
        """Refuse data that does not fit the pool or the task, and metrics that do not work, with a DataError."""
        seen = {name: check_part(part, self.pool.inputs, name=name)[1] for name, part in self.data.parts.items()}
        train = seen["training"]
        self._check_task(train, shapes.outputs)
        for name, targets in seen.items():
            if _specs(targets) != _specs(train):
                raise DataError(f"the targets of the training and the {name} data differ in dtype or shape")
            pairs = zip(as_tuple(train), as_tuple(targets), strict=True)
            both = tuple(torch.cat(pair) for pair in pairs)
            self._check_task(both[0] if isinstance(train, Tensor) else both, shapes.outputs)
            count = count_of(self.task, targets)
            # of a part that is only sampled here, others may count
            if not count > 0 and len(as_tuple(targets)[0]) == len(self.data.parts[name]):
                raise DataError(f"no target of the {name} data counts")
        learned, part = as_tuple(train)[0], self.data.train
        if isinstance(self.task, Classification) and len(learned) == len(part):
            refuse_constant(learned)
        if isinstance(self.task, Classification) and part.is_sequential:
            _warn_of_one_class(learned)
        self._refuse_task_that_learns()
        self.measured_task.try_out(seen["validation"], shapes.outputs)

    def _check_task(self, targets: Targets, outputs: Specs) -> None:
        with user_code("the task's check", DataError):
            self.task.check(targets, outputs)

    def _refuse_task_that_learns(self) -> None:
        """The relay finds out in the first step; what is in plain sight is refused before.

        A module is a layer of the pool: see [Note: objectives that learn].
        """
        if isinstance(self.task, nn.Module):
            return
        for name, item in contents(self.task, "task", opaque=False):
            tensors = item.parameters() if isinstance(item, nn.Module) else [item] if isinstance(item, Tensor) else []
            if any(tensor.requires_grad for tensor in tensors):
                raise DataError(
                    f"'{name}' has parameters of its own, which nothing would train; derive the task from nn.Module, "
                    "or freeze them: requires_grad_(False)"
                )


def _warn_of_one_class(seen: Tensor) -> None:
    """Say that a stream begins with one class; refusing it would refuse a stream of rare classes, too."""
    classes = torch.unique(seen[seen >= 0])
    if len(seen) > 1 and len(classes) == 1:
        warnings.warn(
            f"the first {len(seen)} samples of training have class {int(classes[0])} alone; a stream keeps its order, "
            "so that a step learns from what comes next to each other: shuffle it, if it is sorted",
            stacklevel=3,
        )


def _described(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"


def _specs(targets: Targets) -> Specs:
    return tuple(map(TensorSpec.of, as_tuple(targets)))


def check_part(part: Samples, inputs: Specs, *, name: str) -> Loaded:
    """Refuse samples that cannot be trained on; returns those that were examined.

    Raises:
        DataError: no samples, NaN or inf, another shape or dtype than the pool takes, or lengths that differ.
    """
    if len(part) == 0:
        raise DataError(f"the {name} data has no samples")
    found, targets = part.preview()
    if len(found) != len(inputs):
        raise DataError(f"the {name} data has {len(found)} inputs, the pool takes {describe(inputs)}")
    for tensor, spec in zip(found, inputs, strict=True):
        if TensorSpec.of(tensor) != spec:
            raise DataError(f"the {name} data is {TensorSpec.of(tensor)}, the pool takes {spec}")
        if isinstance(part, Split) and len(tensor) != len(part):
            raise DataError(f"the {name} data has {len(tensor)} inputs, but {len(part)} targets")
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            bad = int((~tensor.isfinite()).flatten(1).any(dim=1).sum())
            raise DataError(f"{bad} of {len(tensor)} samples of the {name} data hold NaN or inf; remove or fill them")
    if isinstance(part, Split) and len({len(tensor) for tensor in as_tuple(targets)}) > 1:
        raise DataError(f"the {name} data has targets of {[len(tensor) for tensor in as_tuple(targets)]} samples")
    return found, targets
