"""The relay: layers of unusual habits, and what a relay leaves behind."""

from __future__ import annotations

import copy
import gc
import weakref
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from l2l_nas import AdamW, Candidate, Group, Groups, LayerPool, ParamServer, Position, Relay, TensorSpec, convert
from tests.equivalence.plain import Plain
from tests.relay.steps import assert_same, chain_pool, copying, tensors, train
from tests.relay.steps import relay_on_host as relay_of
from tests.toys import Frozen, SquaredError, dense_pool, language_pool, random_data

PATH = ["normed", "dense", "normed", "partial", "mlp"]


def assert_trains_as_plain(pool):
    """A few steps equal the naive loop's, losses and weights."""
    relay = relay_of(pool)
    plain = Plain(ParamServer(pool, optimizer=AdamW(), seed=0), seed=0)
    architecture = pool.architecture(["c"] * len(pool))
    for step in range(3):
        inputs, targets = random_data(pool, 5, seed=step)
        options = {"objective": SquaredError(), "micro_batch": 2, "lr": 0.01, "step": step}
        loss = relay.train_step(architecture, inputs, targets, **options).loss
        assert loss == plain.step(architecture, inputs, targets, **options)
    for key, module in plain.modules.items():
        for name, value in relay.server.state(key).parameters().items():
            assert torch.equal(value, module.get_parameter(name)), f"{key} {name}"


def test_a_step_within_no_grad_trains_as_one_without():
    with_gradients, without = relay_of(dense_pool()), relay_of(dense_pool())
    expected = [train(with_gradients, PATH, step=step).loss for step in range(3)]
    with torch.no_grad():
        assert [train(without, PATH, step=step).loss for step in range(3)] == expected
        without.drain()
        assert not torch.is_grad_enabled()
    with_gradients.drain()
    assert_same(without.server, tensors(with_gradients.server))


def test_autocast_that_keeps_nothing_trains_as_plain():
    pool = chain_pool(*[partial(nn.Linear, 6, 6)] * 6, partial(nn.Linear, 6, 2))
    around = partial(torch.autocast, dtype=torch.bfloat16, cache_enabled=False)
    # the plain loop computes on the host
    with around(relay_of(pool).device.torch_device.type), around("cpu"):
        assert_trains_as_plain(pool)


@pytest.mark.parametrize("lr", [np.float32(0.1), np.float64(0.1), 1])
def test_a_rate_may_be_a_number_of_numpy(lr):
    found, plain = relay_of(dense_pool()), relay_of(dense_pool())
    assert train(found, PATH, lr=lr).loss == train(plain, PATH, lr=float(lr)).loss
    found.drain()
    plain.drain()
    assert_same(found.server, tensors(plain.server))


def test_a_training_step_leaves_the_user_s_random_numbers_alone():
    relay = relay_of(dense_pool())
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    train(relay, PATH)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.slow
def test_the_number_of_slots_and_the_update_policy_do_not_change_the_result():
    results = []
    for slots in (1, 2, 5):
        for update in ("eager", "exact"):
            relay = relay_of(dense_pool(), slots=slots, update=update)
            results.append(([train(relay, PATH, step=step).loss for step in range(3)], tensors(relay.server)))
    for losses, weights in results[1:]:
        assert losses == results[0][0]
        assert all(torch.equal(weights[name], value) for name, value in results[0][1].items())


def test_a_mask_passes_through_every_layer_unchanged():
    pool = language_pool()
    relay = relay_of(pool)
    architecture = pool.architecture(["embed", "attention", "feed", "skip", "head"])
    inputs, _ = random_data(pool, 4, seed=0)
    hidden = inputs[0].clone()
    hidden[~inputs[1]] = 0  # what is masked is not looked at by the others
    one, other = (relay.predict(architecture, (tokens, inputs[1]), micro_batch=2)[0] for tokens in (inputs[0], hidden))
    assert torch.equal(one[inputs[1]], other[inputs[1]])
    assert not torch.equal(one, other)


class Recurrent(nn.Module):
    """An LSTM, which keeps lists of its own weights."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 6, num_layers=2, batch_first=True, dropout=0.2)

    def forward(self, x):
        return self.lstm(x)[0]


def test_an_lstm_trains_as_plain():
    # under no_grad torch would run it by another kernel, which differs in the last bit
    pool = chain_pool(Recurrent, partial(nn.Linear, 6, 6), Recurrent, partial(nn.Linear, 6, 2))
    assert_trains_as_plain(pool)


class Reversed(nn.Module):
    """A view of its input."""

    def forward(self, x):
        return x.transpose(1, 2).transpose(1, 2)


def test_layers_that_return_a_view_of_their_input_train_as_plain():
    assert_trains_as_plain(chain_pool(Reversed, partial(nn.Linear, 6, 2), Reversed))
    assert_trains_as_plain(chain_pool(nn.Identity, partial(nn.Linear, 6, 2), nn.Identity))


def test_frozen_layers_below_between_and_above_train_as_plain():
    linear = partial(nn.Linear, 6, 6)
    head = partial(nn.Linear, 6, 2)
    for chain in ((partial(Frozen, 6), head), (linear, partial(Frozen, 6), head), (head, _frozen_head)):
        pool = chain_pool(*chain)
        assert_trains_as_plain(pool)
        relay = relay_of(pool)
        train(relay, ["c"] * len(pool))
        for key in relay.server.visited:
            first = ParamServer(pool, optimizer=AdamW(), seed=0).state(key)
            assert torch.equal(relay.server.state(key).weights, first.weights) == (
                not any(entry.trainable for entry in first.layout.parameters)
            )


def _frozen_head():
    return nn.Linear(2, 2).requires_grad_(False)


def test_a_path_where_everything_is_frozen_has_a_loss_and_changes_nothing():
    pool = chain_pool(partial(Frozen, 6), partial(Frozen, 6), lambda: nn.Linear(6, 2).requires_grad_(False))
    relay = relay_of(pool)
    first = train(relay, ["c"] * 3, step=0)
    before = tensors(relay.server)
    assert train(relay, ["c"] * 3, step=0) == first
    assert_same(relay.server, before)


class WithMask(nn.Module):
    """Gives out a view of its own buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tensor([1.0, 0.0, 1.0]))

    def forward(self, x):
        return x, self.mask.expand(len(x), 3)


class Scale(nn.Module):
    """Has a buffer of its own, which takes the place of the mask in the slot."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.full((3,), 7.0))

    def forward(self, x, mask):
        return x * self.scale[None, :, None], mask


class Masked(nn.Module):
    """Uses the mask."""

    def forward(self, x, mask):
        return x * mask[:, :, None]


@pytest.mark.parametrize("has_copies", [False, True])
@pytest.mark.parametrize("slots", [1, 2])
def test_an_output_that_is_a_view_of_a_buffer_outlives_its_slot(slots, has_copies):
    pool = chain_pool(WithMask, Scale, Scale, Masked)
    inputs = (torch.ones(4, 3, 6),)
    relay = relay_of(pool, slots=slots, device=copying() if has_copies else "cpu", resident=None)
    for micro_batch in (1, 2):  # of one sample an expanded buffer is contiguous
        output = relay.predict(pool.architecture(["c"] * 4), inputs, micro_batch=micro_batch)[0]
        assert output[0, :, 0].tolist() == [49.0, 0.0, 49.0]
    assert_trains_as_plain(chain_pool(partial(nn.Linear, 6, 2), WithMask, Scale, Scale, Masked))


def test_the_inputs_are_never_changed():
    relay = relay_of(dense_pool())
    inputs, targets = random_data(dense_pool(), 5, seed=0)
    expected = copy.deepcopy((inputs, targets))
    architecture = dense_pool().architecture(PATH)
    relay.train_step(architecture, inputs, targets, objective=SquaredError(), micro_batch=2, lr=0.1, step=0)
    relay.predict(architecture, inputs, micro_batch=2)
    assert torch.equal(inputs[0], expected[0][0])
    assert torch.equal(targets, expected[1])


def test_a_relay_that_is_dropped_is_gone_at_once():
    """Its slots are the device's memory: they may not wait for the collector of cycles."""
    relay = relay_of(dense_pool())
    train(relay, PATH)
    relay.close()
    slots = [weakref.ref(slot) for slot in relay.bank.slots]
    gc.disable()
    try:
        del relay
        assert all(slot() is None for slot in slots)
    finally:
        gc.enable()


class Owner:
    """Has a pool whose factory is a method of its own, so that every layer leads back to the pool."""

    def __init__(self):
        self.pool = LayerPool([Position("only", [Candidate("linear", self.linear)])], inputs=TensorSpec((4,)))

    def linear(self):
        return nn.Linear(4, 4)


def _owned():
    return Owner().pool


def _converted():
    return convert(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(2, 4), blocks="*")


@pytest.mark.parametrize("make", [_owned, _converted])
def test_a_pool_that_was_trained_and_is_forgotten_is_freed(make):
    pool = make()
    optimizer = Groups(AdamW(), [Group("all", lr_scale=0.5)])
    relay = Relay(ParamServer(pool, optimizer=optimizer, seed=0), device="cpu", device_budget=1 << 20)
    targets, objective = torch.zeros(2, 4), SquaredError()
    relay.train_step(pool.original, (torch.ones(2, 4),), targets, objective=objective, micro_batch=1, lr=0.1, step=0)
    relay.close()
    alive = weakref.ref(pool)
    del pool, relay
    gc.collect()
    assert alive() is None


def test_weights_in_a_memory_format_that_is_not_kept_are_told_once():
    def convolution():
        return nn.Sequential(nn.Unflatten(1, (3, 1)), nn.Conv2d(3, 3, (1, 3), padding=(0, 1)), nn.Flatten(1, 2))

    def last():
        return convolution().to(memory_format=torch.channels_last)

    relay = relay_of(chain_pool(convolution, last, last, partial(nn.Linear, 6, 2)))
    with pytest.warns(UserWarning, match="'p1/c' are channels_last") as told:
        train(relay, ["c"] * 4)
    train(relay, ["c"] * 4, step=1)
    assert len(told) == 1
