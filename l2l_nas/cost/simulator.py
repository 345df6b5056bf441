"""The simulator: a discrete-event run of the plan that the executor carries out.

Lanes do their work in the order in which the plan issues it, each piece after what its `after` names. What the host
waits for is part of it: a thread that computes (a CPU) issues nothing meanwhile, copies of gradients wait until they
have arrived, the loss is read before the next step is planned. Steps follow each other, each taking over what the last
plan left, and the last one is reported: a step in the midst of training.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from l2l_nas.cost.chain import COMPUTE, DISK, HOST, LANES, Chain, Piece, Read
from l2l_nas.eps.gradients import choose_block
from l2l_nas.relay.path import Name, NumberedPath
from l2l_nas.relay.plan import Op, Step
from l2l_nas.relay.trace import TraceSpan

_DIGITS = 9  # of seconds: what ends and begins at the same time must compare as equal
# an update ahead of the check first copies what AdamW's reads and writes 28 bytes for: 12 bytes, read and written
SAVING = 24 / 28


@dataclass(frozen=True)
class LayerSeconds:
    """What a layer of the path takes of each lane."""

    load: float  # its weights and buffers, to the device
    forward: float  # all micro-batches
    backward: float  # all micro-batches, without the forward that is run again
    send: float  # its gradients, to the host
    save: float = 0.0  # its buffers, either way
    round: float = 0.0  # its weights, on the host, before a stream copies them


class Duration(NamedTuple):
    """How long work keeps its lane busy, in seconds."""

    base: float  # of itself
    rounding: float = 0.0  # before it, in the thread of its lane alone
    saving: float = 0.0  # longer, before the check of its plan is done
    writing: float = 0.0  # longer, until the disk has what it leaves


@dataclass(frozen=True)
class PathSeconds:
    """What everything that a plan may ask takes, in seconds."""

    layers: Sequence[LayerSeconds]  # by index in the path
    updates: Mapping[Name, float]  # of each state, on the host
    values: Mapping[Name, tuple[float, float]] = field(default_factory=dict)  # copies of each, to the host and back
    issue: float = 0.0  # of the thread that issues, for a visit
    copy: float = 0.0  # the least of a copy or an update
    batches: int = 1  # how many micro-batches there are
    # of each state before an update that runs ahead of the check
    copies: Mapping[Name, float] = field(default_factory=dict)
    # of each state in a file, the reading of its weights and of the rest, and the writing of all
    files: Mapping[Name, tuple[float, float, float]] = field(default_factory=dict)

    def of(self, work: Step | Read, faster: str = "") -> Duration:
        """The one table of durations, where the work of one lane may be done twice as fast."""
        up, compute, down, host, disk, rounding = (0.5 if lane == faster else 1.0 for lane in (*LANES, "round"))
        if isinstance(work, Read):
            weights, rest, _ = self.files[work.state]
            return Duration(disk * (work.weights * weights + work.rest * rest))
        layer = self.layers[work.layer % len(self.layers)]  # behind the path comes its first layer again
        match work.op:
            case Op.FORWARD:
                return Duration(compute * layer.forward)
            case Op.BACKWARD:
                return Duration(compute * (layer.forward + layer.backward) + down * layer.save)
            case Op.ENTER:
                return Duration(compute * layer.forward / self.batches)
            case Op.LEAVE:
                return Duration(compute * layer.backward / self.batches)
            case Op.TAIL:
                tail_s = sum(layer.forward + layer.backward for layer in self.layers[work.layer :])
                return Duration(compute * tail_s * (1 - 1 / self.batches))
            case Op.LOAD:
                return Duration(self.copy + up * layer.load, rounding=rounding * layer.round)
            case Op.SEND:
                return Duration(self.copy + down * layer.send)
            case Op.SAVE:
                return Duration(self.copy + down * layer.save)
            case Op.STORE:
                return Duration(self.copy + down * self.values[work.value][0])
            case Op.FETCH:
                return Duration(self.copy + up * self.values[work.value][1])
            case Op.UPDATE:
                saving, writing = self.copies.get(work.state, 0.0), self.files.get(work.state, (0.0,))[-1]
                base = self.copy + host * self.updates[work.state]
                return Duration(base, saving=host * saving, writing=disk * writing)
            case _:  # the check
                return Duration(self.copy)


@dataclass(frozen=True)
class Simulation:
    """A simulated step in the midst of training."""

    step_s: float  # from one step's end to the next one's
    # by lane, how long it works in a step; "issue" is the thread that issues the work, "round" the one that rounds
    # weights for loads where no copy of them is stored
    busy_s: Mapping[str, float]
    spans: tuple[TraceSpan, ...] = ()  # what each lane did, from the first step on, which begins with empty slots
    staged_bytes: int = 0  # the most bytes of gradients that waited on the host at a time

    @property
    def binds(self) -> str:
        """The lane with the most work: no schedule is faster than it."""
        return max(self.busy_s, key=lambda lane: self.busy_s[lane])

    @property
    def over_bound(self) -> float:
        """The step over the work of the lane that binds: 1 is a perfect overlap."""
        return self.step_s / max(self.busy_s[self.binds], 1e-12)

    def use(self, lane: str) -> float:
        """Share of the step in which a lane works."""
        return self.busy_s[lane] / max(self.step_s, 1e-12)


def simulate(
    chain: Chain,
    seconds: PathSeconds,
    *,
    lanes: str = "streams",
    path: NumberedPath | None = None,
    gradients: Sequence[Mapping[Name, int]] = (),
    faster: str = "",
) -> Simulation:
    """Run plans, one after the other.

    A piece of work has two times: when it is issued, which is what other threads of the host wait for, and when it is
    done, which is what the device waits for.

    Args:
        lanes: "streams", "threads" or "inline"; see `Hardware`.
        path: has the names for spans; None: without spans.
        gradients: of each layer, bytes of the gradient of each of its states, to find how many wait on the host.
        faster: a lane that works twice as fast.
    """
    durations = [seconds.of(work, faster) for work in chain.work]
    issue = seconds.issue * (0.5 if faster == "issue" else 1.0)
    if lanes == "inline":
        done, took, ends = _inline(chain, durations, issue)
    else:
        done, took, ends = _Lanes(chain, durations, issue, is_ahead=lanes == "streams").run()
    busy = dict.fromkeys(LANES, 0.0)
    last = chain.plans[-1]
    for piece, took_s in zip(last, took[len(took) - len(last) :], strict=True):
        busy[LANES[piece.lane]] += took_s
        busy["disk"] += durations[piece.work].writing
    busy["issue"] = issue * sum(piece.lane == COMPUTE for piece in last)
    busy["round"] = sum(durations[piece.work].rounding for piece in last)
    did: list[_Done] = []
    if path is not None or gradients:
        pieces = [(number, piece) for number, plan in enumerate(chain.plans) for piece in plan]
        did = [
            (number, piece.lane, chain.work[piece.work], end - took_s, end)
            for (number, piece), end, took_s in zip(pieces, done, took, strict=True)
        ]
    return Simulation(
        ends[-1] - (ends[-2] if len(ends) > 1 else 0.0),
        busy,
        tuple(TraceSpan(LANES[lane], *_label(work, path), n, a, b) for n, lane, work, a, b in did) if path else (),
        _staged(did, gradients) if gradients else 0,
    )


def lifted(chain: Chain, seconds: PathSeconds, *, lanes: str) -> dict[str, float]:
    """By lane, the time of a step if that lane were twice as fast: what would lift the bound."""
    return {lane: simulate(chain, seconds, lanes=lanes, faster=lane).step_s for lane in (*LANES, "issue", "round")}


_Done = tuple[int, int, Step | Read, float, float]  # number of the plan, lane, what was done, begin, end
# by piece when it is done, and how long it took; by plan when the issuing thread is at its end
_Times = tuple[list[float], list[float], list[float]]
_PENDING = -1.0  # when work of the host is done that has not begun


def _inline(chain: Chain, durations: Sequence[Duration], issue: float) -> _Times:
    """One thread does everything, in the order of the plan, where updates ahead come before the check."""
    now, done, took, ends = 0.0, [], [], []
    for plan in chain.plans:
        for piece in plan:
            took.append(sum(durations[piece.work]))
            now += took[-1] + (issue if piece.lane == COMPUTE else 0.0)
            done.append(now)
        ends.append(now)
    return done, took, ends


class _Waiting(NamedTuple):
    """Work that the host has not begun; the least goes first."""

    rank: int  # see [Note: order] in `relay/schedule.py`
    piece: int
    ready_s: float  # when it may begin
    plan: int


class _Lanes:
    """Lanes that work beside each other. Times are in seconds from the begin of the first plan.

    Args:
        issue: what the issuing thread takes for a visit.
        is_ahead: whether that thread goes on while the device computes and copies.
    """

    def __init__(self, chain: Chain, durations: Sequence[Duration], issue: float, *, is_ahead: bool) -> None:
        self._chain, self._durations = chain, durations
        self._issue, self._is_ahead = issue, is_ahead
        # by piece
        self._done: list[float] = []
        self._took: list[float] = []
        self._seen: list[float] = []  # when threads that wait for it go on
        self._works = [piece.work for plan in chain.plans for piece in plan]
        # by lane, when the device is free, and when the lane's thread is; that of COMPUTE is the one that issues
        self._free, self._thread = [0.0] * len(LANES), [0.0] * len(LANES)
        self._waiting: list[_Waiting] = []
        self._checked = [math.inf] * len(chain.plans)  # by plan, when its check is done
        self._disk = _Disk()

    def run(self) -> _Times:
        ends = []
        for number, (plan, awaited) in enumerate(zip(self._chain.plans, self._chain.awaited, strict=True)):
            begun = self._thread[COMPUTE]
            for piece in plan:
                self._submit(piece, number, begun)
            for other in awaited:
                self._finish(other)
            ends.append(max([self._thread[COMPUTE], *(self._done[other] for other in awaited)]))
            self._thread[COMPUTE] = ends[-1]
        while self._waiting:
            self._finish(self._waiting[0].piece)
        return self._done, self._took, ends

    def _submit(self, piece: Piece, plan: int, begun: float) -> None:
        """Issue a piece of work.

        Args:
            begun: when the issuing of its plan began; the disk works from then on.
        """
        lane, duration = piece.lane, self._durations[piece.work]
        ready = issued = begun if lane == DISK else self._thread[COMPUTE]
        done, seen = self._done, self._seen
        for other in piece.after:
            if done[other] == _PENDING:
                self._finish(other)
            ready = done[other] if done[other] > ready else ready
            issued = seen[other] if seen[other] > issued else issued
        if lane == HOST:
            self._waiting.append(_Waiting(piece.rank, len(done), ready, plan))
            end = goes_on = _PENDING
        elif lane == DISK:
            end = goes_on = self._disk.occupy(max(self._thread[lane], issued), duration.base)
            self._thread[lane] = end
        else:
            own_s = self._issue if lane == COMPUTE else duration.rounding
            start = max(self._thread[lane], issued) + own_s
            end = max(self._free[lane], ready, start) + duration.base
            goes_on = end if piece.is_blocking or not self._is_ahead else start
            self._free[lane], self._thread[lane] = end, goes_on
        self._done.append(end)
        self._seen.append(goes_on)
        self._took.append(0.0 if lane == HOST else duration.base)

    def _finish(self, piece: int) -> None:
        """Have the host work until a piece is done."""
        while self._done[piece] == _PENDING:
            may_begin = [work for work in self._waiting if work.ready_s <= self._free[HOST]]
            chosen = min(may_begin) if may_begin else self._waiting[0]
            self._waiting.remove(chosen)
            begin, number = max(self._free[HOST], chosen.ready_s), chosen.piece
            took, _, saving, writing = self._durations[self._works[number]]
            took += saving if begin < self._checked[chosen.plan] else 0.0
            end = self._disk.occupy(begin + took, writing)
            self._free[HOST] = self._done[number] = self._seen[number] = end
            self._took[number] = took + writing
            work = self._chain.work[self._works[number]]
            if isinstance(work, Step) and work.op is Op.CHECK:
                self._checked[chosen.plan] = end


class _Disk:
    """One disk for all who read and write: work takes the time that is free once it is ready, in pieces if need be."""

    def __init__(self) -> None:
        self._begins: list[float] = []
        self._ends: list[float] = []

    def occupy(self, ready: float, seconds: float) -> float:
        """When work is done that is ready then and takes so long."""
        if not seconds:
            return ready
        index = first = bisect.bisect_right(self._ends, ready)
        now = ready
        begin = min(ready, self._begins[index]) if index < len(self._begins) else ready
        while index < len(self._begins) and self._begins[index] - now < seconds:
            seconds -= max(0.0, self._begins[index] - now)
            now = self._ends[index]
            index += 1
        self._begins[first:index] = [begin]
        self._ends[first:index] = [now + seconds]
        return now + seconds


def _label(work: Step | Read, path: NumberedPath) -> tuple[str, str]:
    if isinstance(work, Read):
        return "read", path.state(work.state)
    if work.op is Op.CHECK:
        return work.op.value, ""
    if work.op in (Op.STORE, Op.FETCH):
        return work.op.value, path.value(work.value)
    state = work.state if work.op is Op.UPDATE else path.layers[work.layer % len(path.layers)].key
    return work.op.value, path.state(state)


def _staged(work: Iterable[_Done], gradients: Sequence[Mapping[Name, int]]) -> int:
    """The most bytes of blocks that gradients wait in, from a copy's begin to the end of the update that uses it."""
    events: list[tuple[float, int, Name, int]] = []
    for _, _, step, start, end in work:
        if isinstance(step, Read):
            continue
        if step.op is Op.SEND:
            events += [(round(start, _DIGITS), 1, state, size) for state, size in gradients[step.layer].items()]
        elif step.op is Op.UPDATE:
            events.append((round(end, _DIGITS), 0, step.state, 0))
    free: list[int] = []
    waiting: dict[Name, list[int]] = {}
    now = most = 0
    for _, is_sent, state, size in sorted(events):
        if not is_sent:
            free += waiting.pop(state, [])
            continue
        chosen = choose_block(free, size)
        block = 0 if chosen is None else free.pop(chosen)
        now += max(0, size - block)
        waiting.setdefault(state, []).append(max(size, block))
        most = max(most, now)
    return most
