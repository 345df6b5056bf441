"""The simulator: small timelines, and what must hold for every plan."""

from __future__ import annotations

import itertools
import random
import sys

import pytest

from l2l_nas.cost.chain import LANES, Chain, Read, RelayShape
from l2l_nas.cost.simulator import LayerSeconds, PathSeconds, _SharedLane, lifted, simulate
from l2l_nas.cost.staged import staged_bytes
from l2l_nas.relay.path import PathLayer, Spill, numbered
from l2l_nas.relay.plan import Op, Step, UpdateOrder
from l2l_nas.relay.schedule import LANE

RESTING = {Op.CARRY, Op.AWAIT, Op.FREE}


def path_of(depth: int, *, has_buffers: bool = False) -> list[PathLayer]:
    return [PathLayer(i, (i,), has_buffers, reads=(i,), writes=(i + 1,)) for i in range(depth)]


def seconds_of(depth: int, layer: LayerSeconds, *, update: float = 0.0, **others) -> PathSeconds:
    return PathSeconds([layer] * depth, dict.fromkeys(range(depth), update), **others)


def test_every_operation_of_a_plan_has_a_lane_or_takes_no_time():
    assert set(Op) == LANE.keys() | RESTING
    assert {*LANE.values(), "disk"} == set(LANES)


@pytest.mark.parametrize("lanes", ["streams", "threads", "inline"])
def test_compute_alone_is_forwards_recomputes_and_backwards(lanes):
    depth = 5
    chain = Chain.of(path_of(depth), RelayShape(slots=2))
    found = simulate(chain, seconds_of(depth, LayerSeconds(0, 1, 2, 0)), lanes=lanes)
    # the last layer is not run again
    assert found.step_s == pytest.approx(3 * depth + (depth - 1))
    assert found.binds == "compute"
    assert found.over_bound == pytest.approx(1)


def test_a_thread_that_computes_issues_nothing_meanwhile():
    depth = 5
    chain = Chain.of(path_of(depth), RelayShape(slots=2))
    seconds = seconds_of(depth, LayerSeconds(0, 1, 2, 0), issue=0.1)
    streams, threads = (simulate(chain, seconds, lanes=lanes).step_s for lanes in ("streams", "threads"))
    visits = sum(piece.lane == LANES.index("compute") for piece in chain.plans[-1])
    assert threads == pytest.approx(3 * depth + (depth - 1) + 0.1 * visits)
    assert streams < 3 * depth + (depth - 1) + 0.1 * 2


def test_with_everything_retained_nothing_is_run_again():
    depth = 5
    chain = Chain.of(path_of(depth), RelayShape(slots=depth, keep=depth))
    assert simulate(chain, seconds_of(depth, LayerSeconds(0, 1, 2, 0))).step_s == pytest.approx(3 * depth)


def test_inline_is_the_sum_of_all_lanes():
    depth = 4
    chain = Chain.of(path_of(depth), RelayShape(slots=2))
    found = simulate(chain, seconds_of(depth, LayerSeconds(1, 2, 4, 3), update=5), lanes="inline")
    assert found.step_s == pytest.approx(sum(found.busy_s.values()))
    assert found.busy_s["host"] == 5 * depth
    assert found.busy_s["down"] == 3 * depth


def test_one_layer_in_one_slot_is_a_chain_of_waits():
    chain = Chain.of(path_of(1), RelayShape(slots=1))
    found = simulate(chain, seconds_of(1, LayerSeconds(load=1, forward=2, backward=4, send=8), update=16))
    # the next load waits for the update
    assert found.step_s == pytest.approx(1 + 2 + 4 + 8 + 16)


def test_what_updates_wait_for_the_check_takes_longer():
    depth = 4
    times = {
        update: simulate(
            Chain.of(path_of(depth), RelayShape(slots=3, update=update)),
            seconds_of(depth, LayerSeconds(0.01, 1, 2, 0.01), update=2),
        ).step_s
        for update in UpdateOrder
    }
    assert times[UpdateOrder.EAGER] <= times[UpdateOrder.AHEAD] < times[UpdateOrder.CHECKED]


def test_states_are_copied_before_updates_ahead_of_the_check_and_no_others():
    depth = 4
    seconds = seconds_of(depth, LayerSeconds(0.01, 1, 2, 0.01), update=2, copies=dict.fromkeys(range(depth), 0.5))
    busy = {
        update: simulate(Chain.of(path_of(depth), RelayShape(slots=3, update=update)), seconds).busy_s["host"]
        for update in (UpdateOrder.AHEAD, UpdateOrder.CHECKED)
    }
    assert busy[UpdateOrder.CHECKED] == depth * 2
    # the gradient of the first layer comes last, with the check
    assert busy[UpdateOrder.AHEAD] == pytest.approx(depth * 2 + (depth - 1) * 0.5)


@pytest.mark.parametrize("number", range(40))
def test_no_step_is_shorter_than_the_work_of_its_busiest_lane_nor_longer_than_all_work(number):
    draw = random.Random(number)
    depth = draw.randint(1, 9)
    slots = draw.randint(1, depth + 1)
    spilled = frozenset(range(1, depth)) if draw.random() < 0.5 else frozenset()
    shape = RelayShape(slots, draw.randint(1, slots), draw.choice(list(UpdateOrder)), Spill(spilled))
    path = path_of(depth, has_buffers=draw.random() < 0.3)
    seconds = PathSeconds(
        [LayerSeconds(*(draw.random() for _ in range(5))) for _ in range(depth)],
        {i: draw.random() for i in range(depth)},
        {name: (draw.random(), draw.random()) for name in spilled},
    )
    chain = Chain.of(path, shape, steps=6)
    for lanes in ("streams", "threads"):
        found = simulate(chain, seconds, lanes=lanes)
        assert max(found.busy_s.values()) - 1e-9 <= found.step_s * 1.5  # steps may alternate: one may be short
        assert found.step_s <= sum(found.busy_s.values()) + 1e-9
        twice = lifted(chain, seconds, lanes=lanes)
        assert all(step_s <= found.step_s + 1e-9 for step_s in twice.values())
        assert twice["disk"] == found.step_s  # which had nothing to do


def test_a_faster_link_lifts_the_copies_of_its_own_direction():
    depth = 6
    spilled = frozenset(range(1, depth))
    chain = Chain.of(path_of(depth), RelayShape(slots=2, spill=Spill(spilled)))
    layer = LayerSeconds(0, 0.01, 0.01, 0)
    stored = seconds_of(depth, layer, values=dict.fromkeys(spilled, (4.0, 0.01)))
    fetched = seconds_of(depth, layer, values=dict.fromkeys(spilled, (0.01, 4.0)))
    for seconds, lane, other in ((stored, "down", "up"), (fetched, "up", "down")):
        found, twice = simulate(chain, seconds), lifted(chain, seconds, lanes="streams")
        assert found.binds == lane
        assert twice[lane] < 0.6 * found.step_s
        assert twice[other] > 0.99 * found.step_s


def test_spans_are_those_of_all_steps_and_lanes_do_one_thing_at_a_time():
    depth = 4
    chain = Chain.of(path_of(depth), RelayShape(slots=2))
    layer = LayerSeconds(1, 2, 4, 1)
    found = simulate(chain, seconds_of(depth, layer, update=1), path=numbered(path_of(depth)))
    assert {span.step for span in found.spans} == {0, 1, 2}
    for lane in LANES:
        spans = [span for span in found.spans if span.lane == lane]
        mine = sorted((span.start_s, span.end_s) for span in spans)
        assert all(one[1] <= other[0] + 1e-9 for one, other in itertools.pairwise(mine))
        last = [span.end_s - span.start_s for span in spans if span.step == 2]
        assert sum(last) == pytest.approx(found.busy_s[lane])


def test_gradients_pile_up_where_updates_lag_behind():
    depth = 6
    chain = Chain.of(path_of(depth), RelayShape(slots=3))
    gradients = [{i: 100} for i in range(depth)]
    fast, slow = (
        simulate(chain, seconds_of(depth, LayerSeconds(0, 1, 2, 0.1), update=update), gradients=gradients)
        for update in (0.1, 20)
    )
    assert fast.staged_bytes == 100
    assert slow.staged_bytes == 600


def calls_of_a_simulation(depth: int) -> int:
    chain = Chain.of(path_of(depth), RelayShape(slots=3))
    seconds = seconds_of(depth, LayerSeconds(0.1, 1, 2, 0.2), update=0.1)
    count = 0

    def profile(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        simulate(chain, seconds)
    finally:
        sys.setprofile(None)
    return count


def test_work_of_a_simulation_grows_with_the_depth_and_no_faster():
    """A search asks for thousands of them."""
    assert calls_of_a_simulation(240) < 11 * calls_of_a_simulation(24)


def test_a_block_is_taken_again_when_its_update_is_done_and_not_before():
    def send(layer, start):
        return 0, 2, Step(Op.SEND, layer), start, start + 1.0

    def update(layer, end):
        return 0, 3, Step(Op.UPDATE, state=layer), end - 1.0, end

    gradients = [{i: size} for i, size in enumerate((100, 100, 40))]
    assert staged_bytes([send(0, 0), update(0, 2), send(1, 3), update(1, 5)], gradients) == 100
    assert (
        staged_bytes([send(0, 0), update(0, 2), send(1, 3), send(2, 4), update(1, 9), update(2, 9)], gradients) == 140
    )
    assert staged_bytes([send(0, 0), send(1, 1), update(0, 9), update(1, 9)], gradients) == 200


def test_weights_are_rounded_beside_the_copy_of_those_before_and_take_the_thread_of_loads():
    depth = 6
    chain = Chain.of(path_of(depth), RelayShape(slots=depth + 1))
    copied = simulate(chain, seconds_of(depth, LayerSeconds(2, 0.01, 0.01, 0.01)))
    beside = simulate(chain, seconds_of(depth, LayerSeconds(2, 0.01, 0.01, 0.01, round=1)))
    behind = simulate(chain, seconds_of(depth, LayerSeconds(2, 0.01, 0.01, 0.01, round=4)))
    assert copied.step_s < beside.step_s <= copied.step_s + 1.01
    assert (copied.busy_s["round"], behind.binds) == (0, "round")
    assert behind.over_bound == pytest.approx(1, abs=0.15)
    seconds = seconds_of(depth, LayerSeconds(2, 0.01, 0.01, 0.01, round=4))
    assert lifted(chain, seconds, lanes="streams")["round"] < 0.6 * behind.step_s


def files_of(depth: int, read: float, rest: float, written: float) -> dict[int, tuple[float, float, float]]:
    return dict.fromkeys(range(depth), (read, rest, written))


@pytest.mark.parametrize("update", list(UpdateOrder))
def test_states_in_files_are_read_once_a_use_that_frames_do_not_spare(update):
    depth = 8
    chain = Chain.of(path_of(depth), RelayShape(slots=3, update=update, frames=4))
    read = [chain.work[piece.work] for piece in chain.plans[-1] if piece.lane == LANES.index("disk")]
    assert all(isinstance(one, Read) for one in read)
    rests = [one.state for one in read if one.rest]  # for updates; what the last step left in frames is there
    assert depth - 4 <= len(rests) == len(set(rests)) <= depth
    assert len([one for one in read if one.weights]) >= depth - 4
    whole = Chain.of(path_of(depth), RelayShape(slots=3, update=update, frames=depth + 1))
    assert not [p for p in whole.plans[-1] if p.lane == LANES.index("disk")]  # all of them are in frames


def test_the_state_whose_next_use_is_the_latest_gives_its_frame_away():
    chain = Chain.of(path_of(8), RelayShape(slots=3, frames=6))
    works = [chain.work[piece.work] for piece in chain.plans[-1]]
    # of the forward, then of the backward
    assert [work.state for work in works if isinstance(work, Read) and work.weights] == [6, 7, 1, 0]


def test_a_disk_that_binds_is_busy_all_the_time_and_a_faster_one_lifts_it():
    depth = 8
    chain = Chain.of(path_of(depth), RelayShape(slots=3, frames=4))
    seconds = seconds_of(depth, LayerSeconds(0.01, 0.01, 0.02, 0.01), update=0.01, files=files_of(depth, 1, 2, 3))
    found = simulate(chain, seconds, path=numbered(path_of(depth)))
    assert found.binds == "disk"
    assert found.over_bound == pytest.approx(1, abs=0.15)
    assert depth * (2 + 3) < found.busy_s["disk"] <= depth * (1 + 1 + 2 + 3)
    assert lifted(chain, seconds, lanes="streams")["disk"] < 0.6 * found.step_s
    assert {span.lane for span in found.spans if span.op == "read"} == {"disk"}


def test_an_update_ends_when_its_state_is_written():
    chain = Chain.of(path_of(1), RelayShape(slots=1, frames=4))
    seconds = seconds_of(1, LayerSeconds(1, 2, 4, 8), update=16, files=files_of(1, 0, 0, 32))
    assert simulate(chain, seconds).step_s == pytest.approx(1 + 2 + 4 + 8 + 16 + 32)


def test_a_disk_does_one_thing_at_a_time_and_rests_only_when_nothing_is_ready():
    disk = _SharedLane()
    assert disk.occupy(0, 2) == 2
    assert disk.occupy(5, 2) == 7
    assert disk.occupy(1, 4) == 8  # from 2 to 5, and from 7 on
    assert disk.occupy(3, 1) == 9
    assert disk.occupy(20, 0) == 20


def exchanging(**nets) -> PathSeconds:
    depth = 3
    return seconds_of(depth, LayerSeconds(load=1, forward=2, backward=4, send=1, **nets), update=0.5)


@pytest.mark.parametrize("lanes", ["streams", "threads", "inline"])
def test_what_ranks_exchange_takes_time_and_is_counted_once(lanes):
    chain = Chain.of(path_of(3), RelayShape(slots=2))
    without = simulate(chain, exchanging(), lanes=lanes)
    loads = sum(isinstance(work := chain.work[piece.work], Step) and work.op is Op.LOAD for piece in chain.plans[-1])
    found = simulate(chain, exchanging(gather=0.25, reduce=0.5), lanes=lanes)
    assert found.busy_s["net"] == pytest.approx(0.25 * loads + 0.5 * 3)
    assert {lane: busy for lane, busy in found.busy_s.items() if lane != "net"} == {
        lane: pytest.approx(busy) for lane, busy in without.busy_s.items() if lane != "net"
    }
    assert without.exposed_s == 0
    assert 0 <= found.exposed_s <= found.busy_s["net"]
    if lanes == "inline":
        assert found.step_s == pytest.approx(without.step_s + found.busy_s["net"])
        assert found.exposed_s == pytest.approx(found.busy_s["net"])
    else:
        assert without.step_s <= found.step_s <= without.step_s + found.busy_s["net"]


def test_sums_within_a_layer_are_exposed_and_run_again_with_its_forward():
    chain = Chain.of(path_of(3), RelayShape(slots=2))
    found = simulate(chain, exchanging(forward_sums=1, backward_sums=0.5))
    sums = 3 * 1 + 3 * 0.5 + 2 * 1  # the last layer is not run again
    assert found.busy_s["net"] == found.exposed_s == pytest.approx(sums)
    assert found.step_s >= simulate(chain, exchanging()).step_s + sums - 1e-9


def test_a_load_gathers_before_it_copies_and_a_send_copies_before_it_exchanges():
    path = numbered([PathLayer(f"l{i}", (f"l{i}",), reads=(i,), writes=(i + 1,)) for i in range(3)], ())
    chain = Chain.of(path.layers, RelayShape(slots=2))
    spans = simulate(chain, exchanging(gather=0.25, reduce=0.5), path=path).spans
    for op, other, is_before in (("load", "gather", True), ("send", "reduce", False)):
        for one in (span for span in spans if span.op == op):
            edge = one.start_s if is_before else one.end_s
            own = [s for s in spans if s.op == other and s.layer == one.layer]
            assert any((s.end_s <= edge if is_before else s.start_s >= edge) for s in own), (one, own)


def test_loads_and_sends_share_one_network():
    net = _SharedLane()
    assert net.occupy(0.0, 2.0) == 2.0
    assert net.occupy(1.0, 1.0) == 3.0
