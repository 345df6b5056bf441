"""Repeats of a search as a Python call."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import optuna
import pytest

import l2l_nas
from l2l_nas import Callback, Stopped
from l2l_nas.errors import SettingError, StorageError
from l2l_nas.training.problem import Problem

RACE = {
    "trials": 4, "steps_per_trial": 2, "finalists": 2, "finalist_steps": 6, "seed": 5, "export": False,
    "progress": False,
}  # fmt: skip


def test_a_call_returns_what_all_tell_and_each_by_itself(problem, tmp_path, capsys):
    result = l2l_nas.search(problem, repeats=2, folder="run", **RACE)
    assert capsys.readouterr().out == ""
    assert result.folder == tmp_path / "run" or str(result.folder) == "run"
    alone = l2l_nas.search(problem, baseline="random", folder="alone", **{**RACE, "seed": 6})
    assert result.repeats[1].best == alone.best
    assert result.repeats[1].baseline == alone.baseline
    assert result.repeats[1].repeats == ()
    assert alone.comparison is None
    assert result.comparison is not None
    pairs = [(one.test["accuracy"], one.baseline.test["accuracy"]) for one in result.repeats]
    assert result.comparison["difference"]["mean"] == pytest.approx(sum(one - two for one, two in pairs) / 2)
    best = max(result.repeats, key=lambda one: one.best.validation["accuracy"])
    assert result.best == best.best
    assert result.finalists == best.finalists
    assert result.pareto == best.pareto
    assert result.baseline == best.baseline
    assert isinstance(result.study, optuna.Study)
    assert [one.value for one in result.study.trials] == [one.value for one in best.study.trials]
    ours, theirs = result.network().state_dict(), best.network().state_dict()
    assert all((ours[name] == theirs[name]).all() for name in theirs)
    again = l2l_nas.search(problem, resume="run", progress=False)
    assert again.content == result.content
    assert len(l2l_nas.search(problem, resume="run", progress=False, repeats=3).repeats) == 3


def test_an_executor_of_ones_own_runs_all_repeats(problem):
    few = {**RACE, "sampler": "random"}
    with ThreadPoolExecutor(2) as threads:
        several = l2l_nas.search(problem, repeats=2, folder="several", workers=2, executor=threads, **few)
    one = l2l_nas.search(problem, repeats=2, folder="one", **few)
    # trials that run at once are proposed otherwise; random networks are the same, and train alike
    assert several.comparison["random_search"] == one.comparison["random_search"]
    assert several.comparison["pairs"] == 2


@pytest.mark.parametrize("name", ["sampler", "strategy"])
def test_objects_that_keep_what_they_saw_are_refused(problem, tmp_path, name):
    objects = {
        "sampler": optuna.samplers.RandomSampler(),
        "strategy": [l2l_nas.Trials(), l2l_nas.Finalists()],
    }
    with pytest.raises(SettingError, match=f"{name} was given as an object"):
        l2l_nas.search(problem, repeats=2, folder="run", **RACE, **{name: objects[name]})
    assert not (tmp_path / "run").exists()


def test_what_a_callback_stops_before_a_repeat_is_done_has_no_result(problem):
    class AtOnce(Callback):
        def trial(self, record, records):
            raise Stopped

    result = l2l_nas.search(problem, repeats=2, folder="run", callbacks=[AtOnce()], **RACE)
    with pytest.raises(StorageError, match="has not finished"):
        _ = result.best
    done = l2l_nas.search(problem, resume="run", progress=False)
    assert len(done.repeats) == 2
    assert json.loads((done.folder / "result.json").read_text()) == done.content


def test_data_that_were_closed_serve_the_next_repeat(problem):
    closes = []

    class Counting(Problem):
        pass

    data = problem.data
    whole = type(data).close
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(data), "close", lambda self: (closes.append(1), whole(self)))
        result = l2l_nas.search(Counting(problem.pool, data), repeats=2, folder="run", **RACE)
    assert len(closes) == 2
    assert len(result.repeats) == 2
