"""What of a run another search can learn from: trials and finalists, each with the share of a training it had."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from l2l_nas.__main__ import main
from l2l_nas.errors import SettingError
from l2l_nas.nas.objectives import Goal
from l2l_nas.runs.earlier_runs import read_earlier_run
from tests.cli.runs import TINY
from tests.runs.learned import ACCURACY, SEARCH
from tests.studies import saved_study, unchained


def read(folder, *, goal=ACCURACY):
    return read_earlier_run(Path(folder), str(folder), goal=goal, metrics=("accuracy", "loss"))[0]


def result(folder):
    return json.loads(Path(folder, "result.json").read_text())


def test_trials_and_finalists_of_a_race_count_with_the_steps_that_they_had(pool):
    assert main([*SEARCH, "folder=run", "search.trials=5", "search.finalists=4", "search.finalist_rounds=2"]) == 0
    run = read("run")
    assert run.whole_steps == 9
    assert run.data == saved_study("run").user_attrs["data"]
    by_steps = {}
    for one in run.scores:
        by_steps.setdefault(one.steps, []).append(one)
        assert set(one.params) == {"layer0", "layer1", "layer2", "layer3"}
        assert set(one.values) == {"accuracy", "loss"}  # no cost, and nothing of the test part
    between = next(steps for steps in by_steps if 3 < steps < 9)
    assert {steps: len(some) for steps, some in by_steps.items()} == {3: 5, between: 4, 9: 2}
    best = result("run")["best"]
    found = [one.values["accuracy"] for one in by_steps[9] if list(one.params.values()) == best["architecture"][1:-1]]
    assert found == [best["compared_by"]["values"]["accuracy"]]
    trials = {tuple(t.user_attrs["architecture"][1:-1]): t.value for t in saved_study("run").trials if t.value}
    assert {tuple(one.params.values()): one.values["accuracy"] for one in by_steps[3]} == trials


def test_a_score_whose_square_is_no_number_is_left_out(pool):
    words = ("search.finalists=0", "search.finalist_steps=0", "search.trials=4")
    assert main([*SEARCH, *words, "folder=run"]) == 0
    scores = read("run").scores
    journal = Path("run", "study.log")
    value = f'"value":{saved_study("run").trials[0].value},'
    assert value in journal.read_text()
    journal.write_text(unchained(journal.read_bytes()).decode().replace(value, '"value":1e200,', 1))
    assert read("run").scores == scores[1:]


def test_of_shared_weights_only_networks_count_that_were_trained_by_themselves(finished):
    run = read(finished)
    assert [one.steps for one in run.scores] == [5]
    assert run.whole_steps == 5


def test_where_trials_are_whole_trainings_they_count_whole(pool):
    words = ("search.finalists=0", "search.finalist_steps=0")
    assert main([*SEARCH, *words, "folder=run"]) == 0
    run = read("run")
    assert {one.steps for one in run.scores} == {3} == {run.whole_steps}


def test_trials_that_were_stopped_early_count_with_what_they_had(pool):
    words = ("search.trials=8", "search.steps_per_trial=16", "search.finalist_steps=32", "search.early_stop=halving")
    assert main([*SEARCH, *words, "folder=run"]) == 0
    steps = {one.steps for one in read("run").scores}
    assert {4, 8, 16, 32} <= steps
    assert any("stopped" in trial.user_attrs for trial in saved_study("run").trials)


@pytest.mark.parametrize(
    ("goal", "reason"),
    [
        (Goal("perplexity", maximize=False), "searched for accuracy, parameters, not perplexity"),
        (Goal("accuracy", maximize=False), "accuracy the other way round"),
    ],
)
def test_a_run_with_another_goal_is_refused(finished, goal, reason):
    with pytest.raises(SettingError, match=reason):
        read(finished, goal=goal)


def test_what_is_no_run_of_a_search_is_refused(pool, tmp_path):
    with pytest.raises(SettingError, match="no such folder"):
        read("nothing")
    with pytest.raises(SettingError, match="no run"):
        read(tmp_path)
    words = ("architecture=original", "train.steps=4", "train.validation_steps=2", "export=false", "folder=trained")
    assert main(["train", "space.pool=tiny.py:build", *words]) == 0
    with pytest.raises(SettingError, match="a training, no search"):
        read("trained")


def test_a_run_without_a_network_of_its_own_weights_is_refused(pool):
    assert main(["search", "space.pool=tiny.py:build", *TINY, "search.finalists=0", "folder=run"]) == 0
    with pytest.raises(SettingError, match="scored on shared weights"):
        read("run")
