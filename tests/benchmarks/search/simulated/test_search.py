from __future__ import annotations

import random

import pytest

from benchmarks.search.simulated.landscape import Landscape
from benchmarks.search.simulated.search import promoting, random_search, searched


class Line(Landscape):
    """Networks are numbers from 0 to 99; what they score and come to is that number, from the first step on."""

    space = {"tens": tuple("0123456789"), "ones": tuple("0123456789")}

    def score(self, genotype, share):
        return self.truth(genotype)

    def truth(self, genotype):
        return int("".join(genotype)) / 100


def test_random_search_trains_as_many_as_there_are_trainings_and_returns_the_best():
    found, ledger = searched(random_search(Line(), random.Random(3)), Line(), 6.9)
    assert ledger.spent == len(ledger.trained) == 6
    assert {share for share, _ in ledger.trained.values()} == {1.0}
    assert Line().truth(found) == max(score for _, score in ledger.trained.values())


def test_a_network_that_is_come_back_to_pays_for_new_steps_alone():
    def method():
        for share in (0.25, 0.5, 0.5, 0.25, 1.0):
            assert (yield ("4", "2"), share) == 0.42

    _, ledger = searched(method(), Line(), 1.0)
    assert ledger.spent == pytest.approx(1.0)
    assert ledger.trained == {("4", "2"): (1.0, 0.42)}


def test_what_is_left_of_the_budget_is_not_exceeded():
    closed = []

    def method():
        try:
            while True:
                yield ("4", "2"), 0.6
                yield ("9", "9"), 0.6
        finally:
            closed.append(True)

    found, ledger = searched(method(), Line(), 1.0)
    assert found == ("4", "2")
    assert ledger.spent == pytest.approx(0.6)
    assert closed


def test_the_longest_trained_is_returned_though_others_score_better():
    def method():
        yield ("9", "9"), 0.5
        yield ("1", "0"), 1.0
        yield ("2", "0"), 1.0

    assert searched(method(), Line(), 9.0)[0] == ("2", "0")


def test_a_rung_sends_one_of_eta_on_and_the_best_go_on():
    _, ledger = searched(promoting(Line(), random.Random(0), eta=3, first=1 / 9), Line(), 12.0)
    assert ledger.spent <= 12.0
    by_share = {}
    for share, score in ledger.trained.values():
        by_share.setdefault(round(share, 3), []).append(score)
    assert sorted(by_share) == [0.111, 0.333, 1.0]
    at_least_third = len(by_share[0.333]) + len(by_share[1.0])
    # the best third changes as others come, so that a few more go on than a third
    assert len(ledger.trained) // 3 <= at_least_third <= len(ledger.trained) // 2
    assert at_least_third // 3 <= len(by_share[1.0]) <= at_least_third // 2
    # the best of a rung never stay in it, but for those that came last
    assert sum(score > min(by_share[1.0]) for score in by_share[0.111]) <= 3


def test_a_space_that_is_used_up_ends_a_search():
    _, ledger = searched(random_search(Line(), random.Random(0)), Line(), 1000)
    assert len(ledger.trained) == ledger.spent == 100
