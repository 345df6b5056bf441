"""Files: whole or not at all."""

from __future__ import annotations

import os

import pytest

from l2l_nas.errors import StorageError
from l2l_nas.files import make_folder, publish, read_json, write_atomically, write_json


def test_json_comes_back(tmp_path):
    write_json(tmp_path / "a.json", {"a": [1, None]})
    assert read_json(tmp_path / "a.json") == {"a": [1, None]}


def test_a_failing_write_leaves_the_old_file_and_no_rubbish(tmp_path, monkeypatch):
    path = tmp_path / "a"
    write_atomically(path, "old")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="the disk is full"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe"])
def test_what_is_not_json_is_refused_by_name(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(StorageError, match=r"a\.json: damaged, not JSON"):
        read_json(tmp_path / "a.json")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"b\.json: no such file"):
        read_json(tmp_path / "b.json")


def test_a_file_in_place_of_a_folder_is_told(tmp_path):
    (tmp_path / "f").write_text("")
    for path in (tmp_path / "f", tmp_path / "f" / "sub"):
        with pytest.raises(StorageError, match="not a folder"):
            make_folder(path)


def test_a_finished_file_takes_the_place_of_the_old_one_or_leaves_it_whole(tmp_path, monkeypatch):
    (tmp_path / "draft").write_text("new")
    (tmp_path / "a").write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(StorageError, match="the disk is full"):
            publish(tmp_path / "draft", tmp_path / "a")
    assert (tmp_path / "a").read_text() == "old"
    publish(tmp_path / "draft", tmp_path / "a")
    assert (tmp_path / "a").read_text() == "new"
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]
