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

from l2l_nas.cost.chain import COMPUTE, DISK, HOST, LANES, UP, Chain, Piece, Read
from l2l_nas.cost.staged import Done, staged_bytes
from l2l_nas.relay.path import Name, NumberedPath
from l2l_nas.relay.plan import Op, Step
from l2l_nas.relay.trace import NET, TraceSpan, exposed_s

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
    # between ranks: parts of its weights, parts of its gradients, buffers of all chunks
    gather: float = 0.0
    reduce: float = 0.0
    combine: float = 0.0
    # sums over the ranks that share the layer, in its forward and in its backward
    forward_sums: float = 0.0
    backward_sums: float = 0.0


class Duration(NamedTuple):
    """How long work keeps its lane busy, in seconds."""

    base: float  # of itself
    rounding: float = 0.0  # before it, in the thread of its lane alone
    saving: float = 0.0  # longer, before the check of its plan is done
    writing: float = 0.0  # longer, until the disk has what it leaves
    # in exchanges between ranks, in the thread of its lane: before a load's copy, behind all other work
    net: float = 0.0


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
    agree: float = 0.0  # of the issuing thread, for what ranks agree on in a step

    def of(self, work: Step | Read, faster: str = "") -> Duration:
        """The one table of durations, where the work of one lane may be done twice as fast."""
        up, compute, down, host, disk, rounding = (0.5 if lane == faster else 1.0 for lane in (*LANES, "round"))
        if isinstance(work, Read):
            weights, rest, _ = self.files[work.state]
            return Duration(disk * (work.weights * weights + work.rest * rest))
        layer = self.layers[work.layer % len(self.layers)]  # behind the path comes its first layer again
        net = self.net(work) * (0.5 if faster == NET else 1.0)
        match work.op:
            case Op.FORWARD:
                return Duration(compute * layer.forward, net=net)
            case Op.BACKWARD:
                return Duration(compute * (layer.forward + layer.backward) + down * layer.save, net=net)
            case Op.ENTER:
                return Duration(compute * layer.forward / self.batches, net=net)
            case Op.LEAVE:
                return Duration(compute * layer.backward / self.batches, net=net)
            case Op.TAIL:
                tail_s = sum(layer.forward + layer.backward for layer in self.layers[work.layer :])
                return Duration(compute * tail_s * (1 - 1 / self.batches), net=net)
            case Op.LOAD:
                return Duration(self.copy + up * layer.load, rounding=rounding * layer.round, net=net)
            case Op.SEND:
                return Duration(self.copy + down * layer.send, net=net)
            case Op.SAVE:
                return Duration(self.copy + down * layer.save, net=net)
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

    def net(self, work: Step | Read) -> float:
        """Of exchanges between ranks."""
        if isinstance(work, Read):
            return 0.0
        layer = self.layers[work.layer % len(self.layers)]
        match work.op:
            case Op.LOAD:
                return layer.gather
            case Op.SEND:
                return layer.reduce
            case Op.SAVE:
                return layer.combine
            case Op.FORWARD:
                return layer.forward_sums
            case Op.BACKWARD:
                return layer.forward_sums + layer.backward_sums
            case Op.ENTER:
                return layer.forward_sums / self.batches
            case Op.LEAVE:
                return layer.backward_sums / self.batches
            case Op.TAIL:
                tail_s = sum(one.forward_sums + one.backward_sums for one in self.layers[work.layer :])
                return tail_s * (1 - 1 / self.batches)
            case _:
                return 0.0


@dataclass(frozen=True)
class Simulation:
    """A simulated step in the midst of training."""

    step_s: float  # from one step's end to the next one's
    # by lane, how long it works in a step; "issue" is the thread that issues the work, "round" the one that rounds
    # weights for loads where no copy of them is stored
    busy_s: Mapping[str, float]
    spans: tuple[TraceSpan, ...] = ()  # what each lane did, from the first step on, which begins with empty slots
    staged_bytes: int = 0  # the most bytes of gradients that waited on the host at a time
    exposed_s: float = 0.0  # in which ranks exchange something in a step and compute nothing

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
    visited: Sequence[Mapping[Name, int]] = (),
    faster: str = "",
) -> Simulation:
    """Run plans, one after the other.

    A piece of work has two times: when it is issued, which is what other threads of the host wait for, and when it is
    done, which is what the device waits for.

    Args:
        lanes: "streams", "threads" or "inline"; see `Hardware`.
        path: has the names for spans; None: without spans.
        gradients, visited: of each layer, see `staged_bytes`; to find how many bytes of gradients wait on the host.
        faster: a lane that works twice as fast.
    """
    durations = [seconds.of(work, faster) for work in chain.work]
    issue = seconds.issue * (0.5 if faster == "issue" else 1.0)
    agree = seconds.agree * (0.5 if faster == NET else 1.0)
    if lanes == "inline":
        times = _inline(chain, durations, issue, agree)
    else:
        times = _Lanes(chain, durations, issue, agree, is_ahead=lanes == "streams").run()
    did = _done(chain, times) if path is not None or gradients or times.exchanged else []
    spans = [*did, *times.exchanged]
    begin_s, end_s = (times.ends[-2] if len(times.ends) > 1 else 0.0), times.ends[-1]
    return Simulation(
        end_s - begin_s,
        _busy(chain, durations, times, issue, agree),
        tuple(TraceSpan(lane, *_label(lane, work, path), n, a, b) for n, lane, work, a, b in spans) if path else (),
        staged_bytes(did, gradients, visited) if gradients else 0,
        _exposed_s(spans, begin_s, end_s) if times.exchanged else 0.0,
    )


def _done(chain: Chain, times: _Times) -> list[Done]:
    pieces = [(number, piece) for number, plan in enumerate(chain.plans) for piece in plan]
    return [
        (number, LANES[piece.lane], chain.work[piece.work], end - took_s, end)
        for (number, piece), end, took_s in zip(pieces, times.worked, times.took, strict=True)
    ]


def _busy(chain: Chain, durations: Sequence[Duration], times: _Times, issue: float, agree: float) -> dict[str, float]:
    """By lane, how long it works in the last step."""
    busy = dict.fromkeys(LANES, 0.0)
    last = chain.plans[-1]
    for piece, took_s in zip(last, times.took[len(times.took) - len(last) :], strict=True):
        busy[LANES[piece.lane]] += took_s
        busy["disk"] += durations[piece.work].writing
    busy["issue"] = issue * sum(piece.lane == COMPUTE for piece in last)
    busy["round"] = sum(durations[piece.work].rounding for piece in last)
    busy[NET] = agree + sum(durations[piece.work].net for piece in last)
    return busy


def lifted(chain: Chain, seconds: PathSeconds, *, lanes: str) -> dict[str, float]:
    """By lane, the time of a step if that lane were twice as fast: what would lift the bound."""
    return {lane: simulate(chain, seconds, lanes=lanes, faster=lane).step_s for lane in (*LANES, "issue", "round", NET)}


_PENDING = -1.0  # when work of the host is done that has not begun


@dataclass
class _Times:
    """When everything was done, in seconds from the begin of the first plan."""

    # by piece: when it is done, when its lane is done with it, which may be earlier, and how long its lane took
    done: list[float] = field(default_factory=list)
    worked: list[float] = field(default_factory=list)
    took: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)  # by plan, when the issuing thread is at its end
    exchanged: list[Done] = field(default_factory=list)  # between ranks


def _inline(chain: Chain, durations: Sequence[Duration], issue: float, agree: float) -> _Times:
    """One thread does everything, in the order of the plan, where updates ahead come before the check."""
    now, times = 0.0, _Times()
    for number, plan in enumerate(chain.plans):
        if agree:
            times.exchanged.append((number, NET, None, now, now + agree))
            now += agree
        for piece in plan:
            net = durations[piece.work].net
            times.took.append(sum(durations[piece.work]) - net)
            begin = now
            now += times.took[-1] + net + (issue if piece.lane == COMPUTE else 0.0)
            times.done.append(now)
            times.worked.append(now if piece.lane == UP else now - net)
            if net:
                start = begin if piece.lane == UP else now - net
                times.exchanged.append((number, NET, chain.work[piece.work], start, start + net))
        times.ends.append(now)
    return times


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
        agree: what it takes at the begin of a plan, for what ranks agree on.
        is_ahead: whether that thread goes on while the device computes and copies.
    """

    def __init__(
        self, chain: Chain, durations: Sequence[Duration], issue: float, agree: float, *, is_ahead: bool
    ) -> None:
        self._chain, self._durations = chain, durations
        self._issue, self._agree, self._is_ahead = issue, agree, is_ahead
        self._times = _Times()
        self._done = self._times.done
        self._seen: list[float] = []  # by piece, when threads that wait for it go on
        self._works = [piece.work for plan in chain.plans for piece in plan]
        # by lane, when the device is free, and when the lane's thread is; that of COMPUTE is the one that issues
        self._free, self._thread = [0.0] * len(LANES), [0.0] * len(LANES)
        self._waiting: list[_Waiting] = []
        self._checked = [math.inf] * len(chain.plans)  # by plan, when its check is done
        self._disk, self._net = _SharedLane(), _SharedLane()

    def run(self) -> _Times:
        ends = self._times.ends
        for number, (plan, awaited) in enumerate(zip(self._chain.plans, self._chain.awaited, strict=True)):
            if self._agree:
                self._thread[COMPUTE] = self._exchange(number, None, self._thread[COMPUTE], self._agree)
            begun = self._thread[COMPUTE]
            for piece in plan:
                self._submit(piece, number, begun)
            for other in awaited:
                self._finish(other)
            ends.append(max([self._thread[COMPUTE], *(self._done[other] for other in awaited)]))
            self._thread[COMPUTE] = ends[-1]
        while self._waiting:
            self._finish(self._waiting[0].piece)
        return self._times

    def _exchange(self, plan: int, work: Step | Read | None, ready: float, seconds: float) -> float:
        """When an exchange between ranks is over that is ready then and takes so long alone."""
        end = self._net.occupy(ready, seconds)
        self._times.exchanged.append((plan, NET, work, ready, end))
        return end

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
            work, is_last = self._chain.work[piece.work], bool(duration.net) and lane != UP
            if duration.net and lane == UP:
                start = self._exchange(plan, work, start, duration.net)
            end = worked = max(self._free[lane], ready, start) + duration.base
            if is_last:
                end = self._exchange(plan, work, worked, duration.net)
            goes_on = end if piece.is_blocking or is_last or not self._is_ahead else start
            self._free[lane], self._thread[lane] = (end if lane == COMPUTE else worked), goes_on
        self._done.append(end)
        self._seen.append(goes_on)
        self._times.worked.append(end if lane in (HOST, DISK) else worked)
        self._times.took.append(0.0 if lane == HOST else duration.base)

    def _finish(self, piece: int) -> None:
        """Have the host work until a piece is done."""
        while self._done[piece] == _PENDING:
            may_begin = [work for work in self._waiting if work.ready_s <= self._free[HOST]]
            chosen = min(may_begin) if may_begin else self._waiting[0]
            self._waiting.remove(chosen)
            begin, number = max(self._free[HOST], chosen.ready_s), chosen.piece
            took, _, saving, writing, _ = self._durations[self._works[number]]
            took += saving if begin < self._checked[chosen.plan] else 0.0
            end = self._disk.occupy(begin + took, writing)
            self._free[HOST] = self._done[number] = self._seen[number] = self._times.worked[number] = end
            self._times.took[number] = took + writing
            work = self._chain.work[self._works[number]]
            if isinstance(work, Step) and work.op is Op.CHECK:
                self._checked[chosen.plan] = end


class _SharedLane:
    """One disk for all who read and write, one network for all who exchange.

    Work takes the time that is free once it is ready, in pieces if need be.
    """

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


_EXCHANGES = {Op.LOAD: "gather", Op.SEND: "reduce", Op.SAVE: "reduce"}  # as `relay/trace.py` calls them; or sums


def _label(lane: str, work: Step | Read | None, path: NumberedPath) -> tuple[str, str]:
    if work is None:
        return "agree", ""
    if isinstance(work, Read):
        return "read", path.state(work.state)
    if lane == NET:
        return _EXCHANGES.get(work.op, "sum"), path.state(path.layers[work.layer % len(path.layers)].key)
    if work.op is Op.CHECK:
        return work.op.value, ""
    if work.op in (Op.STORE, Op.FETCH):
        return work.op.value, path.value(work.value)
    state = work.state if work.op is Op.UPDATE else path.layers[work.layer % len(path.layers)].key
    return work.op.value, path.state(state)


def _exposed_s(work: Iterable[Done], begin_s: float, end_s: float) -> float:
    lanes = ("compute", NET)
    spans = [TraceSpan(lane, "", "", number, start, end) for number, lane, _, start, end in work if lane in lanes]
    return exposed_s(spans, start_s=begin_s, end_s=end_s)
