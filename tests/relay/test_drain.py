"""Updates under way: whoever looks sees the result of every step taken, and nothing is lost or done twice."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn

from l2l_nas import SGD, AdamW, Candidate, LayerPool, ParamServer, Position, Relay, TensorSpec
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.errors import L2LError, LaneError, SettingError
from l2l_nas.relay import step as step_module
from tests.products import every_pair
from tests.relay.steps import OTHER, PATH, copying, in_time, is_same, relay_of, tensors, train
from tests.relay.stress import CHECKED, ORDERS, Stress, relay_under
from tests.toys import dense_pool, language_pool, random_data

UPDATES = ORDERS


def stepped(update="exact", *, slow_s=0.02, steps=2, **options):
    """A relay whose updates take long, after some steps."""
    stress = Stress(0, 0.0, {"update": slow_s, "send": slow_s / 2})
    relay = relay_of(dense_pool(), update=update, lanes="threads", stress=stress, **options)
    for step in range(steps):
        train(relay, PATH, step=step, upcoming=OTHER)
    return relay


def expected(steps=2):
    """What a server holds after these steps, without lanes or anything left for later."""
    relay = relay_of(dense_pool(), update="exact", lanes="inline")
    for step in range(steps):
        train(relay, PATH, step=step)
    relay.drain()
    relay.server.prepare(key for layer in relay.pool.path(relay.pool.architecture(OTHER))[:1] for key in layer.states)
    return tensors(relay.server)


@pytest.mark.parametrize("update", UPDATES)
def test_who_looks_at_a_state_sees_every_step(update):
    relay = stepped(update)
    assert relay.server.state("head/mlp").visits == 2
    assert is_same(relay.server, expected())
    assert relay.server.gradients.waiting == {}


@pytest.mark.parametrize("update", UPDATES)
def test_a_checkpoint_holds_every_step_and_training_goes_on(update, tmp_path):
    relay = stepped(update)
    Checkpoint(tmp_path).save(relay.server, extra={})
    other = ParamServer(dense_pool(), optimizer=AdamW(), seed=0)
    Checkpoint(tmp_path).load(other)
    assert is_same(other, expected())
    train(relay, PATH, step=2)
    assert is_same(relay.server, expected(3))


@pytest.mark.parametrize("update", UPDATES)
def test_a_load_replaces_what_is_under_way(update, tmp_path):
    relay = stepped(update)
    Checkpoint(tmp_path).save(relay.server, extra={})
    train(relay, PATH, step=2, upcoming=PATH)
    Checkpoint(tmp_path).load(relay.server)
    assert is_same(relay.server, expected())
    train(relay, PATH, step=2)
    assert is_same(relay.server, expected(3))


@pytest.mark.parametrize("update", UPDATES)
def test_a_fork_holds_every_step_and_takes_no_part_in_later_ones(update):
    relay = stepped(update)
    fork = relay.server.fork(relay.server.visited)
    train(relay, PATH, step=2)
    assert is_same(fork, expected())


@pytest.mark.parametrize("update", UPDATES)
def test_another_server_starts_from_its_own_states_and_leaves_the_first_complete(update):
    relay = stepped(update)
    first = relay.server
    relay.use(first.fork(first.visited))
    train(relay, PATH, step=2, upcoming=PATH)
    assert is_same(first, expected())
    assert is_same(relay.server, expected(3))
    relay.use(first)
    train(relay, PATH, step=2)
    assert is_same(first, expected(3))


@pytest.mark.parametrize("update", UPDATES)
def test_a_prediction_sees_every_step(update):
    relay = stepped(update)
    other = relay_of(dense_pool(), update="exact", lanes="inline")
    for step in range(2):
        train(other, PATH, step=step)
    inputs = random_data(relay.pool, 5, seed=9)[0]
    architecture = relay.pool.architecture(PATH)
    outputs = [one.predict(architecture, inputs, micro_batch=2)[0] for one in (relay, other)]
    assert torch.equal(*outputs)


@pytest.mark.parametrize("update", UPDATES)
def test_a_recalibration_comes_after_every_step(update):
    relay, other = stepped(update), relay_of(dense_pool(), update="exact", lanes="inline")
    for step in range(2):
        train(other, PATH, step=step)
    batches = [random_data(relay.pool, 4, seed=9)[0]]
    for one in (relay, other):
        one.recalibrate(one.pool.architecture(PATH), batches)
    known = tensors(other.server)
    assert all(torch.equal(value, known[name]) for name, value in tensors(relay.server).items() if name in known)


@pytest.mark.parametrize("update", UPDATES)
def test_a_relay_that_is_forgotten_loses_nothing(update):
    relay = stepped(update)
    server, gone = relay.server, weakref.ref(relay)
    del relay
    gc.collect()
    assert is_same(server, expected())
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("update", UPDATES)
def test_closing_finishes_every_step(update):
    relay = stepped(update)
    relay.close()
    assert relay.server._busy is None
    assert is_same(relay.server, expected())


@pytest.mark.parametrize("updates", [("exact", "exact"), ("eager", "exact"), (CHECKED, "eager")], ids=str)
@pytest.mark.parametrize("pool", [dense_pool(), language_pool()], ids=["dense", "language"])
def test_two_relays_by_turns_on_one_server_equal_one(pool, updates):
    paths = [PATH, OTHER] if len(pool.inputs) == 1 else [["embed", "feed", "attention", "feed", "head"]] * 2
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    stress = {"update": 0.005}
    relays = [
        relay_under(server, device="cpu", update=update, lanes="threads", stress=Stress(0, 0.0, stress))
        for update in updates
    ]
    alone = relay_of(pool, update="exact", lanes="inline")
    for step in range(8):
        path, upcoming = paths[step % 2], paths[(step + 1) % 2]
        loss = in_time(
            lambda step=step, path=path, upcoming=upcoming: (
                train(relays[step % 3 % 2], path, step=step, upcoming=upcoming).loss
            )
        )
        assert loss == train(alone, path, step=step).loss
    assert is_same(server, tensors(alone.server))


def test_a_guess_of_the_next_path_that_was_wrong_changes_nothing():
    relay, other = (relay_of(dense_pool(), update="exact", lanes="threads") for _ in range(2))
    for step in range(6):
        path = [PATH, OTHER][step % 2]
        assert train(relay, path, step=step, upcoming=path) == train(other, path, step=step)
    known = tensors(other.server)
    assert all(torch.equal(value, known[name]) for name, value in tensors(relay.server).items() if name in known)


def test_draining_twice_or_before_anything_does_nothing():
    relay = relay_of(dense_pool(), lanes="threads", update="exact")
    relay.drain()
    train(relay, PATH)
    relay.drain()
    before = tensors(relay.server)
    relay.drain()
    assert is_same(relay.server, before)


def test_a_state_that_was_written_to_is_loaded_anew_though_it_was_asked_for_ahead():
    relay, other = (relay_of(dense_pool(), update="exact", lanes="threads") for _ in range(2))
    for one, upcoming in ((relay, PATH), (other, None)):
        train(one, PATH, upcoming=upcoming)
        one.server.state("layer0/normed").parameters()["linear.weight"].fill_(0.25)
    assert train(relay, PATH, step=1) == train(other, PATH, step=1)


class Faulty:
    """A pool with a layer that cannot be built while `is_bad`."""

    def __init__(self):
        self.is_bad = False
        layers = [Candidate("good", lambda: nn.Linear(6, 6)), Candidate("faulty", self.faulty)]
        head = [Candidate("good", lambda: nn.Linear(6, 2))]
        self.pool = LayerPool([Position("first", layers), Position("last", head)], inputs=TensorSpec((3, 6)))

    def faulty(self):
        if self.is_bad:
            raise MemoryError("no memory for a layer")
        return nn.Linear(6, 6)


def _raises(error):
    def fault(*arguments, **keywords):
        raise error

    return fault


def _in_template(own, relay, patch):
    relay.server.prepare(own.pool.states)
    own.is_bad = True
    return ["faulty", "good"]


def _in_state(own, relay, patch):
    own.is_bad = True
    return ["faulty", "good"]


def _in_stash(own, relay, patch):
    patch.setattr(relay.stash, "lay_out", _raises(MemoryError("no memory for values")))
    return ["good", "good"]


def _in_plan(own, relay, patch):
    patch.setattr(step_module, "plan_training", _raises(SettingError("no such plan")))
    return ["good", "good"]


def _in_issue(own, relay, patch):
    patch.setattr(relay.lanes, "submit", _raises(KeyboardInterrupt()))
    return ["good", "good"]


def _in_visit(own, relay, patch):
    patch.setattr(relay.lanes, "compute", _raises(KeyboardInterrupt()))
    return ["good", "good"]


@every_pair(
    update=ORDERS,
    fault=[_in_template, _in_state, _in_stash, _in_plan, _in_issue, _in_visit],
    lanes=["inline", "threads"],
)
def test_whatever_refuses_a_step_nothing_of_the_step_before_is_lost(update, fault, lanes):
    servers = []
    for is_hurt in (False, True):
        own = Faulty()
        relay = Relay(ParamServer(own.pool, optimizer=SGD(), seed=0), device=copying(), update=update, lanes=lanes)
        train(relay, ["good", "good"], upcoming=["good", "good"])
        if is_hurt:
            with pytest.MonkeyPatch.context() as patch:
                choices = fault(own, relay, patch)
                with pytest.raises((MemoryError, KeyboardInterrupt, L2LError)):
                    train(relay, choices, step=1)
            own.is_bad = False
        train(relay, ["good", "good"], step=2)
        relay.close()
        assert relay.server.gradients.waiting == {}
        servers.append({own: tensor for own, tensor in tensors(relay.server).items() if "faulty" not in own[0]})
    expected, found = servers
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_of_updates_that_wait_each_is_done_though_one_of_them_fails(monkeypatch):
    relay = relay_of(dense_pool(), update="exact", lanes="inline")
    inbox = relay.server.gradients
    update = inbox.update

    def failing(state, states, **options):
        if state == "layer1/dense":
            raise MemoryError("no memory for a temporary")
        update(state, states, **options)

    monkeypatch.setattr(inbox, "update", failing)
    train(relay, PATH)
    with pytest.raises(LaneError, match="no memory for a temporary"):
        relay.drain()
    visits = {state: relay.server.state(state).visits for state in relay.server.visited}
    assert visits.pop("layer1/dense") == 0
    assert set(visits.values()) == {1}
    relay.drain()
