"""Other packages' searches, asked from outside: a process of an environment of their own, which speaks JSON lines.

It imports the standard library and the packages alone, so that it runs where this project is not installed. A line in:

    {"play": "dehb", "space": {"stem": ["conv3", ...], ...}, "seed": 3}     a new search; the one before is dropped
    {"score": 0.87}                                                         the answer to the last line out

A line out: `{"ask": ["conv3", ...], "share": 0.33}`, a network to be trained to that share of a whole training; or
`{"done": true}`, if the search has nothing more to ask; or `{"error": "..."}`. Each has `seconds`, the processor time
of this process so far. The first line out is `{"versions": {...}}`, what is installed.

Each search is a generator that asks for a network and a share, and is sent the score, of which more is better. A whole
training has 27 steps, the least that is asked for is 3, and a rung keeps one in three: what all of these packages call
a maximum and a minimum resource, and an eta of 3. Everything else is at the package's own defaults. What a network has
had is charged by the project's side, see [Note: fairness] in `search.py`.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import logging
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

WHOLE, LEAST, ETA = 27, 3, 3
Space = Mapping[str, Sequence[str]]
Search = Generator[tuple[list[str], int], float, None]


def syne_tune(name: str) -> Callable[[Space, int], Search]:
    """A scheduler of Syne Tune that stops trials, or lets them go on: it never comes back to one."""

    def search(space: Space, seed: int) -> Search:
        from syne_tune.backend.trial_status import Trial
        from syne_tune.config_space import choice
        from syne_tune.optimizer import baselines

        scheduler = getattr(baselines, name)(
            {position: choice(list(some)) for position, some in space.items()},
            metric="score", time_attr="steps", max_t=WHOLE, do_minimize=False, random_seed=seed, grace_period=LEAST,
            reduction_factor=ETA,
        )  # fmt: skip
        number = 0
        while True:
            suggested = scheduler.suggest()
            trial = Trial(trial_id=number, config=suggested.config, creation_time=datetime.datetime.now())
            number += 1
            scheduler.on_trial_add(trial)
            genotype = [suggested.config[position] for position in space]
            for step in range(1, WHOLE + 1):
                result = {"score": (yield genotype, step), "steps": step}
                if step == WHOLE:
                    scheduler.on_trial_complete(trial, result)
                elif scheduler.on_trial_result(trial, result) == "STOP":
                    break

    return search


def optuna_hyperband(space: Space, seed: int) -> Search:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    study = optuna.create_study(
        study_name=f"search {seed}",  # by it and the number of a trial Hyperband chooses a bracket
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True),
        pruner=optuna.pruners.HyperbandPruner(min_resource=LEAST, max_resource=WHOLE, reduction_factor=ETA),
    )
    choices: dict[str, optuna.distributions.BaseDistribution] = {
        name: optuna.distributions.CategoricalDistribution(list(some)) for name, some in space.items()
    }
    while True:
        trial = study.ask(choices)
        genotype = [trial.params[position] for position in space]
        for step in range(1, WHOLE + 1):
            score = yield genotype, step
            trial.report(score, step)
            if step < WHOLE and trial.should_prune():
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                break
        else:
            study.tell(trial, score)


def neps(name: str) -> Callable[[Space, int], Search]:
    """An algorithm of NePS, by its own interface for asking and telling; no prior is given."""

    def search(space: Space, seed: int) -> Search:
        import neps
        import numpy as np
        import torch
        from neps.space import SearchSpace, parameters

        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        choices = {position: parameters.HPOCategorical(list(some)) for position, some in space.items()}
        steps = parameters.HPOInteger(LEAST, WHOLE, is_fidelity=True)
        optimizer = neps.AskAndTell(getattr(neps.algorithms, name)(SearchSpace({**choices, "steps": steps})))
        had: dict[tuple[str, ...], int] = {}
        while True:
            trial = optimizer.ask()
            genotype = [trial.config[position] for position in space]
            end = int(trial.config["steps"])
            score = yield genotype, end
            cost = max(0, end - had.get(tuple(genotype), 0)) / WHOLE
            had[tuple(genotype)] = max(end, had.get(tuple(genotype), 0))
            optimizer.tell(trial, {"objective_to_minimize": 1 - score, "cost": cost})

    return search


def dehb(space: Space, seed: int) -> Search:
    import ConfigSpace
    from dehb import DEHB

    choices = ConfigSpace.ConfigurationSpace(seed=seed)
    for position, some in space.items():
        choices.add(ConfigSpace.Categorical(position, items=list(some)))
    with tempfile.TemporaryDirectory() as folder:
        optimizer = DEHB(
            f=None, cs=choices, min_fidelity=LEAST, max_fidelity=WHOLE, eta=ETA, n_workers=1, output_path=folder,
            seed=seed, log_level="CRITICAL", save_freq="end",
        )  # fmt: skip
        while True:
            job = optimizer.ask()
            config = dict(job["config"])
            end = round(job["fidelity"])
            score = yield [str(config[position]) for position in space], end
            optimizer.tell(job, {"fitness": 1 - score, "cost": end / WHOLE})


SEARCHES: dict[str, Callable[[Space, int], Search]] = {
    "syne_tune_asha": syne_tune("ASHA"),
    "syne_tune_bohb": syne_tune("BOHB"),
    "neps_hyperband": neps("hyperband"),
    "neps_priorband": neps("priorband"),
    "dehb": dehb,
    "optuna_hyperband": optuna_hyperband,
}
PACKAGES = ("syne-tune", "neural-pipeline-search", "dehb", "optuna")


def answer(search: Search, score: float | None) -> dict[str, Any]:
    """The next line out.

    Args:
        score: of what was asked for; None at the start of a search.
    """
    try:
        genotype, step = next(search) if score is None else search.send(score)
    except StopIteration:
        return {"done": True}
    return {"ask": genotype, "share": step / WHOLE}


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    out, sys.stdout = sys.stdout, sys.stderr  # packages print
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    print(json.dumps({"versions": found}), file=out, flush=True)
    search: Search | None = None
    for line in sys.stdin:
        told = json.loads(line)
        try:
            if "play" in told:
                if search is not None:
                    search.close()
                search = SEARCHES[told["play"]](told["space"], told["seed"])
            assert search is not None  # nothing is scored before there is a search
            reply = answer(search, told.get("score"))
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({**reply, "seconds": time.process_time()}), file=out, flush=True)


if __name__ == "__main__":
    main()
