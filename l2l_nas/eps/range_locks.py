"""Locks between processes that a killed process cannot keep: one byte of a file for each.

[Note: whose lock] The kernel gives such a lock (`fcntl`, POSIX 2017, "advisory record locks") to a process, not to a
thread, and takes it back when the process ends, however that ends. So threads of one process first take a lock of their
own. A process would lose all its locks on a file by closing any descriptor of that file; ours is closed last.
"""

from __future__ import annotations

import contextlib
import errno
import sys
import threading
import time
from collections.abc import Iterator

from l2l_nas.errors import SettingError

_PAUSE_S = 0.001


class RangeLocks:
    """So many locks, numbered from 0, between all processes and threads that use the same open file.

    Hold a lock for no longer than it takes to copy or update a state: others wait for it.

    Args:
        handle: of the file; its content does not matter.

    Raises:
        SettingError: the platform has no such locks.
    """

    def __init__(self, handle: int, count: int) -> None:
        refuse_without_locks()
        self._handle = handle
        self._threads = [threading.Lock() for _ in range(count)]

    @contextlib.contextmanager
    def held(self, number: int, *, exclusive: bool) -> Iterator[None]:
        """Hold a lock, alone or together with other processes that do not want it alone."""
        import fcntl

        with self._threads[number]:
            self._lock(number, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            try:
                yield
            finally:
                fcntl.lockf(self._handle, fcntl.LOCK_UN, 1, number)

    def _lock(self, number: int, kind: int) -> None:
        import fcntl

        while True:
            try:
                fcntl.lockf(self._handle, kind, 1, number)
                return
            except OSError as error:
                # The kernel sees that A waits for B and B for A, but not that different threads of A hold and wait.
                if error.errno != errno.EDEADLK:
                    raise
                time.sleep(_PAUSE_S)


def refuse_without_locks() -> None:
    """Raises SettingError: the platform has no such locks."""
    if sys.platform == "win32":
        raise SettingError("several processes share weights by locks that Windows does not have; use search.workers=1")
