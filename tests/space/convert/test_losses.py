"""Losses that a model makes itself, and what its blocks show to hooks of the model."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from l2l_nas import AdamW, Classification, ParamServer, Relay, convert, plain_module, skip
from l2l_nas.errors import SpaceError
from l2l_nas.training.export import build_network

X = torch.linspace(-1, 1, 24).reshape(3, 2, 4)


class Routed(nn.Module):
    """A block whose gate gives numbers for each place, [samples x places, 2]."""

    def __init__(self, hidden=4):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(4, 2), nn.Linear(4, hidden), nn.Linear(hidden, 4)

    def forward(self, x):
        share = self.gate(x.flatten(0, 1)).softmax(-1)[:, :1].unflatten(0, x.shape[:2])
        return x + share * self.down(self.up(x).tanh())


class Model(nn.Module):
    """Installs hooks in its first forward; its second output is made of what they saw."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.head = nn.ModuleList(Routed() for _ in range(2)), nn.Linear(4, 2)
        self.hooked = False

    def forward(self, x):
        if not self.hooked:
            for block in self.blocks:
                block.gate.register_forward_hook(see)
            self.hooked = True
        SEEN.clear()
        x = x * 1.5
        for block in self.blocks:
            x = block(x)
        means = torch.cat([seen.softmax(-1) for seen in SEEN]).mean(0)
        SEEN.clear()
        return {"logits": self.head(x.mean(1)), "balance": (means**2).sum(), "wide": means}


SEEN: list[torch.Tensor] = []


def see(module, args, output):
    SEEN.append(output)


def losses_of(weight):
    """Parameters after three steps of the relay, and of plain PyTorch."""
    model = Model()
    pool = convert(model, X, blocks="blocks", losses={"balance": weight} if weight else None)
    server = ParamServer(pool, optimizer=AdamW(weight_decay=0.01), seed=0)
    relay, plain = Relay(server, device="cpu"), copy.deepcopy(model).train()
    optimizer = torch.optim.AdamW(plain.parameters(), fused=True, lr=0.1, weight_decay=0.01)
    for step in range(3):
        targets = torch.tensor([step % 2, 1, 0])
        outputs = plain(X + step)
        loss = nn.functional.cross_entropy(outputs["logits"], targets)
        (loss + weight * outputs["balance"] if weight else loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        relay.train_step(
            pool.original, (X + step,), targets, objective=Classification(), micro_batch=3, lr=0.1, step=step
        )
    relay.drain()
    restored = pool.restore(build_network(server, pool.original))
    return dict(restored.named_parameters()), dict(plain.named_parameters())


@pytest.mark.parametrize("weight", [0, 0.5])
def test_a_models_own_loss_trains_as_in_plain_pytorch(weight):
    got, expected = losses_of(weight)
    for name, parameter in expected.items():
        assert torch.equal(got[name], parameter), name


def test_the_weight_of_a_loss_matters():
    assert not torch.equal(losses_of(0)[0]["blocks.0.gate.weight"], losses_of(0.5)[0]["blocks.0.gate.weight"])


def test_what_a_block_shows_to_a_hook_is_a_value_that_the_head_reads():
    model = Model()
    pool = convert(model, X, blocks="blocks", losses={"balance": 0.1})
    assert [(p.name, p.writes) for p in pool.positions] == [
        ("stem", ("stem",)),
        ("blocks.0", ("blocks.0", "blocks.0+1")),
        ("blocks.1", ("blocks.1", "blocks.1+1")),
        ("head", ("head",)),
    ]
    assert pool.positions[-1].reads == ("blocks.0+1", "blocks.1", "blocks.1+1")
    assert not model.blocks[0].gate._forward_hooks
    assert not model.hooked


def test_a_candidate_shows_what_the_block_shows():
    pool = convert(Model(), X, blocks="blocks", losses={"balance": 0.1}, candidates={"wide": lambda: Routed(8)})
    path = pool.architecture(["original", "wide", "original", "original"])
    with torch.no_grad():
        assert plain_module(pool, path)(X).shape == (3, 2)
    with pytest.raises(SpaceError, match="has no module 'gate'; the model uses what that gives") as caught:
        convert(Model(), X, blocks="blocks", losses={"balance": 0.1}, candidates={"plain": lambda: nn.Linear(4, 4)})
    assert (caught.value.position, caught.value.candidate) == ("blocks.0", "plain")
    with pytest.raises(SpaceError, match="no block gives what it takes, so none can be skipped"):
        convert(Model(), X, blocks="blocks", losses={"balance": 0.1}, candidates={"skip": skip()})


def test_blocks_that_show_what_nothing_uses_may_be_skipped():
    pool = convert(Model(), X, blocks="blocks", candidates={"skip": skip()})
    assert [len(position.candidates) for position in pool.positions] == [1, 2, 2, 1]


@pytest.mark.parametrize(
    ("losses", "says"),
    [
        ({"balnce": 0.1}, r"no tensor 'balnce'; write losses=\{'logits': \.\.\.\} or losses=\{'balance': \.\.\.\}"),
        ({"balance": "much"}, "losses: the weight of 'balance' is 'much'; write a number, such as 0.01"),
        ({"balance": float("nan")}, "losses: the weight of 'balance' is nan"),
        ({"balance": True}, "losses: the weight of 'balance' is True"),
        ({"wide": 0.1}, r"position 'head'.*: adds a loss of shape \[2\]; a loss is one number"),
    ],
)
def test_losses_that_are_none_are_refused_in_one_line(losses, says):
    with pytest.raises(SpaceError, match=says) as caught:
        convert(Model(), X, blocks="blocks", losses=losses)
    assert "\n" not in str(caught.value)
