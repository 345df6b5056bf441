"""States that live on the device and are updated there."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch

from l2l_nas import SGD, Adafactor, AdamW, Clip, Muon, muon_with_adamw
from l2l_nas.eps.file_storage import FileStorage
from l2l_nas.eps.layout import ALIGNMENT_BYTES
from l2l_nas.errors import LaneError, SettingError, StateLostError
from l2l_nas.relay.device import Cpu
from l2l_nas.relay.device_states import state_bytes
from tests.products import every_pair
from tests.relay.steps import OTHER, PATH, is_same, relay_of, tensors, train
from tests.relay.stress import ORDERS
from tests.toys import dense_pool, language_pool, random_data, repeated_pool

PATHS = [PATH, OTHER, PATH, PATH, OTHER, OTHER]


def trained(pool, *, paths=PATHS, optimizer=None, ends=True, **options):
    relay = relay_of(pool, optimizer=optimizer, **options)
    for step, path in enumerate(paths):
        train(relay, path, step=step, upcoming=paths[(step + 1) % len(paths)])
    if ends:
        relay.drain()
    return relay


def states_on(relay):
    return {key for key in relay.server.visited if key in relay._device_states}


@every_pair(
    update=ORDERS,
    lanes=["inline", "threads"],
    options=[{}, {"device_budget": "all"}, {"slots": 4, "keep": 2, "stash": "host"}],
)
def test_training_with_states_on_the_device_equals_training_with_states_on_the_host(update, lanes, options):
    clip = None if update == "eager" else Clip(0.5)
    shared = options | {"update": update, "lanes": lanes, "clip": clip}
    host, every = (trained(dense_pool(), **shared, resident=resident) for resident in (None, "all"))
    assert states_on(every) == set(every.server.visited)
    assert is_same(every.server, tensors(host.server))


class Small(Cpu):
    """A device with so much memory."""

    def __init__(self, num_bytes):
        super().__init__(copies=True)
        self._bytes = num_bytes

    def free_bytes(self):
        return self._bytes


def test_by_default_states_live_on_the_device_if_it_is_to_hold_everything_and_those_of_the_whole_pool_fit():
    server = relay_of(dense_pool()).server
    needed = sum(state_bytes(server, key, torch.float32) for key in server.pool.states)
    found = [
        trained(dense_pool(), device=Small(size), device_budget=budget)
        for size, budget in ((needed, "all"), (needed - 1, "all"), (needed, None))
    ]
    assert [relay._device_states is not None for relay in found] == [True, False, False]
    assert all(is_same(relay.server, tensors(found[0].server)) for relay in found)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("optimizer", [AdamW(), SGD(), Adafactor(), muon_with_adamw(Muon())], ids=lambda one: one.name)
def test_a_lower_precision_and_any_optimizer(precision, optimizer):
    shared = {"update": "exact", "precision": precision, "optimizer": optimizer, "device_budget": "all"}
    host, every = (trained(dense_pool(), **shared, resident=resident) for resident in (None, "auto"))
    assert is_same(every.server, tensors(host.server))


@pytest.mark.parametrize("update", ["eager", "exact"])
@pytest.mark.parametrize("pool", [repeated_pool(), language_pool()], ids=["repeated", "tied"])
def test_repeated_and_tied_layers(pool, update):
    choices = [position.candidates[0].name for position in pool.positions]
    shared = {"paths": [choices] * 4, "update": update, "device_budget": "all"}
    host, every = (trained(pool, **shared, resident=resident) for resident in (None, "auto"))
    assert is_same(every.server, tensors(host.server))


def test_gradients_and_moments_stay_on_the_device_too():
    host, every = (trained(dense_pool(), device_budget="all", resident=one) for one in (None, "all"))
    assert any(slot.gradients.any() for slot in host.bank.slots)
    assert not any(slot.gradients.any() for slot in every.bank.slots)
    assert not any(slot.weights.any() for slot in every.bank.slots)
    server = every.server
    layouts = [server.layout(key) for key in server.visited]
    kept = sum(12 * layout.num_parameters + 4 * len(layout.parameters) for layout in layouts)
    padding = ALIGNMENT_BYTES * sum(3 * len(layout.parameters) + 1 for layout in layouts)
    assert kept <= every._device_states.num_bytes <= kept + padding
    assert every.device_bytes == host.device_bytes + every._device_states.num_bytes


def test_the_host_sees_what_the_device_changed_and_the_device_what_the_host_changed():
    host, every = (trained(dense_pool(), device_budget="all", resident=one, ends=False) for one in (None, "all"))
    assert is_same(every.server, tensors(host.server))  # nobody drained it before
    key = every.server.visited[0]
    for relay in (host, every):
        state = relay.server.state(key)
        state.views[0].mul_(2)
        state.mark_changed()
        inputs, _ = random_data(relay.server.pool, 4, seed=9)
        relay.given = relay.predict(relay.server.pool.architecture(PATH), inputs, micro_batch=2)[0]
        train(relay, PATH, step=9)
    assert torch.equal(host.given, every.given)
    assert is_same(every.server, tensors(host.server))


@pytest.mark.parametrize("update", ["eager", "exact"])
def test_weights_that_host_and_device_changed_are_refused(update):
    relay = relay_of(dense_pool(), device_budget="all", update=update)
    train(relay, PATH)
    state = relay.server.state(relay.server.visited[0])  # which brings it up to date
    train(relay, PATH, step=1)
    state.views[0].mul_(2)  # while the second step's update is on the device alone
    state.mark_changed()
    with pytest.raises(SettingError, match=r"server\.state"):
        train(relay, PATH, step=2)
    relay.drain()
    train(relay, PATH, step=3)


def test_evaluation_reads_what_is_on_the_device_and_moves_nothing():
    host, every = (trained(dense_pool(), device_budget="all", resident=one, ends=False) for one in (None, "all"))
    inputs, _ = random_data(every.server.pool, 4, seed=9)
    every._device_states.write_back = None
    given = [one.predict(one.server.pool.architecture(OTHER), inputs, micro_batch=2)[0] for one in (host, every)]
    assert torch.equal(*given)


def test_forks_checkpoints_and_other_relays_find_them_on_the_host(tmp_path):
    host, every = (trained(dense_pool(), device_budget="all", resident=one, ends=False) for one in (None, "all"))
    results = []
    for relay in (host, every):
        server = relay.server
        fork = server.fork(server.visited)
        relay.use(fork)
        assert relay._device_states is None or not states_on(relay)
        train(relay, OTHER, step=7)
        relay.use(server)
        train(relay, OTHER, step=8)
        other = relay_of(server.pool, device_budget="all")
        other.use(server)
        train(other, PATH, step=9)
        train(relay, PATH, step=10)
        results += [tensors(fork), tensors(server)]
    assert all(torch.equal(results[0][name], results[2][name]) for name in results[0])
    assert all(torch.equal(results[1][name], results[3][name]) for name in results[1])


def test_states_in_files(tmp_path):
    host, every = (
        trained(dense_pool(), storage=FileStorage(tmp_path / str(number)), device_budget="all", resident=one)
        for number, one in enumerate((None, "all"))
    )
    assert is_same(every.server, tensors(host.server))


def test_a_refused_step_leaves_no_trace():

    host, every = (
        trained(dense_pool(), device_budget="all", resident=one, update="exact", precision="fp16", ends=False)
        for one in (None, "all")
    )
    for relay in (host, every):
        relay.server.gradients.loss_scale.scale = 2.0**100
        assert train(relay, PATH, step=7).is_skipped
        relay.server.gradients.loss_scale.scale = 2.0
        train(relay, PATH, step=8)
    assert is_same(every.server, tensors(host.server))


def test_on_a_cpu_states_are_where_layers_compute():
    for resident in ("all", "auto", None):
        assert relay_of(dense_pool(), device=Cpu(), device_budget="all", resident=resident)._device_states is None


def test_a_parameter_without_a_gradient_stays_as_it_is():
    pool = dense_pool()
    host, every = (trained(pool, paths=[PATH, PATH], device_budget="all", resident=one) for one in (None, "all"))
    assert is_same(every.server, tensors(host.server))
    assert any((every.server.state(key).steps == 0).any() for key in every.server.visited)


@pytest.mark.parametrize("is_older", [False, True], ids=["the host has the same", "the host has an older one"])
def test_an_update_on_the_device_that_ends_half_way_is_undone_or_the_state_refused(is_older, monkeypatch):
    relay, other = (trained(dense_pool(), paths=[PATH], device_budget="all", ends=not is_older) for _ in range(2))
    monkeypatch.setattr(relay.server.rules.of("layer1/dense").calls[0].rule.__class__, "update", _half_way)
    with pytest.raises((LaneError, ZeroDivisionError)):
        _two_steps(relay)
    monkeypatch.undo()
    if is_older:
        with pytest.raises(StateLostError):
            tensors(relay.server)
    else:  # others may have been updated beside it, or since
        ours, before = tensors(relay.server), tensors(other.server)
        assert all(torch.equal(ours[key], before[key]) for key in before if key[0] == "layer1/dense")


def _two_steps(relay):
    train(relay, PATH, step=1)
    train(relay, PATH, step=2)


def _half_way(rule, weights, *rest, **options):
    weights[0].zero_()
    raise ZeroDivisionError


class Marking(Cpu):
    """A CPU whose streams have marks, which are over at once; it records who waits for which, and nothing else."""

    def __init__(self):
        super().__init__(copies=True)
        self._here = threading.local()
        self.waits, self.follows = [], []

    @contextlib.contextmanager
    def stream(self, lane):
        before, self._here.lane = getattr(self._here, "lane", None), lane
        yield
        self._here.lane = before

    def mark(self, *, timed=False):
        return self._here.lane

    def wait(self, mark):
        self.waits.append(mark)

    def stream_wait(self, mark):
        self.follows.append((self._here.lane, mark))


@pytest.mark.parametrize("update", ORDERS)
def test_streams_wait_for_updates_on_the_device_and_no_thread_does(update):
    device = Marking()
    relay = relay_of(dense_pool(), device=device, resident="all", update=update, lanes="threads")
    for step in range(2):
        train(relay, PATH, step=step)
    device.waits.clear()
    device.follows.clear()
    train(relay, PATH, step=2)
    assert "host" not in device.waits
    assert {("up", "host"), ("compute", "host")} <= set(device.follows)  # who reads weights, who writes gradients
    relay.close()
