"""Data sets as PyTorch users have them: map-style and iterable ones, with or without a `DataLoader`."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping
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
)

from l2l_nas.arguments import shown
from l2l_nas.errors import DataError, user_code
from l2l_nas.space.contents import contents
from l2l_nas.space.values import as_tuple
from l2l_nas.training.ahead import Ahead, Workers
from l2l_nas.training.form import SampleForm
from l2l_nas.training.samples import (
    GENERATORS,
    MOST_HELD,
    SCORING,
    Key,
    Loaded,
    Samples,
    Wanted,
    check_rows,
    each_wanted,
    own_generators,
    rows_to_see,
    seed_generators,
)

# in place of a row: the random numbers of what is done once for a batch, or a pass
_WHOLE = -1
# samples that are read again, to see whether they are the same; and the keys of other random numbers for them
_READ_TWICE = 8
_OTHERS: tuple[Key, ...] = ((1, 0), (2, 0), (3, 0))


class DatasetSamples(Samples):
    """Samples that a data set makes, read by this process or by those that load ahead. See [Note: who reads].

    Args:
        source: the data set, and how it is read. Of one that can only be read in its own order, rows of a batch must
            rise, and its key is that of a pass.
        rows: its samples that are this part, where it gives each by its number; None: all.
        targets: of these samples, if they are known without reading them.
        length: samples of a pass, where it can only be read in its own order.
    """

    def __init__(
        self,
        source: SampleSource,
        *,
        rows: np.ndarray | None = None,
        targets: Tensor | None = None,
        length: int = 0,
    ) -> None:
        self.is_sequential, self.drops_last = source.is_stream, source.drops_last
        self.is_by_row = not source.is_stream and source.form.collate is None
        self._targets = targets
        if rows is None and not source.is_stream:
            rows = np.arange(len(source.dataset))
        self._read = _BatchReader(source, rows, length)
        workers = source.workers.one if source.is_stream else source.workers
        self._ahead = Ahead(self._read, source.dataset, workers=workers)

    def __len__(self) -> int:
        return len(self._read)

    def batch(self, rows: Tensor, *, key: Key = SCORING) -> Loaded:
        check_rows(self, rows, key)
        return self._ahead.batch((rows, key))

    def batches(self, wanted: Iterable[Wanted]) -> Iterator[Loaded]:
        return self._ahead.batches(each_wanted(wanted))

    def preview(self) -> Loaded:
        """See `Samples.preview`; a part that is only looked at keeps no processes."""
        was_begun = self._ahead.is_begun
        try:
            inputs, targets = super().preview()
            return inputs, targets if self._targets is None else self._targets
        finally:
            if not was_begun:
                self.close()

    def close(self) -> None:
        self._ahead.close()


class _BatchReader:
    """Batches of a data set, as any process reads them.

    A pass of one that can only be read in its own order begins it anew; what was seen already is read again and
    dropped, so that a resume is exact.
    """

    def __init__(self, source: SampleSource, rows: np.ndarray | None, length: int) -> None:
        self._source = source
        self._rows = None if rows is None else torch.as_tensor(rows)
        self._length = length if rows is None else len(rows)
        self._pass: tuple[Key, Iterator[Any]] | None = None
        self._next = 0

    def __len__(self) -> int:
        return self._length

    def __call__(self, wanted: Wanted) -> Loaded:
        rows, key = wanted
        rows, generators = rows if self._rows is None else self._rows[rows], self._source.generators
        with own_generators():
            # a transform goes on with the numbers of its sample
            samples = [self._source.form.sample(self._sample(row, key, generators)) for row in rows.tolist()]
            seed_generators(key, _WHOLE - self._next, generators)
            return self._source.form.batch(samples)

    def _sample(self, row: int, key: Key, generators: list[Any]) -> object:
        with user_code("the data set", DataError):
            if self._rows is not None:
                seed_generators(key, row, generators)
                return self._source.dataset[row]
            if self._pass is None or self._pass[0] != key or row < self._next:
                seed_generators(key, _WHOLE, generators)
                self._pass, self._next = (key, iter(self._source.dataset)), 0
            sample = None
            while self._next <= row:
                seed_generators(key, self._next, generators)
                try:
                    sample = next(self._pass[1])
                except StopIteration:
                    raise DataError(
                        f"the data set ended after {self._next:,} samples of a pass, but its length is "
                        f"{self._length:,}; correct its __len__, or Data.from_dataset(..., length=)"
                    ) from None
                self._next += 1
            return sample


@dataclass(frozen=True)
class SampleSource:
    """A data set and how it is read."""

    dataset: Any  # map-style or iterable
    form: SampleForm  # of its samples
    workers: Workers = Workers()  # processes that load ahead
    drops_last: bool = True  # see `Samples`

    @cached_property
    def generators(self) -> list[Any]:
        """The generators of random numbers that the data set and its transform hold in this process.

        Whatever it makes at its first sample, it makes here, of the same random numbers in every process; a generator
        that is made there is seeded from then on. With processes that load, only those read.
        """
        with own_generators():
            seed_generators(SCORING, _WHOLE, self._held())
            with user_code("the data set", DataError):
                if self.is_stream:
                    first = list(itertools.islice(self.dataset, 1))
                else:
                    first = [self.dataset[0]] if len(self.dataset) else []
            if first:
                self.form.batch([self.form.sample(first[0])])
        return self._held()

    def _held(self) -> list[Any]:
        held = itertools.islice(contents((self.dataset, self.form), "", opaque=False), MOST_HELD)
        return [item for _, item in held if isinstance(item, GENERATORS)]

    @property
    def is_stream(self) -> bool:
        """Whether it can only be read in its own order."""
        return isinstance(self.dataset, IterableDataset) or not hasattr(self.dataset, "__getitem__")

    @classmethod
    def of(cls, given: object, form: SampleForm) -> SampleSource:
        """A data set, or that of a `DataLoader` with its collate function and its workers.

        Raises:
            DataError: it is neither, or the loader chooses samples by a rule of its own.
        """
        if isinstance(given, DataLoader):
            collate = None if given.collate_fn in (default_collate, default_convert) else given.collate_fn
            _refuse_own_choice(given)
            workers = Workers(given.num_workers, given.worker_init_fn, given.multiprocessing_context, given.timeout)
            found = cls(given.dataset, replace(form, collate=collate), workers, given.drop_last)
        else:
            found = cls(given, form)
        dataset = found.dataset
        if found.form.collate is not None and form.transform is not None:
            raise DataError("the DataLoader's collate_fn makes the batches; transform samples there or in the data set")
        if isinstance(dataset, Mapping):
            parts = ", ".join(f"{type(dataset).__name__}[{name!r}]" for name in list(dataset)[:3])
            raise DataError(f"a dict of data sets; name its parts: Data.from_dataset({parts})")
        if found.is_stream and (not hasattr(dataset, "__iter__") or isinstance(dataset, Iterator)):
            raise DataError(
                f"{type(dataset).__name__} is no data set; expected arrays, a torch Dataset or DataLoader, a Hugging "
                "Face Dataset, or a list of (input, target) pairs"
            )
        if isinstance(dataset, Tensor | np.ndarray) and not dataset.ndim:
            raise DataError(f"one number is no data set, got {shown(dataset)}; give arrays of samples")
        if not found.is_stream and not hasattr(dataset, "__len__"):
            raise DataError(f"{type(dataset).__name__} has no __len__; define it, so that samples can be drawn")
        return found

    def samples(self, length: int | None = None, *, may_vary: bool = True) -> Samples:
        """All of its samples as one part.

        Args:
            length: samples of a pass of a data set that has no `__len__`.
            may_vary: whether samples may depend on random numbers, as augmented ones do.

        Raises:
            DataError: their number is not known, the first one is no sample, or they vary.
        """
        if self.is_stream and length is None:
            try:
                length = len(self.dataset)
            except TypeError:
                raise DataError(
                    f"{type(self.dataset).__name__} does not tell how many samples a pass has; write "
                    "Data.from_dataset(..., length=NUMBER), or length=(NUMBER, NUMBER, NUMBER) for its parts"
                ) from None
        part = DatasetSamples(self, length=length or 0)
        if len(part):
            try:
                self._refuse_changing(part, may_vary=may_vary)
            finally:
                part.close()
        return part

    def _refuse_changing(self, part: Samples, *, may_vary: bool) -> None:
        """Refuse what is no sample, and samples that are not the same again, so that no training could be resumed."""
        rows = rows_to_see(part, _READ_TWICE)
        # every process reads them, and one of them twice
        keys = [SCORING] * (1 + max(1, self.workers.count)) + ([] if may_vary else [*_OTHERS])
        seen = [(*inputs, *as_tuple(targets)) for inputs, targets in part.batches((rows, key) for key in keys)]
        changed = [key for key, again in zip(keys, seen, strict=True) if not all(map(_is_same, seen[0], again))]
        name = type(self.dataset).__name__
        if SCORING in changed:
            raise DataError(
                f"{name} gives another sample when it is read again: it changes as it is read, is another in each "
                "process that loads, or draws random numbers where nobody can seed them; draw them from torch, "
                "numpy.random or random, or make the generator an attribute of the data set or its transform"
            )
        if changed:
            raise DataError(
                f"{name} makes its samples with random numbers, such as augmented ones; cut in three, not only "
                "training but validation and test would be random, too: give it without these, and the augmentation "
                "as Data.from_dataset(..., transform=), which is of training alone, or give three data sets, "
                "Data.from_dataset(train, validation, test)"
            )


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())


def _refuse_own_choice(loader: DataLoader[Any]) -> None:
    """Refuse a loader that chooses samples; say which of its settings have no effect."""
    ignored = [f"batch_size={loader.batch_size}"] * (loader.batch_size not in (None, 1))
    if isinstance(loader.dataset, IterableDataset):
        readers = f"num_workers={loader.num_workers}, of which one reads a data set that has an order of its own,"
        ignored += ["generator"] * (loader.generator is not None) + [readers] * (loader.num_workers > 1)
    else:
        is_own = type(loader.batch_sampler) not in (BatchSampler, type(None))
        sampler = loader.batch_sampler if is_own else loader.sampler
        if type(sampler) not in (RandomSampler, SequentialSampler):
            raise DataError(
                f"the DataLoader's {type(sampler).__name__} chooses samples, which a search does itself, so that it "
                "can be resumed; leave it out, or give a torch.utils.data.Subset of the samples that you want"
            )
        ignored += ["shuffle"] * isinstance(sampler, RandomSampler)
        ignored += ["generator"] * (loader.generator is not None)
    if ignored:
        warnings.warn(
            f"the DataLoader's {' and '.join(ignored)} without effect: batches are drawn anew, shuffled where the data "
            "set allows it, of as many samples as the training's own batch_size says",
            stacklevel=4,
        )
