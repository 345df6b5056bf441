"""What samplers of our own make of failures, stops and limits."""

from __future__ import annotations

from functools import partial
from itertools import pairwise, product

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution
from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec
from l2l_nas.nas.objectives import Goal, State
from l2l_nas.nas.samplers.base import GenotypeSampler
from l2l_nas.nas.strategies.trials import Proposer
from l2l_nas.nas.study.storage import Unsaved
from l2l_nas.nas.study.study import Study
from l2l_nas.space.constraint import Require, first_violation
from l2l_nas.space.sampling import UniformPaths

POSITIONS, CANDIDATES, TRIALS = 8, 3, 64


@pytest.fixture(scope="module")
def pool():
    """6,561 architectures; the layers are never run."""
    own = [Candidate(f"c{index}", partial(nn.Linear, 2, 2 + index)) for index in range(CANDIDATES)]
    return LayerPool([Position(f"p{index}", own) for index in range(POSITIONS)], inputs=TensorSpec((2,)))


def made_up(seed):
    """A score with neighbours that depend on each other, and a cost, of an architecture."""
    generator = np.random.default_rng(seed)
    weights = generator.normal(size=(POSITIONS, CANDIDATES))
    pairs = 0.7 * generator.normal(size=(POSITIONS - 1, CANDIDATES, CANDIDATES))
    costs = generator.exponential(size=(POSITIONS, CANDIDATES))

    def score(architecture):
        chosen = [int(choice[1:]) for choice in architecture.choices]
        own = sum(weights[place, one] for place, one in enumerate(chosen))
        return own + sum(pairs[place, *both] for place, both in enumerate(pairwise(chosen)))

    def cost(architecture):
        return sum(costs[place, int(choice[1:])] for place, choice in enumerate(architecture.choices))

    return score, cost


def searched(pool, sampler, *, seed, score, fails=lambda architecture: False, constraints=()):
    """The records of a search of the made-up problem, and how often a random architecture took the sampler's place."""
    goals = [Goal("accuracy", True)]
    study = Study(Unsaved(), pool=pool, goals=goals, sampler=sampler, seed=seed, num_trials=TRIALS)
    study.inform(lambda architecture: first_violation(architecture, constraints) is None)
    records, replaced, propose = [], [], study.propose
    study.propose = lambda architecture: (replaced.append(architecture), propose(architecture))[1]
    draws = UniformPaths(pool, seed=seed, constraints=constraints)
    proposer = Proposer(study, pool, constraints=constraints, draws=draws, note=records.append)
    for _ in range(TRIALS):
        trial, architecture = proposer.next(())
        if fails(architecture):
            reported = {"state": State.FAILED, "reason": "always"}
        else:
            reported = {"state": State.COMPLETE, "values": {"accuracy": score(architecture)}}
        records.append(study.tell(trial, **reported))
        proposer.record(records[-1])
    return records, replaced


@pytest.mark.slow
@pytest.mark.parametrize(("sampler", "most"), [("gp_hamming", 8), ("evolution", 11)])
def test_a_candidate_that_always_fails_is_soon_left_alone(pool, sampler, most):
    def fails(architecture):
        return architecture.choices[4] == "c0"  # a third of the space: 21 of 64 at random

    failed = [
        sum(
            record.state is State.FAILED
            for record in searched(pool, sampler, seed=seed, score=made_up(seed)[0], fails=fails)[0]
        )
        for seed in range(3)
    ]
    assert np.mean(failed) <= most


@pytest.mark.parametrize("sampler", ["random", "gp_hamming", "evolution"])
def test_what_limits_refuse_is_not_proposed(pool, sampler):
    score, cost = made_up(0)
    draws = UniformPaths(pool, seed=1)
    limit = np.quantile([cost(draws.path_at(step)) for step in range(1000)], 0.1)
    limits = (Require("little", lambda architecture: cost(architecture) <= limit),)
    records, replaced = searched(pool, sampler, seed=0, score=score, constraints=limits)
    refused = [record for record in records if record.state is State.PRUNED]
    assert sum(record.state is State.COMPLETE for record in records) == TRIALS
    # before its first finished trial Optuna tells a sampler nothing of the space
    assert all(record.number < 25 for record in refused)
    assert len(replaced) <= 1


class Recorder(GenotypeSampler):
    """Proposes anything new, and keeps what it was given."""

    def propose(self, space, history, rng):
        self.history = history
        return next(one for one in product(*space.values()) if history.is_new(one))


def test_a_failed_trial_counts_as_the_worst_and_a_stopped_one_as_a_quarter_of_the_complete():
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = Recorder(seed=0)
    study = optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)
    choices = CategoricalDistribution(["a", "b", "c"])

    def add(genotype, state, values=None, **attributes):
        params = dict(zip("pq", genotype, strict=True))
        study.add_trial(
            optuna.trial.create_trial(
                params=params,
                distributions=dict.fromkeys("pq", choices),
                values=values,
                state=state,
                user_attrs=attributes,
            )
        )

    states = optuna.trial.TrialState
    add("aa", states.FAIL, reason="NaN")
    for genotype, value in (("ab", 0.0), ("ac", 1.0), ("ba", 2.0), ("bb", 3.0), ("bc", 4.0)):
        add(genotype, states.COMPLETE, [value, 10 - value])
    add("ca", states.PRUNED, stopped=True)
    add("cb", states.PRUNED, reason="too large")  # refused: it says nothing of the score
    add("cc", states.FAIL)  # given to another process
    add("ab", states.FAIL, reason="NaN")  # the first of a genotype counts
    with pytest.raises(StopIteration):  # nothing is new
        study.ask(dict.fromkeys("pq", choices))
    reported = {"".join(one.genotype): one.values for one in sampler.history.scored}
    assert reported["aa"] == (0.0, -10.0)
    assert reported["ca"] == (1.0, -9.0)
    assert reported["ab"] == (0.0, -10.0)
    assert {"cb", "cc"}.isdisjoint(reported)
    assert list(reported) == ["aa", "ab", "ac", "ba", "bb", "bc", "ca"]


def test_a_sampler_knows_the_goals_that_are_costs_and_which_way_is_better(pool):
    goals = [Goal("accuracy", True), Goal("parameters", False)]
    study = Study(Unsaved(), pool=pool, goals=goals, sampler="gp_hamming", seed=0, num_trials=4)
    sampler = study._memory.sampler = Recorder(seed=0)
    study.inform(lambda architecture: True, {"parameters": lambda one: float(one.choices.count("c0")), "flops": float})
    for _ in range(2):
        trial, architecture = study.ask()
        values = {"accuracy": 0.5, "parameters": float(architecture.choices.count("c0"))}
        study.tell(trial, State.COMPLETE, values)
    assert list(sampler.history.known) == [1]
    assert sampler.history.known[1](("c0", "c1", "c0", *["c2"] * 5)) == -2.0


def test_architectures_that_the_user_names_are_tried_first_once_and_say_so(pool):
    study = Study(Unsaved(), pool=pool, goals=[Goal("accuracy", True)], sampler="random", seed=0, num_trials=4)
    first = [pool.architecture([name] * POSITIONS) for name in ("c0", "c1", "c2")]
    refuses_c1 = Require("no c1", lambda architecture: "c1" not in architecture.choices[:1])
    records = []

    def proposer(named):
        draws = UniformPaths(pool, seed=0, constraints=[refuses_c1])
        return Proposer(study, pool, constraints=[refuses_c1], draws=draws, note=records.append, first=named)

    asked = proposer([first[0], first[0], first[1]])
    for _ in range(2):
        records.append(study.tell(asked.next(())[0], State.COMPLETE, {"accuracy": 0.5}))
        asked.record(records[-1])
    assert [record.architecture for record in records[:2]] == first[:2]
    assert records[1].state is State.PRUNED
    marked = [t.user_attrs.get("enqueued", False) for t in study._memory.trials if t.state.is_finished()]
    assert marked[:3] == [True, True, False]
    assert proposer(first).next(())[1] == first[2]  # what has a trial is not tried again
