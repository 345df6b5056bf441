"""Who evaluates what, where several processes share a study: read off the trials alone, so that all agree.

[Note: leases] A process leases an architecture by adding a running trial of it, and then reads all trials. Storages
number trials one after the other, and a trial is seen by all once its number is given: of two leases on one
architecture both processes see the lower number in time, and that one counts. The other is withdrawn (pruned), as is a
lease with as many before it as trials were asked for.

[Note: lost trials] A running trial is alive as long as its process counts its `beat` up (see `Heartbeat`). Who notices
that one no longer moves fails it: that is atomic in every storage, so a trial is lost once, and a process that comes
back with its result is refused. A lost trial's architecture is leased anew by whoever is first: there is no list of
what is to be tried again, so nothing is forgotten if that process dies as well. `retries.py` says when it is given up.

What is in a trial: see `study.py`. `result` is written behind all other attributes and before the trial's state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from optuna.trial import FrozenTrial, TrialState

from l2l_nas.nas.retries import is_given_up, why_given_up
from l2l_nas.nas.study.attributes import is_lease, is_lost, is_withdrawn
from l2l_nas.nas.study.storage import LeaseAnswer


class Leases:
    """The leases of a study as its trials tell them.

    Args:
        trials: all of them, in the order of their numbers.
    """

    def __init__(self, trials: Sequence[FrozenTrial]) -> None:
        self._live: dict[str, list[int]] = {}  # running and evaluated trials, by digest
        self._lost: dict[str, list[FrozenTrial]] = {}
        self._losses: Counter[str] = Counter()
        self._numbers: list[int] = []
        for trial in trials:
            digest = trial.user_attrs.get("digest")
            if digest is None or not is_lease(trial) or is_withdrawn(trial) or trial.state is TrialState.WAITING:
                continue
            if is_lost(trial):
                self._lost.setdefault(digest, []).append(trial)
                self._losses[digest] += "released" not in trial.user_attrs
            else:
                self._live.setdefault(digest, []).append(trial.number)
                self._numbers.append(trial.number)

    def verdict(self, trial: FrozenTrial, *, total: int) -> tuple[LeaseAnswer, str]:
        """What becomes of a lease among these, and why."""
        digest = trial.user_attrs["digest"]
        before = [number for number in self._live.get(digest, ()) if number < trial.number]
        if before:
            return LeaseAnswer.TAKEN, f"evaluated as trial {before[0]}"
        if self.given_up(digest):
            return LeaseAnswer.TAKEN, self.why_given_up(digest)
        if sum(number < trial.number for number in self._numbers) >= total:
            return LeaseAnswer.FULL, f"all {total} trials asked for were leased before"
        return LeaseAnswer.OURS, ""

    def given_up(self, digest: str) -> bool:
        """Whether an architecture was lost too often."""
        return is_given_up(self._losses[digest])

    def why_given_up(self, digest: str) -> str:
        """In words."""
        return why_given_up(self._losses[digest])

    def to_retry(self) -> list[FrozenTrial]:
        """The last lost trial of each architecture that nobody evaluates, nor has, and that is not given up."""
        return [
            lost[-1] for digest, lost in self._lost.items() if digest not in self._live and not self.given_up(digest)
        ]

    def retried(self, digest: str) -> int | None:
        """Of which lost trial a new lease is the retry."""
        lost = self._lost.get(digest)
        return lost[-1].number if lost else None
