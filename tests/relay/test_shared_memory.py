"""Where the device is the host, layers compute on the master weights where they lie."""

from __future__ import annotations

import gc
import weakref

import torch

from l2l_nas import AdamW, ParamServer, Relay
from l2l_nas.eps.file_storage import FileStorage
from l2l_nas.relay.device import Cpu
from tests.products import every_pair
from tests.relay.steps import OTHER, PATH, is_same, relay_of, tensors, train
from tests.relay.stress import ORDERS
from tests.toys import dense_pool, language_pool, repeated_pool


def masters(relay):
    """Addresses of all weights on the host."""
    server = relay.server
    return {view.data_ptr() for key in server.visited for view in server.state(key).views if view.numel()}


def in_templates(relay):
    """Addresses of what templates compute on."""
    return {p.data_ptr() for template in relay.bank.templates for p in template.module.parameters() if p.numel()}


@every_pair(
    update=ORDERS,
    lanes=["inline", "threads"],
    options=[{}, {"device_budget": "all"}, {"slots": 4, "keep": 2}],
)
def test_training_on_masters_equals_training_on_copies(update, lanes, options):
    paths = [PATH, OTHER, PATH, OTHER, OTHER]
    relays = [
        relay_of(dense_pool(), update=update, lanes=lanes, device=Cpu(copies=c), resident=None, **options)
        for c in (False, True)
    ]
    for relay in relays:
        for step, path in enumerate(paths):
            train(relay, path, step=step, upcoming=paths[(step + 1) % len(paths)])
        relay.drain()
    views, copies = relays
    assert is_same(views.server, tensors(copies.server))
    assert in_templates(views) & masters(views)
    assert not in_templates(copies) & masters(copies)
    # gradients lie where updates find them, too: the slots' own blocks are as they were made
    assert not any(slot.gradients.any() for slot in views.bank.slots)
    assert any(slot.gradients.any() for slot in copies.bank.slots)


def test_a_repeated_layer_trains_on_masters_as_on_copies():
    relays = [relay_of(repeated_pool(), device=Cpu(copies=copies), slots=3) for copies in (False, True)]
    for relay in relays:
        for step in range(4):
            train(relay, ["dense", "running", "dense", "dense", "head"], step=step)
        relay.drain()
    assert is_same(relays[0].server, tensors(relays[1].server))


def test_tied_weights_are_one_memory_wherever_they_are_used():
    pool = language_pool()
    relays = [relay_of(pool, device=Cpu(copies=copies), device_budget="all") for copies in (False, True)]
    choices = [position.candidates[0].name for position in pool.positions]
    losses = [[train(relay, choices, step=step).loss for step in range(4)] for relay in relays]
    assert losses[0] == losses[1]
    assert is_same(relays[0].server, tensors(relays[1].server))


def test_what_is_rounded_or_lies_in_files_is_copied(tmp_path):
    for options in ({"precision": "bf16"}, {"storage": FileStorage(tmp_path / "states")}):
        storage = options.pop("storage", None)
        relay = Relay(ParamServer(dense_pool(), optimizer=AdamW(), seed=0, storage=storage), device="cpu", **options)
        train(relay, PATH)
        relay.drain()
        assert not in_templates(relay) & masters(relay)


def test_a_relay_that_goes_on_with_another_server_holds_nothing_of_the_first_one():
    relay = relay_of(dense_pool(), device=Cpu())
    train(relay, PATH)
    fork = relay.server.fork(relay.server.visited)
    relay.use(fork)
    train(relay, PATH, step=1)
    states = [weakref.ref(fork.state(key)) for key in fork.visited]
    other = relay.server.fork([])
    relay.use(other)
    del fork
    gc.collect()
    assert all(state() is None for state in states)
    assert torch.isfinite(torch.tensor(train(relay, PATH, step=2).loss))
