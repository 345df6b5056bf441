"""Searches, each beside random search of the same seed: what they tell together.

Differences are paired by seed; see [Note: resolved]. Their interval covers what depends on the seed: first weights,
batches, proposals and draws. All are measured on the same samples, so it says nothing of others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from l2l_nas.nas.objectives import Goal
from l2l_nas.report.interval import LEVEL, Estimate
from l2l_nas.report.network import TEST, Network, RandomBaseline
from l2l_nas.report.text import format_value


def goals_of(result: Mapping[str, Any]) -> list[Goal]:
    """What a search was for, the first goal first. Raises KeyError, TypeError, ValueError: it tells something else."""
    found = [Goal(str(one["name"]), maximize=bool(one["maximize"])) for one in result["objectives"]]
    if not found:
        raise ValueError("no objective")
    return found


def pair_of(result: Mapping[str, Any], goal: Goal) -> tuple[float, float] | None:
    """What a search and random search beside it reached on the test part; None where one of them has no figure.

    Raises:
        KeyError, TypeError, ValueError: it is no result of a search.
    """
    beside = RandomBaseline.from_json(result["baseline"]).best if result.get("baseline") else None
    if beside is None:
        return None
    sides = [one.part(TEST).get(goal.name) for one in (Network.from_json(result["best"]), beside)]
    return None if sides[0] is None or sides[1] is None else (sides[0], sides[1])


@dataclass(frozen=True)
class Comparison:
    """Searches against random searches of the same seeds, by the first goal on the test part."""

    goal: Goal
    pairs: int  # seeds of which both have a figure
    left_out: int  # seeds that ended without one
    ahead: int  # seeds whose search was better
    search: Estimate
    random: Estimate
    difference: Estimate  # above 0 where searches are better

    @classmethod
    def of(cls, pairs: Sequence[tuple[float, float] | None], goal: Goal) -> Comparison | None:
        """None of fewer than two seeds of which both have a figure: one has no spread.

        Args:
            pairs: of each seed what the search and random search reached; see `pair_of`.
        """
        whole = [pair for pair in pairs if pair is not None]
        if len(whole) < 2:
            return None
        sign = 1 if goal.maximize else -1
        differences = [(found - beside) * sign for found, beside in whole]
        found, beside = zip(*whole, strict=True)
        return cls(
            goal,
            len(whole),
            len(pairs) - len(whole),
            sum(value > 0 for value in differences),
            Estimate.of(found),
            Estimate.of(beside),
            Estimate.of(differences),
        )

    @property
    def verdict(self) -> str:
        """What the seeds show: see [Note: resolved]."""
        found = self.difference
        if not found.is_resolved:
            return f"Over {self.pairs} seeds no difference between the search and random search is shown"
        side = "ahead of" if found.mean > 0 else "behind"
        size = format_value(self.goal.name, abs(found.mean))
        return f"Over {self.pairs} seeds the search is {side} random search by {size} {self.goal.name}"

    @property
    def gap(self) -> tuple[str, str, str, str]:
        """Whether the search is "better" or "worse", by how much in the mean, and from where to where at the level."""
        found = self.difference
        word, values = "better", (found.mean, found.low, found.high)
        if found.mean < 0:
            word, values = "worse", (-found.mean, -found.high, -found.low)
        mean, low, high = (format_value(self.goal.name, value) for value in values)
        return word, mean, low, high

    def sentence(self) -> str:
        """The same with its interval, in one sentence."""
        word, mean, low, high = self.gap
        without = f"; {self.left_out} more ended without a figure of both" if self.left_out else ""
        return (
            f"{self.verdict}: on the test part it is {word} by {mean} in the mean (95 % interval over seeds {low} to "
            f"{high}), and better in {self.ahead} of {self.pairs}{without}."
        )

    def to_json(self) -> dict[str, Any]:
        """As `result.json` has it."""
        return {
            "metric": self.goal.name,
            "part": TEST,
            "pairs": self.pairs,
            "left_out": self.left_out,
            "ahead": self.ahead,
            "level": LEVEL,
            "search": self.search.to_json(),
            "random_search": self.random.to_json(),
            "difference": self.difference.to_json(),
        }
