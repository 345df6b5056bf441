"""Counts the memory that operations make."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the storages that operations of this thread make while it is on, until each of them is freed.

    Autograd of a CPU runs its backward in the thread that asks for it, so what it makes is counted too. What other
    threads make (the relay's lanes, which are the host side) is not.

    Args:
        meta: whether tensors without memory count as if they had it.

    Attributes:
        now: bytes alive that were made since it was entered.
        peak: the most there ever were.
    """

    def __init__(self, *, meta: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._meta = meta
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and count what is new in its result: neither what it was given nor views of that."""
        result = func(*args, **(kwargs or {}))
        fresh = [tensor for tensor in _tensors(result) if self._counts(tensor)]
        given = {_identity(tensor) for tensor in _tensors((args, kwargs))} if fresh else set()
        for tensor in fresh:
            number = _identity(tensor)
            if number not in self._known | given:
                storage = tensor.untyped_storage()
                self._known.add(number)
                self.now += storage.nbytes()
                self.peak = max(self.peak, self.now)
                weakref.finalize(storage, self._over, number, storage.nbytes())
        return result

    def _counts(self, tensor: Tensor) -> bool:
        return (self._meta or not tensor.is_meta) and _identity(tensor) not in self._known

    def _over(self, number: int, size: int) -> None:
        self._known.discard(number)
        self.now -= size


def distinct_bytes(tensors: Iterable[Tensor]) -> int:
    """Memory of tensors, each storage once."""
    storages = {_identity(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def _tensors(values: Any) -> list[Tensor]:
    """Those that have a storage."""
    return [one for one in tree_leaves(values) if isinstance(one, Tensor) and not one.is_sparse]


def _identity(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
