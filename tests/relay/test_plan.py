"""Plans: what is loaded when, and what waits for what."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l2l_nas.errors import SettingError
from l2l_nas.relay.check import check_plan
from l2l_nas.relay.plan import Op, PathLayer, UpdatePolicy, plan_forward, plan_training

KINDS = [
    PathLayer("a", ("a",)),
    PathLayer("b", ("b",), has_buffers=True),
    PathLayer("buffers", (), has_buffers=True),
    PathLayer("frozen"),
    PathLayer("tied1", ("tied1", "tied")),
    PathLayer("tied2", ("tied",), has_buffers=True),
    *(PathLayer(f"own{index}", (f"own{index}",), has_buffers=index % 2 == 0) for index in range(4)),
]
PATHS = st.lists(st.sampled_from(KINDS), min_size=1, max_size=8)


def simple(depth):
    return [PathLayer(str(index), (str(index),)) for index in range(depth)]


def loads(plan):
    return [step.layer for step in plan if step.op is Op.LOAD]


@settings(derandomize=True, deadline=None, max_examples=200, database=None)
@given(PATHS, st.integers(1, 5), st.sampled_from(UpdatePolicy))
def test_every_training_plan_is_right(path, slots, update):
    check_plan(plan_training(path, slots=slots, update=update), path, slots=slots, trains=True)


@settings(derandomize=True, deadline=None, max_examples=100, database=None)
@given(PATHS, st.integers(1, 5))
def test_every_forward_plan_is_right(path, slots):
    check_plan(plan_forward(path, slots=slots, saves_buffers=True), path, slots=slots, trains=False)
    bare = [PathLayer(layer.key) for layer in path]
    plan = plan_forward(path, slots=slots)
    check_plan(plan, bare, slots=slots, trains=False)
    assert {step.op for step in plan} == {Op.LOAD, Op.FORWARD, Op.FREE}


@pytest.mark.parametrize("slots", [2, 3, 4])
@pytest.mark.parametrize("depth", [4, 5, 8])
def test_the_backward_finds_the_last_layers_still_loaded(depth, slots):
    # Belady's rule: of 2 x depth - 1 visits (the turn is one) as many are spared as other slots can keep
    assert len(loads(plan_training(simple(depth), slots=slots))) == 2 * depth - slots


def test_one_slot_loads_for_every_visit():
    assert loads(plan_training(simple(3), slots=1)) == [0, 1, 2, 1, 0]


def test_a_layer_repeated_in_a_row_is_loaded_once():
    path = [PathLayer("a", ("a",))] * 4
    assert loads(plan_training(path, slots=2)) == [0]


def test_the_next_load_is_placed_before_the_visit_it_may_overlap():
    plan = plan_training(simple(4), slots=2)
    order = [(step.op, step.layer) for step in plan]
    assert order.index((Op.LOAD, 1)) < order.index((Op.FORWARD, 0))
    assert order.index((Op.FORWARD, 0)) not in plan[order.index((Op.LOAD, 1))].after


@settings(derandomize=True, deadline=None, max_examples=50, database=None)
@given(PATHS, st.integers(1, 3))
def test_eager_updates_stand_right_behind_their_last_send(path, slots):
    plan = plan_training(path, slots=slots, update=UpdatePolicy.EAGER)
    for index, step in enumerate(plan):
        if step.op is Op.UPDATE:
            before = index - 1
            while plan[before].op is Op.UPDATE:
                before -= 1
            assert plan[before].op is Op.SEND
            assert before == max(step.after)


@settings(derandomize=True, deadline=None, max_examples=50, database=None)
@given(PATHS, st.integers(1, 3))
def test_serial_updates_stand_behind_everything_else(path, slots):
    plan = plan_training(path, slots=slots, update=UpdatePolicy.SERIAL)
    ops = [step.op for step in plan if step.op is not Op.FREE]
    first = ops.index(Op.UPDATE) if Op.UPDATE in ops else len(ops)
    assert set(ops[first:]) <= {Op.UPDATE}


def test_the_backward_stops_at_the_first_layer_that_learns():
    path = [PathLayer("frozen"), PathLayer("a", ("a",)), PathLayer("also frozen"), PathLayer("head")]
    plan = plan_training(path, slots=2)
    assert [step.layer for step in plan if step.op is Op.BACKWARD] == [2, 1]
    assert [step.layer for step in plan if step.op is Op.SEND] == [1]


@pytest.mark.parametrize(("path", "slots"), [([], 2), (simple(1), 0)])
def test_no_layers_and_no_slots_are_refused(path, slots):
    with pytest.raises(SettingError):
        plan_training(path, slots=slots)
    with pytest.raises(SettingError):
        plan_forward(path, slots=slots)
