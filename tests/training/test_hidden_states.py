"""Losses on hidden states give the outputs and gradients of plain PyTorch, and the states stay those of the pool."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from l2l_nas import (
    AdamW,
    Candidate,
    Classification,
    LayerPool,
    ParamServer,
    Position,
    ReferenceTrainer,
    Relay,
    TensorSpec,
    Tokens,
    skip,
)
from l2l_nas.errors import SettingError
from l2l_nas.relay.interface import cut_sizes
from l2l_nas.training.hidden_states import HiddenStateExecutor, hidden_values, with_hidden
from l2l_nas.training.metrics import measured
from l2l_nas.training.teach import TaughtTask, relative_error
from tests.relay.stress import Stress, relay_under

WIDTH, LENGTH, CLASSES = 6, 5, 4


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, width), nn.Linear(width, WIDTH)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def pool_of(depth=4):
    blocks = [Candidate("whole", partial(Block, 8)), Candidate("half", partial(Block, 4)), skip()]
    return LayerPool(
        [
            *(Position(f"block_{i}", blocks) for i in range(depth)),
            Position("head", Candidate("linear", partial(nn.Linear, WIDTH, CLASSES))),
        ],
        inputs=TensorSpec((LENGTH, WIDTH)),
    )


ORIGINAL = ("whole",) * 4 + ("linear",)
PATH = ("half", "whole", "skip", "half", "linear")
TASK = TaughtTask(measured(Tokens()), share=0.7, hidden=0.5)


def batch(step):
    generator = torch.Generator().manual_seed(step)
    targets = torch.randint(CLASSES, (7, LENGTH), generator=generator)
    targets[torch.rand(7, LENGTH, generator=generator) < 0.3] = -100
    return torch.randn(7, LENGTH, WIDTH, generator=generator), targets


def relay_of(server):
    return relay_under(server, device="cpu", slots=2, **relay_of.settings)


relay_of.settings = {}


def taught(server, steps=4, micro_batch=3, make=None):
    """Train on a server, with the original's first weights as the teacher."""
    pool = with_hidden(server.pool, places=(LENGTH,))
    fork = server.fork(())
    teacher = Relay(fork.another(pool, storage=fork.storage), device="cpu")
    executor = HiddenStateExecutor(relay_of(server), pool, relay_of) if make is None else make(server, pool)
    for step in range(steps):
        x, targets = batch(step)
        given = teacher.predict(ORIGINAL, (x,), micro_batch=7)
        executor.train_step(PATH, (x,), (targets, *given), objective=TASK, micro_batch=micro_batch, lr=0.01, step=step)
    return executor


def new_server():
    return ParamServer(pool_of(), optimizer=AdamW(), seed=1)


def weights(server):
    return {
        f"{key}.{name}": tensor.clone()
        for key in ("block_0/half", "block_1/whole", "block_3/half", "head/linear")
        for name, tensor in server.state(key).parameters().items()
    }


def test_hidden_states_lie_at_equal_distances_and_the_last_is_one():
    assert hidden_values(pool_of()) == ("block_0", "block_1", "block_2", "block_3")
    assert hidden_values(pool_of(12)) == tuple(f"block_{i}" for i in (1, 3, 5, 7, 9, 11))
    assert with_hidden(pool_of(12)).wiring.outputs == ("head", *hidden_values(pool_of(12)))
    with pytest.raises(SettingError, match="a hidden state for each target"):
        hidden_values(pool_of(), places=(LENGTH + 1,))


def plain(steps=4, micro_batch=3):
    """The same in plain PyTorch, hidden states of what is skipped being those before it."""
    server = new_server()
    path, original = (
        [server.build_module(layer, {}) for layer in server.pool.path(names)] for names in (PATH, ORIGINAL)
    )
    optimizer = torch.optim.AdamW([p for module in path for p in module.parameters()], lr=0.01, **BETAS)

    def run(modules, x):
        states = []
        for module in modules[:-1]:
            x = module(x)
            states.append(x)
        return modules[-1](x), states

    for step in range(steps):
        x, targets = batch(step)
        count = (targets >= 0).sum()
        sizes = cut_sizes(7, micro_batch)
        for part, wanted in zip(x.split(list(sizes)), targets.split(list(sizes)), strict=True):
            with torch.no_grad():
                theirs, their_states = run(original, part)
            mine, states = run(path, part)
            states = [states[0], states[1], states[1], states[2]]
            counts = wanted >= 0
            divergence = functional.kl_div(
                mine[counts].log_softmax(-1), theirs[counts].log_softmax(-1), reduction="sum", log_target=True
            )
            errors = [
                ((a - b).square().mean(-1) / b.square().mean(-1))[counts].sum()
                for a, b in zip(states, their_states, strict=True)
            ]
            own = functional.cross_entropy(mine.flatten(0, 1), wanted.flatten(), reduction="sum")
            ((0.3 * own + 0.7 * divergence + 0.5 * sum(errors) / 4) / count).backward()
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for module in path for p in module.parameters()])


BETAS = {name: getattr(AdamW(), name) for name in ("betas", "weight_decay", "eps")}


@pytest.mark.parametrize(
    "settings", [{}, {"update": "exact"}, {"device_budget": "all"}, {"update": "exact", "lanes": "threads"}]
)
@pytest.mark.parametrize("micro_batch", [3, 7])
def test_a_relay_learns_from_hidden_states_as_plain_training_does(monkeypatch, settings, micro_batch):
    monkeypatch.setattr(relay_of, "settings", settings)
    server = new_server()
    taught(server, micro_batch=micro_batch)
    found = torch.cat([tensor.flatten() for tensor in weights(server).values()])
    torch.testing.assert_close(found, plain(micro_batch=micro_batch), rtol=1e-4, atol=1e-5)


def test_the_reference_trainer_learns_the_same():
    server, other = new_server(), new_server()
    taught(server)
    reference = taught(
        other, make=lambda base, pool: ReferenceTrainer(base.another(pool, storage=base.storage), device="cpu")
    )
    reference.write_back()
    for name, tensor in weights(server).items():
        torch.testing.assert_close(tensor, weights(other)[name], rtol=0, atol=1e-6)


def test_all_else_is_done_with_the_weights_that_were_learned():
    server, again = new_server(), new_server()
    executor = taught(server)
    x, _ = batch(9)
    (given,) = executor.predict(PATH, (x,), micro_batch=7)  # nothing was drained by hand
    taught(again)
    again.drain()
    assert given.equal(Relay(again, device="cpu").predict(PATH, (x,), micro_batch=7)[0])
    fork = server.fork(())
    executor.use(fork)
    assert executor.server is fork
    before = weights(server)
    teacher = Relay(fork.another(with_hidden(pool := fork.pool), storage=fork.storage), device="cpu")
    targets = (batch(5)[1], *teacher.predict(ORIGINAL, (batch(5)[0],), micro_batch=7))
    executor.train_step(PATH, (batch(5)[0],), targets, objective=TASK, micro_batch=3, lr=0.01, step=5)
    assert fork.pool is pool
    assert all(tensor.equal(before[name]) for name, tensor in weights(server).items())
    assert not all(tensor.equal(before[name]) for name, tensor in weights(fork).items())


def test_updates_that_are_under_way_are_waited_for(monkeypatch):
    server, again = new_server(), new_server()
    taught(again)
    monkeypatch.setattr(relay_of, "settings", {"lanes": "threads", "stress": Stress(slow={"update": 0.1})})
    taught(server)
    assert all(tensor.equal(weights(again)[name]) for name, tensor in weights(server).items())


def test_errors_are_shares_at_targets_that_count():
    wanted = torch.tensor([[[2.0, 0.0], [0.0, 4.0]]])
    states = torch.tensor([[[3.0, 0.0], [0.0, 0.0]]])
    assert float(relative_error(states, wanted, torch.tensor([True, False]))) == pytest.approx(0.25)
    assert float(relative_error(states, wanted, torch.tensor([True, True]))) == pytest.approx(1.25)


def test_without_a_weight_the_task_takes_no_hidden_states():
    task = TaughtTask(measured(Classification()), share=0.5)
    outputs, targets = torch.randn(3, 4), torch.tensor([0, 1, 3])
    assert float(task.loss((outputs,), (targets, copy.copy(outputs)))) == pytest.approx(
        0.5 * float(functional.cross_entropy(outputs, targets, reduction="sum"))
    )
    with pytest.raises(SettingError, match="the weight of hidden states must be at least 0"):
        TaughtTask(measured(Classification()), share=0.5, hidden=-1.0)
