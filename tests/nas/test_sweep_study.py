from __future__ import annotations

import json
import shutil

import pytest
from optuna.trial import TrialState

from l2l_nas.errors import SettingError, StorageError
from l2l_nas.nas.objectives import Goal
from l2l_nas.nas.study.study import quiet_optuna
from l2l_nas.nas.sweep_study import SweepStudy, between, check_sweep, listed
from tests.studies import saved_sweep

RATE = {"rate": between("rate", 1e-4, 1e-1, is_log=True)}
KIND = {"kind": listed(("x", "y", "z"))}
FIXED = {"seed": 0, "space.args": {"depth": 4}}
UP, DOWN = Goal("accuracy", True), Goal("parameters", False)

quiet_optuna()


def open_sweep(folder, **changes):
    values = {
        "distributions": RATE | KIND,
        "goals": [UP],
        "fixed": FIXED,
        "sampler": "random",
        "seed": 0,
        "num_runs": 6,
        "resume": False,
    }
    return SweepStudy(folder / "sweep.log", **{**values, **changes})


def reread(folder):
    return saved_sweep(folder)


def score(record) -> float:
    return -abs(record.settings["rate"] - 0.01)


def finish(study, *, stop_after=10**6):
    """Ask and tell; the records asked for."""
    asked = []
    while len(asked) < stop_after and (record := study.ask()) is not None:
        asked.append(record)
        study.tell(record.number, {"accuracy": score(record), "parameters": 5.0})
    return asked


def test_a_run_is_in_the_file_from_the_moment_it_begins(tmp_path):
    study = open_sweep(tmp_path)
    record = study.ask()
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(tmp_path / "sweep.log", copy)  # what a reader would find after a crash at this moment
    assert [(trial.state, trial.params) for trial in reread(copy).trials] == [
        (TrialState.RUNNING, {"rate": pytest.approx(record.settings["rate"]), "kind": record.settings["kind"]})
    ]
    study.tell(record.number, {"accuracy": 0.5})
    study.tell(study.ask().number, None)
    found = reread(tmp_path).trials
    assert [trial.state for trial in found] == [TrialState.COMPLETE, TrialState.FAIL]
    assert found[0].values == [0.5]
    assert reread(tmp_path).metric_names == ["accuracy"]
    assert reread(tmp_path).best_params["kind"] == record.settings["kind"]


@pytest.mark.parametrize("sampler", ["random", "tpe", "nsga2"])
def test_a_resumed_sweep_goes_on_to_the_total_with_a_sampler_of_another_seed(tmp_path, sampler):
    (tmp_path / "whole").mkdir()
    study = open_sweep(tmp_path / "whole", sampler=sampler, num_runs=5)
    whole = finish(study)
    study = open_sweep(tmp_path, sampler=sampler)
    first = finish(study, stop_after=4)
    assert first == whole[:4]
    again = open_sweep(tmp_path, sampler=sampler, num_runs=7, resume=True)
    assert again.records == tuple(study.records)
    second = finish(again)
    assert [record.number for record in first + second] == list(range(7))
    rates = [record.settings["rate"] for record in first + second]
    assert len(set(rates)) == 7
    assert whole[4].settings["rate"] not in rates  # nor what comes after a replay of the start
    assert again.ask() is None


def test_runs_that_were_left_behind_come_first_under_their_own_numbers(tmp_path):
    study = open_sweep(tmp_path)
    finish(study, stop_after=1)
    left = [study.ask(), study.ask()]
    again = open_sweep(tmp_path, resume=True)
    assert [record.number for record in again.records if record.state == "running"] == [1, 2]
    assert [record.number for record in finish(again)] == [1, 2, 3, 4, 5]
    assert [again.records[number].settings for number in (1, 2)] == [record.settings for record in left]
    assert {record.state for record in again.records} == {"complete"}


def test_the_end_of_the_whole_sweep_is_held_against_no_run(tmp_path):
    study = open_sweep(tmp_path)
    for _ in range(6):
        assert (study.ask().number, study.records[0].state) == (0, "running")
        study = open_sweep(tmp_path, resume=True)


def test_what_a_kill_left_between_two_commits_is_no_run(tmp_path):
    study = open_sweep(tmp_path)
    first = study.ask()
    half, repeat = reread(tmp_path), reread(tmp_path)
    half.ask().suggest_float("rate", 1e-4, 1e-1, log=True)
    repeat.enqueue_trial(dict(first.settings))
    repeat.ask(RATE | KIND)
    again = open_sweep(tmp_path, resume=True)
    assert [record.number for record in finish(again)] == [0, 1, 2, 3, 4, 5]
    assert again.records[0].settings == first.settings


def test_a_repeat_gets_the_values_of_its_run(tmp_path):
    distributions = {"kind": listed(("x", "y"))}
    study = open_sweep(tmp_path, distributions=distributions, sampler="tpe", num_runs=9)
    while (record := study.ask()) is not None:
        study.tell(record.number, {"accuracy": {"x": 0.25, "y": 0.5}[record.settings["kind"]]})
    assert len(study.records) == 2
    assert {(trial.params["kind"], trial.values[0]) for trial in reread(tmp_path).trials} == {("x", 0.25), ("y", 0.5)}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"distributions": RATE}, r"is over kind=choice\(x,y,z\), not nothing"),
        (
            {"distributions": {"rate": between("rate", 1e-4, 0.2, is_log=True)} | KIND},
            r"is over rate=.*0\.1\)\), not rate=.*0\.2",
        ),
        ({"goals": [Goal("loss", False)]}, "is for accuracy=up, not loss=down"),
        ({"goals": [Goal("accuracy", False)]}, "is for accuracy=up, not accuracy=down"),
        ({"goals": [UP, DOWN]}, "is for nothing, not parameters=down"),
        ({"fixed": {"seed": 1, "space.args": {"depth": 4}}}, "has seed=0, not seed=1"),
        ({"fixed": {"seed": 0, "space.args": {}}}, r"has space.args=\{'depth': 4\}, not space.args=\{\}"),
    ],
)
def test_a_sweep_of_something_else_is_refused_and_left_as_it_is(tmp_path, changes, says):
    study = open_sweep(tmp_path)
    finish(study, stop_after=1)
    before = (tmp_path / "sweep.log").read_bytes()
    with pytest.raises(StorageError, match=says):
        open_sweep(tmp_path, resume=True, **changes)
    assert (tmp_path / "sweep.log").read_bytes() == before


def test_choices_in_another_order_and_settings_of_a_newer_version_are_the_same_sweep(tmp_path):
    open_sweep(tmp_path)
    fixed = {"seed": 0, "space.args": {"depth": 4}, "new": 1}
    open_sweep(tmp_path, distributions=KIND | RATE, fixed=fixed, resume=True)
    open_sweep(tmp_path, distributions={**RATE, "kind": listed(("z", "y", "x"))}, resume=True)


@pytest.mark.parametrize("sampler", ["tpe", "grid", "local"])
def test_no_combination_runs_twice_and_a_spent_space_ends_the_sweep(tmp_path, sampler):
    distributions = {**KIND, "size": between("size", 16, 48, is_whole=True, step=16)}
    study = open_sweep(tmp_path, distributions=distributions, sampler=sampler, num_runs=30)
    tried = []
    while (record := study.ask()) is not None:
        tried.append(tuple(record.settings.values()))
        study.tell(record.number, {"accuracy": float(record.settings["size"])})
    assert len(tried) == len(set(tried)) == 9


def test_two_goals_have_a_front(tmp_path):
    study = open_sweep(tmp_path, goals=[UP, DOWN], sampler="nsga2", num_runs=4)
    for accuracy, parameters in ((0.9, 30.0), (0.8, 10.0), (0.7, 20.0), (0.9, 40.0)):
        study.tell(study.ask().number, {"accuracy": accuracy, "parameters": parameters})
    assert study.front == (0, 1)
    assert [direction.name for direction in reread(tmp_path).directions] == ["MAXIMIZE", "MINIMIZE"]


def test_importances_name_the_setting_that_matters(tmp_path):
    study = open_sweep(tmp_path, num_runs=8)
    assert study.importances() == {}
    while (record := study.ask()) is not None:
        study.tell(record.number, {"accuracy": {"x": 0.1, "y": 0.5, "z": 0.9}[record.settings["kind"]]})
    found = study.importances()
    assert list(found) == ["kind", "rate"]
    assert found["kind"] > 0.7
    assert sum(found.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("sampler", "distributions", "says"),
    [
        ("tp", KIND, "no sampler 'tp'; did you mean 'tpe'"),
        ("auto", KIND, "no sampler 'auto'"),
        ("tpe", {}, "nothing to sweep"),
        ("grid", KIND | RATE, r"sampler=grid goes from value to value, and rate=.* lists none"),
        ("local", {"n": between("n", 1, 9, is_whole=True, is_log=True)}, "lists none"),
        ("grid", {"n": between("n", 1, 10**6, is_whole=True)}, "at most 100,000 combinations"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(sampler, distributions, says):
    with pytest.raises(SettingError, match=says):
        check_sweep(sampler, distributions)


def test_a_file_that_is_damaged_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"sweep\.log: there is no study"):
        open_sweep(tmp_path, resume=True)
    (tmp_path / "sweep.log").write_bytes(b"garbage\n" * 3000)
    with pytest.raises(StorageError, match=r"sweep\.log: damaged"):
        open_sweep(tmp_path, resume=True)


@pytest.mark.parametrize("directions", [[], [1], [2, 2]])
def test_a_sweep_that_lost_its_objectives_is_refused(tmp_path, directions):
    open_sweep(tmp_path)
    path = tmp_path / "sweep.log"
    first, *others = path.read_bytes().splitlines(keepends=True)
    event = {**json.loads(first), "directions": directions}
    path.write_bytes(b"".join([json.dumps(event).encode() + b"\n", *others]))
    with pytest.raises(StorageError, match=r"sweep\.log: does not read as a study of this program"):
        open_sweep(tmp_path, resume=True)
