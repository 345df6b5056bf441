"""The checker sees every way of breaking a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l2l_nas.errors import PlanError
from l2l_nas.relay.check import check_plan
from l2l_nas.relay.plan import Op, PathLayer, Step, UpdatePolicy, plan_training
from tests.relay.test_plan import KINDS, PATHS

MUTATED = settings(derandomize=True, deadline=None, max_examples=40, database=None)
ARGUMENTS = (PATHS, st.integers(1, 4), st.sampled_from(UpdatePolicy))


def is_right(plan, path, slots):
    try:
        check_plan(tuple(plan), path, slots=slots, trains=True)
    except PlanError:
        return False
    return True


def ancestors(plan):
    known = []
    for step in plan:
        known.append(set(step.after).union(*(known[other] for other in step.after)))
    return known


def without(plan, index):
    """A plan less one step; who waited for it waits for what it waited for."""
    after = {other: other - (other > index) for other in range(len(plan))}
    steps = []
    for number, step in enumerate(plan):
        if number != index:
            wanted = {*step.after, *(plan[index].after if index in step.after else ())} - {index}
            steps.append(replace(step, after=tuple(sorted(after[other] for other in wanted))))
    return steps


def doubled(plan, index):
    """A plan with one step done twice; who waited for it waits for both."""
    steps = []
    for number, step in enumerate(plan):
        wanted = {other + (other > index) for other in step.after} | ({index + 1} if index in step.after else set())
        steps.append(replace(step, after=tuple(sorted(wanted))))
        if number == index:
            steps.append(replace(steps[-1], after=(index,)))
    return steps


@MUTATED
@given(*ARGUMENTS)
def test_a_dropped_dependency_is_noticed_unless_others_imply_it(path, slots, update):
    plan = plan_training(path, slots=slots, update=update)
    for index, step in enumerate(plan):
        for dropped in step.after:
            rest = tuple(other for other in step.after if other != dropped)
            mutant = [*plan[:index], replace(step, after=rest), *plan[index + 1 :]]
            implied = dropped in ancestors(mutant)[index]
            assert is_right(mutant, path, slots) == implied, (index, step, dropped)


@MUTATED
@given(*ARGUMENTS)
def test_a_missing_step_is_noticed(path, slots, update):
    plan = plan_training(path, slots=slots, update=update)
    for index in range(len(plan)):
        assert not is_right(without(plan, index), path, slots), plan[index]


@MUTATED
@given(*ARGUMENTS)
def test_a_step_done_twice_is_noticed(path, slots, update):
    plan = plan_training(path, slots=slots, update=update)
    for index in range(len(plan)):
        assert not is_right(doubled(plan, index), path, slots), plan[index]


@MUTATED
@given(*ARGUMENTS)
def test_two_neighbours_that_depend_on_each_other_cannot_be_swapped(path, slots, update):
    plan = plan_training(path, slots=slots, update=update)
    for index in range(len(plan) - 1):
        first, second = plan[index : index + 2]
        if index in ancestors(plan)[index + 1]:
            swapped = [replace(second, after=first.after), replace(first, after=second.after)]
            assert not is_right([*plan[:index], *swapped, *plan[index + 2 :]], path, slots), (first, second)


@MUTATED
@given(*ARGUMENTS)
def test_another_slot_is_noticed(path, slots, update):
    plan = plan_training(path, slots=slots, update=update)
    for index, step in enumerate(plan):
        if step.op is not Op.UPDATE:
            for slot in {*range(-1, slots + 1)} - {step.slot}:
                mutant = [*plan[:index], replace(step, slot=slot), *plan[index + 1 :]]
                assert not is_right(mutant, path, slots), (step, slot)


NORM = KINDS[1]


def test_buffers_of_a_recompute_must_not_be_saved():
    path = [NORM, PathLayer("head", ("head",))]
    plan = list(plan_training(path, slots=2))
    save = next(index for index, step in enumerate(plan) if step.op is Op.SAVE)
    back = next(index for index, step in enumerate(plan) if step.op is Op.BACKWARD)
    moved = without(plan, save)
    moved.insert(back, Step(Op.SAVE, layer=0, slot=plan[save].slot, after=(back - 1,)))
    shifted = [
        step if index <= back else replace(step, after=tuple(other + (other >= back) for other in step.after))
        for index, step in enumerate(moved)
    ]
    with pytest.raises(PlanError, match="not saved"):
        check_plan(tuple(shifted), path, slots=2, trains=True)


def test_a_second_copy_of_a_repeated_layer_has_stale_buffers():
    path = [NORM, NORM]
    steps = [
        Step(Op.LOAD, layer=0, slot=0),
        Step(Op.LOAD, layer=1, slot=1),
        Step(Op.FORWARD, layer=0, slot=0, after=(0,)),
        Step(Op.SAVE, layer=0, slot=0, after=(2,)),
        Step(Op.FORWARD, layer=1, slot=1, after=(1, 2, 3)),
        Step(Op.SAVE, layer=1, slot=1, after=(4,)),
        Step(Op.FREE, slot=0, after=(2, 3)),
        Step(Op.FREE, slot=1, after=(4, 5)),
    ]
    with pytest.raises(PlanError, match="stale"):
        check_plan(tuple(steps), path, slots=2, trains=False)


@pytest.mark.parametrize("other", [7, -1])
def test_a_step_that_waits_for_a_later_one_is_refused(other):
    with pytest.raises(PlanError, match="not earlier"):
        check_plan((Step(Op.LOAD, layer=0, slot=0, after=(other,)),), [NORM], slots=1, trains=False)
