"""Which waits of plans others stand in for: those may be lost without harm, and no checker could see it."""

from __future__ import annotations

from collections.abc import Sequence

from l2l_nas.relay.path import Name
from l2l_nas.relay.plan import Op, Plan
from l2l_nas.relay.schedule import LANE

_STANDING = (Op.CARRY, Op.AWAIT, Op.FREE)  # work of others, for those that wait for it


class Order:
    """What comes before what when plans run one after the other, without poison: by waits, lanes and the host.

    A lane does its work in order, but for that of the host, which may go in any.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.ops: list[Op] = []
        self.waits: list[tuple[int, ...]] = []
        self.orders: list[set[int]] = []
        used: dict[int, list[int]] = {}
        updates: dict[Name, int] = {}
        last: dict[str, int] = {}
        awaited: list[int] = []
        for plan in plans:
            base, begun, mine, has_sent = len(self.ops), tuple(awaited), {}, False
            for index, step in enumerate(plan.steps, start=base):
                waits = tuple(base + other for other in step.after)
                if step.op is Op.CARRY:
                    waits = tuple(used.get(step.slot, ()))
                if step.op is Op.AWAIT:
                    waits = (updates[step.state],) if step.state in updates else ()
                if step.op is Op.LOAD:
                    mine[step.slot] = []
                for slot in (step.slot, *step.tail):
                    mine.setdefault(slot, []).append(index)
                orders = set(begun)
                lane = LANE.get(step.op)
                if lane in last:
                    orders.add(last[lane])
                if step.op is Op.UPDATE:
                    updates[step.state] = index
                if lane is not None and lane != "host":
                    last[lane] = index
                if step.op in (Op.SAVE, Op.CHECK) or (step.op is Op.SEND and not has_sent):
                    awaited.append(index)
                has_sent = has_sent or step.op is Op.SEND
                self.ops.append(step.op)
                self.waits.append(waits)
                self.orders.append(orders)
            used = mine

    def stands_in(self, op: Op, lost: Op) -> bool:
        """Whether all waits of this kind are implied by what is left without them.

        One thread does the host's work, so that nothing of it races: a wait among it is for the result's sake.
        """
        if LANE.get(op) == LANE.get(lost) == "host":
            return True
        before: list[int] = []  # as bits
        for index, waits in enumerate(self.waits):
            is_kind = [self.ops[index] is op and self.ops[other] is lost for other in waits]
            kept = [other for other, is_lost in zip(waits, is_kind, strict=True) if not is_lost]
            bits = 0
            for other in (*kept, *self.orders[index]):
                bits |= before[other] | 1 << other
            needed = (
                one for other, is_lost in zip(waits, is_kind, strict=True) if is_lost for one in self._work(other)
            )
            if any(not bits >> one & 1 for one in needed):
                return False
            before.append(bits)
        return True

    def _work(self, index: int) -> set[int]:
        """What a step has done: itself, or what it stands for."""
        if self.ops[index] not in _STANDING:
            return {index}
        return {one for other in self.waits[index] for one in self._work(other)}
