"""States in files: a pool larger than memory.

Host memory is a few frames, each as large as the largest state so far; a state passes through one of them when it is
opened. A thread of its own reads ahead what the relay said it will open (`expect`): positioned reads into the frames.

[Note: the page cache] The system's page cache keeps the states that were made first, as many as half of the memory
holds that was free then. The others pass it by: read and written through it, they would push each other out before they
come again, and cost two copies and the making and clearing of pages for each use, on the cores that the layers want.

[Note: one file a state] Each state has a file of its own, opened for each read and write (20 microseconds): the number
of open files does not grow with the pool, a state that is replaced by a larger one leaves no hole, and a file system
that locks a file while it is written (XFS does, against readers too) does not hold up reading ahead of other states.

[Note: write volume] An update writes its state once: weights, moments, and 4 bytes a parameter tensor for step counts.
So a step writes, for each trained parameter, 12 bytes with AdamW, 8 with SGD with momentum, 4 without, in every
precision. A layer whose forward changes buffers writes these alone once more a visit. A step reads 4 bytes a parameter
for each load that the frames do not spare, and the rest (AdamW: 8) when the update comes. Weights in bf16 and fp16 are
not stored but rounded from the masters, which costs 2 bytes of reading a parameter and load, and saves 2 of writing.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch

from l2l_nas.arguments import check_count, check_path
from l2l_nas.eps import scratch
from l2l_nas.eps.frames import Frame, FrameTable, Image
from l2l_nas.eps.host import free_memory_bytes
from l2l_nas.eps.state import LayerState, Part
from l2l_nas.errors import StateLostError, StorageError

FRAMES = 4  # how many states are in memory at once, if nothing else is said
_MOST_FRAMES = 10_000
_CACHED_SHARE = 0.5  # of the free memory: layers, other processes and what is not written yet want some, too


@dataclass
class _Record:
    """A state in a file."""

    path: Path
    image: Image
    is_direct: bool  # bypasses the page cache; see [Note: the page cache]
    visits: int
    version: int
    is_written: bool = False  # the file is complete
    failure: str = ""  # why the state cannot be used any more

    @property
    def cached_bytes(self) -> int:
        return 0 if self.is_direct else self.image.end_bytes(Part.ALL)

    def fail(self, error: BaseException) -> None:
        is_named = isinstance(error, StorageError)
        self.failure = str(error) if is_named else f"{self.path}: was not written whole ({error!r})"


class FileStorage:
    """All states in files. These are scratch, not a checkpoint: they are deleted by `close`, or with this object.

    Only the part that a state is opened for is filled, and a state may be used only while it is open. A change that
    raises is not written. A changed state that cannot be written is lost: it is refused until it is replaced. A read
    ahead of need that fails is tried again where the state is opened, and raised there.

    Args:
        folder: made if it is missing; a folder with a name of its own is made inside.
        frames: how many states are in memory at once. At most three are in use (one is loaded, one updated, one gets
            its buffers); further ones are filled ahead.
        cached_bytes: of files that the system's page cache may keep; None: half of the memory that is free now.
        sharers: how many processes share that half, such as ranks.

    Attributes:
        bytes_written: to files since the beginning.
        misses: how often a state was opened that had not been read ahead.

    Raises:
        SettingError: no frames.
        StorageError: the folder cannot be made or written; in each method, a file was deleted, cut short, or cannot be
            read or written, as on a full disk.
    """

    is_lasting = False

    def __init__(
        self, folder: Path, *, frames: int = FRAMES, cached_bytes: int | None = None, sharers: int = 1
    ) -> None:
        check_count("FileStorage: frames", frames, least=1, most=_MOST_FRAMES)
        check_count("FileStorage: sharers", sharers, least=1)
        folder = check_path("FileStorage: folder", folder)
        if cached_bytes is not None:
            check_count("FileStorage: cached_bytes", cached_bytes)
        # what is left of them
        if cached_bytes is None:
            cached_bytes = int(_CACHED_SHARE * free_memory_bytes()) // sharers
        self._cached_bytes = cached_bytes
        self._reader = _ReadAhead(scratch.Scratch(folder), frames)
        self._table, self._records, self._changed = self._reader.table, self._reader.records, self._reader.changed
        self.bytes_written = self.misses = 0
        self._finalizer = weakref.finalize(self, self._reader.close)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._records)

    @property
    def folder(self) -> Path:
        return self._reader.folder.folder

    @property
    def bytes_read(self) -> int:
        return self._reader.bytes_read

    def put(self, key: str, state: LayerState) -> None:
        with self._changed:
            self._reader.refuse_if_closed()
            self._vacate(key)
            old = self._records.get(key)
            if old is not None:
                self._cached_bytes += old.cached_bytes
            image = Image(state.layout)
            is_direct = image.end_bytes(Part.ALL) > self._cached_bytes
            if is_direct:
                image = Image(state.layout, scratch.PAGE_BYTES)
            size = image.end_bytes(Part.ALL)
            path = old.path if old else self._reader.folder.new_path(key)
            record = self._records[key] = _Record(path, image, is_direct, state.visits, state.version)
            self._cached_bytes -= record.cached_bytes
            self._reader.largest_bytes = max(self._reader.largest_bytes, size)
        try:
            scratch.create(path, size)
            for offset, block in image.pieces(state):
                scratch.write_from(path, block, offset, is_direct=is_direct)
        except BaseException as error:
            record.fail(error)
            with self._changed:
                if old is None:
                    del self._records[key]
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            raise
        finally:
            with self._changed:
                record.is_written = True
                self.bytes_written += 0 if record.failure else size
                self._changed.notify_all()

    def clear(self) -> None:
        with self._changed:
            self._table.agenda.clear()
            for key in self._records:
                self._vacate(key)
            records = list(self._records.values())
            self._records.clear()
            self._cached_bytes += sum(record.cached_bytes for record in records)
            self._reader.largest_bytes = 0
        for record in records:
            with contextlib.suppress(OSError):
                record.path.unlink(missing_ok=True)

    def reading(self, key: str, part: Part = Part.WEIGHTS) -> AbstractContextManager[LayerState]:
        return self._opened(key, part, writes=False)

    def writing(self, key: str, part: Part = Part.ALL) -> AbstractContextManager[LayerState]:
        """See `Storage`. The part is written back at the end, whole."""
        return self._opened(key, part, writes=True)

    def expect(self, uses: Iterable[tuple[str, Part]]) -> None:
        """See `Storage`. What the call before named and was not opened yet still counts."""
        self._reader.expect(list(uses))

    def close(self) -> None:
        """Delete all files and end the thread. States cannot be opened any more."""
        self._finalizer()

    def _vacate(self, key: str) -> None:
        while (frame := self._table.find(key)) is not None:
            if frame.is_idle:
                self._table.empty(frame)
            else:
                self._wait_for(frame)

    @contextlib.contextmanager
    def _opened(self, key: str, part: Part, *, writes: bool) -> Iterator[LayerState]:
        frame, record = self._acquire(key, part, writes=writes)
        assert frame.state is not None
        try:
            yield frame.state
            if writes:
                self._write_back(frame, record, part)
        except BaseException as error:
            if writes:
                with self._changed:
                    frame.state, frame.filled_bytes = None, 0  # the file has what it was before
                lost = StateLostError.by(key, error)
                if lost is error:
                    record.failure = lost.reason
            raise
        finally:
            self._reader.release(frame, reads=not writes)

    def _acquire(self, key: str, part: Part, *, writes: bool) -> tuple[Frame, _Record]:
        """The frame with a state, filled as far as needed; held for writing, or with this thread among its readers."""
        with self._changed:
            self._table.agenda.meet(key, part)
            frame, record = self._hold(key, writes=writes)
            self.misses += frame.filled_bytes < record.image.end_bytes(part)
        try:
            self._reader.fill(frame, record, part)
        except BaseException:
            self._reader.release(frame)
            raise
        with self._changed:
            self._table.touch(frame)
            if not writes:
                frame.holder = None
                frame.readers.append(threading.get_ident())
            self._changed.notify_all()
        return frame, record

    def _hold(self, key: str, *, writes: bool) -> tuple[Frame, _Record]:
        """Wait for a frame for a state, and hold it. See [Note: one frame a state]."""
        while True:
            self._reader.refuse_if_closed()
            record = self._records[key]
            if not record.is_written:
                self._changed.wait()
                continue
            if record.failure:
                raise StateLostError(key, record.failure)
            present = self._table.find(key)
            frame = present or self._table.assign(key)
            if frame is not None and (frame.is_idle or (frame.holder is None and not writes)):
                frame.holder = threading.get_ident()
                return frame, record
            self._wait_for(present)

    def _wait_for(self, frame: Frame | None) -> None:
        assert not self._table.stuck(frame), "a thread waits for a state that it has open itself"
        self._changed.wait()

    def _write_back(self, frame: Frame, record: _Record, part: Part) -> None:
        assert frame.state is not None
        end = record.image.end_bytes(part)
        record.visits, record.version = frame.state.visits, frame.state.version
        try:
            scratch.write_from(record.path, frame.block[:end], 0, is_direct=record.is_direct)
        except BaseException as error:
            record.fail(error)
            raise
        with self._changed:
            self.bytes_written += end


class _ReadAhead:
    """Fills frames from files, in a thread of its own ahead of need. It does not keep the storage alive.

    `changed` is the lock of everything here, notified when a frame or a record changed; files are read and written
    outside of the lock.
    """

    def __init__(self, folder: scratch.Scratch, num_frames: int) -> None:
        self.folder = folder
        self.table = FrameTable(num_frames)
        self.records: dict[str, _Record] = {}
        self.bytes_read = self.largest_bytes = 0
        self.changed = threading.Condition()
        self.thread: threading.Thread | None = None
        self._is_closed = False

    def refuse_if_closed(self) -> None:
        if self._is_closed:
            raise StorageError(f"{self.folder.folder}: this storage was closed; make a new one")

    def fill(self, frame: Frame, record: _Record, part: Part) -> None:
        """Read what is missing of a part into a frame that this thread holds."""
        if frame.state is None:
            if frame.block.numel() < record.image.end_bytes(Part.ALL):
                frame.block = torch.empty(0, dtype=torch.uint8)  # the old block goes first
                frame.block = scratch.page_aligned(self.largest_bytes)
            state = record.image.state(frame.block)
            state.visits, state.version = record.visits, record.version
            frame.state = state
        start, end = frame.filled_bytes, record.image.end_bytes(part)
        if start < end:
            scratch.read_into(record.path, frame.block[start:end], start, is_direct=record.is_direct)
            frame.filled_bytes = end
            with self.changed:
                self.bytes_read += end - start

    def release(self, frame: Frame, *, reads: bool = False) -> None:
        with self.changed:
            if reads:
                frame.readers.remove(threading.get_ident())
            else:
                frame.holder = None
            self.changed.notify_all()

    def expect(self, uses: Iterable[tuple[str, Part]]) -> None:
        with self.changed:
            self.refuse_if_closed()
            self.table.agenda.extend(uses)
            if self.thread is None:
                self.thread = threading.Thread(target=self._read_ahead, name="l2l_nas read-ahead", daemon=True)
                self.thread.start()
            self.changed.notify_all()

    def _read_ahead(self) -> None:
        """The thread's work: fill frames with what comes next, until the storage is closed."""
        while True:
            with self.changed:
                while not self._is_closed and (job := self._find()) is None:
                    self.changed.wait()
                if self._is_closed:
                    return
                assert job is not None
                frame, record, part = job
                frame.holder = threading.get_ident()
            try:
                self.fill(frame, record, part)
            except Exception:
                # whoever opens the state meets the same error, or none any more; here it is not tried again
                with self.changed:
                    self.table.agenda.meet(str(frame.key), part)
            finally:
                self.release(frame)

    def _find(self) -> tuple[Frame, _Record, Part] | None:
        """The next use to come that is not in a frame, if some frame holds only what is needed later than that."""
        for number, (key, part) in self.table.agenda.ahead():
            record = self.records.get(key)
            if record is None or not record.is_written or record.failure:
                continue
            frame = self.table.find(key)
            if frame is None:
                frame = self.table.assign(key, later_than=number)
                return (frame, record, part) if frame is not None else None
            if frame.filled_bytes < record.image.end_bytes(part) and frame.holder is None:
                return frame, record, part
        return None

    def close(self) -> None:
        with self.changed:
            self._is_closed = True
            thread, self.thread = self.thread, None
            self.changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self.folder.close()
