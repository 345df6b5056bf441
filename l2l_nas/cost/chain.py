"""Plans of successive steps as work of lanes: what the simulator runs.

[Note: the disk lane] Where states are in files, a thread reads them into frames, in the order in which the plan uses
them: their weights for a load, the rest for an update (see `eps/file_storage.py`). A read waits until the frame that it
goes to is of no more use, and until the state was written. The thread of the updates writes, and waits for the disk.
Left out is the system's page cache: all files are taken as read from and written to the disk.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from l2l_nas.relay import schedule
from l2l_nas.relay.path import NOTHING_SPILLED, Name, PathLayer, Spill
from l2l_nas.relay.plan import Carry, Op, Plan, Step, UpdateOrder
from l2l_nas.relay.planner import plan_training

LANES = (*schedule.LANES, "disk")
UP, COMPUTE, DOWN, HOST, DISK = range(len(LANES))
_STEPS = 3  # the first begins with empty slots, the second with what that one left
_WEIGHTS, _ALL = 1, 2  # how much of a state is in a frame


@dataclass(frozen=True)
class RelayShape:
    """The settings of a relay that decide its plans.

    Args:
        slots: how many.
        keep: length of the tail.
        update: when states are updated.
        spill: what waits on the host.
        frames: in memory, for states that are in files; 0: all are in memory.
        resident: states that live on the device, and are not read from files.
    """

    slots: int = 2
    keep: int = 1
    update: UpdateOrder = UpdateOrder.EAGER
    spill: Spill = NOTHING_SPILLED
    frames: int = 0
    resident: frozenset[Name] = frozenset()


class Read(NamedTuple):
    """A state comes from its file to a frame.

    Args:
        weights: whether its weights come.
        rest: whether moments and step counts come.
    """

    state: Name
    weights: bool
    rest: bool


class Piece(NamedTuple):
    """Work that keeps a lane busy.

    Args:
        lane: its number.
        work: number of what is done, among those of the chain that differ.
        after: earlier pieces that must be done first, of earlier plans too.
        is_blocking: whether the thread of its lane waits until it is done.
        rank: of the host's works that may begin, the least goes first.
    """

    lane: int
    work: int
    after: tuple[int, ...]
    is_blocking: bool
    rank: int = 0


@dataclass(frozen=True)
class Chain:
    """The plans of successive steps of one path as work of lanes, made once for all durations.

    Steps that take no time are gone: what waits for one of them waits for what that one waits for.

    Args:
        work: what there is to do: steps and reads that differ.
        plans: by plan, its pieces.
        awaited: by plan, pieces that the issuing thread waits for at the end.
    """

    work: tuple[Step | Read, ...]
    plans: tuple[tuple[Piece, ...], ...]
    awaited: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, path: Sequence[PathLayer], shape: RelayShape, *, steps: int = _STEPS) -> Chain:
        """Of a path that is trained again and again.

        Raises:
            SettingError: no slots, no tail, or an empty path.
        """
        builder = _ChainBuilder(path, shape)
        carry: Carry | None = None
        for _ in range(steps):
            plan = plan_training(
                path,
                slots=shape.slots,
                update=shape.update,
                keep=shape.keep,
                spill=shape.spill,
                carry=carry,
                upcoming=path[0] if path else None,
            )
            builder.add(plan)
            carry = plan.leaves
        return cls(tuple(builder.work), tuple(builder.plans), tuple(builder.awaited))


@dataclass
class _DiskFrame:
    """What a frame holds: how much of a state, and the pieces that use it."""

    filled: int
    users: list[int] = field(default_factory=list)


class _ChainBuilder:
    def __init__(self, path: Sequence[PathLayer], shape: RelayShape) -> None:
        self.work: dict[Step | Read, int] = {}
        self.plans: list[tuple[Piece, ...]] = []
        self.awaited: list[tuple[int, ...]] = []
        self._states = [tuple(dict.fromkeys((about.key, *about.trainable))) for about in path]
        self._ranks = schedule.update_ranks(path, in_files=bool(shape.frames))
        self._num_frames = shape.frames
        self._resident = shape.resident
        self._frames: dict[Name, _DiskFrame] = {}  # by state, the one used last at the end
        self._pieces: list[Piece] = []
        self._count = 0
        self._schedule: schedule.PlanSchedule[int] = schedule.PlanSchedule()

    def add(self, plan: Plan) -> None:
        """The next plan."""
        self._pieces = []
        uses = _Uses(state for step in plan.steps for state, _ in self._opened(step))

        def submit(step: Step, after: tuple[int, ...]) -> int:
            opened = self._opened(step)
            reads = [piece for state, filled in opened for piece in self._read(state, filled, uses)]
            what = Step(step.op, step.layer, state=step.state, value=step.value)
            lane = LANES.index(schedule.LANE[step.op])
            waits = lane == HOST or step.op is Op.SAVE  # a thread waits where it reads what comes
            rank = schedule.rank(step, self._ranks)
            piece = self._put(lane, what, (*after, *reads), waits=waits, rank=rank)
            for state, _ in opened:
                self._frames[state].users.append(piece)
            return piece

        self.awaited.append(tuple(self._schedule.follow(plan, str, submit)))
        self.plans.append(tuple(self._pieces))

    def _put(self, lane: int, what: Step | Read, after: tuple[int, ...], *, waits: bool, rank: int = 0) -> int:
        number = self.work.setdefault(what, len(self.work))
        self._pieces.append(Piece(lane, number, tuple(dict.fromkeys(after)), waits, rank))
        self._count += 1
        return self._count - 1

    def _opened(self, step: Step) -> list[tuple[Name, int]]:
        """The states in files that a step uses, and how much of each."""
        if not self._num_frames:
            return []
        if step.op is Op.LOAD:
            states = self._states[step.layer % len(self._states)]
            return [(state, _WEIGHTS) for state in states if state not in self._resident]
        return [(step.state, _ALL)] if step.op is Op.UPDATE and step.state not in self._resident else []

    def _read(self, state: Name, filled: int, uses: _Uses) -> tuple[int, ...]:
        """Have a state in a frame, of those whose own is needed latest; the pieces that bring it."""
        update = self._schedule.updates.get(str(state))
        frame, after = self._frames.pop(state, None), () if update is None else (update,)
        if frame is None:
            frame = _DiskFrame(0)
            if len(self._frames) == self._num_frames:
                after = (*after, *self._frames.pop(uses.latest(self._frames)).users)
        self._frames[state] = frame
        uses.meet()
        had, frame.filled = frame.filled, max(frame.filled, filled)
        if had >= filled:
            return ()
        what = Read(state, weights=had < _WEIGHTS, rest=filled == _ALL)
        frame.users.append(self._put(DISK, what, after, waits=True))
        return (frame.users[-1],)


class _Uses:
    """The uses of states in a plan, in order."""

    def __init__(self, states: Iterator[Name]) -> None:
        self._places: dict[Name, list[int]] = {}
        self._count = 0
        for state in states:
            self._places.setdefault(state, []).append(self._count)
            self._count += 1
        self._met = 0

    def meet(self) -> None:
        """One more is past."""
        self._met += 1

    def latest(self, states: Mapping[Name, _DiskFrame]) -> Name:
        """That whose next use comes last, or that was used longest ago."""

        def next_use(state: Name) -> int:
            places = self._places.get(state, ())
            index = bisect.bisect_left(places, self._met)
            return places[index] if index < len(places) else self._count

        return max(states, key=next_use)
