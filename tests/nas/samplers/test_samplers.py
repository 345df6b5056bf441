from __future__ import annotations

import optuna
import pytest

from l2l_nas.errors import SettingError
from l2l_nas.nas.samplers.evolution import GridSampler, LocalSearch, Random, RegularizedEvolution
from l2l_nas.nas.samplers.hamming_gp import HammingGP
from l2l_nas.nas.samplers.registry import SAMPLERS, build_sampler, check_sampler

ONE = {"seed": 0, "num_trials": 64, "num_finished": 0}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("random", Random),
        ("tpe", optuna.samplers.TPESampler),
        ("nsga2", optuna.samplers.NSGAIISampler),
        ("nsga3", optuna.samplers.NSGAIIISampler),
        ("gp", optuna.samplers.GPSampler),
        ("evolution", RegularizedEvolution),
        ("local", LocalSearch),
        ("grid", GridSampler),
        ("gp_hamming", HammingGP),
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
    with pytest.raises(
        SettingError, match="choose from random, tpe, nsga2, nsga3, gp, gp_hamming, evolution, local, g"
    ):
        build_sampler("", **ONE)


def test_a_grid_refuses_a_space_that_is_too_large_to_go_through():
    build_sampler("grid", size=100_000, **ONE)
    with pytest.raises(SettingError, match="at most 100,000; this space has 100,001"):
        build_sampler("grid", size=100_001, **ONE)
