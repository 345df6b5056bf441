"""Auxiliary losses: a step minimises the task's loss and what layers add, as a plain loop does, bit for bit."""

from __future__ import annotations

from functools import cache, partial

import pytest
import torch
from torch import nn

from l2l_nas import (
    SGD,
    AdamW,
    Candidate,
    LayerPool,
    ParamServer,
    Position,
    ReferenceTrainer,
    Relay,
    TensorSpec,
    add_loss,
    collect_losses,
    skip,
)
from l2l_nas.eps.scale import Clip, LossScale
from l2l_nas.errors import NonFiniteError
from l2l_nas.layers import MixtureOfExperts, Routing
from l2l_nas.relay.device import stream_seed
from tests.equivalence.mixed import Mixed
from tests.equivalence.test_relay_equals_plain import plain_tensors
from tests.products import every_pair
from tests.relay.stress import ORDERS, Stress, relay_under
from tests.toys import SquaredError, random_data

WIDTH = 6


class Added(nn.Module):
    """Adds losses of what it takes, of what it gives and of its weights, one of them twice; dropout and a buffer."""

    def __init__(self, frozen: bool = False, decays: bool = True) -> None:
        super().__init__()
        self.decays = decays
        self.linear, self.dropout, self.norm = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2), nn.BatchNorm1d(3)
        self.requires_grad_(not frozen)

    def forward(self, x):
        gate = torch.sigmoid(self.linear(self.norm(x)))
        add_loss(0.3 * x.square().mean())
        y = x * self.dropout(gate)
        both = y.square().mean()
        add_loss(both)
        if self.decays:
            add_loss(0.1 * self.linear.weight.square().sum())
        add_loss(both)
        return y + both


class Apart(nn.Module):
    """Gives what it takes; its weights learn from its own loss alone."""

    def __init__(self) -> None:
        super().__init__()
        self.probe = nn.Linear(WIDTH, 1)

    def forward(self, x):
        add_loss((self.probe(x) - x.sum(-1, keepdim=True)).square().mean())
        return x


class Constant(nn.Module):
    """A loss without a gradient."""

    def forward(self, x):
        add_loss(x.detach().mean())
        return x * 2


CANDIDATES = [
    Candidate("added", Added),
    Candidate("frozen", partial(Added, True)),
    Candidate("apart", Apart),
    Candidate("constant", Constant),
    Candidate("experts", partial(MixtureOfExperts, WIDTH, 5, routing=Routing(4, balance=0.5))),
    Candidate("dense", lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())),
    skip(),
]
HEAD = Position("head", Candidate("linear", partial(nn.Linear, WIDTH, 2)))


def chain(depth=5):
    return LayerPool([*(Position(f"layer_{i}", CANDIDATES) for i in range(depth)), HEAD], inputs=TensorSpec((3, WIDTH)))


def branched():
    """Two layers read one value; the output of one of them is of use where the join is not skipped."""
    middle = [candidate for candidate in CANDIDATES if not candidate.is_skip]
    return LayerPool(
        [
            Position("stem", CANDIDATES),
            Position("left", middle, reads="stem"),
            Position("right", middle, reads="stem"),
            Position("join", [Candidate("sum", Joined), skip()], reads=("left", "right")),
            replace_reads(HEAD, "join"),
        ],
        inputs=TensorSpec((3, WIDTH)),
    )


def replace_reads(position, reads):
    return Position(position.name, position.candidates, reads=reads)


class Joined(nn.Module):
    def forward(self, x, y):
        add_loss((x - y).square().mean())
        return x + y


class Plain:
    """A loop as one writes it: the task's loss plus the mean auxiliary losses, and one backward."""

    def __init__(self, server, *, seed, clip=None):
        self.server, self.seed, self.clip = server, seed, clip
        self.modules, self.tied, self.optimizers = {}, {}, {}
        self.auxiliary = 0.0

    def module(self, layer):
        if layer.key not in self.modules:
            module, first = layer.candidate.factory(), self.server.state(layer.key)
            for name, value in (*first.parameters().items(), *first.named_buffers().items()):
                dict((*module.named_parameters(), *module.named_buffers()))[name].data.copy_(value)
            kind = torch.optim.SGD if isinstance(self.server.optimizer, SGD) else torch.optim.AdamW
            for p in module.parameters():
                if p.requires_grad:
                    self.optimizers[p] = kind([p], fused=True, **vars(self.server.optimizer))
            self.modules[layer.key] = module
        return self.modules[layer.key]

    def step(self, architecture, inputs, targets, *, objective, micro_batch, lr, step):
        pool = self.server.pool
        layers = pool.path(architecture)
        count = objective.count(targets)
        losses, self.auxiliary = [], 0.0
        for number, (x, part) in enumerate(zip(inputs[0].split(micro_batch), targets.split(micro_batch), strict=True)):

            def call(place, *values, number=number):
                module = self.module(layers[place]).train()
                torch.default_generator.manual_seed(stream_seed(self.seed, step, layers[place].position, number))
                out = module(*values)
                out = out.view_as(out) if any(out is value for value in values) else out.contiguous()
                if out.grad_fn is not None:
                    out.register_hook(torch.Tensor.contiguous)
                return (out,)

            with collect_losses() as added:
                outputs = pool.flow(layers).run((x,), call)
            losses.append(objective.loss(outputs, part) / count)
            extra = sum((value * (len(x) / len(inputs[0])) for value in added), torch.zeros(()))
            (losses[-1] + extra).backward()
            self.auxiliary += float(extra.detach())
        if self.clip is not None:
            parameters = [p for layer in layers for p in self.module(layer).parameters()]
            torch.nn.utils.clip_grad_norm_([p for p in parameters if p.requires_grad], self.clip.norm)
        for optimizer in self.optimizers.values():
            optimizer.param_groups[0]["lr"] = lr
            optimizer.step()
            optimizer.zero_grad()
        return float(sum(loss.detach() for loss in losses))


PATHS = {
    "chain": [
        ("added", "experts", "frozen", "apart", "constant", "linear"),
        ("frozen", "constant", "apart", "added", "skip", "linear"),
        ("experts", "dense", "added", "frozen", "experts", "linear"),
        ("apart", "skip", "dense", "experts", "added", "linear"),
    ],
    "branched": [
        ("added", "added", "experts", "sum", "linear"),
        ("dense", "apart", "frozen", "sum", "linear"),
        ("experts", "experts", "added", "skip", "linear"),  # the right is left out
        ("constant", "frozen", "apart", "sum", "linear"),
    ],
}
POOLS = {"chain": chain(), "branched": branched()}


def steps(name, *, micro_batch, samples, rounds):
    """Of each step: what a relay and a plain loop are given."""
    pool = POOLS[name]
    for step, choices in enumerate(PATHS[name] * rounds):
        inputs, targets = random_data(pool, samples, seed=step)
        about = {"objective": SquaredError(), "micro_batch": micro_batch, "lr": 0.02, "step": step}
        yield pool.architecture(choices), inputs, targets, about


@cache
def plain_of(name, optimizer, clip, **cut):
    """A plain loop after these steps, and its losses; it is the same for many relays."""
    plain = Plain(ParamServer(POOLS[name], optimizer=optimizer, seed=3), seed=3, clip=clip)
    return plain, [(plain.step(*given, **about), plain.auxiliary) for *given, about in steps(name, **cut)]


def compared(name, *, optimizer=None, micro_batch=3, samples=7, clip=None, rounds=2, **options):
    """Train a relay and a plain loop on the same; they are equal after each step."""
    optimizer, cut = optimizer or AdamW(), {"micro_batch": micro_batch, "samples": samples, "rounds": rounds}
    server = ParamServer(POOLS[name], optimizer=optimizer, seed=3)
    relay = relay_under(server, device="cpu", seed=3, clip=clip, **options)
    plain, losses = plain_of(name, optimizer, clip, **cut)
    for (*given, about), (loss, auxiliary) in zip(steps(name, **cut), losses, strict=True):
        result = relay.train_step(*given, **about)
        assert result.loss == loss
        assert result.auxiliary == pytest.approx(auxiliary, rel=1e-5)
        assert result.auxiliary != 0
    relay.drain()
    assert set(server.visited) == set(plain.modules)
    for key in server.visited:
        own, expected = server.state(key).tensors(), plain_tensors(plain, key)
        for kind, tensor in expected.items():
            assert torch.equal(own[kind], tensor), f"{key} {kind}"
    relay.close()


@every_pair(
    name=["chain", "branched"],
    update=ORDERS,
    stash=["device", "host"],
    budget=[None, "auto", "all"],
    slots=[2, 4],
)
def test_every_combination_equals_a_plain_loop_bit_for_bit(name, update, stash, budget, slots):
    clip = None if update == "eager" else Clip(0.5)
    stress = {"lanes": "threads", "stress": Stress(5, 0.0003)}
    compared(name, clip=clip, update=update, stash=stash, device_budget=budget, slots=slots, **stress)


@pytest.mark.parametrize("optimizer", [AdamW(weight_decay=0.1), SGD(nesterov=True), SGD(momentum=0.0)])
@pytest.mark.parametrize(("micro_batch", "samples"), [(7, 7), (2, 7), (3, 8), (2, 6)])
def test_any_cut_of_a_mini_batch_equals_a_plain_loop(optimizer, micro_batch, samples):
    compared("chain", optimizer=optimizer, micro_batch=micro_batch, samples=samples, rounds=1)


@pytest.mark.parametrize("name", ["chain", "branched"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_resident_reference_equals_the_relay(name, checkpointing):
    pool = POOLS[name]
    if checkpointing:  # its recompute would count BatchNorm's batches twice
        pool = LayerPool([Position("p", CANDIDATES[2]), Position("q", CANDIDATES[4]), HEAD], inputs=pool.inputs)
    paths = [tuple(position.candidates[0].name for position in pool.positions)] * 3 if checkpointing else PATHS[name]
    server, other = (ParamServer(pool, optimizer=AdamW(), seed=3) for _ in range(2))
    relay, resident = (
        Relay(server, device="cpu", seed=3),
        ReferenceTrainer(other, device="cpu", seed=3, checkpointing=checkpointing),
    )
    for step, choices in enumerate(paths):
        inputs, targets = random_data(pool, 7, seed=step)
        about = {"objective": SquaredError(), "micro_batch": 3, "lr": 0.02, "step": step}
        one = relay.train_step(pool.architecture(choices), inputs, targets, **about)
        two = resident.train_step(pool.architecture(choices), inputs, targets, **about)
        assert one.loss == two.loss
        assert one.auxiliary == pytest.approx(two.auxiliary, rel=1e-6)
    relay.drain()
    resident.write_back()
    for key in server.visited:
        expected = other.state(key).tensors()
        for kind, tensor in server.state(key).tensors().items():
            assert kind == "visits" or torch.equal(tensor, expected[kind]), f"{key} {kind}"
    relay.close()


def test_a_repeated_layer_adds_its_loss_at_each_place():
    kinds = [Candidate("apart", Apart), CANDIDATES[4], skip()]
    POOLS["repeated"] = LayerPool.repeated(kinds, depth=3, inputs=TensorSpec((3, WIDTH)), last=HEAD.candidates[0])
    PATHS["repeated"] = [("experts", "apart", "experts", "linear"), ("apart", "experts", "apart", "linear")]
    for slots in (2, 4):
        compared("repeated", micro_batch=7, slots=slots)


@pytest.mark.parametrize("slots", [2, 4])
@pytest.mark.parametrize(
    ("precision", "dtype", "scale"),
    [("bf16", torch.bfloat16, None), ("fp16", torch.float16, 64.0), ("fp16", torch.float16, 2.0**14)],
)
def test_mixed_precision_equals_a_plain_loop_and_scales_it_too(slots, precision, dtype, scale):
    # of a weight that is used twice the relay sums gradients in float32, plain autograd in the weight's own dtype
    added = [Candidate(name, partial(Added, name == "frozen", decays=False)) for name in ("added", "frozen")]
    positions = [Position(f"layer_{i}", [*added, *CANDIDATES[2:]]) for i in range(5)]
    pool = LayerPool([*positions, HEAD], inputs=TensorSpec((3, WIDTH)))
    server, other = (ParamServer(pool, optimizer=AdamW(), seed=3) for _ in range(2))
    if scale:
        server.gradients.loss_scale = LossScale(scale, 2000)
    relay = Relay(server, device="cpu", seed=3, precision=precision, update="exact", slots=slots)
    plain, skipped = Mixed(other, dtype, seed=3, scale=scale), 0
    for step, choices in enumerate(PATHS["chain"] * 2):
        inputs, targets = random_data(pool, 7, seed=step)
        about = {"objective": SquaredError(), "micro_batch": 3, "lr": 0.01, "step": step}
        result = relay.train_step(pool.architecture(choices), inputs, targets, **about)
        assert result.loss == plain.step(pool.architecture(choices), inputs, targets, **about)
        skipped += result.is_skipped
        assert result.is_skipped == plain.is_skipped
    assert (skipped > 0) == (scale == 2.0**14)  # too large a scale: its gradients overflow
    relay.drain()
    for (key, name), master in plain.masters.items():
        assert torch.equal(server.state(key).parameters()[name], master.detach()), f"{key} {name}"
    relay.close()


@pytest.mark.slow
def test_compiled_layers_add_the_same(recwarn):
    # a backend that runs graphs as they are: that code is traced right
    pool, trained = POOLS["chain"], []
    for backend in ("eager", lambda graph, examples: graph.forward):
        server = ParamServer(pool, optimizer=AdamW(), seed=3)
        relay = Relay(server, device="cpu", seed=3, layers=backend)
        results = []
        for step, choices in enumerate([PATHS["chain"][0], PATHS["chain"][3]] * 2):
            inputs, targets = random_data(pool, 5, seed=step)
            about = {"objective": SquaredError(), "micro_batch": 5, "lr": 0.02, "step": step}
            results.append(relay.train_step(pool.architecture(choices), inputs, targets, **about))
        relay.drain()
        weights = {key: server.state(key).weights.clone() for key in server.visited}
        trained.append((results, weights))
        relay.close()
    (eager, own), (compiled, others) = trained
    assert eager == compiled
    assert all(torch.equal(own[key], others[key]) for key in own)


class Nothing(SquaredError):
    """A task without a loss: layers learn from their own alone."""

    def loss(self, outputs, targets):
        return 0 * outputs[0].detach().sum()


@pytest.mark.parametrize("slots", [2, 4])
def test_the_scale_of_an_auxiliary_loss_does_not_depend_on_the_cut(slots):
    pool = LayerPool([Position("apart", Candidate("apart", Apart)), HEAD], inputs=TensorSpec((3, WIDTH)))
    inputs, targets = random_data(pool, 8, seed=0)
    found = []
    for micro_batch in (8, 4, 3):
        relay = Relay(ParamServer(pool, optimizer=SGD(momentum=0.0), seed=0), device="cpu", slots=slots)
        result = relay.train_step(
            pool.architecture(["apart", "linear"]), inputs, targets,
            objective=Nothing(), micro_batch=micro_batch, lr=0.1, step=0,
        )  # fmt: skip
        assert result.loss == 0
        relay.drain()
        found.append((result.auxiliary, relay.server.state("apart/apart").tensors()["weights.probe.weight"].clone()))
    for auxiliary, weight in found[1:]:
        assert auxiliary == pytest.approx(found[0][0], rel=1e-5)
        torch.testing.assert_close(weight, found[0][1])


class Bad(nn.Module):
    """Its loss is not finite on inputs of zero, in its value or in its gradient."""

    def __init__(self, how):
        super().__init__()
        self.linear, self.how = nn.Linear(WIDTH, WIDTH), how

    def forward(self, x):
        y = self.linear(x)
        add_loss(self.how(x.square().sum() + 0 * y.sum()))
        return y


@pytest.mark.parametrize("update", ORDERS)
@pytest.mark.parametrize("slots", [2, 4])
@pytest.mark.parametrize(
    ("how", "what"),
    [
        (lambda value: value / value, "auxiliary loss"),
        (lambda value: value.detach().log() + value, "auxiliary loss"),  # its gradient is finite
        (torch.sqrt, "gradient"),
    ],
)
def test_one_that_is_not_finite_refuses_the_step_and_names_the_layer(update, slots, how, what):
    first = Candidate("dense", partial(nn.Linear, WIDTH, WIDTH))
    pool = LayerPool(
        [Position("bad", Candidate("bad", partial(Bad, how))), Position("other", first), HEAD],
        inputs=TensorSpec((3, WIDTH)),
    )
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu", update=update, slots=slots)
    path = pool.architecture(["bad", "dense", "linear"])
    targets = torch.zeros(4, 3, 2)
    about = {"objective": SquaredError(), "micro_batch": 2, "lr": 0.1}
    relay.train_step(path, (torch.ones(4, 3, WIDTH),), targets, **about, step=0)
    relay.drain()
    before = {name: tensor.clone() for name, tensor in relay.server.state("bad/bad").tensors().items()}
    with pytest.raises(NonFiniteError, match=f"{what} of layer 'bad/bad' is not finite at step 1") as caught:  # noqa: PT012 -- eager: with the update
        relay.train_step(path, (torch.zeros(4, 3, WIDTH),), targets, **about, step=1)
        relay.drain()
    assert (caught.value.what, caught.value.layer) == (what, "bad/bad")
    for name, tensor in relay.server.state("bad/bad").tensors().items():
        assert torch.equal(tensor, before[name]) or name == "visits"
    if what == "auxiliary loss":
        with pytest.raises(NonFiniteError, match="auxiliary loss is not finite at step 0"):
            ReferenceTrainer(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu").train_step(
                path, (torch.zeros(4, 3, WIDTH),), targets, **about, step=0
            )


def test_a_layer_that_is_left_out_adds_nothing():
    pool = POOLS["branched"]
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu")
    inputs, targets = random_data(pool, 4, seed=0)
    result = relay.train_step(
        pool.architecture(["dense", "dense", "added", "skip", "linear"]), inputs, targets,
        objective=SquaredError(), micro_batch=2, lr=0.1, step=0,
    )  # fmt: skip
    assert result.auxiliary == 0
    assert "right/added" not in relay.server.visited


def test_evaluation_and_plain_use_collect_nothing():
    pool = POOLS["chain"]
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu")
    path = pool.architecture(PATHS["chain"][0])
    with collect_losses() as losses:
        Added()(torch.ones(2, 3, WIDTH))
        assert len(losses) == 4
    relay.predict(path, random_data(pool, 4, seed=0)[0], micro_batch=2)
    Added()(torch.ones(2, 3, WIDTH))
    assert len(losses) == 4
