"""Learning rates of finalists: a few are tried for a tenth of the steps, and the best goes on."""

from __future__ import annotations

import json

import pytest

import l2l_nas
from l2l_nas.compress.finetuning_rate import TryRates
from l2l_nas.errors import SettingError, TrialError
from l2l_nas.nas.evaluation.evaluator import Evaluator
from l2l_nas.nas.evaluation.segment import SegmentResult
from l2l_nas.nas.strategies.machine_speed import MachineSpeed
from tests.cli.runs import events
from tests.compress.test_blockwise import problem, search

STEPS = 60


def rated(folder, *rates, steps=STEPS, finalist_steps=0, **more):
    strategy = {"name": "blockwise", "samples": 24, "steps": 2, "teacher": 0, "rates": list(rates)}
    return search(folder, strategy=strategy, finalist_steps=finalist_steps or steps, export=False, **more)


@pytest.mark.slow
def test_the_rate_that_does_best_is_that_of_all_finalists(tmp_path):
    found = rated(tmp_path / "run", 1.0, 1e-6, finalist_learning_rate=0.02, trials=2, finalists=2)
    rates = found.content["rates"]
    values = {one["rate"]: one["value"] for one in rates["tried"]}
    assert list(values) == [0.02, pytest.approx(2e-8)]
    assert values[0.02] < min(value for rate, value in values.items() if rate < 0.02)
    assert (rates["metric"], rates["chosen"]) == ("loss", 0.02)
    one = rated(tmp_path / "one", 1.0, finalist_learning_rate=0.02, trials=2, finalists=2)
    assert "rates" not in one.content
    assert found.content["finalists"] == one.content["finalists"]  # what was tried leaves no trace
    spent = [{name: steps["steps"] for name, steps in run.content["spent"].items()} for run in (found, one)]
    assert spent[0]["TryRates"] == 2 * STEPS // 10
    assert {name: steps for name, steps in spent[0].items() if name != "TryRates"} == spent[1]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Learning rates tried for a tenth of the steps" in page


@pytest.mark.slow
def test_a_rate_that_is_too_high_is_not_taken(tmp_path):
    found = rated(tmp_path / "run", 1e9, 1.0, finalist_learning_rate=0.01)
    assert found.content["rates"]["chosen"] == 0.01


@pytest.mark.slow
def test_a_network_that_cannot_be_trained_leaves_the_rate_to_the_next_one(tmp_path, monkeypatch):
    run_here, refused = Evaluator.run_here, []

    def run(evaluator, segment, after_step, start=None):
        if not segment.name.startswith("the trial"):
            refused[:] = refused or [segment.architecture]
            if segment.architecture == refused[0]:
                return SegmentResult(error=TrialError("out of memory"))
        return run_here(evaluator, segment, after_step, start)

    monkeypatch.setattr(Evaluator, "run_here", run)
    found = rated(tmp_path / "run", 1.0, 1e-6, finalist_learning_rate=0.02, trials=3, finalists=2)
    assert found.content["rates"]["chosen"] == 0.02
    assert found.best.architecture != refused[0]
    assert [one["reason"] for one in found.content["given_up"]] == ["out of memory"]


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"finalist_learning_rate": 1e-6}, {"finalist_steps": 80}, {"trials": 5}])
def test_a_search_that_goes_on_otherwise_tries_again(tmp_path, change):
    begun = {"finalist_learning_rate": 0.02, "trials": 2}
    rated(tmp_path / "run", 1.0, 0.1, **begun)
    went_on = l2l_nas.search(problem(), resume=tmp_path / "run", **change)
    whole = rated(tmp_path / "whole", 1.0, 0.1, **{"steps": STEPS, **begun, **change})
    assert went_on.content["rates"] == whole.content["rates"]
    assert went_on.best.values["loss"] == whole.best.values["loss"]


@pytest.mark.slow
def test_a_search_that_goes_on_does_not_try_again(tmp_path):
    class Stops(l2l_nas.Callback):
        def phase(self, name, *, total, done):
            if name == "finalists":
                raise l2l_nas.Stopped

    rated(tmp_path / "run", 1.0, 0.1, callbacks=[Stops()])
    went_on = l2l_nas.search(problem(), resume=tmp_path / "run", callbacks=[])
    whole = rated(tmp_path / "whole", 1.0, 0.1)
    assert json.dumps(went_on.content["rates"]) == json.dumps(whole.content["rates"])
    assert went_on.best.values["loss"] == whole.best.values["loss"]
    begun = [event["name"] for event in events(tmp_path / "run", "phase")]
    assert begun.count("rates") == 1


def test_what_is_too_short_to_tell_or_one_rate_is_not_tried(tmp_path):
    found = rated(tmp_path / "run", 1.0, 0.1, steps=19)
    assert "rates" not in found.content


def test_a_share_that_is_none_is_refused():
    for share in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(SettingError, match=r"strategy\.rates are shares above 0"):
            TryRates([1.0, share])


def test_a_time_counts_what_is_tried():
    assert TryRates([1.0]).speed(MachineSpeed(1.0, 0.0), None).tried == 0
    speed = TryRates([1.0, 0.3, 0.1]).speed(MachineSpeed(1.0, 5.0), None)
    assert (speed.tried, speed.fixed) == (pytest.approx(0.3), 15.0)
    assert TryRates([1.0, 0.3, 0.1]).speed(MachineSpeed(1.0, 5.0, 2), None).tried == pytest.approx(0.2)
