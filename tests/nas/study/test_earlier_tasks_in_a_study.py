from __future__ import annotations

import pytest

from l2l_nas.errors import SettingError
from l2l_nas.nas.earlier_task import EarlierTask, NetworkScore
from l2l_nas.nas.objectives import State
from tests.nas.problems import GOALS, open_study, pool_of

NAMES = ("tanh", "relu", "skip", "wide")
POOL = pool_of(*NAMES, depth=6)
FREE = [f"p{index}" for index in range(6)]


def accuracy(params):
    """Each position has its own best candidate."""
    return sum(NAMES.index(params[name]) == index % 4 for index, name in enumerate(FREE)) / len(FREE)


def earlier():
    found = []
    for number in range(60):
        params = {name: NAMES[(number * 7 + index * (number // 4 + 1)) % 4] for index, name in enumerate(FREE)}
        found.append(NetworkScore(params, 9, {"accuracy": accuracy(params)}))
    return (EarlierTask("old", "0f", 9, tuple(found)),)


def told(study, count):
    found = []
    for _ in range(count):
        trial, architecture = study.ask()
        study.tell(trial, State.COMPLETE, {"accuracy": accuracy(trial.params)})
        found.append((architecture, accuracy(trial.params)))
    return found


def opened(folder, known, *, sampler="gp_hamming", **changes):
    folder.mkdir(exist_ok=True)
    study = open_study(folder, POOL, sampler=sampler, goals=GOALS[:1], num_trials=30, **changes)
    study.inform(lambda architecture: True, is_raced=True, earlier_tasks=known)
    return study


def test_the_very_first_trial_knows_of_it(tmp_path):
    scores = []
    for seed in range(6):
        study = opened(tmp_path / str(seed), earlier(), seed=seed)
        scores += [score for _, score in told(study, 1)]
    assert sum(scores) / len(scores) > 0.5  # by chance 0.25


def test_a_study_that_is_resumed_goes_on_alike_and_with_what_it_knew(tmp_path):
    for name in "ab":
        study = opened(tmp_path / name, earlier())
        told(study, 5)
    studies = [opened(tmp_path / name, earlier(), resume=True) for name in "ab"]
    first, second = (told(study, 3) for study in studies)
    assert first == second
    assert first != told(opened(tmp_path / "c", ()), 8)[5:]


@pytest.mark.parametrize("sampler", ["random", "tpe", "evolution"])
def test_a_sampler_that_has_no_use_for_earlier_tasks_is_named(tmp_path, sampler):
    study = open_study(tmp_path, POOL, sampler=sampler, goals=GOALS[:1])
    assert not study.uses_earlier_tasks
    with pytest.raises(SettingError, match="no use for earlier tasks"):
        study.inform(lambda architecture: True, earlier_tasks=earlier())
    study.inform(lambda architecture: True)
