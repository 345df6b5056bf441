"""The schedule: where and in which order the steps of plans run. Pure functions on plans.

The executor submits what is said here to its lanes, the simulator gives it durations, the timeline draws it.

[Note: order] Copies are done in the order of the plan. Of the host's work that may begin, a check of all gradients goes
first: the sooner it is done, the fewer states are copied before their update. Then comes the update whose layer the
next step's forward needs first. Updates of different states do not touch each other, so their order changes no result.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

from l2l_nas.eps.exchange import Channel
from l2l_nas.relay.path import Name, PathLayer
from l2l_nas.relay.plan import VISITS, Op, Plan, Step

LANES = ("up", "compute", "down", "host")
# the lane of each step that is work; the others stand for what they wait for
LANE: Mapping[Op, str] = {
    **dict.fromkeys((Op.LOAD, Op.FETCH), "up"),
    **dict.fromkeys(VISITS, "compute"),
    **dict.fromkeys((Op.SAVE, Op.STORE, Op.SEND), "down"),
    **dict.fromkeys((Op.CHECK, Op.UPDATE), "host"),
}
# steps in which ranks exchange something, and on which channel; see [Note: order of exchanges] in `exchanges.py`
COLLECTIVES: Mapping[Op, Channel] = {Op.LOAD: Channel.LOAD, Op.SAVE: Channel.SEND, Op.SEND: Channel.SEND}
IN_ORDER = ("up", "compute", "down")  # lanes that work in the order of the plan
_LAST = 1 << 30

Work = TypeVar("Work", bound=Hashable)


def update_ranks(path: Sequence[PathLayer], *, in_files: bool) -> dict[Name, int]:
    """By state, which update the host does first, see [Note: order]; files are read ahead in the plan's own order."""
    if in_files:
        return {}
    return dict(reversed([(state, place + 1) for place, layer in enumerate(path) for state in layer.trainable]))


def rank(step: Step, ranks: Mapping[Name, int]) -> int:
    """Of the host's work that may begin, the least goes first; a check is before all updates."""
    return ranks.get(step.state, _LAST) if step.op is Op.UPDATE else 0


class PlanSchedule(Generic[Work]):
    """Has the steps of plans done, one plan after the other, each step after what it waits for."""

    def __init__(self) -> None:
        self.slots: dict[int, tuple[Work, ...]] = {}  # what the last plan did with it; the next one may keep it
        self.updates: dict[str, Work] = {}  # by the name of a state, its last update

    def issue(
        self,
        plan: Plan,
        name: Callable[[Name], str],
        submit: Callable[[Step, tuple[Work, ...]], Work],
    ) -> list[Work]:
        """Submit the steps of a plan that are work; what the caller waits for before it makes the next plan.

        That is what it must know by then: which buffers changed, whether the step counts, and the loss, which the first
        gradient brings.

        Args:
            name: of a state, by its number.
            submit: has a step done after others.
        """
        works_of: list[tuple[Work, ...]] = []  # by step, what those wait for that wait for it
        awaited: dict[Work, None] = {}
        self.slots, before = {}, self.slots
        has_sent = False
        for step in plan.steps:
            op = step.op
            works = tuple(dict.fromkeys(work for other in step.after for work in works_of[other]))
            if op in LANE:
                works = (submit(step, works),)
            elif op is Op.CARRY:
                works = before.get(step.slot, ())
            elif op is Op.AWAIT:
                update = self.updates.get(name(step.state))
                works = () if update is None else (update,)
            works_of.append(works)
            if op is Op.UPDATE:
                self.updates[name(step.state)] = works[0]
            if op in (Op.CARRY, Op.LOAD, Op.FREE):  # each slot ends with one of these; FREE is behind all that used it
                self.slots[step.slot] = works
            if op in (Op.SAVE, Op.CHECK) or (op is Op.SEND and not has_sent):
                awaited.update(dict.fromkeys(works))
            has_sent = has_sent or op is Op.SEND
        return list(awaited)
