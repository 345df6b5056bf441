"""Who may begin in a folder: one process alone, where it is still free, and never in a sweep's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from l2l_nas.__main__ import main
from l2l_nas.errors import StorageError
from l2l_nas.runs.fields import changed
from l2l_nas.runs.folder import locked
from l2l_nas.runs.search import SearchRun
from l2l_nas.runs.settings import RetrainConf, SearchConf
from l2l_nas.runs.train import TrainRun
from tests.cli.runs import contents

OWN = "space.pool=tiny.py:build"
NUMBERS = {
    "search": {
        "search.trials": 2,
        "search.trial_weights": "scratch",
        "search.steps_per_trial": 1,
        "search.finalists": 0,
    },
    "train": {"architecture": "original", "train.steps": 2},
}
COMMANDS = pytest.mark.parametrize("command", ["search", "train"])


def prepared(command: str, **settings: object) -> SearchRun | TrainRun:
    """A run in the folder `out` that only waits for its turn."""
    conf, kind = {"search": (SearchConf(), SearchRun), "train": (RetrainConf(), TrainRun)}[command]
    values = {"space.pool": "tiny.py:build", "folder": "out", "export": False, **NUMBERS[command], **settings}
    console = Console(quiet=True)
    conf = replace(changed(conf, values), explicit=frozenset(values))
    return kind(conf, console, resume_command="again", files={})


@COMMANDS
def test_a_run_that_is_refused_leaves_the_folder_to_the_one_at_work(pool, command):
    late = prepared(command)
    Path("out").mkdir()
    with locked(Path("out")):  # which has written nothing yet
        with pytest.raises(StorageError, match="another process is at work"):
            late.go()
        assert Path("out").is_dir()


@COMMANDS
@pytest.mark.parametrize("resume", ["", "out"])
def test_a_folder_that_another_process_took_meanwhile_is_refused(pool, tmp_path, monkeypatch, command, resume):
    first, late = (prepared(command, seed=seed, resume=resume) for seed in (0, 1))
    with monkeypatch.context() as patched:

        def overtaken(_: Path) -> None:
            """Between the first question whether the folder is free, and its lock."""
            patched.undo()
            first.go()
            before.update(contents(tmp_path))

        before: dict[str, str] = {}
        patched.setattr("l2l_nas.runs.run.make_folder", overtaken)
        with pytest.raises(StorageError, match=r"out already holds a run|config.yaml is there already"):
            late.go()
    assert contents(tmp_path) == before


@COMMANDS
@pytest.mark.parametrize("word", ["folder=out", "resume=out"])
def test_states_that_a_killed_run_left_are_in_nobodys_way(pool, command, word):
    left = Path("out/pool/l2l_nas-states-abc")
    left.mkdir(parents=True)
    (left / "in-use").touch()
    words = [f"{name}={value}" for name, value in NUMBERS[command].items()]
    assert main([command, OWN, *words, "export=false", "relay.storage=file", word]) == 0
    assert not Path("out/pool").exists()
    assert json.loads(Path("out/result.json").read_text())


@COMMANDS
def test_a_run_by_itself_does_not_begin_in_a_sweeps_folder(pool, refused, command):
    Path("out/0").mkdir(parents=True)
    Path("out/multirun.yaml").write_text("hydra: {overrides: {hydra: [], task: [seed=0]}}")
    words = [f"{name}={value}" for name, value in NUMBERS[command].items()]
    line = refused(command, OWN, *words, "folder=out")
    assert "out holds a sweep; go on with it by its command and skip_done=true" in line
    assert sorted(path.name for path in Path("out").iterdir()) == ["0", "multirun.yaml"]
