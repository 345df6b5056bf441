"""Where layer states live: in host memory, or in files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from l2l_nas.eps.optimizers.base import Optimizer
from l2l_nas.eps.state import LayerState, Part
from l2l_nas.errors import SettingError, StateLostError, did_you_mean
from l2l_nas.plugins import is_named, made
from l2l_nas.space.pool import LayerPool

# of this library, by name
STORAGES = ("ram", "file")


@runtime_checkable
class Storage(Protocol):
    """Keeps layer states by key. Different states may be used by several threads at once, one state by one only."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the states that exist, in the order in which they were put."""

    @property
    def is_lasting(self) -> bool:
        """Whether a state's memory stays where it is after it was closed, so that copies from it may run."""

    def put(self, key: str, state: LayerState) -> None:
        """Take over a state, or replace it."""

    def clear(self) -> None:
        """Forget all states."""

    def reading(self, key: str, part: Part = Part.WEIGHTS) -> AbstractContextManager[LayerState]:
        """A part of a state, for reading; the rest of it may hold anything."""

    def writing(self, key: str, part: Part = Part.ALL) -> AbstractContextManager[LayerState]:
        """A part of a state, to be changed; the rest of it may hold anything.

        An error inside leaves the state as it was before. A storage that cannot do so refuses the state until it is put
        again: opening it raises StateLostError. Every storage does that after a StateLostError inside.
        """

    def expect(self, uses: Iterable[tuple[str, Part]]) -> None:
        """Say which states will be opened next, in order: `WEIGHTS` for reading, `ALL` for writing."""


def own_storage(chosen: str | Storage, *, pool: LayerPool, optimizer: Optimizer) -> Storage | None:
    """A storage of the user's own; None for a name of `STORAGES`.

    Args:
        chosen: the storage itself; or `FILE.py:NAME` or `MODULE:NAME` of a class or function that makes one, called
            with `pool` and `optimizer` if it takes them.

    Raises:
        SettingError: no such storage, the name is of something else, or the storage holds states already.
        L2LError: the user's class or function raised something.
    """
    kind = "a storage as l2l_nas.eps.storage.Storage"
    if not isinstance(chosen, str):
        if not isinstance(chosen, Storage):
            raise SettingError(f"relay.storage: {chosen!r} is no name, nor {kind}")
        storage = chosen
    elif chosen in STORAGES:
        return None
    elif not is_named(chosen):
        raise SettingError(f"relay.storage: no '{chosen}'{did_you_mean(chosen, STORAGES)}")
    else:
        storage = made(
            chosen,
            setting="relay.storage",
            offered={"pool": pool, "optimizer": optimizer},
            is_right=lambda result: isinstance(result, Storage),
            kind=kind,
        )
    if storage.keys:
        raise SettingError("relay.storage: it holds states already; give a new one, as a run has its own in its folder")
    return storage


class RamStorage:
    """All states in host memory, always in full. A change that ends half-way costs the state: see `Storage.writing`.

    Attributes:
        changes: grows whenever a state is put, replaced or lost; until then each key has the same state.
    """

    is_lasting = True

    def __init__(self) -> None:
        self._states: dict[str, LayerState] = {}
        self._lost: dict[str, str] = {}  # why a state is refused
        self.changes = 0

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self._states)

    def put(self, key: str, state: LayerState) -> None:
        self._states[key] = state
        self._lost.pop(key, None)
        self.changes += 1

    def clear(self) -> None:
        self._states, self._lost = {}, {}
        self.changes += 1

    def reading(self, key: str, part: Part = Part.WEIGHTS) -> AbstractContextManager[LayerState]:
        return contextlib.nullcontext(self.open(key))

    @contextlib.contextmanager
    def writing(self, key: str, part: Part = Part.ALL) -> Iterator[LayerState]:
        state = self.open(key)
        before = state.writes
        try:
            yield state
        except BaseException as error:
            if StateLostError.by(key, error) is error or state.writes != before:
                self.lose(key, error)
            raise

    def lose(self, key: str, error: BaseException) -> None:
        """Refuse a state from now on, as a change of it ended with this error."""
        self._lost[key] = StateLostError.by(key, error).reason
        self.changes += 1

    def open(self, key: str) -> LayerState:
        """A state, for as long as `changes` stays.

        Raises:
            StateLostError: the state was lost.
        """
        if key in self._lost:
            raise StateLostError(key, self._lost[key])
        return self._states[key]

    def expect(self, uses: Iterable[tuple[str, Part]]) -> None:
        """Nothing is read ahead."""
