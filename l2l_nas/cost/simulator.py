"""The simulator: a discrete-event run of the plan that the executor carries out.

Lanes do their work in the order in which the plan issues it, each piece after what its `after` names. What the host
waits for is part of it: a thread that computes (a CPU) issues nothing meanwhile, copies of gradients wait until they
have arrived, the loss is read before the next step is planned. Steps follow each other, each taking over what the last
plan left, and the last one is reported: a step in the midst of training.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from l2l_nas.relay.path import NOTHING_SPILLED, PathLayer, Spill
from l2l_nas.relay.plan import Carry, Op, Plan, Step, UpdatePolicy, plan_training
from l2l_nas.relay.trace import Span

LANES = ("compute", "up", "down", "host")
# the lane of each operation; those without one take no time
LANE: Mapping[Op, str] = {
    Op.LOAD: "up",
    Op.FETCH: "up",
    Op.SAVE: "down",
    Op.STORE: "down",
    Op.SEND: "down",
    Op.CHECK: "host",
    Op.UPDATE: "host",
    Op.FORWARD: "compute",
    Op.ENTER: "compute",
    Op.TAIL: "compute",
    Op.LEAVE: "compute",
    Op.BACKWARD: "compute",
}
# copies that the thread of their lane waits for: it reads what they bring
_BLOCKING = (Op.SAVE,)
# operations that the issuing thread waits for before a step is over
_AWAITED = (Op.SAVE, Op.CHECK)
_DIGITS = 9  # of seconds: what ends and begins at the same time must compare as equal
# an update ahead of the check first copies what AdamW's reads and writes 28 bytes for: 12 bytes, read and written
SAVING = 24 / 28
_STEPS = 3  # the first begins with empty slots, the second with what that one left


@dataclass(frozen=True)
class RelayShape:
    """The settings of a relay that decide its plans.

    Args:
        slots: how many.
        keep: length of the tail.
        update: when states are updated.
        spill: what waits on the host.
    """

    slots: int = 2
    keep: int = 1
    update: UpdatePolicy = UpdatePolicy.EAGER
    spill: Spill = NOTHING_SPILLED


@dataclass(frozen=True)
class LayerSeconds:
    """What a layer of the path takes of each lane.

    Args:
        load: its weights and buffers, to the device.
        forward: all micro-batches.
        backward: all micro-batches, without the forward that is run again.
        send: its gradients, to the host.
        save: its buffers, either way.
    """

    load: float
    forward: float
    backward: float
    send: float
    save: float = 0.0


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
    """

    layers: Sequence[LayerSeconds]
    updates: Mapping[str, float]
    values: Mapping[str, float] = field(default_factory=dict)
    check: float = 0.0
    issue: float = 0.0
    copy: float = 0.0
    batches: int = 1
    copies: Mapping[str, float] = field(default_factory=dict)

    def of(self, step: Step) -> float:
        """How long a step keeps its lane busy: the one table of durations."""
        layers = self.layers
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


@dataclass(frozen=True)
class Simulation:
    """A simulated step in the midst of training.

    Args:
        step_s: from one step's end to the next one's.
        busy_s: by lane, how long it works in a step; "issue" is the thread that issues the work.
        spans: what each lane did, from the first step, which begins with empty slots; if that was asked for.
        staged_bytes: the most bytes of gradients that waited on the host at a time, if that was asked for.
    """

    step_s: float
    busy_s: Mapping[str, float]
    spans: tuple[Span, ...] = ()
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


class _Piece(NamedTuple):
    """A step that keeps a lane busy.

    Args:
        lane: its number.
        work: number of what is done, among those of the chain that differ.
        after: earlier pieces that must be done first, of earlier plans too.
        is_blocking: whether the thread of its lane waits until it is done.
        rank: of the host's works that may begin, the least goes first; 0 stays in its place.
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
        work: what there is to do: steps that differ.
        plans: by plan, its pieces.
        awaited: by plan, pieces that the issuing thread waits for at the end.
    """

    work: tuple[Step, ...]
    plans: tuple[tuple[_Piece, ...], ...]
    awaited: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, path: Sequence[PathLayer], shape: RelayShape, *, steps: int = _STEPS) -> Chain:
        """Of a path that is trained again and again.

        Raises:
            SettingError: no slots, no tail, or an empty path.
        """
        builder = _Builder()
        ranks = dict(reversed([(state, place + 1) for place, about in enumerate(path) for state in about.trainable]))
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
            builder.add(plan, ranks, is_ahead=shape.update is UpdatePolicy.AHEAD)
            carry = plan.leaves
        return cls(tuple(builder.work), tuple(builder.plans), tuple(builder.awaited))


class _Builder:
    def __init__(self) -> None:
        self.work: dict[Step, int] = {}
        self.plans: list[tuple[_Piece, ...]] = []
        self.awaited: list[tuple[int, ...]] = []
        self._count = 0
        self._slots: dict[int, list[int]] = {}  # what the last plan did with each slot since its last load
        self._updates: dict[str, tuple[int, ...]] = {}

    def add(self, plan: Plan, ranks: Mapping[str, int], *, is_ahead: bool) -> None:
        """The next plan, and the ranks of its updates by state; whether these may run ahead of the check."""
        found: list[tuple[int, ...]] = []  # by step, the pieces that it stands for
        pieces: list[_Piece] = []
        awaited: list[int] = []
        has_sent = False
        slots: dict[int, list[int]] = {}
        for step in plan.steps:
            after = tuple(dict.fromkeys(piece for other in step.after for piece in found[other]))
            if step.op in LANE:
                what = Step(step.op, step.layer, state=step.state, value=step.value)
                number = self.work.setdefault(what, len(self.work))
                lane = LANES.index(LANE[step.op])
                is_blocking = lane == _HOST or step.op in _BLOCKING
                rank = -1 if is_ahead and step.op is Op.CHECK else ranks.get(step.state, 0)
                pieces.append(_Piece(lane, number, after, is_blocking, rank))
                found.append((self._count,))
                if step.op in _AWAITED or (step.op is Op.SEND and not has_sent):
                    awaited.append(self._count)  # the first gradient brings the loss
                has_sent = has_sent or step.op is Op.SEND
                self._count += 1
            elif step.op is Op.KEEP:
                found.append(tuple(self._slots.get(step.slot, ())))
            elif step.op is Op.AWAIT:
                found.append(self._updates.get(step.state, ()))
            else:
                found.append(after)
            if step.op is Op.UPDATE:
                self._updates[step.state] = found[-1]
            if step.op is Op.LOAD:
                slots[step.slot] = []
            for slot in (step.slot, *step.tail):
                slots.setdefault(slot, []).extend(found[-1])
        self._slots = slots
        self.plans.append(tuple(pieces))
        self.awaited.append(tuple(awaited))


_COMPUTE, _UP, _DOWN, _HOST = range(len(LANES))


def simulate(
    chain: Chain,
    seconds: PathSeconds,
    *,
    lanes: str = "streams",
    names: Sequence[str] = (),
    gradients: Sequence[Mapping[str, int]] = (),
) -> Simulation:
    """Run plans, one after the other.

    A piece of work has two times: when it is issued, which is what other threads of the host wait for, and when it is
    done, which is what the device waits for.

    Args:
        seconds: what each step takes.
        lanes: "streams", "threads" or "inline"; see `Hardware`.
        names: of the layers, for spans; none are recorded without.
        gradients: of each layer, bytes of the gradient of each of its states, to find how many wait on the host.
    """
    durations = [seconds.of(step) for step in chain.work]
    copied = [seconds.copies.get(step.state, 0.0) if step.op is Op.UPDATE else 0.0 for step in chain.work]
    run = _inline if lanes == "inline" else _beside
    done, took, ends = run(chain, durations, copied, seconds.issue, is_ahead=lanes == "streams")
    busy = [0.0] * len(LANES)
    last = chain.plans[-1]
    for piece, took_s in zip(last, took[len(took) - len(last) :], strict=True):
        busy[piece.lane] += took_s
    issue_s = seconds.issue * sum(piece.lane == _COMPUTE for piece in chain.plans[-1])
    spans: list[_Done] = []
    if names or gradients:
        pieces = [(number, piece) for number, plan in enumerate(chain.plans) for piece in plan]
        spans = [
            (n, p.lane, chain.work[p.work], end - took_s, end)
            for (n, p), end, took_s in zip(pieces, done, took, strict=True)
        ]
    return Simulation(
        ends[-1] - (ends[-2] if len(ends) > 1 else 0.0),
        {**dict(zip(LANES, busy, strict=True)), "issue": issue_s},
        tuple(Span(LANES[lane], w.op.value, _name(w, names), n, a, b) for n, lane, w, a, b in spans) if names else (),
        _staged(spans, gradients) if gradients else 0,
    )


_Done = tuple[int, int, Step, float, float]  # number of the plan, lane, what was done, begin, end
# by piece when it is done, and how long it took; by plan when the issuing thread is at its end
_Times = tuple[list[float], list[float], list[float]]


def _inline(
    chain: Chain, durations: Sequence[float], copied: Sequence[float], issue: float, *, is_ahead: bool
) -> _Times:
    """One thread does everything, in the order of the plan, where updates ahead come before the check."""
    now, done, took, ends = 0.0, [], [], []
    for plan in chain.plans:
        for piece in plan:
            took.append(durations[piece.work] + copied[piece.work])
            now += took[-1] + (issue if piece.lane == _COMPUTE else 0.0)
            done.append(now)
        ends.append(now)
    return done, took, ends


def _beside(
    chain: Chain, durations: Sequence[float], copied: Sequence[float], issue: float, *, is_ahead: bool
) -> _Times:
    """Lanes beside each other.

    Args:
        copied: by work, what an update takes longer until the check of its plan is done.
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

    def finish(piece: int) -> None:
        """Have the host do what it does until a piece is done."""
        while done[piece] < 0:
            barrier = next((index for index, one in enumerate(waiting) if not one[0]), len(waiting))
            may = [one for one in waiting[:barrier] if one[2] <= free[_HOST]]
            chosen = min(may) if may else waiting[0]
            waiting.remove(chosen)
            begin, (_, one, _, number) = max(free[_HOST], chosen[2]), chosen
            took[one] = durations[works[one]] + (copied[works[one]] if begin < checked_s[number] else 0.0)
            free[_HOST] = done[one] = issued[one] = begin + took[one]
            if chain.work[works[one]].op is Op.CHECK:
                checked_s[number] = done[one]

    for number, (plan, awaited) in enumerate(zip(chain.plans, chain.awaited, strict=True)):
        for lane, work, after, is_blocking, rank in plan:
            ready = known = main
            for other in after:
                if done[other] < 0:
                    finish(other)
                ready = done[other] if done[other] > ready else ready
                known = issued[other] if issued[other] > known else known
            if lane == _HOST:
                waiting.append((rank, len(done), ready, number))
                done.append(-1.0)
                took.append(0.0)
                issued.append(-1.0)
                continue
            if lane == _COMPUTE:
                main = known + issue
                begun = main
            else:
                begun = thread[lane] if thread[lane] > known else known
            end = max(free[lane], ready, begun) + durations[work]
            free[lane] = end
            done.append(end)
            took.append(durations[work])
            seen = end if is_blocking or not is_ahead else begun
            issued.append(seen)
            if lane != _COMPUTE:
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


def _name(step: Step, names: Sequence[str]) -> str:
    return step.state or step.value or (names[step.layer % len(names)] if step.layer >= 0 else "")


def _staged(work: Iterable[_Done], gradients: Sequence[Mapping[str, int]]) -> int:
    """The most bytes of blocks that gradients wait in, from a copy's begin to the end of the update that uses it.

    Blocks are taken again as the server does: the smallest free one that is large enough, else a new one, which takes
    the place of one that is free.
    """
    events: list[tuple[float, int, str, int]] = []
    for _, _, step, start, end in work:
        if step.op is Op.SEND:
            events += [(round(start, _DIGITS), 1, state, size) for state, size in gradients[step.layer].items()]
        elif step.op is Op.UPDATE:
            events.append((round(end, _DIGITS), 0, step.state, 0))
    free: list[int] = []
    waiting: dict[str, list[int]] = {}
    now = most = 0
    for _, is_sent, state, size in sorted(events):
        if not is_sent:
            free += waiting.pop(state, [])
            continue
        fitting = [block for block in free if block >= size]
        if fitting:
            free.remove(min(fitting))
        elif free:
            now -= free.pop()
        block = min(fitting, default=size)
        now += 0 if fitting else block
        waiting.setdefault(state, []).append(block)
        most = max(most, now)
    return most


def lifted(chain: Chain, seconds: PathSeconds, *, lanes: str) -> dict[str, float]:
    """By lane, the time of a step if that lane were twice as fast: what would lift the bound."""
    return {lane: simulate(chain, _faster(seconds, lane), lanes=lanes).step_s for lane in (*LANES, "issue")}


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
        )
        for one in seconds.layers
    ]
    return PathSeconds(
        layers,
        {state: half(value, "host") for state, value in seconds.updates.items()},
        {name: half(value, "up") for name, value in seconds.values.items()},
        half(seconds.check, "host"),
        half(seconds.issue, "issue"),
        seconds.copy,
        seconds.batches,
        {state: half(value, "host") for state, value in seconds.copies.items()},
    )
