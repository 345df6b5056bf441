"""`-m hydra/sweeper=l2l`: a sampler leads, nothing that one run does ends the sweep, and it goes on after a kill."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from types import SimpleNamespace

import optuna
import pytest

from l2l_nas.__main__ import main
from l2l_nas.runs.folder import locked
from tests.cli.runs import TINY, contents, events, start
from tests.studies import saved_sweep

SWEPT = ("train.learning_rate=tag(log,interval(0.001,0.05))", "search.warmup_paths=choice(uniform,fair)")
WORDS = ("search", "-m", "hydra/sweeper=l2l", "space.pool=tiny.py:build", *TINY, "search.trials=3", *SWEPT)


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def saved(folder):
    return saved_sweep(folder)


@pytest.mark.slow
def test_a_sampler_leads_and_the_sweep_tells_what_it_found(pool, tmp_path, capsys):
    assert main([*WORDS, "folder=sweep", "hydra.sweeper.trials=4"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    runs, study = summary(tmp_path / "sweep"), saved(tmp_path / "sweep")
    assert [run["folder"] for run in runs] == [f"sweep/{number}" for number in range(4)]
    for run, trial in zip(runs, study.trials, strict=True):
        result = json.loads((tmp_path / run["folder"] / "result.json").read_text())
        assert [run["accuracy"]] == trial.values == [result["best"]["values"]["accuracy"]]
        rate, paths = run["overrides"][-2:]
        assert float(rate.removeprefix("train.learning_rate=")) == pytest.approx(trial.params["train.learning_rate"])
        assert paths == f"search.warmup_paths={trial.params['search.warmup_paths']}"
        config = (tmp_path / run["folder"] / "config.yaml").read_text()
        assert f"{paths.removeprefix('search.').replace('=', ': ')}\n" in config
        assert f"{rate.removeprefix('train.').replace('=', ': ')}\n" in config
    assert study.direction is optuna.study.StudyDirection.MAXIMIZE  # as the runs' own objective has it
    assert "0 of 4 runs are finished; study in sweep/sweep.log" in said.out
    assert f"run 3: {rate} {paths}" in said.out
    table = said.out.split("4 runs in sweep")[-1]
    stars = [line.split()[1] for line in table.splitlines() if line.strip().startswith("\N{BLACK STAR}")]
    assert stars == [str(trial.number) for trial in study.best_trials]


@pytest.mark.slow
def test_a_sweep_goes_on_to_the_total_and_no_run_is_touched_again(pool, refused, tmp_path, capsys):
    assert main([*WORDS, "folder=sweep", "hydra.sweeper.trials=2"]) == 0
    before = contents(tmp_path / "sweep")
    for words, says in (
        (["train.learning_rate=tag(log,interval(0.001,0.06))"], "swept settings"),
        (["seed=0,1"], "swept settings"),
        (["objectives=[loss]"], "has objectives.names [accuracy,parameters], not [loss]"),
        (["hydra.sweeper.objectives=[loss]"], "has hydra.sweeper.objectives [], not [loss]"),
        (["search.trials=4"], "has search.trials 3, not 4"),
        (["hydra/sweeper=basic"], "'BasicSweeperConf'"),
    ):
        assert says in refused("search", "-m", "space.pool=tiny.py:build", "resume=sweep", *words)
    with locked(tmp_path / "sweep"):
        assert "another process is at work in this folder" in refused(*WORDS, "resume=sweep")
    assert contents(tmp_path / "sweep") == before
    assert main([*WORDS, "resume=sweep", "hydra.sweeper.trials=4", "relay.threads=1"]) == 0
    after = contents(tmp_path / "sweep")
    runs = {name: digest for name, digest in before.items() if name[0].isdigit()}
    assert runs.items() <= after.items()
    assert [run["folder"] for run in summary(tmp_path / "sweep")] == [f"sweep/{number}" for number in range(4)]
    rates = {trial.params["train.learning_rate"] for trial in saved(tmp_path / "sweep").trials}
    assert len(rates) == 4
    assert "2 of 4 runs are finished" in capsys.readouterr().out


@pytest.mark.slow
def test_runs_that_fail_are_recorded_and_do_not_end_the_sweep(pool, tmp_path, capsys):
    text = "def fated(fate):\n    if fate == 'bad':\n        raise ValueError('not this one')\n    return build()\n"
    (tmp_path / "tiny.py").write_text((tmp_path / "tiny.py").read_text() + text)
    words = [*WORDS, "folder=sweep", "space.pool=tiny.py:fated", "space.args.fate=choice(good,bad)"]
    assert main([*words, "hydra.sweeper.sampler=random", "hydra.sweeper.trials=4"]) == 2
    said = capsys.readouterr()
    trials = saved(tmp_path / "sweep").trials
    failed = [trial.number for trial in trials if trial.params["space.args.fate"] == "bad"]
    assert 0 < len(failed) < 4
    assert [trial.number for trial in trials if trial.state.name == "FAIL"] == failed
    runs = summary(tmp_path / "sweep")
    assert [number for number, run in enumerate(runs) if "accuracy" not in run] == failed
    assert all("raised ValueError: not this one" in runs[number]["error"] for number in failed)
    assert said.err.count("raised ValueError: not this one") == said.err.count("\n") == len(failed)


@pytest.mark.slow
def test_two_objectives_give_a_front(pool, tmp_path, capsys):
    words = ["hydra.sweeper.objectives=[accuracy,parameters]", "hydra.sweeper.trials=3", "hydra.sweeper.sampler=nsga2"]
    assert main([*WORDS, "folder=sweep", *words]) == 0
    study = saved(tmp_path / "sweep")
    assert [direction.name for direction in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    found = [[run["accuracy"], run["parameters"]] for run in summary(tmp_path / "sweep")]
    assert found == [trial.values for trial in study.trials]
    assert capsys.readouterr().out.split("3 runs in")[-1].count("\N{BLACK STAR}") == len(study.best_trials)


@pytest.mark.slow
def test_what_was_tried_before_is_no_run_and_a_spent_space_ends_the_sweep(pool, tmp_path, capsys):
    words = [word for word in WORDS if word not in SWEPT]
    assert main([*words, "folder=sweep", "++hydra.sweeper.params={seed: '1,2'}", "hydra.sweeper.trials=8"]) == 0
    assert sorted(run["overrides"][0] for run in summary(tmp_path / "sweep")) == ["seed=1", "seed=2"]
    trials = saved(tmp_path / "sweep").trials
    first = {trial.params["seed"]: trial for trial in reversed(trials)}
    assert [trial.values for trial in trials] == [first[trial.params["seed"]].values for trial in trials]
    folders = {name for name in os.listdir(tmp_path / "sweep") if name.isdigit()}
    assert folders == {str(trial.number) for trial in first.values()}
    assert "fewer than the 8 runs asked for: the sampler proposes no others" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.slow
def test_bad_input_is_one_line_and_leaves_nothing(refused, pool, tmp_path):
    assert "no setting 'hydra.sweeper.trails'; did you mean 'hydra.sweeper.trials'?" in refused(
        *WORDS, "hydra.sweeper.trails=3"
    )
    assert "no space 'digits_con'; did you mean 'digits_conv'?" in refused(
        *WORDS, "space=choice(digits_con,digits_shared)"
    )
    assert "train.batch_size: " in refused(*WORDS, "train.batch_size=8,x")
    assert "tag 'lgo'" in refused(*WORDS, "seed=tag(lgo,interval(1,2))")
    assert "train.learning_rate: no range from 0.2 to 0.1" in refused(*WORDS, "train.learning_rate=interval(0.2,0.1)")
    assert "train.batch_size: no range from 1.5 to 4: it takes whole numbers" in refused(
        *WORDS, "train.batch_size=interval(1.5,4)"
    )
    assert "nothing to sweep" in refused(*(word for word in WORDS if word not in SWEPT))
    assert "no sampler 'grid' for sweeps" in refused(*WORDS, "hydra.sweeper.sampler=grid")
    assert "no sampler 'tp' for sweeps; did you mean 'tpe'" in refused(*WORDS, "hydra.sweeper.sampler=tp")
    assert "hydra.sweeper.objectives: no objective 'acuracy'" in refused(*WORDS, "hydra.sweeper.objectives=[acuracy]")
    for name in ("jobs", "trials"):
        assert f"hydra.sweeper.{name} must be at least 1" in refused(*WORDS, f"hydra.sweeper.{name}=0")
    assert "space.pool: no file 'tinny.py'" in refused(*WORDS, "space.pool=tinny.py:build")
    assert "resume=nowhere: no such folder" in refused(*WORDS, "resume=nowhere")
    assert contents(tmp_path).keys() == {"tiny.py"}
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("dear")
    for name in ("sweep.log", "1"):
        (tmp_path / "home" / name).mkdir()
        assert f"home/{name} is there already" in refused(*WORDS, "folder=home")
        (tmp_path / "home" / name).rmdir()
    assert "home: holds no sweep (multirun.yaml)" in refused(*WORDS, "resume=home")
    assert contents(tmp_path / "home").keys() == {"letter"}
    (tmp_path / "home" / "study.log").write_text("")
    assert "home already holds a run, which is no sweep" in refused(*WORDS, "folder=home")


@pytest.mark.long
@pytest.mark.slow
def test_a_killed_sweep_goes_on_where_it_was(pool, tmp_path, capsys):
    words = [*WORDS, "search.trials=30", "hydra.sweeper.trials=3"]
    process = start(*words, "folder=sweep", cwd=tmp_path)
    while len(events(tmp_path / "sweep" / "1")) < 5:  # in the middle of the second run
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.kill()
    assert process.communicate()[1] == ""
    assert process.returncode == -signal.SIGKILL
    first, second = (events(tmp_path / "sweep" / name) for name in "01")
    assert [trial.state.name for trial in saved(tmp_path / "sweep").trials] == ["COMPLETE", "RUNNING"]
    settings = saved(tmp_path / "sweep").trials[1].params
    finished = contents(tmp_path / "sweep" / "0")

    assert main([*words, "resume=sweep"]) == 0
    assert "1 of 3 runs are finished" in capsys.readouterr().out
    assert contents(tmp_path / "sweep" / "0") == finished
    assert events(tmp_path / "sweep" / "0") == first
    assert events(tmp_path / "sweep" / "1")[: len(second)] == second  # its trials were not lost either
    trials = saved(tmp_path / "sweep").trials
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 3
    assert trials[1].params == settings
    assert len({trial.params["train.learning_rate"] for trial in trials}) == 3
    assert sorted(name for name in os.listdir(tmp_path / "sweep") if name.isdigit()) == ["0", "1", "2"]


@pytest.mark.slow
def test_a_run_that_outlived_its_sweep_is_waited_for_and_counted(pool, tmp_path, capsys, monkeypatch):
    words = [*WORDS, "hydra.sweeper.trials=2"]
    assert main([*words, "folder=sweep"]) == 0
    # as if the sweep had been killed before the second run was done, of which the last line tells
    path = tmp_path / "sweep" / "sweep.log"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert [trial.state.name for trial in saved(tmp_path / "sweep").trials] == ["COMPLETE", "RUNNING"]
    before = contents(tmp_path / "sweep" / "1")
    begun, free = threading.Event(), threading.Event()

    def outlive():
        with locked(tmp_path / "sweep" / "1"):
            begun.set()
            free.wait(60)

    other = threading.Thread(target=outlive)
    other.start()
    begun.wait(60)
    clock = SimpleNamespace(sleep=lambda seconds: (free.set(), other.join()))
    monkeypatch.setattr("l2l_nas.cli.sweep.time", clock)
    assert main([*words, "resume=sweep"]) == 0
    assert "sweep/1: running in a process of its own; waiting for it" in capsys.readouterr().out
    assert contents(tmp_path / "sweep" / "1") == before
    assert [trial.state.name for trial in saved(tmp_path / "sweep").trials] == ["COMPLETE", "COMPLETE"]


@pytest.mark.long
@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on_and_is_held_against_no_run(pool, tmp_path):
    process = start(*WORDS, "search.trials=300", "folder=sweep", cwd=tmp_path)
    while len(events(tmp_path / "sweep" / "0")) < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert out.splitlines()[-1].endswith(
        "of 300 trials, all saved. Go on with: python -m l2l_nas search -m space.pool=tiny.py:build resume=sweep"
    )
    (trial,) = saved(tmp_path / "sweep").trials
    assert trial.state.name == "RUNNING"


@pytest.mark.slow
def test_numbers_that_are_decided_where_nobody_says_them_are_swept_as_whole_ones(pool, tmp_path):
    few = [word for word in TINY if not word.startswith("search.trials")]
    words = ["search", "-m", "hydra/sweeper=l2l", "hydra.sweeper.trials=2", "space.pool=tiny.py:build", *few]
    assert main([*words, "folder=sweep", "search.trials=interval(2,4)"]) == 0
    asked = [json.loads(path.read_text())["trials"] for path in (tmp_path / "sweep").glob("*/result.json")]
    assert len(asked) == 2
    assert all(2 <= counts["complete"] <= 4 for counts in asked)
