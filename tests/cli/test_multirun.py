"""A sweep: a folder for each run, and a summary of them all."""

from __future__ import annotations

import json
import os
import time
from contextlib import closing
from pathlib import Path

import pytest

from l2l_nas.__main__ import main
from l2l_nas.cli.sweep import outcome
from l2l_nas.runs.log import LogFile
from tests.cli.runs import TINY, contents, events, start

WORDS = ("search", "-m", "space.pool=tiny.py:build", *TINY, "search.trials=4", "folder=sweep")


WRONG = """
class Unlucky(nn.Linear):
    def forward(self, x):
        if not x.is_meta:
            raise RuntimeError("out of luck")
        return super().forward(x)

def wrong(fault):
    problem = build()
    if not fault:
        return problem
    stem = Position("stem", Candidate("linear", lambda: Unlucky(2, 8)))
    return Problem(LayerPool([stem, *problem.pool.positions[1:]], inputs=TensorSpec((2,))), problem.data)
"""


@pytest.mark.slow
def test_two_seeds_give_two_run_folders_and_a_summary(pool, tmp_path, capsys):
    assert main([*WORDS, "seed=0,1"]) == 0
    rows = json.loads((tmp_path / "sweep" / "summary.json").read_text())["runs"]
    assert [row["folder"] for row in rows] == ["sweep/0", "sweep/1"]
    for seed, row in enumerate(rows):
        result = json.loads((tmp_path / row["folder"] / "result.json").read_text())
        assert row["accuracy"] == result["best"]["values"]["accuracy"]
        assert row["parameters"] == result["best"]["values"]["parameters"]
        assert f"seed={seed}" in row["overrides"]
        assert f"seed: {seed}\n" in (tmp_path / row["folder"] / "config.yaml").read_text()
    said = capsys.readouterr().out
    table = said.split("2 runs in")[-1]
    assert "seed=0" in table
    assert "seed=1" in table
    assert "summary sweep/summary.json" in table
    assert sorted(os.listdir(tmp_path)) == ["sweep", "tiny.py"]


@pytest.mark.slow
def test_trainings_are_swept_as_searches_are(pool, tmp_path, capsys):
    assert main(["search", *WORDS[2:-1], "folder=run"]) == 0
    words = ["train", "-m", "space.pool=tiny.py:build", "run=run", "train.steps=4", "export=false", "folder=trained"]
    assert main([*words, "seed=0,1", "train.learning_rate=0.01,-1"]) == 2
    said = capsys.readouterr()
    wrong = "the learning rate's peak must be above 0, got -1.0"
    assert said.err.splitlines() == [f"error: trained/{number}: {wrong}" for number in (1, 3)]
    assert "4 runs in trained" in said.out
    rows = json.loads((tmp_path / "trained" / "summary.json").read_text())["runs"]
    for row in (rows[0], rows[2]):
        result = json.loads((tmp_path / row["folder"] / "result.json").read_text())
        assert row["accuracy"] == result["best"]["values"]["accuracy"]
    assert "accuracy" not in rows[1]
    assert rows[1]["error"] == wrong
    before = contents(tmp_path / "trained")
    assert main([*words, "seed=0,1"]) == 2  # the folder is taken
    assert contents(tmp_path / "trained") == before


@pytest.mark.slow
def test_a_mistake_in_one_run_is_written_down_and_the_others_go_on(pool, tmp_path, capsys):
    pool_file = tmp_path / "tiny.py"
    pool_file.write_text(pool_file.read_text() + WRONG)
    assert main([*WORDS, "space.pool=tiny.py:wrong", "space.args.fault=true,false"]) == 2
    said = capsys.readouterr()
    where = "position 'stem': candidate 'linear': its layer raised RuntimeError: out of luck (tiny.py, line "
    assert said.err.startswith(f"error: sweep/0: {where}")
    assert said.err.count("\n") == 1
    assert "run 0 failed: " in said.out
    assert 'raise RuntimeError("out of luck")' in (tmp_path / "sweep" / "0" / "error.txt").read_text()
    assert "accuracy" in json.loads((tmp_path / "sweep" / "summary.json").read_text())["runs"][1]
    # it is run anew when the sweep goes on, and the other one is not
    pool_file.write_text(pool_file.read_text().replace("if not x.is_meta:", "if False:"))
    finished = contents(tmp_path / "sweep" / "1")
    again = ["space.pool=tiny.py:wrong", "space.args.fault=true,false", "skip_done=true"]
    assert main([*WORDS, *again]) == 0
    assert not (tmp_path / "sweep" / "0" / "error.txt").exists()
    assert contents(tmp_path / "sweep" / "1") == finished
    rows = json.loads((tmp_path / "sweep" / "summary.json").read_text())["runs"]
    assert ["accuracy" in row for row in rows] == [True, True]


@pytest.mark.slow
def test_a_sweep_of_refused_runs_leaves_nothing(pool, tmp_path, capsys):
    assert main([*WORDS, "search.trials=0", "seed=0,1"]) == 2
    assert capsys.readouterr().err == "error: search.trials must be at least 1, got 0\n"
    assert main([*WORDS, "train.micro_batch=64,0"]) == 2
    assert capsys.readouterr().err == "error: train.micro_batch must be at least 1, got 0\n"
    assert contents(tmp_path).keys() == {"tiny.py"}
    assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize("content", ["[]", "3", '"best"', '{"mean_values": null}', '{"best": {"values": []}}'])
def test_a_result_that_is_none_is_told_of_in_one_line(content, tmp_path):
    with closing(LogFile(tmp_path / "log.jsonl")) as log:
        log.write("result", content=json.loads(content))
    assert outcome(tmp_path)["error"].startswith("its result cannot be used (")


def stop(conf, *_, **__):
    Path(conf.folder).joinpath("config.yaml").write_text("")
    raise KeyboardInterrupt


def test_a_sweep_that_is_stopped_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "size").mkdir(parents=True)
    (tmp_path / "conf" / "size" / "small.yaml").write_text("# @package _global_\nsearch:\n  steps_per_trial: 1\n")
    monkeypatch.setattr("l2l_nas.cli.search.prepared", stop)
    typed = ["search", "-m", "--config-dir", "conf", "+size=small", "sampler=random,tpe", "folder=u"]
    assert main(typed) == 130
    *_, last = capsys.readouterr().out.splitlines()
    assert last == "stopped; go on with the same command, folder=u and skip_done=true"


@pytest.mark.slow
def test_a_killed_sweep_goes_on_where_it_was(pool, tmp_path):
    words = [*WORDS, "search.trials=30", "seed=0,1,2"]
    process = start(*words, cwd=tmp_path)
    while len(events(tmp_path / "sweep" / "1")) < 5:  # in the middle of the second run
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.kill()
    process.communicate()
    first, second = (contents(tmp_path / "sweep" / "0"), events(tmp_path / "sweep" / "1"))
    assert main([*words, "skip_done=true"]) == 0
    assert contents(tmp_path / "sweep" / "0") == first
    assert events(tmp_path / "sweep" / "1")[: len(second)] == second  # none of its trials was lost
    for number in range(3):
        assert f"seed: {number}\n" in (tmp_path / "sweep" / str(number) / "config.yaml").read_text()
        assert (tmp_path / "sweep" / str(number) / "result.json").exists()
