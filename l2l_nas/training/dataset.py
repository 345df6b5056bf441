"""Data sets as PyTorch users have them: map-style and iterable ones, with or without a `DataLoader`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
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
)

from l2l_nas.errors import DataError, user_code
from l2l_nas.training.ahead import Ahead
from l2l_nas.training.form import Form
from l2l_nas.training.randomness import own_generators, seed_generators
from l2l_nas.training.samples import SCORING, Key, Loaded, Samples, Wanted

# in place of a row: the random numbers of what is done once for a batch, or a pass
_WHOLE = -1


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
        self._ahead = Ahead(self._load, workers=source.workers, begin=source.begin)

    def __len__(self) -> int:
        return len(self._rows)

    def batch(self, rows: Tensor, *, key: Key = SCORING) -> Loaded:
        """See `Samples.batch`."""
        samples = []
        with own_generators():
            for row in self._rows[rows].tolist():
                seed_generators(key, row)
                with user_code("the data set", DataError):
                    samples.append(self._source.dataset[row])
                # a transform goes on with the numbers of its sample
                samples[-1] = self._source.form.sample(samples[-1])
            seed_generators(key, _WHOLE)
            return self._source.form.batch(samples)

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
        self._ahead = Ahead(self._load, workers=min(1, source.workers), begin=source.begin)

    def __len__(self) -> int:
        return self._length

    def batch(self, rows: Tensor, *, key: Key = SCORING) -> Loaded:
        """See `Samples.batch`. Rows must rise; `key` is that of a pass."""
        with own_generators():
            samples = [self._at(row, key) for row in rows.tolist()]
            seed_generators(key, _WHOLE - self._next)
            return self._source.form.batch(samples)

    def _at(self, row: int, key: Key) -> object:
        if self._pass is None or self._pass[0] != key or row < self._next:
            seed_generators(key, _WHOLE)
            with user_code("the data set", DataError):
                self._pass = key, iter(self._source.dataset)
            self._next = 0
        sample = None
        while self._next <= row:
            seed_generators(key, self._next)
            with user_code("the data set", DataError):
                try:
                    sample = next(self._pass[1])
                except StopIteration:
                    raise DataError(
                        f"the data set ended after {self._next:,} samples of a pass, but its length is "
                        f"{self._length:,}; correct its __len__, or Data.from_dataset(..., length=)"
                    ) from None
            self._next += 1
        return self._source.form.sample(sample)

    def _load(self, wanted: Wanted) -> Loaded:
        return self.batch(wanted[0], key=wanted[1])

    def batches(self, wanted: Iterable[Wanted]) -> Iterator[Loaded]:
        """See `Samples.batches`."""
        return self._ahead.batches(wanted)

    def close(self) -> None:
        """See `Samples.close`."""
        self._ahead.close()
        self._pass = None


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
            collate = None if given.collate_fn is default_collate else given.collate_fn
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
                        "Data.from_dataset(..., length=NUMBER)"
                    ) from None
            part = StreamSamples(self, length=length)
        if len(part):
            part.batch(torch.tensor([0]))  # what is no sample is refused here
        return part


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
