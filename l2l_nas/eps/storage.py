"""Where layer states live: in host memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from l2l_nas.eps.state import LayerState


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

    def reading(self, key: str) -> AbstractContextManager[LayerState]:
        """A state's weights, wire copy and buffers, for reading."""

    def writing(self, key: str) -> AbstractContextManager[LayerState]:
        """A state in full; what is changed inside is kept."""

    def expect(self, loads: Iterable[str], updates: Iterable[str]) -> None:
        """Say which states will be read and written next, in order."""


class RamStorage:
    """All states in host memory."""

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

    def reading(self, key: str) -> AbstractContextManager[LayerState]:
        """See `Storage`."""
        return contextlib.nullcontext(self._states[key])

    writing = reading

    def expect(self, loads: Iterable[str], updates: Iterable[str]) -> None:
        """See `Storage`."""
