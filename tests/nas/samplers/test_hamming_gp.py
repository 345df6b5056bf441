from __future__ import annotations

import random

import numpy as np
import pytest
from scipy.stats import kendalltau

from l2l_nas.nas.samplers import gaussian_process, hamming_gp
from l2l_nas.nas.samplers.base import History, Scored, neighbours, random_unseen
from l2l_nas.nas.samplers.gaussian_process import Fit, Model, ModelData, OneHot, WholeSpace
from l2l_nas.nas.samplers.hamming_gp import HammingGP

SPACE = {"p": ("a", "b", "c"), "q": ("a", "b"), "r": (1, 2, 3, 4), "s": ("x", "y", "z")}


def drawn(count, *, seed=0, space=SPACE):
    rng = random.Random(seed)
    seen = set()
    while len(seen) < count:
        seen.add(random_unseen(space, History([], seen), rng))
    return sorted(seen, key=str)


DECAYS = np.array([0.1, 0.9, 0.4, 0.2])


def model_of(count=12, *, noise=0.1, seed=0):
    genotypes = drawn(count, seed=seed)
    values = np.random.default_rng(seed).normal(size=count)
    return Model(ModelData(genotypes, values, OneHot(SPACE)), DECAYS, noise)


def covariance(these, those):
    differing = [[[a != b for a, b in zip(x, y, strict=True)] for y in those] for x in these]
    return np.exp(-(np.array(differing) @ DECAYS))


def posterior(model, candidates, *, noise=0.1):
    """By inverting the whole matrix."""
    genotypes, values = model.trials.genotypes, model.trials.values
    inverse = np.linalg.inv(covariance(genotypes, genotypes) + noise * np.eye(len(genotypes)))
    near = covariance(candidates, genotypes)
    means = model._mean + near @ inverse @ (values - model._mean)
    return means, covariance(candidates, candidates) - near @ inverse @ near.T


def test_posterior_means_are_those_of_the_whole_matrix():
    model = model_of()
    np.testing.assert_allclose(model.means, posterior(model, model.trials.genotypes)[0], rtol=1e-9)


def test_the_neighbours_of_a_trial_come_by_their_posterior_mean():
    model = model_of()
    for center, genotype in enumerate(model.trials.genotypes):
        found = list(model.neighbours(center))
        assert set(found) == set(neighbours(SPACE, genotype))
        assert len(found) == len(set(found)) == 3 - 1 + 2 - 1 + 4 - 1 + 3 - 1
        means = posterior(model, found)[0]
        assert (np.diff(means) < 1e-9).all()


def test_what_a_candidate_promises_is_the_gain_if_the_best_observed_is_taken():
    model = model_of()
    candidates = [one for one in drawn(40, seed=1) if one not in model.trials.genotypes][:5]
    best = int(np.argmax(model.trials.values))
    means, covariances = posterior(model, candidates)
    rng = np.random.default_rng(0)
    for index, promised in enumerate(model.promise(candidates)):
        true = rng.normal(means[index], np.sqrt(model._variance * covariances[index, index]), size=400_000)
        seen = true + rng.normal(size=true.size) * np.sqrt(model._noise)
        gain = np.where(seen > model.trials.values[best], true - model.means[best], 0).mean()
        assert promised == pytest.approx(gain, abs=0.005)


def test_what_all_of_a_space_promises_is_what_each_does_whatever_was_asked_before():
    genotypes, values = drawn(20), np.random.default_rng(0).normal(size=20)
    encoding = OneHot(SPACE)
    space = WholeSpace(encoding)
    assert len(space.genotypes) == len(set(space.genotypes)) == 3 * 2 * 4 * 3
    without_the_third = [*range(2), *range(3, 16)]
    for chosen, decays, noise in [
        (range(8), DECAYS, 0.1), (range(12), DECAYS, 0.1), (without_the_third, DECAYS, 0.1),
        (range(16), 2 * DECAYS, 0.1), (range(16), 2 * DECAYS, 0.3), (range(5), DECAYS, 0.3),
    ]:  # fmt: skip
        trials = ModelData([genotypes[index] for index in chosen], values[list(chosen)], encoding)
        model = Model(trials, decays, noise)
        expected = model.promise(space.genotypes)
        np.testing.assert_allclose(model.promise_of_all(space), expected, rtol=1e-3, atol=1e-5 * expected.max())


def test_the_likelihood_is_that_of_the_data_with_mean_and_variance_solved_for():
    model = model_of(noise=0.3)
    count = len(model.trials.values)
    matrix = covariance(model.trials.genotypes, model.trials.genotypes) + 0.3 * np.eye(count)
    rest = model.trials.values - model._mean
    variance = (rest @ np.linalg.inv(matrix) @ rest + 1) / (count + 1)
    expected = -(np.linalg.slogdet(matrix)[1] + count * np.log(variance)) / 2
    assert model.likelihood == pytest.approx(expected)


def test_noise_and_decay_are_resolved():
    genotypes = drawn(60)
    encoding = OneHot(SPACE)
    rng = np.random.default_rng(0)
    effects = {(name, value): rng.normal() for name, values in SPACE.items() for value in values}
    smooth = np.array([sum(effects[key] for key in zip(SPACE, one, strict=True)) for one in genotypes])
    found = [
        Fit().model(ModelData(genotypes, values, encoding), 60).noise_share for values in (smooth, rng.normal(size=60))
    ]
    assert found[0] < 0.05 <= found[1] / 4


def test_the_slopes_are_those_of_the_likelihood_and_the_priors():
    trials = model_of().trials
    setting = np.array([0.2, 0.1, -0.3, 0.4, 0.2, -1.5])
    slopes = gaussian_process._unlikely(setting, trials)[1]
    steps = 1e-5 * np.eye(len(setting))
    ends = [[gaussian_process._unlikely(setting + sign * step, trials)[0] for sign in (1, -1)] for step in steps]
    np.testing.assert_allclose(slopes, [(up - down) / 2e-5 for up, down in ends], rtol=1e-4, atol=1e-6)


def test_a_position_that_decides_has_the_shortest_length():
    genotypes = drawn(40)
    values = np.array([{"a": 0.0, "b": 2.0, "c": 5.0}[one[0]] for one in genotypes])
    noisy = values + np.random.default_rng(0).normal(size=40)
    model = Fit().model(ModelData(genotypes, noisy, OneHot(SPACE)), 40)
    assert model.decays[0] > 3 * model.decays[1:].max()


def test_what_is_believed_of_trials_is_nearer_to_the_truth_than_their_scores():
    rng = np.random.default_rng(0)
    genotypes = drawn(50)
    effects = {(name, value): rng.normal() for name, values in SPACE.items() for value in values}
    truth = [sum(effects[key] for key in zip(SPACE, one, strict=True)) for one in genotypes]
    scores = truth + rng.normal(size=50) * np.std(truth)
    scored = [Scored(one, (score, 1.0)) for one, score in zip(genotypes, scores.tolist(), strict=True)]
    known = {1: lambda genotype: 1.0}
    posterior = HammingGP(seed=0).draws(SPACE, History(scored, set(genotypes), known=known))
    assert all((values[1] == 1).all() for values in posterior.values())
    found = [posterior[one][0].mean() for one in genotypes]
    assert kendalltau(found, truth)[0] > kendalltau(scores, truth)[0] + 0.05
    assert np.mean(found) == pytest.approx(np.mean(truth), abs=0.5)
    other = HammingGP(seed=1).draws(SPACE, History(scored[::-1], set(genotypes), known=known))
    # neither the order of trials nor what the sampler did before is a part of it
    assert all((other[one] == posterior[one]).all() for one in genotypes)
    assert HammingGP(seed=0, start=51).draws(SPACE, History(scored, set(genotypes))) == {}


def test_of_many_trials_those_are_believed_in_that_are_best_or_latest(monkeypatch):
    monkeypatch.setattr(hamming_gp, "_FEWEST", 10)
    monkeypatch.setattr(hamming_gp, "_BY_POSITION", 1)
    genotypes = drawn(40)
    scores = np.random.default_rng(0).permutation(40).astype(float)
    scored = [Scored(one, (score,)) for one, score in zip(genotypes, scores.tolist(), strict=True)]
    random.Random(0).shuffle(scored)
    posterior = HammingGP(seed=0).draws(SPACE, History(scored, set(genotypes)))
    best = sorted(scored, key=lambda one: -one.values[0])[:5]
    assert set(posterior) == {one.genotype for one in best} | {
        one.genotype for one in [one for one in scored if one not in best][-5:]
    }


def test_draws_are_those_of_the_joint_posterior_and_of_what_further_training_changes():
    model = model_of()
    candidates = [one for one in drawn(40, seed=1) if one not in model.trials.genotypes][:4]
    means, covariances = posterior(model, candidates)
    rng = np.random.default_rng(0)
    some = np.concatenate([model.draws(candidates, 0.5, rng) for _ in range(400)], axis=1)
    np.testing.assert_allclose(some.mean(axis=1), means, atol=0.02)
    expected = model._variance * (covariances + 0.5 * covariance(candidates, candidates))
    np.testing.assert_allclose(np.cov(some), expected, atol=0.03)


def test_what_a_candidate_promises_in_a_race_is_its_gain_over_whichever_trial_comes_out_best():
    model = model_of()
    trials = list(model.trials.genotypes)
    candidates = [one for one in drawn(40, seed=1) if one not in trials][:6]
    means, covariances = posterior(model, [*trials, *candidates])
    further = gaussian_process.FURTHER * covariance([*trials, *candidates], [*trials, *candidates])
    spread = model._variance * (covariances + further)
    drawn_by_hand = np.random.default_rng(0).multivariate_normal(means, spread, size=200_000)
    best = drawn_by_hand[:, : len(trials)].max(axis=1, keepdims=True)
    gains = np.maximum(drawn_by_hand[:, len(trials) :] - best, 0).mean(axis=0)
    found = np.mean([model.race(candidates, random.Random(seed)) for seed in range(200)], axis=0)
    np.testing.assert_allclose(found, gains, atol=0.005)
    assert gains.max() > 0.03


@pytest.mark.slow
def test_in_a_race_good_values_come_together_while_the_rest_stays_as_mixed_as_chance_has_it():
    space = {f"p{index}": tuple("abcd") for index in range(8)}

    def proposed(is_raced):
        sampler = HammingGP(seed=0, start=8)
        sampler.is_raced = is_raced
        noise = random.Random(0)
        scored = searched(
            sampler, lambda one: (one[0] == "a") + (one[1] == "b") + noise.gauss(0, 0.1), trials=48, space=space
        )
        return [one.genotype for one in scored[24:]]

    raced, climbed = proposed(True), proposed(False)

    def spread(genotypes):
        return np.mean([sum(a != b for a, b in zip(x[2:], y[2:], strict=True)) for x in genotypes for y in genotypes])

    assert sum(one[:2] == ("a", "b") for one in raced) > 12  # by chance 1.5
    assert spread(raced) > 4  # by chance 4.5
    assert spread(raced) > spread(climbed)


@pytest.mark.slow
def test_in_a_race_limits_that_chance_does_not_meet_are_met_among_the_neighbours_of_the_best():
    space = {f"p{index}": tuple("abcd") for index in range(10)}

    def is_allowed(genotype):
        return genotype.count("a") >= 8

    sampler = HammingGP(seed=0, start=4)
    sampler.is_raced = True
    some = [tuple("a" * 8 + one + other) for one in "abc" for other in "abc"]
    scored = [Scored(one, (float(index),)) for index, one in enumerate(some)]
    found = [sampler.propose(space, History(scored, set(some), is_allowed), random.Random(seed)) for seed in range(20)]
    assert all(map(is_allowed, found))


def searched(sampler, score, *, trials, space, seed=0):
    """All that was scored."""
    rng = random.Random(seed)
    scored, seen = [], set()
    for _ in range(trials):
        genotype = sampler.propose(space, History(scored, seen), rng)
        assert genotype not in seen
        seen.add(genotype)
        values = score(genotype)
        scored.append(Scored(genotype, values if isinstance(values, tuple) else (values,)))
    return scored


WIDE = {f"p{index}": tuple("abcde") for index in range(10)}


def matches(genotype):
    return float(sum(value == "abcde"[index % 5] for index, value in enumerate(genotype)))


@pytest.mark.parametrize("climbs", [1, 2])
def test_the_one_best_of_ten_million_is_found_in_sixty_trials(climbs):
    scored = searched(HammingGP(seed=0, climbs=climbs, merge=30 * (climbs - 1)), matches, trials=60, space=WIDE)
    assert max(one.values[0] for one in scored) == 10
    assert max(one.values[0] for one in scored[:6]) < 7


def test_climbs_know_nothing_of_each_other_until_they_are_merged():
    genotypes = drawn(20, space=WIDE)
    scored = [Scored(one, (matches(one),)) for one in genotypes]
    changed = [one if index % 2 == 0 else Scored(one.genotype, (-one.values[0],)) for index, one in enumerate(scored)]

    def proposal(trials, merge):
        sampler = HammingGP(seed=0, start=4, climbs=2, merge=merge)
        return sampler.propose(WIDE, History(trials, set(genotypes)), random.Random(0))

    assert proposal(scored, 21) == proposal(changed, 21)
    assert proposal(scored, 20) != proposal(changed, 20)


def test_in_a_small_space_what_promises_most_of_all_comes_next_wherever_it_is():
    space = {f"p{index}": ("a", "b", "c") for index in range(8)}
    genotypes = drawn(30, space=space)
    values = np.array([float(one.count("a")) for one in genotypes])
    scored = [Scored(one, (value,)) for one, value in zip(genotypes, values.tolist(), strict=True)]
    history = History(scored, set(genotypes), lambda genotype: genotype[2] != "a")
    others = [one for one in WholeSpace(OneHot(space)).genotypes if history.is_new(one)]
    gains = Fit().model(ModelData(genotypes, values, OneHot(space)), 30).promise(others)
    proposed = HammingGP(seed=0, start=6, climbs=2, merge=40).propose(space, history, random.Random(0))
    assert gains[others.index(proposed)] == pytest.approx(gains.max(), rel=1e-4)
    best = others[int(gains.argmax())]
    assert min(sum(a != b for a, b in zip(best, one, strict=True)) for one in genotypes) > 1


@pytest.mark.slow
def test_more_trials_than_a_model_takes_keep_the_best_and_the_latest():
    values = np.arange(1000.0)[::-1]
    assert hamming_gp._chosen(values, 300) == [*range(150), *range(850, 1000)]
    assert hamming_gp._chosen(values[:300], 300) == list(range(300))
    scored = searched(HammingGP(seed=0), matches, trials=320, space=WIDE)
    assert max(one.values[0] for one in scored) == 10


def test_only_trials_are_remembered():
    sampler = HammingGP(seed=0)
    scored = searched(sampler, matches, trials=30, space=WIDE)
    assert sampler._encoding._known.keys() <= {one.genotype for one in scored}


def test_equal_values_and_a_space_that_is_spent_are_no_trouble():
    searched(HammingGP(seed=0), lambda genotype: 1.0, trials=30, space=WIDE)
    tiny = {"p": ("a", "b"), "q": ("a", "b", "c")}
    scored = searched(HammingGP(seed=0, start=2), lambda genotype: 1.0, trials=6, space=tiny)
    history = History(scored, {one.genotype for one in scored})
    assert HammingGP(seed=0, start=2).propose(tiny, history, random.Random(0)) in history.seen


def test_what_is_hopeless_does_not_hide_what_is_good():
    values = np.array([1.0, 2.0, 3.0, -1e9])
    standard = ModelData(drawn(4), values, OneHot(SPACE)).values
    assert standard[2] - standard[1] > 0.2
    assert abs(standard.mean()) < 1e-9
    assert standard.std() == pytest.approx(1)


def test_two_goals_get_a_front():
    def both(genotype):
        return float(genotype.count("a")), float(genotype.count("b"))

    def gathered(sampler):
        return {one.values for one in searched(sampler, both, trials=80, space=WIDE)}

    assert len({one for one in gathered(HammingGP(seed=0)) if sum(one) >= 9}) >= 5


def test_the_number_of_a_learned_value_and_known_costs_is_the_worst_that_is_lacking_and_a_bit_of_all():
    values, costs = np.array([0.0, 1.0, 2.0]), np.array([[-3.0], [-5.0], [-1.0]])
    beside = hamming_gp._beside
    number = hamming_gp._weighing(beside(values, costs), random.Random(0))
    draws = random.Random(0)
    weights = np.array([draws.expovariate(1), draws.expovariate(1)])
    weights /= weights.sum()
    lacking = np.stack([weights[0] * (2 - values) / 2, weights[1] * (-1 - costs[:, 0]) / 4])
    np.testing.assert_allclose(number(beside(values, costs)), -lacking.max(axis=0) - 0.05 * lacking.sum(axis=0))
    several = number(beside(values[:, None] + np.array([0.0, 0.5]), costs[:, None]))
    np.testing.assert_allclose(several[:, 0], number(beside(values, costs)))
    np.testing.assert_allclose(several[:, 1], number(beside(values + 0.5, costs)))


def test_what_may_come_next_is_unseen_and_holds_the_neighbours_of_the_best():
    genotypes = drawn(12)
    history = History([], set(genotypes))
    found = hamming_gp._around_the_best(genotypes, np.arange(12), SPACE, history, random.Random(0))
    assert len(found) == len(set(found)) > 20
    assert not set(found) & set(genotypes)
    for center in genotypes[:5]:
        assert set(neighbours(SPACE, center)) <= {*found, *genotypes}


def test_the_most_promising_that_is_allowed_comes_next_and_nobody_asks_of_the_others():
    genotypes, asked = drawn(12), []

    def is_allowed(genotype):
        asked.append(genotype)
        return genotype == genotypes[3]

    gains = np.array([0, 5, 0, 3, 4, *[1] * 7], dtype=float)
    assert hamming_gp._most_promising(genotypes, gains, History([], set(), is_allowed)) == genotypes[3]
    assert asked == [genotypes[1], genotypes[4], genotypes[3]]
    assert hamming_gp._most_promising(genotypes, gains, History([], set(), lambda genotype: False)) is None


def front_size(*, known, seed):
    """Dominated area of a search over 30 positions with a score to learn and a cost; with None, of random search."""
    generator = np.random.default_rng(seed)
    space = {f"p{index:02}": ("a", "b", "c") for index in range(30)}
    scale = generator.exponential(size=(30, 1))
    weights = generator.normal(size=(30, 3)) * scale
    prices = generator.exponential(size=(30, 3)) * generator.exponential(size=(30, 1))

    def of(table, genotype):
        return float(sum(table[place, "abc".index(one)] for place, one in enumerate(genotype)))

    rng, scored, seen = random.Random(seed), [], set()
    sampler = HammingGP(seed=seed, start=10)
    for _ in range(50):
        costs = {1: lambda genotype: -of(prices, genotype)} if known else {}
        history = History(tuple(scored), seen, known=costs)
        one = random_unseen(space, history, rng) if known is None else sampler.propose(space, history, rng)
        assert one not in seen
        seen.add(one)
        scored.append(Scored(one, (of(weights, one), -of(prices, one))))
    typical = [[of(table, one) for one in drawn(200, space=space)] for table in (weights, prices)]
    (low, unit), (high, price) = ((np.mean(values), np.std(values)) for values in typical)
    area, cheapest = 0.0, 3.0
    for score, cost in sorted(((s.values[0] - low) / unit, (-s.values[1] - high) / price) for s in scored)[::-1]:
        if score > -3 and cost < cheapest:
            area += (score + 3) * (cheapest - cost)
            cheapest = cost
    return area


@pytest.mark.slow
def test_a_known_cost_is_not_learned_and_the_front_is_the_better_for_it():
    found = {known: np.mean([front_size(known=known, seed=seed) for seed in range(3)]) for known in (True, False, None)}
    assert found[True] > found[False] > found[None]
    assert found[True] > 1.4 * found[None]
