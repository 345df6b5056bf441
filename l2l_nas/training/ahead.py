"""Batches loaded ahead by worker processes, in the order in which they are asked for."""

from __future__ import annotations

import contextlib
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from l2l_nas.errors import DataError, L2LError, described, user_code
from l2l_nas.training.samples import Loaded, Wanted

# batches that each process has ready, at most
_PREFETCHED = 2


@dataclass(frozen=True)
class _Refusal:
    """An error on its way from a worker process: torch would make a traceback of many lines of it."""

    kind: type[L2LError]
    text: str


class _Jobs(Dataset[Any]):
    """What a worker process does: a job is a batch."""

    def __init__(self, load: Callable[[Wanted], Loaded], dataset: object, begin: Callable[[int], None] | None) -> None:
        self._load, self._dataset, self._own = load, dataset, begin
        self._refusal: _Refusal | None = None

    def begin(self, number: int) -> None:
        """What a process does first; what goes wrong is reported with its first job."""
        # by name: a file descriptor is handed over through a connection of its own, 1 ms a tensor
        torch.multiprocessing.set_sharing_strategy("file_system")
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for the process that asks for batches
        if self._own is None:
            return
        # the user's function finds the user's data set: torch's own way to say that refuses assignments
        object.__setattr__(get_worker_info(), "dataset", self._dataset)
        try:
            with user_code("the DataLoader's worker_init_fn", DataError):
                self._own(number)
        except L2LError as error:
            self._refusal = _Refusal(type(error), str(error))

    def __getitem__(self, wanted: Wanted) -> Loaded | _Refusal:
        if self._refusal is not None:
            return self._refusal
        try:
            return self._load(wanted)
        except L2LError as error:
            return _Refusal(type(error), str(error))


class _Order:
    """The jobs of the iteration that begins next."""

    wanted: Iterable[Wanted] = ()

    def __iter__(self) -> Iterator[Wanted]:
        return iter(self.wanted)


class Ahead:
    """Worker processes of one part of the data: they start with the first batch and stay until `close`.

    Args:
        load: a batch, as any process computes it.
        dataset: what `begin` finds as `torch.utils.data.get_worker_info().dataset`.
        workers: processes.
        begin: called in each with its number, as a `DataLoader`'s `worker_init_fn`.
    """

    def __init__(
        self,
        load: Callable[[Wanted], Loaded],
        dataset: object = None,
        *,
        workers: int,
        begin: Callable[[int], None] | None = None,
    ) -> None:
        self._load = load
        self._jobs = _Jobs(load, dataset, begin)
        self._workers = workers
        self._order = _Order()
        self._loader: DataLoader[Any] | None = None
        self._is_busy = False

    def batches(self, wanted: Iterable[Wanted]) -> Iterator[Loaded]:
        """Batch after batch. While one iteration is under way, another one loads in this process.

        Raises:
            DataError: as loading raises, or a worker process ended.
        """
        if self._is_busy or not self._workers:
            yield from map(self._load, wanted)
            return
        self._is_busy = True
        try:
            self._order.wanted = wanted
            yield from map(_opened, self._begun())
        except (RuntimeError, OSError, EOFError) as error:  # what the data set raises is a DataError by now
            if isinstance(error, RuntimeError) and "DataLoader worker" not in str(error):
                raise
            if not isinstance(error, RuntimeError):
                _await_signal()
            self.close()
            raise DataError(f"a process that loads data ended: {described(error)}") from None
        finally:
            self._is_busy = False

    def _begun(self) -> Iterator[Any]:
        if self._loader is None:
            self._loader = DataLoader(
                self._jobs,
                sampler=self._order,
                batch_size=None,
                collate_fn=_as_it_is,
                num_workers=self._workers,
                prefetch_factor=_PREFETCHED,
                persistent_workers=True,
                worker_init_fn=self._jobs.begin,
                generator=torch.Generator(),  # the global one is the user's
            )
        with warnings.catch_warnings():
            # more processes than cores, and a fork beside threads, which do nothing meanwhile
            warnings.filterwarnings("ignore", category=UserWarning, message="This DataLoader will create")
            warnings.filterwarnings("ignore", category=DeprecationWarning, message="This process .* is multi-threaded")
            return iter(self._loader)

    def close(self) -> None:
        """End the processes."""
        self._loader = None  # the last reference: torch ends them with its iterator


def _await_signal() -> None:
    """Torch raises from a signal that a process ended; it comes after the connection broke, and is to come here."""
    with contextlib.suppress(RuntimeError):
        for _ in range(100):
            time.sleep(0.01)


def _as_it_is(batch: Any) -> Any:
    return batch


def _opened(batch: Loaded | _Refusal) -> Loaded:
    if isinstance(batch, _Refusal):
        raise batch.kind(batch.text)
    return batch
