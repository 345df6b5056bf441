"""Files: whole or not at all."""

from __future__ import annotations

import os

import pytest

from l2l_nas.errors import L2LError, StorageError
from l2l_nas.files import (
    check_yaml,
    make_folder,
    open_file,
    parsing,
    publish,
    read_bytes,
    read_json,
    read_yaml,
    remove_leftovers,
    temporary_name,
    write_atomically,
    write_json,
)


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


def test_json_that_is_nested_too_deep_is_damaged(tmp_path):
    for text in ("[" * 100_000, '{"a":' * 100_000, "\udcff"):
        (tmp_path / "x.json").write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(StorageError, match=r"x\.json: damaged, not JSON"):
            read_json(tmp_path / "x.json")


BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)


@pytest.mark.timeout(60)  # an expansion of all its aliases would never end
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BOMB.encode(), "more than 100,000 values"),
        (b"a: &a [*a]\n", "an alias within what it stands for"),
        (b"[" * 100_000, "nested too deep"),
        (b"seed: \xff\xfe", "utf-8"),
        (b"!!python/object/apply:os.system [ls]", "could not determine a constructor"),
        (b"- 1\n", "not the settings of a run"),
        (b"", "not the settings of a run"),
        (b"? [a]\n: 1\n", "unhashable key"),
        (b"a: '" + b"x" * 2_000_000 + b"'", "2,000,005 bytes; at most 1,048,576 are read"),
    ],
)
def test_settings_that_are_none_are_refused_at_once(tmp_path, text, says):
    (tmp_path / "config.yaml").write_bytes(text)
    with pytest.raises(StorageError, match=says):
        read_yaml(tmp_path / "config.yaml")


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x.json")
    with pytest.raises(StorageError, match="a pipe or a device, not a file"):
        read_json(tmp_path / "x.json")


def test_what_aliases_stand_for_is_read_where_it_is_little(tmp_path):
    (tmp_path / "config.yaml").write_text("a: &x {b: 1}\nc: *x\nd:\n  <<: *x\n  e: [*x, *x]\n")
    check_yaml(tmp_path / "config.yaml")
    assert read_yaml(tmp_path / "config.yaml") == {
        "a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1, "e": [{"b": 1}, {"b": 1}]},
    }  # fmt: skip


def test_settings_of_the_user_s_that_have_no_end_are_refused_before_they_are_read(tmp_path):
    for text in (BOMB, "a: &a [*a]\n", "a: &a {<<: *a}\n", "[" * 100_000, "a: '" + "x" * 2_000_000 + "'"):
        (tmp_path / "x.yaml").write_text(text)
        with pytest.raises(StorageError, match=r"x\.yaml: "):
            check_yaml(tmp_path / "x.yaml")


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_only_a_file_is_opened(tmp_path, make):
    make(tmp_path / "x")
    with pytest.raises(StorageError, match=r"x: a "), open_file(tmp_path / "x"):
        pass


def test_a_file_larger_than_what_is_asked_for_is_not_read(tmp_path):
    (tmp_path / "x").write_bytes(bytes(11))
    assert len(read_bytes(tmp_path / "x", most_bytes=11)) == 11
    with pytest.raises(StorageError, match="11 bytes; at most 10 are read"):
        read_bytes(tmp_path / "x", most_bytes=10)


def test_a_name_that_no_file_can_have_is_refused(tmp_path):
    for name in ("a\0b", "\ud800"):
        with pytest.raises(StorageError, match="no file can have this name"):
            read_bytes(tmp_path / name)


class PanicException(BaseException):
    """As libraries in Rust raise it."""


@pytest.mark.parametrize(
    "error", [OSError("x"), MemoryError(), RecursionError(), OverflowError("x"), KeyError("x"), PanicException("x")]
)
def test_whatever_a_parser_raises_names_the_file_in_one_line(error):
    says = r"f\.x: damaged, not a list \(.+\); get it again"
    with pytest.raises(StorageError, match=says) as caught, parsing("f.x", "a list"):
        raise error
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, L2LError])
def test_errors_of_ours_and_an_end_from_outside_pass_a_parser(error):
    with pytest.raises(error, match=r"^$"), parsing("f.x", "a list"):
        raise error


def test_a_temporary_name_never_leads_elsewhere(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    temporary_name(tmp_path / "x").symlink_to(tmp_path / "mine.txt")
    write_atomically(tmp_path / "x", "new")
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert (tmp_path / "x").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.txt", "x"]


@pytest.mark.parametrize("name", ["n" * 255, "ü" * 127, "n" * 240])
def test_a_name_as_long_as_the_file_system_takes_can_be_written(tmp_path, name):
    write_atomically(tmp_path / name, "new")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with pytest.raises(StorageError, match="too long"):
        write_atomically(tmp_path / (name + "n" * 255), "new")


def test_only_what_dead_processes_of_ours_left_is_removed(tmp_path):
    names = [".a.999999999.l2l_nas.tmp", ".b.999999999.tmp", f".c.{os.getppid()}.l2l_nas.tmp", "d.l2l_nas.tmp"]
    for name in names:
        (tmp_path / name).write_text("x")
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])
    remove_leftovers(tmp_path / "nowhere")
