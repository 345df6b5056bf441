"""Updates that run ahead of the check of all gradients, and are put back where it says otherwise."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from l2l_nas import AdamW, Clip, ParamServer, Relay
from l2l_nas.eps.file_storage import FileStorage
from l2l_nas.eps.state import LayerState
from l2l_nas.errors import NonFiniteError
from l2l_nas.relay.plan import Op, UpdateOrder
from l2l_nas.relay.planner import plan_training
from tests.relay.plans import check_plan
from tests.relay.steps import GRACE_S, OTHER, PATH, is_same, relay_of, tensors, train
from tests.relay.stress import AHEAD, CHECKED, Stress
from tests.relay.test_plan import simple
from tests.toys import SquaredError, dense_pool, language_pool, repeated_pool

PATHS = [PATH, OTHER, PATH, PATH, OTHER, PATH, OTHER, OTHER, PATH, PATH]


def losses(relay, *, paths=PATHS, lr=0.05):
    found = [
        train(relay, path, step=step, upcoming=paths[(step + 1) % len(paths)], lr=lr).loss
        for step, path in enumerate(paths)
    ]
    relay.drain()
    return found


def both(**options):
    """The same training with updates that wait, and ahead."""
    relays = [relay_of(dense_pool(), update=update, **options) for update in (CHECKED, AHEAD)]
    assert losses(relays[0]) == losses(relays[1])
    assert is_same(relays[1].server, tensors(relays[0].server))
    assert relays[1].server.gradients.waiting == {}
    return relays[1]


@pytest.mark.parametrize("lanes", ["inline", "threads"])
@pytest.mark.parametrize("options", [{}, {"device_budget": "all"}, {"stash": "host", "slots": 3}], ids=str)
def test_where_nothing_is_clipped_all_updates_stand(lanes, options):
    assert both(lanes=lanes, clip=Clip(1e6), **options).put_back == 0


@pytest.mark.parametrize("lanes", ["inline", "threads"])
@pytest.mark.parametrize("scope", ["global", "layer"])
def test_what_is_clipped_is_put_back_and_updated_again(lanes, scope):
    relay = both(lanes=lanes, clip=Clip(0.5, scope))
    assert relay.put_back == 1  # and as every step is clipped, it does not try again


def test_it_tries_again_after_steps_that_needed_nothing():
    relay, clip = relay_of(dense_pool(), update=AHEAD, clip=Clip(1e6)), Clip(1e-3)
    other = relay_of(dense_pool(), update=CHECKED, clip=Clip(1e6))
    is_tight = [True, False, False, False, False, True, True, False]
    for step, tight in enumerate(is_tight):
        for one in (relay, other):
            update = replace(one.config.update, clip=clip if tight else Clip(1e6))
            one._training.config = replace(one.config, update=update)
            train(one, PATH, step=step)
        assert is_same(relay.server, tensors(other.server))
    assert relay.put_back == 2  # at steps 0 and 5; step 6 waited


def test_in_fp16_an_overflow_puts_all_back_and_halves_the_scale():
    relay = both(precision="fp16", clip=Clip(1e6))
    waiting = relay_of(dense_pool(), update=CHECKED, precision="fp16")
    ahead = relay_of(dense_pool(), update=AHEAD, precision="fp16")
    for one in (waiting, ahead):
        train(one, PATH)
        one.drain()
        before = {place: value for place, value in tensors(one.server).items() if "buffers." not in place[1]}
        one.server.gradients.loss_scale.scale = 2.0**40  # overflows
        assert train(one, PATH, step=1).is_skipped
        one.drain()
        after = tensors(one.server)
        assert all(torch.equal(after[place], value) for place, value in before.items())
        train(one, PATH, step=2)
        one.drain()
    assert is_same(ahead.server, tensors(waiting.server))
    assert ahead.put_back == 1
    assert relay.server.gradients.waiting == {}


@pytest.mark.parametrize("lanes", ["inline", "threads"])
def test_a_gradient_that_is_not_finite_changes_nothing(lanes):
    class Steep(SquaredError):
        """A finite loss whose gradient is not."""

        def loss(self, outputs, targets):
            return (outputs[0] - outputs[0].detach()).abs().sqrt().sum()

    relay = relay_of(dense_pool(), update=AHEAD, lanes=lanes)
    train(relay, PATH)
    relay.drain()
    before = tensors(relay.server)
    with pytest.raises(NonFiniteError, match="gradient"):
        train(relay, PATH, step=1, objective=Steep())
    relay.drain()
    assert is_same(relay.server, before)
    train(relay, PATH, step=2)
    relay.drain()
    assert not is_same(relay.server, before)


@pytest.mark.parametrize("norm", [0.3, 1e6])
def test_tied_and_repeated_states_are_updated_once(norm):
    for pool, choices in (
        (repeated_pool(), ["dense", "running", "dense", "dense", "head"]),
        (language_pool(), ["embed", "feed", "attention", "feed", "head"]),
    ):
        orders = (CHECKED, AHEAD)
        relays = [relay_of(pool, update=order, clip=Clip(norm), slots=3) for order in orders]
        found = [[train(relay, choices, step=step, micro_batch=5).loss for step in range(4)] for relay in relays]
        for relay in relays:
            relay.drain()
        assert found[0] == found[1]
        assert is_same(relays[1].server, tensors(relays[0].server))


@pytest.mark.parametrize("norm", [0.3, 1e6])
def test_states_in_files_are_put_back_too(norm, tmp_path):
    servers = [
        ParamServer(dense_pool(), optimizer=AdamW(), seed=0, storage=FileStorage(tmp_path / str(update)))
        for update in (CHECKED, AHEAD)
    ]
    relays = [
        Relay(server, update=update, clip=Clip(norm), device="cpu")
        for server, update in zip(servers, (CHECKED, AHEAD), strict=True)
    ]
    assert losses(relays[0]) == losses(relays[1])
    assert is_same(servers[1], tensors(servers[0]))


def test_copies_of_states_are_used_again():
    relay, found = relay_of(dense_pool(), update=AHEAD), []
    for step in range(3):
        train(relay, PATH, step=step)
        found.append({block.data_ptr() for blocks in relay.server.gradients._spares for block in blocks})
    assert found[0] == found[1] == found[2]


def test_what_waits_when_the_check_is_done_is_not_copied(monkeypatch):
    copies = []
    save = LayerState.save
    monkeypatch.setattr(LayerState, "save", lambda state, blocks=None: copies.append(state) or save(state, blocks))
    submitted, sends = threading.Semaphore(0), []
    is_first = []

    def pace(op, layer):
        if op == "update" and not is_first:  # the host goes on when it has all gradients, and their check to do
            is_first.append(False)
            assert submitted.acquire(timeout=GRACE_S)
            for future in sends:
                future.wait()
                relay.device.wait(future.mark)
        return 0.0

    relay = relay_of(
        dense_pool(),
        update=AHEAD,
        lanes="threads",
        clip=Clip(1e6),
        stress=Stress(pace=pace, longest_delay_s=0.0),
    )
    submit = relay.lanes.submit

    def noted(lane, do, **options):
        future = submit(lane, do, **options)
        if options["label"].op == "send":
            sends.append(future)
        if options["label"].op == "check":
            submitted.release()
        return future

    monkeypatch.setattr(relay.lanes, "submit", noted)
    found = []
    for step in range(3):
        copies.clear()
        is_first.clear()
        sends.clear()
        found.append(train(relay, PATH, step=step, upcoming=PATH).loss)
        relay.drain()
        assert len(copies) == 1
        assert len(relay.server.gradients._spares) == len(copies)
    other = relay_of(dense_pool(), update=CHECKED, clip=Clip(1e6))
    assert found == [train(other, PATH, step=step, upcoming=PATH).loss for step in range(3)]
    other.drain()
    assert is_same(relay.server, tensors(other.server))


@pytest.mark.parametrize("norm", [0.5, 1e6])
def test_slow_updates_of_the_last_step_are_none_of_the_next_check(norm):
    # an update of the last step waits while the next step, which does not have its layer, is checked
    paths = [PATH, OTHER] * 3
    stress = Stress(pace=lambda op, layer: 0.03 if op == "update" else 0.0)
    relay = relay_of(dense_pool(), update=AHEAD, lanes="threads", clip=Clip(norm), stress=stress)
    other = relay_of(dense_pool(), update=CHECKED, clip=Clip(norm))
    for step, path in enumerate(paths):
        found = [train(one, path, step=step) for one in (relay, other)]
        assert found[0] == found[1]
        relay._training._calm = 4  # ahead again, whatever was put back
    relay.drain()
    assert is_same(relay.server, tensors(other.server))


def test_the_next_path_s_first_layer_is_loaded_after_the_check():
    path = simple(4)
    plan = plan_training(path, slots=2, update=UpdateOrder.AHEAD, upcoming=path[1])
    check_plan(plan, path, slots=2, trains=True, update=UpdateOrder.AHEAD, upcoming=path[1])
    check = next(index for index, step in enumerate(plan.steps) if step.op is Op.CHECK)
    load = max(index for index, step in enumerate(plan.steps) if step.op is Op.LOAD)
    assert check in plan.steps[load].after
    ops = [step.op for step in plan.steps]
    assert ops.index(Op.UPDATE) < len(ops) - 1 - ops[::-1].index(Op.BACKWARD)
