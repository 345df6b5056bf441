"""Objectives with parameters: trained as a plain loop trains them, measured with what they learned."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

import l2l_nas
from l2l_nas import (
    AdamW,
    Architecture,
    Candidate,
    Classification,
    Data,
    LayerPool,
    ParamServer,
    Position,
    Problem,
    ReferenceTrainer,
    Relay,
    TensorSpec,
    skip,
)
from l2l_nas.eps.scale import Clip
from l2l_nas.errors import SettingError, SpaceError
from l2l_nas.training.data import Batches
from l2l_nas.training.fit import Trainer
from tests.equivalence.plain import Plain

WIDTH, CLASSES, SEED = 6, 3, 3
HIDDEN = [Candidate("wide", lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())), skip()]


class Proxies(nn.Module, Classification):
    """Cosines to a learned vector of each class, with a learned temperature; outputs are embeddings."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.proxies = nn.Parameter(torch.randn(CLASSES, width, generator=generator))
        self.temperature = nn.Parameter(torch.zeros(()))
        self.dropout = nn.Dropout(0.2)

    def logits(self, outputs):
        cosines = functional.normalize(self.dropout(outputs[0]), dim=-1) @ functional.normalize(self.proxies, dim=-1).T
        return cosines * torch.exp(self.temperature)

    def loss(self, outputs, targets):
        return functional.cross_entropy(self.logits(outputs), targets, reduction="sum")

    def totals(self, outputs, targets):
        logits = self.logits(outputs)
        return {
            "samples": torch.tensor(len(targets)),
            "hits": (logits.argmax(-1) == targets).sum(),
            "loss": functional.cross_entropy(logits, targets, reduction="sum").double(),
        }

    def check(self, targets, outputs):
        pass


def pool(depth=3):
    return LayerPool(
        [
            *(Position(f"layer_{i}", HIDDEN) for i in range(depth)),
            Position("head", Candidate("linear", partial(nn.Linear, WIDTH, WIDTH))),
        ],
        inputs=TensorSpec((WIDTH,)),
    )


def problem(task=None, **more):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, WIDTH, generator=generator)
    y = x[:, :CLASSES].argmax(dim=1)
    return Problem(pool(), Data.from_arrays(x, y), task=task or Proxies(), **more)


ARCHITECTURES = [
    Architecture(("wide", "skip", "wide", "linear", "learned")),
    Architecture(("skip", "skip", "wide", "linear", "learned")),
]


class Learning:
    """The task of a plain loop: the module that the loop itself updates."""

    def __init__(self, plain):
        self.plain, self.layer = plain, plain.server.pool.layers[-1]

    def loss(self, outputs, targets):
        return self.plain.module(self.layer).task.loss(outputs, targets)

    def count(self, targets):
        return len(targets)


def plain_of(**more):
    return Plain(ParamServer(problem().pool, optimizer=AdamW(), seed=SEED), seed=SEED, **more)


def relay_of(given, **settings):
    return Relay(ParamServer(given.pool, optimizer=AdamW(), seed=SEED), device="cpu", seed=SEED, **settings)


def steps(executor, given, objective, count=6):
    batches = Batches(given.data.train, batch_size=10, seed=SEED)
    for step in range(count):
        found = (executor.step if isinstance(executor, Plain) else executor.train_step)(
            ARCHITECTURES[step % 2], *batches.at(step), objective=objective, micro_batch=4, lr=0.01, step=step
        )
        yield getattr(found, "loss", found)


def assert_equal(server, plain):
    for key, module in plain.modules.items():
        for name, value in module.named_parameters():
            assert torch.equal(server.state(key).parameters()[name], value), (key, name)


@pytest.mark.parametrize(
    ("settings", "clip"),
    [
        ({"update": "eager"}, None),
        ({"update": "exact", "slots": 3}, None),
        ({"update": "exact", "clip": Clip(0.5, "global"), "stash": "host"}, (0.5, "global")),
        ({"update": "eager", "keep": 3, "lanes": "threads"}, None),
        ({"update": "eager", "device_budget": "all"}, None),
    ],
)
def test_an_objective_with_parameters_trains_as_a_plain_loop_does(settings, clip):
    given, plain = problem(), plain_of(clip=None if clip is None else Clip(*clip))
    relay = relay_of(given, **settings)
    first = given.task.proxies.clone()
    assert list(steps(relay, given, given.measured_task)) == list(steps(plain, given, Learning(plain)))
    relay.drain()
    assert_equal(relay.server, plain)
    assert relay.server.state("objective/learned").parameters()["task.proxies"].ne(first).any()
    assert torch.equal(given.task.proxies, first)  # the user's own module stays as it is


def test_the_resident_reference_trains_it_too():
    given, plain = problem(), plain_of()
    resident = ReferenceTrainer(ParamServer(given.pool, optimizer=AdamW(), seed=SEED), device="cpu", seed=SEED)
    assert list(steps(resident, given, given.task)) == list(steps(plain, given, Learning(plain)))
    trainer = Trainer(resident, given.task, Batches(given.data.train, batch_size=10, seed=SEED), 4)
    task = plain.module(given.pool.layers[-1]).task.eval().requires_grad_(False)
    assert trainer.evaluate(ARCHITECTURES[0], given.data.validation) == measured(resident, given, task)


def measured(executor, given, task):
    inputs, targets = given.data.validation.batch(torch.arange(len(given.data.validation)))
    outputs = executor.predict(ARCHITECTURES[0], inputs, micro_batch=4)
    return pytest.approx(task.measure(outputs, targets))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_in_low_precision_the_objective_is_in_fp32(precision):
    given = problem()
    relay = relay_of(given, precision=precision, update="exact")
    losses = list(steps(relay, given, given.task, 30))
    assert losses[-1] < losses[0]
    layers = [relay.bank.template(layer, 0).module for layer in given.pool.layers[-2:]]
    assert [{one.dtype for one in layer.parameters()} for layer in layers] == [
        {torch.bfloat16 if precision == "bf16" else torch.float16},
        {torch.float32},
    ]


def test_metrics_are_of_what_the_objective_learned():
    given = problem()
    relay = relay_of(given)
    list(steps(relay, given, given.task, 20))
    trainer = Trainer(relay, given.measured_task, Batches(given.data.train, batch_size=10, seed=SEED), 4)
    found = trainer.evaluate(ARCHITECTURES[0], given.data.validation)
    learned = relay.server.build_module(given.pool.layers[-1], {}).task.eval().requires_grad_(False)
    assert found == measured(relay, given, learned)
    assert found != measured(relay, given, given.task.eval().requires_grad_(False))
    assert trainer.score(ARCHITECTURES[0], given.data.validation).values == found


@pytest.mark.slow
def test_a_search_with_an_objective_that_learns(tmp_path):
    result = l2l_nas.search(
        problem(), folder=tmp_path / "run", trials=3, steps_per_trial=4, finalists=1, finalist_steps=8, warmup_steps=0
    )
    assert result.best.architecture.choices[-1] == "learned"
    assert 0 <= result.test["accuracy"] <= 1


def test_another_task_takes_the_place_of_one_that_learned():
    given, other = problem(), Proxies()
    assert replace(given, constraints=()).pool is given.pool
    assert replace(given, task=other).pool.positions[-1].candidates[0].factory.module.task is other
    assert [p.name for p in replace(given, task=Classification()).pool.positions] == [p.name for p in pool().positions]


def test_a_position_of_its_name_is_refused():
    taken = LayerPool([Position("objective", HIDDEN[:1])], inputs=TensorSpec((WIDTH,)))
    data = problem().data
    with pytest.raises(SpaceError, match="this name is reserved for a task with parameters; rename the position"):
        Problem(taken, data, task=Proxies())


def test_an_objective_that_learns_outside_of_its_pool_is_refused():
    relay = Relay(ParamServer(pool(), optimizer=AdamW(), seed=SEED), device="cpu", seed=SEED)
    with pytest.raises(SettingError, match="objective Proxies has parameters of its own, which nothing would train"):
        relay.train_step(
            Architecture(ARCHITECTURES[0].choices[:-1]),
            *problem().data.train.batch(torch.arange(4)),
            objective=Proxies().to(relay.device.torch_device),
            micro_batch=4,
            lr=0.01,
            step=0,
        )
