"""What attributes of a trial tell of where it stands, in a study of one process and of many; see [Note: attributes]."""

from __future__ import annotations

from typing import Any

from optuna.trial import FrozenTrial, TrialState

RESULT = "result"


def attributes_of(trial: FrozenTrial) -> dict[str, Any]:
    """A trial's user attributes; version 0.1.0 stored most of those of a shared study's trials in one, `result`."""
    found = trial.user_attrs.get(RESULT)
    if not isinstance(found, dict):
        return trial.user_attrs
    return {**trial.user_attrs, **found, RESULT: found.get("state")}


def token_of(trial: FrozenTrial) -> str | None:
    """The token of the lease that it began as, in a shared study; version 0.1.0 had it under another name."""
    found = trial.user_attrs.get("lease", trial.user_attrs.get("claim"))
    return found if isinstance(found, str) else None


def is_lease(trial: FrozenTrial) -> bool:
    """Whether it began as a lease, in a shared study."""
    return token_of(trial) is not None


def is_lost(trial: FrozenTrial) -> bool:
    """Whether it was failed because its process was gone, not because its evaluation failed."""
    return trial.state is TrialState.FAIL and is_lease(trial) and attributes_of(trial).get(RESULT) != "FAIL"


def is_withdrawn(trial: FrozenTrial) -> bool:
    """Whether another lease came first."""
    return bool(attributes_of(trial).get("withdrawn")) and trial.state is TrialState.PRUNED


def is_worker_name(text: str) -> bool:
    """Whether it is the name of a run among those that share a study: 32 hexadecimal digits."""
    return len(text) == 32 and set(text) <= set("0123456789abcdef")
