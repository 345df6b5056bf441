"""Constraints: which architectures are allowed, and the reason where one is not."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

from l2l_nas.arguments import check_function, check_kind
from l2l_nas.errors import UserCodeError, user_code
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool


class Constraint(Protocol):
    """Anything with this one method."""

    def violation(self, architecture: Architecture) -> str | None:
        """Why this architecture is not allowed, with got and limit; None where it is allowed."""


@runtime_checkable
class Graded(Constraint, Protocol):
    """A constraint that tells how far off an architecture is, so that one can be led towards what is allowed."""

    def excess(self, architecture: Architecture) -> float:
        """0 where the architecture is allowed; otherwise above 0, and the less the nearer."""


class Require:
    """A constraint from a plain function.

    Args:
        reason: what is required, in words, such as "at least two convolutions".
        test: True where the architecture is allowed.

    Raises:
        SettingError: no text, or no function.
    """

    def __init__(self, reason: str, test: Callable[[Architecture], bool]) -> None:
        check_kind("Require: reason", reason, str, wanted="text")
        check_function("Require: test", test)
        self._reason = reason
        self._test = test

    def violation(self, architecture: Architecture) -> str | None:
        """The reason, unless the test holds."""
        check_kind("Require.violation: architecture", architecture, Architecture, wanted="an Architecture")
        return None if self._test(architecture) else f"requires {self._reason}"


def first_violation(architecture: Architecture, constraints: Iterable[Constraint]) -> str | None:
    """The first reason against an architecture; None if there is none."""
    for constraint in constraints:
        with user_code(f"constraint {type(constraint).__name__}"):
            reason = constraint.violation(architecture)
        if reason is not None:
            if not isinstance(reason, str):
                raise UserCodeError(
                    f"constraint {type(constraint).__name__} gave {reason!r}; expected None where an architecture is "
                    "allowed, and the reason as text where it is not"
                )
            return reason
    return None


def total_excess(architecture: Architecture, constraints: Iterable[Constraint]) -> float:
    """How far off an architecture is from what all constraints allow; one that is not graded counts 1 if violated."""
    total = 0.0
    for constraint in constraints:
        if isinstance(constraint, Graded):
            total += constraint.excess(architecture)
        elif constraint.violation(architecture) is not None:
            total += 1.0
    return total


class NonEmpty:
    """At least one layer: a pool whose every position may be skipped contains the empty network."""

    def __init__(self, pool: LayerPool) -> None:
        self._pool = pool

    def violation(self, architecture: Architecture) -> str | None:
        """The reason, where every position is skipped."""
        return None if self._pool.path(architecture) else "every position is skipped"
