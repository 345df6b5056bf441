"""No lane waits for want of a slot that another holds needlessly.

[Note: needless waits] A slot is its weights, its buffers and its gradients: it is of use until the last visit that runs
what it holds is done, and until what that leaves is sent and saved. The property has three parts, for every plan.
1. Every wait has a reason: one of the two steps writes what the other reads or writes, or the two are visits.
2. Between the last use of a slot and the load that takes it there is no further wait: a load waits for all uses of its
   slot, for what writes the weights and buffers that it reads, and for nothing else.
3. A load takes a slot whose content is of no more use if there is one, and of those the one that was of use last
   longest ago. So where a load waits, every slot is of use, or was so longer.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from l2l_nas.relay.plan import TAIL_VISITS, VISITS, Op, UpdateOrder
from l2l_nas.relay.planner import plan_training
from tests.relay.test_plan import chains, simple

_NEVER = 1 << 30


def slots_of(step):
    """The slots that a step works on."""
    return {step.slot, *step.tail} - {-1}


def keys_of(step, path):
    """The layers that a visit runs."""
    if step.op is Op.TAIL:
        return {about.key for about in path[step.layer :]}
    return {path[step.layer].key} if step.op in VISITS else set()


def needless(plan, path, *, update, upcoming):
    """The waits without a reason: pairs of a step and one that it waits for."""
    layers = [*path, *([upcoming] if upcoming else [])]
    return [
        (index, other)
        for index, step in enumerate(plan.steps)
        for other in step.after
        if not has_reason(plan.steps[other], step, layers, update=update)
    ]


def has_reason(first, second, layers, *, update):
    """Whether one writes what the other reads or writes."""
    about = layers[second.layer] if second.layer >= 0 else None
    pair = (first.op, second.op)
    if first.op in VISITS and second.op in VISITS:
        return True
    if second.op is Op.FREE:
        return bool(slots_of(first) & slots_of(second))
    if second.op is Op.LOAD:
        if first.op in (Op.FREE, Op.CARRY):
            return first.slot == second.slot
        if first.op is Op.SAVE:
            return layers[first.layer].key == about.key
        return first.state in about.trainable or (first.op is Op.CHECK and update is UpdateOrder.AHEAD)
    if second.op in VISITS:
        if first.op in (Op.LOAD, Op.CARRY, Op.SEND, Op.SAVE):
            return bool(slots_of(first) & slots_of(second))
        return first.op in (Op.STORE, Op.FETCH)  # frames, which `check_plan` follows
    if second.op in (Op.SEND, Op.SAVE):
        return first.op in VISITS and second.slot in slots_of(first)
    if second.op in (Op.STORE, Op.FETCH):
        return first.op in (*VISITS, Op.STORE, Op.FETCH)
    if second.op is Op.UPDATE:
        return (
            first.op is Op.CHECK
            or (first.op is Op.SEND and second.state in layers[first.layer].trainable)
            or (first.op in (Op.UPDATE, Op.AWAIT) and first.state == second.state)
        )
    return pair == (Op.SEND, Op.CHECK)


def badly_chosen(plan, path, *, upcoming, carry=None):
    """Loads that took a slot while a better one was there."""
    visits = [(index, keys_of(step, path)) for index, step in enumerate(plan.steps) if step.op in VISITS]
    ahead = len(path)  # the next path's first layer, which stays until the end

    def next_use(key, after):
        return next((index for index, keys in visits if index > after and key in keys), _NEVER)

    held: dict[int, tuple[str, int]] = {}  # by slot, what it holds, and its place in the path
    used: dict[int, int] = {}  # by slot, its last use
    found = []
    for index, step in enumerate(plan.steps):
        if step.op is Op.CARRY and carry.slot_keys[step.slot] is not None:
            held[step.slot] = (carry.slot_keys[step.slot], 0)
        if step.op is Op.LOAD:
            idle = {slot for slot, (key, place) in held.items() if place != ahead and next_use(key, index) == _NEVER}
            idle |= {slot for slot in range(plan_slots(plan)) if slot not in held}
            best = min((used.get(slot, -1) for slot in idle), default=_NEVER)
            if idle and (step.slot not in idle or used.get(step.slot, -1) > best):
                found.append((index, step.slot, sorted(idle)))
            about = path[step.layer] if step.layer < len(path) else upcoming
            held[step.slot] = (about.key, step.layer)
        if step.op not in (Op.CARRY, Op.FREE):
            used.update(dict.fromkeys(slots_of(step), index))
    return found


def plan_slots(plan):
    """How many slots it has."""
    return len(plan.leaves.slot_keys)


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=150, database=None)
@given(chains())
def test_every_wait_has_a_reason(chain):
    for plan, path, options in chain:
        assert needless(plan, path, update=options["update"], upcoming=options["upcoming"]) == []


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=150, database=None)
@given(chains())
def test_no_further_wait_is_between_a_slot_s_last_use_and_the_load_that_takes_it(chain):
    for plan, _, _ in chain:
        used: dict[int, set[int]] = {}
        for index, step in enumerate(plan.steps):
            if step.op is Op.LOAD:
                frees = [other for other in step.after if plan.steps[other].op is Op.FREE]
                waits = {user for free in frees for user in plan.steps[free].after}
                assert waits <= used.get(step.slot, set())
                used[step.slot] = set()
            for slot in slots_of(step):
                used.setdefault(slot, set()).add(index)


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=150, database=None)
@given(chains())
def test_a_load_takes_the_slot_that_is_free_longest(chain):
    for plan, path, options in chain:
        assert badly_chosen(plan, path, upcoming=options["upcoming"], carry=options["carry"]) == []


@pytest.mark.parametrize("update", UpdateOrder)
def test_a_needless_wait_and_a_slot_badly_chosen_are_noticed(update):
    path = simple(6)
    plan = plan_training(path, slots=3, update=update)
    steps = list(plan.steps)
    load = max(index for index, step in enumerate(steps) if step.op is Op.LOAD)
    send = next(index for index, step in enumerate(steps) if step.op is Op.SEND)
    later = steps[load]._replace(after=(*steps[load].after, send))
    worse = replace(plan, steps=(*steps[:load], later, *steps[load + 1 :]))
    assert needless(worse, path, update=update, upcoming=None) == [(load, send)]
    assert badly_chosen(plan, path, upcoming=None) == []
    others = {slot for slot in range(3) if slot != steps[load].slot}
    for slot in others:
        other = replace(plan, steps=(*steps[:load], steps[load]._replace(slot=slot), *steps[load + 1 :]))
        assert badly_chosen(other, path, upcoming=None)


def test_the_tail_s_visits_are_all_known_here():
    assert set(TAIL_VISITS) <= set(VISITS)
