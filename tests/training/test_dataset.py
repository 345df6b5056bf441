"""Data sets as PyTorch users have them."""

from __future__ import annotations

import gc
import multiprocessing
import random
import signal

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, WeightedRandomSampler

from l2l_nas import (
    AdamW,
    Batches,
    Candidate,
    Classification,
    Cosine,
    Data,
    LayerPool,
    ParamServer,
    Position,
    Relay,
    TensorSpec,
    Trainer,
)
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.errors import DataError
from l2l_nas.training.dataset import DatasetSamples, SampleSource
from l2l_nas.training.form import SampleForm

X = torch.rand(60, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(60) % 3


class Noisy:
    """Every sample has noise from all three generators."""

    def __init__(self, samples=60):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, row):
        noise = torch.tensor([torch.rand(()), np.random.rand(), random.random()], dtype=torch.float32)
        return X[row] + noise, int(Y[row])


class Stream(IterableDataset):
    def __init__(self, samples=60):
        self.whole = Noisy(samples)

    def __len__(self):
        return len(self.whole)

    def __iter__(self):
        offset = torch.rand(())  # drawn once a pass
        for row in range(len(self.whole)):
            x, y = self.whole[row]
            yield x + offset, y


class InOrder:
    def __iter__(self):
        return zip(X, Y, strict=True)


def part_of(dataset, **told):
    return SampleSource.of(dataset, SampleForm(**told)).samples()


def same(one, other):
    return torch.equal(one[0][0], other[0][0]) and torch.equal(one[1], other[1])


@pytest.mark.parametrize("dataset", [Noisy(), Stream()], ids=["map", "stream"])
def test_a_batch_depends_on_seed_and_step_alone_in_whatever_process(dataset):
    batches = Batches(part_of(dataset), batch_size=7, seed=3)
    wanted = [batches.at(step) for step in range(12)]  # more than an epoch
    assert not same(wanted[0], wanted[8])
    assert not torch.equal(wanted[0][0][0], X[:7])
    assert same(Batches(part_of(dataset), batch_size=7, seed=3).at(9), wanted[9])  # without those before
    assert not same(Batches(part_of(dataset), batch_size=7, seed=4).at(9), wanted[9])
    part = part_of(DataLoader(dataset, num_workers=2 if isinstance(dataset, Noisy) else 1, drop_last=True))
    ahead = Batches(part, batch_size=7, seed=3)
    try:
        for start, steps in ((0, 12), (5, 4), (2, 3)):
            found = list(ahead.ahead(start, steps))
            assert len(found) == steps
            assert all(same(one, other) for one, other in zip(found, wanted[start:], strict=False))
    finally:
        part.close()


def test_a_stream_s_samples_come_in_its_own_order_and_all_of_them_in_two_passes():
    part = DatasetSamples(SampleSource(InOrder(), SampleForm()), length=60)
    batches = Batches(part, batch_size=16, seed=0)
    rows = [batches.at(step)[0][0] for step in range(4)]
    assert torch.equal(torch.cat(rows[:3]), X[:48])
    assert torch.equal(rows[3], X[12:28])


def test_who_asks_for_batches_keeps_its_random_numbers():
    torch.manual_seed(5), random.seed(5), np.random.seed(5)
    wanted = torch.rand(2), random.random(), np.random.rand()
    torch.manual_seed(5), random.seed(5), np.random.seed(5)
    part = part_of(DataLoader(Noisy(), num_workers=1))
    list(Batches(part, batch_size=7, seed=3).ahead(0, 3))
    part.batch(torch.arange(5))
    part.close()
    assert torch.equal(torch.rand(2), wanted[0])
    assert (random.random(), np.random.rand()) == wanted[1:]


def test_a_second_iteration_leaves_the_first_as_it_is():
    part = part_of(DataLoader(Noisy(), num_workers=2))
    batches = Batches(part, batch_size=7, seed=3)
    first = batches.ahead(0, 6)
    found = [next(first)]
    assert same(next(batches.ahead(4, 2)), batches.at(4))
    found += first
    part.close()
    assert all(same(one, batches.at(step)) for step, one in enumerate(found))
    others = set(multiprocessing.active_children())
    del part, batches, first  # processes end with the last reference
    assert len(others - set(multiprocessing.active_children())) == 2


def test_processes_stay_from_one_training_to_the_next_and_end_with_close():
    before = set(multiprocessing.active_children())
    data = Data.from_dataset(*(DataLoader(Noisy(), num_workers=2) for _ in range(2)))
    batches = Batches(data.train, batch_size=7, seed=3)
    list(batches.ahead(0, 3))
    workers = set(multiprocessing.active_children()) - before
    assert len(workers) == 2
    next(batches.ahead(3, 3))  # and left
    list(batches.ahead(6, 3))
    assert set(multiprocessing.active_children()) - before == workers
    data.close()
    gc.collect()
    assert set(multiprocessing.active_children()) == before
    assert not any(worker.is_alive() for worker in workers)
    assert same(next(batches.ahead(1, 1)), batches.at(1))
    data.close()


class Fatal(Noisy):
    """Its fourth sample ends the process, or raises."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def __getitem__(self, row):
        if row == 3:
            self.how()
        return super().__getitem__(row)


def _kill():
    import os

    os.kill(os.getpid(), signal.SIGKILL)


def _raise():
    raise OSError("file 3 is damaged")


# torch leaves its socket to a process that was killed to the garbage collector
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("how", "says"),
    [(_kill, "a process that loads data ended"), (_raise, "the data set raised OSError: file 3 is damaged")],
)
def test_what_goes_wrong_in_a_process_is_one_line(how, says):
    part = part_of(DataLoader(Fatal(how), num_workers=1))
    with pytest.raises(DataError, match=says) as caught:
        list(part.batches((torch.arange(first, first + 2), (0, 0)) for first in range(0, 20, 2)))
    part.close()
    assert "\n" not in str(caught.value)


POOL = LayerPool(
    [Position("a", [Candidate("linear", lambda: torch.nn.Linear(3, 3))])], inputs=TensorSpec((3,))
)  # fmt: skip
PATH = POOL.architecture(["linear"])


def trained(part, *, start=0, steps=10, saves=None):
    relay = Relay(ParamServer(POOL, optimizer=AdamW(), seed=0), device="cpu")
    trainer = Trainer(relay, Classification(), Batches(part, batch_size=8, seed=1), 8)
    if start:
        saves.load(relay.server)
    losses = []
    trainer.fit(
        lambda step: PATH, start=start, steps=steps - start, schedule=Cosine(0.1, 10),
        after_step=lambda step, loss: losses.append(loss),
    )  # fmt: skip
    relay.drain()
    if saves is not None:
        saves.save(relay.server)
    part.close()
    return losses


@pytest.mark.parametrize("kind", [Noisy, Stream])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_training_that_was_cut_off_goes_on_exactly(tmp_path, kind, workers):
    def part():
        return part_of(DataLoader(kind(), num_workers=workers, drop_last=True))

    whole = trained(part())
    assert trained(part_of(kind())) == whole
    saves = Checkpoint(tmp_path)
    first = trained(part(), steps=4, saves=saves)
    rest = trained(part(), start=4, saves=saves)
    assert first + rest == whole


def test_scores_do_not_depend_on_workers():
    values = []
    for workers in (0, 2):
        part = part_of(DataLoader(Noisy(), num_workers=workers))
        relay = Relay(ParamServer(POOL, optimizer=AdamW(), seed=0), device="cpu")
        trainer = Trainer(relay, Classification(), Batches(part, batch_size=8, seed=1), 8)
        values.append([trainer.evaluate(PATH, part), trainer.score(PATH, part).errors])
        part.close()
    assert values[0] == values[1]


def test_one_data_set_is_cut_in_three_and_only_training_samples_are_transformed():
    data = Data.from_dataset(TensorDataset(X, Y), transform=lambda x: x + 10)
    assert [len(part) for part in data.parts.values()] == [36, 12, 12]
    means = [float(part.preview()[0][0].mean()) for part in data.parts.values()]
    assert means[0] > 10 > 1 > max(means[1:])
    seen = torch.cat([part.preview()[0][0] % 10 for part in data.parts.values()])
    assert torch.equal(seen.sort(0).values.round(decimals=3), X.sort(0).values.round(decimals=3))
    assert data.digest == Data.from_dataset(TensorDataset(X, Y), transform=lambda x: x + 10).digest
    assert data.digest != Data.from_dataset(TensorDataset(X, Y)).digest


def test_hugging_face_data_sets_are_read_by_column():
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": ["a"] * 60, "x": X.tolist(), "label": Y.tolist()})
    data = Data.from_dataset(rows, columns=("x", "label"))
    (inputs,), targets = data.validation.preview()
    assert (inputs.dtype, targets.dtype, inputs.shape) == (torch.float32, torch.int64, (12, 3))
    plain = Data.from_dataset(list(zip(X.tolist(), Y.tolist(), strict=True)))
    assert torch.equal(inputs, plain.validation.preview()[0][0])
    data = Data.from_dataset(rows.with_format("torch"), columns=("x", ("label", "label")))
    assert [len(tensor) for tensor in data.test.preview()[1]] == [12, 12]
    with pytest.raises(DataError, match="a sample holds a str; expected a tensor, array, number or image"):
        Data.from_dataset(rows, columns=("text", "label"))


def test_a_collate_function_of_the_loader_makes_the_batches():
    def collate(samples):
        noise = torch.rand(len(samples), 1)
        return {"x": torch.stack([x for x, _ in samples]) + noise, "y": torch.tensor([y for _, y in samples])}

    pairs = list(zip(X, Y.tolist(), strict=True))
    part = part_of(DataLoader(pairs, collate_fn=collate), columns=("x", "y"))
    batches = Batches(part, batch_size=5, seed=0)
    assert same(batches.at(3), batches.at(3))
    assert not torch.equal(batches.at(0)[0][0], batches.at(0)[0][0].round())


class Unsized:
    def __iter__(self):
        return iter(zip(X, Y, strict=True))


def _first_pass(part, size=50):
    return list(Batches(part, batch_size=size, seed=0).ahead(0, 1))


DICTS = [{"image": x, "label": int(y)} for x, y in zip(X, Y, strict=True)]
WRONG = [
    (lambda: Data.from_dataset(DataLoader(DICTS)), r"the data set gives dicts with image, label; say which of them are "
     r"inputs and which are targets: Data.from_dataset\(..., columns=\('image', 'label'\)\)"),
    (lambda: Data.from_dataset(DICTS, columns=("img", "label")), "columns=.*but the data set gives dicts with image"),
    (lambda: Data.from_dataset([(1, 2, 3)] * 9), r"gives 3 values \(a tuple\); expected a pair \(input, target\)"),
    (lambda: Data.from_dataset(X), "gives a tensor of \\[3\\]; expected a pair"),
    (lambda: Data.from_dataset(DataLoader(DICTS, collate_fn=list), transform=abs), "collate_fn makes the batches"),
    (lambda: Data.from_dataset({"train": DICTS}), r"name its parts: Data.from_dataset\(dict\['train'\]\)"),
    (lambda: Data.from_dataset(7), "train: int is no data set; expected arrays, a torch Dataset or DataLoader"),
    (lambda: Data.from_dataset(zip(X, Y, strict=True)), "zip is no data set"),
    (lambda: Data.from_dataset(Stream()), "Stream has an order of its own and cannot be cut in three; write D"),
    (lambda: Data.from_dataset(Unsized(), TensorDataset(X, Y)), r"does not tell how many .* length=NUMBER"),
    (lambda: _first_pass(Data.from_dataset(Unsized(), TensorDataset(X, Y), length=50).train), "a"),
    (lambda: _first_pass(Data.from_dataset(Unsized(), TensorDataset(X, Y), length=70).train, 70), "ended after 60"),
    (lambda: Data.from_dataset(DataLoader(TensorDataset(X, Y), sampler=WeightedRandomSampler([1.0] * 60, 60))),
     "the DataLoader's WeightedRandomSampler chooses samples, which a search does itself"),
    (lambda: Data.from_dataset([(X[0], 0), (X[1, :2], 1)] * 9).train.preview(), r"one is \[2\] float32, another \[3\]"),
    (lambda: Data.from_dataset(TensorDataset(X, Y), transform=lambda x: x[9]), "the transform raised IndexError"),
    (lambda: Data(TensorDataset(X, Y), None), r"train is TensorDataset; write Split\(inputs, targets\)"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "says"), WRONG, ids=[says[:30] for _, says in WRONG])
def test_what_is_no_data_set_is_refused_with_what_to_write(call, says):
    if says == "a":  # fewer than there are is a shorter pass
        assert len(call()) == 1
        return
    with pytest.raises(DataError, match=says) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_loader_s_settings_without_effect_are_named():
    with pytest.warns(UserWarning, match="the DataLoader's batch_size=32 and shuffle without effect"):
        Data.from_dataset(DataLoader(TensorDataset(X, Y), batch_size=32, shuffle=True))
    with pytest.warns(UserWarning, match="num_workers=2, of which one reads"):
        Data.from_dataset(DataLoader(Stream(), num_workers=2), TensorDataset(X, Y))


def test_a_subset_and_some_rows_are_the_samples_they_name():
    part = part_of(Subset(TensorDataset(X, Y), [5, 3, 1]))
    assert torch.equal(part.preview()[0][0], X[[5, 3, 1]])
    assert torch.equal(
        DatasetSamples(SampleSource(TensorDataset(X, Y), SampleForm())).some(torch.tensor([4, 2])).preview()[0][0],
        X[[4, 2]],
    )


def test_a_test_part_without_a_validation_part_is_refused():
    pairs = [(X[index], int(Y[index])) for index in range(8)]
    with pytest.raises(DataError, match="test= wants validation= beside it"):
        Data.from_dataset(pairs, test=pairs)


class Shifted(torch.utils.data.Dataset):
    """Augments its samples where it is told to."""

    def __init__(self, x, y, most=0.5):
        self.x, self.y, self.most = x, y, most

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return self.x[row] + self.most * random.random(), self.y[row]


@pytest.mark.parametrize("wrap", [lambda dataset: dataset, DataLoader])
def test_a_data_set_that_augments_is_not_cut_in_three(wrap):
    with pytest.raises(DataError, match=r"Shifted .* not only training but validation and test would be random, too"):
        Data.from_dataset(wrap(Shifted(X, Y)))


def test_what_the_refusal_of_one_that_augments_names_works():
    def is_fixed(part):
        one, other = (part.batch(torch.arange(8), key=(seed, 0)) for seed in (1, 2))
        return torch.equal(one[0][0], other[0][0])

    def moved(x):
        return x + random.random()

    by_transform = Data.from_dataset(Shifted(X, Y, most=0.0), transform=moved)
    rows = torch.arange(60).split([36, 12, 12])
    by_parts = Data.from_dataset(
        *(Shifted(X[some], Y[some], most) for some, most in zip(rows, (0.5, 0, 0), strict=True))
    )
    for data in (by_transform, by_parts):
        assert [is_fixed(part) for part in data.parts.values()] == [False, True, True]
