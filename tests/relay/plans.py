"""Proves a plan right by reading it: every rule of the relay, on dependencies alone, whatever the order of lanes.

[Note: two proofs] The steps are followed in the order of the plan, as if one were done after the other: what is in each
slot and frame, and what of it the host still lacks. And of two steps that use one thing, one of which changes it, the
later must wait for the earlier. So whatever respects `after` does what that one order does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from l2l_nas.eps.exchange import Channel
from l2l_nas.relay import schedule
from l2l_nas.relay.path import NOTHING_SPILLED, Name, PathLayer, Spill
from l2l_nas.relay.plan import TAIL_VISITS, VISITS, Carry, Op, Plan, Step, UpdateOrder


class PlanError(AssertionError):
    """A plan that breaks a rule of the relay."""


_WITHOUT_SLOT = (Op.UPDATE, Op.AWAIT, Op.CHECK, Op.STORE, Op.FETCH)

# what steps use, such as ("slot", 2)
_Thing = tuple[str, Name]
_ALL_GRADIENTS: _Thing = ("gradients", -1)


def check_plan(
    plan: Plan,
    path: Sequence[PathLayer],
    *,
    slots: int,
    trains: bool,
    update: UpdateOrder = UpdateOrder.EAGER,
    spill: Spill = NOTHING_SPILLED,
    carry: Carry | None = None,
    upcoming: PathLayer | None = None,
) -> None:
    """Check a plan against the path it is for. See [Note: two proofs].

    It proves that
    - steps wait only for earlier ones, and use slots and frames that exist;
    - visits run in the order of the path and, in training, back through all that learn, or that learn before it;
    - a slot is read only after its load, and loaded only after everything that used it before, the last plan included;
    - gradients are sent once they are complete, and before the next visit that writes the same block;
    - buffers that a forward changed are saved once, before anything changes them again or loads them;
    - a spilled value is read in a frame that holds it, and stored before that frame is written again and it is needed;
    - in training, each state with trainable parameters in the path is updated once, after its last contribution, and
      with `CHECKED` after all gradients are checked; with `AHEAD` before or after they are, and nothing loads its
      weights before both;
    - no layer is loaded before an update that was due before it, the last plan's included;
    - steps in which ranks exchange something run in lanes that keep the plan's order, those of a channel in one lane.

    Raises:
        PlanError: a rule is broken; the message names the step.
    """
    _Checker(plan, path, slots, update, spill, carry, upcoming).check(trains=trains)


@dataclass
class _Slot:
    """What a slot holds at one point of a plan."""

    key: Name | None = None  # of its layer
    version: int = 0  # of the layer's buffers: how often they were saved
    is_upcoming: bool = False  # whether that layer is the next plan's, and nothing has used it
    is_unsent: bool = False  # whether it has complete gradients
    is_unsaved: bool = False  # whether it has buffers that a forward changed


@dataclass
class _Checker:
    plan: Plan
    layers: Sequence[PathLayer]
    slots: int
    update: UpdateOrder
    spill: Spill
    carry: Carry | None
    upcoming: PathLayer | None

    def __post_init__(self) -> None:
        self.steps = self.plan.steps
        self.path = [*self.layers, *([self.upcoming] if self.upcoming else [])]
        self.depth = len(self.layers)
        self.tail = next((step.layer for step in self.steps if step.op is Op.TAIL), self.depth)
        self.before = self._ancestors()
        # of each thing, the last step that changed it, and those that used it since
        self.users: dict[_Thing, tuple[list[int], list[int]]] = {}
        self.contents = [_Slot() for _ in range(self.slots)]
        self.frames: list[Name | None] = [None] * self.spill.frames
        self.saves = Counter[Name]()  # by key
        self.sent, self.updated = set[Name](), set[Name]()  # states
        self.running = set(self.carry.updating if self.carry else ())  # the last plan's updates
        self.is_checked = self.has_upcoming = False

    def check(self, *, trains: bool) -> None:
        for index, step in enumerate(self.steps):
            is_in_slot = step.op not in _WITHOUT_SLOT
            self._demand(not is_in_slot or all(0 <= s < self.slots for s in (step.slot, *step.tail)), index, "no slot")
            self._demand(all(0 <= frame < self.spill.frames for frame in step.frames), index, "no such frames")
            wanted = len(self._written(step)) if step.op is Op.FORWARD else int(step.op in (Op.STORE, Op.FETCH))
            self._demand(len(step.frames) == wanted, index, f"needs {wanted} frames")
        self._check_exchanges()
        self._check_visits(trains=trains)
        for index, step in enumerate(self.steps):
            _FOLLOW[step.op](self, index, step)
        self._check_stored()
        self._check_left(trains=trains)

    def _check_exchanges(self) -> None:
        """Refuse a step that exchanges something where the order is not the plan's."""
        lanes: dict[Channel, str] = {}
        for index, step in enumerate(self.steps):
            channel = schedule.COLLECTIVES.get(step.op)
            if channel is not None:
                lane = schedule.LANE[step.op]
                what = f"an {step.op.value}" if step.op is Op.UPDATE else f"a {step.op.value}"
                is_late = f"{what} exchanges something in lane '{lane}', whose order is a matter of time"
                self._demand(lane in schedule.IN_ORDER, index, is_late)
                other = lanes.setdefault(channel, lane)
                self._demand(other == lane, index, f"channel {channel} is used by lanes '{other}' and '{lane}'")

    def _demand(self, is_right: bool, index: int, otherwise: str) -> None:
        if not is_right:
            step = self.steps[index]
            where = f"layer {step.layer} slot {step.slot} {step.state}{step.value}"
            raise PlanError(f"step {index} ({step.op.value} {where}): {otherwise}")

    def _ancestors(self) -> list[int]:
        """For each step, a bit set of all steps that are certain to be done when it starts."""
        before: list[int] = []
        for index, step in enumerate(self.steps):
            known = 0
            for other in step.after:
                self._demand(0 <= other < index, index, f"waits for step {other}, which is not earlier")
                known |= before[other] | 1 << other
            before.append(known)
        return before

    def _use(self, index: int, *things: _Thing, changes: bool = False) -> None:
        for thing in things:
            changed, used = self.users.setdefault(thing, ([], []))
            for other in (*changed, *used) if changes else changed:
                what = f"does not wait for step {other} ({self.steps[other].op.value}), which used the {thing}"
                self._demand(bool(self.before[index] >> other & 1), index, what)
            if changes:
                self.users[thing] = [index], []
            else:
                used.append(index)

    def _written(self, step: Step) -> list[Name]:
        return [name for name in self.path[step.layer].writes if name in self.spill.values]

    def _taken(self, step: Step) -> set[Name]:
        layers = self.path[self.tail : self.depth] if step.op in TAIL_VISITS else [self.path[step.layer]]
        written: set[Name] = set()
        taken: set[Name] = set()
        for layer in layers:
            taken.update(set(layer.reads) - written)
            written.update(layer.writes)
        return taken & self.spill.values

    def _check_visits(self, *, trains: bool) -> None:
        visits = [step for step in self.steps if step.op in VISITS]
        tail = self.tail
        expected = [(Op.FORWARD, index) for index in range(tail)]
        if trains:
            expected += [*((Op.ENTER, index) for index in range(tail, self.depth)), (Op.TAIL, tail)]
            expected += [(Op.LEAVE, i) for i in range(self.depth - 1, tail - 1, -1) if self._is_learning(i)]
            expected += [(Op.BACKWARD, index) for index in range(tail - 1, -1, -1) if self._is_learning(index)]
        if [(step.op, step.layer) for step in visits] != expected:
            raise PlanError(f"visits are {[(step.op.value, step.layer) for step in visits]}")

    def _is_learning(self, place: int) -> bool:
        """Whether a layer learns, or one that it reads from, at whatever distance."""
        own = self.path[place]
        sources = (i for i in range(place) if set(self.path[i].writes) & set(own.reads))
        return bool(own.trainable) or any(map(self._is_learning, sources))

    def _carry(self, index: int, step: Step) -> None:
        is_first = ("slot", step.slot) not in self.users
        self._demand(self.carry is not None and is_first, index, "keeps a slot that no plan left")
        self._use(index, ("slot", step.slot), changes=True)
        self.contents[step.slot].key = (self.carry or Carry()).slot_keys[step.slot]

    def _load(self, index: int, step: Step) -> None:
        layer, slot = self.path[step.layer], self.contents[step.slot]
        self._demand(slot.key is None, index, "loads a slot that is not free")
        self._demand(self.running.isdisjoint(layer.trainable), index, "the last plan's update of it may be running")
        self._use(index, ("slot", step.slot), changes=True)
        self._use(index, ("saved buffers", layer.key), *(("state", state) for state in layer.trainable))
        slot.key, slot.version, slot.is_upcoming = layer.key, self.saves[layer.key], step.layer == self.depth
        if slot.is_upcoming:
            self.has_upcoming = True
            if self.update is UpdateOrder.AHEAD and not self.sent.isdisjoint(layer.trainable):
                self._use(index, _ALL_GRADIENTS)
                self._demand(self.is_checked, index, "loads weights that the check may put back")

    def _free(self, index: int, step: Step) -> None:
        slot = self.contents[step.slot]
        self._demand(slot.key is not None, index, "frees a slot that holds nothing")
        self._demand(not slot.is_unsent and not slot.is_unsaved, index, "frees what was not sent or not saved")
        self._use(index, ("slot", step.slot), changes=True)
        slot.key = None

    def _held(self, index: int, number: int, layers: Iterable[int]) -> _Slot:
        """A slot that a step uses for these layers."""
        slot = self.contents[number]
        self._demand(all(self.path[i].key == slot.key for i in layers), index, f"the slot holds '{slot.key}'")
        self._use(index, ("slot", number))
        slot.is_upcoming = False
        return slot

    def _visit(self, index: int, step: Step) -> None:
        self._use(index, ("visits", -1), changes=True)
        self._move_values(index, step)
        slots = (step.slot, *step.tail)
        wanted = self.depth - self.tail if step.op is Op.TAIL else 1
        self._demand(len(slots) == wanted, index, f"runs in {len(slots)} slots, and has {wanted} layers")
        keys = [self.path[place].key for place in range(step.layer, step.layer + wanted)]
        # the gradient of a layer is sent from one slot
        self._demand(len({*zip(keys, slots, strict=True)}) == len({*keys}), index, "a repeated layer is in two slots")
        for number in set(slots):
            # more than one where a repeated layer is in the tail twice
            runs = [place for place, used in enumerate(slots, start=step.layer) if used == number]
            layer, slot = self.path[runs[0]], self._held(index, number, runs)
            if layer.trainable and step.op is not Op.FORWARD:
                self._demand(not slot.is_unsent, index, "overwrites gradients that were not sent")
                self._use(index, ("gradients in slot", number), changes=True)
                slot.is_unsent = self._completes_gradients(step)
            if layer.has_buffers and step.op is not Op.LEAVE:
                self._demand(not slot.is_unsaved, index, "overwrites buffers that were not saved")
                is_fresh = slot.version == self.saves[layer.key] or step.op not in (Op.FORWARD, Op.ENTER)
                self._demand(is_fresh, index, "its buffers are stale: another slot saved newer ones")
                self._use(index, ("buffers in slot", number), changes=True)
                slot.is_unsaved = step.op in (Op.FORWARD, Op.TAIL)

    def _completes_gradients(self, step: Step) -> bool:
        """Whether nothing adds to a layer's gradients after a visit; a repeated one leaves the tail several times."""
        key = self.path[step.layer].key
        is_first = all(other.key != key for other in self.path[self.tail : step.layer])
        return step.op is Op.BACKWARD or (step.op is Op.LEAVE and is_first)

    def _move_values(self, index: int, step: Step) -> None:
        for value in self._taken(step):
            self._demand(value in self.frames, index, f"'{value}' is in no frame")
            source = self.frames.index(value)
            self._demand(source not in step.frames, index, "writes the frame that it reads")
            self._use(index, ("frame", source))
        for frame, value in zip(step.frames, self._written(step), strict=False):
            self._use(index, ("frame", frame), changes=True)
            self.frames[frame] = value

    def _store(self, index: int, step: Step) -> None:
        held = self.frames[step.frames[0]]
        self._demand(held == step.value, index, f"the frame holds '{held}'")
        self._demand(("stored", step.value) not in self.users, index, "stores what was stored")
        self._use(index, ("frame", step.frames[0]))
        self._use(index, ("stored", step.value), changes=True)

    def _fetch(self, index: int, step: Step) -> None:
        self._demand(step.value not in self.frames, index, "fetches what a frame holds")
        self._demand(("stored", step.value) in self.users, index, "fetches what was not stored")
        self._use(index, ("stored", step.value))
        self._use(index, ("frame", step.frames[0]), changes=True)
        self.frames[step.frames[0]] = step.value

    def _save(self, index: int, step: Step) -> None:
        slot, key = self._held(index, step.slot, [step.layer]), self.path[step.layer].key
        self._demand(slot.is_unsaved, index, "saves buffers that no forward of it changed")
        is_loaded = self.has_upcoming and self.path[self.depth].key == key
        self._demand(not is_loaded, index, "saves buffers that were loaded for the next path")
        self._use(index, ("buffers in slot", step.slot))
        self._use(index, ("saved buffers", key), changes=True)
        self.saves[key] += 1
        slot.version, slot.is_unsaved = self.saves[key], False

    def _send(self, index: int, step: Step) -> None:
        slot, states = self._held(index, step.slot, [step.layer]), self.path[step.layer].trainable
        self._demand(slot.is_unsent, index, "sends gradients that no visit made")
        is_late = self.is_checked or not self.updated.isdisjoint(states)
        self._demand(not is_late, index, "sends what was checked or applied")
        self._use(index, ("gradients in slot", step.slot), _ALL_GRADIENTS, *(("gradient", state) for state in states))
        self.sent.update(states)
        slot.is_unsent = False

    def _check(self, index: int, step: Step) -> None:
        self._demand(not self.is_checked, index, "checks again")
        self._use(index, _ALL_GRADIENTS, changes=True)
        self.is_checked = True

    def _await(self, index: int, step: Step) -> None:
        self._use(index, ("state", step.state), changes=True)
        self.running.discard(step.state)

    def _update(self, index: int, step: Step) -> None:
        is_due = step.state in self.sent and step.state not in self.updated
        self._demand(is_due, index, "updates a state without a gradient, or again")
        is_loaded = self.has_upcoming and step.state in self.path[self.depth].trainable
        self._demand(not is_loaded, index, "updates what was loaded for the next path")
        if self.update is UpdateOrder.CHECKED:
            self._demand(self.is_checked, index, "updates what was not checked")
            self._use(index, _ALL_GRADIENTS)
        self._use(index, ("gradient", step.state), ("state", step.state), changes=True)
        self.updated.add(step.state)

    def _check_stored(self) -> None:
        """Refuse a value that is read later than by the next visit, and was not stored."""
        visits = [step for step in self.steps if step.op in VISITS]
        for number, visit in enumerate(visits):
            for value in self._written(visit) if visit.op is Op.FORWARD else ():
                # the visits of the tail read what they share in the frames where its first one found it
                later_ones = [
                    later for later in visits[number + 2 :] if later.op not in TAIL_VISITS or number + 1 < self.tail
                ]
                if ("stored", value) not in self.users and any(value in self._taken(later) for later in later_ones):
                    raise PlanError(f"'{value}' is not stored, and is read later")

    def _check_left(self, *, trains: bool) -> None:
        """Compare what is left at the end with what the plan says that it leaves."""
        carried = {step.slot for step in self.steps if step.op is Op.CARRY}
        for number, slot in enumerate(self.contents):
            if self.carry is not None and number not in carried:
                raise PlanError(f"slot {number} is used without regard to the last plan")
            if slot.key is not None and not slot.is_upcoming:
                raise PlanError(f"slot {number} is never freed")
        held = tuple(slot.key for slot in self.contents)
        if self.plan.leaves.slot_keys != held:
            raise PlanError(f"the plan says it leaves {self.plan.leaves.slot_keys} in its slots, but it leaves {held}")
        if trains:
            own = {state for layer in self.layers for state in layer.trainable}
            if self.updated != own or self.is_checked != (bool(own) and self.update is not UpdateOrder.EAGER):
                raise PlanError(f"updates {self.updated} of {own}, checked: {self.is_checked}")
            left = own | self.running
            if set(self.plan.leaves.updating) != left:
                raise PlanError(f"the plan says it leaves updates of {self.plan.leaves.updating}, but it leaves {left}")


_FOLLOW: dict[Op, Callable[[_Checker, int, Step], None]] = {
    **dict.fromkeys(VISITS, _Checker._visit),
    Op.CARRY: _Checker._carry,
    Op.AWAIT: _Checker._await,
    Op.LOAD: _Checker._load,
    Op.FETCH: _Checker._fetch,
    Op.SAVE: _Checker._save,
    Op.STORE: _Checker._store,
    Op.SEND: _Checker._send,
    Op.CHECK: _Checker._check,
    Op.UPDATE: _Checker._update,
    Op.FREE: _Checker._free,
}
