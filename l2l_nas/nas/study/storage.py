"""What a study needs of where its finished trials are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from l2l_nas.eps.identity import difference
from l2l_nas.errors import StorageError
from l2l_nas.training.data import other_data

Opened = tuple[Mapping[str, Any], list[FrozenTrial]]
# of an event: how many trials there were before it
AT_TRIAL = "at_trial"


class Store(Protocol):
    """Keeps a study's trials; raises `StorageError` where it cannot be read or written."""

    place: str
    """Where, for messages."""

    def open(self, identity: Mapping[str, Any], directions: Sequence[StudyDirection]) -> Opened:
        """Create or find the study.

        Args:
            identity: what a study must have in common with this search, as JSON.

        Returns:
            Its space (see `space_of`), whose candidates are the choices of its parameters, and its finished trials.

        Raises:
            StorageError: it is damaged, or of another search.
        """

    def save(self, ended: FrozenTrial) -> int:
        """Keep a finished trial, from here on whatever happens; returns its number."""

    def note(self, name: str, content: Any) -> None:
        """Keep something with the study, as JSON, in place of what it had under this name."""

    def noted(self, name: str) -> Any:
        """What `note` stored; None if there is nothing."""

    def append(self, event: Mapping[str, Any]) -> None:
        """Keep an event, as JSON, behind those before."""

    def events(self) -> Sequence[Mapping[str, Any]]:
        """All that `append` stored, in order."""


class Unsaved:
    """Keeps nothing, for benches."""

    place = "the study"

    def open(self, identity: Mapping[str, Any], directions: Sequence[StudyDirection]) -> Opened:
        return identity["space"], []

    def save(self, ended: FrozenTrial) -> int:
        return ended.number

    def note(self, name: str, content: Any) -> None:
        pass

    def noted(self, name: str) -> Any:
        return None

    def append(self, event: Mapping[str, Any]) -> None:
        pass

    def events(self) -> Sequence[Mapping[str, Any]]:
        return ()


def refuse_other(place: str, found: Mapping[str, Any], identity: Mapping[str, Any]) -> None:
    """Refuse a study of another search.

    Args:
        place: where it is saved, for the message.
        found: the study's attributes.
        identity: this search's; attributes that it lacks are not compared.

    Raises:
        StorageError: with what differs.
    """
    reason = difference(found.get("space"), identity["space"])
    if reason == "another space":
        raise StorageError(f"{place}: this study searches another space; resume it with the space it was started with")
    if reason:
        raise StorageError(f"{place}: this study knows {reason}; give the new one another name")
    other = other_data(found.get("data"), identity["data"])
    if other:
        raise StorageError(
            f"{place}: this study was {'scored' if other == 'validation' else 'trained'} on other {other} data; resume "
            "it with the data it was started with"
        )
    if found.get("goals") != identity["goals"]:
        before, now = (
            ", ".join(f"{name} {'up' if up else 'down'}" for name, up in goals)
            for goals in (found.get("goals") or [], identity["goals"])
        )
        raise StorageError(
            f"{place}: this study's objectives are {before}, not {now}; resume it with those it was started with"
        )
