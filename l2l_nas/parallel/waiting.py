"""Waiting so that signals, and the failure of another rank, are noticed meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def in_thread(call: Callable[[], Result], check: Callable[[], None] = lambda: None) -> Result:
    """Call what may block in C++, where Python runs no signal handler, in a thread of its own.

    Args:
        call: returns the result.
        check: called every 10 ms meanwhile; what it raises ends the waiting, and the thread is left alone.

    Raises:
        BaseException: what the call raised.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="l2l_nas waits", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.01)
        if thread.is_alive():
            check()
    if errors:
        raise errors[0]
    return results[0]
