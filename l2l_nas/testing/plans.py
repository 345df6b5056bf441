"""Proves a plan right by reading it: every rule of the relay, on dependencies alone, whatever the order of lanes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from l2l_nas.errors import PlanError
from l2l_nas.relay.path import NOTHING_SPILLED, Name, PathLayer, Spill
from l2l_nas.relay.plan import TAIL_VISITS, VISITS, Carry, Op, Plan, Step, UpdateOrder

_HOST = (Op.UPDATE, Op.AWAIT, Op.CHECK)
_FRAMES = (Op.STORE, Op.FETCH)


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
    """Check a plan against the path it is for.

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
    - no layer is loaded before an update that was due before it, the last plan's included.

    Raises:
        PlanError: a rule is broken; the message names the step.
    """
    _Checker(plan, path, slots, update, spill, carry, upcoming).check(trains=trains)


@dataclass
class _Slot:
    """What a slot holds, and what was done with it; -1 for no step."""

    key: Name | None = None  # of the layer that it holds
    loaded: int = -1  # the step that loaded it
    users: list[int] = field(default_factory=list)  # steps that used it since
    unsent: int = -1  # the visit whose gradients were not sent
    unsaved: int = -1  # the visit whose buffers were not saved
    is_used: bool = False  # whether anything but the load used it


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
        self.before = self._ancestors()
        self.checks = self._all(Op.CHECK)
        self.tail = next((step.layer for step in self.steps if step.op is Op.TAIL), self.depth)

    def check(self, *, trains: bool) -> None:
        for index, step in enumerate(self.steps):
            if step.op not in (*_HOST, *_FRAMES) and not all(0 <= s < self.slots for s in (step.slot, *step.tail)):
                self._fail(index, f"slot {step.slot} does not exist")
            if not all(0 <= frame < self.spill.frames for frame in step.frames):
                self._fail(index, f"frames {step.frames} do not exist")
            if len(step.frames) != self._num_frames(step):
                self._fail(index, f"has {len(step.frames)} frames, it needs {self._num_frames(step)}")
        self._check_visits(trains=trains)
        held = tuple(self._check_slot(slot) for slot in range(self.slots))
        if self.plan.leaves.slot_keys != held:
            raise PlanError(f"the plan says it leaves {self.plan.leaves.slot_keys} in its slots, but it leaves {held}")
        self._check_frames()
        if trains:
            self._check_updates()

    def _num_frames(self, step: Step) -> int:
        return len(self._written(step)) if step.op is Op.FORWARD else int(step.op in _FRAMES)

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

    def _fail(self, index: int, reason: str) -> None:
        step = self.steps[index]
        where = f"layer {step.layer} slot {step.slot} {step.state}{step.value}"
        raise PlanError(f"step {index} ({step.op.value} {where}): {reason}")

    def _ancestors(self) -> list[int]:
        """For each step, a bit set of all steps that are certain to be done when it starts."""
        before: list[int] = []
        for index, step in enumerate(self.steps):
            known = 0
            for other in step.after:
                if not 0 <= other < index:
                    self._fail(index, f"waits for step {other}, which is not earlier")
                known |= before[other] | 1 << other
            before.append(known)
        return before

    def _require(self, index: int, others: Sequence[int], what: str) -> None:
        for other in others:
            if not self.before[index] >> other & 1:
                self._fail(index, f"does not wait for step {other} ({self.steps[other].op.value}), {what}")

    def _check_visits(self, *, trains: bool) -> None:
        visits = [(index, step) for index, step in enumerate(self.steps) if step.op in VISITS]
        tail = self.tail
        expected = [(Op.FORWARD, index) for index in range(tail)]
        if trains:
            expected += [*((Op.ENTER, index) for index in range(tail, self.depth)), (Op.TAIL, tail)]
            expected += [(Op.LEAVE, i) for i in range(self.depth - 1, tail - 1, -1) if self._is_learning(i)]
            expected += [(Op.BACKWARD, index) for index in range(tail - 1, -1, -1) if self._is_learning(index)]
        if [(step.op, step.layer) for _, step in visits] != expected:
            raise PlanError(f"visits are {[(s.op.value, s.layer) for _, s in visits]}")
        for index, step in visits:
            if step.op is Op.TAIL and len(step.tail) != self.depth - tail - 1:
                self._fail(index, f"has {len(step.tail)} further slots for {self.depth - tail - 1} further layers")
        for (earlier, _), (later, _) in itertools.pairwise(visits):
            self._require(later, [earlier], "the visit before it")

    def _is_learning(self, place: int) -> bool:
        """Whether a layer learns, or one that it reads from, at whatever distance."""
        own = self.path[place]
        sources = (i for i in range(place) if set(self.path[i].writes) & set(own.reads))
        return bool(own.trainable) or any(map(self._is_learning, sources))

    def _runs(self, step: Step, slot: int) -> list[int]:
        """Layers that a visit runs in a slot; more than one where a repeated layer is in the tail twice."""
        return [step.layer + place for place, used in enumerate((step.slot, *step.tail)) if used == slot]

    def _check_slot(self, slot: int) -> Name | None:
        """Walk a slot's steps; each must wait for those before it that it conflicts with. Returns what it holds."""
        found = _Slot()
        if self.carry is not None and not any(s.op is Op.CARRY and s.slot == slot for s in self.steps):
            raise PlanError(f"slot {slot} is used without regard to the last plan")
        for index, step in enumerate(self.steps):
            if step.op in (*_HOST, *_FRAMES) or slot not in (step.slot, *step.tail):
                continue
            if step.op is Op.CARRY:
                if self.carry is None or found.loaded >= 0:
                    self._fail(index, "keeps a slot that no plan left")
                    return None
                found = _Slot(self.carry.slot_keys[slot], index, [index])
            elif step.op is Op.LOAD:
                self._check_load(index, step, found)
                found = _Slot(self.path[step.layer].key, index, [index], found.unsent, found.unsaved)
            else:
                if found.key is None:
                    self._fail(index, "uses a slot that holds nothing")
                if step.op is Op.FREE:
                    self._check_free(index, found)
                    found.key, found.users = None, [index]
                else:
                    self._check_use(index, step, slot, found)
        loaded = found.loaded
        is_left = not found.is_used and self.steps[loaded].layer == self.depth and self.steps[loaded].op is not Op.CARRY
        if found.key is not None and not is_left:
            self._fail(loaded, "its slot is never freed")
        return found.key

    def _check_load(self, index: int, step: Step, found: _Slot) -> None:
        if found.key is not None:
            self._fail(index, "loads a slot that is not free")
        self._require(index, found.users, "which used the slot before")
        key = self.path[step.layer].key
        saves = [i for i in range(index) if self._is(i, Op.SAVE, key)]
        self._require(index, saves, "which saves the buffers it loads")
        if step.layer == self.depth and any(self._is(i, Op.SAVE, key) for i in range(index, len(self.steps))):
            self._fail(index, "loads buffers for the next path that are saved later")
        self._check_fresh(index, step)

    def _check_free(self, index: int, found: _Slot) -> None:
        self._require(index, found.users, "which uses the slot")
        if found.unsent >= 0:
            self._fail(index, f"frees gradients of visit {found.unsent} that were not sent")
        if found.unsaved >= 0:
            self._fail(index, f"frees buffers of visit {found.unsaved} that were not saved")

    def _check_use(self, index: int, step: Step, slot: int, found: _Slot) -> None:
        found.is_used = True
        runs = self._runs(step, slot) if step.op in VISITS else [step.layer]
        if any(self.path[layer].key != found.key for layer in runs):
            self._fail(index, f"the slot holds '{found.key}'")
        self._require(index, [found.loaded], "which loads what it reads")
        if step.op is Op.SEND:
            self._take(index, found.unsent, "sends gradients that no visit made")
            found.unsent = -1
        elif step.op is Op.SAVE:
            self._take(index, found.unsaved, "saves buffers that no forward of it changed")
            found.unsaved = -1
        else:
            self._check_visit(index, step, slot, found, self.path[runs[0]])
        found.users.append(index)

    def _check_visit(self, index: int, step: Step, slot: int, found: _Slot, layer: PathLayer) -> None:
        # a visit that changes no buffers may run while they are saved
        earlier = [i for i in found.users if step.op is not Op.LEAVE or self.steps[i].op is not Op.SAVE]
        self._require(index, earlier, "which uses the slot")
        if step.op in (Op.ENTER, Op.BACKWARD, Op.LEAVE) and layer.trainable and found.unsent >= 0:
            self._fail(index, f"overwrites gradients of visit {found.unsent} that were not sent")
        if self._completes_gradients(step) and layer.trainable:
            found.unsent = index
        if found.unsaved >= 0 and step.op is not Op.LEAVE:
            self._fail(index, f"overwrites buffers of visit {found.unsaved} that were not saved")
        if step.op in (Op.FORWARD, Op.ENTER) and layer.has_buffers:
            self._refuse_stale_buffers(found.loaded, index, slot, layer.key)
        if step.op in (Op.FORWARD, Op.TAIL) and layer.has_buffers:
            found.unsaved = index

    def _completes_gradients(self, step: Step) -> bool:
        """Whether nothing adds to a layer's gradients after a visit; a repeated one leaves the tail several times."""
        key = self.path[step.layer].key
        is_first = all(other.key != key for other in self.path[self.tail : step.layer])
        return step.op is Op.BACKWARD or (step.op is Op.LEAVE and is_first)

    def _is(self, index: int, op: Op, key: Name) -> bool:
        step = self.steps[index]
        return step.op is op and self.path[step.layer].key == key

    def _take(self, index: int, made: int, otherwise: str) -> None:
        if made < 0:
            self._fail(index, otherwise)
        self._require(index, [made], "which makes what it takes")

    def _refuse_stale_buffers(self, loaded: int, index: int, slot: int, key: Name) -> None:
        """A forward must start from the buffers that the layer's previous forward, in whichever slot, left."""
        for other in range(loaded, index):
            if self._is(other, Op.SAVE, key) and self.steps[other].slot != slot:
                self._fail(index, f"its buffers are stale: slot {self.steps[other].slot} saved newer ones later")

    def _check_fresh(self, index: int, step: Step) -> None:
        """A load reads weights: what is due to change them first must be done."""
        carry = self.carry or Carry()
        for state in self.path[step.layer].trainable:
            due = [
                other
                for other, s in enumerate(self.steps)
                if s.state == state and (s.op is Op.AWAIT or (s.op is Op.UPDATE and other < index))
            ]
            if state in carry.updating and not any(self.steps[other].op is Op.AWAIT for other in due):
                self._fail(index, f"the last plan's update of '{state}' may be running")
            self._require(index, due, "which writes the weights it loads")
            if step.layer == self.depth and self._contributions(state):
                self._require(index, [*self._updates(state), *self.checks], "which writes the weights it loads")

    def _check_frames(self) -> None:
        """Follow each spilled value: written, stored, fetched, read."""
        frames: list[Name | None] = [None] * self.spill.frames  # what is in them
        users: list[list[int]] = [[] for _ in range(self.spill.frames)]
        stored: dict[Name, int] = {}
        for index, step in enumerate(self.steps):
            if step.op is Op.STORE:
                frame = step.frames[0]
                if frames[frame] != step.value:
                    self._fail(index, f"the frame holds '{frames[frame]}'")
                if step.value in stored:
                    self._fail(index, "stores what was stored")
                self._require(index, users[frame][:1], "which makes what it stores")
                users[frame].append(index)
                stored[step.value] = index
            elif step.op is Op.FETCH:
                if step.value in frames:
                    self._fail(index, "fetches what a frame holds")
                self._take(index, stored.get(step.value, -1), "fetches what was not stored")
                self._fill(index, step.frames[0], step.value, frames, users)
            elif step.op in VISITS:
                taken = self._taken(step)
                for value in taken:
                    if value not in frames:
                        self._fail(index, f"'{value}' is in no frame")
                    source = frames.index(value)
                    if source in step.frames:
                        self._fail(index, "writes the frame that it reads")
                    self._require(index, users[source][:1], "which brings what it reads")
                    users[source].append(index)
                if step.op is Op.FORWARD:
                    for frame, value in zip(step.frames, self._written(step), strict=True):
                        self._fill(index, frame, value, frames, users)

        visits = [step for step in self.steps if step.op in VISITS]
        for number, visit in enumerate(visits):
            for value in self._written(visit) if visit.op is Op.FORWARD else ():
                # the visits of the tail read what they share in the frames where its first one found it
                later_ones = [
                    later for later in visits[number + 2 :] if later.op not in TAIL_VISITS or number + 1 < self.tail
                ]
                if value not in stored and any(value in self._taken(later) for later in later_ones):
                    raise PlanError(f"'{value}' is not stored, and is read later")

    def _fill(self, index: int, frame: int, value: Name, frames: list[Name | None], users: list[list[int]]) -> None:
        """A step writes a frame: all that used it must be done."""
        self._require(index, users[frame], "which uses the frame")
        frames[frame], users[frame] = value, [index]

    def _all(self, op: Op) -> list[int]:
        return [index for index, step in enumerate(self.steps) if step.op is op]

    def _trained(self, index: int) -> tuple[Name, ...]:
        """The states that the layer of a step trains."""
        return self.path[self.steps[index].layer].trainable

    def _contributions(self, state: Name) -> list[int]:
        return [index for index in self._all(Op.SEND) if state in self._trained(index)]

    def _updates(self, state: Name) -> list[int]:
        return [index for index in self._all(Op.UPDATE) if self.steps[index].state == state]

    def _uses(self, state: Name) -> int:
        """How many gradients of a state there must be: one for each slot that a tail or backward visit runs."""
        count = 0
        for step in self.steps:
            if step.op is Op.TAIL:
                slots = {step.slot, *step.tail}
                count += sum(state in self.path[self._runs(step, slot)[0]].trainable for slot in slots)
            elif step.op is Op.BACKWARD:
                count += state in self.path[step.layer].trainable
        return count

    def _check_updates(self) -> None:
        own = dict.fromkeys(state for layer in self.path[: self.depth] for state in layer.trainable)
        if len(self.checks) != (1 if own and self.update is not UpdateOrder.EAGER else 0):
            raise PlanError(f"checks {len(self.checks)} times")
        for state in own:
            sends = self._contributions(state)
            if len(sends) != self._uses(state):
                raise PlanError(f"'{state}' gets {len(sends)} contributions, the path has {self._uses(state)}")
            for check in self.checks:
                self._require(check, sends, "which sends what it checks")
            updates = self._updates(state)
            if len(updates) != 1:
                raise PlanError(f"'{state}' is updated {len(updates)} times")
            needed = [*sends, *self.checks] if self.update is UpdateOrder.CHECKED else sends
            self._require(updates[0], needed, "which it needs")
            loads = [i for i in self._all(Op.LOAD) if i < updates[0] and state in self._trained(i)]
            self._require(updates[0], loads, "which loads the weights that it changes")
        for index in self._all(Op.UPDATE):
            if self.steps[index].state not in own:
                self._fail(index, "updates a state without a gradient")
        carry = self.carry or Carry()
        left = {*own, *(s for s in carry.updating if not any(s == step.state for step in self.steps))}
        if set(self.plan.leaves.updating) != left:
            raise PlanError(f"the plan says it leaves updates of {self.plan.leaves.updating}, but it leaves {left}")
