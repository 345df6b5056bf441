"""What comes with the program of earlier tasks is what was measured, and says whose data it is of."""

from __future__ import annotations

import json

import pytest

from benchmarks import RESULTS
from benchmarks.search.shipped_memory import TASKS, task_of
from l2l_nas.errors import DataError
from l2l_nas.nas.memory import Memory
from l2l_nas.runs.learn_from import SHIPPED_FILE


def measured(name: str):
    return json.loads((RESULTS / f"search_chain_{name}.json").read_text())


def test_a_task_is_made_of_the_results_again():
    shipped = json.loads(SHIPPED_FILE.read_text())
    task, same, rows = task_of(TASKS[0], TASKS[0], measured(TASKS[0]))
    assert Memory.from_json(shipped).tasks[0] == task
    assert shipped["same_data"][TASKS[0]] == same
    assert shipped["validation_rows"][TASKS[0]] == rows.to_json()


@pytest.mark.parametrize("name", TASKS)
def test_scores_are_those_of_the_results(name):
    task = Memory.from_json(json.loads(SHIPPED_FILE.read_text())).tasks[TASKS.index(name)]
    result = measured(name)
    assert task.name == name
    ends = [one for one in task.networks if one.share == 1.0]
    assert [one.values["accuracy"] for one in ends] == [
        score for pair in result["alone"]["validation"] for score in pair
    ]
    assert [" ".join(one.params.values()) for one in ends[::2]] == result["architectures"]
    starts = [one.values["accuracy"] for one in task.networks if one.share == 0.1]
    assert starts == [score for pair in zip(*result["stages"]["trial"], strict=True) for score in pair]


def test_other_data_than_those_that_were_measured_are_refused():
    with pytest.raises(DataError, match="digits: not the data that cluttered_digits was measured on"):
        task_of(TASKS[0], "digits", measured(TASKS[0]))
