from __future__ import annotations

import optuna
import pytest

from l2l_nas.errors import SettingError
from l2l_nas.search.samplers import SAMPLERS, build_sampler, check_sampler

ONE = {"seed": 0, "num_trials": 64, "num_finished": 0}


@pytest.mark.parametrize(
    ("name", "num_goals", "kind"),
    [
        ("random", 1, optuna.samplers.RandomSampler),
        ("tpe", 1, optuna.samplers.TPESampler),
        ("tpe", 2, optuna.samplers.TPESampler),
        ("nsga2", 2, optuna.samplers.NSGAIISampler),
        ("auto", 1, optuna.samplers.TPESampler),
        ("auto", 2, optuna.samplers.NSGAIISampler),
    ],
)
def test_samplers_are_found_by_name(name, num_goals, kind):
    assert type(build_sampler(name, num_goals=num_goals, **ONE)) is kind


def first_proposals(name, **changes):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=build_sampler(name, num_goals=1, **{**ONE, **changes}))
    choices = optuna.distributions.CategoricalDistribution(["a", "b", "c"])
    return [tuple(study.ask({f"p{i}": choices for i in range(6)}).params.values()) for _ in range(4)]


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_seed_and_the_number_of_finished_trials_decide_the_proposals(name):
    assert first_proposals(name) == first_proposals(name)
    assert first_proposals(name) != first_proposals(name, seed=1)
    assert first_proposals(name) != first_proposals(name, num_finished=4)


def test_a_name_that_does_not_exist_is_refused_with_the_nearest():
    with pytest.raises(SettingError, match="did you mean 'nsga2'"):
        check_sampler("nsga3")
    with pytest.raises(SettingError, match="choose from auto, random, tpe, nsga2"):
        build_sampler("", num_goals=1, **ONE)
