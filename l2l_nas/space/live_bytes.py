"""Counts the memory that operations make."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from l2l_nas.space.contents import storage_of
from l2l_nas.space.operations import OperationLog, Phase, tensors_in


class LiveBytes(OperationLog):
    """Counts the storages that operations of this thread make while it is on, until each of them is freed.

    Autograd of a CPU runs its backward in the thread that asks for it, so what it makes is counted too. What other
    threads make (the relay's lanes, which are the host side) is not.

    Args:
        meta: whether tensors without memory count as if they had it.

    Attributes:
        now: bytes alive that were made since it was entered.
        peak: the most there ever were.
        inputs: bytes alive of what a dry run's forward was given.
    """

    def __init__(self, *, meta: bool = False) -> None:
        super().__init__()
        self.now = self.peak = self.inputs = 0
        self._meta = meta
        self._alive: set[int] = set()

    def begin(self, phase: Phase, tensors: Sequence[Tensor]) -> None:
        """Count the inputs of a forward by themselves."""
        for tensor in tensors if phase == "forward" else ():
            storage = tensor.untyped_storage()
            self.inputs += storage.nbytes()
            weakref.finalize(storage, self._input_freed, storage.nbytes())

    def after(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Count what is new in a result: neither an argument nor a view of one."""
        storages = {storage_of(t): t.untyped_storage() for t in _with_storage(result) if self._meta or not t.is_meta}
        made = storages.keys() - self._alive
        if made:
            made -= set(map(storage_of, _with_storage((args, kwargs))))
        for number in made:
            storage = storages[number]
            self._alive.add(number)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._freed, number, storage.nbytes())

    def _freed(self, number: int, size: int) -> None:
        self._alive.discard(number)
        self.now -= size

    def _input_freed(self, size: int) -> None:
        self.inputs -= size


def distinct_bytes(tensors: Iterable[Tensor]) -> int:
    """Memory of tensors, each storage once."""
    storages = {storage_of(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def _with_storage(tree: Any) -> list[Tensor]:
    return [tensor for tensor in tensors_in(tree) if not tensor.is_sparse]
