"""The plan: what a training step or a forward will do, as a tuple of steps with their dependencies. Pure data.

[Note: slot reuse] A slot is one block for weights, one for buffers and one for gradients. Its weights may be
overwritten once the last visit that reads them is done; its gradients once they are sent. Every such rule is an entry
of some step's `after`, so that any executor which respects `after`, however concurrent, is safe. `check.py` proves it.

[Note: the turn] The last layer of a path runs forward, loss and backward in one visit (`TURN`): it is loaded once, and
nothing of it is recomputed.

[Note: buffers] A forward visit may change buffers (BatchNorm's statistics). `SAVE` sends them to the host. A backward
visit runs the layer again, so it starts from the buffers that the forward started from, and its changes are dropped:
each statistic is counted once.
"""

from __future__ import annotations

import bisect
import enum
from collections.abc import Sequence
from dataclasses import dataclass

from l2l_nas.errors import SettingError


class Op(enum.Enum):
    """What a step does."""

    LOAD = "load"
    FORWARD = "forward"
    TURN = "turn"
    BACKWARD = "backward"
    SAVE = "save"
    SEND = "send"
    UPDATE = "update"
    FREE = "free"


VISITS = (Op.FORWARD, Op.TURN, Op.BACKWARD)


class UpdatePolicy(enum.StrEnum):
    """When the host updates a layer: as soon as its gradient is complete (L2L-p), or all at the end (plain L2L)."""

    EAGER = "eager"
    SERIAL = "serial"


@dataclass(frozen=True)
class PathLayer:
    """What a plan needs to know of a layer.

    Args:
        key: the layer's name; a repeated layer has one key at all its places.
        trainable: keys of its states that have trainable parameters; tied states appear in several layers.
        has_buffers: whether a forward in training may change buffers.
    """

    key: str
    trainable: tuple[str, ...] = ()
    has_buffers: bool = False


@dataclass(frozen=True)
class Step:
    """One step.

    Args:
        op: what to do.
        layer: index in the path; -1 for UPDATE.
        slot: the slot it works on; -1 for UPDATE.
        state: the state to update; empty for the others.
        after: indices of earlier steps that must be done first.
    """

    op: Op
    layer: int = -1
    slot: int = -1
    state: str = ""
    after: tuple[int, ...] = ()


Plan = tuple[Step, ...]


def plan_training(path: Sequence[PathLayer], *, slots: int, update: UpdatePolicy = UpdatePolicy.EAGER) -> Plan:
    """Forward through all layers but the last, turn, and back to the first layer that learns.

    Args:
        path: the layers, first to last.
        slots: number of slots; with 2 or more, the next load is placed before the visit it may overlap.
        update: when states are updated.

    Raises:
        SettingError: no slots, or an empty path.
    """
    last = len(path) - 1
    learning = [index for index, layer in enumerate(path) if layer.trainable]
    lowest = min(learning, default=last)
    visits = [(Op.FORWARD, index) for index in range(last)]
    visits += [(Op.TURN, last)]
    visits += [(Op.BACKWARD, index) for index in range(last - 1, lowest - 1, -1)]
    return _Builder(path, visits, slots=slots, update=update).build()


def plan_forward(path: Sequence[PathLayer], *, slots: int, saves_buffers: bool = False) -> Plan:
    """Forward through all layers, as evaluation does.

    Args:
        saves_buffers: send changed buffers to the host, as a recalibration wants.

    Raises:
        SettingError: no slots, or an empty path.
    """
    layers = path if saves_buffers else [PathLayer(layer.key) for layer in path]
    visits = [(Op.FORWARD, index) for index in range(len(path))]
    return _Builder(layers, visits, slots=slots, update=UpdatePolicy.SERIAL).build()


@dataclass
class _Slot:
    """What a slot holds while a plan is built: the key, its load, and the steps that use it."""

    key: str | None = None
    load: int = -1
    users: tuple[int, ...] = ()
    freed: int = -1


class _Builder:
    def __init__(
        self,
        path: Sequence[PathLayer],
        visits: Sequence[tuple[Op, int]],
        *,
        slots: int,
        update: UpdatePolicy,
    ) -> None:
        if slots < 1:
            raise SettingError(f"the relay needs at least 1 slot, got {slots}")
        if not path:
            raise SettingError("the architecture has no layers: every position is skipped")
        self._path = path
        self._visits = visits
        self._update = update
        self._slots = [_Slot() for _ in range(slots)]
        self._steps: list[Step] = []
        self._sends: dict[str, list[int]] = {}
        self._saves: dict[str, int] = {}
        self._uses: dict[str, list[int]] = {}  # by key, the numbers of its visits
        for number, (_, layer) in enumerate(visits):
            self._uses.setdefault(path[layer].key, []).append(number)
        # The backward comes to a state's first place in the path last.
        self._first_place: dict[str, int] = {}
        for index, about in enumerate(path):
            for state in about.trainable:
                self._first_place.setdefault(state, index)

    def build(self) -> Plan:
        previous = -1
        for number, (op, layer) in enumerate(self._visits):
            slot = self._find(layer)
            if slot is None:
                slot = self._load(number, busy=None)
            is_last = number + 1 == len(self._visits)
            if not is_last and self._find(self._visits[number + 1][1]) is None and len(self._slots) > 1:
                self._load(number + 1, busy=slot)
            previous = self._visit(op, layer, slot, previous)
        if self._update is UpdatePolicy.SERIAL:
            for state in self._sends:
                self._add_update(state)
        for index in range(len(self._slots)):
            self._free(index)
        return tuple(self._steps)

    def _add(self, op: Op, *, layer: int = -1, slot: int = -1, state: str = "", after: tuple[int, ...] = ()) -> int:
        unique = tuple(sorted({index for index in after if index >= 0}))
        self._steps.append(Step(op, layer, slot, state, unique))
        return len(self._steps) - 1

    def _find(self, layer: int) -> int | None:
        key = self._path[layer].key
        return next((index for index, slot in enumerate(self._slots) if slot.key == key), None)

    def _load(self, number: int, *, busy: int | None) -> int:
        """Load the layer of a visit into the slot whose content is needed latest (Belady's rule)."""

        def next_use(index: int) -> int:
            key = self._slots[index].key
            if key is None:
                return len(self._visits) + 1
            uses = self._uses[key]
            place = bisect.bisect_left(uses, number)
            return uses[place] if place < len(uses) else len(self._visits)

        index = max((i for i in range(len(self._slots)) if i != busy), key=next_use)
        layer = self._visits[number][1]
        key = self._path[layer].key
        self._free(index)
        slot = self._slots[index]
        # A repeated layer's buffers on the host are those that its previous visit saved.
        load = self._add(Op.LOAD, layer=layer, slot=index, after=(slot.freed, self._saves.get(key, -1)))
        self._slots[index] = _Slot(key=key, load=load, users=(load,))
        return index

    def _visit(self, op: Op, layer: int, index: int, previous: int) -> int:
        slot = self._slots[index]
        # users: a repeated layer still in its slot may not be run again before its gradients or buffers are sent
        visit = self._add(op, layer=layer, slot=index, after=(previous, slot.load, *slot.users))
        users = [*slot.users, visit]
        about = self._path[layer]
        if about.has_buffers and op is not Op.BACKWARD:
            self._saves[about.key] = self._add(Op.SAVE, layer=layer, slot=index, after=(visit,))
            users.append(self._saves[about.key])
        if about.trainable and op is not Op.FORWARD:
            send = self._add(Op.SEND, layer=layer, slot=index, after=(visit,))
            users.append(send)
            for state in about.trainable:
                self._sends.setdefault(state, []).append(send)
                if self._update is UpdatePolicy.EAGER and self._first_place[state] == layer:
                    self._add_update(state)
        slot.users = tuple(users)
        return visit

    def _add_update(self, state: str) -> None:
        self._add(Op.UPDATE, state=state, after=tuple(self._sends[state]))

    def _free(self, index: int) -> None:
        slot = self._slots[index]
        if slot.key is not None:
            freed = self._add(Op.FREE, slot=index, after=slot.users)
            self._slots[index] = _Slot(freed=freed)
