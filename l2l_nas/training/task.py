"""Tasks: what is minimised and what is measured."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from l2l_nas.arguments import shown
from l2l_nas.errors import DataError, L2LError, SettingError, described, is_out_of_memory
from l2l_nas.relay.interface import Batch, Targets
from l2l_nas.space.candidate import Specs, TensorSpec, describe


class Task(Protocol):
    """A loss, and metrics of a whole data set.

    `outputs` is a tuple of tensors. `targets` is a tensor, or a tuple of tensors where a batch has several.
    """

    @property
    def metrics(self) -> Mapping[str, bool]:
        """Names of the metrics, and whether more is better."""

    def loss(self, outputs: Batch, targets: Targets) -> Tensor:
        """Summed over the targets of a micro-batch."""

    def count(self, targets: Targets) -> float:
        """How many targets a micro-batch has, or what they weigh."""

    def measure(self, outputs: Batch, targets: Targets) -> dict[str, float]:
        """All metrics of a data set."""

    def check(self, targets: Targets, outputs: Specs) -> None:
        """Refuse targets that cannot be learned or do not fit the pool's output, with a DataError."""


class SummedMetrics(ABC):
    """Base of a task whose metrics follow from sums over samples.

    Such a task is measured chunk by chunk, and no outputs wait for others: those of a language model would not fit into
    memory. A subclass has `totals` and `finish`; one that has a `measure` of its own is measured by that, on all
    outputs at once.
    """

    @abstractmethod
    def totals(self, outputs: Batch, targets: Targets) -> dict[str, Tensor]:
        """Sums over these samples, float64 or int64 of any shape; those of two sets of samples add up."""

    @abstractmethod
    def finish(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        """All metrics, from the sums."""

    def measure(self, outputs: Batch, targets: Targets) -> dict[str, float]:
        return self.finish(self.totals(outputs, targets))

    @property
    def per_sample(self) -> SampleMetrics | None:
        """What gives some or all of these metrics from figures of each sample, and so their exact standard errors."""
        return None


class SampleMetrics(SummedMetrics):
    """Base of a task whose metrics follow from sums of a few figures of each sample.

    They are computed where outputs are, one micro-batch after the other, and outputs are never gathered: the logits of
    a language model may be larger than all else together.

    Standard errors are exact for metrics that are the same on the samples taken several times over, as means and ratios
    of sums are, and smooth: `finish` should not round. Of other metrics there are none. See [Note: error bars].
    """

    names: tuple[str, ...]  # of the figures
    metrics: Mapping[str, bool]

    @abstractmethod
    def figures(self, outputs: Batch, targets: Targets) -> Tensor:
        """Of each sample, float64 [batch, names]."""

    def totals(self, outputs: Batch, targets: Targets) -> dict[str, Tensor]:
        return self.summed(self.figures(outputs, targets))

    def summed(self, figures: Tensor) -> dict[str, Tensor]:
        return dict(zip(self.names, figures.sum(dim=0), strict=True))

    @property
    def per_sample(self) -> SampleMetrics | None:
        return self if type(self).totals is SampleMetrics.totals else None


IGNORED = -100  # a target that does not count, in torch's cross_entropy and in labels of transformers' models
PIECE = 1 << 24  # bytes of logits that figures are computed of at a time


def counting(targets: Tensor) -> Tensor:
    """Which targets of tokens count: not -1, and not `IGNORED`."""
    return (targets != -1) & (targets != IGNORED)


Measured = TypeVar("Measured")


def fitted(method: Callable[[Any, Batch, Tensor], Measured]) -> Callable[[Any, Batch, Tensor], Measured]:
    """Have a method of a task name outputs and targets that are no tensors, or do not fit each other.

    Raises:
        SettingError: it says what was given, and what torch said of it.
    """

    @functools.wraps(method)
    def checked(task: Any, outputs: Batch, targets: Tensor) -> Measured:
        check_tensor("targets", targets)
        if not isinstance(outputs, tuple | list) or not outputs or not isinstance(outputs[0], Tensor):
            raise SettingError(f"outputs takes a tuple of tensors, got {shown(outputs)} ({type(outputs).__name__})")
        try:
            return method(task, outputs, targets)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            if isinstance(error, L2LError) or is_out_of_memory(error):
                raise
            got = f"outputs {_shape_and_dtype(outputs[0])}, targets {_shape_and_dtype(targets)}"
            raise SettingError(f"{type(task).__name__} cannot take {got}: {described(error)}") from error

    return checked


def check_tensor(name: str, value: object) -> None:
    """Refuse with a SettingError what is no tensor that holds numbers."""
    if not isinstance(value, Tensor) or value.is_meta:
        raise SettingError(f"{name} takes a tensor, got {shown(value)} ({type(value).__name__})")


def _shape_and_dtype(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _check_kinds(targets: object, outputs: object) -> None:
    check_tensor("targets", targets)
    if not isinstance(outputs, tuple | list) or not all(isinstance(one, TensorSpec) for one in outputs):
        raise SettingError(f"outputs takes a tuple of TensorSpecs, got {shown(outputs)} ({type(outputs).__name__})")


class Classification(SummedMetrics):
    """Cross entropy and accuracy.

    Outputs are logits [batch, classes], targets int64 [batch]. A target of -100 does not count.
    """

    metrics: Mapping[str, bool] = {"accuracy": True, "loss": False}

    @fitted
    def loss(self, outputs: Batch, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs[0], targets, reduction="sum", ignore_index=IGNORED)

    def count(self, targets: Tensor) -> int:
        check_tensor("targets", targets)
        return int((targets != IGNORED).sum())

    @fitted
    def totals(self, outputs: Batch, targets: Tensor) -> dict[str, Tensor]:
        return {
            "samples": (targets != IGNORED).sum(),
            "hits": (outputs[0].argmax(dim=-1) == targets).sum(),
            "loss": self.loss(outputs, targets).double(),
        }

    def finish(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        """Accuracy (a fraction) and mean cross entropy (nats)."""
        samples = int(totals["samples"])
        return {"accuracy": int(totals["hits"]) / samples, "loss": float(totals["loss"]) / samples}

    @property
    def per_sample(self) -> SampleMetrics | None:
        return _SingleTargets() if _is_ours(self) else None

    def check(self, targets: Tensor, outputs: Specs) -> None:
        _check_kinds(targets, outputs)
        if targets.dtype != torch.int64 or targets.dim() != 1:
            advice = "; flatten them: y.reshape(-1)" if targets.dim() == 2 and targets.shape[1] == 1 else ""
            raise DataError(f"class targets must be int64 [samples], got {targets.dtype} {list(targets.shape)}{advice}")
        if len(outputs) != 1 or len(outputs[0].shape) != 1:
            raise DataError(f"classification needs logits [batch, classes], the pool's outputs are {describe(outputs)}")
        least, most = _range(targets[targets != IGNORED])
        if least < 0 or most >= outputs[0].shape[0]:
            raise DataError(
                f"targets range from {least} to {most}, but the pool's last layer gives {outputs[0].shape[0]} classes"
            )


class _SingleTargets(SampleMetrics, Classification):
    """Accuracy and loss of a classification, from figures of each sample."""

    names = ("samples", "hits", "loss")

    def figures(self, outputs: Batch, targets: Tensor) -> Tensor:
        losses = functional.cross_entropy(outputs[0], targets, reduction="none", ignore_index=IGNORED)
        parts = (targets != IGNORED, outputs[0].argmax(dim=-1) == targets, losses)
        return torch.stack([part.double() for part in parts], dim=1)


def _is_ours(task: SummedMetrics) -> bool:
    """Whether nothing that is measured is of a subclass of somebody else's, who may measure anything."""
    methods = (getattr(type(task), name, None) for name in ("loss", "totals", "finish"))
    return all(getattr(method, "__module__", None) == __name__ for method in methods)


def _range(targets: Tensor) -> tuple[int, int]:
    return (int(targets.min()), int(targets.max())) if len(targets) else (0, 0)


def refuse_constant(targets: Tensor) -> None:
    """Refuse classes of all samples of a part with a DataError, where they are one, or none counts."""
    classes = torch.unique(targets[targets >= 0])
    if len(classes) == 0:
        raise DataError("no target counts: all are -1 or -100")
    if len(classes) == 1:
        raise DataError(f"all {len(targets)} samples have class {int(classes[0])}; there is nothing to tell apart")


class Tokens(SampleMetrics, Classification):
    """Cross entropy and accuracy of a token at each place.

    Outputs are logits [batch, length, vocabulary], targets int64 [batch, length]. Targets of -1 and -100 do not count.
    """

    names: tuple[str, ...] = ("samples", "hits", "loss")
    # texts need no outputs behind their last target that counts; a subclass of which that is true says so again
    reads_what_counts = True

    @fitted
    def loss(self, outputs: Batch, targets: Tensor) -> Tensor:
        wanted = targets.masked_fill(targets == -1, IGNORED).flatten()
        return functional.cross_entropy(outputs[0].flatten(0, 1), wanted, reduction="sum", ignore_index=IGNORED)

    def count(self, targets: Tensor) -> int:
        check_tensor("targets", targets)
        return int(counting(targets).sum())

    @fitted
    def figures(self, outputs: Batch, targets: Tensor) -> Tensor:
        counts, is_right, losses = self.places(outputs, targets)
        return torch.stack([part.sum(dim=1, dtype=torch.float64) for part in (counts, is_right, losses)], dim=1)

    @staticmethod
    def places(outputs: Batch, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of each place [batch, length], whether it counts, whether its token is right, and its cross entropy."""
        counts, logits = counting(targets), outputs[0].flatten(0, 1)
        where = counts.flatten().nonzero().flatten()
        hits, losses = [], []
        # in pieces: what is computed of all logits at once takes twice their memory
        for some in where.split(max(1, PIECE // (logits.shape[1] * logits.element_size()))):
            own, wanted = logits[some], targets.flatten()[some]
            hits.append(own.argmax(dim=-1) == wanted)
            losses.append(functional.cross_entropy(own, wanted, reduction="none"))
        is_right = torch.zeros_like(counts).masked_scatter(counts, torch.cat(hits))
        loss = torch.cat(losses)
        return counts, is_right, torch.zeros_like(targets, dtype=loss.dtype).masked_scatter(counts, loss)

    def check(self, targets: Tensor, outputs: Specs) -> None:
        _check_kinds(targets, outputs)
        if targets.dtype != torch.int64 or targets.dim() != 2:
            raise DataError(f"token targets must be int64 [samples, length], got {targets.dtype} {list(targets.shape)}")
        if len(outputs) != 1 or outputs[0].shape[:1] != tuple(targets.shape[1:]) or len(outputs[0].shape) != 2:
            raise DataError(
                f"tokens need logits [batch, {targets.shape[1]}, vocabulary], the pool's outputs are "
                f"{describe(outputs)}"
            )
        least, most = _range(targets[counting(targets)])
        if least < 0 or most >= outputs[0].shape[1]:
            raise DataError(
                f"targets range from {least} to {most}, but the pool's last layer tells {outputs[0].shape[1]} tokens "
                "apart; -1 and -100 mark what does not count"
            )


class Regression(SummedMetrics):
    """Squared error. Outputs and targets are float32 of one shape."""

    metrics: Mapping[str, bool] = {"loss": False, "r2": True}

    @fitted
    def loss(self, outputs: Batch, targets: Tensor) -> Tensor:
        if outputs[0].shape != targets.shape:  # torch would compare each with each
            raise ValueError("they differ in shape")
        return functional.mse_loss(outputs[0], targets, reduction="sum")

    def count(self, targets: Tensor) -> int:
        check_tensor("targets", targets)
        return targets.numel()

    @fitted
    def totals(self, outputs: Batch, targets: Tensor) -> dict[str, Tensor]:
        """Squared error; samples, sum and sum of squares of each number to predict."""
        exact = targets.double()
        return {
            "loss": self.loss(outputs, targets).double(),
            "samples": torch.tensor(len(targets)),
            "sums": exact.sum(dim=0),
            "squares": (exact**2).sum(dim=0),
        }

    def finish(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        """Mean squared error, and the share of the variance explained; 0 where the targets do not vary."""
        error, samples, squares = float(totals["loss"]), int(totals["samples"]), totals["squares"]
        around_mean = squares - totals["sums"] ** 2 / samples
        # what is left of a difference of equals is rounding
        spread = float(torch.where(around_mean > 1e-12 * squares, around_mean, 0.0).sum())
        return {"loss": error / (samples * squares.numel()), "r2": 1 - error / spread if spread else 0.0}

    @property
    def per_sample(self) -> SampleMetrics | None:
        return _SquaredErrors() if _is_ours(self) else None

    def check(self, targets: Tensor, outputs: Specs) -> None:
        _check_kinds(targets, outputs)
        if not targets.is_floating_point():
            raise DataError(f"regression targets must be float32, got {targets.dtype}")
        if not bool(targets.isfinite().all()):
            raise DataError("the targets hold NaN or inf; remove those samples")
        if len(outputs) != 1 or outputs[0].shape != tuple(targets.shape[1:]):
            raise DataError(f"targets are {list(targets.shape)}, the pool's outputs are {describe(outputs)}")


class _SquaredErrors(SampleMetrics):
    """The loss of a regression; of the share of the variance that is explained, no sample has a figure of its own."""

    names = ("samples", "loss")
    metrics: Mapping[str, bool] = {"loss": False}

    def figures(self, outputs: Batch, targets: Tensor) -> Tensor:
        squares = ((outputs[0] - targets).double() ** 2).reshape(len(targets), -1).mean(dim=1)
        return torch.stack([torch.ones_like(squares), squares], dim=1)

    def finish(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        return {"loss": float(totals["loss"]) / float(totals["samples"])}
