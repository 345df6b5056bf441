from __future__ import annotations

import optuna
import pytest

from l2l_nas.errors import SettingError
from l2l_nas.nas.samplers.evolution import RegularizedEvolution
from l2l_nas.nas.samplers.hamming_gp import HammingGP
from l2l_nas.nas.samplers.registry import SAMPLERS, build_sampler, check_sampler

ONE = {"seed": 0, "num_trials": 64, "num_finished": 0}


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("tpe", optuna.samplers.TPESampler),
        ("evolution", RegularizedEvolution),
        ("gp_hamming", HammingGP),
        ("optuna.samplers.GPSampler", optuna.samplers.GPSampler),
        ("optuna.samplers:BruteForceSampler", optuna.samplers.BruteForceSampler),
    ],
)
def test_samplers_are_found_by_name(name, kind):
    assert type(build_sampler(name, **ONE)) is kind


def proposals(name, *, num_goals=1, count=4, **changes):
    """Of six positions with three candidates; every third is refused."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = build_sampler(name, **{**ONE, **changes})
    study = optuna.create_study(directions=["maximize", "minimize"][:num_goals], sampler=sampler)
    choices = optuna.distributions.CategoricalDistribution(["a", "b", "c"])
    found = []
    for number in range(count):
        trial = study.ask({f"p{i}": choices for i in range(6)})
        found.append(tuple(trial.params.values()))
        if number % 3 == 2:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        else:
            study.tell(trial, [found[-1].count("a"), found[-1].count("b")][:num_goals])
    return found


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_seed_and_the_number_of_finished_trials_decide_the_proposals(name):
    assert proposals(name) == proposals(name)
    assert proposals(name) != proposals(name, seed=1)
    assert proposals(name) != proposals(name, num_finished=4)


@pytest.mark.slow
@pytest.mark.parametrize("num_goals", [1, 2])
@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_serves_one_goal_and_two_past_its_random_start(name, num_goals):
    found = proposals(name, num_goals=num_goals, count=30, num_trials=40)
    assert len(set(found)) > 10


def test_a_name_that_does_not_exist_is_refused_with_the_nearest():
    with pytest.raises(SettingError, match="did you mean 'evolution'"):
        check_sampler("evoluton")
    with pytest.raises(SettingError, match="choose from random, tpe, nsga2, gp_hamming, evolution"):
        build_sampler("", **ONE)


def test_optuna_s_take_arguments_and_a_name_that_optuna_does_not_have_is_refused():
    sampler = {"name": "optuna.samplers.TPESampler", "n_startup_trials": 4}
    assert proposals(sampler) == proposals(sampler) != proposals(sampler, seed=1)
    with pytest.raises(SettingError, match=r"sampler=optuna\.samplers\.TPESampler takes no 'startup'"):
        build_sampler({"name": "optuna.samplers.TPESampler", "startup": 4}, **ONE)
    with pytest.raises(SettingError, match=r"optuna\.samplers has no 'GPsampler'; did you mean 'GPSampler'"):
        build_sampler("optuna.samplers.GPsampler", **ONE)
