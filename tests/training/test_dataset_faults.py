"""Data sets that a process shares, that count their own random numbers, or of which only a part is seen beforehand."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from l2l_nas import (
    AdamW,
    Batches,
    Candidate,
    Data,
    LayerPool,
    ParamServer,
    Position,
    Problem,
    Relay,
    TensorSpec,
    Tokens,
)
from l2l_nas.errors import DataError, L2LError
from l2l_nas.space.shapes import check_shapes

X = torch.rand(300, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(300) % 3


class Begun(Dataset):
    """Is told by `worker_init_fn` what to give."""

    shift = 0.0

    def __len__(self):
        return 60

    def __getitem__(self, row):
        return X[row] + self.shift, int(Y[row])


def shifts(number):
    get_worker_info().dataset.shift = 10.0


def test_a_worker_init_fn_finds_the_data_set():
    data = Data.from_dataset(DataLoader(Begun(), num_workers=1, worker_init_fn=shifts), test_fraction=0.0)
    (inputs, _), *_ = data.train.batches([(torch.arange(4), (0, 0))])
    assert bool((inputs[0] >= 10).all())
    data.close()


def falls(number):
    raise ZeroDivisionError("division by zero")


def test_a_worker_init_fn_that_raises_is_one_line():
    with pytest.raises(DataError, match="worker_init_fn raised ZeroDivisionError: division by zero") as caught:
        Data.from_dataset(DataLoader(Begun(), num_workers=1, worker_init_fn=falls))
    assert "\n" not in str(caught.value)


def pool(outputs=3):
    return LayerPool([Position("head", Candidate("linear", lambda: nn.Linear(3, outputs)))], inputs=TensorSpec((3,)))


class Sorted(IterableDataset):
    """One class after the other."""

    def __len__(self):
        return 1000

    def __iter__(self):
        for row in range(1000):
            yield X[row % 300], row // 500


def test_one_class_of_what_is_seen_whole_is_refused():
    one = Data.from_arrays(X, torch.zeros(300, dtype=torch.int64))
    with pytest.raises(DataError, match="all 180 samples have class 0; there is nothing to tell apart"):
        Problem(pool(), one).check(check_shapes(pool()))


@pytest.mark.parametrize(("count", "shown"), [(None, "None"), ("3", "'3'"), (torch.ones(2), "tensor"), (3j, "3j")])
def test_a_count_that_is_no_number_is_refused(count, shown):
    class Counted(Tokens):
        def count(self, targets):
            return count

    given = LayerPool([Position("head", Candidate("linear", lambda: nn.Linear(3, 5)))], inputs=TensorSpec((4, 3)))
    x, y = torch.rand(40, 4, 3), torch.ones(40, 4, dtype=torch.int64)
    with pytest.raises(L2LError, match=f"the task's count takes a number, got .*{shown}"):
        Problem(given, Data.from_arrays(x, y), task=Counted()).check(check_shapes(given))
    relay = Relay(ParamServer(given, optimizer=AdamW(), seed=0), device="cpu")
    with pytest.raises(L2LError, match=f"the task's count takes a number, got .*{shown}"):
        relay.train_step(given.architecture(["linear"]), x, y, objective=Counted(), micro_batch=40, lr=0.1, step=0)


def test_every_sample_of_a_stream_is_trained_on():
    batches = Batches(Data.from_dataset(Sorted(), Sorted()).train, batch_size=300, seed=0)
    seen = torch.cat([batches.wanted(step)[0] for step in range(6)])
    assert set(seen.tolist()) == set(range(1000))
    assert [int(batches.wanted(step)[0][0]) for step in range(6)] == [0, 300, 600, 100, 400, 700]


class Unsized(IterableDataset):
    def __iter__(self):
        return ((X[row], int(Y[row])) for row in range(60))


def test_parts_without_a_length_get_theirs():
    data = Data.from_dataset(Unsized(), Unsized(), Unsized(), length=(60, 50, 40))
    assert [len(part) for part in data.parts.values()] == [60, 50, 40]
    with pytest.raises(DataError, match=r"length=\(NUMBER, NUMBER, NUMBER\) for its parts"):
        Data.from_dataset(Unsized(), Unsized(), length=60)


GENERATORS = {
    "torch": lambda: torch.Generator(),
    "numpy": lambda: np.random.default_rng(),
    "numpy's old one": lambda: np.random.RandomState(),
    "python": lambda: random.Random(),
}


class Own:
    """A transform with a generator of its own, seeded by nobody."""

    def __init__(self, kind):
        self.state = {"generator": GENERATORS[kind]()}

    def __call__(self, x):
        generator = self.state["generator"]
        if isinstance(generator, torch.Generator):
            return x + torch.rand((), generator=generator)
        return x + float(generator.random())


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_generator_that_a_transform_holds_follows_from_seed_step_and_sample(kind):
    parts = [Data.from_dataset(list(zip(X, Y, strict=True)), transform=Own(kind)).train for _ in range(2)]
    assert parts[0].digest == parts[1].digest
    one, same = (part.batch(torch.arange(5), key=(3, 7))[0][0] for part in parts)
    assert torch.equal(one, same)
    assert not torch.equal(one, parts[0].batch(torch.arange(5), key=(3, 8))[0][0])


class Counts(Dataset):
    """Changes as it is read."""

    count = 0.0

    def __len__(self):
        return 30

    def __getitem__(self, row):
        self.count += 1
        return X[row] + self.count, 0


def test_a_data_set_that_changes_as_it_is_read_is_refused():
    with pytest.raises(DataError, match="Counts gives another sample when it is read again"):
        Data.from_dataset(Counts())


def test_a_loader_that_makes_no_batches_is_taken():
    pairs = list(zip(X, Y.tolist(), strict=True))
    inputs, targets = Data.from_dataset(DataLoader(pairs, batch_size=None)).train.batch(torch.arange(4))
    assert inputs[0].shape == (4, 3)
    assert targets.shape == (4,)
