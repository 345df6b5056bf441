"""The server: contributions, updates, refusals, forks."""

from __future__ import annotations

import contextlib
import math

import pytest
import torch
from torch import nn

from l2l_nas import SGD, AdamW, Candidate, LayerPool, ParamServer, Relay, TensorSpec
from l2l_nas.eps.file_storage import FileStorage
from l2l_nas.eps.gradients import gradient_bytes
from l2l_nas.eps.layout import layout_of
from l2l_nas.eps.storage import RamStorage
from l2l_nas.errors import NonFiniteError, StateLostError
from tests.eps.sent import with_norms
from tests.toys import SquaredError, dense_pool, random_data

KEY = "layer0/dense"


def server_of(optimizer=None):
    return ParamServer(dense_pool(), optimizer=optimizer or AdamW(), seed=0)


def gradient(server, value=1.0, key=KEY):
    layout = server.layout(key)
    block = torch.zeros(gradient_bytes(layout), dtype=torch.uint8)
    for entry in layout.parameters:
        entry.view(block).fill_(value)
    return block, [True] * len(layout.parameters)


def sent(block, has_grad):
    return {"block": with_norms(block, layout_of(dense_pool(), KEY)), "has_grad": has_grad}


def snapshot(server):
    return {key: {name: t.clone() for name, t in server.state(key).tensors().items()} for key in server.visited}


def assert_equal(server, before):
    for key, tensors in before.items():
        for name, tensor in server.state(key).tensors().items():
            assert torch.equal(tensor, tensors[name]), f"{key} {name}"


def test_eager_updates_need_one_staging_buffer_however_large_the_layers_grow():
    server = server_of()
    for size in (128, 192, 576, 2112, 8320, 64):
        server.gradients.give_back([server.gradients.allocate(size)])
    assert [block.memory.numel() for block in server.gradients._blocks] == [8320]


def test_contributions_of_one_step_add_up():
    server = server_of(SGD(momentum=0.0))
    before = {name: view.clone() for name, view in server.state(KEY).parameters().items()}
    server.gradients.add(KEY, **sent(*gradient(server, 1.0)), lr=0.5, step=0)
    block, touched = gradient(server, 2.0)
    server.gradients.add(KEY, **sent(block, [False, *touched[1:]]), lr=0.5, step=0)
    server.gradients.update(KEY, server.storage, checked=False)
    for name, view in server.state(KEY).parameters().items():
        assert torch.allclose(view, before[name] - 1.5)


def test_a_gradient_is_copied_when_it_is_taken():
    server = server_of(SGD(momentum=0.0))
    before = server.state(KEY).parameters()["0.bias"].clone()
    block, touched = gradient(server, 1.0)
    server.gradients.add(KEY, **sent(block, touched), lr=1.0, step=0)
    block.zero_()
    server.gradients.update(KEY, server.storage, checked=False)
    assert torch.allclose(server.state(KEY).parameters()["0.bias"], before - 1)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_is_refused_and_changes_nothing(value):
    server = server_of()
    server.state(KEY)
    server.gradients.add(KEY, **sent(*gradient(server)), lr=0.1, step=7)
    server.gradients.update(KEY, server.storage, checked=False)
    before = snapshot(server)
    block, touched = gradient(server)
    server.layout(KEY).parameters[-1].view(block)[-1] = value
    server.gradients.add(KEY, **sent(block, touched), lr=0.1, step=7)
    with pytest.raises(NonFiniteError, match=f"gradient of layer '{KEY}' is not finite at step 7") as caught:
        server.gradients.update(KEY, server.storage, checked=False)
    assert (caught.value.layer, caught.value.step) == (KEY, 7)
    assert_equal(server, before)
    server.gradients.add(KEY, **sent(*gradient(server)), lr=0.1, step=8)  # and the refused one is forgotten
    server.gradients.update(KEY, server.storage, checked=False)
    assert all(view.isfinite().all() for view in server.state(KEY).parameters().values())


def test_large_finite_gradients_are_taken_though_their_norm_overflows():
    server = server_of()
    server.state(KEY)
    server.gradients.add(KEY, **sent(*gradient(server, 3e38)), lr=0.1, step=0)
    server.gradients.update(KEY, server.storage, checked=False)
    assert server.state(KEY).visits == 1


def test_what_is_not_chosen_is_not_touched():
    server = server_of()
    relay = Relay(server, device="cpu")
    pool = server.pool
    inputs, targets = random_data(pool, 4, seed=0)
    options = {"objective": SquaredError(), "micro_batch": 2, "lr": 0.1}
    for step in range(2):
        relay.train_step(pool.architecture(["normed"] * 4 + ["mlp"]), inputs, targets, step=step, **options)
    before = snapshot(server)
    versions = {key: server.state(key).version for key in before}
    for step in range(2, 5):
        relay.train_step(pool.architecture(["dense"] * 4 + ["linear"]), inputs, targets, step=step, **options)
    assert_equal(server, before)
    assert {key: server.state(key).version for key in before} == versions


def test_a_fork_is_independent_and_leaves_the_server_alone():
    server = server_of()
    server.state(KEY)
    fork = server.fork([KEY, "layer1/dense"])
    assert server.visited == (KEY,)
    before = snapshot(server)
    fork.gradients.add(KEY, **sent(*gradient(fork)), lr=0.1, step=0)
    fork.gradients.update(KEY, fork.storage, checked=False)
    assert_equal(server, before)
    after = snapshot(fork)
    server.gradients.add(KEY, **sent(*gradient(server, 2.0)), lr=0.1, step=0)
    server.gradients.update(KEY, server.storage, checked=False)
    assert_equal(fork, after)
    assert torch.equal(fork.state("layer1/dense").weights, server.state("layer1/dense").weights)


def test_discarded_gradients_are_never_applied():
    server = server_of(SGD(momentum=0.0))
    before = server.state(KEY).parameters()["0.bias"].clone()
    server.gradients.add(KEY, **sent(*gradient(server, 5.0)), lr=1.0, step=0)
    server.gradients.discard(server.storage)
    server.gradients.add(KEY, **sent(*gradient(server, 1.0)), lr=1.0, step=0)
    server.gradients.update(KEY, server.storage, checked=False)
    assert torch.allclose(server.state(KEY).parameters()["0.bias"], before - 1)


class Flaky(SGD):
    """Its update of a second parameter runs out of memory, once."""

    has_failed = False

    def update(self, weights, gradients, moments, steps, *, lr):
        for index, one in enumerate(zip(weights, gradients, steps, strict=True)):
            if index == 1 and not Flaky.has_failed:
                Flaky.has_failed = True
                raise MemoryError("no memory for a temporary")
            super().update([one[0]], [one[1]], [[tensors[index]] for tensors in moments], [one[2]], lr=lr)


@pytest.fixture
def flaky(monkeypatch):
    monkeypatch.setattr(Flaky, "has_failed", False)
    return Flaky()


@pytest.mark.parametrize("kind", ["ram", "file"])
def test_an_update_that_ends_half_way_leaves_the_state_as_it_was_or_refused_and_does_not_count(kind, flaky, tmp_path):
    pool = dense_pool()
    with contextlib.ExitStack() as stack:
        storage = RamStorage() if kind == "ram" else stack.enter_context(contextlib.closing(FileStorage(tmp_path)))
        server = ParamServer(pool, optimizer=flaky, seed=0, storage=storage)
        server.prepare([KEY, "layer1/dense"])
        before = snapshot(server)
        server.gradients.add(KEY, **sent(*gradient(server)), lr=0.5, step=0)
        with pytest.raises(MemoryError, match="temporary"):
            server.gradients.update(KEY, server.storage, checked=False)
        assert server.gradients.waiting == {}
        if kind == "ram":
            with pytest.raises(StateLostError, match=KEY):
                server.state(KEY)
            assert server.state("layer1/dense").visits == 0
            return
        assert_equal(server, before)
        assert server.state(KEY).visits == 0
        server.gradients.add(KEY, **sent(*gradient(server)), lr=0.5, step=0)
        server.gradients.update(KEY, server.storage, checked=False)
        assert server.state(KEY).visits == 1


def test_an_update_ahead_of_its_check_that_ends_half_way_is_put_back(flaky):
    server = server_of(flaky)
    server.prepare([KEY])
    before = snapshot(server)
    server.gradients.add(KEY, **sent(*gradient(server)), lr=0.5, step=0)
    with pytest.raises(MemoryError, match="temporary"):
        server.gradients.update_ahead(KEY, server.storage)
    server.gradients.discard(server.storage)
    assert_equal(server, before)


def test_a_layer_that_a_path_repeats_is_built_once():
    built = []

    def block():
        module = nn.Linear(2, 2)
        built.extend([] if module.weight.is_meta else [module])
        return module

    pool = LayerPool.repeated([Candidate("block", block)], depth=4, inputs=TensorSpec((2,)))
    server = ParamServer(pool, optimizer=SGD(), seed=0)
    path = pool.path(pool.architecture(["block"] * 4))
    built.clear()
    server.prepare(key for layer in path for key in layer.states)
    assert len(built) == 1
