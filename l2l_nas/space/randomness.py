"""Refuses forwards that draw from generators of the process: their recompute could not draw the same numbers again.

[Note: who drew] Python's `random` and numpy's global generator belong to all threads. That a forward changed their
states is proved only where no other thread runs. Where one does, the forward runs once more, watched: Python says which
of its generator's methods this thread calls, and numpy takes a lock before it draws. Nothing is put back: that would
have other threads draw their numbers again. What is not seen is Python's generator called from C, as by
`map(random.random, ...)`, while another thread draws; a recompute that differs is refused all the same.
"""

from __future__ import annotations

import pickle
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import numpy as np
import torch

from l2l_nas.errors import SpaceError

T = TypeVar("T")

_PYTHON, _NUMPY = "Python's random", "numpy.random"
_NUMPY_RANDOM: Any = np.random  # whose stubs lack its functions for bit generators
_OWNER: Any = random.random.__self__  # type: ignore[attr-defined]  # of the module's functions


def drawing_nothing(run: Callable[[], T], *, whose: str = "its") -> T:
    """What a forward gives that draws from neither generator.

    Args:
        run: the forward; where other threads draw as well, it runs once more.
        whose: forward it is, for the error.

    Raises:
        SpaceError: it draws. What `run` raises passes.
    """
    before, is_alone = _states(), _is_alone()
    result = run()
    drawn = [name for name, state in _states().items() if state != before[name]]
    if drawn and not (is_alone and _is_alone()):
        result, by_this_thread = _watched(run)
        drawn = [name for name in drawn if name in by_this_thread]
    if drawn:
        raise SpaceError(
            f"{whose} forward draws from {drawn[0]}, which gives other numbers where the backward runs it again; use "
            "torch's, such as torch.rand(())"
        )
    return result


def generators_of(device: torch.device | str) -> tuple[torch.Generator, ...]:
    """Those that layers on a device draw from: the host's, and the device's own."""
    device = torch.device(device)
    if device.type in ("meta", "cpu"):
        return (torch.default_generator,)
    module = torch.get_device_module(device)
    present = module.current_device()  # which also starts CUDA, that has no generators before
    return torch.default_generator, module.default_generators[present if device.index is None else device.index]


@contextmanager
def preserved_generators(device: torch.device | str) -> Iterator[None]:
    """Leave the random numbers of the host, and those of a device, as they were."""
    states = [(generator, generator.get_state()) for generator in generators_of(device)]
    try:
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)


def _is_alone() -> bool:
    return len(sys._current_frames()) == 1


def _states() -> dict[str, object]:
    return {_PYTHON: random.getstate(), _NUMPY: pickle.dumps(np.random.get_state(legacy=False))}


def _watched(run: Callable[[], T]) -> tuple[T, set[str]]:
    """What a forward gives, and which generators this thread draws from meanwhile."""
    drawn: set[str] = set()
    thread = threading.get_ident()

    def note_python(frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and getattr(called, "__self__", None) is _OWNER and called.__name__ != "getstate":
            drawn.add(_PYTHON)

    def note_numpy() -> None:
        if threading.get_ident() == thread:
            drawn.add(_NUMPY)

    original = _NUMPY_RANDOM.get_bit_generator()
    _NUMPY_RANDOM.set_bit_generator(_Watched(original, note_numpy))
    drawn.clear()  # the line above takes the lock, too
    has_profiler = sys.getprofile() is not None
    if has_profiler:
        drawn.add(_PYTHON)  # nothing can see in its place: the states decide
    else:
        sys.setprofile(note_python)
    try:
        return run(), drawn.copy()
    finally:
        if not has_profiler:
            sys.setprofile(None)
        _NUMPY_RANDOM.set_bit_generator(original)


class _Watched(np.random.MT19937):
    """Stands in for a bit generator in all of numpy's functions, and reports whoever takes its lock."""

    def __init__(self, original: Any, note: Callable[[], None]) -> None:
        super().__init__(0)
        self._original = original
        self._lock = _Lock(original.lock, note)

    @property
    def lock(self) -> Any:  # type: ignore[override]
        return self._lock

    @property
    def capsule(self) -> Any:
        return self._original.capsule

    @property
    def state(self) -> Any:
        return self._original.state

    @state.setter
    def state(self, value: Any) -> None:
        self._original.state = value

    def _legacy_seeding(self, seed: Any) -> None:
        self._original._legacy_seeding(seed)


class _Lock:
    def __init__(self, original: Any, note: Callable[[], None]) -> None:
        self._original = original
        self._note = note

    def acquire(self, *arguments: Any, **named: Any) -> Any:
        self._note()
        return self._original.acquire(*arguments, **named)

    def __enter__(self) -> Any:
        self._note()
        return self._original.__enter__()

    def __exit__(self, *error: object) -> Any:
        return self._original.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)
