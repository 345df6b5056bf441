"""A bound on the gradients that wait on the host for their updates, where updates fall behind the device.

[Note: no deadlock] Beyond the bound a gradient is sent after updates that were issued before it. So a wait is always
for work that was issued earlier; a lane, too, keeps work waiting only for work that was issued before it. Whatever of
all was issued first can go on, and so all of it ends. Where nothing earlier would free memory, as with the first
gradient of a layer that is used twice, a gradient is sent beyond the bound.
"""

from __future__ import annotations

from collections.abc import Mapping

from l2l_nas.relay.lanes import Future


class Staging:
    """Says which updates a gradient waits for before it is sent."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._sent: dict[str, int] = {}  # by state, bytes whose update was not issued yet
        self._updates: list[tuple[Future, int]] = []

    def send(self, sizes: Mapping[str, int], *, newest_first: bool) -> tuple[Future, ...]:
        """Count gradients that are to be sent, in bytes by state; which updates are to be waited for first."""
        self._updates = [(future, size) for future, size in self._updates if not future.is_done]
        total = sum(sizes.values()) + sum(self._sent.values()) + sum(size for _, size in self._updates)
        awaited = []
        while self._updates and total > self.limit_bytes:
            future, size = self._updates.pop(-1 if newest_first else 0)
            total -= size
            awaited.append(future)
        for state, size in sizes.items():
            self._sent[state] = self._sent.get(state, 0) + size
        return tuple(awaited)

    def update(self, state: str, future: Future) -> None:
        """Count an update that was issued: at its end the gradients of its state are free."""
        self._updates.append((future, self._sent.pop(state, 0)))

    def clear(self) -> None:
        self._sent.clear()
        self._updates.clear()
