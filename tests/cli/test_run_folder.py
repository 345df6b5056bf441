"""Whose files lie in a run's folder: nothing of a user's is overwritten or deleted, nothing of a killed run stays."""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import threading
from pathlib import Path

import pytest

from l2l_nas import search
from l2l_nas.__main__ import main
from l2l_nas.errors import SettingError, StorageError
from l2l_nas.runs.folder import RUN_NAMES, RunFolder, is_locked, locked, refuse_taken, tidy
from tests.cli.runs import TINY, contents

LEFT = ".result.json.999999999.l2l_nas.tmp"  # no process has this number


def plant(path: Path, kind: str, keep: Path) -> None:
    """Something of the user's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "link":
        path.symlink_to(keep, target_is_directory=True)
    elif kind == "folder":
        path.mkdir()
        (path / "model-0123456789ab.safetensors").write_text("mine")
    else:
        path.write_text("mine")


@pytest.mark.parametrize("name", RUN_NAMES)
@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_any_name_that_runs_write_is_refused(tmp_path, name, kind):
    plant(tmp_path / "out" / name, kind, tmp_path / "nowhere")
    with pytest.raises(StorageError, match="is there already and would be overwritten; choose another folder"):
        refuse_taken(tmp_path / "out")


@pytest.mark.parametrize(
    ("words", "name", "kind"),
    [
        (["search", "search.finalists=0"], "best", "folder"),
        (["search"], "best", "link"),
        (["search", "relay.storage=file"], "pool", "folder"),
        (["search"], "config.yaml", "file"),
        (["search", "-m", "seed=0,1"], "multirun.yaml", "file"),
        (["search", "-m", "seed=0,1"], "1", "folder"),
    ],
)
def test_a_new_run_leaves_what_is_there_alone(pool, tmp_path, capsys, words, name, kind):
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep" / "model.safetensors").write_text("mine")
    plant(tmp_path / "out" / name, kind, tmp_path / "keep")
    before = contents(tmp_path)
    assert main([*words, f"space.pool={pool}", *TINY, "folder=out"]) == 2
    said = capsys.readouterr().err
    assert str(name) in said
    assert said.count("\n") == 1
    assert contents(tmp_path) == before


@pytest.mark.slow
def test_other_commands_leave_what_is_there_alone(finished, tmp_path, refused):
    (tmp_path / "out").mkdir()
    for name in ("model.pt2", "page.html", "result.json"):
        (tmp_path / "out" / name).write_text("mine")
    pool = "space.pool=tiny.py:build"
    before = contents(tmp_path)
    assert "model.pt2 is there already" in refused("export", "run=run", pool, "out=out")
    assert "page.html is there already" in refused("report", "run=run", "out=out/page.html")
    assert "out already holds a run" in refused("train", "run=run", pool, "folder=out")
    assert contents(tmp_path) == before


def test_a_resumed_run_removes_what_it_wrote_and_nothing_else(finished, tmp_path):
    (finished / "export").mkdir()
    mine = [
        finished / "export" / "model.pt2",
        finished / "best" / "model.safetensors",
        finished / "best" / "mine-0123456789ab.safetensors",
        finished / "pool" / "notes.txt",
        finished / "weights" / "layer-0123456789ab.safetensors",
        finished / ".notes.1.tmp",
    ]
    (finished / "pool").mkdir()
    for path in mine:
        path.write_text("mine")
    words = ["search", "space.pool=tiny.py:build", *TINY, "resume=run", "search.trials=14", "relay.storage=file"]
    assert main([*words, "search.finalists=0"]) == 0
    assert all(path.read_text() == "mine" for path in mine)
    assert sorted(path.name for path in (finished / "best").iterdir()) == [mine[2].name, mine[1].name]
    assert [path.name for path in (finished / "pool").iterdir()] == ["notes.txt"]


def test_what_is_behind_a_link_is_neither_read_nor_written(finished, tmp_path, capsys):
    (tmp_path / "elsewhere").mkdir()
    for path in (finished / "best").iterdir():
        path.rename(tmp_path / "elsewhere" / path.name)
    (finished / "best").rmdir()
    (finished / "best").symlink_to(tmp_path / "elsewhere")
    before = contents(tmp_path / "elsewhere")
    words = ["search", "space.pool=tiny.py:build", *TINY, "resume=run", "search.trials=14", "search.finalists=0"]
    for command in (words, ["evaluate", "run=run", "space.pool=tiny.py:build"]):
        assert main(command) == 2
        assert "best: a link to" in capsys.readouterr().err
    assert contents(tmp_path / "elsewhere") == before


def test_what_a_killed_run_left_is_removed_by_the_next(finished):
    states = finished / "pool" / "l2l_nas-states-abc"
    workshop = finished / "export" / ".export.999999999.l2l_nas.tmp"
    for folder in (states, workshop):
        folder.mkdir(parents=True)
    for path in (states / "in-use", states / "000001-layer0-tanh", workshop / "model.pt2", workshop / "x.data"):
        path.write_text("half")
    for folder in (finished, finished / "weights", finished / "best"):
        (folder / LEFT).write_text("half")
    tidy(RunFolder(finished))
    assert not [path for path in finished.rglob("*") if "tmp" in path.name or "pool" in path.parts]
    assert json.loads((finished / "result.json").read_text())  # all else is whole


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mine.db?v=1", "x?timeout=5", "a%20b", "[/x]r", "{x}#y"])
def test_a_folder_may_have_any_name(pool, tmp_path, name, capsys):
    (tmp_path / "mine.db").write_bytes(b"")
    place = f'"{tmp_path / name}"'
    assert main(["search", f"space.pool={pool}", *TINY, "search.trials=2", f"folder={place}"]) == 0
    assert main(["report", f"run={place}"]) == 0
    assert name in capsys.readouterr().out
    assert (tmp_path / "mine.db").read_bytes() == b""
    assert (tmp_path / name / "study.log").stat().st_size > 0
    there = {path.name for path in tmp_path.iterdir()} - {"__pycache__"}
    assert there == {"mine.db", "tiny.py", name.split("/")[0]}


@pytest.mark.timeout(60)  # opening a pipe that nobody writes into waits for ever
@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("study.log", ["search", "space.pool=tiny.py:build", *TINY, "resume=run"]),
        ("data.npz", ["search", "space.pool=tiny.py:pool", *TINY, "folder=new", "data.source=run/data.npz"]),
        ("page.html", ["report", "run=run", "out=run/page.html"]),
        ("config.yaml", ["report", "run=run"]),
    ],
)
def test_a_pipe_where_a_file_is_expected_is_one_line(finished, refused, name, command):
    (finished / name).unlink(missing_ok=True)
    os.mkfifo(finished / name)
    assert f"run/{name}" in refused(*command)


@pytest.mark.timeout(60)
def test_a_pipe_in_place_of_a_picture_is_replaced_by_one(finished, pictures):
    (finished / "pareto.png").unlink()
    os.mkfifo(finished / "pareto.png")
    assert main(["report", "run=run"]) == 0


def test_a_file_system_without_locks_is_told_and_the_run_goes_on(tmp_path, monkeypatch, caplog):
    def flock(*_):
        raise OSError("no locks here")

    monkeypatch.setattr("fcntl.flock", flock)
    with locked(tmp_path):
        pass
    assert [record.name for record in caplog.records] == ["l2l_nas"]
    assert str(tmp_path) in caplog.records[0].message


@pytest.mark.parametrize(
    ("names", "is_begun"),
    [
        ([], False),
        ([".hydra", LEFT], False),
        (["config.yaml", ".hydra", ".study.log.tmp", "notes.txt"], False),
        (["config.yaml", "study.log"], True),
        (["config.yaml", "weights", "notes.txt"], True),
        (["notes.txt"], True),  # no run's folder: nothing is begun there by a name that was mistyped
    ],
)
def test_a_file_of_the_users_does_not_make_a_run_of_what_a_kill_left(tmp_path, names, is_begun):
    """What is not begun is started by `resume=`, which `folder=` refuses."""
    for name in names:
        (tmp_path / name).write_text("")
    assert RunFolder(tmp_path).is_begun is is_begun


def test_who_asks_whether_a_run_is_at_work_is_in_nobody_s_way(tmp_path):
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_SH)  # somebody asks
    assert not is_locked(tmp_path)
    threading.Timer(0.02, os.close, [handle]).start()
    with locked(tmp_path):  # and is done before long
        assert is_locked(tmp_path)
        with pytest.raises(StorageError, match="another process is at work"), locked(tmp_path):
            pass
    assert not is_locked(tmp_path)


@pytest.mark.parametrize("words", [["search"], pytest.param(["search", "-m", "seed=0,1"], marks=pytest.mark.slow)])
def test_commands_that_name_no_folder_have_one_each(pool, tmp_path, capsys, words):
    few = ["search.trials=1", "search.warmup_steps=1", "search.steps_per_trial=1", "search.finalist_steps=1"]
    made = set()
    for _ in range(2):
        assert main([*words, f"space.pool={pool}", *TINY, *few]) == 0
        (new,) = set(os.listdir(tmp_path / "runs")) - made
        assert f"runs/{new}" in capsys.readouterr().out
        assert datetime.datetime.strptime(
            new, "%Y-%m-%d_%H-%M-%S.%f"
        ).microsecond  # no other job begins in the same one
        folders = [tmp_path / "runs" / new / name for name in (["0", "1"] if "-m" in words else [""])]
        assert all((folder / "result.json").exists() for folder in folders)
        made.add(new)
    # one that is refused leaves no folder
    if "-m" in words:
        return  # runs that are refused say why in their folders
    assert main([*words, f"space.pool={pool}", *TINY, "search.trials=0"]) == 2
    assert set(os.listdir(tmp_path / "runs")) == made


def test_a_refused_call_leaves_no_folder(pool, tmp_path):
    with pytest.raises(SettingError):
        search(pool, trials=0)
    assert os.listdir(tmp_path) == ["tiny.py"]
