"""Where layer states live: in host memory, or in files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from l2l_nas.eps.file_storage import FileStorage as FileStorage
from l2l_nas.eps.state import LayerState, Part

STORAGES = ("ram", "file")


class Storage(Protocol):
    """Keeps layer states by key. Different states may be used by several threads at once, one state by one only."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Of the states that exist, in the order in which they were put."""

    @property
    def is_lasting(self) -> bool:
        """Whether a state's memory stays where it is after it was closed, so that copies from it may still run."""

    def put(self, key: str, state: LayerState) -> None:
        """Take over a state, or replace it."""

    def clear(self) -> None:
        """Forget all states."""

    def reading(self, key: str, part: Part = Part.WEIGHTS) -> AbstractContextManager[LayerState]:
        """A part of a state, for reading; the rest of it may hold anything."""

    def writing(self, key: str, part: Part = Part.ALL) -> AbstractContextManager[LayerState]:
        """A part of a state; what is changed in it is kept, the rest of it may hold anything."""

    def expect(self, uses: Iterable[tuple[str, Part]]) -> None:
        """Say which states will be opened next, in order: `WEIGHTS` for reading, `ALL` for writing."""


class RamStorage:
    """All states in host memory, always in full."""

    is_lasting = True

    def __init__(self) -> None:
        self._states: dict[str, LayerState] = {}

    @property
    def keys(self) -> tuple[str, ...]:
        """See `Storage`."""
        return tuple(self._states)

    def put(self, key: str, state: LayerState) -> None:
        """See `Storage`."""
        self._states[key] = state

    def clear(self) -> None:
        """See `Storage`."""
        self._states = {}

    def reading(self, key: str, part: Part = Part.WEIGHTS) -> AbstractContextManager[LayerState]:
        """See `Storage`."""
        return contextlib.nullcontext(self._states[key])

    def writing(self, key: str, part: Part = Part.ALL) -> AbstractContextManager[LayerState]:
        """See `Storage`."""
        return contextlib.nullcontext(self._states[key])

    def expect(self, uses: Iterable[tuple[str, Part]]) -> None:
        """See `Storage`."""
