"""States that several processes of one machine share, in one block of memory.

[Note: shared memory] The block is a file that lies in memory and has no name (`memfd_create`): other processes open it
by the descriptor of the process that made it (`/proc/PID/fd/N`), and it is gone when the last of them ends, however
that ends. Nothing is left in `/dev/shm`, whose size does not matter. Every state of the pool has a fixed offset; what
was never written takes no memory.

[Note: numbers] A process that joins takes the lowest number that no other holds, by a lock that the kernel takes back
when the process ends. Before it works it undoes what the last holder of that number left half written.

[Note: a state at a time] A state is read and written under a lock (see `range_locks.py`), held for as long as the state
is copied or updated, never while something is computed with it. So a reader sees a state as some update left it, never
half of two. Different states may be of different ages: that is what asynchronous training means (Hogwild, Niu et al.,
arXiv 1106.5730, without its races within a state).

[Note: ended while writing] Before a state is changed in place, its bytes are copied to an undo block of the writer, and
the state is marked with that block's number; the mark goes when the change is done. A process that gets the lock of a
marked state knows that the writer was killed, as only then is the lock free. It puts the bytes back, and the state is
what it was before. Where a change raises, the writer itself puts them back. All that was stored by a killed process is
there, in the order in which it was stored.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import queue
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator
from itertools import accumulate

import torch
from torch import Tensor

from l2l_nas.eps.frames import Image
from l2l_nas.eps.layout import align
from l2l_nas.eps.optimizers.base import Optimizer
from l2l_nas.eps.optimizers.groups import rules_of
from l2l_nas.eps.range_locks import RangeLocks, refuse_without_locks
from l2l_nas.eps.state import LayerState, Part, number_versions
from l2l_nas.errors import SpaceError, StorageError
from l2l_nas.space.pool import LayerPool

_WORD = 8
_WAIT_S = 30.0  # for a number that a process which is ending still holds
_UNDOS = 2  # of a process: one state is updated while another gets its buffers
_MARGIN = 64  # in front of an undo block: visits, version, and how many bytes of the state it holds


class _Map:
    """Offsets in bytes. First a table of four words a state, column by column, and two words that count."""

    def __init__(self, pool: LayerPool, optimizer: Optimizer, workers: int) -> None:
        rules = rules_of(pool, optimizer)
        self.images = {key: Image(rules.of(key).layout) for key in pool.states}
        self.sizes = {key: image.end_bytes(Part.ALL) for key, image in self.images.items()}
        self.undo = align((4 * len(self.images) + 2) * _WORD)
        self.undo_bytes = _MARGIN + max(self.sizes.values(), default=0)
        *starts, self.end = accumulate(self.sizes.values(), initial=self.undo + workers * _UNDOS * self.undo_bytes)
        self.starts = dict(zip(self.sizes, starts, strict=True))


class SharedStorage:
    """All states in memory that other processes use too. See the notes above.

    Args:
        optimizer: decides what is stored for the states.
        workers: how many processes use the storage at once, this one among them; all of them say the same.
        address: of a storage that another process of this machine made, to join it; see [Note: numbers].

    Raises:
        SettingError: the platform has no locks between processes.
        SpaceError: the storage to join is of another pool.
        StorageError: there is no memory for the states; or the storage to join is gone, or all its numbers are held.
    """

    is_lasting = False
    is_shared = True

    def __init__(self, pool: LayerPool, *, optimizer: Optimizer, workers: int = 1, address: str = "") -> None:
        refuse_without_locks()
        self._map = _Map(pool, optimizer, workers)
        self._handle = _opened(address) if address else _anonymous_file(self._map.end)
        self._finalizer = weakref.finalize(self, os.close, self._handle)
        if os.fstat(self._handle).st_size != self._map.end:
            raise SpaceError("this pool's states are not those of the storage; build the same pool in each process")
        count = len(self._map.images)
        worker = _hold_number(self._handle, count + 1, workers) if address else 0
        memory = mmap.mmap(self._handle, self._map.end)
        self._block = torch.frombuffer(memory, dtype=torch.uint8)
        words = memoryview(memory)[: (4 * count + 2) * _WORD].cast("q")
        # by state: its number in the order of creation, or 0; visits; version; 1 + the block that undoes a change
        self._created, self._visits, self._version, self._mark = (words[i * count : (i + 1) * count] for i in range(4))
        self._counters = words[4 * count :]  # states that were created; processes that joined
        self._numbers = {key: number for number, key in enumerate(self._map.images)}
        self._locks = RangeLocks(self._handle, count + 1)
        self._states: dict[str, LayerState] = {}
        self._undos: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in range(_UNDOS):
            self._undos.put(worker * _UNDOS + number)
        self._order: tuple[bytes, tuple[str, ...]] = (b"", ())
        if address:
            self.recover(worker)
            number_versions(self._count(1))

    @property
    def address(self) -> str:
        """Where other processes of this machine join it, as long as this one holds it."""
        return f"/proc/{os.getpid()}/fd/{self._handle}"

    @property
    def keys(self) -> tuple[str, ...]:
        created = self._created.tobytes()
        if created != self._order[0]:
            order = sorted((number, key) for key, number in zip(self._numbers, self._created, strict=True) if number)
            self._order = created, tuple(key for _, key in order)
        return self._order[1]

    def put(self, key: str, state: LayerState) -> None:
        with self._locks.held(self._numbers[key], exclusive=True):
            self._put(key, state)

    def put_new(self, key: str, state: LayerState) -> None:
        with self._locks.held(self._numbers[key], exclusive=True):
            if not self._created[self._numbers[key]]:
                self._put(key, state)

    def _put(self, key: str, state: LayerState) -> None:
        number = self._numbers[key]
        order = self._created[number] or self._count(0)
        self._created[number] = self._mark[number] = 0
        block, image = self._bytes(key), self._map.images[key]
        for offset, piece in image.pieces(state):
            block[offset : offset + piece.numel()].copy_(piece)
        self._visits[number], self._version[number] = state.visits, state.version
        self._created[number] = order  # last: a process killed before leaves no state at all

    def _count(self, counter: int) -> int:
        with self._locks.held(len(self._numbers), exclusive=True):
            self._counters[counter] += 1
            return int(self._counters[counter])

    def clear(self) -> None:
        for number in self._numbers.values():
            with self._locks.held(number, exclusive=True):
                self._created[number] = self._mark[number] = 0

    @contextlib.contextmanager
    def reading(self, key: str, part: Part = Part.WEIGHTS) -> Iterator[LayerState]:
        number = self._numbers[key]
        while True:
            with self._locks.held(number, exclusive=False):
                if not self._mark[number]:
                    yield self._open(key)
                    return
            with self._locks.held(number, exclusive=True):
                self._undo(key)

    @contextlib.contextmanager
    def writing(self, key: str, part: Part = Part.ALL) -> Iterator[LayerState]:
        number = self._numbers[key]
        with self._locks.held(number, exclusive=True):
            self._undo(key)
            state = self._open(key)
            undo = self._undos.get()
            try:
                self._remember(undo, key, part)
                self._mark[number] = undo + 1
                yield state
                self._visits[number], self._version[number] = state.visits, state.version
                self._mark[number] = 0
            finally:
                self._undo(key)  # where something was raised
                self._undos.put(undo)

    def expect(self, uses: Iterable[tuple[str, Part]]) -> None:
        """Nothing is read ahead."""

    def recover(self, worker: int) -> None:
        """Undo what a killed worker left half written, so that another process may take its number."""
        for key, number in self._numbers.items():
            if self._mark[number] and (self._mark[number] - 1) // _UNDOS == worker:
                with self._locks.held(number, exclusive=True):
                    self._undo(key)

    def close(self) -> None:
        """Use the memory no more; it is free when all processes are done."""
        self._finalizer()

    def _open(self, key: str) -> LayerState:
        number = self._numbers[key]
        if not self._created[number]:
            raise KeyError(key)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = self._map.images[key].state(self._bytes(key))
        state.visits, state.version = self._visits[number], self._version[number]
        return state

    def _bytes(self, key: str) -> Tensor:
        start = self._map.starts[key]
        return self._block[start : start + self._map.sizes[key]]

    def _undo_block(self, undo: int) -> tuple[Tensor, Tensor]:
        """Three words, and space for the bytes of the largest state."""
        start = self._map.undo + undo * self._map.undo_bytes
        block = self._block[start : start + self._map.undo_bytes]
        return block[: 3 * _WORD].view(torch.int64), block[_MARGIN:]

    def _remember(self, undo: int, key: str, part: Part) -> None:
        number, size = self._numbers[key], self._map.images[key].end_bytes(part)
        words, space = self._undo_block(undo)
        space[:size].copy_(self._bytes(key)[:size])
        words.copy_(torch.tensor([self._visits[number], self._version[number], size]))

    def _undo(self, key: str) -> None:
        """Undo a change of a state that has not ended, if there is one. See [Note: ended while writing]."""
        number = self._numbers[key]
        if not self._mark[number]:
            return
        words, space = self._undo_block(self._mark[number] - 1)
        visits, version, size = words.tolist()
        self._bytes(key)[:size].copy_(space[:size])
        self._visits[number], self._version[number] = visits, version
        self._mark[number] = 0


def _anonymous_file(size: int) -> int:
    """A descriptor of a file in memory without a name."""
    try:
        if hasattr(os, "memfd_create"):
            handle = os.memfd_create("l2l_nas-states", os.MFD_CLOEXEC)
        else:  # macOS: a file on disk, which the system keeps in memory as long as there is some
            with tempfile.TemporaryFile(prefix="l2l_nas-states-") as file:
                handle = os.dup(file.fileno())
        os.ftruncate(handle, max(1, size))
    except OSError as error:
        raise StorageError(
            f"no {size:,} bytes of shared memory ({error.strerror}); free some, or use search.workers=1"
        ) from error
    return handle


def _opened(address: str) -> int:
    try:
        return os.open(address, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(
            f"the weights that trials share are gone ({error.strerror}): their search has ended"
        ) from error


def _hold_number(handle: int, first: int, workers: int) -> int:
    """The lowest number from 1 that no other process holds, held from now on.

    Args:
        first: byte of the file that the lock of number 0 is on.
    """
    import fcntl

    end = time.monotonic() + _WAIT_S
    while True:
        for worker in range(1, workers):
            try:
                fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, first + worker)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):  # POSIX leaves open which of them says "held"
                    raise
                continue
            return worker
        if time.monotonic() > end:
            raise StorageError(f"more than {workers - 1} processes want to share weights; stop others of this search")
        time.sleep(0.01)  # one that ends gives its number back
