from __future__ import annotations

import contextlib
import shutil
import sqlite3

import optuna
import pytest
from optuna.trial import TrialState

from l2l_nas.errors import SettingError, StorageError
from l2l_nas.nas.objectives import Goal
from l2l_nas.nas.retries import why_given_up
from l2l_nas.nas.study.study import quiet_optuna
from l2l_nas.nas.sweeps.sweep_space import Between, SettingChoice
from l2l_nas.nas.sweeps.sweep_study import SweepStudy, check_sweep

RATE = Between("rate", 1e-4, 1e-1, is_log=True)
KIND = SettingChoice("kind", ("x", "y", "z"))
UP, DOWN = Goal("accuracy", True), Goal("parameters", False)

quiet_optuna()


def open_sweep(folder, **changes):
    values = {
        "settings": [RATE, KIND],
        "goals": [UP],
        "sampler": "random",
        "seed": 0,
        "num_trials": 6,
        "fixed": {"seed": 0, "space.args": {"depth": 4}},
        "resume": False,
    }
    return SweepStudy(folder / "sweep.db", **{**values, **changes})


def reread(folder):
    return optuna.load_study(study_name="sweep", storage=f"sqlite:///{folder / 'sweep.db'}")


def score(record) -> float:
    return -abs(record.settings["rate"] - 0.01)


def finish(study, *, stop_after=10**6):
    """Ask and tell; the records asked for."""
    asked = []
    while len(asked) < stop_after and (record := study.ask()) is not None:
        asked.append(record)
        study.tell(record.number, values={"accuracy": score(record), "parameters": 5.0}, seconds=2.5)
    return asked


def test_a_run_is_in_the_file_from_the_moment_it_begins(tmp_path):
    study = open_sweep(tmp_path)
    record = study.ask()
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(tmp_path / "sweep.db", copy)  # what a reader would find after a crash at this moment
    assert [(trial.state, trial.params) for trial in reread(copy).trials] == [
        (TrialState.RUNNING, {"rate": pytest.approx(record.settings["rate"]), "kind": record.settings["kind"]})
    ]
    study.tell(record.number, values={"accuracy": 0.5}, seconds=3.0)
    study.tell(study.ask().number, reason="out of memory")
    study.close()
    found = reread(tmp_path).trials
    assert [trial.state for trial in found] == [TrialState.COMPLETE, TrialState.FAIL]
    assert found[0].values == [0.5]
    assert found[1].user_attrs["reason"] == "out of memory"
    assert reread(tmp_path).metric_names == ["accuracy"]
    assert reread(tmp_path).best_params["kind"] == record.settings["kind"]


@pytest.mark.parametrize("sampler", ["random", "tpe", "nsga2"])
def test_a_resumed_sweep_goes_on_to_the_total_with_a_sampler_of_another_seed(tmp_path, sampler):
    (tmp_path / "whole").mkdir()
    study = open_sweep(tmp_path / "whole", sampler=sampler, num_trials=5)
    whole = finish(study)
    study.close()
    study = open_sweep(tmp_path, sampler=sampler)
    first = finish(study, stop_after=4)
    study.close()
    assert first == whole[:4]
    again = open_sweep(tmp_path, sampler=sampler, num_trials=7, resume=True)
    assert again.records == tuple(study.records)
    second = finish(again)
    assert [record.number for record in first + second] == list(range(7))
    rates = [record.settings["rate"] for record in first + second]
    assert len(set(rates)) == 7
    assert whole[4].settings["rate"] not in rates  # nor what comes after a replay of the start
    assert again.ask() is None
    again.close()


def test_runs_that_were_left_behind_come_first_under_their_own_numbers(tmp_path):
    study = open_sweep(tmp_path)
    finish(study, stop_after=1)
    left = [study.ask(), study.ask()]
    study.close()
    again = open_sweep(tmp_path, resume=True)
    assert again.left_behind == {1, 2}
    assert [record.number for record in finish(again)] == [1, 2, 3, 4, 5]
    assert [again.records[number].settings for number in (1, 2)] == [record.settings for record in left]
    assert {record.state for record in again.records} == {"complete"}
    again.close()


@pytest.mark.parametrize("is_killed_between", [False, True])
def test_a_run_whose_process_ended_three_times_without_progress_is_given_up(tmp_path, is_killed_between):
    study = open_sweep(tmp_path)
    assert study.ask().number == 0
    for _ in range(2):
        study.lost(0, progress=4)
        assert study.ask().number == 0
        if is_killed_between:  # the count is kept
            study.close()
            study = open_sweep(tmp_path, resume=True)
            assert study.ask().number == 0
    study.lost(0, progress=4)
    given_up = study.ask()
    assert (given_up.number, given_up.state, given_up.reason) == (0, "failed", why_given_up(3))
    assert study.records[0] == given_up
    assert study.ask().number == 1
    study.close()


def test_a_run_that_gets_further_each_time_is_not_given_up(tmp_path):
    study = open_sweep(tmp_path)
    assert study.ask().number == 0
    for progress in (0, 0, 1, 1, 2, 2, 3):
        study.lost(0, progress=progress)
        assert study.ask().state == "running"
    study.close()


def test_the_end_of_the_whole_sweep_is_held_against_no_run(tmp_path):
    study = open_sweep(tmp_path)
    for _ in range(6):
        assert (study.ask().number, study.records[0].state) == (0, "running")
        study.close()
        study = open_sweep(tmp_path, resume=True)
    study.close()


def test_a_run_whose_trial_was_only_announced_is_begun_on_resume(tmp_path):
    study = open_sweep(tmp_path)
    study.close()
    reread(tmp_path).enqueue_trial({"rate": 0.01, "kind": "y"})  # killed between the two commits of `ask`
    again = open_sweep(tmp_path, resume=True)
    record = again.ask()
    assert (record.number, record.settings) == (0, {"rate": 0.01, "kind": "y"})
    again.close()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"settings": [RATE]}, r"is over kind=choice\(x,y,z\), not nothing"),
        ({"settings": [Between("rate", 1e-4, 0.2, is_log=True), KIND]}, r"is over rate=.*0\.1\)\), not rate=.*0\.2"),
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
    study.close()
    before = (tmp_path / "sweep.db").read_bytes()
    with pytest.raises(StorageError, match=says):
        open_sweep(tmp_path, resume=True, **changes)
    assert (tmp_path / "sweep.db").read_bytes() == before


def test_choices_in_another_order_and_settings_of_a_newer_version_are_the_same_sweep(tmp_path):
    open_sweep(tmp_path).close()
    fixed = {"seed": 0, "space.args": {"depth": 4}, "new": 1}
    open_sweep(tmp_path, settings=[KIND, RATE], fixed=fixed, resume=True).close()
    open_sweep(tmp_path, settings=[RATE, SettingChoice("kind", ("z", "y", "x"))], resume=True).close()


@pytest.mark.parametrize("sampler", ["tpe", "grid", "local"])
def test_no_combination_runs_twice_and_a_spent_space_ends_the_sweep(tmp_path, sampler):
    settings = [KIND, Between("size", 16, 48, is_whole=True, step=16)]
    study = open_sweep(tmp_path, settings=settings, sampler=sampler, num_trials=30)
    tried = []
    while (record := study.ask()) is not None:
        tried.append(tuple(record.settings.values()))
        study.tell(record.number, values={"accuracy": float(record.settings["size"])})
    assert len(tried) == len(set(tried)) == 9
    study.close()


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_a_sampler_learns_from_runs_that_fail(tmp_path, sampler):
    def spend(num_trials, *, resume):
        """How many of the runs fail: always those of one kind of three."""
        study = open_sweep(tmp_path, sampler=sampler, seed=1, num_trials=num_trials, resume=resume)
        num_failed = 0
        while (record := study.ask()) is not None:
            if record.settings["kind"] == "x":
                num_failed += 1
                study.tell(record.number, reason="always")
            else:
                study.tell(record.number, values={"accuracy": score(record)})
        study.close()
        return num_failed

    assert 0 < spend(18, resume=False) <= 7  # where failures are forgotten, tpe has 12 and gp 10
    assert spend(24, resume=True) <= 2  # and of these 6, gp has 6


def test_two_goals_have_a_front(tmp_path):
    study = open_sweep(tmp_path, goals=[UP, DOWN], sampler="nsga2", num_trials=4)
    for accuracy, parameters in ((0.9, 30.0), (0.8, 10.0), (0.7, 20.0), (0.9, 40.0)):
        study.tell(study.ask().number, values={"accuracy": accuracy, "parameters": parameters})
    assert study.front == (0, 1)
    study.close()
    assert [direction.name for direction in reread(tmp_path).directions] == ["MAXIMIZE", "MINIMIZE"]


def test_importances_name_the_setting_that_matters(tmp_path):
    study = open_sweep(tmp_path, num_trials=8)
    assert study.importances() == {}
    while (record := study.ask()) is not None:
        study.tell(record.number, values={"accuracy": {"x": 0.1, "y": 0.5, "z": 0.9}[record.settings["kind"]]})
    found = study.importances()
    assert list(found) == ["kind", "rate"]
    assert found["kind"] > 0.7
    assert sum(found.values()) == pytest.approx(1)
    study.close()


@pytest.mark.parametrize(
    ("sampler", "settings", "trials", "says"),
    [
        ("tp", [KIND], 3, "no sampler 'tp'; did you mean 'tpe'"),
        ("auto", [KIND], 3, "no sampler 'auto'"),
        ("tpe", [], 3, "nothing to sweep"),
        ("tpe", [KIND], 0, "trials must be at least 1"),
        ("grid", [KIND, RATE], 3, r"sampler=grid goes from value to value, and rate=.* lists none"),
        ("local", [Between("n", 1, 9, is_whole=True, is_log=True)], 3, "lists none"),
        ("grid", [Between("n", 1, 10**6, is_whole=True)], 3, "at most 100,000 combinations"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(sampler, settings, trials, says):
    with pytest.raises(SettingError, match=says):
        check_sweep(sampler, settings, num_trials=trials)


def test_a_file_that_is_damaged_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"sweep\.db: there is no study to resume"):
        open_sweep(tmp_path, resume=True)
    (tmp_path / "sweep.db").write_bytes(b"garbage" * 3000)
    with pytest.raises(StorageError, match=r"sweep\.db: damaged"):
        open_sweep(tmp_path, resume=True)


@pytest.mark.parametrize("number", ["1e308", "7", "NULL", "'zero'", "-1"])
def test_a_sweep_whose_runs_have_odd_numbers_is_refused(tmp_path, number):
    sweep = open_sweep(tmp_path)
    sweep.ask()
    sweep.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "sweep.db")) as base, base:
        base.execute(f"UPDATE trials SET number = {number}")
    with pytest.raises(StorageError, match=r"sweep\.db: damaged, .*trials are not numbered"):
        open_sweep(tmp_path, resume=True)


@pytest.mark.parametrize("harm", ["DELETE FROM study_directions", "UPDATE study_directions SET direction = 'MINIMIZE'"])
def test_a_sweep_that_lost_its_objectives_is_refused(tmp_path, harm):
    open_sweep(tmp_path).close()
    with contextlib.closing(sqlite3.connect(tmp_path / "sweep.db")) as base, base:
        base.execute(harm)
    with pytest.raises(StorageError, match=r"sweep\.db: does not read as a study of this program \(.*objectives: "):
        open_sweep(tmp_path, resume=True)
