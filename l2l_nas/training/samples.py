"""Samples: one part of the data, in memory, in a memory-mapped file, or made one by one by a data set.

[Note: keys] Whatever is random in a sample follows from a key and the sample's row: the key of training is (seed,
step), that of scores is always the same. So batch `step` is what it was after a resume, and whoever loads it, this
process or one of several workers, loads the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from l2l_nas.arguments import shown
from l2l_nas.contents.arrays import native
from l2l_nas.errors import DataError, SettingError, of_user
from l2l_nas.relay.device import stream_seed
from l2l_nas.relay.interface import Batch, Targets, as_samples, each
from l2l_nas.space.candidate import Specs, TensorSpec
from l2l_nas.space.values import as_tuple

Key = tuple[int, int]
# which samples, in this order, and the key of their random numbers
Wanted = tuple[Tensor, Key]
Loaded = tuple[Batch, Targets]

SCORING: Key = (0, 0)
# samples and bytes that are examined where a part does not lie in memory
_LOOKS, _LOOK_BYTES = 256, 1 << 26
# apart from the streams of layers, which count micro-batches here
_SAMPLES = 1 << 40
# objects of a data set that are searched for generators, and for files
MOST_HELD = 10_000
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


@contextlib.contextmanager
def own_generators() -> Iterator[None]:
    """Leave the generators of Python, numpy and torch as they were."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


def seed_generators(key: tuple[int, int], row: int, own: Sequence[Any] = ()) -> None:
    """Seed the generators of Python, numpy and torch, and those that a data set holds, for one sample."""
    seed = stream_seed(*key, row, _SAMPLES)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)
    for generator in own:
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)
        elif isinstance(generator, np.random.Generator):
            state = generator.bit_generator
            state.state = type(state)(seed).state
        else:
            generator.seed(seed & 0xFFFFFFFF)


class Samples(ABC):
    """One part of the data: samples by row, from 0.

    A subclass of your own has `__len__` and `batch`; the rest follows.

    Attributes:
        is_sequential: whether rows can only be read in rising order, and a lower one begins anew.
        drops_last: whether what does not fill a mini-batch at the end of a pass is left for other passes.
        is_padded: whether texts end before their tensors do: with targets that do not count, or another number in
            `documents`.
        is_by_row: whether a sample is the same whatever is read with it, so that ranks may each read a part.
        at_once: rows that may be read together; None: as many as outputs leave room for.
        groups: of each sample a number that those share which belong together, such as images of one object, int64
            [samples]; None: each is one. Standard errors are over groups. See [Note: error bars].
    """

    is_sequential = False
    drops_last = True
    is_padded = False
    is_by_row = False
    at_once: int | None = None
    groups: Tensor | None = None

    @abstractmethod
    def __len__(self) -> int:
        """How many samples."""

    @abstractmethod
    def batch(self, rows: Tensor, *, key: Key = SCORING) -> Loaded:
        """These samples.

        Args:
            rows: int64 [batch].
            key: of the random numbers of these samples. See [Note: keys].

        Returns:
            inputs: a tuple of tensors [batch, ...].
            targets: a tensor [batch, ...], or a tuple of them.

        Raises:
            DataError: a sample cannot be read, or is no sample.
        """

    def batches(self, wanted: Iterable[Wanted]) -> Iterator[Loaded]:
        """Batch after batch; a part that can load ahead does."""
        return (read(self, rows, key=key) for rows, key in each_wanted(wanted))

    def some(self, rows: Tensor) -> Samples:
        return _Some(self, rows)

    def preview(self) -> Loaded:
        """Samples for checks and digests: all that lie in memory; of others, a few hundred evenly spread ones.

        There may be more targets than inputs, where targets are known without reading inputs.
        """
        if not len(self):
            return (), torch.empty(0)
        return read(self, rows_to_see(self, _LOOKS))

    @cached_property
    def inputs_specs(self) -> Specs:
        """Shape and dtype of each input."""
        return tuple(map(TensorSpec.of, read(self, torch.arange(min(1, len(self))))[0]))

    @cached_property
    def digest(self) -> str:
        """A hash of what `preview` shows, 16 hexadecimal digits."""
        inputs, targets = self.preview()
        content = hashlib.sha256(b"" if isinstance(self, Split) else f"{len(self)} samples".encode())
        for tensor in (*inputs, *as_tuple(targets)):
            content.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            content.update(tensor.contiguous().numpy().tobytes())
        return content.hexdigest()[:16]

    def close(self) -> None:  # noqa: B027
        """End the processes that load ahead, where there are any; the next batch starts them again."""


def read(part: Samples, rows: Tensor, *, key: Key = SCORING) -> Loaded:
    """Samples of a part, as its `batch` gives them. Raises DataError: a part of the user's own raised something."""
    with of_user(part, "data set", DataError):
        return part.batch(rows, key=key)


def check_rows(part: Samples, rows: object, key: object = SCORING) -> None:
    """Refuse what names no samples of a part, and what is no key.

    Raises:
        SettingError: another kind of object.
        DataError: a row that the part does not have.
    """
    if not isinstance(rows, Tensor) or rows.dtype != torch.int64 or rows.dim() != 1 or rows.is_meta:
        raise SettingError(f"rows takes an int64 tensor [batch], got {shown(rows)} ({type(rows).__name__})")
    if not isinstance(key, tuple | list) or len(key) != 2 or not all(isinstance(one, Integral) for one in key):
        raise SettingError(f"key takes two whole numbers, got {shown(key)} ({type(key).__name__})")
    if len(rows):
        least, most = map(int, torch.aminmax(rows))
        if least < 0 or most >= len(part):
            raise DataError(f"rows {least} to {most}: the part has {len(part):,} samples, from 0")


def each_wanted(wanted: Iterable[Wanted]) -> Iterator[Wanted]:
    """What is wanted of a part, checked one by one; a SettingError where it is no rows and a key."""
    if isinstance(wanted, str | bytes | Mapping | Tensor | np.ndarray) or not isinstance(wanted, Iterable):
        raise SettingError(f"wanted takes pairs of rows and a key, got {shown(wanted)} ({type(wanted).__name__})")
    for one in wanted:
        if not isinstance(one, tuple | list) or len(one) != 2:
            raise SettingError(f"wanted takes pairs of rows and a key, got {shown(one)} in it")
        yield one[0], one[1]


def groups_of(part: Samples) -> Tensor:
    """Of each sample the number of its group, from 0; each is one where the part names no groups, or one alone.

    Raises:
        DataError: there is not one whole number for each sample.
    """
    given = part.groups
    if given is None:
        return torch.arange(len(part))
    numbers = torch.as_tensor(given)
    if numbers.shape != (len(part),) or numbers.is_floating_point() or numbers.is_complex():
        raise DataError(
            f"groups are {numbers.dtype} {list(numbers.shape)}; expected a whole number for each of {len(part)} samples"
        )
    found = numbers.unique(return_inverse=True)[1]
    return found if len(found) and int(found.max()) else torch.arange(len(part))


def num_groups(part: Samples) -> int:
    """How many groups of samples there are that standard errors are over; the samples themselves without groups."""
    return int(groups_of(part).max()) + 1 if len(part) else 0


def rows_to_see(part: Samples, most: int) -> Tensor:
    """At most so many rows of a part that is not empty, evenly spread; fewer where samples are large."""
    one = read(part, torch.zeros(1, dtype=torch.int64))
    one_bytes = sum(tensor.nbytes for tensor in (*one[0], *as_tuple(one[1])))
    return spread(len(part), min(most, max(2, _LOOK_BYTES // max(1, one_bytes))), part.is_sequential)


def as_target(tensor: Tensor) -> Tensor:
    """A target as tasks take it: float32, complex64 or int64.

    Raises:
        DataError: whole numbers that int64 does not hold.
    """
    if tensor.is_floating_point():
        return tensor.float()
    if tensor.is_complex():
        return tensor.to(torch.complex64)
    found = tensor.long()
    if tensor.dtype is torch.uint64 and (found < 0).any():
        raise DataError("a target of 2^63 or more, which int64 does not hold; number the classes from 0")
    return found


def tensor_of(array: np.ndarray) -> Tensor:
    """An array, whatever its byte order, as a tensor."""
    return torch.from_numpy(native(array))


def _each_tensor(name: str, value: object) -> Targets:
    if isinstance(value, tuple):
        return tuple(as_samples(name, one) for one in value)
    return value if isinstance(value, Tensor) and value.dim() else as_target(as_samples(name, value))


def spread(count: int, most: int, is_sequential: bool = False) -> Tensor:
    """At most so many rows, evenly spread; the first ones where they can only be read in order."""
    if is_sequential or count <= most:
        return torch.arange(min(count, most))
    return torch.arange(most) * count // most


@dataclass(frozen=True)
class Split(Samples):
    """Samples in memory.

    Args:
        inputs: tensors whose first dimension is the sample; or one tensor.
        targets: likewise: a tensor, or a tuple of them. Arrays and lists of numbers become tensors.
        groups: see `Samples.groups`.

    Raises:
        DataError: they are no such things, or require gradients.
    """

    inputs: Batch
    targets: Targets
    groups: Tensor | None = None
    is_by_row = True

    def __post_init__(self) -> None:
        given = self.inputs if isinstance(self.inputs, tuple | list) else (self.inputs,)
        inputs = tuple(as_samples("Split: inputs", one) for one in given)
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "targets", _each_tensor("Split: targets", self.targets))
        if self.groups is not None:
            object.__setattr__(self, "groups", as_samples("Split: groups", self.groups))
        for tensor in (*inputs, *as_tuple(self.targets)):
            if tensor.requires_grad:
                raise DataError("samples that require gradients cannot be learned from; detach them: x.detach()")

    def __len__(self) -> int:
        return len(as_tuple(self.targets)[0])

    def batch(self, rows: Tensor, *, key: Key = SCORING) -> Loaded:
        check_rows(self, rows, key)
        return tuple(tensor[rows] for tensor in self.inputs), each(self.targets, lambda tensor: tensor[rows])

    def some(self, rows: Tensor) -> Split:
        return type(self)(*self.batch(rows), groups=None if self.groups is None else self.groups[rows])

    def preview(self) -> Loaded:
        return self.inputs, self.targets


class Mapped(Samples):
    """Samples of memory-mapped arrays: what is read is a batch at a time, so that they may be larger than memory.

    Args:
        inputs, targets: arrays whose first dimension is the sample, as `numpy.load(..., mmap_mode="r")` gives them.
        as_inputs: makes a tensor of what was read of the inputs.
        rows: the samples of this part; None: all.
    """

    is_by_row = True

    def __init__(
        self,
        inputs: np.ndarray,
        targets: np.ndarray,
        *,
        as_inputs: Callable[[np.ndarray], Tensor],
        rows: np.ndarray | None = None,
    ) -> None:
        if len(inputs) != len(targets):
            raise DataError(f"{len(inputs)} inputs in x, but {len(targets)} targets in y")
        self._inputs, self._targets, self._as_inputs = inputs, targets, as_inputs
        self._rows = np.arange(len(targets)) if rows is None else rows

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, rows: Tensor, *, key: Key = SCORING) -> Loaded:
        check_rows(self, rows, key)
        chosen = self._rows[rows.numpy()]
        return (self._as_inputs(self._inputs[chosen].view(np.ndarray)),), self._learned(chosen)

    def some(self, rows: Tensor) -> Mapped:
        check_rows(self, rows)
        found = Mapped(self._inputs, self._targets, as_inputs=self._as_inputs, rows=self._rows[rows.numpy()])
        found.groups = None if self.groups is None else self.groups[rows]
        return found

    def preview(self) -> Loaded:
        """See `Samples.preview`; the targets are all there are, if these are few bytes."""
        inputs, targets = super().preview()
        if self._targets.itemsize * self._targets[:1].size * len(self) <= _LOOK_BYTES:
            targets = self._learned(self._rows)
        return inputs, targets

    def _learned(self, chosen: np.ndarray) -> Tensor:
        return as_target(tensor_of(self._targets[chosen].view(np.ndarray)))


class _Some(Samples):
    def __init__(self, whole: Samples, rows: Tensor) -> None:
        check_rows(whole, rows)
        self._whole = whole
        self._rows = rows
        self.is_sequential, self.drops_last = whole.is_sequential, whole.drops_last
        self.is_by_row, self.is_padded, self.at_once = whole.is_by_row, whole.is_padded, whole.at_once
        self.groups = None if whole.groups is None else whole.groups[rows]

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, rows: Tensor, *, key: Key = SCORING) -> Loaded:
        check_rows(self, rows, key)
        return read(self._whole, self._rows[rows], key=key)

    def batches(self, wanted: Iterable[Wanted]) -> Iterator[Loaded]:
        return self._whole.batches((self._rows[rows], key) for rows, key in each_wanted(wanted))
