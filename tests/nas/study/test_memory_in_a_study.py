from __future__ import annotations

import pytest

from l2l_nas.errors import SettingError
from l2l_nas.nas.memory import EarlierTask, Memory, Remembered
from l2l_nas.nas.objectives import State
from tests.nas.problems import GOALS, open_study, pool_of

NAMES = ("tanh", "relu", "skip", "wide")
POOL = pool_of(*NAMES, depth=6)
FREE = [f"p{index}" for index in range(6)]


def accuracy(params):
    """Each position has its own best candidate."""
    return sum(NAMES.index(params[name]) == index % 4 for index, name in enumerate(FREE)) / len(FREE)


def memory():
    found = []
    for number in range(60):
        params = {name: NAMES[(number * 7 + index * (number // 4 + 1)) % 4] for index, name in enumerate(FREE)}
        found.append(Remembered(params, 1.0, {"accuracy": accuracy(params)}))
    return Memory((EarlierTask("old", "0f", tuple(found)),))


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
    study.inform(lambda architecture: True, is_raced=True, memory=known)
    return study


def test_the_very_first_trial_knows_of_it(tmp_path):
    scores = []
    for seed in range(6):
        study = opened(tmp_path / str(seed), memory(), seed=seed)
        scores += [score for _, score in told(study, 1)]
    assert sum(scores) / len(scores) > 0.5  # by chance 0.25


def test_a_study_that_is_resumed_goes_on_alike_and_with_what_it_knew(tmp_path):
    for name in "ab":
        study = opened(tmp_path / name, memory())
        told(study, 5)
    studies = [opened(tmp_path / name, memory(), resume=True) for name in "ab"]
    first, second = (told(study, 3) for study in studies)
    assert first == second
    (agreement,) = studies[0].agreements()
    assert (agreement.goal, agreement.trials) == ("accuracy", 8)
    assert agreement.tasks[0].weight > 0


@pytest.mark.parametrize("sampler", ["random", "tpe", "evolution"])
def test_a_sampler_that_has_no_use_for_a_memory_is_named(tmp_path, sampler):
    study = open_study(tmp_path, POOL, sampler=sampler, goals=GOALS[:1])
    assert not study.uses_memory
    with pytest.raises(SettingError, match="no use for a memory"):
        study.inform(lambda architecture: True, memory=memory())
    study.inform(lambda architecture: True)
    assert study.agreements() == ()
