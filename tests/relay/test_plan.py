"""Plans: what is loaded when, and what waits for what."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from l2l_nas.errors import SettingError
from l2l_nas.relay.path import PathLayer, Spill, numbered, tail_start
from l2l_nas.relay.plan import VISITS, Op, UpdateOrder
from l2l_nas.relay.planner import plan_forward, plan_training
from tests.relay.plans import check_plan

KINDS = [
    PathLayer("a", ("a",)),
    PathLayer("b", ("b",), has_buffers=True),
    PathLayer("buffers", (), has_buffers=True),
    PathLayer("frozen"),
    PathLayer("tied1", ("tied1", "tied")),
    PathLayer("tied2", ("tied",), has_buffers=True),
    *(PathLayer(f"own{index}", (f"own{index}",), has_buffers=index % 2 == 0) for index in range(4)),
]
LAYERS = st.lists(st.sampled_from(KINDS), min_size=1, max_size=8)


def chained(layers):
    """Each layer reads what the one before it writes."""
    return [one._replace(reads=(f"v{i}",), writes=(f"v{i + 1}",)) for i, one in enumerate(layers)]


@st.composite
def graphs(draw):
    """Each layer reads up to three values of any before it, and writes one or two; the last reads what nobody did."""
    path, known, unread = [], ["v0"], set()
    layers = draw(LAYERS)
    for index, layer in enumerate(layers):
        reads = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
        writes = tuple(f"v{index + 1}{letter}" for letter in "ab"[: draw(st.integers(1, 2))])
        unread -= set(reads)
        if index == len(layers) - 1:
            reads += sorted(unread)
        path.append(layer._replace(reads=tuple(reads), writes=writes))
        known += writes
        unread |= set(writes)
    return path


PATHS = st.one_of(LAYERS.map(chained), graphs())


@st.composite
def spills(draw, path):
    """Any of the values, and at least as many frames as a visit needs."""
    names = sorted({name for layer in path[:-1] for name in layer.writes})
    values = frozenset(draw(st.lists(st.sampled_from(names), unique=True)) if names else ())
    most = max(len(values.intersection((*layer.reads, *layer.writes))) for layer in path)
    return Spill(values, most + draw(st.integers(1, 3)))


@st.composite
def chains(draw):
    """Plans one after the other, as training makes them: each begins with what the last one left."""
    options = {"slots": draw(st.integers(1, 5)), "update": draw(st.sampled_from(UpdateOrder))}
    paths = draw(st.lists(PATHS, min_size=1, max_size=3))
    plans, carry = [], None
    for index, path in enumerate(paths):
        upcoming = paths[index + 1][0] if index + 1 < len(paths) and draw(st.booleans()) else None
        around = {"carry": carry, "upcoming": upcoming, "spill": draw(spills(path))}
        plan = plan_training(path, keep=draw(st.integers(1, 8)), **options, **around)
        plans.append((plan, path, options | around))
        carry = plan.leaves
    return plans


def simple(depth):
    return chained([PathLayer(str(index), (str(index),)) for index in range(depth)])


def loads(plan):
    return [step.layer for step in plan.steps if step.op is Op.LOAD]


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=400, database=None)
@given(chains())
def test_every_training_plan_is_right(chain):
    for plan, path, options in chain:
        check_plan(plan, path, trains=True, **options)


@settings(derandomize=True, deadline=None, max_examples=100, database=None)
@given(PATHS, st.integers(1, 5))
def test_every_forward_plan_is_right(path, slots):
    bare = [layer._replace(trainable=()) for layer in path]
    check_plan(plan_forward(path, slots=slots, saves_buffers=True), bare, slots=slots, trains=False)
    barer = [PathLayer(layer.key) for layer in path]
    plan = plan_forward(path, slots=slots)
    check_plan(plan, barer, slots=slots, trains=False)
    assert {step.op for step in plan.steps} == {Op.LOAD, Op.FORWARD, Op.FREE}


def calls_of_planning(depth: int, slots: int) -> int:
    path, count = simple(depth), 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        plan_training(path, slots=slots, keep=slots, upcoming=path[1])
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("kept", [0.0, 0.5, 1.0])
def test_planning_grows_with_the_path_whatever_is_kept(kept):
    small, large = (calls_of_planning(depth, max(2, int(kept * depth))) for depth in (25, 250))
    assert large < 11 * small


def test_paths_alike_share_a_plan():
    other = chained([PathLayer(f"other{index}", (f"other{index}",)) for index in range(5)])
    ours, theirs = numbered(simple(5), simple(1)[0]), numbered(other, other[0])
    assert (ours.layers, ours.upcoming) == (theirs.layers, theirs.upcoming)
    assert ours.states != theirs.states
    plans = [plan_training(path.layers, slots=2, upcoming=path.upcoming) for path in (ours, theirs)]
    assert plans[0] is plans[1]


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
    order = [(step.op, step.layer) for step in plan.steps]
    assert order.index((Op.LOAD, 1)) < order.index((Op.FORWARD, 0))
    assert order.index((Op.FORWARD, 0)) not in plan.steps[order.index((Op.LOAD, 1))].after


@settings(derandomize=True, deadline=None, max_examples=50, database=None)
@given(PATHS, st.integers(1, 3))
def test_eager_updates_stand_right_behind_their_last_send(path, slots):
    plan = plan_training(path, slots=slots, update=UpdateOrder.EAGER)
    for index, step in enumerate(plan.steps):
        if step.op is Op.UPDATE:
            before = index - 1
            while plan.steps[before].op is Op.UPDATE:
                before -= 1
            assert plan.steps[before].op is Op.SEND
            assert before == max(step.after)


@settings(derandomize=True, deadline=None, max_examples=50, database=None)
@given(PATHS, st.integers(1, 3))
def test_serial_updates_stand_behind_everything_else(path, slots):
    plan = plan_training(path, slots=slots, update=UpdateOrder.CHECKED)
    ops = [step.op for step in plan.steps if step.op is not Op.FREE]
    first = ops.index(Op.UPDATE) if Op.UPDATE in ops else len(ops)
    assert set(ops[first:]) <= {Op.UPDATE}


def test_the_backward_stops_at_the_first_layer_that_learns():
    path = chained([PathLayer("frozen"), PathLayer("a", ("a",)), PathLayer("also frozen"), PathLayer("head")])
    plan = plan_training(path, slots=2)
    assert [step.layer for step in plan.steps if step.op is Op.BACKWARD] == [2, 1]
    assert [step.layer for step in plan.steps if step.op is Op.SEND] == [1]


@pytest.mark.parametrize(("path", "slots"), [([], 2), (simple(1), 0)])
def test_no_layers_and_no_slots_are_refused(path, slots):
    with pytest.raises(SettingError):
        plan_training(path, slots=slots)
    with pytest.raises(SettingError):
        plan_forward(path, slots=slots)


def test_a_tail_is_loaded_once_and_run_by_its_own_visits_alone():
    plan = plan_training(simple(6), slots=4, keep=3)
    tail = next(step for step in plan.steps if step.op is Op.TAIL)
    assert (tail.layer, len(tail.tail)) == (3, 2)
    assert [step.layer for step in plan.steps if step.op is Op.BACKWARD] == [2, 1, 0]
    assert sorted(loads(plan)) == [0, 0, 1, 1, 2, 3, 4, 5]


def test_with_a_slot_for_each_layer_all_are_kept_and_loaded_once():
    plan = plan_training(simple(5), slots=5, keep=9)
    assert sorted(loads(plan)) == [0, 1, 2, 3, 4]
    assert [step.op for step in plan.steps if step.op in VISITS] == [Op.ENTER] * 5 + [Op.TAIL] + [Op.LEAVE] * 5


def test_a_layer_of_the_tail_waits_for_its_own_load_alone_and_its_gradient_goes_when_it_has_left():
    steps = plan_training(simple(3), slots=3, keep=3).steps
    place = {(step.op, step.layer): index for index, step in enumerate(steps)}
    assert (Op.LOAD, 2) not in {(steps[i].op, steps[i].layer) for i in steps[place[Op.ENTER, 1]].after}
    assert steps[place[Op.SEND, 2]].after == (place[Op.LEAVE, 2],)
    assert place[Op.SEND, 2] < place[Op.LEAVE, 1]


def test_a_slot_of_the_tail_is_loaded_again_while_the_rest_leaves():
    steps = plan_training(simple(5), slots=3, keep=3).steps
    place = {(step.op, step.layer): index for index, step in enumerate(steps)}
    assert steps[place[Op.LOAD, 1]].slot == steps[place[Op.LEAVE, 4]].slot  # its second load, for the backward
    assert place[Op.LOAD, 1] < place[Op.LEAVE, 3]


def test_the_tail_is_as_short_as_the_slots_but_a_repeated_layer_needs_one_slot_only():
    assert tail_start(simple(6), slots=2, keep=4) == 4
    assert tail_start([PathLayer("a")] * 6, slots=1, keep=4) == 2


def test_updates_behind_the_check_are_in_forward_order_and_each_load_of_the_next_step_waits_for_its_own():
    path = simple(4)
    first = plan_training(path, slots=2, update=UpdateOrder.CHECKED)
    check = next(index for index, step in enumerate(first.steps) if step.op is Op.CHECK)
    updates = [(step.state, step.after) for step in first.steps if step.op is Op.UPDATE]
    assert updates == [(name, (check,)) for name in "0123"]
    second = plan_training(path, slots=2, update=UpdateOrder.CHECKED, carry=first.leaves)
    awaits = {step.state: index for index, step in enumerate(second.steps) if step.op is Op.AWAIT}
    assert list(awaits) == ["0", "1", "2", "3"]
    for step in second.steps:
        if step.op is Op.LOAD:
            assert awaits[str(step.layer)] in step.after


def test_updates_of_what_the_next_path_lacks_are_waited_for_by_a_later_one():
    first = plan_training(simple(3), slots=2, update=UpdateOrder.CHECKED)
    other = [PathLayer("x", ("x",)), PathLayer("1", ("1",))]
    plan = plan_training(other, slots=2, update=UpdateOrder.CHECKED, carry=first.leaves)
    assert [step.state for step in plan.steps if step.op is Op.AWAIT] == ["1"]
    assert set(plan.leaves.updating) == {"0", "1", "2", "x"}


def test_updates_run_ahead_of_the_check_but_those_of_the_last_gradient():
    steps = plan_training(simple(4), slots=2, update=UpdateOrder.AHEAD).steps
    check = next(index for index, step in enumerate(steps) if step.op is Op.CHECK)
    updates = {step.state: index for index, step in enumerate(steps) if step.op is Op.UPDATE}
    assert [state for state, index in updates.items() if index < check] == ["3", "2", "1"]
    assert steps[updates["0"]].after == (check,)


@pytest.mark.parametrize("update", UpdateOrder)
def test_the_next_path_s_first_layer_is_loaded_before_the_step_ends(update):
    upcoming = PathLayer("next", ("next",))
    plan = plan_training(simple(4), slots=2, update=update, upcoming=upcoming)
    assert "next" in plan.leaves.slot_keys
    load = next(index for index, step in enumerate(plan.steps) if step.op is Op.LOAD and step.layer == 4)
    assert load < max(index for index, step in enumerate(plan.steps) if step.op in VISITS)
    again = plan_training([upcoming, *simple(2)], slots=2, update=update, carry=plan.leaves)
    assert 0 not in [step.layer for step in again.steps if step.op is Op.LOAD][:1]


def test_spilled_inputs_are_stored_once_and_fetched_unless_a_room_still_has_them():
    plan = plan_training(simple(8), slots=2, spill=Spill(frozenset(f"v{index}" for index in range(1, 8))))
    assert [step.value for step in plan.steps if step.op is Op.STORE] == ["v1", "v2", "v3", "v4", "v5", "v6"]
    assert [step.layer for step in plan.steps if step.op is Op.FETCH] == [4, 3, 2, 1]
    order = [(step.op, step.layer) for step in plan.steps]
    assert order.index((Op.FETCH, 3)) < order.index((Op.BACKWARD, 4))


def test_a_layer_that_learns_nowhere_before_it_has_no_backward():
    path = [
        PathLayer("stem", ("stem",), reads=("x",), writes=("a",)),
        PathLayer("frozen", reads=("x",), writes=("b",)),
        PathLayer("after frozen", reads=("b",), writes=("c",)),
        PathLayer("learns", ("learns",), reads=("a",), writes=("d",)),
        PathLayer("head", ("head",), reads=("c", "d"), writes=("out",)),
    ]
    plan = plan_training(path, slots=2)
    assert [step.layer for step in plan.steps if step.op is Op.BACKWARD] == [3, 0]


def test_a_spilled_value_is_stored_once_and_fetched_for_each_reader_that_no_room_serves():
    path = [
        PathLayer("stem", ("stem",), reads=("x",), writes=("memory",)),
        *(PathLayer(f"{i}", (f"{i}",), reads=(f"v{i}" if i else "memory",), writes=(f"v{i + 1}",)) for i in range(6)),
        PathLayer("head", ("head",), reads=("v6", "memory"), writes=("out",)),
    ]
    spill = Spill(frozenset(name for layer in path[:-1] for name in layer.writes), frames=3)
    plan = plan_training(path, slots=2, spill=spill)
    check_plan(plan, path, slots=2, trains=True, spill=spill)
    assert [step.value for step in plan.steps if step.op is Op.STORE].count("memory") == 1
    # for the head; for the backward of layer 0, from which it had to go meanwhile
    assert [step.layer for step in plan.steps if step.op is Op.FETCH and step.value == "memory"] == [7, 1]


def test_a_tail_takes_no_more_spilled_values_than_there_are_rooms_for():
    down = [PathLayer(f"d{i}", (f"d{i}",), reads=(f"v{i}",), writes=(f"v{i + 1}",)) for i in range(4)]
    up = [
        PathLayer(f"u{i}", (f"u{i}",), reads=(f"w{i}" if i else "v4", f"v{3 - i}"), writes=(f"w{i + 1}",))
        for i in range(3)
    ]
    path = [*down, *up]
    spill = Spill(frozenset({"v1", "v2", "v3", "v4"}), frames=4)
    assert tail_start(path, slots=9, keep=9) == 0
    assert tail_start(path, slots=9, keep=3, spill=spill) == 5
    assert tail_start(path, slots=9, keep=3, spill=Spill(spill.values, frames=9)) == 4


def test_nothing_is_loaded_ahead_into_a_slot_that_the_tail_needs():
    repeated = [PathLayer("a", ("a",))] * 3
    path = chained([*repeated, PathLayer("b", ("b",)), PathLayer("c", ("c",))])
    upcoming = PathLayer("x", ("x",))
    plan = plan_training(path, slots=2, keep=2, upcoming=upcoming)
    check_plan(plan, path, slots=2, trains=True, upcoming=upcoming)
    assert "x" in plan.leaves.slot_keys
