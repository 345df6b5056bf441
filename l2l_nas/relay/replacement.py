"""Which slot a planned load overwrites: the one whose content the visits to come need latest (Belady's rule).

What is needed latest, and what is missing next, stand at the head of a heap each. An entry of a heap is not changed:
a new one is added, and outdated ones are dropped when they come up. So the work of a plan grows with its path and its
slots, however long layers stay in them.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from l2l_nas.relay.path import Name, PathLayer
from l2l_nas.relay.plan import Op


class VisitList:
    """The visits of a plan in their order, and which layers they need.

    Args:
        path: the layers that they run.
        visits: what each does, and with which layer of the path.

    Attributes:
        tail_start: index of the first layer of the tail; the path's length where no visit is of a tail.
        uses: by key, the numbers of the visits that need it.
        gradient_counts: by state, how many gradients the visits make of it.
    """

    def __init__(self, path: Sequence[PathLayer], visits: Sequence[tuple[Op, int]]) -> None:
        self.path = path
        self._visits = visits
        self.tail_start = next((layer for op, layer in visits if op is Op.TAIL), len(path))
        self._first_in_tail: dict[Name, int] = {}  # by key, its first index in the tail, in ascending order
        for index in range(self.tail_start, len(path)):
            self._first_in_tail.setdefault(path[index].key, index)
        self._firsts_in_tail = list(self._first_in_tail.values())
        self.uses: dict[Name, list[int]] = {}
        self.gradient_counts: dict[Name, int] = {}
        for number, (op, layer) in enumerate(visits):
            for key in self._first_in_tail if op is Op.TAIL else (path[layer].key,):
                self.uses.setdefault(key, []).append(number)
            for state in path[layer].trainable if self.completes_gradients(op, layer) else ():
                self.gradient_counts[state] = self.gradient_counts.get(state, 0) + 1

    def __len__(self) -> int:
        return len(self._visits)

    def __getitem__(self, number: int) -> tuple[Op, int]:
        return self._visits[number]

    def completes_gradients(self, op: Op, layer: int) -> bool:
        """Whether the gradients of a layer are complete after a visit: a repeated layer leaves at its first place."""
        return op is Op.BACKWARD or (op is Op.LEAVE and self._first_in_tail[self.path[layer].key] == layer)

    def next_use(self, key: Name | None, number: int) -> int:
        """Number of the first visit from `number` on that needs a key; the number of visits if none does."""
        uses = self.uses.get(key, ()) if key is not None else ()
        later = bisect.bisect_left(uses, number)
        return uses[later] if later < len(uses) else len(self)

    def layer_of(self, key: Name, number: int) -> int:
        """Index of the layer with a key that a visit needs."""
        op, layer = self._visits[number]
        return self._first_in_tail[key] if op is Op.TAIL else layer

    def slots_needed(self, number: int) -> int:
        """How many slots the visits from `number` on need at a time.

        A layer of the tail stays in its slot until it leaves: visits before the tail's end need room for all of it,
        those that leave for what has not left. Outside of it a visit needs one slot.
        """
        if number == len(self):
            return 0
        op, layer = self._visits[number]
        if op is Op.BACKWARD:
            return 1
        return bisect.bisect_right(self._firsts_in_tail, layer) if op is Op.LEAVE else max(1, len(self._firsts_in_tail))


@dataclass
class SlotContent:
    """What a slot holds at one point of a plan.

    Attributes:
        key: of the layer that it holds; None: it is free.
        load: the step that loaded it.
        users: steps that use it, the load among them.
        freed: of a free slot, the step that freed it.
    """

    key: Name | None = None
    load: int = -1
    users: tuple[int, ...] = ()
    freed: int = -1


class _Candidate(NamedTuple):
    """A slot that may be overwritten; the least of these is overwritten first."""

    minus_use: int  # the visit that needs its content next; negative, so that the latest comes first
    is_full: bool  # of slots that are needed equally late, an empty one comes first
    last_user: int  # then the one that was used longest ago
    slot: int


class SlotTable:
    """What each slot holds while a plan is built.

    Attributes:
        contents: by slot.
        slot_of: by key, the slot that holds it.
    """

    def __init__(self, visits: VisitList, num_slots: int) -> None:
        self._visits = visits
        self.contents = [SlotContent() for _ in range(num_slots)]
        self.slot_of: dict[Name, int] = {}
        self._candidates: list[_Candidate] = []  # a heap
        self._newest: list[_Candidate | None] = [None] * num_slots  # by slot, its entry that is not outdated
        # a heap: of each key in no slot, the visit that needs it next and the layer there
        self._missing: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.contents)

    def put(self, index: int, content: SlotContent) -> None:
        """Have a slot hold something; `rank` says when it is needed."""
        self.contents[index] = content
        if content.key is not None:
            self.slot_of[content.key] = index

    def clear(self, index: int, *, freed: int, number: int) -> None:
        """Have a slot hold nothing, before visit `number`."""
        key = self.contents[index].key
        self.contents[index] = SlotContent(freed=freed)
        if key is not None and self.slot_of[key] == index:  # else it was loaded for the next path, too
            del self.slot_of[key]
            self.miss(key, number)

    def rank(self, index: int, number: int) -> None:
        """Note when a slot's content is needed, from visit `number` on."""
        content = self.contents[index]
        use, last_user = self._visits.next_use(content.key, number), content.users[-1] if content.users else -1
        self._newest[index] = entry = _Candidate(-use, content.key is not None, last_user, index)
        heapq.heappush(self._candidates, entry)

    def pin(self, index: int) -> None:
        """Have a slot be overwritten no more."""
        self._newest[index] = None

    def victim(self, *, after: int) -> int | None:
        """The slot that is overwritten first; None where visit `after`, or one before it, needs what every slot holds.

        What a visit needs is needed no later than by itself, so that no slot of it is overwritten for it.
        """
        while self._candidates:
            entry = self._candidates[0]
            if self._newest[entry.slot] == entry:
                return entry.slot if -entry.minus_use > after else None
            heapq.heappop(self._candidates)
        return None

    def miss(self, key: Name, number: int) -> None:
        """Note when a key is needed, from visit `number` on, that may be in no slot."""
        use = self._visits.next_use(key, number)
        if key not in self.slot_of and use < len(self._visits):
            heapq.heappush(self._missing, (use, self._visits.layer_of(key, use)))

    def next_missing(self, number: int, *, last: int) -> tuple[int, int] | None:
        """The first visit behind `number`, up to `last`, whose layer is in no slot; and the layer's index."""
        while self._missing and self._missing[0][0] <= last:
            use, layer = self._missing[0]
            if use > number and self._visits.path[layer].key not in self.slot_of:
                return use, layer
            heapq.heappop(self._missing)
        return None
