"""Groups of parameters train as `torch.optim`'s param groups and `requires_grad_(False)` do, bit for bit."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from l2l_nas import SGD, AdamW, ParamServer, ReferenceTrainer
from l2l_nas.eps.optimizers.groups import Group, Groups, layer_decay, no_decay
from l2l_nas.eps.optimizers.precision import LowPrecision
from l2l_nas.eps.optimizers.registry import in_low_precision, muon_with_adamw
from l2l_nas.eps.optimizers.rules import Adafactor, Lion
from l2l_nas.eps.scale import Clip
from tests.equivalence.plain import Plain
from tests.equivalence.test_relay_equals_plain import POOLS, compare_resident, relay_of, tail_length, train
from tests.relay.stress import ORDERS

PATHS = {
    "dense": (["normed", "partial", "skip", "twice", "mlp"], ["dense", "running", "frozen", "dense", "linear"]),
    "language": (["embed", "attention", "feed", "attention", "head"], ["embed", "feed", "feed", "attention", "head"]),
}
# which clips need: eager has no global norm
CLIPS = {"eager": [None, Clip(0.3, "layer")], "exact": [Clip(0.3), Clip(0.3, "layer")]}
GROUPS = {
    "dense": [no_decay(), layer_decay(0.9), Group("layer1/*", frozen=True)],
    "language": [no_decay(), Group("*/feed/*", lr_scale=0.5), Group("*/attention/*", frozen=True)],
}


def of_run(name, update, clip):
    return {
        "name": name,
        "seed": 3,
        "micro_batch": 7,
        "work": [(PATHS[name][step % 2], 7) for step in range(8)],
        "knows_ahead": True,
        "options": {"update": update, "clip": clip, "slots": 2, "lanes": "threads"},
    }


def plain_group(name, path, p):
    """The same groups, written without the project's rules."""
    position, candidate, leaf = path.split("/")
    if position == "layer1" or candidate == "attention":
        return None
    places = {"layer0": 0, "layer1": 1, "layer2": 2, "layer3": 3, "head": 4}
    group = {"lr": 0.9 ** (4 - places[position]) if name == "dense" else 0.5 if candidate == "feed" else 1.0}
    if p.ndim < 2 or leaf.endswith("bias"):
        group["weight_decay"] = 0.0
    return group


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dense", "language"])
@pytest.mark.parametrize("rule", [AdamW(weight_decay=0.2), SGD(weight_decay=0.05)], ids=lambda rule: rule.name)
@pytest.mark.parametrize(("update", "clip"), [(update, clip) for update, clips in CLIPS.items() for clip in clips])
def test_decay_rates_and_frozen_parts_equal_param_groups_of_torch(name, rule, update, clip):
    pool, run = POOLS[name], of_run(name, update, clip)
    server = ParamServer(pool, optimizer=Groups(rule, GROUPS[name]), seed=3)
    relay = relay_of(run, server)
    plain = Plain(
        ParamServer(pool, optimizer=rule, seed=3),
        seed=3,
        clip=clip,
        layer_major=partial(tail_length, relay) if name == "language" else None,
        group_of=partial(plain_group, name),
    )
    assert train(run, relay.train_step) == train(run, plain.step)
    assert any(entry.trainable for key in server.visited for entry in server.layout(key).parameters)
    for key in (*plain.modules, *(f"tied/{group}" for group in plain.tied)):
        state = server.state(key)
        own = {"weight": plain.tied[key.removeprefix("tied/")]} if key.startswith("tied/") else None
        own = own or dict(plain.modules[key].named_parameters())
        for entry, view, steps in zip(state.layout.parameters, state.parameters().values(), state.steps, strict=True):
            p = own[entry.name]
            assert torch.equal(view, p), f"{key} {entry.name}"
            assert entry.trainable == p.requires_grad
            kept = plain.optimizers[p].state[p] if p in plain.optimizers else {}
            found = {
                n: t for n, t in state.tensors().items() if n in (f"moment0.{entry.name}", f"moment1.{entry.name}")
            }
            assert bool(found) == entry.trainable
            for kind, value in (("moment0", kept.get("exp_avg", kept.get("momentum_buffer"))),
                                ("moment1", kept.get("exp_avg_sq"))):  # fmt: skip
                if value is not None:
                    assert torch.equal(found[f"{kind}.{entry.name}"], value)
            if not entry.trainable:
                assert steps == 0
    relay.close()


@pytest.mark.parametrize(
    "optimizer",
    [
        Lion(weight_decay=0.1),
        Adafactor(),
        muon_with_adamw(),
        LowPrecision(AdamW(), "bf16"),
        in_low_precision(Groups(muon_with_adamw().rule, [*muon_with_adamw().groups, no_decay()]), "bf16"),
    ],
    ids=["lion", "adafactor", "muon", "bf16", "muon in bf16"],
)
@pytest.mark.parametrize("update", ORDERS)
def test_every_rule_trains_in_the_relay_as_in_plain_pytorch(optimizer, update):
    run = of_run("language", update, None) | {"optimizer": optimizer}
    server, other = (ParamServer(POOLS["language"], optimizer=optimizer, seed=3) for _ in range(2))
    resident = ReferenceTrainer(other, device="cpu", seed=3)
    assert train(run, relay_of(run, server).train_step) == train(run, resident.train_step)
    run["optimizer"] = AdamW()  # what counts its steps
    compare_resident(run, server, other, resident)
