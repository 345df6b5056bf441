"""The end of a pass: the last samples, which may not fill a mini-batch, and streams whose samples are sorted."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from l2l_nas import (
    AdamW,
    Batches,
    Candidate,
    Classification,
    Data,
    LayerPool,
    ParamServer,
    Position,
    Problem,
    Relay,
    TensorSpec,
    Trainer,
)
from l2l_nas.space.shapes import check_shapes
from l2l_nas.training.schedule import Constant
from tests.training.test_dataset_faults import Sorted

X = torch.randn(61, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(61) % 3
BATCH, MICRO, PASSES = 16, 8, 2


class Stream(IterableDataset):
    def __len__(self):
        return len(X)

    def __iter__(self):
        return zip(X, Y, strict=True)


def pool():
    first = Candidate("tanh", lambda: nn.Sequential(nn.Linear(3, 8), nn.Tanh()))
    return LayerPool(
        [Position("first", first), Position("last", Candidate("c", lambda: nn.Linear(8, 3)))], inputs=TensorSpec((3,))
    )


def plain_of(server):
    """The layers outside of the pool, with the server's weights."""
    layers = []
    for key, module in (("first/tanh", nn.Sequential(nn.Linear(3, 8), nn.Tanh())), ("last/c", nn.Linear(8, 3))):
        module.load_state_dict({name: value.clone() for name, value in server.state(key).parameters().items()})
        layers.append(module)
    return nn.Sequential(*layers).train()


def loader(dataset, drop_last):
    with pytest.warns(UserWarning, match="batch_size=16 without effect"):
        return Data.from_dataset(*(DataLoader(dataset, batch_size=BATCH, drop_last=drop_last) for _ in range(2)))


@pytest.mark.parametrize("options", [{}, {"update": "exact", "stash": "host"}, {"device_budget": "all"}])
@pytest.mark.parametrize("drop_last", [False, True])
def test_two_passes_of_a_loader_s_stream_are_those_of_plain_pytorch(drop_last, options):
    """The last mini-batch has 13 samples, its last micro-batch 5: each weighs one thirteenth."""
    server = ParamServer(pool(), optimizer=AdamW(), seed=0)
    path = server.pool.architecture(["tanh", "c"])
    plain = plain_of(server)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.1, weight_decay=AdamW().weight_decay, fused=True)
    wanted = []
    for own in range(PASSES):
        # with drop_last, the relay begins its second pass where it left the first one
        start = len(X) % BATCH * own if drop_last else 0
        for x, y in DataLoader(list(zip(X[start:], Y[start:], strict=True)), batch_size=BATCH, drop_last=drop_last):
            losses = []
            for inputs, targets in zip(x.split(MICRO), y.split(MICRO), strict=True):
                losses.append(nn.functional.cross_entropy(plain(inputs), targets, reduction="sum") / len(y))
                losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
            wanted.append(float(sum(loss.detach() for loss in losses)))
    relay, losses = Relay(server, device="cpu", **options), []
    batches = Batches(loader(Stream(), drop_last).train, batch_size=BATCH, seed=0)
    Trainer(relay, Classification(), batches, MICRO).fit(
        lambda step: path, start=0, steps=len(wanted), schedule=Constant(0.1, len(wanted)),
        after_step=lambda step, loss: losses.append(loss),
    )  # fmt: skip
    relay.drain()
    assert len(wanted) == (6 if drop_last else 8)
    assert losses == wanted
    trained = plain_of(server).state_dict()
    assert all(torch.equal(trained[name], value) for name, value in plain.state_dict().items())


@pytest.mark.parametrize("drop_last", [False, True])
def test_every_sample_of_a_loader_that_drops_nothing_is_trained_on_once_a_pass(drop_last):
    numbers = TensorDataset(torch.arange(61.0).unsqueeze(1), Y)
    batches = Batches(loader(numbers, drop_last).train, batch_size=BATCH, seed=0)
    steps = 3 if drop_last else 4
    for start in (0, steps, 2 * steps):
        seen = torch.cat([inputs[0].flatten() for inputs, _ in batches.ahead(start, steps)])
        assert len(seen) == (48 if drop_last else 61)
        assert len(set(seen.tolist())) == len(seen)
    data = loader(numbers, drop_last)
    assert (data.digest == Data.from_dataset(numbers, numbers).digest) == drop_last  # another training
    one = batches.at(steps - 1)
    assert len(one[1]) == (16 if drop_last else 13)
    assert torch.equal(one[0][0], list(batches.ahead(0, steps))[-1][0][0])


def test_what_is_no_loader_leaves_its_last_samples_for_other_passes():
    batches = Batches(Data.from_arrays(X, Y, validation_fraction=0.1, test_fraction=0.0).train, batch_size=16, seed=0)
    assert [len(batches.at(step)[1]) for step in range(5)] == [16] * 5


def test_a_stream_that_begins_with_one_class_is_taken_and_said():
    with pytest.warns(UserWarning, match="the first 256 samples of training have class 0 alone; a stream keeps its"):
        Problem(pool(), Data.from_dataset(Sorted(), Stream())).check(check_shapes(pool()))
