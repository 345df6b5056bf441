"""What a save that did not end leaves: a failure at any of its steps, and processes killed at random moments."""

from __future__ import annotations

import builtins
import errno
import os
import random
import shutil
import time
from pathlib import Path

import pytest

from l2l_nas import files
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.errors import StorageError
from tests.eps.saves import assert_is, assert_tidy, assert_whole, fresh, saved_up_to, write
from tests.nursery import Nursery

KILLS = 30


class Crash(BaseException):
    """As if the process had ended here: nothing catches it."""


class Failing:
    """Counts all that a save asks of the file system, and lets one of these fail: half of a write may be done."""

    def __init__(self, monkeypatch, *, at: int, error: BaseException) -> None:
        self.at, self.error, self.count = at, error, 0
        for owner, name in ((os, "replace"), (os, "fsync"), (Path, "unlink")):
            monkeypatch.setattr(owner, name, self.counted(getattr(owner, name)))
        monkeypatch.setattr(files, "open", self.open, raising=False)

    def tick(self) -> bool:
        self.count += 1
        return self.count == self.at + 1

    def counted(self, real):
        def call(*args, **kwargs):
            if self.tick():
                raise self.error
            return real(*args, **kwargs)

        return call

    def open(self, *args, **how):
        if "rb" in args:  # what is read changes nothing
            return builtins.open(*args, **how)
        if self.tick():
            raise self.error
        file = builtins.open(*args, **how)  # noqa: SIM115
        real = file.write

        class Torn:
            def __enter__(inner):
                return inner

            def __exit__(inner, *_):
                file.close()

            def __getattr__(inner, name):
                return getattr(file, name)

            def write(inner, data):
                if self.tick():
                    real(data[: len(data) // 2])
                    file.flush()
                    raise self.error
                return real(data)

        return Torn()


def operations(monkeypatch, folder: Path) -> int:
    server, checkpoint = saved_up_to(5, folder, keep=3)
    with monkeypatch.context() as patch:
        counter = Failing(patch, at=-1, error=Crash())
        checkpoint.save(write(server, 6), extra={"step": 6})
    return counter.count


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), Crash()], ids=["error", "crash"])
def test_a_failure_at_any_step_of_a_save_leaves_the_saves_before_whole(tmp_path, monkeypatch, error):
    total = operations(monkeypatch, tmp_path / "count")
    assert total > 20
    server, checkpoint = saved_up_to(5, tmp_path / "start", keep=3)
    completed = 0
    for at in range(total):
        folder = tmp_path / str(at)
        shutil.copytree(tmp_path / "start", folder)
        server, checkpoint = fresh(), Checkpoint(folder, keep=3)
        checkpoint.load(server)
        with monkeypatch.context() as patch:
            Failing(patch, at=at, error=error)
            try:
                checkpoint.save(write(server, 6), extra={"step": 6})
                done = True
            except (StorageError, Crash):
                done = False
        newest = Checkpoint(folder).load(fresh())["step"]
        assert newest in ((6,) if done else (5, 6))
        completed += newest == 6
        saves = Checkpoint(folder).saves
        assert set(range(newest - 2, newest + 1)) <= set(saves)
        assert_whole(folder, saves)
        checkpoint.save(write(server, 7), extra={"step": newest + 1})  # the same object goes on
        assert Checkpoint(folder).load(server) == {"step": newest + 1}
        assert_is(server, 7)
        assert Checkpoint(folder).saves == tuple(range(newest - 1, newest + 2))
        assert_tidy(folder)
        shutil.rmtree(folder)
    assert 0 < completed < total


def save_for_ever(folder: str, done: str) -> None:
    """Goes on with the newest save; tells which saves are complete."""
    server, checkpoint = fresh(), Checkpoint(Path(folder), keep=3)
    step = checkpoint.load(server)["step"] if checkpoint.exists() else 0
    with open(done, "a", buffering=1) as told:
        while True:
            step += 1
            checkpoint.save(write(server, step), extra={"step": step})
            told.write(f"{step}\n")


def last_line(path: Path) -> int:
    return int(path.read_text().split()[-1]) if path.exists() and path.read_text() else 0


@pytest.mark.slow
def test_kills_at_random_moments_of_saves_leave_the_last_ones_whole(tmp_path):
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    generator = random.Random(seed)
    folder, done = tmp_path / "weights", tmp_path / "done"
    nursery = Nursery(__name__)
    half_done = 0
    try:
        for _ in range(KILLS):
            before = last_line(done)
            process = nursery.start(save_for_ever, str(folder), str(done))
            while last_line(done) == before:
                time.sleep(0.001)
            time.sleep(generator.random() * 0.03)
            assert nursery.kill(process) == -9
            newest = Checkpoint(folder).load(fresh())["step"]
            assert newest - last_line(done) in (0, 1)
            saves = Checkpoint(folder).saves
            assert set(range(max(1, newest - 2), newest + 1)) <= set(saves)
            assert_whole(folder, saves)
            try:
                assert_tidy(folder)
            except AssertionError:
                half_done += 1
    finally:
        nursery.close()
    server = fresh()
    Checkpoint(folder, keep=3).load(server)
    Checkpoint(folder, keep=3).save(write(server, newest + 1), extra={"step": newest + 1})
    assert_whole(folder, (newest - 1, newest, newest + 1))
    assert_tidy(folder)
    assert half_done > KILLS / 4  # kills did hit saves, not only the time between them
