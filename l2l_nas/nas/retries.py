"""How often work is begun again whose process ended without an answer, and what is said when it is given up.

One rule for all that runs beside each other: tasks of worker processes, runs of a sweep. Work
that fails with an error is not begun again: it would fail the same way. Where work goes on instead of beginning anew,
losses count that came one after the other without progress; and a process that was ended with all that led it, as on a
machine that is taken away, tells nothing of its work.
"""

from __future__ import annotations

# processes that may end at one piece of work before it is taken to be what kills them
ATTEMPTS = 3


def is_given_up(losses: int) -> bool:
    """Whether work is given up at which so many processes ended."""
    return losses >= ATTEMPTS


def losses_in_a_row(before: int, *, has_progressed: bool) -> int:
    """How many processes have ended at work that goes on, one after the other without progress, with one that did now.

    Args:
        before: the same, when that one began.
        has_progressed: whether it left more done than the one before it.
    """
    return 1 if has_progressed else before + 1


def why_given_up(losses: int, last: str = "") -> str:
    """The reason, in words.

    Args:
        last: how the last one ended, where that is known.
    """
    return f"its process ended {losses} times without a result" + (f"; the last one {last}" if last else "")
