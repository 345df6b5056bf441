from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from l2l_nas.nas.objectives import State, TrialRecord
from l2l_nas.report.card import PositionCard, SpaceCard
from l2l_nas.report.importance import main_effects
from l2l_nas.space.architecture import Architecture

NAMES = ("a", "b", "c", "d")
WEIGHTS = (3.0, 0.0, 1.0, 2.0)  # of the positions, in a function that adds them


def grid(positions: int = 4) -> SpaceCard:
    cards = [PositionCard(f"p{i}", NAMES, frozenset(), "4") for i in range(positions)]
    cards.append(PositionCard("head", ("only",), frozenset(), "4"))
    sizes = {f"{card.name}/{name}": 1 for card in cards for name in card.candidates}
    return SpaceCard(tuple(cards), "4", False, {}, sizes)


def trials(choices, score) -> list[TrialRecord]:
    return [
        TrialRecord(n, Architecture((*names, "only")), State.COMPLETE, {"accuracy": score(names)})
        for n, names in enumerate(choices)
    ]


def additive(names) -> float:
    return sum(weight * NAMES.index(name) for weight, name in zip(WEIGHTS, names, strict=True))


def test_of_an_additive_function_the_shares_are_those_of_its_terms() -> None:
    records = trials(itertools.product(NAMES, repeat=4), additive)
    effects = main_effects(grid(), records, "accuracy")
    squares = np.array(WEIGHTS) ** 2
    assert [effect.position for effect in effects] == ["p0", "p1", "p2", "p3"]  # not the head: it is no choice
    assert [effect.share for effect in effects] == pytest.approx(squares / squares.sum(), abs=0.015)
    middle = np.mean([additive(names) for names in itertools.product(NAMES, repeat=4)])
    assert effects[0].means == pytest.approx({name: middle + 3.0 * (i - 1.5) for i, name in enumerate(NAMES)})
    assert effects[0].counts == dict.fromkeys(NAMES, 64)


def test_in_few_random_trials_it_is_right_on_average_where_the_plain_ratio_is_far_too_large() -> None:
    generator = random.Random(0)
    shares, plain = [], []
    for _ in range(60):
        drawn = [tuple(generator.choice(NAMES) for _ in range(4)) for _ in range(30)]
        records = trials(drawn, lambda names: additive(names) + generator.gauss(0, 3.0))
        effects = main_effects(grid(), records, "accuracy")
        shares.append([effect.share for effect in effects])
        scores = np.array([record.values["accuracy"] for record in records])
        means = effects[1].means
        between = sum(effects[1].counts[name] * (means[name] - scores.mean()) ** 2 for name in means)
        plain.append(between / ((scores - scores.mean()) ** 2).sum())
    variances = 1.25 * np.array(WEIGHTS) ** 2  # of 0, 1, 2, 3
    truth = variances / (variances.sum() + 9.0)
    assert np.mean(shares, axis=0) == pytest.approx(truth, abs=0.06)
    assert np.mean(plain) > 2 * np.mean(shares, axis=0)[1]  # the position without an effect


def test_the_mark_of_chance_is_passed_by_one_useless_position_in_twenty() -> None:
    generator = random.Random(1)
    passed = 0
    for _ in range(100):
        drawn = [tuple(generator.choice(NAMES) for _ in range(4)) for _ in range(25)]
        records = trials(drawn, lambda names: generator.gauss(0, 1))
        passed += sum(effect.share > effect.chance for effect in main_effects(grid(), records, "accuracy"))
    assert 5 <= passed <= 40  # of 400


def test_one_dominant_position_among_many_is_found() -> None:
    """Where Optuna's PED-ANOVA gave the one position that matters hardly more than the next (docs/decisions.md)."""
    generator = random.Random(2)
    drawn = [tuple(generator.choice(NAMES) for _ in range(24)) for _ in range(200)]
    records = trials(drawn, lambda names: 5.0 * NAMES.index(names[7]) + generator.gauss(0, 2))
    shares = [effect.share for effect in main_effects(grid(24), records, "accuracy")]
    assert shares[7] > 0.8
    assert sorted(shares)[-2] < 0.1


def test_too_few_or_equal_scores_give_nothing() -> None:
    choices = list(itertools.product(NAMES, repeat=4))
    assert main_effects(grid(), trials(choices[:9], additive), "accuracy") == ()
    assert main_effects(grid(), trials(choices, lambda names: 0.5), "accuracy") == ()
    assert main_effects(grid(), [], "accuracy") == ()


def test_trials_without_a_score_of_their_own_do_not_count() -> None:
    records = trials(list(itertools.product(NAMES, repeat=4))[:40], additive)
    more = [
        TrialRecord(90, Architecture(("a", "a", "a", "a", "only")), State.FAILED),
        TrialRecord(91, records[0].architecture, State.COMPLETE, {"accuracy": 99.0}, cached=True),
    ]
    assert main_effects(grid(), [*records, *more], "accuracy") == main_effects(grid(), records, "accuracy")


def test_a_candidate_for_every_trial_explains_nothing() -> None:
    card = SpaceCard((PositionCard("p", tuple(map(str, range(12))), frozenset(), "4"),), "4", False, {}, {})
    records = [TrialRecord(n, Architecture((str(n),)), State.COMPLETE, {"accuracy": float(n)}) for n in range(12)]
    assert [effect.share for effect in main_effects(card, records, "accuracy")] == [0.0]
