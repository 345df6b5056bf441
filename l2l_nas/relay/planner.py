"""The planner: decides what a training step or a forward does, from its path and what the last plan left.

Its work grows with the path and the slots, whatever is kept: what is needed latest, and what is missing next, stand at
the head of a heap each, whose outdated entries are dropped when they come up.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from l2l_nas.errors import SettingError
from l2l_nas.relay.path import NOTHING_SPILLED, Name, PathLayer, Spill, last_to_learn, learns_from, tail_start, taken_by
from l2l_nas.relay.plan import TAIL_VISITS, Carry, Op, Plan, Step, UpdateOrder

_PLANS = 128  # that are kept; most steps of a search have the plan of another one


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
    return _training(tuple(path), slots, update, keep, spill, carry, upcoming)


def plan_forward(path: Sequence[PathLayer], *, slots: int, saves_buffers: bool = False) -> Plan:
    """Forward through all layers, as evaluation does.

    Args:
        saves_buffers: send changed buffers to the host, as a recalibration wants.

    Raises:
        SettingError: no slots, or an empty path.
    """
    return _forward(tuple((layer.key, layer.has_buffers and saves_buffers) for layer in path), slots)


@lru_cache(_PLANS)
def _training(
    path: tuple[PathLayer, ...],
    slots: int,
    update: UpdateOrder,
    keep: int,
    spill: Spill,
    carry: Carry | None,
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
def _forward(path: tuple[tuple[Name, bool], ...], slots: int) -> Plan:
    layers = [PathLayer(key, has_buffers=has_buffers) for key, has_buffers in path]
    visits = [(Op.FORWARD, index) for index in range(len(path))]
    return _Builder(layers, visits, slots=slots, update=UpdateOrder.EAGER).build()


# of a slot: the visit that needs its content next (negative: latest first), whether it holds something, its last use,
# its number
_Rank = tuple[int, bool, int, int]


@dataclass
class _Slot:
    """What a slot holds while a plan is built: the key, its load, and the steps that use it."""

    key: Name | None = None
    load: int = -1
    users: tuple[int, ...] = ()
    freed: int = -1
    rank: _Rank | None = None  # None: it may not be loaded again


@dataclass
class _Frame:
    """What a frame holds while a plan is built: a value, the step that put it there, and the steps that use it."""

    value: Name | None = None
    filled: int = -1
    users: tuple[int, ...] = ()


class _Builder:
    def __init__(
        self,
        path: Sequence[PathLayer],
        visits: Sequence[tuple[Op, int]],
        *,
        slots: int,
        update: UpdateOrder,
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
        self._carry = carry or Carry()
        self._upcoming = upcoming
        self._slots = [_Slot() for _ in range(slots)]
        self._latest: list[_Rank] = []  # a heap of slots
        self._where: dict[Name, int] = {}  # by key, the slot that holds it
        self._missing: list[tuple[int, int]] = []  # a heap of keys in no slot: the visit that needs one, and its place
        self._spilled = spill.values
        self._frames = [_Frame() for _ in range(spill.frames)]
        self._steps: list[Step] = []
        self._sends: dict[Name, list[int]] = {}
        self._saves: dict[Name, int] = {}
        self._stores: dict[Name, int] = {}
        # the last UPDATE or AWAIT of a state, and the CHECK that may put it back
        self._changed: dict[Name, tuple[int, ...]] = {}
        self._updated: dict[Name, None] = {}
        self._loaded_ahead = -1  # the slot that holds the next path's first layer
        self._uses: dict[Name, list[int]] = {}  # by key, the numbers of its visits
        # by spilled value, the numbers of the visits that read it
        self._readers: dict[Name, list[int]] = {}
        self._awaited: dict[Name, int] = {}  # by state, how many gradients it gets
        self._first = next((layer for op, layer in visits if op is Op.TAIL), len(path))
        self._tail_places: dict[Name, int] = {}  # by key, its first place in the tail
        for place in range(self._first, len(path)):
            self._tail_places.setdefault(path[place].key, place)
        self._tail_takes = self._of_spilled(taken_by(path, self._first))
        for number, (op, layer) in enumerate(visits):
            for value in self._taken(number) if self._spilled else ():
                # what the tail reads stays in its frame until the tail is over; it begins behind all forwards
                self._readers.setdefault(value, []).append(self._first if op in TAIL_VISITS else number)
            for key in self._tail_places if op is Op.TAIL else (path[layer].key,):
                self._uses.setdefault(key, []).append(number)
            if self._makes_gradients(op, layer):
                for state in path[layer].trainable:
                    self._awaited[state] = self._awaited.get(state, 0) + 1
        self._most_held = self._count_held()
        # by the time of the last gradient all others are there: nothing is won by an update ahead of their check
        late = {UpdateOrder.CHECKED: self._awaited.keys(), UpdateOrder.AHEAD: last_to_learn(path)}.get(update, ())
        self._at_once = self._awaited.keys() - late

    def _makes_gradients(self, op: Op, layer: int) -> bool:
        """Whether the gradients of a layer are complete after a visit: a repeated layer leaves at its first place."""
        return op is Op.BACKWARD or (op is Op.LEAVE and self._tail_places[self._path[layer].key] == layer)

    def _count_held(self) -> list[int]:
        """For each visit, the most slots that it, one behind it, or the tail that one of them is cut from need."""
        firsts = set(self._tail_places.values())
        distinct = [0]  # by place, of the layers of the tail before it
        for place in range(self._first, len(self._path)):
            distinct.append(distinct[-1] + (place in firsts))
        most = [0] * (len(self._visits) + 1)
        for number in reversed(range(len(self._visits))):
            op, layer = self._visits[number]
            if op not in TAIL_VISITS:
                held = 1
            else:
                held = distinct[(layer + 1 if op is Op.LEAVE else len(self._path)) - self._first]
            most[number] = max(held, most[number + 1])
        return most

    def _of_spilled(self, values: Sequence[Name]) -> tuple[Name, ...]:
        return tuple(name for name in dict.fromkeys(values) if name in self._spilled) if self._spilled else ()

    def _taken(self, number: int) -> tuple[Name, ...]:
        """The spilled values that a visit reads."""
        op, layer = self._visits[number]
        return self._tail_takes if op in TAIL_VISITS else self._of_spilled(self._path[layer].reads)

    def build(self) -> Plan:
        self._take_over()
        previous = -1
        for number in range(len(self._visits)):
            mine = self._provide(number)
            self._prefetch(number)
            previous = self._visit(number, mine, previous)
        self._finish()
        self._load_upcoming(len(self._visits), is_over=True)
        for index, slot in enumerate(self._slots):
            if slot.key is not None and index != self._loaded_ahead:
                self._free(index, len(self._visits))
        held = tuple(slot.key if index == self._loaded_ahead else None for index, slot in enumerate(self._slots))
        updating = [state for state in self._carry.updating if state not in self._changed]
        return Plan(tuple(self._steps), Carry(held, (*updating, *self._updated)))

    def _take_over(self) -> None:
        """Begin with what the last plan left."""
        carry = self._carry
        for index, key in enumerate(carry.held):
            kept = self._add(Op.KEEP, slot=index)
            self._slots[index] = _Slot(freed=kept) if key is None else _Slot(key, kept, (kept,))
            if key is not None:
                self._where[key] = index
        for index in range(len(self._slots)):
            self._enter(index, 0)
        for key in self._uses:
            self._miss(key, 0)
        mine = dict.fromkeys(state for layer in self._path for state in layer.trainable)
        late = self._upcoming.trainable if self._upcoming else ()
        for state in carry.updating:
            if state in mine or state in late:
                self._changed[state] = (self._add(Op.AWAIT, state=state),)

    def _finish(self) -> None:
        """When all gradients are on the host."""
        if self._update is UpdateOrder.EAGER or not self._awaited:
            return
        check = self._add(Op.CHECK, after=[send for own in self._sends.values() for send in own])
        for state in self._updated:
            self._changed[state] = (*self._changed[state], check)
        # in the order in which the next forward needs them
        for state in dict.fromkeys(state for layer in self._path for state in layer.trainable):
            if state in self._awaited and state not in self._updated:
                self._add_update(state, after=(check,))

    def _load_upcoming(self, number: int, *, is_over: bool) -> None:
        """Load the next path's first layer, so that the next step starts at once: as soon as nothing is against it.

        Before the plan is over, three things are against it: visits to come that need every slot, as a tail may, or the
        layer itself; updates of it that were not issued, as they come later in the plan than the load would; and the
        visit that runs meanwhile, if it changes its buffers, which are saved behind that visit.
        """
        about = self._upcoming
        if about is None or self._loaded_ahead >= 0:
            return
        if not is_over:
            if self._most_held[number] >= len(self._slots) or self._next_use(about.key, number) < len(self._visits):
                return
            done = self._updated if self._update is UpdateOrder.EAGER else ()  # else the check may put it back
            if any(state in self._awaited and state not in done for state in about.trainable):
                return
            if about.has_buffers and self._next_use(about.key, number - 1) < number:
                return
        index = self._victim(need=len(self._visits) - 1)
        if index is not None:
            self._load_into(index, len(self._path), about, number)
            self._loaded_ahead, self._slots[index].rank = index, None

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
        known = {index for index in after if index >= 0}
        unique = tuple(sorted(known) if len(known) > 1 else known)
        self._steps.append(Step(op, layer, slot, state, value, frames, tail, unique))
        return len(self._steps) - 1

    def _next_use(self, key: Name | None, number: int) -> int:
        """Number of the first visit from `number` on that needs a key; their count if none does."""
        uses = self._uses.get(key, ()) if key is not None else ()
        place = bisect.bisect_left(uses, number)
        return uses[place] if place < len(uses) else len(self._visits)

    def _enter(self, index: int, number: int) -> None:
        """Say when a slot's content is needed, from visit `number` on."""
        slot = self._slots[index]
        if index != self._loaded_ahead:
            last = slot.users[-1] if slot.users else -1
            slot.rank = (-self._next_use(slot.key, number), slot.key is not None, last, index)
            heapq.heappush(self._latest, slot.rank)

    def _miss(self, key: Name, number: int) -> None:
        """Say when a key that is in no slot is needed, from visit `number` on."""
        use = self._next_use(key, number)
        if key not in self._where and use < len(self._visits):
            op, layer = self._visits[use]
            heapq.heappush(self._missing, (use, self._tail_places[key] if op is Op.TAIL else layer))

    def _victim(self, *, need: int) -> int | None:
        """The slot whose content is needed latest (Belady's rule), and later than by visit `need`.

        Of several the one that is empty, then the one that was used longest ago. The slots of the visit that is being
        prepared are needed by it, which is no later.
        """
        while self._latest:
            rank = self._latest[0]
            if self._slots[rank[-1]].rank == rank:
                return rank[-1] if -rank[0] > need else None
            heapq.heappop(self._latest)
        return None

    def _provide(self, number: int) -> tuple[int, ...]:
        """Have the layers of a visit in slots, and the spilled values that it reads in frames."""
        op, layer = self._visits[number]
        mine: list[int] = []
        for place in range(layer, len(self._path) if op is Op.TAIL else layer + 1):
            about = self._path[place]
            if about.key not in self._where:
                index = self._victim(need=number)
                assert index is not None
                self._load_into(index, place, about, number)
            mine.append(self._where[about.key])
        taken = self._taken(number)
        for value in taken:
            self._fetch(value, layer, spared=taken)
        return tuple(mine)

    def _prefetch(self, number: int) -> None:
        """Ask for what the visits after this one need, so that it comes while this one runs.

        The next missing layer goes to the slot whose content is needed latest, unless that is needed sooner than it.
        """
        if self._spilled and number + 1 < len(self._visits):
            following = self._taken(number + 1)
            spared = tuple(dict.fromkeys((*self._taken(number), *following)))
            op, layer = self._visits[number]
            written = self._spilled.intersection(self._path[layer].writes) if op is Op.FORWARD else ()
            if len(spared) + len(written) <= len(self._frames):
                for value in following:
                    self._fetch(value, self._visits[number + 1][1], spared=spared)
        while self._missing and self._missing[0][0] <= number + len(self._slots):
            use, place = self._missing[0]
            about = self._path[place]
            if use > number and about.key not in self._where:
                index = self._victim(need=use)
                if index is None:
                    return
                self._load_into(index, place, about, number + 1)
            heapq.heappop(self._missing)
        self._load_upcoming(number + 1, is_over=False)

    def _load_into(self, index: int, layer: int, about: PathLayer, number: int) -> None:
        """Load a layer that a visit from `number` on needs."""
        self._free(index, number)
        # the newest weights, and the buffers that the layer's previous visit saved
        fresh = [change for state in about.trainable for change in self._changed.get(state, ())]
        after = (self._slots[index].freed, self._saves.get(about.key, -1), *fresh)
        load = self._add(Op.LOAD, layer, index, after=after)
        self._slots[index] = _Slot(key=about.key, load=load, users=(load,))
        self._where[about.key] = index
        self._enter(index, number)

    def _free(self, index: int, number: int) -> None:
        """Have a slot hold nothing."""
        slot = self._slots[index]
        if slot.key is not None:
            self._slots[index] = _Slot(freed=self._add(Op.FREE, slot=index, after=slot.users))
            if self._where[slot.key] == index:  # else it was loaded for the next path, too
                del self._where[slot.key]
                self._miss(slot.key, number)

    def _fetch(self, value: Name, layer: int, *, spared: Sequence[Name]) -> None:
        """Bring a spilled value back for a layer, unless a frame holds it."""
        if value not in self._stores or any(frame.value == value for frame in self._frames):
            return
        index = self._free_frame(spared)
        frame = self._frames[index]
        after = (self._stores[value], *frame.users)
        fetch = self._add(Op.FETCH, layer, value=value, frames=(index,), after=after)
        self._frames[index] = _Frame(value, fetch, (fetch,))

    def _free_frame(self, spared: Sequence[Name]) -> int:
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
        sources = [frame for frame in self._frames if frame.value in taken] if taken else []
        after += [frame.filled for frame in sources]
        written = self._of_spilled(self._path[layer].writes) if op is Op.FORWARD else ()
        targets: list[int] = []
        for name in written:
            targets.append(self._free_frame(spared=(*taken, *written)))
            after += self._frames[targets[-1]].users
            self._frames[targets[-1]] = _Frame(name)
        visit = self._add(op, layer, mine[0], frames=tuple(targets), tail=mine[1:], after=after)
        for frame in sources:
            frame.users = (*frame.users, visit)
        for name, index in zip(written, targets, strict=True):
            self._frames[index] = _Frame(name, visit, (visit,))
            if any(reader > number + 1 for reader in self._readers.get(name, ())):
                self._stores[name] = self._add(Op.STORE, layer, value=name, frames=(index,), after=(visit,))
                self._frames[index].users = (visit, self._stores[name])
        # last layer first, as a backward leaves them; a layer that is repeated in the tail goes at its first place
        places: dict[int, int] = {}
        for place, index in enumerate(mine, start=layer):
            places.setdefault(index, place)
        for index, place in reversed(places.items()):
            self._follow(op, place, index, visit)
            self._enter(index, number + 1)
        return visit

    def _follow(self, op: Op, layer: int, index: int, visit: int) -> None:
        """What a visit leaves in a slot goes to the host."""
        slot = self._slots[index]
        users = [*slot.users, visit]
        about = self._path[layer]
        if about.has_buffers and op in (Op.FORWARD, Op.TAIL):
            self._saves[about.key] = self._add(Op.SAVE, layer, index, after=(visit,))
            users.append(self._saves[about.key])
        if about.trainable and self._makes_gradients(op, layer):
            send = self._add(Op.SEND, layer, index, after=(visit,))
            users.append(send)
            for state in about.trainable:
                sends = self._sends.setdefault(state, [])
                sends.append(send)
                if state in self._at_once and len(sends) == self._awaited[state]:
                    self._add_update(state, after=sends)
        slot.users = tuple(users)

    def _add_update(self, state: Name, *, after: Sequence[int]) -> None:
        update = self._add(Op.UPDATE, state=state, after=(*after, *self._changed.get(state, ())))
        self._changed[state] = (update,)
        self._updated[state] = None
