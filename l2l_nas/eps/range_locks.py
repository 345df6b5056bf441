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

    None is for waiting long: hold one for as long as a state is copied or updated.

    Args:
        handle: of the file; its content does not matter.
        count: how many.

    Raises:
        SettingError: the platform has no such locks.
    """

    def __init__(self, handle: int, count: int) -> None:
        refuse_without_locks()
        self._handle = handle
        self._threads = [threading.Lock() for _ in range(count)]

    @contextlib.contextmanager
    def held(self, number: int, *, exclusive: bool) -> Iterator[None]:
        """Hold a lock: alone, or with other processes that do not want it alone either."""
        import fcntl

        with self._threads[number]:
            _take(self._handle, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH, number)
            try:
                yield
            finally:
                fcntl.lockf(self._handle, fcntl.LOCK_UN, 1, number)


def refuse_without_locks() -> None:
    """Say so where there are no such locks.

    Raises:
        SettingError: there are none.
    """
    if sys.platform == "win32":
        raise SettingError("several processes share weights by locks that Windows does not have; use search.workers=1")


def _take(handle: int, kind: int, number: int) -> None:
    import fcntl

    while True:
        try:
            fcntl.lockf(handle, kind, 1, number)
            return
        except OSError as error:
            # The kernel sees that A waits for B and B for A, but not that different threads of A hold and wait.
            if error.errno != errno.EDEADLK:
                raise
            time.sleep(_PAUSE_S)
