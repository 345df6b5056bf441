"""Scratch files: short reads, foreign hands, full disks, and what killed processes leave."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest
import torch

from l2l_nas.eps import scratch
from l2l_nas.eps.scratch import Scratch, create, read_into, sequential_seconds, write_from
from l2l_nas.errors import StorageError
from tests.eps.disks import make_rough
from tests.nursery import Nursery


def numbers(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_what_is_written_is_read_though_each_call_does_a_part_only(tmp_path, monkeypatch):
    make_rough(monkeypatch, longest_delay_s=0)
    path = tmp_path / "file"
    create(path, 5000)
    for seed in range(50):
        write_from(path, numbers(3000, seed), 1000)
        found = torch.zeros(3000, dtype=torch.uint8)
        read_into(path, found, 1000)
        assert torch.equal(found, numbers(3000, seed))
    assert path.stat().st_size == 5000


def test_empty_blocks_and_files_are_fine(tmp_path):
    create(tmp_path / "file", 0)
    write_from(tmp_path / "file", numbers(0), 0)
    read_into(tmp_path / "file", numbers(0), 0)


def test_a_file_that_was_cut_short_is_refused_with_its_name(tmp_path):
    path = tmp_path / "file"
    create(path, 1000)
    os.truncate(path, 600)
    with pytest.raises(StorageError, match=r"file: was cut short \(600 bytes, expected 900 or more\); .*checkpoint"):
        read_into(path, numbers(800), 100)


@pytest.mark.parametrize("act", [read_into, write_from])
def test_a_file_that_was_deleted_is_refused_with_its_name(tmp_path, act):
    path = tmp_path / "file"
    create(path, 1000)
    path.unlink()
    with pytest.raises(StorageError, match=r"file: was deleted while in use; .*checkpoint"):
        act(path, numbers(10), 0)
    assert not path.exists()


def test_a_block_that_lies_anywhere_is_written_past_the_page_cache_piece_by_piece(real_disk, monkeypatch):
    monkeypatch.setattr(scratch, "_CHUNK_BYTES", 2 * scratch.PAGE_BYTES)
    path, expected = real_disk / "file", numbers(5 * scratch.PAGE_BYTES + 700)
    create(path, 8 * scratch.PAGE_BYTES)
    write_from(path, expected[3:], scratch.PAGE_BYTES, is_direct=True)
    found = torch.zeros(len(expected) - 3, dtype=torch.uint8)
    read_into(path, found, scratch.PAGE_BYTES)
    assert torch.equal(found, expected[3:])


@pytest.mark.parametrize("function", ["posix_fallocate", "ftruncate"])
def test_a_file_that_cannot_be_made_is_not_left_behind(tmp_path, monkeypatch, function):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, function, full)
    with pytest.raises(StorageError, match="file: the disk is full: free some space"):
        create(tmp_path / "file", 1000)
    assert not (tmp_path / "file").exists()


def test_a_file_system_that_cannot_set_space_aside_is_used_without(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    create(tmp_path / "file", 1000)
    assert (tmp_path / "file").stat().st_size == 1000


def test_a_disk_that_is_really_full_shows_when_the_file_is_made(small_disk):
    create(small_disk / "fits", 700_000)
    with pytest.raises(StorageError, match="large: the disk is full: free some space"):
        create(small_disk / "large", 700_000)
    assert [path.name for path in small_disk.iterdir()] == ["fits"]


def test_a_folder_that_cannot_be_made_or_written_is_refused_with_its_name(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file.*: part of the path is a file"):
        Scratch(tmp_path / "file" / "folder")
    with pytest.raises(StorageError, match=r"file: part of the path is a file"):
        Scratch(tmp_path / "file")

    def denied(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path))

    monkeypatch.setattr(scratch.tempfile, "mkdtemp", denied)
    with pytest.raises(StorageError, match="no permission: choose a folder you may write to"):
        Scratch(tmp_path)


def test_two_of_one_folder_do_not_meet_and_each_deletes_its_own(tmp_path):
    one, other = Scratch(tmp_path), Scratch(tmp_path)
    assert one.folder != other.folder
    paths = [one.new_path("a/b:c"), one.new_path("a/b:c"), other.new_path("x" * 500)]
    assert len(set(paths)) == 3
    for path in paths:
        create(path, 10)
    one.close()
    one.close()
    assert [path for path in paths if path.exists()] == paths[2:]
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_what_the_disk_alone_takes_is_measured_and_leaves_nothing(tmp_path, monkeypatch):
    make_rough(monkeypatch, longest_delay_s=0)
    assert all(seconds > 0 for seconds in sequential_seconds(tmp_path / "alone", 100_000))
    assert list(tmp_path.iterdir()) == []


def hold(folder: str) -> None:
    create(Scratch(Path(folder)).new_path("state"), 1000)
    time.sleep(60)


@pytest.mark.slow
def test_what_a_killed_process_left_is_deleted_by_the_next_but_not_what_a_living_one_uses(tmp_path, monkeypatch):
    nursery = Nursery(__name__)
    try:
        killed, living = (nursery.start(hold, str(tmp_path)) for _ in range(2))
        while len(list(tmp_path.glob("*/*state"))) < 2:
            time.sleep(0.01)
        nursery.kill(killed)
        young = Scratch(tmp_path)
        assert len(list(tmp_path.iterdir())) == 3  # too young: its owner may not have locked it yet
        monkeypatch.setattr(scratch, "_YOUNG_S", 0.0)
        later = Scratch(tmp_path)
        left = set(tmp_path.iterdir())
        assert len(left) == 3
        assert {young.folder, later.folder} < left
        assert len(list(tmp_path.glob("*/*state"))) == 1
        nursery.kill(living)
        young.close()
        later.close()
        Scratch(tmp_path).close()
        assert list(tmp_path.iterdir()) == []
    finally:
        nursery.close()
