from __future__ import annotations

import contextlib
import shutil
import sqlite3

import optuna
import pytest
from optuna.trial import TrialState

from l2l_nas.errors import SettingError, StorageError
from l2l_nas.nas.objectives import Goal
from l2l_nas.nas.study.study import quiet_optuna
from l2l_nas.nas.sweep_study import SweepPlan, SweepStudy, between, check_sweep, described, listed, values_of

RATE = {"rate": between("rate", 1e-4, 1e-1, is_log=True)}
KIND = {"kind": listed(("x", "y", "z"))}
FIXED = {"seed": 0, "space.args": {"depth": 4}}
UP, DOWN = Goal("accuracy", True), Goal("parameters", False)

quiet_optuna()


def open_sweep(folder, **changes):
    plan = {"distributions": RATE | KIND, "goals": [UP], "fixed": FIXED}
    values = {"sampler": "random", "seed": 0, "num_runs": 6, "resume": False}
    plan |= {name: changes.pop(name) for name in plan.keys() & changes.keys()}
    return SweepStudy(folder / "sweep.db", SweepPlan(**plan), **{**values, **changes})


def reread(folder):
    return optuna.load_study(study_name="sweep", storage=f"sqlite:///{folder / 'sweep.db'}")


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
    shutil.copy(tmp_path / "sweep.db", copy)  # what a reader would find after a crash at this moment
    assert [(trial.state, trial.params) for trial in reread(copy).trials] == [
        (TrialState.RUNNING, {"rate": pytest.approx(record.settings["rate"]), "kind": record.settings["kind"]})
    ]
    study.tell(record.number, {"accuracy": 0.5})
    study.tell(study.ask().number, None)
    study.close()
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
    study.close()
    study = open_sweep(tmp_path, sampler=sampler)
    first = finish(study, stop_after=4)
    study.close()
    assert first == whole[:4]
    again = open_sweep(tmp_path, sampler=sampler, num_runs=7, resume=True)
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


def test_the_end_of_the_whole_sweep_is_held_against_no_run(tmp_path):
    study = open_sweep(tmp_path)
    for _ in range(6):
        assert (study.ask().number, study.records[0].state) == (0, "running")
        study.close()
        study = open_sweep(tmp_path, resume=True)
    study.close()


def test_what_a_kill_left_between_two_commits_is_no_run(tmp_path):
    study = open_sweep(tmp_path)
    first = study.ask()
    study.close()
    half, repeat = reread(tmp_path), reread(tmp_path)
    half.ask().suggest_float("rate", 1e-4, 1e-1, log=True)
    repeat.enqueue_trial(dict(first.settings))
    repeat.ask(RATE | KIND)
    again = open_sweep(tmp_path, resume=True)
    assert [record.number for record in finish(again)] == [0, 1, 2, 3, 4, 5]
    assert again.records[0].settings == first.settings
    again.close()


def test_a_repeat_gets_the_values_of_its_run(tmp_path):
    distributions = {"kind": listed(("x", "y"))}
    study = open_sweep(tmp_path, distributions=distributions, sampler="tpe", num_runs=9)
    while (record := study.ask()) is not None:
        study.tell(record.number, {"accuracy": {"x": 0.25, "y": 0.5}[record.settings["kind"]]})
    assert len(study.records) == 2
    study.close()
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
    study.close()
    before = (tmp_path / "sweep.db").read_bytes()
    with pytest.raises(StorageError, match=says):
        open_sweep(tmp_path, resume=True, **changes)
    assert (tmp_path / "sweep.db").read_bytes() == before


def test_choices_in_another_order_and_settings_of_a_newer_version_are_the_same_sweep(tmp_path):
    open_sweep(tmp_path).close()
    fixed = {"seed": 0, "space.args": {"depth": 4}, "new": 1}
    open_sweep(tmp_path, distributions=KIND | RATE, fixed=fixed, resume=True).close()
    open_sweep(tmp_path, distributions={**RATE, "kind": listed(("z", "y", "x"))}, resume=True).close()


@pytest.mark.parametrize("sampler", ["tpe", "grid", "local"])
def test_no_combination_runs_twice_and_a_spent_space_ends_the_sweep(tmp_path, sampler):
    distributions = {**KIND, "size": between("size", 16, 48, is_whole=True, step=16)}
    study = open_sweep(tmp_path, distributions=distributions, sampler=sampler, num_runs=30)
    tried = []
    while (record := study.ask()) is not None:
        tried.append(tuple(record.settings.values()))
        study.tell(record.number, {"accuracy": float(record.settings["size"])})
    assert len(tried) == len(set(tried)) == 9
    study.close()


def test_two_goals_have_a_front(tmp_path):
    study = open_sweep(tmp_path, goals=[UP, DOWN], sampler="nsga2", num_runs=4)
    for accuracy, parameters in ((0.9, 30.0), (0.8, 10.0), (0.7, 20.0), (0.9, 40.0)):
        study.tell(study.ask().number, {"accuracy": accuracy, "parameters": parameters})
    assert study.front == (0, 1)
    study.close()
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
    study.close()


@pytest.mark.parametrize(
    ("sampler", "distributions", "trials", "says"),
    [
        ("tp", KIND, 3, "no sampler 'tp'; did you mean 'tpe'"),
        ("auto", KIND, 3, "no sampler 'auto'"),
        ("tpe", {}, 3, "nothing to sweep"),
        ("tpe", KIND, 0, "trials must be at least 1"),
        ("grid", KIND | RATE, 3, r"sampler=grid goes from value to value, and rate=.* lists none"),
        ("local", {"n": between("n", 1, 9, is_whole=True, is_log=True)}, 3, "lists none"),
        ("grid", {"n": between("n", 1, 10**6, is_whole=True)}, 3, "at most 100,000 combinations"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(sampler, distributions, trials, says):
    with pytest.raises(SettingError, match=says):
        check_sweep(sampler, SweepPlan(distributions, [UP], {}), num_runs=trials)


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


DISTRIBUTIONS = [
    (listed(("y", "x", "y")), "choice(x,y)", ["x", "y"]),
    (between("a", 0.5, 2.0), "interval(0.5,2)", []),
    (between("a", 0.5, 2.0, is_log=True), "tag(log,interval(0.5,2))", []),
    (between("a", 2, 4, is_whole=True), "int(interval(2,4))", [2, 3, 4]),
    (between("a", 16, 64, is_whole=True, step=16), "range(16,80,16)", [16, 32, 48, 64]),
    (between("a", 0.1, 0.4, step=0.1), "range(0.1,0.5,0.1)", [0.1, 0.2, 0.3, 0.4]),
]


@pytest.mark.parametrize(("distribution", "text", "values"), DISTRIBUTIONS, ids=lambda value: str(value))
def test_what_is_swept_reads_as_the_command_line_writes_it_and_counts_its_values(distribution, text, values):
    assert described(distribution) == text
    assert values_of(distribution) == values


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"low": 2, "high": 1}, "the range from 2 to 1 is empty"),
        ({"low": float("nan"), "high": 1}, "is empty"),
        ({"low": 0, "high": 1, "is_log": True}, "begins above 0"),
        ({"low": 1, "high": 2, "is_log": True, "step": 0.5}, "not with steps of 0.5"),
        ({"low": 1, "high": 9, "is_log": True, "is_whole": True, "step": 2}, "not with steps of 2"),
        ({"low": 1.5, "high": 4, "is_whole": True}, "a takes whole numbers"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused(arguments, says):
    with pytest.raises(SettingError, match=says):
        between("a", **arguments)
