from __future__ import annotations

import pytest

from l2l_nas.errors import SettingError
from tests.nas.problems import budget


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", 0.0),
        ("finalist_learning_rate", float("nan")),
        ("trial_weights", "forked"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused(name, value):
    with pytest.raises(SettingError, match=name):
        budget(**{name: value})


def test_trials_from_scratch_must_train():
    with pytest.raises(SettingError, match=r"steps_per_trial=200"):
        budget(trial_weights="scratch", steps_per_trial=0)
    assert budget(trial_weights="fork", steps_per_trial=0)


def test_only_what_trains_the_shared_weights_counts_as_shared():
    spend = {"warmup_steps": 5, "trials": 3, "steps_per_trial": 2}
    assert budget(**spend).shared_steps == 11
    assert budget(**spend, trial_weights="fork").shared_steps == 5
    assert budget(**spend, trial_weights="fork").steps_before_finalists == 11
