"""States that several processes of one machine share, in one block of memory.

[Note: shared memory] The block is a file in memory without a name (`memfd_create`): other processes open it by the
descriptor of the process that made it (`/proc/PID/fd/N`), and it is gone when the last of them ends, however that ends.
Nothing is left in `/dev/shm`, whose size does not matter. Each state has a fixed offset; what was never written takes
no memory.

[Note: locks] Each state has a lock, one byte of the file, held for as long as the state is copied or updated, never
while something is computed with it. So a reader sees a state as some update left it, never half of two. Different
states may be of different ages: that is what asynchronous training means (Hogwild, Niu et al., arXiv 1106.5730, without
its races within a state). The kernel gives such a lock (`fcntl`, POSIX 2017, "advisory record locks") to a process, not
to a thread, and takes it back when the process ends, however that ends. So threads of one process first take a lock of
their own. A process would lose all its locks on a file by closing any descriptor of that file; ours is closed last.

[Note: numbers] A process that joins takes the lowest number that no other holds, by a lock of the same kind. Before it
works it undoes what the last holder of that number left half written.

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
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from itertools import accumulate

import torch

from l2l_nas.eps.frames import Image
from l2l_nas.eps.layout import align
from l2l_nas.eps.optimizers.base import Optimizer
from l2l_nas.eps.optimizers.groups import rules_of
from l2l_nas.eps.state import LayerState, Part, number_versions
from l2l_nas.errors import SettingError, SpaceError, StorageError
from l2l_nas.space.pool import LayerPool

_WORD = 8
_WAIT_S = 30.0  # for a number that a process which is ending still holds
_PAUSE_S = 0.001  # before a lock is asked for again
_UNDOS = 2  # of a process: one state is updated while another gets its buffers
_MARGIN = 64  # in front of an undo block: visits, version, and how many bytes of the state it holds


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
        rules = rules_of(pool, optimizer)
        self._images = {key: Image(rules.of(key).layout) for key in pool.states}
        self._numbers = {key: number for number, key in enumerate(self._images)}
        count, num_undos = len(self._images), workers * _UNDOS
        sizes = [image.end_bytes(Part.ALL) for image in self._images.values()]
        # a table of four words a state, column by column, and two words that count; undo blocks; the states
        start, undo_bytes = align((4 * count + 2) * _WORD), _MARGIN + max(sizes, default=0)
        *starts, end = accumulate(sizes, initial=start + num_undos * undo_bytes)
        self._handle = _opened(address) if address else _anonymous_file(end)
        self._finalizer = weakref.finalize(self, os.close, self._handle)
        if os.fstat(self._handle).st_size != end:
            raise SpaceError("this pool's states are not those of the storage; build the same pool in each process")
        worker = _hold_number(self._handle, count + 1, workers) if address else 0
        memory = mmap.mmap(self._handle, end)
        words = memoryview(memory)[: (4 * count + 2) * _WORD].cast("q")
        # by state: its number in the order of creation, or 0; visits; version; 1 + the block that undoes a change
        self._created, self._visits, self._version, self._mark = (words[i * count : (i + 1) * count] for i in range(4))
        self._counters = words[4 * count :]  # states that were created; processes that joined
        block = torch.frombuffer(memory, dtype=torch.uint8)
        self._blocks = {
            key: block[first : first + size] for key, first, size in zip(self._images, starts, sizes, strict=True)
        }
        # three words, and space for the bytes of the largest state
        undos = (block[start + number * undo_bytes :][:undo_bytes] for number in range(num_undos))
        self._undo_blocks = [(undo[: 3 * _WORD].view(torch.int64), undo[_MARGIN:]) for undo in undos]
        self._threads = [threading.Lock() for _ in range(count + 1)]
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
        with self._held(self._numbers[key]):
            self._put(key, state)

    def put_new(self, key: str, state: LayerState) -> None:
        with self._held(self._numbers[key]):
            if not self._created[self._numbers[key]]:
                self._put(key, state)

    def _put(self, key: str, state: LayerState) -> None:
        number, block = self._numbers[key], self._blocks[key]
        order = self._created[number] or self._count(0)
        self._created[number] = self._mark[number] = 0
        for offset, piece in self._images[key].pieces(state):
            block[offset : offset + piece.numel()].copy_(piece)
        self._visits[number], self._version[number] = state.visits, state.version
        self._created[number] = order  # last: a process killed before leaves no state at all

    def _count(self, counter: int) -> int:
        with self._held(len(self._numbers)):
            self._counters[counter] += 1
            return int(self._counters[counter])

    def clear(self) -> None:
        for number in self._numbers.values():
            with self._held(number):
                self._created[number] = self._mark[number] = 0

    @contextlib.contextmanager
    def reading(self, key: str, part: Part = Part.WEIGHTS) -> Iterator[LayerState]:
        number = self._numbers[key]
        while True:
            with self._held(number, exclusive=False):
                if not self._mark[number]:
                    yield self._open(key)
                    return
            with self._held(number):
                self._undo(key)

    @contextlib.contextmanager
    def writing(self, key: str, part: Part = Part.ALL) -> Iterator[LayerState]:
        number = self._numbers[key]
        with self._held(number):
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
                with self._held(number):
                    self._undo(key)

    def close(self) -> None:
        """Use the memory no more; it is free when all processes are done."""
        self._finalizer()

    @contextlib.contextmanager
    def _held(self, number: int, *, exclusive: bool = True) -> Iterator[None]:
        """Hold a lock, alone or together with other processes that do not want it alone. See [Note: locks]."""
        import fcntl

        with self._threads[number]:
            while True:
                try:
                    fcntl.lockf(self._handle, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH, 1, number)
                    break
                except OSError as error:
                    # The kernel sees that A waits for B and B for A, but not that different threads hold and wait.
                    if error.errno != errno.EDEADLK:
                        raise
                    time.sleep(_PAUSE_S)
            try:
                yield
            finally:
                fcntl.lockf(self._handle, fcntl.LOCK_UN, 1, number)

    def _open(self, key: str) -> LayerState:
        number = self._numbers[key]
        if not self._created[number]:
            raise KeyError(key)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = self._images[key].state(self._blocks[key])
        state.visits, state.version = self._visits[number], self._version[number]
        return state

    def _remember(self, undo: int, key: str, part: Part) -> None:
        number, size = self._numbers[key], self._images[key].end_bytes(part)
        words, space = self._undo_blocks[undo]
        space[:size].copy_(self._blocks[key][:size])
        words.copy_(torch.tensor([self._visits[number], self._version[number], size]))

    def _undo(self, key: str) -> None:
        """Undo a change of a state that has not ended, if there is one. See [Note: ended while writing]."""
        number = self._numbers[key]
        if not self._mark[number]:
            return
        words, space = self._undo_blocks[self._mark[number] - 1]
        visits, version, size = words.tolist()
        self._blocks[key][:size].copy_(space[:size])
        self._visits[number], self._version[number] = visits, version
        self._mark[number] = 0


def refuse_without_locks() -> None:
    """Raises SettingError: the platform has no locks between processes."""
    if sys.platform == "win32":
        raise SettingError("several processes share weights by locks that Windows does not have; use search.workers=1")


def _anonymous_file(size: int) -> int:
    """A descriptor of a file in memory without a name."""
    try:
        if hasattr(os, "memfd_create"):
            handle = os.memfd_create("l2l_nas-states", os.MFD_CLOEXEC)
        else:  # macOS: a file on disk, which the system keeps in memory as long as there is some
            with tempfile.TemporaryFile(prefix="l2l_nas-states-") as file:
                handle = os.dup(file.fileno())
        os.ftruncate(handle, size)
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
    """The lowest number from 1 that no other process holds, held from now on; number 0 has its lock on byte `first`."""
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
