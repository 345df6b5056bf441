"""Costs of writing: what layers keep of a text is what writing keeps, and times are sums over layers."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from l2l_nas import AdamW, Candidate, LayerPool, ParamServer, Position, Relay, TensorSpec, skip
from l2l_nas.cost.catalogue import build_costs, file_cost
from l2l_nas.cost.flops import Flops
from l2l_nas.cost.generation import KeptBytes, WritingCosts
from l2l_nas.cost.profiles import PROFILES
from l2l_nas.layers import Embedding, FeedForward, Heads, LinearAttention, MixtureOfExperts, Routing, SelfAttention
from l2l_nas.relay.extend import extend_of
from l2l_nas.space.shapes import check_shapes
from l2l_nas.training.export import build_network
from tests.toys import dense_pool, language_pool

WIDTH, LENGTH, HEADS, SIZE = 16, 12, 4, 4
CHOICES = {
    "own": Heads(HEADS, rotary=1e4),
    "grouped": Heads(HEADS, key_value=2, rotary=1e4),
    "window": Heads(HEADS, rotary=1e4, window=5),
    "later": Heads(HEADS, is_causal=False),
}


def pool_of():
    attention = [Candidate(name, partial(SelfAttention, WIDTH, heads)) for name, heads in CHOICES.items()]
    return LayerPool(
        [
            Position("embedding", Candidate("table", partial(Embedding, 1000, WIDTH))),
            Position("attention", [*attention, Candidate("linear", partial(LinearAttention, WIDTH, HEADS)), skip()]),
            Position("network", [Candidate(str(width), partial(FeedForward, WIDTH, width)) for width in (64, 8)]),
            Position("head", Candidate("head", partial(nn.Linear, WIDTH, 1000))),
        ],
        inputs={"tokens": TensorSpec((LENGTH,), torch.int64)},
    )


def costs_of(pool, precision="fp32", hardware=PROFILES["h100"]):
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu", precision=precision)
    return build_costs(relay, (4,), build=None, inputs=[], hardware=hardware)


def path(pool, attention="own", network="64"):
    return pool.architecture(["table", attention, network, "head"])


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_keys_and_values_are_counted_in_the_precision_of_the_run(precision):
    pool, itemsize = pool_of(), 2 if precision == "bf16" else 4
    costs = costs_of(pool, precision, hardware=None)
    kept = {name: costs.value("cache_bytes", path(pool, name)) for name in (*CHOICES, "skip")}
    assert kept["own"] == 2 * HEADS * SIZE * itemsize
    assert kept["grouped"] == kept["own"] / 2
    assert kept["window"] == pytest.approx(kept["own"] * 4 / LENGTH)  # of 5 tokens that are seen one is the new one
    assert kept["later"] == kept["skip"] == 0


@pytest.mark.parametrize("name", ["own", "window", "linear"])
def test_what_is_counted_is_what_writing_keeps(name):
    pool = pool_of()
    costs, network = (
        costs_of(pool, hardware=None),
        build_network(ParamServer(pool, optimizer=AdamW(), seed=0), path(pool, name)),
    )
    x, kept = network[0](torch.zeros(1, LENGTH, dtype=torch.int64)), None
    for token in range(LENGTH):
        _, kept = extend_of(network[1])(x[:, token : token + 1], kept)
    num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in kept if tensor.dim())
    assert costs.value("cache_bytes", path(pool, name)) == pytest.approx(num_bytes / LENGTH)


def test_a_token_reads_all_weights_but_the_table_of_embeddings():
    pool, hardware = pool_of(), PROFILES["h100"]
    costs = costs_of(pool)
    read = 4 * sum(p.numel() for p in nn.Linear(WIDTH, 1000).parameters())
    whole, small = (costs.value("token_ms", path(pool, "skip", width)) for width in ("64", "8"))
    flops = costs.value("flops", path(pool, "skip")) / LENGTH
    sums = costs.sums(pool)
    for name in ("cache_bytes", "file_bytes", "first_token_ms", "token_ms"):
        for architecture in (path(pool), path(pool, "skip", "8"), path(pool, "grouped")):
            assert sums[name](architecture) == pytest.approx(costs.value(name, architecture))
    launches = 1000 * hardware.kernel_s
    assert 0 < small <= whole
    assert whole > 1000 * (read / hardware.device_bandwidth + flops / hardware.flops("fp32")) / 2
    assert costs.value("first_token_ms", path(pool)) >= 4 * launches
    assert costs.value("token_ms", path(pool)) > costs.value("token_ms", path(pool, "skip"))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_token_reads_the_experts_that_it_takes(precision):
    def read(routing):
        experts = Candidate("experts", partial(MixtureOfExperts, WIDTH, 64, routing=routing))
        pool = pool_of().like([*pool_of().positions[:2], Position("network", experts), pool_of().positions[3]])
        costs, works = costs_of(pool, precision), []
        hardware = SimpleNamespace(seconds=lambda work, precision: works.append(work) or 0.0)
        relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu", precision=precision)
        WritingCosts(relay, Flops(pool, check_shapes(pool)), KeptBytes(pool, LENGTH)).token_ms(
            pool.path(pool.original)[2], hardware
        )
        assert costs.value("token_ms", pool.architecture(["table", "own", "experts", "head"])) > 0
        return works[0].bytes

    one, two, all_of_them = (read(Routing(4, chosen)) for chosen in (1, 2, 4))
    expert = sum(p.numel() for p in MixtureOfExperts(WIDTH, 64, routing=Routing(1, 1)).experts.parameters())
    assert two - one == (all_of_them - two) / 2 == expert * (2 if precision == "bf16" else 4)


def test_pools_without_text_have_none_of_these_costs():
    assert "cache_bytes" not in [*costs_of(dense_pool())]
    assert "file_bytes" in [*costs_of(dense_pool())]


@pytest.mark.parametrize("pool", [dense_pool(), language_pool(), pool_of()])
def test_a_file_has_as_many_bytes_as_the_weights_and_buffers_of_a_network(pool):
    architecture = pool.original
    network = build_network(ParamServer(pool, optimizer=AdamW(), seed=0), architecture)
    tensors = [*network.parameters(), *network.buffers()]
    expected = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert file_cost(pool).compute(architecture) == expected


def test_the_latency_of_a_token_is_measured_on_the_network_of_an_architecture():
    pool = pool_of()
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    relay, built = Relay(server, device="cpu"), []

    def build(architecture):
        built.append(architecture)
        return build_network(server, architecture)

    costs = build_costs(relay, (4,), build=build, inputs=[torch.zeros(3, LENGTH, dtype=torch.int64)])
    assert built == []
    assert costs.measured(path(pool)) == {}
    found = [costs.value("token_latency_ms", path(pool, name)) for name in ("own", "linear", "own")]
    assert built == [path(pool), path(pool, "linear")]
    assert costs.measured(path(pool)) == {"token_latency_ms": found[0]}
    assert min(found) > 0
