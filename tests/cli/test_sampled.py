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


def sweep_of(folder):
    return json.loads((folder / "sweep.json").read_text())


def saved(folder):
    return saved_sweep(folder)


@pytest.mark.slow
def test_a_sampler_leads_and_the_sweep_tells_what_it_found(pool, tmp_path, capsys):
    assert main([*WORDS, "folder=sweep", "hydra.sweeper.trials=4"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    sweep, study = sweep_of(tmp_path / "sweep"), saved(tmp_path / "sweep")
    assert [run["folder"] for run in sweep["runs"]] == [f"sweep/{number}" for number in range(4)]
    for run, trial in zip(sweep["runs"], study.trials, strict=True):
        result = json.loads((tmp_path / run["folder"] / "result.json").read_text())
        assert [run["values"]["accuracy"]] == trial.values == [result["best"]["values"]["accuracy"]]
        config = (tmp_path / run["folder"] / "config.yaml").read_text()
        assert f"warmup_paths: {run['settings']['search.warmup_paths']}\n" in config
        assert f"learning_rate: {run['settings']['train.learning_rate']}\n" in config
    assert study.direction is optuna.study.StudyDirection.MAXIMIZE  # as the runs' own objective has it
    assert sweep["objectives"] == [{"name": "accuracy", "maximize": True}]
    assert sweep["best"]["values"]["accuracy"] == study.best_value
    assert "run 3, 4 of 4, ETA " in said.out
    assert "Best runs: 4 of 4 complete" in said.out


@pytest.mark.slow
def test_a_sweep_goes_on_to_the_total_and_no_run_is_touched_again(pool, refused, tmp_path, capsys):
    assert main([*WORDS, "folder=sweep", "hydra.sweeper.trials=2"]) == 0
    before = contents(tmp_path / "sweep")
    again = "python -m l2l_nas search -m space.pool=tiny.py:build resume=sweep"
    assert f"sweep already holds a sweep; go on with it by: {again};" in refused(*WORDS, "folder=sweep")
    # who leads it is the folder's too: without a word of it, this is a sampled sweep over one setting more
    assert "not seed=choice(0,1); resume it with what it was started with" in refused(
        *[word for word in WORDS if not word.startswith(("hydra", "train", "search.warmup_p"))],
        "resume=sweep",
        "seed=0,1",
    )
    assert "is over train.learning_rate=tag(log,interval(0.001,0.05))" in refused(
        *WORDS, "resume=sweep", "train.learning_rate=tag(log,interval(0.001,0.06))"
    )
    assert "is for accuracy=up, not loss=down" in refused(*WORDS, "resume=sweep", "objectives=[loss]")
    assert "has search.trials=3, not search.trials=4" in refused(*WORDS, "resume=sweep", "search.trials=4")
    with locked(tmp_path / "sweep"):
        assert "another process is at work in this folder" in refused(*WORDS, "resume=sweep")
    assert contents(tmp_path / "sweep") == before
    assert main([*WORDS, "resume=sweep", "hydra.sweeper.trials=4", "relay.threads=1"]) == 0
    after = contents(tmp_path / "sweep")
    runs = {name: digest for name, digest in before.items() if name[0].isdigit()}
    assert runs.items() <= after.items()
    assert [run["run"] for run in sweep_of(tmp_path / "sweep")["runs"]] == [0, 1, 2, 3]
    rates = {run["settings"]["train.learning_rate"] for run in sweep_of(tmp_path / "sweep")["runs"]}
    assert len(rates) == 4
    assert "resumed with 2 finished runs" in capsys.readouterr().out


@pytest.mark.slow
def test_runs_that_fail_are_recorded_and_do_not_end_the_sweep(pool, tmp_path, capsys):
    words = [*WORDS, "folder=sweep", "train.micro_batch=choice(0,64)", "hydra.sweeper.sampler=random"]
    assert main([*words, "hydra.sweeper.trials=4"]) == 2
    said = capsys.readouterr()
    runs = sweep_of(tmp_path / "sweep")["runs"]
    failed = [run["run"] for run in runs if run["settings"]["train.micro_batch"] == "0"]
    assert 0 < len(failed) < 4
    assert [run["run"] for run in runs if run["state"] == "failed"] == failed
    assert said.err.splitlines() == [
        f"error: sweep/{number}: train.micro_batch must be at least 1, got 0" for number in failed
    ]
    assert runs[failed[0]]["reason"] == "train.micro_batch must be at least 1, got 0"
    states = [trial.state.name for trial in saved(tmp_path / "sweep").trials]
    assert [number for number, state in enumerate(states) if state == "FAIL"] == failed
    assert f"{4 - len(failed)} complete, {len(failed)} failed" in said.out
    assert f"runs that failed: {', '.join(map(str, failed))}; sweep.json says why" in said.out


@pytest.mark.slow
def test_two_objectives_give_a_front(pool, tmp_path, capsys):
    words = ["hydra.sweeper.objectives=[accuracy,parameters]", "hydra.sweeper.trials=3", "hydra.sweeper.sampler=nsga2"]
    assert main([*WORDS, "folder=sweep", *words]) == 0
    study = saved(tmp_path / "sweep")
    assert [direction.name for direction in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    front = [run["run"] for run in sweep_of(tmp_path / "sweep")["pareto"]]
    assert front == [trial.number for trial in study.best_trials]
    best = max(trial.values[0] for trial in study.trials)
    assert sweep_of(tmp_path / "sweep")["best"]["values"]["accuracy"] == best
    assert "Pareto front" in capsys.readouterr().out


@pytest.mark.slow
def test_ranges_in_a_config_file_and_a_spent_space(pool, tmp_path, capsys):
    words = [word for word in WORDS if word not in SWEPT]
    assert main([*words, "folder=sweep", "++hydra.sweeper.params={seed: '1,2'}", "hydra.sweeper.sampler=grid"]) == 0
    assert sorted(run["settings"]["seed"] for run in sweep_of(tmp_path / "sweep")["runs"]) == ["1", "2"]
    assert "fewer than the 20 runs asked for" in capsys.readouterr().out


@pytest.mark.slow
def test_bad_input_is_one_line_and_leaves_nothing(refused, pool, tmp_path):
    assert "no setting 'hydra.sweeper.trails'; did you mean 'hydra.sweeper.trials'?" in refused(
        *WORDS, "hydra.sweeper.trails=3"
    )
    assert "no space 'digits_con'; did you mean 'digits_conv'?" in refused(
        *WORDS, "space=choice(digits_con,digits_shared)"
    )
    assert "train.batch_size: " in refused(*WORDS, "train.batch_size=8,x")
    assert "no sampler 'tp'" in refused(*WORDS, "hydra.sweeper.sampler=tp")
    assert "hydra.sweeper.objectives: no objective 'acuracy'" in refused(*WORDS, "hydra.sweeper.objectives=[acuracy]")
    for name in ("jobs", "trials"):
        assert f"hydra.sweeper.{name} must be at least 1" in refused(*WORDS, f"hydra.sweeper.{name}=0")
    assert "space.pool: no file 'tinny.py'" in refused(*WORDS, "space.pool=tinny.py:build")
    assert "resume=nowhere: no such folder" in refused(*WORDS, "resume=nowhere")
    assert contents(tmp_path).keys() == {"tiny.py"}
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("dear")
    for name in ("sweep.json", "1"):
        (tmp_path / "home" / name).mkdir()
        assert f"home/{name} is there already" in refused(*WORDS, "folder=home")
        (tmp_path / "home" / name).rmdir()
    assert "home: holds no sweep (sweep.log)" in refused(*WORDS, "resume=home")
    assert contents(tmp_path / "home").keys() == {"letter"}
    (tmp_path / "home" / "study.log").write_text("")
    assert "home already holds a run, which is no sweep" in refused(*WORDS, "folder=home")


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
    assert "resumed with 1 finished runs" in capsys.readouterr().out
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
    assert [run["state"] for run in sweep_of(tmp_path / "sweep")["runs"]] == ["complete", "complete"]


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
    asked = [json.loads((tmp_path / "sweep" / number / "result.json").read_text())["trials"] for number in ("0", "1")]
    assert all(2 <= counts["complete"] <= 4 for counts in asked)
