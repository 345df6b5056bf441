"""Data sets as PyTorch users have them: map-style and iterable ones, with or without a `DataLoader`."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
    default_convert,
    get_worker_info,
)

from l2l_nas.errors import DataError, user_code
from l2l_nas.space.contents import contents
from l2l_nas.space.shapes import as_tuple
from l2l_nas.training.ahead import Ahead
from l2l_nas.training.form import Form
from l2l_nas.training.randomness import GENERATORS, own_generators, seed_generators
from l2l_nas.training.samples import SCORING, Key, Loaded, Samples, Wanted

# in place of a row: the random numbers of what is done once for a batch, or a pass
_WHOLE = -1
# objects that are searched for random generators and files
_MOST_HELD = 10_000


class MapSamples(Samples):
    """Samples of a data set that gives each by its number.

    Args:
        source: the data set, and how it is read.
        rows: its samples that are this part; None: all.
        targets: of these samples, if they are known without reading them.
    """

    def __init__(self, source: Source, *, rows: np.ndarray | None = None, targets: Tensor | None = None) -> None:
        self._source = source
        self._rows = torch.arange(len(source.dataset)) if rows is None else torch.as_tensor(rows)
        self._targets = targets
        self._ahead = Ahead(self._load, source.dataset, workers=source.workers, begin=source.begin)

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, rows: Tensor, *, key: Key = SCORING) -> Loaded:
        """See `Samples.batch`."""
        samples, reader = [], self._source.reader
        with own_generators():
            for row in self._rows[rows].tolist():
                seed_generators(key, row, reader.generators)
                with user_code("the data set", DataError):
                    samples.append(reader.dataset[row])
                # a transform goes on with the numbers of its sample
                samples[-1] = reader.form.sample(samples[-1])
            seed_generators(key, _WHOLE, reader.generators)
            return reader.form.batch(samples)

    def _load(self, wanted: Wanted) -> Loaded:
        return self.batch(wanted[0], key=wanted[1])

    def batches(self, wanted: Iterable[Wanted]) -> Iterator[Loaded]:
        """See `Samples.batches`."""
        return self._ahead.batches(wanted)

    def preview(self) -> Loaded:
        """See `Samples.preview`."""
        inputs, targets = super().preview()
        return inputs, targets if self._targets is None else self._targets

    def close(self) -> None:
        """See `Samples.close`."""
        self._ahead.close()


class StreamSamples(Samples):
    """Samples of a data set that can only be read in its own order.

    A pass begins it anew; what was seen already is read again and dropped, so that a resume is exact.

    Args:
        source: the data set, and how it is read.
        length: samples of a pass.
    """

    is_sequential = True

    def __init__(self, source: Source, *, length: int) -> None:
        self._source = source
        self._length = length
        self._pass: tuple[Key, Iterator[Any]] | None = None
        self._next = 0
        self._ahead = Ahead(self._load, source.dataset, workers=min(1, source.workers), begin=source.begin)

    def __len__(self) -> int:
        return self._length

    def batch(self, rows: Tensor, *, key: Key = SCORING) -> Loaded:
        """See `Samples.batch`. Rows must rise; `key` is that of a pass."""
        with own_generators():
            samples = [self._at(row, key) for row in rows.tolist()]
            seed_generators(key, _WHOLE - self._next, self._source.reader.generators)
            return self._source.reader.form.batch(samples)

    def _at(self, row: int, key: Key) -> object:
        reader = self._source.reader
        if self._pass is None or self._pass[0] != key or row < self._next:
            seed_generators(key, _WHOLE, reader.generators)
            with user_code("the data set", DataError):
                self._pass = key, iter(reader.dataset)
            self._next = 0
        sample = None
        while self._next <= row:
            seed_generators(key, self._next, reader.generators)
            with user_code("the data set", DataError):
                try:
                    sample = next(self._pass[1])
                except StopIteration:
                    raise DataError(
                        f"the data set ended after {self._next:,} samples of a pass, but its length is "
                        f"{self._length:,}; correct its __len__, or Data.from_dataset(..., length=)"
                    ) from None
            self._next += 1
        return reader.form.sample(sample)

    def _load(self, wanted: Wanted) -> Loaded:
        return self.batch(wanted[0], key=wanted[1])

    def batches(self, wanted: Iterable[Wanted]) -> Iterator[Loaded]:
        """See `Samples.batches`."""
        return self._ahead.batches(wanted)

    def close(self) -> None:
        """See `Samples.close`."""
        self._ahead.close()
        self._pass = None


class Reader:
    """A data set as one process reads it.

    Attributes:
        generators: of random numbers, that the data set and its transform hold.
    """

    def __init__(self, dataset: Any, form: Form) -> None:
        self.dataset, self.form = dataset, form
        self.generators = [item for item in _held((dataset, form)) if isinstance(item, GENERATORS)]


def _held(value: object) -> list[object]:
    """What an object holds; of very long lists, a part."""
    return [item for _, item in itertools.islice(contents(value, "", opaque=False), _MOST_HELD)]


def _copied(dataset: Any, form: Form) -> Reader:
    """A copy that opens its own files; tensors, arrays and images are not copied."""
    if type(dataset).__module__.partition(".")[0] == "datasets":  # reads maps of files, which processes may share
        return Reader(dataset, form)
    large = (Tensor, np.ndarray)
    memo = {
        id(item): item
        for item in _held((dataset, form))
        if isinstance(item, large) or type(item).__module__.partition(".")[0] in ("PIL", "datasets")
    }
    try:
        return Reader(*copy.deepcopy((dataset, form), memo))
    except Exception:  # a data set of any kind; it holds what cannot be copied, such as an open file
        return Reader(dataset, form)


@dataclass(frozen=True)
class Source:
    """A data set and how it is read.

    Args:
        dataset: map-style or iterable.
        form: of its samples.
        workers: processes that load ahead.
        begin: their `worker_init_fn`.
    """

    dataset: Any
    form: Form
    workers: int = 0
    begin: Callable[[int], None] | None = None

    @property
    def reader(self) -> Reader:
        """What this process reads.

        A data set may open a file when it is first read. Processes that were made after that would share its place in
        the file, and read others' samples. So this process reads a copy, and those that load ahead get the data set as
        it was given.
        """
        return self._given if not self.workers or get_worker_info() is not None else self._copy

    @cached_property
    def _given(self) -> Reader:
        return Reader(self.dataset, self.form)

    @cached_property
    def _copy(self) -> Reader:
        return _copied(self.dataset, self.form)

    @property
    def is_stream(self) -> bool:
        """Whether it can only be read in its own order."""
        return isinstance(self.dataset, IterableDataset) or not hasattr(self.dataset, "__getitem__")

    @classmethod
    def of(cls, given: object, form: Form) -> Source:
        """A data set, or that of a `DataLoader` with its collate function and its workers.

        Raises:
            DataError: it is neither, or the loader chooses samples by a rule of its own.
        """
        if isinstance(given, DataLoader):
            collate = None if given.collate_fn in (default_collate, default_convert) else given.collate_fn
            _refuse_own_choice(given)
            found = cls(given.dataset, replace(form, collate=collate), given.num_workers, given.worker_init_fn)
        else:
            found = cls(given, form)
        dataset = found.dataset
        if found.form.collate is not None and form.transform is not None:
            raise DataError("the DataLoader's collate_fn makes the batches; transform samples there or in the data set")
        if isinstance(dataset, Mapping):
            parts = ", ".join(f"{type(dataset).__name__}[{name!r}]" for name in list(dataset)[:3])
            raise DataError(f"a dict of data sets; name its parts: Data.from_dataset({parts})")
        if found.is_stream and (not hasattr(dataset, "__iter__") or iter(dataset) is dataset):
            raise DataError(
                f"{type(dataset).__name__} is no data set; expected arrays, a torch Dataset or DataLoader, a Hugging "
                "Face Dataset, or a list of (input, target) pairs"
            )
        if not found.is_stream and not hasattr(dataset, "__len__"):
            raise DataError(f"{type(dataset).__name__} has no __len__; define it, so that samples can be drawn")
        return found

    def samples(self, length: int | None = None) -> Samples:
        """All of its samples as one part.

        Args:
            length: samples of a pass of a data set that has no `__len__`.

        Raises:
            DataError: their number is not known, or the first one is no sample.
        """
        if not self.is_stream:
            part: Samples = MapSamples(self)
        else:
            if length is None:
                try:
                    length = len(self.dataset)
                except TypeError:
                    raise DataError(
                        f"{type(self.dataset).__name__} does not tell how many samples a pass has; write "
                        "Data.from_dataset(..., length=NUMBER), or length=(NUMBER, NUMBER, NUMBER) for its parts"
                    ) from None
            part = StreamSamples(self, length=length)
        if len(part):
            # what is no sample is refused here, and what is not the same again could not be resumed
            one, again = (part.batch(torch.tensor([0])) for _ in range(2))
            if not all(map(_is_same, (*one[0], *as_tuple(one[1])), (*again[0], *as_tuple(again[1])))):
                raise DataError(
                    f"{type(self.dataset).__name__} gives another sample when its first one is read again: it draws "
                    "random numbers from elsewhere than torch, numpy and Python's random, or changes as it is read"
                )
        return part


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())


def _refuse_own_choice(loader: DataLoader[Any]) -> None:
    """Refuse a loader that chooses samples; say which of its settings have no effect.

    Raises:
        DataError: it has a sampler of its own.
    """
    if isinstance(loader.dataset, IterableDataset):
        sampler, is_shuffled = None, False
    else:
        sampler = (
            loader.batch_sampler if type(loader.batch_sampler) not in (BatchSampler, type(None)) else loader.sampler
        )
        is_shuffled = isinstance(sampler, RandomSampler)
        if type(sampler) not in (RandomSampler, SequentialSampler):
            raise DataError(
                f"the DataLoader's {type(sampler).__name__} chooses samples, which a search does itself, so that it "
                "can be resumed; leave it out, or give a torch.utils.data.Subset of the samples that you want"
            )
    ignored = [f"batch_size={loader.batch_size}"] * (loader.batch_size not in (None, 1)) + ["shuffle"] * is_shuffled
    if isinstance(loader.dataset, IterableDataset) and loader.num_workers > 1:
        ignored.append(f"num_workers={loader.num_workers}, of which one reads a data set that has an order of its own,")
    if ignored:
        warnings.warn(
            f"the DataLoader's {' and '.join(ignored)} without effect: batches are drawn anew, shuffled where the data "
            "set allows it, of as many samples as the training's own batch_size says",
            stacklevel=4,
        )
