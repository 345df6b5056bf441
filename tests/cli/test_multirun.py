"""A sweep: a folder for each run, and a summary of them all."""

from __future__ import annotations

import json
import os
import shutil

from l2l_nas.__main__ import main
from tests.cli.runs import TINY, contents, events

WORDS = ("search", "-m", "space.pool=tiny.py:build", *TINY, "search.trials=4", "folder=sweep")


def test_two_seeds_give_two_run_folders_and_a_summary(pool, tmp_path, capsys):
    assert main([*WORDS, "seed=0,1"]) == 0
    rows = json.loads((tmp_path / "sweep" / "summary.json").read_text())
    assert [row["folder"] for row in rows] == ["sweep/0", "sweep/1"]
    for seed, row in enumerate(rows):
        result = json.loads((tmp_path / row["folder"] / "result.json").read_text())
        assert row["accuracy"] == result["best"]["values"]["accuracy"]
        assert row["parameters"] == result["best"]["values"]["parameters"]
        assert f"seed={seed}" in row["overrides"]
        assert f"seed: {seed}\n" in (tmp_path / row["folder"] / "config.yaml").read_text()
    table = capsys.readouterr().out.split("2 runs in")[-1]
    assert "seed=0" in table
    assert "seed=1" in table
    assert "summary sweep/summary.json" in table

    # the same command goes on with both, and starts one that is missing
    first = events(tmp_path / "sweep" / "0")
    shutil.rmtree(tmp_path / "sweep" / "1")
    assert main([*WORDS, "seed=0,1", "search.trials=6", "resume=sweep"]) == 0
    assert events(tmp_path / "sweep" / "0")[: len(first)] == first
    for number in "01":
        result = json.loads((tmp_path / "sweep" / number / "result.json").read_text())
        assert result["trials"]["complete"] == 6
    assert sorted(os.listdir(tmp_path)) == ["sweep", "tiny.py"]


def test_a_refused_run_does_not_stop_the_others_and_gives_exit_code_2(pool, tmp_path, capsys):
    assert main([*WORDS, "train.micro_batch=0,64"]) == 2
    said = capsys.readouterr()
    assert said.err == "error: train.micro_batch must be at least 1, got 0\n"
    rows = json.loads((tmp_path / "sweep" / "summary.json").read_text())
    assert "accuracy" not in rows[0]
    assert "accuracy" in rows[1]
    assert not (tmp_path / "sweep" / "0").exists()


def test_a_sweep_of_refused_runs_leaves_nothing(pool, tmp_path, capsys):
    assert main([*WORDS, "search.trials=0", "seed=0,1"]) == 2
    assert capsys.readouterr().err.count("\n") == 2
    assert main([*WORDS, "resume=missing", "seed=0,1"]) == 2
    assert capsys.readouterr().err == "error: resume=missing: no such folder\n"
    assert main([*WORDS, "seed=0,x"]) == 2
    assert capsys.readouterr().err.startswith("error: seed: ")
    assert contents(tmp_path).keys() == {"tiny.py"}
    assert not (tmp_path / "sweep").exists()
