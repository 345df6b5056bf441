"""A converted model trains as the model itself does in plain PyTorch, bit for bit; so does every path of its pool.

"Plain PyTorch" is `torch.optim.AdamW(fused=True)` over the model's parameters; for other paths over a `PlainNetwork`,
whose layers get the random numbers of the relay. Micro-batches are for a model without tied weights: see
`test_relay_equals_plain.py` for the order in which those are summed.
"""

from __future__ import annotations

import copy
import random
import re

import pytest
import torch

import l2l_nas
from l2l_nas import AdamW, ParamServer, Relay, skip
from l2l_nas.errors import SettingError
from l2l_nas.relay.device import stream_seed
from l2l_nas.relay.interface import as_batch, cut_sizes
from l2l_nas.space.convert.masks import masks_always_made
from l2l_nas.training.export import PlainNetwork, build_network
from tests.converted import CASES, ManyClasses, batch
from tests.relay.stress import ORDERS

STEPS = 3
LR = 0.01
PLACES = [("device", None), ("host", None), ("device", "some"), ("host", "some"), ("device", "all")]
OPTIONS = [
    {"update": update, "stash": stash, "device_budget": budget, "slots": 2 + (number + place) % 2}
    for number, update in enumerate(ORDERS)
    for place, (stash, budget) in enumerate(PLACES)
]
# no weight of theirs is in two places; a BatchNorm wants two samples
UNTIED = {"resnet": 2, "efficientnet": 2, "vit": 3, "swin": 3, "llama": 3, "qwen3": 3, "mixtral": 3}


def converted(name, **settings):
    torch.manual_seed(0)
    case = CASES[name](**settings)
    return case, l2l_nas.convert(case.model, case.example, blocks=case.blocks, candidates={"skip": skip()})


def first_server(pool):
    return ParamServer(pool, optimizer=AdamW(weight_decay=0.01), seed=0)


def some_bytes(server, slots, sizes):
    """A budget of a little more than the least."""
    relay = Relay(server, device="cpu", slots=slots, device_budget=1)
    with pytest.raises(SettingError) as caught:
        relay.memory_plan(sizes)
    least = int(re.search(r"the least is ([\d,]+\d)", str(caught.value))[1].replace(",", ""))
    return least + 100_000


def relay_steps(relay, case, architectures, *, micro_batch):
    """Losses of a step for each architecture."""
    losses = []
    for step, architecture in enumerate(architectures):
        inputs, targets = batch(case, relay.pool, step)
        done = relay.train_step(
            architecture, inputs, targets, objective=ManyClasses(), micro_batch=micro_batch, lr=LR, step=step
        )
        losses.append(done.loss)
    relay.drain()
    return losses


def model_steps(model, case, pool):
    """Losses of the model itself, which is trained."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True, lr=LR)
    losses, objective = [], ManyClasses()
    for step in range(STEPS):
        inputs, targets = batch(case, pool, step)
        model.train()
        if isinstance(case.example, dict):
            with masks_always_made():  # grouped queries take another kernel without a mask, whose last bits differ
                outputs = model(**{**case.example, **dict(zip(pool.sources, inputs, strict=True))}).logits
        else:
            outputs = model(*inputs)
        loss = objective.loss((outputs,), targets) / objective.count(targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


class Networks:
    """`PlainNetwork`s of one pool that share their layers, trained by plain PyTorch."""

    def __init__(self, server, seed):
        self.server, self.seed = server, seed
        self.layers, self.tied, self.optimizers = {}, {}, {}

    def steps(self, case, architectures, *, micro_batch):
        return [self._step(case, architecture, step, micro_batch) for step, architecture in enumerate(architectures)]

    def _network(self, architecture):
        pool = self.server.pool
        path = pool.path(architecture)
        network = PlainNetwork(pool.flow(path))
        for layer in path:
            if layer.key not in self.layers:
                self.layers[layer.key] = self.server.build_module(layer, self.tied)
                for p in self.layers[layer.key].parameters():
                    if p.requires_grad and p not in self.optimizers:
                        self.optimizers[p] = torch.optim.AdamW([p], fused=True, lr=LR, weight_decay=0.01)
            network.add_module(pool.positions[layer.position].name.replace(".", "_"), self.layers[layer.key])
        return network.train(), path

    def _step(self, case, architecture, step, micro_batch):
        inputs, targets = batch(case, self.server.pool, step)
        network, path = self._network(architecture)
        objective, total = ManyClasses(), 0
        parts = zip(*(tensor.split(micro_batch) for tensor in inputs), targets.split(micro_batch), strict=True)
        for number, (*values, part) in enumerate(parts):
            hooks = [
                module.register_forward_pre_hook(
                    lambda *_, at=layer.position, number=number: (
                        torch.default_generator.manual_seed(stream_seed(self.seed, step, at, number)) and None
                    )
                )
                for module, layer in zip(network, path, strict=True)
            ]
            loss = objective.loss((network(*values),), part) / objective.count(targets)
            loss.backward()
            total = total + loss.detach()
            for hook in hooks:
                hook.remove()
        for optimizer in self.optimizers.values():
            optimizer.step()
            optimizer.zero_grad()
        return float(total)

    def assert_same(self, server):
        for key, module in self.layers.items():
            state = server.state(key)
            for name, tensor in {**state.parameters(), **state.named_buffers()}.items():
                own = dict([*module.named_parameters(), *module.named_buffers()])[name]
                assert torch.equal(tensor, own), f"{key} {name}"
        for group, parameter in self.tied.items():
            assert torch.equal(server.state(f"tied/{group}").parameters()["weight"], parameter), group


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_converted_model_trains_as_the_model_itself(name):
    case, pool = converted(name)
    before = copy.deepcopy(case.model.state_dict())
    server = first_server(pool)
    losses = relay_steps(Relay(server, device="cpu"), case, [pool.original] * STEPS, micro_batch=4)
    plain = copy.deepcopy(case.model)
    assert losses == model_steps(plain, case, pool)
    restored = pool.restore(build_network(server, pool.original))
    assert type(restored) is type(case.model)
    for key, tensor in plain.state_dict().items():
        assert torch.equal(restored.state_dict()[key], tensor), key
    for key, tensor in case.model.state_dict().items():
        assert torch.equal(tensor, before[key]), key


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_new_path_each_step_equals_plain_networks_under_every_combination(name):
    """Update policies, stashes, budgets and numbers of slots; in micro-batches where no weight is tied."""
    case, pool = converted(name, dropout=0.2)
    draw = random.Random(0)
    architectures = [
        pool.original,
        *(pool.architecture(draw.choice([c.name for c in p.candidates]) for p in pool.positions) for _ in range(3)),
    ]
    assert len(set(architectures)) > 2
    micro_batch = UNTIED.get(name, 4)
    plain = Networks(first_server(pool), seed=7)
    losses = plain.steps(case, architectures, micro_batch=micro_batch)
    sizes = cut_sizes(len(as_batch(batch(case, pool, 0)[0])[0]), micro_batch)
    some = {slots: some_bytes(first_server(pool), slots, sizes) for slots in (2, 3)}
    for options in OPTIONS:
        budget = some[options["slots"]] if options["device_budget"] == "some" else options["device_budget"]
        server = first_server(pool)
        relay = Relay(server, device="cpu", seed=7, **options | {"device_budget": budget})
        assert relay_steps(relay, case, architectures, micro_batch=micro_batch) == losses, options
        plain.assert_same(server)
        relay.close()
