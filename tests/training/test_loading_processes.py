"""What the processes that load share with this one: files, what is made at the first sample, the data set itself."""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from l2l_nas import Batches, Data
from l2l_nas.errors import DataError
from l2l_nas.training.samples import SCORING

ROWS = 400
ALL = torch.arange(ROWS)


class Numbers(Dataset):
    """Its sample `row` is the number at that place of a file, found by seek and read."""

    def __init__(self, path):
        self.path, self.file = str(path), None

    def open(self):
        self.file = open(self.path, "rb", buffering=0)  # noqa: SIM115

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        self.file.seek(row * 4)
        os.sched_yield()  # another process that shares the place in the file moves it now
        return torch.tensor([float(np.frombuffer(self.file.read(4), "<i4")[0])]), row % 3


class OpensLate(Numbers):
    """Opens its file at the first sample, as a data set on HDF5 does."""

    def __getitem__(self, row):
        if self.file is None:
            self.open()
        return super().__getitem__(row)


class CannotBeCopied(OpensLate):
    """Holds a lock, too."""

    def __init__(self, path):
        super().__init__(path)
        self.lock = threading.Lock()

    def __getitem__(self, row):
        with self.lock:
            return super().__getitem__(row)


class OpenFromTheStart(Numbers):
    """Opened by whoever made it: in plain PyTorch, all processes share the place in the file."""

    def __init__(self, path):
        super().__init__(path)
        self.open()


class ReadBefore(OpensLate):
    """The user has seen a sample before."""

    def __init__(self, path):
        super().__init__(path)
        self[0]


class OpenForWriting(OpenFromTheStart):
    """Opened for both, as some do who only read."""

    def open(self):
        self.file = open(self.path, "r+b", buffering=0)  # noqa: SIM115


class Buffered(OpenFromTheStart):
    """With a buffer of its own beside the shared place."""

    def open(self):
        self.file = open(self.path, "rb", buffering=64)  # noqa: SIM115


class Descriptor(Numbers):
    """Python sees a number where there is a file, as with libraries in C."""

    def __init__(self, path):
        super().__init__(path)
        self.descriptor = os.open(self.path, os.O_RDONLY)

    def __getitem__(self, row):
        os.lseek(self.descriptor, row * 4, os.SEEK_SET)
        os.sched_yield()
        return torch.tensor([float(np.frombuffer(os.read(self.descriptor, 4), "<i4")[0])]), row % 3


class OpenedByWorker(Numbers):
    """Its file is opened by `worker_init_fn`."""


def opens(number):
    get_worker_info().dataset.open()


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "numbers"
    path.write_bytes(np.arange(ROWS, dtype="<i4").tobytes())
    return path


KINDS = [
    OpensLate, CannotBeCopied, OpenFromTheStart, OpenForWriting, ReadBefore, Buffered, Descriptor, OpenedByWorker
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_every_process_has_a_place_of_its_own_in_a_file(path, kind):
    begin = opens if kind is OpenedByWorker else None
    dataset = kind(path)
    data = Data.from_dataset(
        DataLoader(dataset, num_workers=2, worker_init_fn=begin),
        DataLoader(dataset, num_workers=2, worker_init_fn=begin),
    )
    data.train.preview()
    assert data.digest
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))
    both = [part.batches((some, (0, 1)) for some in order.split(5)) for part in (data.train, data.validation)]
    for some, *found in zip(order.split(5), *both, strict=True):  # both parts are read at once
        for inputs, targets in found:
            assert torch.equal(inputs[0].flatten(), some.float())
            assert torch.equal(targets, some % 3)
    data.close()


def test_a_file_that_cannot_be_opened_anew_is_refused(path, monkeypatch):
    dataset, opened = OpenFromTheStart(path), os.open

    def refuses(name, flags, *rest, **how):
        if str(name).startswith("/proc/self/fd/") and os.readlink(name) == str(path):
            raise PermissionError(13, "Permission denied")
        return opened(name, flags, *rest, **how)

    monkeypatch.setattr(os, "open", refuses)
    with pytest.raises(DataError, match=r"numbers was opened before .* open it at the first sample, or in worker_init"):
        Data.from_dataset(DataLoader(dataset, num_workers=1))
    dataset.file.close()


def test_a_part_that_is_only_looked_at_keeps_no_processes(path):
    before = set(multiprocessing.active_children())
    data = Data.from_dataset(DataLoader(OpensLate(path), num_workers=1))
    assert data.digest
    data.test.preview()
    assert set(multiprocessing.active_children()) == before
    next(data.train.batches([(torch.arange(4), (0, 0))]))
    data.train.preview()
    assert len(set(multiprocessing.active_children()) - before) == 1
    data.close()


class Tells(Dataset):
    """Its samples say which data set a process finds."""

    def __len__(self):
        return 40

    def __getitem__(self, row):
        info = get_worker_info()
        return torch.tensor([0.0 if info is None else float(info.dataset is self)]), row % 2


class InOrder(IterableDataset):
    def __len__(self):
        return 12

    def __iter__(self):
        return ((torch.ones(2), row % 2) for row in range(12))


class TellsInOrder(IterableDataset):
    def __len__(self):
        return 40

    def __iter__(self):
        return ((torch.tensor([float(get_worker_info().dataset is self)]), row % 2) for row in range(40))


def nothing(number):
    pass


@pytest.mark.parametrize("begin", [None, nothing])
@pytest.mark.parametrize("kind", [Tells, TellsInOrder])
def test_a_process_finds_the_user_s_data_set(kind, begin):
    data = Data.from_dataset(*(DataLoader(kind(), num_workers=1, worker_init_fn=begin) for _ in range(2)))
    assert bool((data.train.preview()[0][0] == 1).all())
    for inputs, _ in Batches(data.train, batch_size=8, seed=0).ahead(0, 3):
        assert bool((inputs[0] == 1).all())
    data.close()


class MadeLate(Dataset):
    """Makes its generator at the first sample, as tutorials advise for processes."""

    generator = None

    def __len__(self):
        return 40

    def __getitem__(self, row):
        if self.generator is None:
            self.generator = np.random.default_rng()
        return torch.tensor([self.generator.random()], dtype=torch.float32), row % 2


class DrawnOnce(Dataset):
    """Draws something of the whole data set at the first sample."""

    shift = None

    def __len__(self):
        return 40

    def __getitem__(self, row):
        if self.shift is None:
            self.shift = random.random()
        return torch.tensor([row + self.shift]), row % 2


@pytest.mark.parametrize("kind", [MadeLate, DrawnOnce])
def test_what_is_made_at_the_first_sample_is_the_same_in_every_process(kind):
    plain, again = (Data.from_dataset(kind(), kind()) for _ in range(2))
    loaded = Data.from_dataset(*(DataLoader(kind(), num_workers=2) for _ in range(2)))
    again.train.batch(torch.tensor([7]))  # another sample comes first
    assert plain.train.digest == loaded.train.digest == again.train.digest
    batches = [Batches(data.train, batch_size=4, seed=1) for data in (plain, loaded)]
    for one, other in zip(*(of.ahead(0, 12) for of in batches), strict=True):
        assert torch.equal(one[0][0], other[0][0])
    loaded.close()


OF_THE_MODULE = np.random.default_rng()


class Unseeded(Dataset):
    """Draws from a generator that nobody can seed: it lies in the module."""

    def __len__(self):
        return 400

    def __getitem__(self, row):
        return torch.tensor([row + OF_THE_MODULE.random()]), row % 2


def test_a_generator_that_nobody_can_seed_is_refused():
    with pytest.raises(
        DataError, match=r"Unseeded gives another sample when it is read again.*make the generator an a"
    ):
        Data.from_dataset(Unseeded())


@pytest.mark.long
@pytest.mark.slow
def test_a_loader_s_way_to_start_processes_is_taken(path):
    data = Data.from_dataset(DataLoader(OpensLate(path), num_workers=1, multiprocessing_context="spawn"))
    rows = data.train._read._rows
    assert torch.equal(data.train.batch(torch.arange(5))[0][0].flatten(), rows[:5].float())
    data.close()
    data = DataLoader(CannotBeCopied(path), num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(DataError, match=r"the data set cannot be handed to a process that loads it: .*lock") as caught:
        Data.from_dataset(data)
    assert "\n" not in str(caught.value)


def test_a_process_that_may_start_none_is_told_what_to_write(path, monkeypatch):
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # as in a multiprocessing.Pool
    with pytest.raises(DataError, match=r"cannot be started from a daemonic process.*give num_workers=0") as caught:
        Data.from_dataset(DataLoader(OpensLate(path), num_workers=1))
    assert "\n" not in str(caught.value)


class Shifted(Dataset):
    """Its samples depend on what `worker_init_fn` did."""

    offset = 0.0

    def __len__(self):
        return ROWS

    def __getitem__(self, row):
        return torch.tensor([row + self.offset]), row % 3


def shifts(number):
    get_worker_info().dataset.offset = 1000.0 * number


def test_samples_that_depend_on_the_process_that_reads_them_are_refused():
    loader = DataLoader(Shifted(), num_workers=2, worker_init_fn=shifts)
    with pytest.raises(DataError, match="is another in each process that loads"):
        Data.from_dataset(loader)


class Logged(Numbers):
    """Writes a line for each sample, to a file that was opened before."""

    def __init__(self, path, log):
        super().__init__(path)
        self.open()
        self.log = log.open("wb", buffering=0)

    def __getitem__(self, row):
        self.log.write(b"%9d\n" % row)
        return super().__getitem__(row)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_processes_write_to_a_file_that_was_opened_before_is_not_overwritten(path, tmp_path):
    log = tmp_path / "log"
    data = Data.from_dataset(DataLoader(Logged(path, log), num_workers=2))
    try:
        rows = [torch.arange(first, first + 8) for first in range(0, 64, 8)]
        before = log.stat().st_size
        list(data.train.batches((some, SCORING) for some in rows))
        assert log.stat().st_size - before >= 10 * 64
        assert all(len(line) == 9 for line in log.read_bytes().split(b"\n")[:-1])
    finally:
        data.close()


class Hangs(Shifted):
    def __getitem__(self, row):
        if get_worker_info() is not None and row == 40:
            time.sleep(60)
        return super().__getitem__(row)


@pytest.mark.slow
def test_a_loader_s_timeout_counts():
    data = Data.from_dataset(DataLoader(Hangs(), num_workers=1, timeout=5))
    try:
        with pytest.raises(DataError, match="timed out after 5 seconds"):
            list(data.train.batches([(torch.arange(len(data.train)), SCORING)]))
    finally:
        data.close()


class NeedsItsProcess(IterableDataset):
    """Its rows are made by `worker_init_fn`."""

    def __len__(self):
        return 12

    def __iter__(self):
        return iter(self.rows)


def makes(number):
    get_worker_info().dataset.rows = [(torch.ones(2), row % 2) for row in range(12)]


def test_only_processes_that_load_begin_a_stream():
    loaders = [DataLoader(NeedsItsProcess(), num_workers=1, worker_init_fn=makes) for _ in range(2)]
    data = Data.from_dataset(*loaders)
    assert len(data.train) == 12
    data.close()


@pytest.mark.filterwarnings("ignore:the DataLoader's num_workers=2, of which one reads")
@pytest.mark.parametrize(("asked", "started"), [(0, 0), (2, 1)])
def test_one_process_at_most_reads_a_stream_ahead(asked, started):
    before = set(multiprocessing.active_children())
    data = Data.from_dataset(*(DataLoader(InOrder(), num_workers=asked) for _ in range(2)))
    next(data.train.batches([(torch.arange(4), (0, 0))]))
    assert len(set(multiprocessing.active_children()) - before) == started
    data.close()
