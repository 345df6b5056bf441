from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kendalltau

from l2l_nas.nas.earlier_task import EarlierTask, NetworkScore
from l2l_nas.nas.objectives import Goal
from l2l_nas.nas.samplers import gaussian_process, prior
from l2l_nas.nas.samplers.base import History, Scored
from l2l_nas.nas.samplers.gaussian_process import Fit, Model, ModelData, OneHot
from l2l_nas.nas.samplers.hamming_gp import HammingGP
from l2l_nas.nas.samplers.prior import EarlierData, EarlierModels

SPACE = {f"p{index}": tuple("abcde") for index in range(8)}
GOAL = (Goal("accuracy", True),)
NAMES = list(SPACE)


def effects(seed):
    return np.random.default_rng(seed).normal(size=(len(SPACE), 5))


def score(genotype, seed):
    """The same part for all tasks, and half as much of a task's own."""
    columns = ["abcde".index(value) for value in genotype]
    both = effects(0) + 0.5 * effects(seed)
    return float(sum(both[position, column] for position, column in enumerate(columns)))


def scores(count, seed, *, values=None, steps=10, space=SPACE, noise=0.3):
    rng, generator = random.Random(seed), np.random.default_rng(seed)
    drawn = [tuple(map(rng.choice, space.values())) for _ in range(count)]
    found = [score(one, seed) + noise * generator.normal() for one in drawn] if values is None else values
    return tuple(
        NetworkScore(dict(zip(space, one, strict=True)), steps, {"accuracy": float(value)})
        for one, value in zip(drawn, found, strict=True)
    )


def tasks(*seeds, count=80, change=lambda task, seed: task):
    return tuple(change(EarlierTask(f"task {s}", str(s), 10, scores(count, s)), s) for s in seeds)


def shuffled(task, seed):
    order = np.random.default_rng(seed).permutation(len(task.scores))
    pairs = zip(task.scores, order, strict=True)
    return replace(task, scores=tuple(replace(a, values=task.scores[b].values) for a, b in pairs))


def turned(task, seed):
    return replace(task, scores=tuple(replace(a, values={"accuracy": -a.values["accuracy"]}) for a in task.scores))


def sampler_with(earlier, *, is_raced=True, goals=GOAL, seed=0):
    sampler = HammingGP(seed=seed, start=6)
    sampler.inform(lambda params: True, is_raced=is_raced, earlier_tasks=earlier, goals=goals)
    return sampler


def searched(sampler, *, trials, seed=0, noise=0.3, task=9, space=SPACE):
    rng, generator = random.Random(seed), np.random.default_rng(seed)
    scored, seen = [], set()
    for _ in range(trials):
        genotype = sampler.propose(space, History(scored, seen), rng)
        assert genotype not in seen
        seen.add(genotype)
        scored.append(Scored(genotype, (score(genotype, task) + noise * float(generator.normal()),)))
    return scored


def best_of(earlier, *, is_raced, trials=12, seeds=range(6)):
    """The best true value that a search sees, in the mean."""
    found = []
    for seed in seeds:
        scored = searched(sampler_with(earlier, is_raced=is_raced), trials=trials, seed=seed)
        found.append(max(score(one.genotype, 9) for one in scored))
    return np.mean(found)


DEVIATION = np.std([score(tuple(random.Random(s).choices("abcde", k=8)), 9) for s in range(300)])


@pytest.mark.parametrize("is_raced", [True, False])
def test_tasks_that_agree_make_a_short_search_better(is_raced):
    alone = best_of((), is_raced=is_raced)
    assert best_of(tasks(1, 2), is_raced=is_raced) > alone + 0.5 * DEVIATION


@pytest.mark.slow
@pytest.mark.parametrize("is_raced", [True, False])
def test_tasks_that_say_nothing_cost_next_to_nothing(is_raced):
    seeds = range(24)
    alone = best_of((), is_raced=is_raced, trials=24, seeds=seeds)
    earlier = tasks(1, 2, change=shuffled)
    assert best_of(earlier, is_raced=is_raced, trials=24, seeds=seeds) > alone - 0.25 * DEVIATION


def test_weights_tell_tasks_that_agree_from_one_that_says_the_opposite():
    rng = random.Random(5)
    genotypes = list(dict.fromkeys(tuple(map(rng.choice, SPACE.values())) for _ in range(80)))
    values = np.array([score(one, 9) for one in genotypes])
    encoding = OneHot(SPACE)
    told = EarlierModels(tasks(1, 2) + tasks(3, change=turned), GOAL, encoding, most=300).prior([0], is_raced=True)
    first, second, third = Fit().model(ModelData(genotypes, values, encoding, told), 80).agreement
    assert min(first, second) > 0.1
    assert third < 0.01


def test_the_first_proposals_are_good_ones_by_earlier_tasks_and_differ():
    sampler = sampler_with(tasks(1, 2))
    found = [sampler.propose(SPACE, History([], set()), random.Random(seed)) for seed in range(20)]
    assert np.mean([score(one, 9) for one in found]) > 1.2 * DEVIATION
    assert len(set(found)) > 3


def test_tasks_that_have_nothing_of_this_search_change_no_proposal():
    other = {f"q{index}": tuple("abcde") for index in range(8)}
    earlier = (
        EarlierTask("loss", "0", 10, tuple(replace(one, values={"loss": 1.0}) for one in scores(30, 1))),
        EarlierTask("positions", "1", 10, scores(30, 1, values=range(30), space=other)),
        EarlierTask("nothing", "2", 10, ()),
    )
    assert searched(sampler_with(earlier), trials=20) == searched(sampler_with(()), trials=20)


def predicted(earlier, genotypes, *, goal=GOAL[0]):
    models = EarlierModels(earlier, [goal], OneHot(SPACE), most=300)
    return [column[:, 0] for column in models.prior([0], is_raced=True).columns(genotypes)]


def drawn(count, seed=11):
    rng = random.Random(seed)
    return [tuple(map(rng.choice, SPACE.values())) for _ in range(count)]


def test_positions_are_matched_by_name_and_what_is_not_known_of_them_does_not_matter():
    def reordered(task, seed):
        return replace(
            task, scores=tuple(replace(one, params=dict(sorted(one.params.items())[::-1])) for one in task.scores)
        )

    def without_the_last(task, seed):
        names = NAMES[:-1]
        return replace(
            task, scores=tuple(replace(one, params={n: one.params[n] for n in names}) for one in task.scores)
        )

    genotypes = drawn(100)
    np.testing.assert_allclose(
        predicted(tasks(1), genotypes), predicted(tasks(1, change=reordered), genotypes), rtol=1e-6
    )
    told = predicted(tasks(1, change=without_the_last), genotypes)[1]
    assert kendalltau(told, [score(one, 1) for one in genotypes])[0] > 0.4
    changed = predicted(tasks(1, change=without_the_last), [(*one[:-1], "a") for one in genotypes])[1]
    np.testing.assert_allclose(told, changed)


def test_networks_of_which_a_position_is_not_known_that_others_have_are_left_out():
    def with_others(task, seed):
        more = tuple(replace(one, params={name: one.params[name] for name in NAMES[1:]}) for one in scores(30, 5))
        return replace(task, scores=task.scores + more)

    genotypes = drawn(50)
    np.testing.assert_allclose(predicted(tasks(1), genotypes), predicted(tasks(1, change=with_others), genotypes))


def test_where_less_is_better_the_least_is_predicted_to_be_best():
    def negative(task, seed):
        return replace(
            task, scores=tuple(replace(one, values={"loss": -one.values["accuracy"]}) for one in task.scores)
        )

    genotypes = drawn(20)
    told = predicted(tasks(1, change=negative), genotypes, goal=Goal("loss", False))
    np.testing.assert_allclose(told, predicted(tasks(1), genotypes))


def test_long_trainings_of_the_best_tell_what_short_ones_do_not():
    """Short trainings show the first half of the positions alone; a quarter of them go on, and all gain by that."""

    def early(genotype):
        return score((*genotype[:4], *"aaaa"), 1)

    short = [NetworkScore(dict(zip(SPACE, one, strict=True)), 1, {"accuracy": early(one)}) for one in drawn(160, 3)]
    best = sorted(short, key=lambda one: -one.values["accuracy"])[:80]
    long = [NetworkScore(one.params, 10, {"accuracy": 20 + score(tuple(one.params.values()), 1)}) for one in best]
    genotypes = drawn(200)
    seen, end = predicted((EarlierTask("", "", 10, (*short, *long)),), genotypes)
    first, whole = [early(one) for one in genotypes], [score(one, 1) for one in genotypes]
    assert kendalltau(seen, first)[0] > 0.6
    assert kendalltau(end, whole)[0] > kendalltau(seen, whole)[0] + 0.05
    assert kendalltau(end, whole)[0] > 0.4


def few():
    genotypes = list(dict.fromkeys(drawn(14, 2)))
    return genotypes, np.random.default_rng(0).normal(size=len(genotypes))


def test_the_posterior_is_that_of_the_whole_matrix_and_weights_suit_best():
    genotypes, values = few()
    encoding = OneHot(SPACE)
    told = EarlierModels(tasks(1, 2), GOAL, encoding, most=300).prior([0], is_raced=True)
    decays = np.linspace(0.1, 0.4, 8)
    model = Model(ModelData(genotypes, values, encoding, told), decays, 0.2)
    others = drawn(5, 4)

    def near(these, those):
        differing = [[[a != b for a, b in zip(x, y, strict=True)] for y in those] for x in these]
        return np.exp(-(np.array(differing) @ decays))

    columns, inverse = told.columns(genotypes)[0], np.linalg.inv(near(genotypes, genotypes) + 0.2 * np.eye(14))
    rest = model.trials.values - columns @ model.agreement
    mean = inverse.sum(axis=0) @ rest / (inverse.sum() + 1e-3)
    by_hand = mean + told.columns(others)[0] @ model.agreement + near(others, genotypes) @ inverse @ (rest - mean)
    np.testing.assert_allclose(model.posterior(others)[0], by_hand, rtol=1e-5)

    def cost(weights, mean):
        left = model.trials.values - columns @ weights - mean
        off = weights - told.expected
        return left @ inverse @ left + 1e-3 * mean**2 + prior._BELIEF * 2 * off @ off

    here = cost(model.agreement, mean)
    assert model._variance == pytest.approx((here - 1e-3 * mean**2 + 1) / 15, rel=1e-3)
    rng = np.random.default_rng(0)
    for _ in range(200):
        moved = np.maximum(model.agreement + 0.05 * rng.normal(size=2), 0)
        assert cost(moved, mean + 0.05 * rng.normal()) >= here - 1e-9


@pytest.mark.parametrize("kind", ["with a prior mean", "of an earlier task"])
def test_the_slopes_are_those_of_the_likelihood_and_the_priors(kind):
    genotypes, values = few()
    encoding = OneHot(SPACE)
    if kind == "with a prior mean":
        told = EarlierModels(tasks(1, 2), GOAL, encoding, most=300).prior([0], is_raced=True)
        trials = ModelData(genotypes, values, encoding, told)
    else:
        trials = EarlierData(genotypes, values, np.linspace(0, 1, 14).round(1), encoding)
    setting = np.array([0.2, 0.1, -0.3, 0.4, 0.2, 0.0, -0.1, 0.3, 0.1, -1.5])
    slopes = gaussian_process._unlikely(setting, trials)[1]
    steps = 1e-5 * np.eye(len(setting))
    ends = [[gaussian_process._unlikely(setting + sign * step, trials)[0] for sign in (1, -1)] for step in steps]
    np.testing.assert_allclose(slopes, [(up - down) / 2e-5 for up, down in ends], rtol=1e-3, atol=1e-4)


def test_neighbours_come_by_their_posterior_mean_with_the_prior():
    genotypes, values = few()
    encoding = OneHot(SPACE)
    told = EarlierModels(tasks(1), GOAL, encoding, most=300).prior([0], is_raced=False)
    model = Fit().model(ModelData(genotypes, values, encoding, told), 14)
    found = list(model.neighbours(3))
    assert len(set(found)) == 8 * 4
    assert (np.diff(model.posterior(found)[0]) < 1e-6).all()


def test_what_is_expected_of_trials_in_the_end_rests_on_earlier_tasks_too():
    rng = np.random.default_rng(0)
    genotypes = list(dict.fromkeys(drawn(30, 8)))
    scored = [Scored(one, (score(one, 9) + 6 * float(rng.normal()),)) for one in genotypes]
    history, truth = History(scored, set(genotypes)), [score(one, 9) for one in genotypes]

    def tau(earlier):
        draws = sampler_with(earlier).draws(SPACE, history)
        return kendalltau([draws[one][0].mean() for one in genotypes], truth)[0]

    assert tau(tasks(1, 2)) > tau(()) + 0.15


def test_with_known_costs_too_the_first_proposals_come_by_earlier_tasks():
    goals = (*GOAL, Goal("parameters", False))

    def cost(genotype):
        return -float(genotype.count("e"))

    sampler = sampler_with(tasks(1, 2), is_raced=False, goals=goals)
    rng, scored = random.Random(0), []
    for _ in range(12):
        history = History(scored, {one.genotype for one in scored}, known={1: cost})
        genotype = sampler.propose(SPACE, history, rng)
        scored.append(Scored(genotype, (score(genotype, 9), cost(genotype))))
    assert np.mean([one.values[0] for one in scored]) > 0.5 * DEVIATION
    assert np.mean([one.values[1] for one in scored]) > -1.6  # by chance


def test_two_goals_that_are_both_learned_rest_on_earlier_scores_of_each():
    goals = (*GOAL, Goal("loss", False))

    def with_loss(task, seed):
        return replace(
            task,
            scores=tuple(replace(a, values={**a.values, "loss": -a.values["accuracy"]}) for a in task.scores),
        )

    sampler = sampler_with(tasks(1, 2, change=with_loss), goals=goals)
    rng, scored = random.Random(0), []
    for _ in range(8):
        history = History(scored, {one.genotype for one in scored})
        genotype = sampler.propose(SPACE, history, rng)
        scored.append(Scored(genotype, (score(genotype, 9), score(genotype, 9))))
    assert np.mean([one.values[0] for one in scored]) > DEVIATION
    assert set(sampler.draws(SPACE, history)) == {one.genotype for one in history.scored}


def test_other_earlier_tasks_take_the_place_of_those_before():
    sampler, history = sampler_with(tasks(1)), History([], set())

    def proposed(by):
        return [by.propose(SPACE, history, random.Random(seed)) for seed in range(5)]

    before = proposed(sampler)
    sampler.inform(lambda params: True, is_raced=True, earlier_tasks=tasks(2), goals=GOAL)
    assert before != proposed(sampler) == proposed(sampler_with(tasks(2)))


def test_what_trials_may_come_to_depends_on_them_alone_not_on_what_was_asked_before():
    earlier = tasks(1, 2)
    sampler = sampler_with(earlier)
    scored = searched(sampler, trials=20)
    history = History(scored, {one.genotype for one in scored})
    draws, anew = sampler.draws(SPACE, history), sampler_with(earlier).draws(SPACE, history)
    assert {one: values.tobytes() for one, values in draws.items()} == {
        one: values.tobytes() for one, values in anew.items()
    }


def test_a_space_that_is_spent_is_no_trouble_with_earlier_tasks():
    tiny = {"p0": ("a", "b"), "p1": ("a", "b", "c")}
    sampler = sampler_with((EarlierTask("tiny", "", 10, scores(30, 1, values=range(30), space=tiny)),))
    scored = searched_tiny(sampler, tiny)
    history = History(scored, {one.genotype for one in scored})
    assert sampler.propose(tiny, history, random.Random(0)) in history.seen


def searched_tiny(sampler, space):
    rng, scored, seen = random.Random(0), [], set()
    for _ in range(6):
        genotype = sampler.propose(space, History(scored, seen), rng)
        seen.add(genotype)
        scored.append(Scored(genotype, (1.0,)))
    return scored
