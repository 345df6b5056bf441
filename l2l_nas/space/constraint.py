"""Constraints: which architectures are allowed, and the reason where one is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool


class Constraint(Protocol):
    """Anything with this one method."""

    def violation(self, architecture: Architecture) -> str | None:
        """Why this architecture is not allowed, with got and limit; None where it is allowed."""


class Require:
    """A constraint from a plain function.

    Args:
        reason: what is required, in words, such as "at least two convolutions".
        test: True where the architecture is allowed.
    """

    def __init__(self, reason: str, test: Callable[[Architecture], bool]) -> None:
        self._reason = reason
        self._test = test

    def violation(self, architecture: Architecture) -> str | None:
        """The reason, unless the test holds."""
        return None if self._test(architecture) else f"requires {self._reason}"


def first_violation(architecture: Architecture, constraints: Iterable[Constraint]) -> str | None:
    """The first reason against an architecture; None if there is none."""
    for constraint in constraints:
        reason = constraint.violation(architecture)
        if reason is not None:
            return reason
    return None


class NonEmpty:
    """At least one layer: a pool whose every position may be skipped contains the empty network."""

    def __init__(self, pool: LayerPool) -> None:
        self._pool = pool

    def violation(self, architecture: Architecture) -> str | None:
        """The reason, where every position is skipped."""
        return None if self._pool.path(architecture) else "every position is skipped"
