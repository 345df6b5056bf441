"""Streamed bytes against the copies of a real step, counted as they are made."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from l2l_nas.cost import chain
from l2l_nas.cost.traffic import StreamedBytes
from l2l_nas.eps import inbox as inbox_module
from l2l_nas.eps import wire as wire_module
from l2l_nas.relay.interface import cut_sizes
from tests.relay.steps import OTHER, PATH, relay_of, train
from tests.toys import decoder_pool, dense_pool, language_pool, repeated_pool, unet_pool

MIXED = ["normed", "frozen", "skip", "running", "mlp"]


class Copies(TorchDispatchMode):
    """Bytes of all copies between a relay's blocks and host memory; the device is the host here, so both are known.

    Host memory is what states, staging buffers and the host's stash lie in, and copies of that.
    """

    def __init__(self, relay, staged: list[Tensor]) -> None:
        super().__init__()
        blocks = [block for slot in relay.bank.slots for block in slot.blocks]
        self._device = {_id(block) for block in (*blocks, relay.stash.arena)}
        self._staged = staged
        self._host = {_id(relay.stash._host)}
        for key in relay.server.visited:
            with relay.server.storage.reading(key) as state:
                self._host |= {_id(t) for t in (state.weights, state.buffers, state.wire) if t is not None}
        self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        host = self._host | {_id(buffer) for buffer in self._staged}
        if func is torch.ops.aten.clone.default and _id(args[0]) in host:
            self._host.add(_id(result))
        if func is torch.ops.aten.copy_.default:
            target, source = _id(args[0]), _id(args[1])
            if (target in self._device and source in host) or (target in host and source in self._device):
                self.total += args[0].nbytes if target in self._device else args[1].nbytes
        return result


def _id(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def counted(relay, choices, monkeypatch, *, steps=1, batch=5, micro_batch=2) -> list[int]:
    """The bytes of these many steps in the midst of training one path."""
    staged: list[Tensor] = []

    def host_block(num_bytes):
        staged.append(torch.empty(num_bytes, dtype=torch.uint8))
        return staged[-1]

    for module in (inbox_module, wire_module):
        monkeypatch.setattr(module, "host_block", host_block)
    monkeypatch.setattr(relay.device, "allocate_host", host_block)  # buffers pass through such blocks
    if relay.has_states_on_device:
        # gradients of what lives on the device stay there; as that is the host here, their blocks stage others later
        monkeypatch.setattr(relay.device, "allocate", host_block)
    for step in range(3):
        train(relay, choices, step=step, batch=batch, micro_batch=micro_batch, upcoming=choices, lr=1e-4)
    totals = []
    for step in range(3, 3 + steps):
        with Copies(relay, staged) as copies:
            train(relay, choices, step=step, batch=batch, micro_batch=micro_batch, upcoming=choices, lr=1e-4)
        totals.append(copies.total)
    relay.drain()
    return totals


@pytest.mark.parametrize("choices", [PATH, OTHER, MIXED], ids="-".join)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"slots": 1},
        {"slots": 3, "keep": 2},
        {"stash": "host"},
        {"device_budget": "all"},
        {"device_budget": "all", "resident": None},
        {"resident": "all"},
        {"update": "exact"},
        {"update": "exact", "stash": "host", "slots": 3},
        {"precision": "bf16"},
        {"precision": "bf16", "stash": "host", "update": "exact"},
    ],
    ids=str,
)
def test_streamed_bytes_are_those_that_a_step_copies(choices, options, monkeypatch):
    relay = relay_of(dense_pool(), lanes="inline", **options)
    cost = StreamedBytes(relay, cut_sizes(5, 2))
    assert [cost(relay.pool.architecture(choices))] * 2 == counted(relay, choices, monkeypatch, steps=2)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"slots": 4}, {"stash": "host"}, {"update": "exact"}], ids=str)
def test_layers_used_twice_and_tied_weights_cross_as_often_as_they_are_moved(options, monkeypatch):
    for pool, choices in (
        (repeated_pool(depth=4), ["normed", "normed", "dense", "normed", "head"]),
        (language_pool(depth=3), ["embed", "feed", "attention", "feed", "head"]),
        (unet_pool(), ["dense", "normed", "skip", "dense", "skip", "joined", "joined", "linear"]),
        (decoder_pool(), ["dense", "memory", "cross", "skip", "cross", "linear", "linear"]),
    ):
        relay = relay_of(pool, lanes="inline", **options)
        cost = StreamedBytes(relay, cut_sizes(5, 2))
        assert [cost(relay.pool.architecture(choices))] * 2 == counted(relay, choices, monkeypatch, steps=2)


def test_what_stays_on_the_device_does_not_cross_again():
    pool = dense_pool(width=64)
    architecture = pool.architecture(PATH)
    streamed = {
        name: StreamedBytes(relay_of(pool, **options), (2, 2))(architecture)
        for name, options in {
            "streams": {},
            "keeps": {"device_budget": "all"},
            "spills": {"stash": "host"},
            "half": {"precision": "bf16"},
        }.items()
    }
    assert streamed["keeps"] < streamed["streams"] < streamed["spills"]
    assert streamed["half"] < streamed["streams"]


def test_a_path_of_other_names_with_the_same_shape_is_planned_once(monkeypatch):
    planned = []
    real = chain.plan_training
    monkeypatch.setattr(chain, "plan_training", lambda path, **options: planned.append(path) or real(path, **options))
    pool = dense_pool()
    cost = StreamedBytes(relay_of(pool), (2,))
    first = cost(pool.architecture(["dense", "twice", "skip", "skip", "linear"]))
    assert cost(pool.architecture(["skip", "dense", "skip", "twice", "linear"])) == first
    assert len(planned) == 2
    assert cost(pool.architecture(["dense", "dense", "skip", "skip", "linear"])) < first
    assert len(planned) == 2
    cost(pool.architecture(["normed", "twice", "skip", "skip", "linear"]))
    assert len(planned) == 4
