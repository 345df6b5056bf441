"""One seed gives one search: what was recorded once is found again, whatever became of the code in between."""

from __future__ import annotations

import pytest

import l2l_nas
from l2l_nas import Classification, Problem
from tests.cli.runs import events
from tests.nas.problems import data, pool_of

STEPS = {"trials": 10, "steps_per_trial": 2, "finalists": 1, "finalist_steps": 4}
SEARCHES = {
    "race": {
        "trials": 14, "steps_per_trial": 8, "finalists": 2, "finalist_steps": 16, "early_stop": "halving",
        "trial_weights": "scratch", "warmup_steps": 0, "sampler": "gp_hamming",
    },
    "two objectives": {
        **STEPS, "trial_weights": "shared", "warmup_steps": 8, "sampler": "tpe",
        "objectives": ["accuracy", "parameters"],
    },
    "forks": {**STEPS, "trial_weights": "fork", "warmup_steps": 8, "sampler": "evolution"},
}  # fmt: skip
# per trial the three choices, and how many of 12 validation samples were right; then the choices that were returned
RECORDED = {
    "race": (
        "skip skip tanh 8, tanh wide relu 9, tanh tanh relu 8, tanh skip wide 9, relu relu tanh 8, relu wide wide 8, "
        "skip wide relu 10, skip wide skip 11, wide wide skip 8, skip skip skip stopped, skip wide tanh stopped, "
        "tanh skip relu stopped, skip wide wide 9, tanh relu wide 8: skip wide skip"
    ),
    "two objectives": (
        "skip skip tanh 7, wide skip tanh 9, relu tanh relu 8, tanh tanh tanh 8, wide wide tanh 8, "
        "relu tanh relu 8 cached, relu relu relu 8, relu wide wide 8, skip tanh relu 8, skip tanh skip 8, "
        "skip relu skip 9: skip relu skip"
    ),
    "forks": (
        "skip skip tanh 7, tanh wide relu 8, tanh tanh relu 5, tanh skip wide 6, relu relu tanh 4, skip skip wide 9, "
        "tanh tanh wide 8, tanh wide wide 8, tanh relu wide 8, skip relu wide 8: skip skip wide"
    ),
}


def spelled(event) -> str:
    score = str(round(12 * event["values"]["accuracy"])) if event["values"] else event["state"]
    return " ".join([*event["architecture"][1:-1], score, *["cached"] * event["cached"]])


@pytest.mark.parametrize("name", SEARCHES)
def test_an_inline_search_gives_the_trials_that_it_always_gave(name, tmp_path):
    problem = Problem(pool=pool_of("tanh", "relu", "skip", "wide", depth=3), data=data(), task=Classification())
    said = {"seed": 1, "export": False, "progress": False, **SEARCHES[name]}
    result = l2l_nas.search(problem, folder=str(tmp_path / "run"), **said)
    trials = events(tmp_path / "run")
    assert [trial["number"] for trial in trials] == list(range(len(trials)))
    best = " ".join(result.best.architecture.choices[1:-1])
    assert f"{', '.join(map(spelled, trials))}: {best}" == RECORDED[name]
