"""Who does the work of a run: this process alone, or all ranks at the word of the first.

A run is one program in one process. What it cannot do alone where ranks share the weights, to train, to score, to save,
goes through `Lead.do`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from l2l_nas.errors import L2LError, failure_of

Result = TypeVar("Result")


class Lead(Protocol):
    """What a run has done by all that share its weights."""

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether one that follows was asked to stop."""

    def do(self, name: str, args: Sequence[Any], here: Callable[..., Result]) -> Result:
        """Have all do something; returns what it gave here.

        Args:
            name: of it, as those know it that follow.
            args: of it: plain data, param-servers that came of it before, and functions. Functions are called in
                this process alone, in the order of the calls, and all get what they return or raise.
            here: does it in this process, with these arguments.

        Raises:
            Exception: what came of it here; or, of one that follows, what it failed with.
        """

    def note(self, what: str) -> None:
        """Say what is done now, for the errors of others."""

    def done(self) -> None:
        """The end of work that may fail on one alone.

        Raises:
            RankError: another one failed.
        """

    def failure(
        self, error: Exception, settle: Callable[[], None], *, may_differ: bool = False
    ) -> tuple[L2LError, bool]:
        """What an architecture has failed with, in the same words for all; and whether all have the same weights now.

        Args:
            error: of this process.
            settle: ends what is under way.
            may_differ: whether one may have updated weights that another has not.

        Raises:
            Exception: the error, where the architecture is not at fault.
        """


class Solo:
    """One process."""

    is_asked_to_stop = False

    def do(self, name: str, args: Sequence[Any], here: Callable[..., Result]) -> Result:
        return here(*args)

    def note(self, what: str) -> None:
        """Nobody waits."""

    def done(self) -> None:
        """It is."""

    def failure(
        self, error: Exception, settle: Callable[[], None], *, may_differ: bool = False
    ) -> tuple[L2LError, bool]:
        return failure_of(error), True
