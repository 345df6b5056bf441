"""A run of a sweep is known by its overrides: what goes on in which folder, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from l2l_nas.__main__ import main
from l2l_nas.cli.sweep_runs import folders_of
from l2l_nas.errors import SettingError, StorageError
from l2l_nas.runs.sweep_words import resume_sweep
from tests.cli.runs import TINY, contents


def begun(root: Path, runs: dict[int, list[str]]) -> None:
    """Runs that were begun."""
    for number, words in runs.items():
        (root / str(number) / ".hydra").mkdir(parents=True)
        (root / str(number) / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(words))
        (root / str(number) / "config.yaml").write_text("seed: 0\n")
        (root / str(number) / "study.log").write_text("")


def test_runs_are_found_by_their_overrides_and_new_ones_take_the_next_number(tmp_path):
    fixed = ["search.trials=4", "folder=u"]
    begun(tmp_path, {0: [*fixed, "sampler=tpe"], 1: ["resume=u", "search.trials=6", "+sampler=random"]})
    (tmp_path / "2").mkdir()
    (tmp_path / "2" / "error.txt").write_text("one that was refused\n")
    wanted = [[f"sampler={name}", "search.trials=8"] for name in ("nsga2", "tpe", "'random'", "local")]
    assert folders_of(tmp_path, wanted, ["sampler"]) == [2, 0, 1, 3]
    assert folders_of(tmp_path, wanted[1:2], []) == [0]


def test_numbers_are_compared_as_numbers(tmp_path):
    begun(tmp_path, {0: ["train.learning_rate=0.10"], 1: ["train.learning_rate=1e-2"]})
    wanted = [["train.learning_rate=.01"], ["train.learning_rate=0.1"]]
    assert folders_of(tmp_path, wanted, ["train.learning_rate"]) == [1, 0]


def test_a_number_whose_folder_holds_somebody_s_run_is_left_out(tmp_path):
    begun(tmp_path, {1: ["seed=1"]})
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "notes.txt").write_text("mine")  # is in nobody's way
    assert folders_of(tmp_path, [["seed=0"], ["seed=1"], ["seed=2"]], ["seed"]) == [0, 1, 2]
    (tmp_path / "0" / "study.log").write_text("of another")
    assert folders_of(tmp_path, [["seed=0"], ["seed=1"], ["seed=2"]], ["seed"]) == [2, 1, 3]


def test_runs_over_other_settings_are_refused(tmp_path):
    begun(tmp_path, {0: ["sampler=tpe", "seed=0"], 1: ["sampler=tpe", "seed=1"]})
    with pytest.raises(SettingError, match=r"0 began without 'train\.learning_rate': a sweep goes"):
        folders_of(tmp_path, [["train.learning_rate=0.1", "seed=0"]], ["train.learning_rate"])
    with pytest.raises(SettingError, match="began with 'seed'"):
        folders_of(tmp_path, [["sampler=tpe"]], ["sampler"])


@pytest.mark.parametrize("content", ["{", "a: 1\n", "- 'seed=['\n", None])
def test_a_run_that_nothing_tells_of_is_refused(tmp_path, content):
    begun(tmp_path, {0: ["seed=0"]})
    path = tmp_path / "0" / ".hydra" / "overrides.yaml"
    path.write_text(content) if content else path.unlink()
    with pytest.raises(StorageError, match=str(tmp_path)):
        folders_of(tmp_path, [["seed=0"]], ["seed"])


@pytest.mark.slow
def test_a_sweep_gets_more_values_and_each_result_keeps_its_label(pool, tmp_path, capsys, refused):
    few = ["search.trials=1", "search.warmup_steps=1", "search.steps_per_trial=1", "search.finalist_steps=1"]
    assert main(["search", "-m", f"space.pool={pool}", *TINY, *few, "sampler=tpe,random", "folder=u"]) == 0
    before = {name: contents(tmp_path / "u" / name) for name in "01"}
    capsys.readouterr()
    again = ["search", "-m", f"space.pool={pool}", "resume=u"]
    assert main([*again, "sampler=nsga2,tpe,random"]) == 0
    said = capsys.readouterr().out
    assert "run 2, 1 of 3: sampler=nsga2" in said
    assert "run 0, 2 of 3: sampler=tpe" in said
    assert "holds no settings" not in said
    for number, name in enumerate(("tpe", "random", "nsga2")):
        assert yaml.safe_load((tmp_path / "u" / str(number) / "config.yaml").read_text())["sampler"]["name"] == name
    rows = json.loads((tmp_path / "u" / "summary.json").read_text())
    chosen = [next(word for word in row["overrides"] if word.startswith("sampler=")) for row in rows]
    assert chosen == ["sampler=tpe", "sampler=random", "sampler=nsga2"]
    assert [row["folder"] for row in rows] == ["u/0", "u/1", "u/2"]
    study = {name: before[name]["study.log"] for name in "01"}
    assert {name: contents(tmp_path / "u" / name)["study.log"] for name in "01"} == study
    # what it goes on with last is what it goes on with next, and runs that are not asked for keep their rows
    assert main([*again, "sampler=random"]) == 0
    assert main(again) == 0
    assert [row["folder"] for row in json.loads((tmp_path / "u" / "summary.json").read_text())] == ["u/0", "u/1", "u/2"]
    whole = contents(tmp_path)
    assert "u/0 began without 'seed'" in refused(*again, "seed=0,1")
    assert contents(tmp_path) == whole


def test_the_command_that_goes_on_with_a_sweep_names_its_config_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("size", "sampler"):
        (tmp_path / "conf" / name).mkdir(parents=True)
    (tmp_path / "conf" / "size" / "small.yaml").write_text("# @package _global_\nsearch:\n  steps_per_trial: 1\n")
    (tmp_path / "conf" / "sampler" / "mine.yaml").write_text("name: random\n")
    monkeypatch.setattr("l2l_nas.cli.search.prepared", stop)
    words = ["--config-dir", "conf", "+size=small", "sampler=mine,tpe", "folder=u"]
    assert main(["search", "-m", *words]) == 130
    again = "python -m l2l_nas search -m --config-dir conf +size=small sampler=mine,tpe resume=u"
    assert resume_sweep("search", Path("u")) == again
    assert main(again.split()[3:]) == 130


def test_a_group_of_the_user_s_own_that_a_sweep_began_with_is_asked_for_again(tmp_path, monkeypatch, refused):
    """Runs that begin later would have other settings than those of before."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "size").mkdir(parents=True)
    (tmp_path / "conf" / "size" / "small.yaml").write_text("# @package _global_\nsearch:\n  steps_per_trial: 1\n")
    monkeypatch.setattr("l2l_nas.cli.search.prepared", stop)
    assert main(["search", "-m", "--config-dir", "conf", "+size=small", "seed=0,1", "folder=u"]) == 130
    for words in ((), ("--config-dir", "conf")):
        line = refused("search", "-m", *words, "resume=u")
        assert line.endswith("name it again: --config-dir conf +size=small")


def stop(conf, *_, **__):
    Path(conf.folder).joinpath("config.yaml").write_text("")
    raise KeyboardInterrupt
