"""Proves a plan right by reading it: every rule of the relay, on dependencies alone, whatever the order of lanes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from l2l_nas.errors import PlanError
from l2l_nas.relay.plan import VISITS, Op, PathLayer, Plan, Step


def check_plan(plan: Plan, path: Sequence[PathLayer], *, slots: int, trains: bool) -> None:
    """Check a plan against the path it is for.

    It proves that
    - steps wait only for earlier ones, and use slots that exist;
    - visits run in the order of the path and, in training, back to the first layer that learns;
    - a slot is read only after its load, and loaded only after everything that used it before;
    - gradients are sent after their visit, and before the next visit that writes the same block;
    - buffers that a forward changed are saved once, before anything changes them again or loads them;
    - in training, each state with trainable parameters in the path is updated once, after its last contribution, and
      not loaded after that.

    Raises:
        PlanError: a rule is broken; the message names the step.
    """
    before = _ancestors(plan)
    for index, step in enumerate(plan):
        if step.op is not Op.UPDATE and not 0 <= step.slot < slots:
            _fail(index, step, f"slot {step.slot} does not exist")
    _check_visits(plan, path, before, trains=trains)
    for slot in range(slots):
        _check_slot(plan, path, before, slot)
    if trains:
        _check_updates(plan, path, before)


def _fail(index: int, step: Step, reason: str) -> None:
    raise PlanError(f"step {index} ({step.op.value} layer {step.layer} slot {step.slot} {step.state}): {reason}")


def _ancestors(plan: Plan) -> list[int]:
    """For each step, a bit set of all steps that are certain to be done when it starts."""
    before: list[int] = []
    for index, step in enumerate(plan):
        known = 0
        for other in step.after:
            if not 0 <= other < index:
                _fail(index, step, f"waits for step {other}, which is not earlier")
            known |= before[other] | 1 << other
        before.append(known)
    return before


def _check_visits(plan: Plan, path: Sequence[PathLayer], before: list[int], *, trains: bool) -> None:
    visits = [(index, step) for index, step in enumerate(plan) if step.op in VISITS]
    last = len(path) - 1
    if trains:
        lowest = min((index for index, layer in enumerate(path) if layer.trainable), default=last)
        expected = [(Op.FORWARD, index) for index in range(last)]
        expected += [(Op.TURN, last), *((Op.BACKWARD, index) for index in range(last - 1, lowest - 1, -1))]
    else:
        expected = [(Op.FORWARD, index) for index in range(last + 1)]
    if [(step.op, step.layer) for _, step in visits] != expected:
        raise PlanError(f"visits are {[(s.op.value, s.layer) for _, s in visits]}")
    for (earlier, _), (later, step) in itertools.pairwise(visits):
        if not before[later] >> earlier & 1:
            _fail(later, step, f"does not wait for visit {earlier}")


def _check_slot(plan: Plan, path: Sequence[PathLayer], before: list[int], slot: int) -> None:
    """Walk one slot's steps; each must wait for those before it that it conflicts with."""
    loaded: int | None = None
    users: list[int] = []
    unsent: int | None = None
    unsaved: int | None = None
    for index, step in enumerate(plan):
        if step.slot != slot or step.op is Op.UPDATE:
            continue
        if step.op is Op.LOAD:
            if loaded is not None:
                _fail(index, step, "loads a slot that is not free")
            _require(plan, before, index, users, "which used the slot before")
            key = path[step.layer].key
            saves = [s for s in range(index) if plan[s].op is Op.SAVE and path[plan[s].layer].key == key]
            _require(plan, before, index, saves, "which saves the buffers it loads")
            loaded, users = index, [index]
            continue
        if loaded is None:
            _fail(index, step, "uses a slot that holds nothing")
            return
        if step.op is Op.FREE:
            _require(plan, before, index, users, "which still uses the slot")
            if unsent is not None:
                _fail(index, step, f"frees gradients of visit {unsent} that were not sent")
            if unsaved is not None:
                _fail(index, step, f"frees buffers of visit {unsaved} that were not saved")
            loaded, users = None, [index]
            continue
        if path[step.layer].key != path[plan[loaded].layer].key:
            _fail(index, step, f"the slot holds '{path[plan[loaded].layer].key}'")
        _require(plan, before, index, [loaded], "which loads what it reads")
        if step.op is Op.SEND:
            if unsent is None:
                _fail(index, step, "sends gradients that no visit made")
            else:
                _require(plan, before, index, [unsent], "which makes what it sends")
            unsent = None
        if step.op is Op.SAVE:
            if unsaved is None or plan[unsaved].layer != step.layer:
                _fail(index, step, "saves buffers that no forward of it changed")
            else:
                _require(plan, before, index, [unsaved], "which changes what it saves")
            unsaved = None
        if step.op in VISITS:
            _require(plan, before, index, users, "which still uses the slot")
            if step.op is not Op.FORWARD and path[step.layer].trainable:
                if unsent is not None:
                    _fail(index, step, f"overwrites gradients of visit {unsent} that were not sent")
                unsent = index
            if unsaved is not None:
                _fail(index, step, f"overwrites buffers of visit {unsaved} that were not saved")
            if step.op is not Op.BACKWARD and path[step.layer].has_buffers:
                _refuse_stale_buffers(plan, path, loaded, index)
                unsaved = index
        users.append(index)
    if loaded is not None:
        _fail(loaded, plan[loaded], "its slot is never freed")


def _refuse_stale_buffers(plan: Plan, path: Sequence[PathLayer], loaded: int, index: int) -> None:
    """A forward must start from the buffers that the layer's previous forward, in whichever slot, left."""
    step = plan[index]
    for other in plan[loaded:index]:
        if other.op is Op.SAVE and other.slot != step.slot and path[other.layer].key == path[step.layer].key:
            _fail(index, step, f"its buffers are stale: slot {other.slot} saved newer ones after step {loaded}")


def _require(plan: Plan, before: list[int], index: int, others: list[int], what: str) -> None:
    for other in others:
        if not before[index] >> other & 1:
            _fail(index, plan[index], f"does not wait for step {other} ({plan[other].op.value}), {what}")


def _check_updates(plan: Plan, path: Sequence[PathLayer], before: list[int]) -> None:
    contributions: dict[str, list[int]] = {}
    loads: dict[str, list[int]] = {}
    for index, step in enumerate(plan):
        if step.op is Op.SEND:
            for state in path[step.layer].trainable:
                contributions.setdefault(state, []).append(index)
        if step.op is Op.LOAD:
            for state in path[step.layer].trainable:
                loads.setdefault(state, []).append(index)
    expected = {state for layer in path for state in layer.trainable}
    updates = [(index, step) for index, step in enumerate(plan) if step.op is Op.UPDATE]
    names = sorted(step.state for _, step in updates)
    if names != sorted(expected):
        raise PlanError(f"updates {names}, expected each of {sorted(expected)} once")
    for index, step in updates:
        uses = sum(step.state in layer.trainable for layer in path)
        if len(contributions.get(step.state, [])) != uses:
            _fail(index, step, f"{len(contributions.get(step.state, []))} contributions, the path has {uses}")
        _require(plan, before, index, contributions[step.state], "which contributes to it")
        for load in loads[step.state]:
            if not before[index] >> load & 1:
                _fail(index, step, f"step {load} loads the weights that it changes")
