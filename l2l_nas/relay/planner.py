"""The planner: decides what a training step or a forward does, from its path and what the last plan left.

Which slot a load overwrites stands in `replacement.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from l2l_nas.errors import SettingError
from l2l_nas.relay.path import NOTHING_SPILLED, Name, PathLayer, Spill, last_to_learn, learns_from, tail_start, taken_by
from l2l_nas.relay.plan import TAIL_VISITS, Carry, Op, Plan, Step, UpdateOrder
from l2l_nas.relay.replacement import SlotTable, VisitList

_PLANS = 128  # that are kept; most steps of a search have the plan of another one
_FRESH = Carry()


def plan_training(
    path: Sequence[PathLayer],
    *,
    slots: int,
    update: UpdateOrder = UpdateOrder.EAGER,
    keep: int = 1,
    spill: Spill = NOTHING_SPILLED,
    carry: Carry | None = None,
    upcoming: PathLayer | None = None,
) -> Plan:
    """Forward through all layers before the tail, the tail, and back through all that learn or have one before them.

    Args:
        slots: number of slots; with 2 or more, the next load is placed before the visit it may overlap.
        keep: length of the tail, at least 1; it is shorter where the path, the slots or the frames are.
        carry: what the plan before this one left; None for a start from nothing.
        upcoming: the first layer of the next path, if it is known.
    """
    return _training(tuple(path), slots, update, keep, spill, carry or _FRESH, upcoming)


def plan_forward(path: Sequence[PathLayer], *, slots: int, saves_buffers: bool = False) -> Plan:
    """Forward through all layers, as evaluation does; a recalibration saves their buffers, too."""
    return _forward(tuple(PathLayer(one.key, has_buffers=one.has_buffers and saves_buffers) for one in path), slots)


@lru_cache(_PLANS)
def _training(
    path: tuple[PathLayer, ...],
    slots: int,
    update: UpdateOrder,
    keep: int,
    spill: Spill,
    carry: Carry,
    upcoming: PathLayer | None,
) -> Plan:
    if keep < 1:
        raise SettingError(f"the relay keeps at least the last layer, got keep={keep}")
    first = tail_start(path, slots=slots, keep=keep, spill=spill)
    learning = learns_from(path)
    visits = [(Op.FORWARD, index) for index in range(first)]
    visits += [(Op.ENTER, index) for index in range(first, len(path))]
    visits += [(Op.TAIL, first)]
    visits += [(Op.LEAVE, index) for index in range(len(path) - 1, first - 1, -1) if learning[index]]
    visits += [(Op.BACKWARD, index) for index in range(first - 1, -1, -1) if learning[index]]
    return _Builder(path, visits, slots=slots, update=update, spill=spill, carry=carry, upcoming=upcoming).build()


@lru_cache(_PLANS)
def _forward(path: tuple[PathLayer, ...], slots: int) -> Plan:
    return _Builder(path, [(Op.FORWARD, index) for index in range(len(path))], slots=slots).build()


@dataclass
class _Frame:
    """What a frame holds at one point of a plan: a value, the step that put it there, and the steps that use it."""

    value: Name | None = None
    filled: int = -1
    users: tuple[int, ...] = ()


class _Builder:
    """Builds one plan, visit by visit. Its tables say which earlier steps a new one must wait for."""

    def __init__(
        self,
        path: Sequence[PathLayer],
        visits: Sequence[tuple[Op, int]],
        *,
        slots: int,
        update: UpdateOrder = UpdateOrder.EAGER,
        spill: Spill = NOTHING_SPILLED,
        carry: Carry = _FRESH,
        upcoming: PathLayer | None = None,
    ) -> None:
        if slots < 1:
            raise SettingError(f"the relay needs at least 1 slot, got {slots}")
        if not path:
            raise SettingError("the architecture has no layers: every position is skipped")
        self._path = path
        self._visits = VisitList(path, visits)
        self._carry = carry
        self._upcoming = upcoming
        self._upcoming_slot = -1  # that holds the next path's first layer
        self._steps: list[Step] = []
        self._slots = SlotTable(self._visits, slots)
        self._saves: dict[Name, int] = {}  # by key
        self._sends: dict[Name, list[int]] = {}  # by state
        # by state, its last UPDATE or AWAIT, and the CHECK that may put it back
        self._changes: dict[Name, tuple[int, ...]] = {}
        self._updated: dict[Name, None] = {}
        self._is_eager = update is UpdateOrder.EAGER
        states = self._visits.gradient_counts.keys()
        # when the last gradient comes all others are there: nothing is won by an update ahead of their check
        late = {UpdateOrder.CHECKED: states, UpdateOrder.AHEAD: last_to_learn(self._path)}.get(update, ())
        self._updated_at_once = states - late
        self._spilled = spill.values
        self._frames = [_Frame() for _ in range(spill.frames)]
        self._stores: dict[Name, int] = {}  # by value
        tail_start = self._visits.tail_start
        self._tail_reads = self._only_spilled(taken_by(self._path, tail_start)) if self._spilled else ()
        self._last_reader: dict[Name, int] = {}  # by value, the number of a visit
        for number in range(len(self._visits)) if self._spilled else ():
            for value in self._spilled_reads(number):
                # what the tail reads stays in its frame until the tail is over; it begins behind all forwards
                self._last_reader[value] = tail_start if self._visits[number][0] in TAIL_VISITS else number

    def build(self) -> Plan:
        self._take_over()
        previous = -1
        for number in range(len(self._visits)):
            slots = self._load_for(number)
            self._prefetch(number)
            previous = self._visit(number, slots, previous)
        self._check_and_update()
        self._load_upcoming(len(self._visits), is_over=True)
        left: list[Name | None] = []
        for index, content in enumerate(self._slots.contents):
            left.append(content.key if index == self._upcoming_slot else None)
            if index != self._upcoming_slot and content.key is not None:
                self._add(Op.FREE, slot=index, after=content.users)
        updating = [state for state in self._carry.updating if state not in self._changes]
        return Plan(tuple(self._steps), Carry(tuple(left), (*updating, *self._updated)))

    def _take_over(self) -> None:
        for index, key in enumerate(self._carry.slot_keys):
            kept = self._add(Op.CARRY, slot=index)
            if key is None:
                self._slots.contents[index].freed = kept
            else:
                self._slots.put(index, key, kept, number=0)
        needed = {state for layer in self._path for state in layer.trainable}
        needed.update(self._upcoming.trainable if self._upcoming else ())
        for state in self._carry.updating:
            if state in needed:
                self._changes[state] = (self._add(Op.AWAIT, state=state),)

    def _load_for(self, number: int) -> tuple[int, ...]:
        """Have the layers of a visit in slots, and the spilled values that it reads in frames; returns the slots."""
        op, first = self._visits[number]
        slots: list[int] = []
        for index in range(first, len(self._path) if op is Op.TAIL else first + 1):
            key = self._path[index].key
            if key not in self._slots.slot_of:
                victim = self._slots.victim(after=number)
                assert victim is not None
                self._load(victim, index, number)
            slots.append(self._slots.slot_of[key])
        reads = self._spilled_reads(number)
        for value in reads:
            self._fetch(value, first, spared=reads)
        return tuple(slots)

    def _prefetch(self, number: int) -> None:
        """Ask for what the visits after this one need, so that it comes while this one runs."""
        if self._spilled and number + 1 < len(self._visits):
            self._prefetch_values(number)
        while (missing := self._slots.next_missing(last=number + len(self._slots.contents))) is not None:
            use, layer = missing
            victim = self._slots.victim(after=use)
            if victim is None:
                return
            self._load(victim, layer, number + 1)
        self._load_upcoming(number + 1, is_over=False)

    def _prefetch_values(self, number: int) -> None:
        """Fetch what the next visit reads, if there are frames for that beside what this one reads and writes."""
        reads = self._spilled_reads(number + 1)
        spared = tuple(dict.fromkeys((*self._spilled_reads(number), *reads)))
        op, layer = self._visits[number]
        writes = self._spilled.intersection(self._path[layer].writes) if op is Op.FORWARD else ()
        if len(spared) + len(writes) <= len(self._frames):
            for value in reads:
                self._fetch(value, self._visits[number + 1][1], spared=spared)

    def _load_upcoming(self, number: int, *, is_over: bool) -> None:
        """Load the next path's first layer, so that the next step starts at once: as soon as nothing is against it.

        Before the plan is over, three things are against it: visits to come that need every slot, as a tail may, or the
        layer itself; updates of it that were not issued, as they come later in the plan than the load would; and the
        visit that runs meanwhile, if it changes its buffers, which are saved behind that visit.
        """
        layer = self._upcoming
        if layer is None or self._upcoming_slot >= 0:
            return
        visits = self._visits
        if not is_over:
            is_needed = visits.next_use(layer.key, number) < len(visits)
            if is_needed or visits.slots_needed(number) >= len(self._slots.contents):
                return
            done = self._updated if self._is_eager else ()  # else the check may put it back
            if any(state in visits.gradient_counts and state not in done for state in layer.trainable):
                return
            if layer.has_buffers and visits.next_use(layer.key, number - 1) < number:
                return
        victim = self._slots.victim(after=len(visits) - 1)
        if victim is not None:
            self._load(victim, len(self._path), number)
            self._upcoming_slot = victim
            self._slots.pin(victim)

    def _load(self, slot: int, index: int, number: int) -> None:
        """Load a layer that a visit from `number` on needs; behind the path stands the next one's first layer."""
        layer = self._path[index] if index < len(self._path) else self._upcoming
        assert layer is not None
        self._free(slot, number)
        # the newest weights, and the buffers that the layer's previous visit saved
        changes = [change for state in layer.trainable for change in self._changes.get(state, ())]
        after = (self._slots.contents[slot].freed, self._saves.get(layer.key, -1), *changes)
        self._slots.put(slot, layer.key, self._add(Op.LOAD, index, slot, after=after), number=number)

    def _free(self, slot: int, number: int) -> None:
        content = self._slots.contents[slot]
        if content.key is not None:
            self._slots.clear(slot, freed=self._add(Op.FREE, slot=slot, after=content.users), number=number)

    def _visit(self, number: int, slots: tuple[int, ...], previous: int) -> int:
        op, layer = self._visits[number]
        contents = self._slots.contents
        after = [previous]
        for slot in slots:
            after.append(contents[slot].load)
            if op is not Op.LEAVE:  # which changes no buffers, so that it need not wait until they are saved
                # users: a repeated layer that is in its slot may not run again before its gradients or buffers are sent
                after += contents[slot].users
        reads = self._spilled_reads(number)
        sources = [frame for frame in self._frames if frame.value in reads] if reads else []
        after += [frame.filled for frame in sources]
        writes = self._only_spilled(self._path[layer].writes) if op is Op.FORWARD and self._spilled else ()
        targets: list[int] = []
        for value in writes:
            targets.append(self._frame_for(spared=(*reads, *writes)))
            after += self._frames[targets[-1]].users
            self._frames[targets[-1]] = _Frame(value)
        visit = self._add(op, layer, slots[0], frames=tuple(targets), tail=slots[1:], after=after)
        for frame in sources:
            frame.users = (*frame.users, visit)
        for value, target in zip(writes, targets, strict=True):
            self._store(value, target, layer, number, visit)
        # last layer first, as a backward leaves them; a layer that is repeated in the tail goes at its first index
        first_index = {slots[0]: layer}
        for index, slot in enumerate(slots[1:], start=layer + 1):
            first_index.setdefault(slot, index)
        for slot, index in reversed(first_index.items()):
            self._save_and_send(number, index, slot, visit)
            self._slots.rank(slot, number + 1)
        return visit

    def _save_and_send(self, number: int, index: int, slot: int, visit: int) -> None:
        """Send to the host what a visit changed: buffers, and gradients that are complete."""
        layer, op = self._path[index], self._visits[number][0]
        users = [visit]
        if layer.has_buffers and op in (Op.FORWARD, Op.TAIL):
            self._saves[layer.key] = self._add(Op.SAVE, index, slot, after=(visit,))
            users.append(self._saves[layer.key])
        if layer.trainable and number in self._visits.complete_gradients:
            users.append(self._add(Op.SEND, index, slot, after=(visit,)))
            for state in layer.trainable:
                sends = self._sends.setdefault(state, [])
                sends.append(users[-1])
                if state in self._updated_at_once and len(sends) == self._visits.gradient_counts[state]:
                    self._add_update(state, after=sends)
        content = self._slots.contents[slot]
        content.users = (*content.users, *users)

    def _add_update(self, state: Name, *, after: Sequence[int]) -> None:
        update = self._add(Op.UPDATE, state=state, after=(*after, *self._changes.get(state, ())))
        self._changes[state] = (update,)
        self._updated[state] = None

    def _check_and_update(self) -> None:
        """Once all gradients are on the host: check them, and update what waited for that."""
        if self._is_eager or not self._visits.gradient_counts:
            return
        check = self._add(Op.CHECK, after=[send for sends in self._sends.values() for send in sends])
        for state in self._updated:
            self._changes[state] = (*self._changes[state], check)
        # in the order in which the next forward needs them
        for state in dict.fromkeys(state for layer in self._path for state in layer.trainable):
            if state in self._visits.gradient_counts and state not in self._updated:
                self._add_update(state, after=(check,))

    def _only_spilled(self, values: Sequence[Name]) -> tuple[Name, ...]:
        return tuple(value for value in dict.fromkeys(values) if value in self._spilled)

    def _spilled_reads(self, number: int) -> tuple[Name, ...]:
        if not self._spilled:
            return ()
        op, layer = self._visits[number]
        return self._tail_reads if op in TAIL_VISITS else self._only_spilled(self._path[layer].reads)

    def _store(self, value: Name, index: int, layer: int, number: int, visit: int) -> None:
        """Note what a visit wrote to a frame; copy it to the host, unless the next visit is the last to read it."""
        self._frames[index] = _Frame(value, visit, (visit,))
        if self._last_reader.get(value, -1) > number + 1:
            self._stores[value] = self._add(Op.STORE, layer, value=value, frames=(index,), after=(visit,))
            self._frames[index].users = (visit, self._stores[value])

    def _fetch(self, value: Name, layer: int, *, spared: Sequence[Name]) -> None:
        """Bring a spilled value back for a layer, unless a frame holds it."""
        if value not in self._stores or any(frame.value == value for frame in self._frames):
            return
        index = self._frame_for(spared)
        after = (self._stores[value], *self._frames[index].users)
        fetch = self._add(Op.FETCH, layer, value=value, frames=(index,), after=after)
        self._frames[index] = _Frame(value, fetch, (fetch,))

    def _frame_for(self, spared: Sequence[Name]) -> int:
        """The frame that was used longest ago, but none with these values."""
        free = (index for index, frame in enumerate(self._frames) if frame.value not in spared)
        return min(free, key=lambda index: max(self._frames[index].users, default=-1))

    def _add(
        self,
        op: Op,
        layer: int = -1,
        slot: int = -1,
        *,
        state: Name = -1,
        value: Name = -1,
        frames: tuple[int, ...] = (),
        tail: tuple[int, ...] = (),
        after: Sequence[int] = (),
    ) -> int:
        if len(after) > 1:
            known = set(after)
            known.discard(-1)  # no step
            after = sorted(known)
        elif -1 in after:
            after = ()
        self._steps.append(Step(op, layer, slot, state, value, frames, tail, tuple(after)))
        return len(self._steps) - 1
