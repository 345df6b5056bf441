"""Repeats of a search, each beside random search of the same seed: what they tell together.

Differences are paired by seed; see [Note: resolved]. Their interval covers what depends on the seed: first weights,
batches, proposals and draws. All repeats are measured on the same samples, so it says nothing of others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from l2l_nas.nas.objectives import Goal
from l2l_nas.report.charts.grid import DASH
from l2l_nas.report.charts.tables import Table, TableColumn, TableRow, value_cell
from l2l_nas.report.interval import LEVEL, Estimate
from l2l_nas.report.network import TEST, Network, in_order
from l2l_nas.report.text import format_seconds, format_value

NO_FIGURE = "without a figure"


@dataclass(frozen=True)
class Repeat:
    """A search and the random search of as many steps beside it."""

    number: int
    seed: int
    found: Network  # what the search returned
    beside: Network | None  # what random search returned; None where it could train no network
    seconds: float  # of both

    def pair(self, goal: Goal) -> tuple[float, float] | None:
        """What both reached on the test part; None where one of them has no figure."""
        if self.beside is None or not all(goal.name in one.part(TEST) for one in (self.found, self.beside)):
            return None
        return self.found.part(TEST)[goal.name], self.beside.part(TEST)[goal.name]

    def difference(self, goal: Goal) -> float | None:
        """How much better the search's network is on the test part; below 0 where it is worse."""
        pair = self.pair(goal)
        return None if pair is None else (pair[0] - pair[1]) * (1 if goal.maximize else -1)

    def line(self, goal: Goal) -> str:
        """Both figures: `seed 2: accuracy 0.9778 ± 0.0078 test; random search 0.9694 ± 0.0091 test`."""
        found = ", ".join(one for one in self.found.scores(goal.name) if one.endswith(TEST))
        beside = "trained no network"
        if self.beside is not None:
            beside = ", ".join(one for one in self.beside.scores(goal.name) if one.endswith(TEST))
        return f"seed {self.seed}: {goal.name} {found or NO_FIGURE}; random search {beside or NO_FIGURE}"


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
    def of(cls, repeats: Sequence[Repeat], goal: Goal) -> Comparison | None:
        """None of fewer than two seeds of which both have a figure: one has no spread."""
        pairs = [pair for one in repeats if (pair := one.pair(goal)) is not None]
        differences = [value for one in repeats if (value := one.difference(goal)) is not None]
        if len(pairs) < 2:
            return None
        found, beside = zip(*pairs, strict=True)
        return cls(
            goal,
            len(pairs),
            len(repeats) - len(pairs),
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


def repeats_table(repeats: Sequence[Repeat], goal: Goal, *, best: int) -> Table:
    """Both figures of each seed, and how much better the search's is.

    Args:
        best: number of the repeat that stands out.
    """
    names = (f"{goal.name}, test: search", "random search", "search better by")
    columns = (TableColumn("repeat", "n"), TableColumn("seed", "n"), *map(TableColumn, names), TableColumn("time"))
    rows = []
    for one in repeats:
        difference = one.difference(goal)
        cells = (
            str(one.number),
            str(one.seed),
            one.found.scored(TEST, goal.name) or DASH,
            DASH if one.beside is None else one.beside.scored(TEST, goal.name) or DASH,
            value_cell(goal.name, difference),
            format_seconds(one.seconds),
        )
        rows.append(TableRow(cells, is_winner=one.number == best))
    return Table(columns, tuple(rows), is_whole=True)


def best_repeat(repeats: Sequence[Repeat], goal: Goal) -> Repeat:
    """That with the best network by the validation part, as one search chooses among its finalists."""
    first = in_order((one.found for one in repeats), [goal])[0]
    return next(one for one in repeats if one.found is first)
