"""The checker sees every way of breaking a plan."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings

from l2l_nas.relay.path import PathLayer
from l2l_nas.relay.plan import Carry, Op, Plan, Step, UpdateOrder
from l2l_nas.relay.planner import plan_training
from tests.relay.plans import PlanError, check_plan
from tests.relay.test_plan import KINDS, chains

MUTATED = settings(derandomize=True, deadline=None, max_examples=40, database=None)


def is_right(plan, steps, path, options):
    try:
        check_plan(replace(plan, steps=tuple(steps)), path, trains=True, **options)
    except PlanError:
        return False
    return True


def ancestors(steps):
    known = []
    for step in steps:
        known.append(set(step.after).union(*(known[other] for other in step.after)))
    return known


def without(steps, index):
    """A plan less one step; who waited for it waits for what it waited for."""
    after = {other: other - (other > index) for other in range(len(steps))}
    rest = []
    for number, step in enumerate(steps):
        if number != index:
            wanted = {*step.after, *(steps[index].after if index in step.after else ())} - {index}
            rest.append(step._replace(after=tuple(sorted(after[other] for other in wanted))))
    return rest


def doubled(steps, index):
    """A plan with one step done twice; who waited for it waits for both."""
    more = []
    for number, step in enumerate(steps):
        wanted = {other + (other > index) for other in step.after} | ({index + 1} if index in step.after else set())
        more.append(step._replace(after=tuple(sorted(wanted))))
        if number == index:
            more.append(more[-1]._replace(after=(index,)))
    return more


@pytest.mark.slow
@MUTATED
@given(chains())
def test_a_dropped_dependency_is_noticed_unless_others_imply_it(chain):
    for plan, path, options in chain:
        steps = plan.steps
        for index, step in enumerate(steps):
            for dropped in step.after:
                rest = tuple(other for other in step.after if other != dropped)
                mutant = [*steps[:index], step._replace(after=rest), *steps[index + 1 :]]
                if dropped not in ancestors(mutant)[index]:
                    assert not is_right(plan, mutant, path, options), (index, step, dropped)


@pytest.mark.slow
@MUTATED
@given(chains())
def test_a_missing_step_is_noticed(chain):
    for plan, path, options in chain:
        for index, step in enumerate(plan.steps):
            if not (step.op is Op.AWAIT and step.state not in loaded_states(plan, path, options)):
                assert not is_right(plan, without(plan.steps, index), path, options), step


def loaded_states(plan, path, options):
    layers = [*path, options["upcoming"]]
    return {state for step in plan.steps if step.op is Op.LOAD for state in layers[step.layer].trainable}


@pytest.mark.slow
@MUTATED
@given(chains())
def test_a_step_done_twice_is_noticed(chain):
    for plan, path, options in chain:
        for index, step in enumerate(plan.steps):
            if step.op is not Op.AWAIT:
                assert not is_right(plan, doubled(plan.steps, index), path, options), step


@pytest.mark.slow
@MUTATED
@given(chains())
def test_two_neighbours_that_depend_on_each_other_cannot_be_swapped(chain):
    for plan, path, options in chain:
        for index, (first, second) in enumerate(itertools.pairwise(plan.steps)):
            # ahead of the check or behind it
            may_change_places = options["update"] is UpdateOrder.AHEAD and (first.op, second.op) == (
                Op.CHECK,
                Op.UPDATE,
            )
            if index in ancestors(plan.steps)[index + 1] and not may_change_places:
                swapped = [second._replace(after=first.after), first._replace(after=second.after)]
                mutant = [*plan.steps[:index], *swapped, *plan.steps[index + 2 :]]
                assert not is_right(plan, mutant, path, options), (first, second)


@MUTATED
@given(chains())
def test_another_slot_is_noticed(chain):
    for plan, path, options in chain:
        slots = options["slots"]
        for index, step in enumerate(plan.steps):
            if step.slot >= 0:
                for slot in {*range(-1, slots + 1)} - {step.slot}:
                    mutant = [*plan.steps[:index], step._replace(slot=slot), *plan.steps[index + 1 :]]
                    assert not is_right(plan, mutant, path, options), (step, slot)


@MUTATED
@given(chains())
def test_a_wrong_room_is_noticed(chain):
    for plan, path, options in chain:
        for index, step in enumerate(plan.steps):
            if step.frames:
                # a value may be brought to any free frame; it is stored from where it is
                last = options["spill"].frames
                for frame in {*range(-1, last + 1)} - {step.frames[0]} if step.op is Op.STORE else {-1, last}:
                    for frames in ((frame, *step.frames[1:]), step.frames[1:]):
                        mutant = [*plan.steps[:index], step._replace(frames=frames), *plan.steps[index + 1 :]]
                        assert not is_right(plan, mutant, path, options), (step, frames)


NORM = KINDS[1]


def test_buffers_of_a_recompute_must_not_be_saved():
    path = [NORM, PathLayer("head", ("head",))]
    plan = list(plan_training(path, slots=2).steps)
    save = next(index for index, step in enumerate(plan) if step.op is Op.SAVE)
    back = next(index for index, step in enumerate(plan) if step.op is Op.BACKWARD)
    moved = without(plan, save)
    moved.insert(back, Step(Op.SAVE, layer=0, slot=plan[save].slot, after=(back - 1,)))
    shifted = [
        step if index <= back else step._replace(after=tuple(other + (other >= back) for other in step.after))
        for index, step in enumerate(moved)
    ]
    with pytest.raises(PlanError, match="not saved"):
        check_plan(Plan(tuple(shifted), Carry((None, None))), path, slots=2, trains=True)


def test_a_second_copy_of_a_repeated_layer_has_stale_buffers():
    path = [NORM, NORM]
    steps = [
        Step(Op.LOAD, layer=0, slot=0),
        Step(Op.LOAD, layer=1, slot=1),
        Step(Op.FORWARD, layer=0, slot=0, after=(0,)),
        Step(Op.SAVE, layer=0, slot=0, after=(1, 2)),
        Step(Op.FORWARD, layer=1, slot=1, after=(1, 2, 3)),
        Step(Op.SAVE, layer=1, slot=1, after=(4,)),
        Step(Op.FREE, slot=0, after=(2, 3)),
        Step(Op.FREE, slot=1, after=(4, 5)),
    ]
    with pytest.raises(PlanError, match="stale"):
        check_plan(Plan(tuple(steps), Carry((None, None))), path, slots=2, trains=False)


@pytest.mark.parametrize("other", [7, -1])
def test_a_step_that_waits_for_a_later_one_is_refused(other):
    with pytest.raises(PlanError, match="not earlier"):
        check_plan(Plan((Step(Op.LOAD, layer=0, slot=0, after=(other,)),), Carry()), [NORM], slots=1, trains=False)


def test_a_repeated_layer_of_the_tail_in_two_slots_is_refused_as_one_would_keep_its_gradient():
    path = [PathLayer("a", ("a",), False, (), ("x",)), PathLayer("a", ("a",), False, ("x",), ("y",))]
    steps = (
        Step(Op.LOAD, 0, 0),
        Step(Op.LOAD, 1, 1),
        Step(Op.ENTER, 0, 0, after=(0,)),
        Step(Op.ENTER, 1, 1, after=(1, 2)),
        Step(Op.TAIL, 0, 0, tail=(1,), after=(2, 3)),
        Step(Op.LEAVE, 1, 1, after=(4,)),
        Step(Op.LEAVE, 0, 0, after=(5,)),
        Step(Op.SEND, 0, 0, after=(6,)),
        Step(Op.UPDATE, state="a", after=(0, 1, 7)),
        Step(Op.FREE, slot=0, after=(7,)),
        Step(Op.FREE, slot=1, after=(6,)),
    )
    with pytest.raises(PlanError, match="a repeated layer is in two slots"):
        check_plan(Plan(steps, Carry((None, None), ("a",))), path, slots=2, trains=True)
