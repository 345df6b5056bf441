"""Which slot a planned load overwrites: the one whose content the visits to come need latest (Belady's rule)."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from l2l_nas.relay.path import Name, PathLayer
from l2l_nas.relay.plan import Op


class VisitList:
    """The visits of a plan in their order, and which layers of the path they need."""

    def __init__(self, path: Sequence[PathLayer], visits: Sequence[tuple[Op, int]]) -> None:
        self._visits = visits
        # the first layer of the tail; the path's length where no visit is of a tail
        self.tail_start = next((layer for op, layer in visits if op is Op.TAIL), len(path))
        self.first_in_tail: dict[Name, int] = {}  # by key, its first index in the tail, in ascending order
        for index in range(self.tail_start, len(path)):
            self.first_in_tail.setdefault(path[index].key, index)
        self._firsts_in_tail = list(self.first_in_tail.values())
        self.uses: dict[Name, list[int]] = {}  # by key, the numbers of the visits that need it
        self.gradient_counts: dict[Name, int] = {}  # by state, how many gradients the visits make of it
        self.complete_gradients: set[int] = set()  # the visits after which the gradients of their layer are complete
        for number, (op, layer) in enumerate(visits):
            for key in self.first_in_tail if op is Op.TAIL else (path[layer].key,):
                self.uses.setdefault(key, []).append(number)
            # a repeated layer leaves the tail at its first place
            if op is Op.BACKWARD or (op is Op.LEAVE and self.first_in_tail[path[layer].key] == layer):
                self.complete_gradients.add(number)
                for state in path[layer].trainable:
                    self.gradient_counts[state] = self.gradient_counts.get(state, 0) + 1

    def __len__(self) -> int:
        return len(self._visits)

    def __getitem__(self, number: int) -> tuple[Op, int]:
        return self._visits[number]

    def next_use(self, key: Name | None, number: int) -> int:
        """Number of the first visit from `number` on that needs a key; the number of visits if none does."""
        uses = self.uses.get(key) if key is not None else None
        if uses is None or uses[-1] < number:
            return len(self._visits)
        return uses[bisect.bisect_left(uses, number)]

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
    """What a slot holds at one point of a plan."""

    key: Name | None = None  # of the layer that it holds; None: it is free
    load: int = -1  # the step that loaded it
    users: tuple[int, ...] = ()  # steps that use it, the load among them
    freed: int = -1  # of a free slot, the step that freed it


Key = TypeVar("Key", bound=Name)
Rank = TypeVar("Rank", bound=tuple[int, ...])


class _Ranks(Generic[Key, Rank]):
    """Ranks by key. The least is at the head of a heap, whose outdated entries go when they come up."""

    def __init__(self, ranks: dict[Key, Rank]) -> None:
        self._ranks = ranks
        self._heap = [(rank, key) for key, rank in ranks.items()]
        heapq.heapify(self._heap)

    def __setitem__(self, key: Key, rank: Rank) -> None:
        self._ranks[key] = rank
        heapq.heappush(self._heap, (rank, key))

    def discard(self, key: Key) -> None:
        self._ranks.pop(key, None)

    def least(self) -> Rank | None:
        while self._heap:
            rank, key = self._heap[0]
            if self._ranks.get(key) == rank:
                return rank
            heapq.heappop(self._heap)
        return None


class SlotTable:
    """What each slot holds while a plan is built."""

    def __init__(self, visits: VisitList, num_slots: int) -> None:
        self._visits = visits
        self.contents = [SlotContent() for _ in range(num_slots)]
        self.slot_of: dict[Name, int] = {}  # by key
        # of each slot that may be overwritten; the least is overwritten first: its content is needed latest, it is
        # empty, it was used longest ago
        self._order = _Ranks({index: (-len(visits), False, -1, index) for index in range(num_slots)})
        # of keys in no slot: the visit that needs it next, and the layer
        self._missing = _Ranks({key: self._need(key, uses[0]) for key, uses in visits.uses.items()})

    def put(self, index: int, key: Name, load: int, *, number: int) -> None:
        """Have a slot hold a layer that a step loaded, before visit `number`."""
        self.contents[index] = SlotContent(key, load, (load,))
        self.slot_of[key] = index
        self._missing.discard(key)
        self.rank(index, number)

    def clear(self, index: int, *, freed: int, number: int) -> None:
        """Have a slot hold nothing, before visit `number`."""
        key = self.contents[index].key
        self.contents[index] = SlotContent(freed=freed)
        if key is not None and self.slot_of[key] == index:  # else it was loaded for the next path, too
            del self.slot_of[key]
            self._miss(key, number)

    def _miss(self, key: Name, number: int) -> None:
        use = self._visits.next_use(key, number)
        if use < len(self._visits):
            self._missing[key] = self._need(key, use)

    def _need(self, key: Name, number: int) -> tuple[int, int]:
        op, layer = self._visits[number]
        return number, self._visits.first_in_tail[key] if op is Op.TAIL else layer

    def rank(self, index: int, number: int) -> None:
        """Note when a slot's content is needed, from visit `number` on."""
        content = self.contents[index]
        last_user = content.users[-1] if content.users else -1
        self._order[index] = -self._visits.next_use(content.key, number), content.key is not None, last_user, index

    def pin(self, index: int) -> None:
        self._order.discard(index)

    def victim(self, *, after: int) -> int | None:
        """The slot that is overwritten first; None where visit `after`, or one before it, needs what every slot holds.

        What a visit needs is needed no later than by itself, so that no slot of it is overwritten for it.
        """
        first = self._order.least()
        return first[-1] if first is not None and -first[0] > after else None

    def next_missing(self, *, last: int) -> tuple[int, int] | None:
        """The first visit, up to `last`, whose layer is in no slot; and the layer's index."""
        first = self._missing.least()
        return first if first is not None and first[0] <= last else None
