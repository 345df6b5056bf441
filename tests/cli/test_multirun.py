"""A sweep: a folder for each run, and a summary of them all."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from l2l_nas.__main__ import main
from l2l_nas.cli.sweep import failure_of, run_of_sweep
from l2l_nas.errors import TrialError
from tests.cli.runs import TINY, contents, events

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
    rows = json.loads((tmp_path / "sweep" / "summary.json").read_text())
    assert [row["folder"] for row in rows] == ["sweep/0", "sweep/1"]
    for seed, row in enumerate(rows):
        result = json.loads((tmp_path / row["folder"] / "result.json").read_text())
        assert row["accuracy"] == result["best"]["values"]["accuracy"]
        assert row["parameters"] == result["best"]["values"]["parameters"]
        assert f"seed={seed}" in row["overrides"]
        assert f"seed: {seed}\n" in (tmp_path / row["folder"] / "config.yaml").read_text()
    said = capsys.readouterr().out
    assert "best so far" not in said  # a chart is for one run
    table = said.split("2 runs in")[-1]
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


@pytest.mark.slow
def test_a_refused_run_does_not_stop_the_others_and_gives_exit_code_2(pool, tmp_path, capsys):
    assert main([*WORDS, "train.micro_batch=0,64"]) == 2
    said = capsys.readouterr()
    assert said.err == "error: sweep/0: train.micro_batch must be at least 1, got 0\n"
    rows = json.loads((tmp_path / "sweep" / "summary.json").read_text())
    assert "accuracy" not in rows[0]
    assert "accuracy" in rows[1]
    assert contents(tmp_path / "sweep" / "0").keys() == {"error.txt"}
    # what cannot be composed changes nothing, and the run that failed is begun when it goes on
    before = contents(tmp_path / "sweep")
    assert main([*WORDS, "train.micro_batch=0,x", "resume=sweep"]) == 2
    assert capsys.readouterr().err.startswith("error: train.micro_batch: ")
    assert contents(tmp_path / "sweep") == before
    assert main([*WORDS, "train.micro_batch=32,64", "resume=sweep"]) == 0
    assert not (tmp_path / "sweep" / "0" / "error.txt").exists()


@pytest.mark.slow
def test_trainings_are_swept_as_searches_are(pool, tmp_path, capsys):
    assert main(["search", *WORDS[2:-1], "folder=run"]) == 0
    words = ["train", "-m", "space.pool=tiny.py:build", "run=run", "train.steps=4", "export=false", "folder=trained"]
    assert main([*words, "seed=0,1", "train.learning_rate=0.01,-1"]) == 2
    said = capsys.readouterr()
    wrong = "the learning rate must be above 0, got -1.0"
    assert said.err.splitlines()[-2:] == [f"error: trained/{number}: {wrong}" for number in (1, 3)]
    assert "4 runs in trained" in said.out
    rows = json.loads((tmp_path / "trained" / "summary.json").read_text())
    for row in (rows[0], rows[2]):
        result = json.loads((tmp_path / row["folder"] / "result.json").read_text())
        assert row["accuracy"] == result["best"]["values"]["accuracy"]
    assert "accuracy" not in rows[1]
    before = contents(tmp_path / "trained")
    assert main([*words, "seed=0,1"]) == 2  # the folder is taken
    assert contents(tmp_path / "trained") == before
    assert main([*words, "seed=0,1", "train.learning_rate=0.01,0.02", "resume=trained"]) == 0
    assert all("accuracy" in row for row in json.loads((tmp_path / "trained" / "summary.json").read_text()))


@pytest.mark.slow
def test_seeds_samplers_and_spaces_are_combined(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tiny = [*TINY, "search.trials=1", "search.warmup_steps=1", "search.steps_per_trial=1", "search.finalist_steps=1"]
    swept = ["seed=0,1", "sampler=tpe,nsga2", "space=digits_conv,digits_shared"]
    assert main(["search", "-m", *tiny, "folder=sweep", *swept]) == 0
    rows = json.loads((tmp_path / "sweep" / "summary.json").read_text())
    assert [row["folder"] for row in rows] == [f"sweep/{number}" for number in range(8)]
    assert [tuple(row["overrides"][-3:]) for row in rows] == [
        (f"seed={seed}", f"sampler={sampler}", f"space={space}")
        for seed in (0, 1)
        for sampler in ("tpe", "nsga2")
        for space in ("digits_conv", "digits_shared")
    ]
    for row in rows:
        config = (tmp_path / row["folder"] / "config.yaml").read_text()
        assert f"pool: {row['overrides'][-1].removeprefix('space=')}" in config
        assert f"sampler:\n  name: {row['overrides'][-2].removeprefix('sampler=')}\n" in config
    said = capsys.readouterr().out
    assert "run 3, 4 of 8: seed=0 sampler=nsga2 space=digits_shared" in said
    assert said.count(" is done") == 8


@pytest.mark.slow
def test_a_mistake_in_one_run_is_written_down_and_the_others_go_on(pool, tmp_path, capsys):
    pool_file = tmp_path / "tiny.py"
    pool_file.write_text(pool_file.read_text() + WRONG)
    assert main([*WORDS, "space.pool=tiny.py:wrong", "space.args.fault=true,false"]) == 2
    said = capsys.readouterr()
    where = "position 'stem': candidate 'linear': its layer raised RuntimeError: out of luck (tiny.py, line "
    assert said.err.startswith(f"error: sweep/0: {where}")
    assert said.err.endswith(" (traceback in sweep/0/error.txt)\n")
    assert said.err.count("\n") == 1
    assert 'raise RuntimeError("out of luck")' in (tmp_path / "sweep" / "0" / "error.txt").read_text()
    assert "accuracy" in json.loads((tmp_path / "sweep" / "summary.json").read_text())[1]


@pytest.mark.slow
def test_what_no_combination_can_be_made_of_is_refused(refused, pool, tmp_path):
    assert "add hydra/sweeper=l2l" in refused(*WORDS, "train.learning_rate=interval(0.1,0.2)")
    assert "hydra.sweeper.trials is a setting of sampled sweeps" in refused(*WORDS, "hydra.sweeper.trials=3")
    assert "no hydra/launcher 'jobli'" in refused(*WORDS, "seed=0,1", "hydra/launcher=jobli")
    assert "no hydra/sweeper 'l2'" in refused(*WORDS, "seed=0,1", "hydra/sweeper=l2")
    assert contents(tmp_path).keys() == {"tiny.py"}


@pytest.mark.slow
def test_a_sweep_of_refused_runs_leaves_nothing(pool, tmp_path, capsys):
    assert main([*WORDS, "search.trials=0", "seed=0,1"]) == 2
    assert capsys.readouterr().err == "error: all 2 runs in sweep: search.trials must be at least 1, got 0\n"
    assert main([*WORDS, "resume=missing", "seed=0,1"]) == 2
    assert capsys.readouterr().err == "error: resume=missing: no such folder\n"
    assert main([*WORDS, "seed=0,x"]) == 2
    assert capsys.readouterr().err.startswith("error: seed: ")
    assert contents(tmp_path).keys() == {"tiny.py"}
    assert not (tmp_path / "sweep").exists()


def test_what_stood_in_a_sweep_s_folder_stays_where_nothing_could_begin(pool, tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "multirun.yaml").write_text("keep: me\n")
    wrong = ["hydra/sweeper=l2l", "folder=mine", "train.batch_size=choice(abc,def)"]
    assert main(["search", "-m", "space.pool=tiny.py:build", *TINY, *wrong]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert (tmp_path / "mine" / "multirun.yaml").read_text() == "keep: me\n"


def test_a_password_that_would_be_written_is_refused(pool, refused):
    storage = "search={storage: 'postgresql://u:secret@localhost:1/db'}"
    line = refused("search", "-m", "space.pool=tiny.py:build", "seed=0,1", "folder=s", storage)
    assert "a password would be written" in line
    assert "secret" not in line


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["search", "sampler=null"], "sampler=null: choose one"),
        (["search", "-m", "relay=null", "seed=0,1"], "relay=null: choose one"),
        (["train", "-m", "hydra/sweeper=l2l", "run=x", "seed=0,1"], "leads searches alone"),
        (["search", "folder=${nope}"], "nope"),
    ],
)
def test_words_that_lead_nowhere_are_one_line(tmp_path, refused, words, says):
    assert says in refused(*words)


@pytest.mark.slow
def test_a_sweep_goes_on_with_its_own_data_and_asks_for_what_it_may_not_import(tmp_path, pool, capsys, refused):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "mine.npz", x=rng.random((80, 1, 8, 8), dtype=np.float32), y=np.arange(80) % 4)
    few = ["space=digits_conv", "space.args.channels=4", "space.args.depth=2", "search.trials=2", "search.finalists=0"]
    few += ["search.steps_per_trial=1", "search.finalist_steps=2", "export=false", "train.batch_size=8", "folder=s"]
    assert main(["search", "-m", *few, "train.micro_batch=8", "data=mine.npz", "seed=0,1"]) == 0
    shutil.rmtree(tmp_path / "s" / "1")
    assert main(["search", "-m", "resume=s"]) == 0
    assert "source: mine.npz" in (tmp_path / "s" / "1" / "config.yaml").read_text()
    (tmp_path / "own.py").write_text("import optuna\nS = optuna.samplers.RandomSampler\n")
    words = [word.replace("folder=s", "folder=t") for word in few]
    assert main(["search", "-m", *words, "train.micro_batch=8", "data=mine.npz", "sampler=random,own.py:S"]) == 0
    line = refused("search", "-m", "resume=t")
    assert "has a choice of your own; name it again: sampler=random,own.py:S" in line


@pytest.mark.parametrize(
    ("names", "advice"),
    [
        ((), "go on with: python -m l2l_nas search -m resume=sweep 'search.retire=[*/a]'"),
        # of a sampled one, a run that failed is over, and its settings stay
        (("sweep.log",), "give the same command again in another folder 'search.retire=[*/a]'"),
    ],
)
def test_a_run_that_failed_says_what_its_sweep_would_take(tmp_path, monkeypatch, names, advice):
    monkeypatch.chdir(tmp_path)
    Path("sweep/0").mkdir(parents=True)
    for name in names:
        Path("sweep", name).write_text("")

    def go(console, again):
        raise TrialError("all fail; go on with: resume=FOLDER 'search.retire=[*/a]'")

    about = SimpleNamespace(sweep=SimpleNamespace(dir="sweep", subdir="0"), launcher=SimpleNamespace(_target_=""))
    run_of_sweep("search", about, go)
    assert failure_of(Path("sweep/0")) == f"all fail; {advice}"
