from __future__ import annotations

import random

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import TrialState

from l2l_nas.nas.samplers.base import History, Scored, front, neighbours, random_unseen
from l2l_nas.nas.samplers.evolution import Random, RegularizedEvolution
from l2l_nas.nas.samplers.hamming_gp import HammingGP

SPACE = {f"p{index}": ("a", "b", "c") for index in range(4)}
DISTRIBUTIONS = {name: CategoricalDistribution(values) for name, values in SPACE.items()}
OURS = [
    lambda seed=0: RegularizedEvolution(seed=seed, population=6),
    lambda seed=0: HammingGP(seed=seed),
    lambda seed=0: Random(seed=seed),
]
IDS = ["evolution", "gp_hamming", "random"]


def history_of(*found, also_seen=()):
    scored = [Scored(tuple(word), values if isinstance(values, tuple) else (values,)) for word, values in found]
    return History(scored, {one.genotype for one in scored} | {tuple(word) for word in also_seen})


def distance(a, b):
    return sum(x != y for x, y in zip(a, b, strict=True))


def study_of(sampler, directions=("maximize",)):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(directions=directions, sampler=sampler)


def word(trial):
    return "".join(trial.params[name] for name in SPACE)


def test_a_front_is_what_nothing_dominates():
    one = [Scored(("a",), (1.0,)), Scored(("b",), (2.0,)), Scored(("c",), (2.0,))]
    assert front(one) == one[1:]
    two = [Scored(("a",), (1.0, 1.0)), Scored(("b",), (2.0, 0.0)), Scored(("c",), (0.5, 1.0)), Scored(("d",), (2.0, 0))]
    assert front(two) == [two[0], two[1], two[3]]
    assert front([]) == []


def test_neighbours_differ_in_one_position_and_none_is_missing():
    found = list(neighbours(SPACE, ("a", "a", "b", "c")))
    assert len(found) == len(set(found)) == 8
    assert all(distance(one, ("a", "a", "b", "c")) == 1 for one in found)


def test_a_random_genotype_is_an_unseen_one_while_there_is_one_to_be_found():
    space = {"p": ("a", "b"), "q": ("a", "b")}
    history = history_of(("aa", 0), ("ab", 0), also_seen=["ba"])
    rng = random.Random(0)
    assert {random_unseen(space, history, rng) for _ in range(20)} == {("b", "b")}
    full = history_of(("aa", 0), ("ab", 0), also_seen=["ba", "bb"])
    assert random_unseen(space, full, rng) in full.seen


def test_evolution_takes_its_parents_from_the_youngest():
    # the best is the oldest, and dead: every parent is the better of the last two
    history = history_of(("cccc", 9), ("aaaa", 1), ("aaab", 2), ("aaba", 3))
    sampler = RegularizedEvolution(seed=0, population=2)
    rng = random.Random(0)
    children = [sampler.propose(SPACE, history, rng) for _ in range(40)]
    assert all(distance(child, tuple("aaba")) == 1 for child in children)
    assert not history.seen & set(children)
    three = RegularizedEvolution(seed=0, population=3)  # the best of them is in two of three tournaments
    children = [three.propose(SPACE, history, rng) for _ in range(40)]
    assert any(distance(child, tuple("aaba")) > 1 for child in children)


def test_evolution_changes_more_positions_where_all_near_mutants_are_known():
    center = tuple("aaaa")
    history = history_of(("aaaa", 1), also_seen=neighbours(SPACE, center))
    child = RegularizedEvolution(seed=0, population=1).propose(SPACE, history, random.Random(0))
    assert distance(child, center) == 2


@pytest.mark.parametrize("make", OURS, ids=IDS)
def test_what_runs_was_refused_or_failed_is_not_proposed_again(make):
    study = study_of(make())
    words = []
    for number in range(60):
        trial = study.ask(DISTRIBUTIONS)
        words.append(word(trial))
        if number % 4 == 0:
            study.tell(trial, state=TrialState.PRUNED)
        elif number % 4 == 1:
            study.tell(trial, state=TrialState.FAIL)
        elif number % 4 == 2:
            study.tell(trial, words[-1].count("a"))
        # the rest keep running
    assert len(set(words[1:])) == 59  # of the first trial Optuna tells nothing before it is finished


def test_a_trial_that_was_stopped_counts_as_worse_than_three_of_four_and_a_failed_one_as_the_worst():
    class Noting(Random):
        def propose(self, space, history, rng):
            self.found = {"".join(one.genotype): one.values for one in history.scored}
            return super().propose(space, history, rng)

    sampler = Noting(seed=0)
    study = study_of(sampler)

    def add(text, state, value=None, **attributes):
        params = dict(zip(SPACE, text, strict=True))
        about = {"params": params, "distributions": DISTRIBUTIONS, "value": value, "user_attrs": attributes}
        study.add_trial(optuna.trial.create_trial(state=state, **about))

    add("abcc", TrialState.PRUNED, stopped=3)
    add("bbcc", TrialState.FAIL, reason="no")
    add("cbcc", TrialState.PRUNED)  # refused
    for value, last in enumerate(("aa", "ab", "ac", "ba", "bb")):
        add("aa" + last, TrialState.COMPLETE, value=float(value))
    study.ask(DISTRIBUTIONS)
    assert [sampler.found.get(text) for text in ("abcc", "bbcc", "cbcc", "aabb")] == [(1.0,), (0.0,), None, (4.0,)]


@pytest.mark.parametrize("make", OURS, ids=IDS)
def test_a_study_read_back_goes_on_with_the_population_it_had(make):
    study = study_of(make(0))
    for _ in range(20):
        trial = study.ask(DISTRIBUTIONS)
        study.tell(trial, word(trial).count("a"))
    proposals = []
    for _ in range(2):
        again = study_of(make(7))
        again.add_trials(study.trials)
        proposals.append([word(again.ask(DISTRIBUTIONS)) for _ in range(3)])
    assert proposals[0] == proposals[1]
    assert not set(proposals[0]) & {word(trial) for trial in study.trials}


@pytest.mark.parametrize("make", OURS[:2], ids=IDS[:2])
@pytest.mark.parametrize("directions", [("maximize",), ("minimize",), ("maximize", "minimize")], ids=" ".join)
def test_the_best_of_a_space_is_found_in_a_third_of_its_evaluations(make, directions):
    space = {f"p{index}": CategoricalDistribution(("a", "b", "c")) for index in range(5)}
    goal = "a" if directions[0] == "maximize" else "b"
    sign = 1 if directions[0] == "maximize" else -1
    study = study_of(make(), directions)
    best = 0
    for _ in range(80):
        trial = study.ask(space)
        count = sum(value == goal for value in trial.params.values())
        best = max(best, count)
        study.tell(trial, [sign * count, list(trial.params.values()).count("c")][: len(directions)])
    assert best == 5


@pytest.mark.parametrize("make", OURS, ids=IDS)
def test_parameters_may_be_integers_and_ones_without_choice_are_left_out(make):
    space = {"slot": IntDistribution(0, 6, step=2), "p": CategoricalDistribution(("a",)), "q": IntDistribution(0, 1)}
    study = study_of(make())
    found = set()
    for _ in range(8):
        trial = study.ask(space)
        assert trial.params["p"] == "a"
        found.add((trial.params["slot"], trial.params["q"]))
        study.tell(trial, 0.0)
    assert len(found) == 8


def test_what_the_cache_served_is_no_member_of_the_population():
    seen = []

    class Looking(RegularizedEvolution):
        """Remembers what it is shown, as nothing else tells."""

        def propose(self, space, history, rng):
            seen.append(history)
            return super().propose(space, history, rng)

    study = study_of(Looking(seed=0))
    for number in range(4):
        trial = study.ask(DISTRIBUTIONS)
        trial.set_user_attr("cached", number == 1)
        study.tell(trial, float(number))
    study.ask(DISTRIBUTIONS)
    assert len(seen[-1].scored) == 3
    assert len(seen[-1].seen) == 4
