"""The plan: what a training step or a forward will do, as a tuple of steps with their dependencies. Pure data.

[Note: slot reuse] A slot is one block for weights, one for buffers and one for gradients. Its weights may be
overwritten once the last visit that reads them is done; its gradients once they are sent. Every such rule is an entry
of some step's `after`, so that any executor which respects `after`, however concurrent, is safe. `check.py` proves it.

[Note: the tail] The last layers of a path, the tail, run forward, loss and backward, one micro-batch after the other:
they are loaded once, and nothing of them is recomputed. A tail is one layer long, or as long as the device has room
for; when it is the whole path, the relay does exactly what plain training does. Its visits are cut where loads and
gradients need it: `ENTER` takes the first micro-batch through one layer, as soon as that layer is there; `LEAVE` takes
the last micro-batch back through one layer, whose gradient can go then; all that is between is one visit, `TAIL`.

[Note: buffers] A forward visit may change buffers (BatchNorm's statistics). `SAVE` sends them to the host, if it did.
A backward visit runs the layer again, so it starts from the buffers that the forward started from, and its changes are
dropped: each statistic is counted once.

[Note: frames] A value (see `space/values.py`) stays on the device until its last reader's backward, or is spilled:
`STORE` copies it to the host, `FETCH` brings it back. Spilled values pass through a ring of a few frames, so device
memory does not grow with the depth of a chain. Values that are not spilled need no step: visits run one by one.

[Note: across the step boundary] A plan ends by loading the first layer of the next architecture, and leaves updates
under way. The next plan begins with what the last one left: `KEEP` for a slot, `AWAIT` for an update that may be
running, `UPDATE` for gradients that were checked and wait.
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Sequence
from dataclasses import dataclass

from l2l_nas.errors import SettingError
from l2l_nas.relay.path import NOTHING_SPILLED, PathLayer, Spill, learns_from, tail_start, taken_by


class Op(enum.Enum):
    """What a step does."""

    KEEP = "keep"
    AWAIT = "await"
    LOAD = "load"
    FETCH = "fetch"
    FORWARD = "forward"
    ENTER = "enter"
    TAIL = "tail"
    LEAVE = "leave"
    BACKWARD = "backward"
    SAVE = "save"
    STORE = "store"
    SEND = "send"
    CHECK = "check"
    UPDATE = "update"
    FREE = "free"


TAIL_VISITS = (Op.ENTER, Op.TAIL, Op.LEAVE)
VISITS = (Op.FORWARD, *TAIL_VISITS, Op.BACKWARD)


class UpdatePolicy(enum.StrEnum):
    """When the host updates a layer.

    `eager`: as soon as its gradient is complete (L2L-p). `exact`: once the whole gradient is checked (its norm, whether
    it is finite), in forward order during the next step's forward. `ahead`: as `eager`, and once the whole gradient is
    checked, what was updated by then is put back and updated again if it is to be clipped, so that the result is that
    of `exact`. `serial`: all at the end of the step (plain L2L).
    """

    EAGER = "eager"
    AHEAD = "ahead"
    EXACT = "exact"
    SERIAL = "serial"

    @property
    def is_at_once(self) -> bool:
        """Whether a state is updated as soon as its gradient is complete."""
        return self in (UpdatePolicy.EAGER, UpdatePolicy.AHEAD)


@dataclass(frozen=True)
class Step:
    """One step.

    Args:
        op: what to do.
        layer: index in the path, or its length for the first layer of the next path; -1 where there is none.
        slot: the slot it works on, or -1.
        state: the state to update or wait for, or empty.
        value: what STORE and FETCH move.
        frames: the frame that STORE reads or FETCH fills; those that a FORWARD writes its spilled values to, in order.
        tail: for TAIL, the slots of the layers after `layer`.
        after: indices of earlier steps that must be done first.
    """

    op: Op
    layer: int = -1
    slot: int = -1
    state: str = ""
    value: str = ""
    frames: tuple[int, ...] = ()
    tail: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class Carry:
    """What one plan leaves to the next.

    Args:
        held: for each slot, the key of a layer whose present weights it holds, or None.
        updating: states whose update was begun and may be running.
        pending: states whose gradients were checked and wait for their update.
    """

    held: tuple[str | None, ...] = ()
    updating: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Steps, in an order in which they may be done one by one, and what they leave."""

    steps: tuple[Step, ...]
    leaves: Carry


def plan_training(
    path: Sequence[PathLayer],
    *,
    slots: int,
    update: UpdatePolicy = UpdatePolicy.EAGER,
    keep: int = 1,
    spill: Spill = NOTHING_SPILLED,
    carry: Carry | None = None,
    upcoming: PathLayer | None = None,
) -> Plan:
    """Forward through all layers before the tail, the tail, and back through all that learn or have one before them.

    Args:
        path: the layers, first to last.
        slots: number of slots; with 2 or more, the next load is placed before the visit it may overlap.
        update: when states are updated.
        keep: length of the tail, at least 1; it is shorter where the path, the slots or the frames are.
        spill: what waits on the host.
        carry: what the plan before this one left; None for a start from nothing.
        upcoming: the first layer of the next path, if it is known.

    Raises:
        SettingError: no slots, no tail, or an empty path.
    """
    if keep < 1:
        raise SettingError(f"the relay keeps at least the last layer, got keep={keep}")
    first = max(0, tail_start(path, slots=slots, keep=keep, spill=spill))
    learning = learns_from(path)
    visits = [(Op.FORWARD, index) for index in range(first)]
    visits += [(Op.ENTER, index) for index in range(first, len(path))]
    visits += [(Op.TAIL, first)] if path else []
    visits += [(Op.LEAVE, index) for index in range(len(path) - 1, first - 1, -1) if learning[index]]
    visits += [(Op.BACKWARD, index) for index in range(first - 1, -1, -1) if learning[index]]
    return _Builder(path, visits, slots=slots, update=update, spill=spill, carry=carry, upcoming=upcoming).build()


def plan_forward(path: Sequence[PathLayer], *, slots: int, saves_buffers: bool = False) -> Plan:
    """Forward through all layers, as evaluation does.

    Args:
        saves_buffers: send changed buffers to the host, as a recalibration wants.

    Raises:
        SettingError: no slots, or an empty path.
    """
    layers = [PathLayer(layer.key, has_buffers=layer.has_buffers and saves_buffers) for layer in path]
    visits = [(Op.FORWARD, index) for index in range(len(path))]
    return _Builder(layers, visits, slots=slots, update=UpdatePolicy.SERIAL).build()


@dataclass
class _Slot:
    """What a slot holds while a plan is built: the key, its load, and the steps that use it."""

    key: str | None = None
    load: int = -1
    users: tuple[int, ...] = ()
    freed: int = -1


@dataclass
class _Frame:
    """What a frame holds while a plan is built: a value, the step that put it there, and the steps that use it."""

    value: str = ""
    filled: int = -1
    users: tuple[int, ...] = ()


class _Builder:
    def __init__(
        self,
        path: Sequence[PathLayer],
        visits: Sequence[tuple[Op, int]],
        *,
        slots: int,
        update: UpdatePolicy,
        spill: Spill = NOTHING_SPILLED,
        carry: Carry | None = None,
        upcoming: PathLayer | None = None,
    ) -> None:
        if slots < 1:
            raise SettingError(f"the relay needs at least 1 slot, got {slots}")
        if not path:
            raise SettingError("the architecture has no layers: every position is skipped")
        self._path = path
        self._visits = visits
        self._update = update
        self._carry = carry
        self._upcoming = upcoming
        self._slots = [_Slot() for _ in range(slots)]
        self._where: dict[str, int] = {}  # by key, the slot that holds it
        self._spilled = spill.values
        self._frames = [_Frame() for _ in range(spill.frames)]
        self._steps: list[Step] = []
        self._sends: dict[str, list[int]] = {}
        self._saves: dict[str, int] = {}
        self._stores: dict[str, int] = {}
        self._updates: dict[str, int] = {}  # the last UPDATE or AWAIT of a state
        self._updated: list[str] = []
        self._check = -1
        self._loaded_ahead = -1  # the slot that holds the next path's first layer
        self._uses: dict[str, list[int]] = {}  # by key, the numbers of its visits
        # by spilled value, the numbers of the visits that read it
        self._readers: dict[str, list[int]] = {}
        self._awaited: dict[str, int] = {}  # by state, how many gradients are yet to come
        self._first = next((layer for op, layer in visits if op is Op.TAIL), len(path))
        entered = next((number for number, (op, _) in enumerate(visits) if op is Op.ENTER), len(visits))
        for number, (op, layer) in enumerate(visits):
            for value in self._taken(number):
                # what the tail reads stays in its frame until the tail is over
                self._readers.setdefault(value, []).append(entered if op in TAIL_VISITS else number)
            for key in {about.key for about in self._run_by(op, layer)}:
                self._uses.setdefault(key, []).append(number)
            if self._makes_gradients(op, layer):
                for state in path[layer].trainable:
                    self._awaited[state] = self._awaited.get(state, 0) + 1
        self._most_held = self._count_held()

    def _run_by(self, op: Op, layer: int) -> Sequence[PathLayer]:
        return self._path[layer:] if op is Op.TAIL else self._path[layer : layer + 1]

    def _makes_gradients(self, op: Op, layer: int) -> bool:
        """Whether the gradients of a layer are complete after a visit: a repeated layer leaves at its first place."""
        if op is Op.LEAVE:
            return all(self._path[other].key != self._path[layer].key for other in range(self._first, layer))
        return op is Op.BACKWARD

    def _count_held(self) -> list[int]:
        """For each visit, the most slots that it, one behind it, or the tail that one of them is cut from need."""
        keys: set[str] = set()
        distinct = [0] * (self._first + 1)  # by place, of the layers of the tail before it
        for about in self._path[self._first :]:
            keys.add(about.key)
            distinct.append(len(keys))
        most = [0] * (len(self._visits) + 1)
        for number in reversed(range(len(self._visits))):
            op, layer = self._visits[number]
            held = 1 if op not in TAIL_VISITS else distinct[layer + 1 if op is Op.LEAVE else len(self._path)]
            most[number] = max(held, most[number + 1])
        return most

    def _taken(self, number: int) -> tuple[str, ...]:
        """The spilled values that a visit reads."""
        op, layer = self._visits[number]
        taken = taken_by(self._path, self._first) if op in TAIL_VISITS else self._path[layer].reads
        return tuple(name for name in dict.fromkeys(taken) if name in self._spilled)

    def build(self) -> Plan:
        self._take_over()
        previous = -1
        for number in range(len(self._visits)):
            mine = self._provide(number)
            self._prefetch(number, busy=mine)
            previous = self._visit(number, mine, previous)
        self._finish()
        self._load_upcoming(len(self._visits), busy=(), is_over=True)
        for index, slot in enumerate(self._slots):
            if slot.key is not None and index != self._loaded_ahead:
                self._free(index)
        held = tuple(slot.key if index == self._loaded_ahead else None for index, slot in enumerate(self._slots))
        pending = self._awaited if self._update is UpdatePolicy.EXACT else ()
        waiting = tuple(state for state in pending if state not in self._updated)
        updating = [s for s in (self._carry.updating if self._carry else ()) if s not in self._updates]
        return Plan(tuple(self._steps), Carry(held, (*updating, *dict.fromkeys(self._updated)), waiting))

    def _take_over(self) -> None:
        """Begin with what the last plan left."""
        carry = self._carry
        if carry is None:
            return
        for index, key in enumerate(carry.held):
            held_slot = self._add(Op.KEEP, slot=index)
            self._fill(index, _Slot(key, held_slot, (held_slot,)) if key is not None else _Slot(freed=held_slot))
        mine = dict.fromkeys(state for layer in self._path for state in layer.trainable)
        late = self._upcoming.trainable if self._upcoming else ()
        for state in carry.updating:
            if state in mine or state in late:
                self._updates[state] = self._add(Op.AWAIT, state=state)
        # in the order in which the forward will load them; what this path does not have comes last
        for state in [*(s for s in mine if s in carry.pending), *(s for s in carry.pending if s not in mine)]:
            self._add_update(state, after=())

    def _finish(self) -> None:
        """When all gradients are on the host."""
        if self._update is UpdatePolicy.EAGER or not self._awaited:
            return
        sends = [send for own in self._sends.values() for send in own]
        self._check = self._add(Op.CHECK, after=tuple(sends))
        if self._update is UpdatePolicy.AHEAD:
            return
        # forgotten: what was updated for the last step is updated again for this one
        self._updated = [state for state in self._updated if state not in self._awaited]
        if self._update is UpdatePolicy.SERIAL:
            for state in self._awaited:
                self._add_update(state, after=(self._check,))

    def _load_upcoming(self, number: int, *, busy: tuple[int, ...], is_over: bool) -> None:
        """Load the next path's first layer, so that the next step starts at once: as soon as nothing is against it.

        Its slot and its key must be of no more use here, and its updates must be under way. Visits to come may not need
        all slots at a time, as a tail may.
        """
        about = self._upcoming
        if about is None or self._loaded_ahead >= 0:
            return
        if not is_over:
            if self._most_held[number] >= len(self._slots) or self._next_use(about.key, number) < len(self._visits):
                return
            done = self._updated if self._update is UpdatePolicy.EAGER else ()
            if any(state in self._awaited and state not in done for state in about.trainable):
                return
        elif self._update is UpdatePolicy.EXACT:
            for state in about.trainable:
                if state in self._awaited and state not in self._updated:
                    self._add_update(state, after=(self._check,))
        index = self._victim(number, need=len(self._visits) - 1, busy=busy)
        if index is not None:
            self._load_into(index, len(self._path), about)
            self._loaded_ahead = index

    def _add(
        self,
        op: Op,
        *,
        layer: int = -1,
        slot: int = -1,
        state: str = "",
        value: str = "",
        frames: tuple[int, ...] = (),
        tail: tuple[int, ...] = (),
        after: tuple[int, ...] = (),
    ) -> int:
        unique = tuple(sorted({index for index in after if index >= 0}))
        self._steps.append(Step(op, layer, slot, state, value, frames, tail, unique))
        return len(self._steps) - 1

    def _find(self, layer: int) -> int | None:
        return self._where.get(self._path[layer].key)

    def _fill(self, index: int, slot: _Slot) -> None:
        """Have a slot hold something else, or nothing."""
        before = self._slots[index].key
        if before is not None and self._where[before] == index:
            del self._where[before]
        self._slots[index] = slot
        if slot.key is not None:
            self._where[slot.key] = index

    def _provide(self, number: int) -> tuple[int, ...]:
        """Have the layers of a visit in slots, and the spilled values that it reads in frames."""
        op, layer = self._visits[number]
        mine: list[int] = []
        for place in range(layer, layer + len(self._run_by(op, layer))):
            index = self._find(place)
            if index is None:
                index = self._victim(number, need=number, busy=())
                assert index is not None
                self._load_into(index, place, self._path[place])
            mine.append(index)
        taken = self._taken(number)
        for value in taken:
            self._fetch(value, layer, spared=taken)
        return tuple(mine)

    def _prefetch(self, number: int, *, busy: tuple[int, ...]) -> None:
        """Ask for what the visits after this one need, so that it comes while this one runs.

        The next missing layer goes to the slot whose content is needed latest, unless that is needed sooner than it.
        """
        if number + 1 < len(self._visits):
            following = self._taken(number + 1)
            spared = tuple(dict.fromkeys((*self._taken(number), *following)))
            op, layer = self._visits[number]
            written = self._spilled.intersection(self._path[layer].writes) if op is Op.FORWARD else ()
            if len(spared) + len(written) <= len(self._frames):
                for value in following:
                    self._fetch(value, self._visits[number + 1][1], spared=spared)
        for ahead in range(number + 1, min(number + 1 + len(self._slots), len(self._visits))):
            op, layer = self._visits[ahead]
            for place in range(layer, layer + len(self._run_by(op, layer))):
                if self._find(place) is not None:
                    continue
                index = self._victim(number + 1, need=ahead, busy=busy)
                if index is None:
                    return
                self._load_into(index, place, self._path[place])
        self._load_upcoming(number + 1, busy=busy, is_over=False)

    def _next_use(self, key: str | None, number: int) -> int:
        """Number of the first visit from `number` on that needs a key; their count if none does."""
        uses = self._uses.get(key, []) if key is not None else []
        place = bisect.bisect_left(uses, number)
        return uses[place] if place < len(uses) else len(self._visits)

    def _victim(self, number: int, *, need: int, busy: tuple[int, ...]) -> int | None:
        """The slot, of those not busy, whose content is needed latest (Belady's rule), and later than `need`."""

        def rank(index: int) -> tuple[int, bool, int]:
            slot = self._slots[index]
            return self._next_use(slot.key, number), slot.key is None, -max(slot.users, default=-1)

        free = [i for i in range(len(self._slots)) if i not in busy and i != self._loaded_ahead and rank(i)[0] > need]
        return max(free, key=rank, default=None)

    def _load_into(self, index: int, layer: int, about: PathLayer) -> None:
        self._free(index)
        # the newest weights, and the buffers that the layer's previous visit saved
        fresh = [self._updates.get(state, -1) for state in about.trainable]
        # with `ahead` the check puts back, or lets stand, what was updated before it
        check = self._check if self._update is UpdatePolicy.AHEAD else -1
        after = (self._slots[index].freed, self._saves.get(about.key, -1), *fresh, check)
        load = self._add(Op.LOAD, layer=layer, slot=index, after=after)
        self._fill(index, _Slot(key=about.key, load=load, users=(load,)))

    def _fetch(self, value: str, layer: int, *, spared: Sequence[str]) -> None:
        """Bring a spilled value back for a layer, unless a frame holds it."""
        if value not in self._stores or any(frame.value == value for frame in self._frames):
            return
        index = self._free_frame(spared)
        frame = self._frames[index]
        after = (self._stores[value], *frame.users)
        fetch = self._add(Op.FETCH, layer=layer, value=value, frames=(index,), after=after)
        self._frames[index] = _Frame(value, fetch, (fetch,))

    def _free_frame(self, spared: Sequence[str]) -> int:
        """The frame that was used longest ago, but none with these values."""
        free = (index for index, frame in enumerate(self._frames) if frame.value not in spared)
        return min(free, key=lambda index: max(self._frames[index].users, default=-1))

    def _visit(self, number: int, mine: tuple[int, ...], previous: int) -> int:
        op, layer = self._visits[number]
        after = [previous]
        for index in mine:
            after.append(self._slots[index].load)
            if op is not Op.LEAVE:  # which changes no buffers, so that it need not wait until they are saved
                # users: a repeated layer that is in its slot may not run again before its gradients or buffers are sent
                after += self._slots[index].users
        taken = self._taken(number)
        sources = [frame for frame in self._frames if frame.value in taken]
        after += [frame.filled for frame in sources]
        written = [name for name in self._path[layer].writes if name in self._spilled] if op is Op.FORWARD else []
        targets: list[int] = []
        for name in written:
            targets.append(self._free_frame(spared=(*taken, *written)))
            after += self._frames[targets[-1]].users
            self._frames[targets[-1]] = _Frame(name)
        visit = self._add(op, layer=layer, slot=mine[0], frames=tuple(targets), tail=mine[1:], after=tuple(after))
        for frame in sources:
            frame.users = (*frame.users, visit)
        for name, index in zip(written, targets, strict=True):
            self._frames[index] = _Frame(name, visit, (visit,))
            if any(reader > number + 1 for reader in self._readers.get(name, ())):
                self._stores[name] = self._add(Op.STORE, layer=layer, value=name, frames=(index,), after=(visit,))
                self._frames[index].users = (visit, self._stores[name])
        places = dict(reversed([(index, place) for place, index in enumerate(mine, start=layer)]))
        for index, place in sorted(places.items(), key=lambda item: -item[1]):
            self._follow(op, place, index, visit)
        return visit

    def _follow(self, op: Op, layer: int, index: int, visit: int) -> None:
        """What a visit leaves in a slot goes to the host."""
        slot = self._slots[index]
        users = [*slot.users, visit]
        about = self._path[layer]
        if about.has_buffers and op in (Op.FORWARD, Op.TAIL):
            self._saves[about.key] = self._add(Op.SAVE, layer=layer, slot=index, after=(visit,))
            users.append(self._saves[about.key])
        if about.trainable and self._makes_gradients(op, layer):
            send = self._add(Op.SEND, layer=layer, slot=index, after=(visit,))
            users.append(send)
            for state in about.trainable:
                sends = self._sends.setdefault(state, [])
                sends.append(send)
                if self._update.is_at_once and len(sends) == self._awaited[state]:
                    self._add_update(state, after=tuple(sends))
        slot.users = tuple(users)

    def _add_update(self, state: str, *, after: tuple[int, ...]) -> None:
        after = (*after, self._updates.get(state, -1))
        self._updates[state] = self._add(Op.UPDATE, state=state, after=after)
        self._updated.append(state)

    def _free(self, index: int) -> None:
        slot = self._slots[index]
        if slot.key is not None:
            freed = self._add(Op.FREE, slot=index, after=slot.users)
            self._fill(index, _Slot(freed=freed))
