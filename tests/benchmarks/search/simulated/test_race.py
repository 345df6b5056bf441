from __future__ import annotations

import pytest

from benchmarks.search.simulated.landscapes import LANDSCAPES
from benchmarks.search.simulated.race import numbers_for, race

MAKE, TASKS = LANDSCAPES["gaussian"]


@pytest.mark.parametrize("budget", [3, 6])
def test_a_race_costs_what_it_says_and_trains_what_it_returns_to_the_end(budget):
    landscape = MAKE(TASKS[0], 0)
    numbers = numbers_for(landscape, budget)
    found, ledger = race(landscape, numbers, seed=0)
    assert ledger.spent == pytest.approx(numbers.steps / numbers.finalist_steps)
    assert budget - 0.1 < ledger.spent <= budget
    assert len(ledger.trained) == numbers.trials
    assert ledger.trained[found][0] == 1.0
    assert ledger.best() == found


def test_a_race_is_the_same_again_and_another_with_another_seed():
    landscape = MAKE(TASKS[0], 0)
    numbers = numbers_for(landscape, 3)
    ledgers = [race(landscape, numbers, seed=seed)[1] for seed in (0, 0, 1)]
    assert ledgers[0].trained == ledgers[1].trained
    assert ledgers[0].trained != ledgers[2].trained


def test_a_memory_of_other_tasks_changes_what_is_tried_and_has_nothing_of_this_one():
    landscape = MAKE(TASKS[0], 0)
    assert {task.name for task in landscape.memory.tasks} == set(TASKS) - {TASKS[0]}
    assert all(len(task.networks) == 100 for task in landscape.memory.tasks)
    numbers = numbers_for(landscape, 3)
    alone, remembering = (race(landscape, numbers, seed=0, memory=memory)[1] for memory in (None, landscape.memory))
    assert len(remembering.trained) == len(alone.trained) == numbers.trials
    assert remembering.trained != alone.trained
