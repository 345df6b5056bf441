"""The first law: the relay trains as plain PyTorch does, bit for bit.

The reference is a naive loop, micro-batch by micro-batch (`plain.py`). One thing only makes the relay sum in another
order: a state used at several places of a path (tied weights, a repeated layer) with more than one micro-batch. The
naive loop adds up micro-batch by micro-batch (m0: last place, first place; m1: last place, first place ...),
layer-major order place by place (last place: m0, m1 ...; first place: m0, m1 ...), and a repeated BatchNorm meets its
batches in that order too. There the relay must equal, bit for bit, a plain layer-major loop that keeps its full graph,
and be close to the naive loop. With one micro-batch both orders are the same, unless a repeated layer itself uses a
weight twice: autograd adds those one by one, ((b2 + a2) + b1) + a1, the relay layer by layer, (b2 + a2) + (b1 + a1).
"""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from l2l_nas import SGD, AdamW, ParamServer, ReferenceTrainer
from l2l_nas.eps.scale import Clip
from l2l_nas.relay.path import PathLayer, tail_start
from tests.equivalence.plain import Plain
from tests.products import every_pair
from tests.relay.stress import ORDERS, Stress, relay_under
from tests.toys import (
    BothHeads,
    NextToken,
    SquaredError,
    cell_pool,
    decoder_pool,
    dense_pool,
    elastic_pool,
    language_pool,
    mixer_pool,
    random_data,
    repeated_pool,
    unet_pool,
)

STEPS = 20
MICRO_BATCHES = st.integers(1, 4)
POOLS = {
    "dense": dense_pool(),
    "language": language_pool(),
    "repeated": repeated_pool(),
    "simple": repeated_pool(twice=False),
    "unet": unet_pool(),
    "cell": cell_pool(),
    "decoder": decoder_pool(),
    "elastic": elastic_pool(),
    "mixers": mixer_pool(),
}
VALUES = ["unet", "cell", "decoder"]
OPTIMIZERS = [AdamW(), AdamW(weight_decay=0.1), SGD(), SGD(momentum=0.0), SGD(nesterov=True, weight_decay=0.01)]


@st.composite
def runs(draw, pools, micro_batches):
    """A pool, settings, and a new path and batch for every step; the first position that may be is not skipped."""
    name = draw(st.sampled_from(pools))
    pool = POOLS[name]
    one = st.tuples(*[st.sampled_from([c.name for c in position.candidates]) for position in pool.positions])
    update = draw(st.sampled_from(ORDERS))
    scopes = ["layer"] if update == "eager" else ["layer", "global"]
    clip = draw(st.none() | st.builds(Clip, st.sampled_from([0.05, 0.5, 50.0]), st.sampled_from(scopes)))
    budget = draw(st.sampled_from([None, None, "all", 42_000, 48_000]))
    stash = draw(st.sampled_from(["device", "host"]))
    if budget == 42_000:
        stash = "host"
    if name in (*VALUES, "elastic", "mixers") and isinstance(budget, int):
        budget *= 3
    return {
        "name": name,
        "optimizer": draw(st.sampled_from(OPTIMIZERS)),
        "seed": draw(st.integers(0, 99)),
        "micro_batch": draw(micro_batches),
        "work": draw(st.lists(st.tuples(one, st.integers(1, 7)), min_size=STEPS, max_size=STEPS)),
        "knows_ahead": draw(st.booleans()),
        "options": {
            "slots": draw(st.integers(1, 4)),
            "update": update,
            "clip": clip,
            "stash": stash,
            "device_budget": budget,
            "keep": draw(st.integers(1, 3)),
            "lanes": draw(st.sampled_from(["threads", "inline"])),
            "stress": draw(st.none() | st.builds(Stress, st.integers(0, 99), st.just(0.0005))),
        },
    }


def each_run(pools, *, examples=18, micro_batches=MICRO_BATCHES):
    """Run a test on examples that are the same every time; shrinking a failure would take minutes."""

    def decorate(test):
        chosen = settings(
            max_examples=examples, deadline=None, derandomize=True, database=None, phases=[Phase.generate]
        )
        return chosen(given(runs(pools, micro_batches))(test))

    return decorate


def first_server(run):
    return ParamServer(POOLS[run["name"]], optimizer=run["optimizer"], seed=run["seed"])


def relay_of(run, server):
    return relay_under(server, device="cpu", seed=run["seed"], **run["options"])


def train(run, step_of):
    """The losses of all steps."""
    pool = POOLS[run["name"]]
    objective = {"language": NextToken(), "decoder": BothHeads()}.get(run["name"], SquaredError())
    losses = []
    for step, (choices, batch) in enumerate(run["work"]):
        inputs, targets = random_data(pool, batch, seed=step)
        ahead = run["work"][step + 1 : step + 2] if run["knows_ahead"] else []
        result = step_of(
            pool.architecture(choices), inputs, targets,
            objective=objective, micro_batch=run["micro_batch"], lr=0.01 + 0.001 * step, step=step,
            upcoming=pool.architecture(ahead[0][0]) if ahead else None,
        )  # fmt: skip
        losses.append(result if isinstance(result, float) else result.loss)
    return losses


def plain_tensors(plain, key):
    """What `LayerState.tensors` gives, taken from plain modules and optimizers."""
    tied = {id(p) for p in plain.tied.values()}
    if key.startswith("tied/"):
        named = {"weight": plain.tied[key.removeprefix("tied/")]}
    else:
        named = {name: p for name, p in plain.modules[key].named_parameters() if id(p) not in tied}
    tensors, steps = {}, []
    for name, p in named.items():
        state = plain.optimizers[p].state[p] if p in plain.optimizers else {}
        tensors[f"weights.{name}"] = p.detach()
        moments = [state.get("exp_avg", state.get("momentum_buffer")), state.get("exp_avg_sq")]
        for index in range(len(plain.server.optimizer.state(p.shape)) if p.requires_grad else 0):  # frozen: none
            tensors[f"moment{index}.{name}"] = torch.zeros_like(p) if moments[index] is None else moments[index]
        steps.append(float(state.get("step", 0)))
    if isinstance(plain.server.optimizer, AdamW):  # torch's SGD does not count
        tensors["steps"] = torch.tensor(steps)
    if not key.startswith("tied/"):
        tensors |= {f"buffers.{name}": b for name, b in plain.modules[key].named_buffers()}
    return tensors


def assert_same(server, plain, *, close=False):
    keys = {*plain.modules, *(f"tied/{group}" for group in plain.tied)}
    assert keys == set(server.visited)
    for key in keys:
        own = server.state(key).tensors()
        own.pop("visits")
        if not isinstance(server.optimizer, AdamW):
            own.pop("steps")
        expected = plain_tensors(plain, key)
        assert own.keys() == expected.keys()
        for name, tensor in own.items():
            same = torch.allclose(tensor, expected[name], atol=1e-4) if close else torch.equal(tensor, expected[name])
            assert same, f"{key} {name}"


def check(run, *, layer_major, plain_of=None):
    """Args: plain_of: of the run and its tails, plain PyTorch after the run's steps, and its losses."""
    server = first_server(run)
    relay = relay_of(run, server)
    losses = train(run, relay.train_step)
    plain, expected = (plain_of or trained_plain)(run, tails(relay, run) if layer_major else None)
    assert losses == expected
    assert_same(server, plain)
    relay.close()


def trained_plain(run, tails):
    rest = iter(tails or ())
    plain = Plain(
        first_server(run),
        seed=run["seed"],
        layer_major=None if tails is None else lambda *_: next(rest),
        clip=run["options"]["clip"],
    )
    return plain, train(run, plain.step)


def tails(relay, run):
    """The lengths of the tails of all steps."""
    pool = relay.pool
    return tuple(
        tail_length(
            relay, pool.path(pool.architecture(choices)), list(map(len, torch.empty(batch).split(run["micro_batch"])))
        )
        for choices, batch in run["work"]
    )


def tail_length(relay, layers, sizes):
    """How many of the last layers of a path the relay runs together."""
    path = [PathLayer(layer.key) for layer in layers]
    return len(path) - tail_start(path, slots=len(relay.bank.slots), keep=relay.memory_plan(tuple(sizes)).keep)


@pytest.mark.slow
@each_run(["dense"])
def test_twenty_steps_of_new_paths_equal_the_naive_loop_bit_for_bit(run):
    check(run, layer_major=False)


@pytest.mark.slow
@each_run(VALUES)
def test_values_with_many_readers_equal_the_naive_loop_bit_for_bit(run):
    check(run, layer_major=False)


@pytest.mark.slow
@each_run(["elastic"], examples=8)
def test_regions_of_a_larger_layer_s_weights_equal_the_naive_loop_bit_for_bit(run):
    check(run, layer_major=False)


@pytest.mark.slow
@each_run(["mixers"], examples=5)
def test_sub_layers_of_language_models_equal_the_naive_loop_bit_for_bit(run):
    check(run, layer_major=False)


@pytest.mark.slow
@each_run(["language", "repeated"])
def test_tied_and_repeated_layers_equal_a_plain_layer_major_loop_bit_for_bit(run):
    check(run, layer_major=True)


@pytest.mark.slow
@each_run(["language", "simple"], examples=15, micro_batches=st.just(7))
def test_tied_and_repeated_layers_on_one_micro_batch_equal_the_naive_loop_bit_for_bit(run):
    check(run, layer_major=False)


@pytest.mark.slow
@each_run(["language"], examples=10)
def test_tied_and_repeated_layers_are_close_to_the_naive_loop(run):
    # eps: Adam divides by the root of squares, so that below it a rounding error in a tiny gradient decides its sign
    run |= {"optimizer": AdamW(eps=1e-3) if isinstance(run["optimizer"], AdamW) else run["optimizer"]}
    server = first_server(run)
    plain = Plain(first_server(run), seed=run["seed"], clip=run["options"]["clip"])
    assert train(run, relay_of(run, server).train_step) == pytest.approx(train(run, plain.step), abs=1e-4)
    assert_same(server, plain, close=True)


@pytest.mark.slow
@each_run(["dense", *VALUES], examples=15)
def test_the_resident_reference_equals_the_relay_bit_for_bit(run):
    run["options"]["clip"] = None
    server, other = first_server(run), first_server(run)
    resident = ReferenceTrainer(other, device="cpu", seed=run["seed"])
    assert train(run, relay_of(run, server).train_step) == train(run, resident.train_step)
    compare_resident(run, server, other, resident)


@pytest.mark.slow
@each_run(["language", "simple"], examples=10, micro_batches=st.just(7))
def test_the_resident_reference_equals_the_relay_on_tied_and_repeated_layers(run):
    run["options"]["clip"] = None
    server, other = first_server(run), first_server(run)
    resident = ReferenceTrainer(other, device="cpu", seed=run["seed"])
    assert train(run, relay_of(run, server).train_step) == train(run, resident.train_step)
    compare_resident(run, server, other, resident)


def compare_resident(run, server, other, resident):
    resident.write_back()
    assert set(server.visited) == set(other.visited)
    left_out = {"visits"} if isinstance(run["optimizer"], AdamW) else {"visits", "steps"}
    for key in server.visited:
        expected = other.state(key).tensors()
        for name, tensor in server.state(key).tensors().items():
            assert name in left_out or torch.equal(tensor, expected[name]), f"{key} {name}"
    architecture = POOLS[run["name"]].architecture(run["work"][0][0])
    inputs, _ = random_data(POOLS[run["name"]], 5, seed=0)
    relay = relay_of(run, server)
    for own, theirs in zip(
        relay.predict(architecture, inputs, micro_batch=2),
        resident.predict(architecture, inputs, micro_batch=2),
        strict=True,
    ):
        assert torch.equal(own, theirs)


COMBINATIONS = every_pair(
    update=ORDERS,
    stash=["device", "host"],
    budget=[None, 40_000, "all"],
    slots=[2, 3, 4],
)


@COMBINATIONS
def test_every_combination_equals_plain_in_stress(update, stash, budget, slots):
    # the examples above draw from these at random; here is each of them once, on each kind of pool
    paths = {
        "dense": (["normed", "partial", "skip", "twice", "mlp"], ["dense", "running", "frozen", "dense", "linear"]),
        "language": (
            ["embed", "attention", "feed", "attention", "head"],
            ["embed", "feed", "feed", "attention", "head"],
        ),
        "repeated": (["normed", "dense", "normed", "running", "head"], ["dense", "dense", "partial", "twice", "head"]),
        "mixers": (
            ["first", "numbered", "state", "experts", "grouped", "gated", "linear", "rank", "head"],
            ["first", "numbered", "window", "gated", "state", "skip", "skip", "experts", "head"],
        ),
    }
    for name, choices in paths.items():
        options = {"update": update, "stash": stash, "device_budget": budget, "slots": slots}
        if name == "mixers" and budget == 40_000:
            options["device_budget"] = 100_000
        check(
            stressed(name, choices, options), layer_major=name in ("language", "repeated"), plain_of=same_trained_plain
        )


SAME = {}


def same_trained_plain(run, tails):
    """Plain PyTorch does the same for most combinations, on the same paths."""
    key = (run["name"], run["options"]["clip"], tails)
    if key not in SAME:
        SAME[key] = trained_plain(run, tails)
    return SAME[key]


def stressed(name, choices, options):
    """Four steps on these paths in turn, under stress."""
    clip = None if options["update"] == "eager" else Clip(0.5)
    return {
        "name": name,
        "optimizer": AdamW(),
        "seed": 3,
        "micro_batch": 3,
        "work": [(choices[step % len(choices)], 7) for step in range(4)],
        "knows_ahead": True,
        "options": {**options, "clip": clip, "lanes": "threads", "stress": Stress(5, 0.0003)},
    }


@pytest.mark.slow
@COMBINATIONS
def test_every_combination_equals_plain_on_graphs_of_values_and_regions(update, stash, budget, slots):
    """A new path each step of a U-Net, of cells, of an encoder and decoder, and of regions of larger weights."""
    options = {"update": update, "stash": stash, "device_budget": budget, "slots": slots}
    if budget == 40_000:
        options["device_budget"] = 120_000
    for name in (*VALUES, "elastic"):
        draw, positions = random.Random(f"{name} {options}"), POOLS[name].positions
        choices = [[draw.choice(position.candidates).name for position in positions] for _ in range(4)]
        check(stressed(name, choices, options), layer_major=False)
