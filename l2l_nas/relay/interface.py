"""What an executor offers, whether it streams layers (`Relay`) or holds them all (`ReferenceTrainer`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from l2l_nas.arguments import check_count, check_list, check_number, check_whole, shown
from l2l_nas.contents.arrays import native
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import DataError, SettingError, user_code
from l2l_nas.relay.extend import Caches
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.candidate import Specs, TensorSpec, describe
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.shapes import check_shapes

Batch = tuple[Tensor, ...]
# makes of the outputs of a micro-batch, by its number, what is wanted of them
Reduce = Callable[[int, Batch], Batch]
# of each micro-batch, how many samples it has, and how many of their first places are computed
Cuts = Sequence[tuple[int, int]]
# a tensor, or a tuple of them where a batch has several; a task's own methods say which of the two it takes
Targets = Any
_LARGEST_RATE = torch.finfo(torch.float32).max


def reduced(reduce: Reduce, number: int, outputs: Batch) -> Batch:
    """What a user's function makes of the outputs of a micro-batch: tensors, or it is refused."""
    found: object = reduce(number, outputs)
    if not isinstance(found, tuple | list) or not all(isinstance(part, Tensor) for part in found):
        raise SettingError(f"reduce gives a tuple of tensors, got {shown(found)} ({type(found).__name__})")
    return tuple(found)


class Objective(Protocol):
    """What a step minimises: the mean over all targets of a mini-batch, however it is cut into micro-batches.

    To it comes what layers add themselves: see `l2l_nas.add_loss`.
    """

    def loss(self, outputs: Batch, targets: Targets) -> Tensor:
        """The loss summed over a micro-batch's targets: a scalar."""

    def count(self, targets: Targets) -> float:
        """How many targets a micro-batch has, or what they weigh; their sum is what the loss is divided by."""


def count_of(objective: Objective, targets: Targets) -> float:
    """How many targets a user's objective counts: a number, or a tensor of one; anything else is refused."""
    with user_code("the task's count"):
        count: object = objective.count(targets)
    check_number("the task's count", count.item() if isinstance(count, Tensor) and count.numel() == 1 else count)
    return count  # type: ignore[return-value]


@dataclass(frozen=True)
class StepResult:
    """What a training step gave.

    Args:
        loss: the task's: mean over all targets of the mini-batch.
        count: number of targets, or their weight.
        gradient_norm: of all gradients together, before clipping; None where nothing asks for it.
        is_skipped: whether fp16 gradients overflowed, so that nothing was applied and the loss scale was halved.
        auxiliary: the sum of what layers added with `add_loss`, which `loss` does not hold.
    """

    loss: float
    count: float
    gradient_norm: float | None = None
    is_skipped: bool = False
    auxiliary: float = 0.0


class Executor(Protocol):
    """Runs architectures of a pool."""

    @property
    def server(self) -> ParamServer:
        """With the states."""

    def train_step(
        self,
        architecture: Architecture,
        inputs: Batch,
        targets: Targets,
        *,
        objective: Objective,
        micro_batch: int,
        lr: float,
        step: int,
        upcoming: Architecture | None = None,
        samples: Sequence[int] | Tensor | None = None,
        lengths: Sequence[int] | None = None,
    ) -> StepResult:
        """One optimizer step of an architecture's layers on one mini-batch.

        Args:
            inputs: tensors whose first dimension is the mini-batch, as `LayerPool.inputs` says.
            targets: a tensor or a tuple of them; their first dimension is the mini-batch too.
            micro_batch: samples at a time; the last micro-batch may be short.
            lr: learning rate.
            step: decides the random numbers of dropout, together with the seed.
            upcoming: the architecture of the next step, if it is known: its first layer is loaded ahead.
            samples: the numbers of all samples of the mini-batch, where a rank is given its part alone: those of
                `Relay.own_rows`. Ranks compare these numbers.
            lengths: of the texts of each micro-batch, where layers take any length: only so many of their first places
                are computed; see `l2l_nas.training.lengths`. The task's targets are not of places.

        Raises:
            NonFiniteError: the loss, an auxiliary loss or a gradient is not finite.
        """

    def use(self, server: ParamServer) -> None:
        """Take layers from another server of the same pool from now on, such as a fork."""

    def predict(self, architecture: Architecture, inputs: Batch, *, micro_batch: int) -> Batch:
        """Outputs in evaluation mode, for all samples of `inputs`, on the host."""

    def predict_population(
        self,
        architectures: Sequence[Architecture],
        inputs: Batch,
        *,
        micro_batch: int,
        max_bytes: int | None = None,
        reduce: Reduce | None = None,
        cuts: Cuts | None = None,
    ) -> list[Batch]:
        """What `predict` gives for each of these, to the bit, but with less work where they begin alike.

        Args:
            max_bytes: of activations that wait on the device.
            reduce: what is given in place of outputs. They are not gathered, where nothing else reads them.
            cuts: micro-batches of texts that are shorter than the inputs are long. Their layers must take any length;
                see `l2l_nas.training.lengths`.
        """

    @property
    def takes_cuts(self) -> bool:
        """Whether micro-batches may differ in length."""

    def extend(self, architecture: Architecture, inputs: Batch, caches: Caches, *, micro_batch: int) -> Batch:
        """What `predict` gives at the next places of sequences, on the host, by what `caches` has of those before.

        Args:
            inputs: [batch, new, ...] each, of as many places as are new.
            caches: of these sequences; they go on with what is new.
        """

    @property
    def sample_bytes(self) -> int:
        """The most that an evaluation keeps of one sample at a time: values that wait, and outputs on the host."""

    @property
    def reduced_bytes(self) -> int:
        """Of one sample, where outputs are reduced: the most that waits of it at a time."""

    @property
    def evaluation_bytes(self) -> int | None:
        """Device memory for what an evaluation keeps; None where nothing limits it."""

    def recalibrate(self, architecture: Architecture, batches: Sequence[Batch]) -> None:
        """Measure BatchNorm's statistics anew for one architecture, as the plain average over these batches."""


def as_batch(inputs: object, name: str = "inputs") -> Batch:
    """Inputs as a tuple of tensors: a tensor or an array is one, a list holds several; else a DataError, by name."""
    parts = inputs if isinstance(inputs, tuple | list) else (inputs,)
    if not parts or not all(isinstance(part, Tensor | np.ndarray) for part in parts):
        raise DataError(f"{name} takes a tensor or a tuple of tensors, got {shown(inputs)} ({type(inputs).__name__})")
    return tuple(as_samples(name, part) for part in parts)


def next_places(wanted: Specs, inputs: object) -> Batch:
    """Inputs of `Executor.extend`: as a pool's, but of any number of places; else a DataError."""
    given = as_batch(inputs)
    if len(given) != len(wanted) or not all(
        tensor.dim() > 1 and tensor.shape[2:] == spec.shape[1:] and tensor.dtype == spec.dtype and not tensor.is_meta
        for tensor, spec in zip(given, wanted, strict=True)
    ):
        got = tuple(TensorSpec.of(tensor) for tensor in given)
        raise DataError(f"inputs of the next places are {describe(got)}, the search space takes {describe(wanted)}")
    return given


def as_targets(targets: object) -> Targets:
    """Targets as a tensor or a tuple of them: of numpy's arrays, and of lists of numbers, tensors are made."""
    parts = targets if isinstance(targets, tuple | list) else ()
    if parts and all(isinstance(part, Tensor | np.ndarray) and part.ndim > 0 for part in parts):
        return tuple(as_samples("targets", part) for part in parts)
    return as_samples("targets", targets)


def as_samples(name: str, value: Any) -> Tensor:
    """A tensor [samples, ...] as it is; an array, or a list of numbers, as one; the name is for errors."""
    try:
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(native(np.asarray(value)))
        if tensor.dtype == torch.float64 and not hasattr(value, "__array__"):
            tensor = tensor.to(torch.get_default_dtype())  # Python's numbers, as torch.tensor takes them
    except (TypeError, ValueError, RuntimeError, OverflowError):
        wanted = f"{name} takes a tensor, an array or a list of numbers, or a tuple of tensors"
        raise DataError(f"{wanted}, got {shown(value)} ({type(value).__name__})") from None
    if not tensor.dim():
        raise DataError(f"{name} takes samples in its first dimension, got {shown(value)}")
    return tensor


def sample_numbers(samples: object) -> Tensor:
    """`samples` of `Executor.train_step`: whole numbers [samples]; else a DataError."""
    numbers = as_samples("samples", samples)
    if numbers.dim() != 1 or not len(numbers) or numbers.is_floating_point() or numbers.is_complex():
        raise DataError(f"samples takes the numbers of all samples of the mini-batch, got {shown(samples)}")
    return numbers


def each(targets: Targets, change: Callable[[Tensor], Tensor]) -> Targets:
    """The tensor or the tuple of them, changed one by one."""
    return change(targets) if isinstance(targets, Tensor) else tuple(map(change, targets))


def cut_targets(targets: Targets, sizes: Sequence[int]) -> list[Targets]:
    """The targets of each micro-batch."""
    if isinstance(targets, Tensor):
        return list(targets.split(list(sizes)))
    return list(zip(*(tensor.split(list(sizes)) for tensor in targets), strict=True))


def bytes_of(specs: Specs) -> int:
    """Of one sample."""
    return sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in specs)


def cut_sizes(num_samples: int, micro_batch: int) -> tuple[int, ...]:
    """Sizes of the micro-batches of a mini-batch; both have at least one sample."""
    if check_count("micro_batch", micro_batch, least=-(1 << 62)) < 1:
        raise SettingError(f"micro_batch must be at least 1, got {micro_batch}")
    if num_samples < 1:
        raise DataError("a mini-batch needs at least 1 sample, got 0")
    full, rest = divmod(num_samples, micro_batch)
    return (micro_batch,) * full + ((rest,) if rest else ())


def samples_of(sizes: Sequence[int], micro_batches: range) -> slice:
    """Where the samples of a run of micro-batches lie among those of all."""
    return slice(sum(sizes[: micro_batches.start]), sum(sizes[: micro_batches.stop]))


def is_rate(value: object) -> bool:
    """Whether it is a learning rate: a number of at least 0 that float32 holds."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return bool(not value < 0 and value <= _LARGEST_RATE)


def checked_sizes(wanted: Specs, inputs: Batch, micro_batch: int, *others: Tensor) -> tuple[int, ...]:
    """Sizes of the micro-batches of inputs that are what is wanted, and of others of as many samples."""
    if len(inputs) != len(wanted) or any(
        tensor.shape[1:] != spec.shape or tensor.dtype != spec.dtype
        for tensor, spec in zip(inputs, wanted, strict=True)
    ):
        got = tuple(TensorSpec.of(tensor) for tensor in inputs)
        raise DataError(f"the data gives inputs {describe(got)}, the search space takes {describe(wanted)}")
    lengths = [len(tensor) for tensor in (*inputs, *others)]
    if len(set(lengths)) > 1:
        raise DataError(f"inputs and targets differ in their number of samples: {lengths}")
    return cut_sizes(lengths[0], micro_batch)


def cut_up(wanted: Specs, inputs: Batch, micro_batch: int, cuts: Cuts | None) -> Iterator[Batch]:
    """Micro-batches of inputs that are what is wanted, each as long as its cut says."""
    sizes = checked_sizes(wanted, inputs, micro_batch)
    if cuts is None:
        return zip(*(tensor.split(list(sizes)) for tensor in inputs), strict=True)
    most = min((*spec.shape, 0)[0] for spec in wanted)
    cuts = [_pair(one) for one in check_list("cuts", cuts, of=(tuple, list), wanted="(samples, places)")]
    if sum(size for size, _ in cuts) != sum(sizes) or not all(size > 0 and 0 < n <= most for size, n in cuts):
        raise DataError(f"cuts {list(cuts)[:4]} do not cut {sum(sizes)} samples of at most {most} places")
    if (largest := max(size for size, _ in cuts)) > micro_batch:
        raise DataError(f"cuts: one has {largest} samples, a micro-batch at most micro_batch={micro_batch}")
    parts = zip(*(tensor.split([size for size, _ in cuts]) for tensor in inputs), strict=True)
    return (tuple(tensor[:, :n] for tensor in part) for part, (_, n) in zip(parts, cuts, strict=True))


def _pair(cut: Sequence[int]) -> tuple[int, int]:
    """A cut of `Cuts`; a SettingError where it is none."""
    if len(cut) != 2:
        raise SettingError(f"cuts takes a list of (samples, places), got {shown(cut)} in it")
    return check_whole("cuts: samples", cut[0]), check_whole("cuts: places", cut[1])


def checked_lengths(pool: LayerPool, lengths: object, count: int, targets: Batch) -> tuple[int, ...]:
    """`lengths` of `Executor.train_step`, of so many micro-batches."""
    given = check_list("lengths", lengths, of=object, wanted="whole numbers")
    found = tuple(check_whole("lengths", one) for one in given)
    most = min((*spec.shape, 0)[0] for spec in pool.inputs)
    if len(found) != count or not all(0 < one <= most for one in found):
        raise DataError(f"lengths of {count} micro-batches are 1 to {most}, got {shown(found)}")
    if any(part.shape[1:2] == (most,) for part in targets):
        outputs = check_shapes(pool).outputs
        if any(spec.shape[:1] == (most,) for spec in outputs):
            raise DataError(
                f"lengths: outputs and targets are of {most} places each, which shorter texts do not have; train "
                "without lengths"
            )
    return found


def refuse_cuts(name: str, given: object, *, are_taken: bool) -> None:
    """Refuse texts of several lengths with a SettingError where layers are made for one."""
    if given is not None and not are_taken:
        raise SettingError(f"{name}: layers that are compiled or captured take one length; have layers=eager")
