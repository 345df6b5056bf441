"""Batches loaded ahead by worker processes, in the order in which they are asked for.

[Note: who reads] Where processes load, nobody else reads the data set: not even a check reads a sample in the process
that asks. So that process opens nothing that the others would share, and what a `worker_init_fn` does to the data set
is done wherever it is read. Files that were open before are opened anew in each process: two that share one also share
the place in it, and one would read what the other has sought.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import itertools
import multiprocessing
import os
import pickle
import signal
import stat
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from l2l_nas.errors import DataError, L2LError, described, user_code
from l2l_nas.space.contents import contents
from l2l_nas.training.samples import MOST_HELD, Loaded, Wanted

# batches that each process has ready, at most
_PREFETCHED = 2


@dataclass(frozen=True)
class _Refusal:
    """An error on its way from a worker process: torch would make a traceback of many lines of it."""

    kind: type[L2LError]
    text: str


@dataclass(frozen=True)
class Workers:
    """Processes that load, as a `DataLoader` has them."""

    count: int = 0  # 0: who asks for a batch loads it
    begin: Callable[[int], None] | None = None  # called in each with its number: the `worker_init_fn`
    context: Any = None  # how they are started: the `multiprocessing_context`
    timeout_s: float = 0  # for one batch; 0 waits for ever

    @property
    def one(self) -> Workers:
        return replace(self, count=min(1, self.count))


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
        # the user's code finds the user's data set: torch's own way to say that refuses assignments
        object.__setattr__(get_worker_info(), "dataset", self._dataset)
        try:
            _open_anew(_files(self._dataset))
            if self._own is not None:
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


def _files(dataset: object) -> set[int]:
    """Descriptors of the open files that a data set is seen to hold."""
    held = itertools.islice(contents(dataset, "", opaque=False), MOST_HELD)
    found = {number for _, item in held if isinstance(item, io.IOBase) and (number := _descriptor(item)) is not None}
    return found - {0, 1, 2}


def _descriptor(file: io.IOBase) -> int | None:
    try:
        return file.fileno()
    except (OSError, ValueError):
        return None  # in memory, or closed


def _open_anew(held: Collection[int]) -> None:
    """Give this process a place of its own in every file that it inherited for reading. See [Note: who reads].

    `held` are the descriptors of the data set; others may be a log that all processes write to.
    """
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            flags = fcntl.fcntl(number, fcntl.F_GETFL)
        except OSError:
            continue  # that of the listing itself, which is closed by now
        is_read = flags & os.O_ACCMODE == os.O_RDONLY
        # what is only written to has its place kept for all: each process would write over what others wrote
        is_wanted = is_read or (number in held and flags & os.O_ACCMODE == os.O_RDWR)
        if number <= 2 or not is_wanted or not stat.S_ISREG(os.fstat(number).st_mode):
            continue
        try:
            anew = os.open(f"/proc/self/fd/{number}", flags & ~os.O_TMPFILE)
        except OSError as error:
            if number not in held:
                continue  # nobody is seen to read it
            raise DataError(
                f"{os.readlink(f'/proc/self/fd/{number}')} was opened before the processes that load were started, and "
                f"cannot be opened anew in each ({described(error)}); open it at the first sample, or in worker_init_fn"
            ) from None
        os.lseek(anew, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(anew, number, inheritable=False)
        os.close(anew)


class _Order:
    """The jobs of the iteration that begins next."""

    wanted: Iterable[Wanted] = ()

    def __iter__(self) -> Iterator[Wanted]:
        return iter(self.wanted)


class Ahead:
    """Worker processes of one part of the data: they start with the first batch and stay until `close`.

    Args:
        load: a batch, as any process computes it; what it holds can be handed to another process.
        dataset: what a process finds as `torch.utils.data.get_worker_info().dataset`.
    """

    def __init__(self, load: Callable[[Wanted], Loaded], dataset: object = None, *, workers: Workers) -> None:
        self._load, self._dataset, self._workers = load, dataset, workers
        self._jobs = _Jobs(load, dataset, workers.begin)
        self._order = _Order()
        self._loader: DataLoader[Any] | None = None
        self._beside: Ahead | None = None
        self._is_busy = False

    @property
    def is_begun(self) -> bool:
        return self._loader is not None

    def batch(self, wanted: Wanted) -> Loaded:
        [found] = self.batches([wanted])
        return found

    def batches(self, wanted: Iterable[Wanted]) -> Iterator[Loaded]:
        """Batch after batch. While one iteration is under way, one more process loads what another one wants.

        Raises:
            DataError: as loading raises, or a worker process ended.
        """
        if not self._workers.count:
            yield from map(self._load, wanted)
            return
        if self._is_busy:
            if self._beside is None:
                self._beside = Ahead(self._load, self._dataset, workers=self._workers.one)
            yield from self._beside.batches(wanted)
            return
        self._is_busy = True
        try:
            self._order.wanted = wanted
            yield from map(_opened, self._begun())
        except (RuntimeError, OSError, EOFError) as error:  # what the data set raises is a DataError by now
            if isinstance(error, RuntimeError) and "DataLoader" not in str(error):
                raise
            if not isinstance(error, RuntimeError):
                _await_signal()
            self.close()
            raise DataError(f"a process that loads data ended: {described(error)}") from None
        finally:
            self._is_busy = False
            self._order.wanted = ()  # who asks may hold this object: processes end with its last reference

    def _begun(self) -> Iterator[Any]:
        if multiprocessing.current_process().daemon:
            raise DataError(
                "processes that load data cannot be started from a daemonic process, such as one of a "
                "multiprocessing.Pool; give num_workers=0"
            )
        if self._loader is None:
            self._loader = DataLoader(
                self._jobs,
                sampler=self._order,
                batch_size=None,
                collate_fn=_as_it_is,
                num_workers=self._workers.count,
                multiprocessing_context=self._workers.context,
                timeout=self._workers.timeout_s,
                prefetch_factor=_PREFETCHED,
                persistent_workers=True,
                worker_init_fn=self._jobs.begin,
                generator=torch.Generator(),  # the global one is the user's
            )
        with warnings.catch_warnings():
            # more processes than cores, and a fork beside threads, which do nothing meanwhile
            warnings.filterwarnings("ignore", category=UserWarning, message="This DataLoader will create")
            warnings.filterwarnings("ignore", category=DeprecationWarning, message="This process .* is multi-threaded")
            warnings.filterwarnings("ignore", category=UserWarning, message="Got pickle error")  # it is raised, too
            try:
                return iter(self._loader)
            except (pickle.PicklingError, TypeError, AttributeError) as error:
                self._loader = None
                raise DataError(
                    f"the data set cannot be handed to a process that loads it: {described(error)}; make what cannot "
                    "be handed over in worker_init_fn or at the first sample"
                ) from None

    def close(self) -> None:
        self._loader = None  # the last reference: torch ends them with its iterator
        if self._beside is not None:
            self._beside.close()


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
