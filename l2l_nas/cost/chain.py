"""Plans of successive steps as work of lanes: what the simulator runs.

[Note: the disk lane] Where states are in files, a thread reads them into frames, in the order in which the plan uses
them: their weights for a load, the rest for an update (see `eps/file_storage.py`). A read waits until the frame that it
goes to is of no more use, and until the state was written. The thread of the updates writes, and waits for the disk.
Left out is the system's page cache: all files are taken as read from and written to the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from l2l_nas.eps.frames import Agenda
from l2l_nas.eps.state import Part
from l2l_nas.relay import schedule
from l2l_nas.relay.path import NOTHING_SPILLED, Name, PathLayer, Spill
from l2l_nas.relay.plan import Carry, Op, Plan, Step, UpdateOrder
from l2l_nas.relay.planner import plan_training

LANES = (*schedule.LANES, "disk")
UP, COMPUTE, DOWN, HOST, DISK = range(len(LANES))
_STEPS = 3  # the first begins with empty slots, the second with what that one left


@dataclass(frozen=True)
class RelayShape:
    """The settings of a relay that decide its plans."""

    slots: int = 2
    keep: int = 1  # length of the tail
    update: UpdateOrder = UpdateOrder.EAGER
    spill: Spill = NOTHING_SPILLED
    frames: int = 0  # in memory, for states that are in files; 0: all are in memory
    is_resident: bool = False  # whether states live on the device, and are not read from files


class Read(NamedTuple):
    """Parts of a state come from its file to a frame."""

    state: Name
    weights: bool
    rest: bool  # moments and step counts


class Piece(NamedTuple):
    """Work that keeps a lane busy."""

    lane: int
    work: int  # index in the chain's works
    after: tuple[int, ...]  # earlier pieces that must be done first, of earlier plans too
    is_blocking: bool  # whether the thread of its lane waits until it is done
    rank: int = 0  # of the host's works that may begin, the least goes first


@dataclass
class _DiskFrame:
    """A frame that a state is in."""

    filled: Part = Part.BUFFERS  # how much of the state
    users: list[int] = field(default_factory=list)  # the pieces that use it


class Chain:
    """The plans of successive steps of one path as work of lanes, made once for all durations.

    Steps that take no time are gone: what waits for one of them waits for what that one waits for.

    Attributes:
        work: what is done, each once.
        plans: the pieces of each.
        awaited: by plan, pieces that the issuing thread waits for at the end.
    """

    def __init__(self, path: Sequence[PathLayer], shape: RelayShape) -> None:
        self.work: list[Step | Read] = []
        self.plans: list[list[Piece]] = []
        self.awaited: list[list[int]] = []
        self._numbers: dict[Step | Read, int] = {}  # of works
        self._states = [tuple(dict.fromkeys((layer.key, *layer.trainable))) for layer in path]
        self._ranks = schedule.update_ranks(path, in_files=bool(shape.frames))
        self._shape = shape
        self._frames: dict[Name, _DiskFrame] = {}  # by state, the one used last at the end
        self._agenda = Agenda()
        self._count = 0  # of pieces
        self._schedule: schedule.PlanSchedule[int] = schedule.PlanSchedule()

    @classmethod
    def of(cls, path: Sequence[PathLayer], shape: RelayShape, *, steps: int = _STEPS) -> Chain:
        """Of a path that is trained again and again."""
        chain = cls(path, shape)
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
            chain.add(plan)
            carry = plan.leaves
        return chain

    def add(self, plan: Plan) -> None:
        """Add the next plan of this path."""
        self.plans.append([])
        self._agenda.extend((str(state), part) for step in plan.steps for state, part in self._opened(step))
        self.awaited.append(self._schedule.issue(plan, str, self._submit))

    def _submit(self, step: Step, after: tuple[int, ...]) -> int:
        opened = self._opened(step)
        reads = [piece for state, part in opened for piece in self._read(state, part)]
        work = Step(step.op, step.layer, state=step.state, value=step.value)
        lane = LANES.index(schedule.LANE[step.op])
        is_blocking = lane == HOST or step.op is Op.SAVE  # a thread waits where it reads what comes
        rank = schedule.rank(step, self._ranks)
        piece = self._append(lane, work, (*after, *reads), is_blocking=is_blocking, rank=rank)
        for state, _ in opened:
            self._frames[state].users.append(piece)
        return piece

    def _append(self, lane: int, work: Step | Read, after: tuple[int, ...], *, is_blocking: bool, rank: int = 0) -> int:
        number = self._numbers.setdefault(work, len(self.work))
        if number == len(self.work):
            self.work.append(work)
        self.plans[-1].append(Piece(lane, number, tuple(dict.fromkeys(after)), is_blocking, rank))
        self._count += 1
        return self._count - 1

    def _opened(self, step: Step) -> list[tuple[Name, Part]]:
        """The states in files that a step uses, and how much of each."""
        if not self._shape.frames or self._shape.is_resident:
            return []
        if step.op is Op.LOAD:
            return [(state, Part.WEIGHTS) for state in self._states[step.layer % len(self._states)]]
        return [(step.state, Part.ALL)] if step.op is Op.UPDATE else []

    def _read(self, state: Name, part: Part) -> tuple[int, ...]:
        """Have a state in a frame; the pieces that bring it. The state whose next use is the latest gives way."""
        self._agenda.meet(str(state), part)
        update = self._schedule.updates.get(str(state))
        frame, after = self._frames.pop(state, None), () if update is None else (update,)
        if frame is None:
            frame = _DiskFrame()
            if len(self._frames) == self._shape.frames:
                latest = max(self._frames, key=lambda other: self._agenda.next_use(str(other)))
                after = (*after, *self._frames.pop(latest).users)
        self._frames[state] = frame
        held, frame.filled = frame.filled, max(frame.filled, part)
        if held >= part:
            return ()
        read = Read(state, weights=held < Part.WEIGHTS, rest=part is Part.ALL)
        frame.users.append(self._append(DISK, read, after, is_blocking=True))
        return (frame.users[-1],)
