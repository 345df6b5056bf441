from __future__ import annotations

import json
import shutil

import pytest
from optuna.trial import TrialState

from l2l_nas.errors import SettingError, StorageError, UserCodeError
from l2l_nas.nas.objectives import Goal
from l2l_nas.nas.sweep_study import SWEEP_SAMPLERS, SweepStudy, between, ends_of, listed
from tests.studies import saved_sweep

RATE = {"rate": between("rate", 1e-4, 1e-1, is_log=True)}
KIND = {"kind": listed(("x", "y", "z"))}
UP, DOWN = Goal("accuracy", True), Goal("parameters", False)


def open_sweep(folder, **changes):
    values = {"distributions": RATE | KIND, "goals": [UP], "sampler": "random", "seed": 0, "num_runs": 6}
    return SweepStudy(folder / "sweep.log", **{**values, **changes})


def finish(study, *, stop_after=10**6):
    """Ask and tell; the settings asked for, by number."""
    asked = {}
    while len(asked) < stop_after and (batch := study.ask(1)):
        (number,) = batch
        asked[number] = study.runs[number]
        study.tell(number, [-abs(asked[number].get("rate", 1.0) - 0.01)])
    return asked


def test_a_run_is_in_the_file_from_the_moment_it_begins(tmp_path):
    study = open_sweep(tmp_path)
    (number,) = study.ask(1)
    settings = study.runs[number]
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(tmp_path / "sweep.log", copy)  # what a reader would find after a crash at this moment
    assert [(trial.state, trial.params) for trial in saved_sweep(copy).trials] == [
        (TrialState.RUNNING, {"rate": pytest.approx(settings["rate"]), "kind": settings["kind"]})
    ]
    study.tell(number, [0.5])
    study.tell(*study.ask(1), None)
    found = saved_sweep(tmp_path)
    assert [trial.state for trial in found.trials] == [TrialState.COMPLETE, TrialState.FAIL]
    assert found.trials[0].values == [0.5]
    assert found.metric_names == ["accuracy"]
    assert found.best_params["kind"] == settings["kind"]


@pytest.mark.parametrize("sampler", [name for name in SWEEP_SAMPLERS if name != "nsga3"])
def test_a_resumed_sweep_goes_on_to_the_total_with_a_sampler_of_another_seed(tmp_path, sampler):
    (tmp_path / "whole").mkdir()
    whole = finish(open_sweep(tmp_path / "whole", sampler=sampler, num_runs=5))
    first = finish(open_sweep(tmp_path, sampler=sampler), stop_after=4)
    assert first == dict(list(whole.items())[:4])
    again = open_sweep(tmp_path, sampler=sampler, num_runs=7)
    assert again.runs == first
    assert again.num_finished == 4
    second = finish(again)
    assert list(first | second) == list(range(7))
    rates = [settings["rate"] for settings in (first | second).values()]
    assert len(set(rates)) == 7
    assert whole[4]["rate"] not in rates  # nor what comes after a replay of the start
    assert again.ask(1) == []


def test_runs_that_were_left_behind_come_first_under_their_own_numbers(tmp_path):
    study = open_sweep(tmp_path)
    finish(study, stop_after=1)
    left = study.ask(2)
    assert left == [1, 2]
    again = open_sweep(tmp_path)
    assert again.runs == study.runs
    assert again.ask(1) == [1]  # also if they are fewer at once
    assert again.ask(3) == [1, 2, 3]
    assert [again.runs[number] for number in left] == [study.runs[number] for number in left]
    assert list(finish(again)) == [1, 2, 3, 4, 5]


def test_what_a_kill_left_between_two_commits_is_no_run(tmp_path):
    study = open_sweep(tmp_path)
    (first,) = study.ask(1)
    settings = study.runs[first]
    half, repeat = saved_sweep(tmp_path), saved_sweep(tmp_path)
    half.ask().suggest_float("rate", 1e-4, 1e-1, log=True)
    repeat.enqueue_trial(repeat.trials[0].params)
    repeat.ask(RATE | KIND)
    again = open_sweep(tmp_path)
    assert list(finish(again)) == [0, 3, 4, 5, 6, 7]
    assert again.runs[0] == settings
    assert not any(trial.state is TrialState.RUNNING for trial in saved_sweep(tmp_path).trials)


@pytest.mark.parametrize("sampler", ["tpe", "random"])
@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_no_combination_runs_twice_and_a_spent_space_ends_the_sweep(tmp_path, sampler, batch_size):
    values = {"x": [0.25], "y": [0.5], "z": None}
    about = {"distributions": {"kind": listed(("x", "y", "z"))}, "sampler": sampler, "num_runs": 9}
    study, asked = open_sweep(tmp_path, **about), []
    while batch := study.ask(batch_size):
        for number in batch:  # all of a batch are asked for before any of it is told
            asked.append(study.runs[number]["kind"])
            study.tell(number, values[asked[-1]])
    assert sorted(asked) == ["x", "y", "z"]
    assert study.num_finished == 3
    assert [study.runs[number]["kind"] for number in study.best] == ["y"]
    before = len(saved_sweep(tmp_path).trials)
    assert open_sweep(tmp_path, **about).ask(1) == []
    assert len(saved_sweep(tmp_path).trials) == before <= 3 + 3 * 25
    for trial in saved_sweep(tmp_path).trials:
        assert trial.state is TrialState.PRUNED or trial.values == values[trial.params["kind"]]


def test_whole_numbers_are_all_tried_once(tmp_path):
    about = {"distributions": {"n": between("n", 2, 8, is_whole=True, step=2)}, "num_runs": 20, "sampler": "tpe"}
    assert sorted(settings["n"] for settings in finish(open_sweep(tmp_path, **about)).values()) == [2, 4, 6, 8]


def test_other_objectives_are_refused_and_leave_the_file_as_it_is(tmp_path):
    finish(open_sweep(tmp_path), stop_after=1)
    before = (tmp_path / "sweep.log").read_bytes()
    for goals in ([Goal("loss", False)], [UP, DOWN]):
        with pytest.raises(StorageError, match=r"sweep\.log: does not read as a study of this program"):
            open_sweep(tmp_path, goals=goals)
    assert (tmp_path / "sweep.log").read_bytes() == before


def test_two_goals_have_a_front(tmp_path):
    study = open_sweep(tmp_path, goals=[UP, DOWN], sampler="nsga2", num_runs=4)
    for values in ([0.9, 30.0], [0.8, 10.0], [0.7, 20.0], [0.9, 40.0]):
        study.tell(*study.ask(1), values)
    assert study.best == [0, 1]
    assert [direction.name for direction in saved_sweep(tmp_path).directions] == ["MAXIMIZE", "MINIMIZE"]


def test_ranges_have_ends_and_steps_without_rounding_errors(tmp_path):
    assert ends_of(between("n", 16, 48, is_whole=True, step=16)) == (16, 48)
    assert ends_of(listed(("b", "a", "b"))) == ("a", "b")
    steps = {"rate": between("rate", 0.1, 0.5, step=0.1)}
    found = finish(open_sweep(tmp_path, distributions=steps, num_runs=5))
    assert {settings["rate"] for settings in found.values()} <= {0.1, 0.2, 0.3, 0.4, 0.5}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"low": 2, "high": 1}, "n: no range from 2 to 1: "),
        ({"low": 0, "high": 1, "is_log": True}, "n: no range from 0 to 1: "),
        ({"low": 1, "high": 4, "is_log": True, "step": 0.5}, "n: no range from 1 to 4: "),
        ({"low": 1.5, "high": 4, "is_whole": True}, "n: no range from 1.5 to 4: it takes whole numbers"),
    ],
)
def test_what_is_no_range_is_refused(arguments, says):
    with pytest.raises(SettingError, match=says):
        between("n", **arguments)


def test_a_file_that_is_damaged_is_named(tmp_path):
    (tmp_path / "sweep.log").write_bytes(b"garbage\n" * 3000)
    with pytest.raises(StorageError, match=r"sweep\.log: damaged"):
        open_sweep(tmp_path)


@pytest.mark.parametrize("directions", [[], [1], [2, 2]])
def test_a_sweep_that_lost_its_objectives_is_refused(tmp_path, directions):
    open_sweep(tmp_path)
    path = tmp_path / "sweep.log"
    first, *others = path.read_bytes().splitlines(keepends=True)
    event = {**json.loads(first), "directions": directions}
    path.write_bytes(b"".join([json.dumps(event).encode() + b"\n", *others]))
    with pytest.raises(StorageError, match=r"sweep\.log: does not read as a study of this program"):
        open_sweep(tmp_path)


SAMPLERS = """
import optuna

class Silent(optuna.samplers.RandomSampler):
    def sample_independent(self, *_):
        raise ValueError("nothing to say")

class Deaf(optuna.samplers.RandomSampler):
    def after_trial(self, *_):
        raise ValueError("nothing heard")
"""


def test_a_sampler_of_one_s_own_that_raises_is_named_and_the_file_is_not_blamed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(SAMPLERS)
    with pytest.raises(UserCodeError, match=r"^sampler own\.py:Silent raised ValueError: nothing to say"):
        open_sweep(tmp_path, sampler="own.py:Silent").ask(1)
    with pytest.raises(UserCodeError, match=r"^sampler own\.py:Deaf raised"):
        open_sweep(tmp_path, sampler="own.py:Deaf")  # it is told of the trial that the other one left
    study = open_sweep(tmp_path, sampler="own.py:Deaf")
    (number,) = study.ask(1)
    with pytest.raises(UserCodeError, match=r"^sampler own\.py:Deaf raised ValueError: nothing heard"):
        study.tell(number, [0.5])
    assert saved_sweep(tmp_path).trials[number].values == [0.5]
