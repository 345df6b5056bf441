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
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from l2l_nas.cost.chain import COMPUTE, DISK, HOST, LANES, Chain, Read
from l2l_nas.eps.gradients import choose_block
from l2l_nas.relay.path import Name, NumberedPath
from l2l_nas.relay.plan import Op, Step
from l2l_nas.relay.trace import TraceSpan

_DIGITS = 9  # of seconds: what ends and begins at the same time must compare as equal
# an update ahead of the check first copies what AdamW's reads and writes 28 bytes for: 12 bytes, read and written
SAVING = 24 / 28


@dataclass(frozen=True)
class LayerSeconds:
    """What a layer of the path takes of each lane.

    Args:
        load: its weights and buffers, to the device.
        forward: all micro-batches.
        backward: all micro-batches, without the forward that is run again.
        send: its gradients, to the host.
        save: its buffers, either way.
        round: its weights, on the host, before a stream copies them.
    """

    load: float
    forward: float
    backward: float
    send: float
    save: float = 0.0
    round: float = 0.0


@dataclass(frozen=True)
class PathSeconds:
    """What everything that a plan may ask takes, in seconds.

    Args:
        layers: by index in the path.
        updates: of each state, on the host.
        copies: of each state before an update that runs ahead of the check.
        values: the copy of each spilled value, one way.
        check: of all gradients, on the host.
        issue: of the thread that issues, for a visit.
        copy: the least of a copy or an update.
        batches: how many micro-batches there are.
        files: of each state in a file, the reading of its weights and of the rest from a file, and the writing of all.
    """

    layers: Sequence[LayerSeconds]
    updates: Mapping[Name, float]
    values: Mapping[Name, float] = field(default_factory=dict)
    check: float = 0.0
    issue: float = 0.0
    copy: float = 0.0
    batches: int = 1
    copies: Mapping[Name, float] = field(default_factory=dict)
    files: Mapping[Name, tuple[float, float, float]] = field(default_factory=dict)

    def of(self, step: Step | Read) -> float:
        """How long work keeps its lane busy: the one table of durations."""
        layers = self.layers
        if isinstance(step, Read):
            weights, rest, _ = self.files[step.state]
            return step.weights * weights + step.rest * rest
        match step.op:
            case Op.FORWARD:
                return layers[step.layer].forward
            case Op.BACKWARD:
                own = layers[step.layer]
                return own.forward + own.backward + own.save
            case Op.ENTER:
                return layers[step.layer].forward / self.batches
            case Op.LEAVE:
                return layers[step.layer].backward / self.batches
            case Op.TAIL:
                return sum(one.forward + one.backward for one in layers[step.layer :]) * (1 - 1 / self.batches)
            case Op.LOAD:
                return self.copy + layers[step.layer % len(layers)].load  # behind the path comes its first layer again
            case Op.SEND:
                return self.copy + layers[step.layer].send
            case Op.SAVE:
                return self.copy + layers[step.layer].save
            case Op.STORE | Op.FETCH:
                return self.copy + self.values[step.value]
            case Op.UPDATE:
                return self.copy + self.updates[step.state]
            case Op.CHECK:
                return self.copy + self.check
            case _:
                return 0.0

    def rounded(self, step: Step | Read) -> float:
        """How long the thread of a load prepares what it copies."""
        if isinstance(step, Read) or step.op is not Op.LOAD:
            return 0.0
        return self.layers[step.layer % len(self.layers)].round

    def copied(self, step: Step | Read) -> float:
        """How much longer an update takes ahead of the check: its state is copied before."""
        return self.copies.get(step.state, 0.0) if isinstance(step, Step) and step.op is Op.UPDATE else 0.0

    def written(self, step: Step | Read) -> float:
        """How long the thread of an update waits until a state is written to its file."""
        is_update = isinstance(step, Step) and step.op is Op.UPDATE and step.state in self.files
        return self.files[step.state][2] if is_update else 0.0


@dataclass(frozen=True)
class Simulation:
    """A simulated step in the midst of training.

    Args:
        step_s: from one step's end to the next one's.
        busy_s: by lane, how long it works in a step; "issue" is the thread that issues the work, "round" the one that
            rounds weights for loads where no copy of them is stored.
        spans: what each lane did, from the first step, which begins with empty slots; if that was asked for.
        staged_bytes: the most bytes of gradients that waited on the host at a time, if that was asked for.
    """

    step_s: float
    busy_s: Mapping[str, float]
    spans: tuple[TraceSpan, ...] = ()
    staged_bytes: int = 0

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
) -> Simulation:
    """Run plans, one after the other.

    A piece of work has two times: when it is issued, which is what other threads of the host wait for, and when it is
    done, which is what the device waits for.

    Args:
        seconds: what each step takes.
        lanes: "streams", "threads" or "inline"; see `Hardware`.
        path: has the names for spans; none are recorded without.
        gradients: of each layer, bytes of the gradient of each of its states, to find how many wait on the host.
    """
    durations = [
        _Duration(seconds.of(step), seconds.rounded(step), seconds.copied(step), seconds.written(step))
        for step in chain.work
    ]
    run = _inline if lanes == "inline" else _beside
    done, took, ends = run(chain, durations, seconds.issue, is_ahead=lanes == "streams")
    busy = [0.0] * len(LANES)
    last = chain.plans[-1]
    for piece, took_s in zip(last, took[len(took) - len(last) :], strict=True):
        busy[piece.lane] += took_s
        busy[DISK] += durations[piece.work].written
    issue_s = seconds.issue * sum(piece.lane == COMPUTE for piece in last)
    round_s = sum(durations[piece.work].rounded for piece in last)
    spans: list[_Done] = []
    if path is not None or gradients:
        pieces = [(number, piece) for number, plan in enumerate(chain.plans) for piece in plan]
        spans = [
            (n, p.lane, chain.work[p.work], end - took_s, end)
            for (n, p), end, took_s in zip(pieces, done, took, strict=True)
        ]
    return Simulation(
        ends[-1] - (ends[-2] if len(ends) > 1 else 0.0),
        {**dict(zip(LANES, busy, strict=True)), "issue": issue_s, "round": round_s},
        tuple(TraceSpan(LANES[lane], *_label(w, path), n, a, b) for n, lane, w, a, b in spans) if path else (),
        _staged(spans, gradients) if gradients else 0,
    )


class _Duration(NamedTuple):
    """How long work keeps its lane busy.

    Args:
        own: of itself.
        rounded: before it, in the thread of its lane alone.
        copied: longer, before the check of its plan is done.
        written: longer, until the disk has what it leaves.
    """

    own: float
    rounded: float
    copied: float
    written: float


_Done = tuple[int, int, Step | Read, float, float]  # number of the plan, lane, what was done, begin, end
# by piece when it is done, and how long it took; by plan when the issuing thread is at its end
_Times = tuple[list[float], list[float], list[float]]


def _inline(chain: Chain, durations: Sequence[_Duration], issue: float, *, is_ahead: bool) -> _Times:
    """One thread does everything, in the order of the plan, where updates ahead come before the check."""
    now, done, took, ends = 0.0, [], [], []
    for plan in chain.plans:
        for piece in plan:
            took.append(sum(durations[piece.work]))
            now += took[-1] + (issue if piece.lane == COMPUTE else 0.0)
            done.append(now)
        ends.append(now)
    return done, took, ends


def _beside(chain: Chain, durations: Sequence[_Duration], issue: float, *, is_ahead: bool) -> _Times:
    """Lanes beside each other.

    Args:
        is_ahead: whether the issuing thread goes on while the device computes and copies.
    """
    done: list[float] = []
    took: list[float] = []
    issued: list[float] = []
    ends: list[float] = []
    main = 0.0
    free, thread = [0.0] * len(LANES), [0.0] * len(LANES)
    # of the host: rank, piece, when it may begin, number of the plan
    waiting: list[tuple[int, int, float, int]] = []
    checked_s = [math.inf] * len(chain.plans)
    works = [piece.work for plan in chain.plans for piece in plan]
    checks = {number for number, what in enumerate(chain.work) if isinstance(what, Step) and what.op is Op.CHECK}
    disk = _Disk()

    def finish(piece: int) -> None:
        """Have the host do what it does until a piece is done."""
        while done[piece] < 0:
            may = [one for one in waiting if one[2] <= free[HOST]]
            chosen = min(may) if may else waiting[0]
            waiting.remove(chosen)
            begin, (_, one, _, number) = max(free[HOST], chosen[2]), chosen
            own, _, copied, written = durations[works[one]]
            own += copied if begin < checked_s[number] else 0.0
            free[HOST] = done[one] = issued[one] = disk.take(begin + own, written)
            took[one] = own + written
            if works[one] in checks:
                checked_s[number] = done[one]

    for number, (plan, awaited) in enumerate(zip(chain.plans, chain.awaited, strict=True)):
        planned = main
        for lane, work, after, is_blocking, rank in plan:
            ready = known = planned if lane == DISK else main
            for other in after:
                if done[other] < 0:
                    finish(other)
                ready = done[other] if done[other] > ready else ready
                known = issued[other] if issued[other] > known else known
            if lane == HOST:
                waiting.append((rank, len(done), ready, number))
                done.append(-1.0)
                took.append(0.0)
                issued.append(-1.0)
                continue
            own = durations[work].own
            took.append(own)
            if lane == DISK:
                thread[DISK] = disk.take(max(thread[DISK], known), own)
                done.append(thread[DISK])
                issued.append(thread[DISK])
                continue
            if lane == COMPUTE:
                main = known + issue
                begun = main
            else:
                begun = (thread[lane] if thread[lane] > known else known) + durations[work].rounded
            end = max(free[lane], ready, begun) + own
            free[lane] = end
            done.append(end)
            seen = end if is_blocking or not is_ahead else begun
            issued.append(seen)
            if lane != COMPUTE:
                thread[lane] = seen
            elif not is_ahead:
                main = end
        for piece in awaited:
            if done[piece] < 0:
                finish(piece)
        main = max([main, *(done[piece] for piece in awaited)])
        ends.append(main)
    while waiting:
        finish(waiting[0][1])
    return done, took, ends


class _Disk:
    """One disk for all who read and write: work takes the time that is free once it is ready, in pieces if need be."""

    def __init__(self) -> None:
        self._begins: list[float] = []
        self._ends: list[float] = []

    def take(self, ready: float, seconds: float) -> float:
        """When work is done that is ready then and takes so long."""
        if not seconds:
            return ready
        index = bisect.bisect_right(self._ends, ready)
        now, first = ready, index
        begin = min(ready, self._begins[index]) if index < len(self._begins) else ready
        while index < len(self._begins) and self._begins[index] - now < seconds:
            seconds -= max(0.0, self._begins[index] - now)
            now = self._ends[index]
            index += 1
        self._begins[first:index] = [begin]
        self._ends[first:index] = [now + seconds]
        return now + seconds


def _label(what: Step | Read, path: NumberedPath) -> tuple[str, str]:
    if isinstance(what, Read):
        return "read", path.state(what.state)
    match what.op:
        case Op.CHECK:
            return what.op.value, ""
        case Op.UPDATE:
            return what.op.value, path.state(what.state)
        case Op.STORE | Op.FETCH:
            return what.op.value, path.value(what.value)
        case _:
            return what.op.value, path.state(path.layers[what.layer % len(path.layers)].key)


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


def lifted(chain: Chain, seconds: PathSeconds, *, lanes: str) -> dict[str, float]:
    """By lane, the time of a step if that lane were twice as fast: what would lift the bound."""
    return {lane: simulate(chain, _faster(seconds, lane), lanes=lanes).step_s for lane in (*LANES, "issue", "round")}


def _faster(seconds: PathSeconds, lane: str) -> PathSeconds:
    def half(value: float, own: str) -> float:
        return value / 2 if own == lane else value

    layers = [
        LayerSeconds(
            half(one.load, "up"),
            half(one.forward, "compute"),
            half(one.backward, "compute"),
            half(one.send, "down"),
            half(one.save, "down"),
            half(one.round, "round"),
        )
        for one in seconds.layers
    ]
    return replace(
        seconds,
        layers=layers,
        updates={state: half(value, "host") for state, value in seconds.updates.items()},
        copies={state: half(value, "host") for state, value in seconds.copies.items()},
        values={name: half(value, "up") for name, value in seconds.values.items()},
        check=half(seconds.check, "host"),
        issue=half(seconds.issue, "issue"),
        files={
            state: (half(weights, "disk"), half(rest, "disk"), half(all_of_it, "disk"))
            for state, (weights, rest, all_of_it) in seconds.files.items()
        },
    )
