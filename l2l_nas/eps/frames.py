"""Frames: the few blocks of host memory through which states on disk pass, and which state each of them holds.

[Note: one frame a state] A state is in one frame or in none, whatever is done with it: a frame that is filled, open for
writing or written back is held, and nobody else opens its state, fills another frame with it, or gives the frame away
until that is over. So a read never sees a file that is being written, and a write is seen by every later read.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from l2l_nas.eps.layout import ALIGNMENT_BYTES, Layout, align
from l2l_nas.eps.state import LayerState, Part

NEVER = 1 << 60

Use = tuple[str, Part]


@dataclass(frozen=True)
class Image:
    """How the bytes of a state lie in its file and in a frame: buffers, weights, then steps and moments.

    Each part is a beginning of it, and one read or write, whatever the number of tensors.
    """

    layout: Layout
    unit_bytes: int = ALIGNMENT_BYTES  # every block begins at a whole number of these

    def end_bytes(self, part: Part) -> int:
        sizes = self._sizes()
        return sum(sizes if part is Part.ALL else sizes[: part + 1])

    def state(self, block: Tensor) -> LayerState:
        """The state whose bytes these are: views, no copies."""
        layout, sizes = self.layout, self._sizes()
        buffers, weights, steps, *moments = block[: sum(sizes)].split(sizes)
        return LayerState(
            layout,
            weights=weights[: layout.parameter_bytes],
            moments=tuple(block[: moment.num_bytes] for moment, block in zip(layout.moments, moments, strict=True)),
            steps=steps.view(torch.float32)[: len(layout.parameters)],
            buffers=buffers[: layout.buffer_bytes],
        )

    def pieces(self, state: LayerState) -> Iterator[tuple[int, Tensor]]:
        """A state's blocks of bytes, and where they go."""
        blocks = (state.buffers, state.weights, state.steps.view(torch.uint8), *state.moments)
        offsets = itertools.accumulate(self._sizes(), initial=0)
        return zip(offsets, blocks, strict=False)

    def _sizes(self) -> list[int]:
        steps = torch.float32.itemsize * len(self.layout.parameters)
        moments = (moment.num_bytes for moment in self.layout.moments)
        sizes = (self.layout.buffer_bytes, self.layout.parameter_bytes, steps, *moments)
        return [align(size, self.unit_bytes) for size in sizes]


@dataclass(eq=False)
class Frame:
    """A block of host memory, and what it holds."""

    block: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    key: str | None = None  # of the state that it holds, or will hold once it is filled
    state: LayerState | None = None  # views of the block
    filled_bytes: int = 0  # of the state's image, from its beginning
    holder: int | None = None  # the thread that fills, changes or writes it; see [Note: one frame a state]
    readers: list[int] = field(default_factory=list)  # threads
    used: int = 0  # grows with each use of any frame

    @property
    def is_idle(self) -> bool:
        return self.holder is None and not self.readers


class Agenda:
    """The uses of states to come, in order, each struck off when it is met."""

    def __init__(self) -> None:
        self._uses: dict[int, Use] = {}  # by number, in order
        self._numbers: dict[str, list[int]] = {}  # of a key's uses
        self._next = 0  # the number of the use that is added next
        self._newest = 0  # the number of the first use that the last call of `extend` added

    def extend(self, uses: Iterable[Use]) -> None:
        """Add uses to those of the last call that were not met yet; older ones will not come any more."""
        for number in [number for number in self._uses if number < self._newest]:
            self._strike(number)
        self._newest = self._next
        for use in uses:
            self._uses[self._next] = use
            self._numbers.setdefault(use[0], []).append(self._next)
            self._next += 1

    def clear(self) -> None:
        self._uses, self._numbers = {}, {}

    def meet(self, key: str, part: Part) -> None:
        """Strike off the next such use, if there is one."""
        number = next((number for number in self._numbers.get(key, ()) if self._uses[number][1] is part), None)
        if number is not None:
            self._strike(number)

    def _strike(self, number: int) -> None:
        key, _ = self._uses.pop(number)
        self._numbers[key].remove(number)

    def next_use(self, key: str) -> int:
        """The number of a state's next use; `NEVER` if none is known."""
        return next(iter(self._numbers.get(key, ())), NEVER)

    def ahead(self) -> Iterable[tuple[int, Use]]:
        return self._uses.items()


class FrameTable:
    """Which frame holds what. Callers hold the lock of the table's owner."""

    def __init__(self, num_frames: int) -> None:
        self.agenda = Agenda()
        self._frames = [Frame() for _ in range(num_frames)]
        self._by_key: dict[str, Frame] = {}
        self._clock = 0

    def __iter__(self) -> Iterator[Frame]:
        return iter(self._frames)

    def find(self, key: str) -> Frame | None:
        return self._by_key.get(key)

    def assign(self, key: str, *, later_than: int = -1) -> Frame | None:
        """Give a state the idle frame whose state is needed latest (Belady's rule), and later than a use's number."""

        def rank(frame: Frame) -> tuple[int, int]:
            return (NEVER + 1 if frame.key is None else self.agenda.next_use(frame.key)), -frame.used

        idle = [frame for frame in self._frames if frame.is_idle and rank(frame)[0] > later_than]
        frame = max(idle, key=rank, default=None)
        if frame is not None:
            self.empty(frame)
            frame.key = key
            self._by_key[key] = frame
        return frame

    def touch(self, frame: Frame) -> None:
        self._clock += 1
        frame.used = self._clock

    def empty(self, frame: Frame) -> None:
        if frame.key is not None:
            del self._by_key[frame.key]
        frame.key, frame.state, frame.filled_bytes = None, None, 0

    def stuck(self, frame: Frame | None) -> bool:
        """Whether this thread has the frame open that it waits for; for None, whether it has all frames open."""
        thread = threading.get_ident()
        frames = self._frames if frame is None else [frame]
        return all(thread == frame.holder or thread in frame.readers for frame in frames)
