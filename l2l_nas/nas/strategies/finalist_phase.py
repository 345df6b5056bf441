"""Finalists: the best trials are trained further, each on its own weights, and the best of them is returned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Any

from l2l_nas.errors import ConstraintError
from l2l_nas.nas.objectives import TrialRecord, counts, ranked
from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.finalists import Finalist, choose, key_of, order
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.nas.strategies.rounds import Rounds
from l2l_nas.nas.suspects import in_words

_ATTEMPTS = 3  # at choosing finalists, where all that were chosen before have failed


class Finalists(Phase):
    """Chooses trials, trains them further, and returns the best on the validation part."""

    is_saved = False

    def run(self, search: SearchContext) -> None:
        """See `Phase`.

        Raises:
            ConstraintError: nothing satisfies the constraints, or nothing that does could be trained.
        """
        budget = search.budget
        allowed = [record for record in search.allowed(search.study.records) if record.in_space]
        best = ranked(allowed, search.goals)
        if not best:
            raise ConstraintError(_nothing_found(search))
        if budget.finalists == 0:
            search.best = Finalist(best[0], search.figures(best[0].architecture))
            return
        key = key_of(_chosen(search, allowed), _settings(search))
        search.best = _recalled(search, key) or _trained(search, allowed, key)
        if budget.baseline != "none" and search.cache is not None:
            search.cache.save(search.best)  # more follows, which may be interrupted


def _settings(search: SearchContext) -> dict[str, Any]:
    """All that finalists' scores depend on but which they are; the steps behind the shared weights among it."""
    budget = search.budget
    return {
        **(search.cache.settings if search.cache else {}),
        "steps": [budget.steps_before_finalists, budget.finalist_steps, *map(astuple, budget.rounds[1:])],
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
        found = [Finalist.from_json(one, records) for one in content if "given_up" not in one]
        best = order(found, search.goals)[0]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return None  # of another version, or by another program: they are trained again, and stored as they should be
    server = search.cache.weights(best)
    if server is None:
        return None
    for one in found:
        search.callback.finalist(one)
    for record, reason in lost:
        search.callback.abandoned(record, reason)
    search.finalists, search.abandoned = tuple(found), {record.number: reason for record, reason in lost}
    return replace(best, server=server)


def _chosen(search: SearchContext, allowed: Sequence[TrialRecord]) -> list[TrialRecord]:
    return choose(allowed, search.goals, count=search.budget.finalists, posterior=search.study.posterior())


def _trained(search: SearchContext, allowed: Sequence[TrialRecord], key: str) -> Finalist:
    """The best, trained; where all that were chosen fail, others are chosen of the trials that are left.

    Raises:
        L2LError: none could be trained, of the first choice and of those after it.
    """
    held, failed = search.weights_of_trials, dict[int, str]()
    left, best = allowed, None
    for attempt in range(1, _ATTEMPTS + 1):
        rounds = Rounds(search)
        going = [
            Finalist(r, search.figures(r.architecture), server=held.get(r.architecture), steps=search.budget.begun)
            for r in _chosen(search, left)
        ]
        held.clear()
        best = rounds.train(going)
        failed |= rounds.abandoned
        left = [record for record in left if record.number not in failed]
        if best is not None:
            break
        if attempt == _ATTEMPTS or not ranked(left, search.goals):
            assert rounds.failure is not None
            raise rounds.failure
    assert best is not None
    search.finalists, search.abandoned = rounds.finalists, failed
    kept = [one.to_json() for one in search.finalists]
    kept += [{"trial": number, "given_up": reason} for number, reason in search.abandoned.items()]
    search.study.keep_finalists(key, kept)
    return best


def _nothing_found(search: SearchContext) -> str:
    records = search.study.records
    found, common = counts(records), in_words(search.suspects())
    reasons = [record.reason for record in records if record.reason]
    stopped = f", {found['stopped']} stopped early by search.early_stop" if found["stopped"] else ""
    return (
        f"no trial finished: {found['pruned']} refused by constraints, {found['failed']} failed{stopped}; "
        f"the last reason: {reasons[-1] if reasons else 'none'}"
        + (f"; in common failed trials have {common}; leave it out by search.retire" if common else "")
    )
