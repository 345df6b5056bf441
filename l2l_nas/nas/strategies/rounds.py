"""The finalists' training, in rounds that halve them.

[Note: rounds] A short training tells bad networks from good ones, a long one good ones from better ones: finalists are
trained in rounds, of which each is given as many steps, and the better half goes on to the next with the weights that
it has (successive halving: Jamieson and Talwalkar, arXiv 1502.07943). The learning rate rises and falls once over all
rounds: the one that is trained to the end had what a training without a halt would have given it. With more than one
goal there is no better half, and all are trained alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from l2l_nas.errors import L2LError, one_line
from l2l_nas.nas.callback import Callback
from l2l_nas.nas.evaluation.segment import Segment, run_all
from l2l_nas.nas.strategies.budget import Budget, Round
from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.finalists import Finalist, order
from l2l_nas.training.score import Score


class Rounds:
    """Trains finalists; see [Note: rounds].

    Attributes:
        finalists: those that could be trained, in the order in which they were chosen; without weights.
        abandoned: why others were not trained, or not to the end, by the numbers of their trials.
        failure: what is to be said where none was trained to the end.
    """

    def __init__(self, search: SearchContext) -> None:
        self._search = search
        self._budget = search.budget
        self.finalists: tuple[Finalist, ...] = ()
        self.abandoned: dict[int, str] = {}
        self.failure: L2LError | None = None

    def train(self, chosen: list[Finalist]) -> Finalist | None:
        """All rounds; returns the best, with its weights. Of the list, the weights are taken.

        None if all of a round failed; see `failure`.
        """
        rounds = self._budget.rounds
        total = sum(one.finalists * max(1, one.steps) for one in rounds)
        self._search.callback.phase("finalists", total=total, done=0)
        counted = Counted(self._search.callback, total)
        going, found = list(chosen), dict[int, Finalist]()
        chosen[:] = [replace(one, server=None) for one in chosen]  # whoever called has them, too
        for one in rounds:
            going = self._round(going, one, counted)  # what it is given, it takes the weights of
            if not going:
                return None
            found.update((finalist.record.number, replace(finalist, server=None)) for finalist in going)
            going = [finalist for finalist in going if finalist.server is not None]
        counted.at_least(total)  # fewer may have been chosen, or left
        self.finalists = tuple(found[one.record.number] for one in chosen if one.record.number in found)
        return going[0]

    def _round(self, going: list[Finalist], spend: Round, counted: Counted) -> list[Finalist]:
        """Those that could be trained, best first; of those that do not go on, the weights are dropped."""
        segments = [
            replace(
                Segment.of_finalist(one.record.architecture, index, self._budget, spend=spend, done=one.steps),
                server=one.server,
            )
            for index, one in enumerate(going)
        ]
        indices = {segment.name: index for index, segment in enumerate(segments)}
        going[:] = [replace(one, server=None) for one in going]
        begun = counted.done
        trained: list[Finalist] = []
        reasons: dict[int, str] = {}
        last: L2LError | None = None  # the others would hold weights and moments of what raised them
        over = 0  # `enumerate` would hold on to the last one
        results = run_all(self._search.executor, segments, after_step=counted.after_step)
        segments = []  # what is done frees its weights
        for name, result in results:
            over += 1  # noqa: SIM113
            index = indices[name]
            before = going[index]
            if result.error is None:
                done = self._further(before, result.scores, spend.steps)
                if spend.is_last:
                    self._search.callback.finalist(done)
                trained = self._best([*trained, replace(done, server=result.server)], spend.going_on)
            else:
                last, reasons[index] = result.error, one_line(str(result.error))
            del result  # a copy of weights and moments
            counted.at_least(begun + over * max(1, spend.steps))
        if not trained:
            assert last is not None
            self.failure = last if not going[0].is_trained else L2LError(_lost(last, self._budget))
        for index, reason in reasons.items():
            before = going[index]
            if trained and before.is_trained:  # what it came to before
                self._search.callback.finalist(before)
            self.abandoned[before.record.number] = reason
            self._search.callback.abandoned(before.record, reason)
        for left_behind in trained if not spend.is_last else ():
            if left_behind.server is None:
                self._search.callback.finalist(left_behind)
        return trained

    def _further(self, before: Finalist, scores: Mapping[str, Score], steps: int) -> Finalist:
        """A finalist after a round; the score of its trial is the first on its way, where the trial began it."""
        first, total = before.steps, self._budget.finalist_steps
        rungs = before.rungs or ({f"{first}/{total}": before.trial_score} if first else {})
        rungs = {**rungs, f"{first + steps}/{total}": scores["validation"].values}
        return replace(before, scores=scores, steps=first + steps, rungs=rungs)

    def _best(self, trained: Sequence[Finalist], count: int) -> list[Finalist]:
        """In order; no more of them than that keep their weights."""
        ordered = order(trained, self._search.goals)
        return [*ordered[:count], *(replace(one, server=None) for one in ordered[count:])]


def _lost(refused: L2LError, budget: Budget) -> str:
    lower = "" if budget.is_raced else ", or with a lower search.finalist_learning_rate"
    return (
        f"of the finalists that went on, none could be trained further: {refused}; resume with "
        f"search.finalist_rounds=1, which trains all of them alike{lower}"
    )


class Counted:
    """Counts the steps of networks trained alone, for a callback."""

    def __init__(self, callback: Callback, total: int) -> None:
        self._callback, self._total = callback, total
        self.done = 0

    def at_least(self, done: int) -> None:
        """So much is done, whatever was counted: a network may be scored as it is."""
        self.done = min(max(self.done, done), self._total)
        self._callback.advance(self.done)

    def after_step(self, loss: float) -> None:
        """A step is done; a network that is trained again after its worker ended takes more than there are."""
        self.done = min(self.done + 1, self._total)
        self._callback.advance(self.done, detail=f"loss {loss:.3f}")
