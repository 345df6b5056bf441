"""Finalists: the best trials are trained further, each on its own weights, and the best of them is returned.

[Note: rounds] A short training tells bad networks from good ones, a long one good ones from better ones: finalists are
trained in rounds, of which each is given as many steps, and the better half goes on to the next with the weights that
it has (successive halving: Jamieson and Talwalkar, arXiv 1502.07943). The learning rate rises and falls once over all
rounds: the one that is trained to the end had what a training without a halt would have given it. With more than one
goal there is no better half: those go on that make the best front within the errors of their scores (`front.py`), three
quarters at most, and all that are on the front in the end were trained to the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Any

from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import ConstraintError, L2LError, one_line
from l2l_nas.nas.callback import Callback, Numbers
from l2l_nas.nas.evaluation.segment import SegmentResult, run_all
from l2l_nas.nas.objectives import TrialRecord, counts, ranked
from l2l_nas.nas.strategies.budget import Budget, Round
from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.finalists import Finalist, choose, choose_each, going_on, key_of, order
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.nas.strategies.sizes import by_size

_ATTEMPTS = 3  # at choosing finalists, where all that were chosen before have failed


class Finalists(Phase):
    """Chooses trials, trains them further, and returns the best on the validation part."""

    is_saved = False

    def run(self, search: SearchContext) -> None:
        """See `Phase`.

        Raises:
            ConstraintError: nothing satisfies the constraints or belongs to a size.
            L2LError: nothing that does could be trained.
        """
        budget = search.budget
        allowed = [record for record in search.allowed(search.study.records) if record.in_space]
        best = ranked(allowed, search.goals)
        if not best:
            raise ConstraintError(_nothing_found(search))
        if budget.finalists == 0:
            search.best = Finalist(best[0], search.figures(best[0].architecture))
            return
        chosen = chosen_finalists(search, allowed)
        if not chosen:
            raise ConstraintError("no finished trial is as small as any of strategy.sizes; ask for more search.trials")
        key = key_of(chosen, finalist_settings(search))
        search.best = _recalled(search, key) or _trained(search, allowed, chosen, key)
        if budget.baseline != "none" and search.cache is not None:
            search.cache.save(search.best)  # more follows, which may be interrupted


def finalist_settings(search: SearchContext) -> dict[str, Any]:
    """All that finalists' scores depend on but which they are; the steps behind the shared weights among it."""
    budget = search.budget
    return {
        **(search.cache.settings if search.cache else {}),
        **({"sizes": [size.share for size in search.sizes]} if search.sizes else {}),
        "steps": [budget.steps_before_finalists, budget.finalist_steps, *map(astuple, budget.rounds[1:])],
        "scored_after": [one.score_steps for one in budget.rounds],
        "learning_rate": budget.finalist_learning_rate,
        "trial_weights": budget.trial_weights,
        "trained": [search.warm_steps, search.catch_up_steps, search.coverage.to_json()],
    }


def _recalled(search: SearchContext, key: str) -> Finalist | None:
    """The best of those that an earlier session trained, if they are these and the best one's weights are there."""
    content = search.study.stored_finalists(key)
    if content is None or search.cache is None:
        return None
    records = {record.number: record for record in search.study.records}
    try:
        lost = [(records[int(one["trial"])], str(one["given_up"])) for one in content if "given_up" in one]
        kept = [one for one in content if "given_up" not in one]
        found = [Finalist.from_json(one, records) for one in kept]
        named = [(str(name), one) for one, entry in zip(found, kept, strict=True) for name in entry.get("sizes", ())]
        best = order(found, search.goals)[0]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return None  # of another version, or by another program: they are trained again, and stored as they should be
    weights = search.cache.weights
    server = weights(best, "")
    of_sizes = {name: replace(one, server=weights(one, name)) for name, one in named}
    if server is None or any(one.server is None for one in of_sizes.values()):
        return None
    search.of_sizes = of_sizes
    for one in found:
        search.callback.finalist(one)
    for record, reason in lost:
        search.callback.abandoned(record, reason)
    search.finalists, search.abandoned = tuple(found), {record.number: reason for record, reason in lost}
    return replace(best, server=server)


def chosen_finalists(search: SearchContext, allowed: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Those of the allowed trials that are trained further, best first; of sizes, the best of each of them first."""
    if search.sizes:
        groups = by_size(search.sizes, allowed, lambda record: record.architecture)
        return choose_each(list(groups.values()), search.goals, count=search.budget.finalists)
    return choose(allowed, search.goals, count=search.budget.finalists, posterior=search.study.posterior())


def _trained(
    search: SearchContext, allowed: Sequence[TrialRecord], records: Sequence[TrialRecord], key: str
) -> Finalist:
    """The best, trained; where all that were chosen fail, others are chosen of the trials that are left.

    Args:
        records: those chosen first.

    Raises:
        L2LError: none could be trained, of the first choice and of those after it.
    """
    held, failed = search.weights_of_trials, dict[int, str]()
    left, best = allowed, None
    for attempt in range(1, _ATTEMPTS + 1):
        rounds = Rounds(search)
        begun = search.budget.begun
        chosen = [Finalist(r, search.figures(r.architecture), steps=begun) for r in records]
        weights = {one.record.number: held[one.architecture] for one in chosen if one.architecture in held}
        held.clear()
        best = rounds.train(chosen, weights)
        failed |= rounds.abandoned
        left = [record for record in left if record.number not in failed]
        if best is not None:
            break
        records = chosen_finalists(search, left) if attempt < _ATTEMPTS and ranked(left, search.goals) else []
        if not records:
            assert rounds.failure is not None
            raise rounds.failure
    assert best is not None
    search.finalists, search.abandoned, search.of_sizes = rounds.finalists, failed, rounds.of_sizes
    kept: list[dict[str, Any]] = []
    for one in search.finalists:
        names = [name for name, of_size in search.of_sizes.items() if of_size.record.number == one.record.number]
        kept.append({**one.to_json(), "sizes": names})
    kept += [{"trial": number, "given_up": reason} for number, reason in search.abandoned.items()]
    search.study.keep_finalists(key, kept)
    return best


def _nothing_found(search: SearchContext) -> str:
    records = search.study.records
    found = counts(records)
    reasons = [record.reason for record in records if record.reason]
    stopped = f", {found['stopped']} stopped early by search.early_stop" if found["stopped"] else ""
    return (
        f"no trial finished: {found['pruned']} refused by constraints, {found['failed']} failed{stopped}; "
        f"the last reason: {reasons[-1] if reasons else 'none'}"
    )


def best_of_sizes(search: SearchContext, trained: Sequence[Finalist]) -> list[tuple[str, Finalist]]:
    """The best finalist of each size that there is one of, by its name; see [Note: sizes] in `sizes.py`.

    Args:
        trained: in any order.
    """
    ordered = order(trained, search.goals)
    best = {size.name: [one for one in ordered if size.holds(one.architecture)][:1] for size in search.sizes}
    return [(name, one) for name, found in best.items() for one in found]


class Rounds:
    """Trains finalists; see [Note: rounds].

    Attributes:
        finalists: those that could be trained, in the order in which they were chosen; without weights.
        abandoned: why others were not trained, or not to the end, by the numbers of their trials.
        of_sizes: the best of each size by its name, with its weights.
        failure: what is to be said where none was trained to the end.
    """

    def __init__(self, search: SearchContext) -> None:
        self._search = search
        self._budget = search.budget
        self.finalists: tuple[Finalist, ...] = ()
        self.abandoned: dict[int, str] = {}
        self.of_sizes: dict[str, Finalist] = {}
        self.failure: L2LError | None = None

    def train(self, chosen: Sequence[Finalist], weights: dict[int, ParamServer]) -> Finalist | None:
        """All rounds; returns the best, with its weights. None if all of a round failed; see `failure`.

        Args:
            weights: that finalists go on with, by the numbers of their trials; they are taken from there.
        """
        rounds = self._budget.rounds
        total = sum(one.finalists * max(1, one.steps) for one in rounds)
        self._search.callback.phase("finalists", total=total, done=0)
        counted = Counted(self._search.callback, total)
        going, found = list(chosen), dict[int, Finalist]()
        for one in rounds:
            trained = self._round(going, weights, one, counted)
            if not trained:
                return None
            found.update((finalist.record.number, finalist) for finalist in trained)
            going = self._going_on(trained, weights, one)
        counted.at_least(total)  # fewer may have been chosen, or left
        self.finalists = tuple(found[one.record.number] for one in chosen if one.record.number in found)
        last = [found[number] for number in weights]
        self.of_sizes = {n: replace(f, server=weights[f.record.number]) for n, f in best_of_sizes(self._search, last)}
        return replace(going[0], server=weights[going[0].record.number])

    def _round(
        self, going: Sequence[Finalist], weights: dict[int, ParamServer], spend: Round, counted: Counted
    ) -> list[Finalist]:
        """Those that could be trained, best first; with one goal, of those that do not go on no weights are kept."""
        begun = counted.done
        trained: list[Finalist] = []
        reasons: dict[int, str] = {}
        last: L2LError | None = None  # the others would hold weights and moments of what raised them
        segments = (
            self._budget.finalist_segment(one.architecture, index, spend=spend, done=one.steps)
            for index, one in enumerate(going)
        )
        numbers = [  # what lacks its weights does again what was done
            Numbers(self._search.callback, "finalists", one.record.number, one.steps * (one.record.number in weights))
            for one in going
        ]

        def after_step(index: int, loss: float) -> None:
            counted.after_step(loss)
            numbers[index].loss(loss)

        # no name for the list: what is done frees its weights
        results = run_all(
            self._search.executor,
            [replace(one, server=weights.pop(f.record.number, None)) for one, f in zip(segments, going, strict=True)],
            after_step=after_step,
        )
        for index, result in results:
            if result.error is not None:
                last, reasons[index] = result.error, one_line(str(result.error))
            else:
                assert result.server is not None
                numbers[index].scores(result.rungs, result.scores)
                done = self._further(going[index], result, spend.steps)
                if spend.is_last:
                    self._search.callback.finalist(done)
                weights[done.record.number] = result.server
                trained = order([*trained, done], self._search.goals)
                if len(self._search.goals) == 1 or spend.is_last:  # else who goes on is known when all are there
                    kept = {one.record.number for _, one in best_of_sizes(self._search, trained)}
                    for behind in trained[spend.going_on :]:
                        if behind.record.number not in kept:
                            weights.pop(behind.record.number, None)
            del result  # a copy of weights and moments
            counted.at_least(begun + (len(trained) + len(reasons)) * max(1, spend.steps))
        if not trained:
            assert last is not None
            self.failure = last if not going[0].is_trained else L2LError(_lost(last, self._budget))
        for index, reason in reasons.items():
            before = going[index]
            if trained and before.is_trained:  # what it came to before
                self._search.callback.finalist(before)
            self.abandoned[before.record.number] = reason
            self._search.callback.abandoned(before.record, reason)
        return trained

    def _going_on(self, trained: Sequence[Finalist], weights: dict[int, ParamServer], spend: Round) -> list[Finalist]:
        """Who goes on, best first; of the others, the weights are dropped."""
        if spend.is_last:
            return list(trained[: spend.going_on])
        found = going_on(trained, self._search.goals, spend.going_on)
        groups = by_size(self._search.sizes, trained, lambda one: one.architecture)
        first = [group[0] for group in groups.values() if group]  # of each size one goes on
        kept = [*first, *(one for one in found if one not in first)][: spend.going_on]
        found = order(kept, self._search.goals) if first else found
        numbers = {one.record.number for one in found}
        for behind in trained:
            if behind.record.number not in numbers:
                weights.pop(behind.record.number, None)
                self._search.callback.finalist(behind)
        return found

    def _further(self, before: Finalist, result: SegmentResult, steps: int) -> Finalist:
        """A finalist after a round; the score of its trial is the first on its way, where the trial began it."""
        first, total = before.steps, self._budget.finalist_steps
        rungs = before.rungs or ({f"{first}/{total}": before.trial_score} if first else {})
        return replace(before, scores=result.scores, steps=first + steps, rungs={**rungs, **result.rungs})


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
