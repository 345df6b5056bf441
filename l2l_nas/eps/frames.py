"""Frames: the few blocks of host memory through which states on disk pass, and which state each of them holds.

[Note: one frame a state] A state is in one frame or in none, whatever is done with it: a frame that is filled, open for
writing or written back is held, and nobody else opens its state, fills another frame with it, or gives the frame away
until that is over. So a read never sees a file that is being written, and a write is seen by every later read.
"""

from __future__ import annotations

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

    Args:
        unit_bytes: every block begins at a whole number of these.
    """

    layout: Layout
    unit_bytes: int = ALIGNMENT_BYTES

    @classmethod
    def of(cls, state: LayerState, *, unit_bytes: int = ALIGNMENT_BYTES) -> Image:
        """The image of a state."""
        return cls(state.layout, unit_bytes)

    def end_bytes(self, part: Part) -> int:
        """Where a part ends."""
        return sum(self._sizes()[: {Part.BUFFERS: 1, Part.WEIGHTS: 2, Part.ALL: None}[part]])

    def state(self, block: Tensor) -> LayerState:
        """The state whose bytes these are: views, no copies."""
        buffers, weights, steps, *moments = self._cut(block)
        size = self.layout.parameter_bytes
        return LayerState(
            layout=self.layout,
            weights=weights[:size],
            moments=tuple(
                block[: moment.num_bytes] for moment, block in zip(self.layout.moments, moments, strict=True)
            ),
            steps=steps.view(torch.float32)[: len(self.layout.parameters)],
            buffers=buffers[: self.layout.buffer_bytes],
        )

    def pieces(self, state: LayerState) -> Iterator[tuple[int, Tensor]]:
        """A state's blocks of bytes, and where they go."""
        offset = 0
        sizes = self._sizes()
        blocks = (state.buffers, state.weights, state.steps.view(torch.uint8), *state.moments)
        for block, size in zip(blocks, sizes, strict=True):
            yield offset, block
            offset += size

    def _sizes(self) -> list[int]:
        steps = torch.float32.itemsize * len(self.layout.parameters)
        moments = (moment.num_bytes for moment in self.layout.moments)
        sizes = (self.layout.buffer_bytes, self.layout.parameter_bytes, steps, *moments)
        return [align(own, self.unit_bytes) for own in sizes]

    def _cut(self, block: Tensor) -> tuple[Tensor, ...]:
        sizes = self._sizes()
        return block[: sum(sizes)].split(sizes)


@dataclass(eq=False)
class Frame:
    """A block of host memory, and what it holds.

    Attributes:
        key: of the state it holds, or will hold once it is filled; None for none.
        state: views of the block.
        filled_bytes: how much of the state's image is there, from its beginning.
        holder: the thread that fills, changes or writes it; see [Note: one frame a state].
        readers: the threads that read it.
        used: a number that grows with each use of any frame.
    """

    block: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    key: str | None = None
    state: LayerState | None = None
    filled_bytes: int = 0
    holder: int | None = None
    readers: list[int] = field(default_factory=list)
    used: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether it may be given to another state."""
        return self.holder is None and not self.readers


class Agenda:
    """The uses of states to come, in order, each struck off when it is met."""

    def __init__(self) -> None:
        self._uses: list[Use] = []
        self._is_met: list[bool] = []
        self._first = 0  # all before it are met
        self._newest = 0  # where what was added last begins
        self._places: dict[str, list[int]] = {}  # of a key's uses, the last ones first

    def extend(self, uses: Iterable[Use]) -> None:
        """Add uses to those of the last call that were not met yet; older ones will not come any more."""
        ahead = range(self._newest, len(self._uses))
        left = [self._uses[place] for place in ahead if not self._is_met[place]]
        self._uses = [*left, *uses]
        self._is_met = [False] * len(self._uses)
        self._first, self._newest = 0, len(left)
        self._places = {}
        for place in reversed(range(len(self._uses))):
            self._places.setdefault(self._uses[place][0], []).append(place)

    def clear(self) -> None:
        """Expect nothing."""
        self.extend(())
        self.extend(())  # what one call leaves, two do not

    def meet(self, key: str, part: Part) -> None:
        """Strike off the next such use, if there is one."""
        places = self._places.get(key, [])
        place = next((place for place in reversed(places) if self._uses[place][1] is part), None)
        if place is not None:
            places.remove(place)
            self._is_met[place] = True
            while self._first < len(self._uses) and self._is_met[self._first]:
                self._first += 1

    def next_use(self, key: str) -> int:
        """The place of a state's next use; `NEVER` if none is known."""
        places = self._places.get(key)
        return places[-1] if places else NEVER

    def ahead(self) -> Iterator[tuple[int, Use]]:
        """Places and uses to come."""
        for place in range(self._first, len(self._uses)):
            if not self._is_met[place]:
                yield place, self._uses[place]


class FrameTable:
    """Which frame holds what. Whoever calls holds the lock of its owner.

    Args:
        num_frames: at least 1.
    """

    def __init__(self, num_frames: int) -> None:
        self.agenda = Agenda()
        self._frames = [Frame() for _ in range(num_frames)]
        self._by_key: dict[str, Frame] = {}
        self._clock = 0

    def __iter__(self) -> Iterator[Frame]:
        return iter(self._frames)

    @property
    def num_bytes(self) -> int:
        """Memory of all blocks."""
        return sum(frame.block.numel() for frame in self._frames)

    def find(self, key: str) -> Frame | None:
        """The frame that holds a state."""
        return self._by_key.get(key)

    def take(self, key: str, *, later_than: int = -1) -> Frame | None:
        """Give a state the idle frame whose own state is needed latest (Belady's rule), and later than this place."""

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
        """It is used now."""
        self._clock += 1
        frame.used = self._clock

    def empty(self, frame: Frame) -> None:
        """Have a frame hold nothing."""
        if frame.key is not None:
            del self._by_key[frame.key]
        frame.key, frame.state, frame.filled_bytes = None, None, 0

    def stuck(self, frame: Frame | None) -> bool:
        """Whether this thread waits for itself: it has this frame open; or all of them, if none is given."""
        me = threading.get_ident()
        return all(me == f.holder or me in f.readers for f in ([frame] if frame is not None else self._frames))
