"""Every error a user can cause, under one root.

A message says what was wrong, where, and what to do about it; the command line prints it as one line and exits with 2.
Errors that tests or callers tell apart carry their facts as fields.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

Raised = TypeVar("Raised", bound=BaseException)


class L2LError(ValueError):
    """Root of all errors that a user's input can cause."""


class SpaceError(L2LError):
    """A search space that cannot be built or run.

    Args:
        message: what is wrong and what to do.
        position: the position's name, where there is one.
        candidate: the candidate's name, where there is one.
    """

    def __init__(self, message: str, *, position: str | None = None, candidate: str | None = None) -> None:
        super().__init__(self.place(position, candidate) + message)
        self.position = position
        self.candidate = candidate

    @staticmethod
    def place(position: str | None, candidate: str | None) -> str:
        """How a message begins that names them."""
        named = (("position", position), ("candidate", candidate))
        return "".join(f"{label} '{name}': " for label, name in named if name)


@contextlib.contextmanager
def located(position: str, candidate: str | None = None) -> Iterator[None]:
    """Has a SpaceError that names no position begin with this one."""
    try:
        yield
    except SpaceError as error:
        if error.position is None:
            error.position, error.candidate = position, candidate
            error.args = (error.place(position, candidate) + str(error),)
        raise


class ShapeError(SpaceError):
    """A candidate whose output does not fit what its neighbours agreed on."""

    def __init__(self, *, position: str, candidate: str, got: str, expected: str, advice: str) -> None:
        super().__init__(f"got output {got}, expected {expected}; {advice}", position=position, candidate=candidate)
        self.got = got
        self.expected = expected


class ConstraintError(L2LError):
    """No architecture satisfies the constraints."""


class DataError(L2LError):
    """A data set that cannot be trained on."""


class SettingError(L2LError):
    """A setting with a value that makes no sense."""


class StorageError(L2LError):
    """A file or folder that is missing, damaged, foreign, or cannot be written."""


class StateLostError(StorageError):
    """The state of a layer that cannot be used any more, as a change of it ended half-way.

    Raised by code that changes a state (`Storage.writing`), it has the storage refuse the state from then on.

    Args:
        key: of the state.
        reason: what ended the change.
    """

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(
            f"the state '{key}' cannot be used any more: a change of it ended half-way ({reason}); load a save, or "
            "begin with a new server"
        )
        self.key = key
        self.reason = reason

    @classmethod
    def by(cls, key: str, error: BaseException) -> StateLostError:
        """What to raise after this error ended a change; the error itself, if it says so of this state."""
        if isinstance(error, cls) and error.key == key:
            return error
        return cls(key, f"{type(error).__name__}: {one_line(str(error), most=200)}")


class NonFiniteError(L2LError):
    """A loss or a gradient that is not finite; it never reaches a master weight.

    With `exact` updates, where everything is held, and for the loss, the whole step is refused. Else, with `eager`
    updates, layers behind the named one in the path may already be updated by their own, finite gradients, and the
    error may come with the next step.

    Args:
        what: "loss" or "gradient".
        layer: the key of the layer whose gradient it was; None for the loss.
        step: the training step, from 0.
        updated: the states that the step had updated by then.
        is_own: of ranks that share a step, whether it came from this one alone, or from another one alone; None where
            it came from several, or from none, as where a sum of finite parts is not.
    """

    _advice = "the update was refused: lower the learning rate or search for NaN and inf in the inputs"

    def __init__(
        self, what: str, *, layer: str | None, step: int, updated: Sequence[str] = (), is_own: bool | None = None
    ) -> None:
        where = f" of layer '{layer}'" if layer else ""
        text = f"{what}{where} is not finite at step {step}; {self._advice}"
        if updated:
            names = ", ".join(f"'{name}'" for name in updated[:3]) + ", ..." * (len(updated) > 3)
            text += (
                f"; updates are eager, so {len(updated)} other layers of the step are updated already ({names}): "
                "update=exact refuses a step as a whole"
            )
        super().__init__(text)
        self.what = what
        self.layer = layer
        self.step = step
        self.updated = tuple(updated)
        self.is_own = is_own


class MetricError(NonFiniteError):
    """A metric of the validation data that is not finite, so that an architecture cannot be compared by it."""

    _advice = "lower the learning rate, or check how it is measured"


class LaneError(L2LError):
    """Something failed beside the layers: a copy, an update, a read from disk.

    Args:
        op: what was being done.
        layer: to which layer or state.
        cause: what was raised.
    """

    def __init__(self, op: str, layer: str, cause: BaseException) -> None:
        said = one_line(str(cause), most=600)
        super().__init__(f"{op} of '{layer}' failed: {type(cause).__name__}: {said}{raised_where(cause)}")
        self.op = op
        self.layer = layer


class WorkerError(L2LError):
    """A worker process ended again and again, or failed in a way that has no other name."""


class RankError(L2LError):
    """Another rank of the same training failed, or did not answer in time; the message names it and what it did.

    Args:
        message: the line.
        rank: which one; None where it is no single rank.
        goes_on: whether that rank lives, and only what all ranks were doing has failed: a trial, not the run.
    """

    def __init__(self, message: str, *, rank: int | None = None, goes_on: bool = False) -> None:
        super().__init__(message)
        self.rank = rank
        self.goes_on = goes_on


class UserCodeError(L2LError):
    """Code of the user's that raised where it must not, or ended the program."""


class TrialError(L2LError):
    """An architecture that could not be trained or scored: its trial has failed, and others go on."""


class Stopped(Exception):
    """The search was asked to stop; what is done is saved. A callback may raise it."""


@contextlib.contextmanager
def user_code(what: str, kind: type[L2LError] = UserCodeError) -> Iterator[None]:
    """Around a call of the user's code: whatever it raises, `sys.exit` too, is reported as one line that names it.

    Args:
        what: the subject of the sentence, such as "constraint 'small'".
        kind: what to raise.

    Raises:
        L2LError: of that kind, where it raised something else than one of our errors.
    """
    try:
        yield
    except (L2LError, Stopped):
        raise
    except BaseException as error:
        if not is_of_code(error) or is_out_of_memory(error):
            raise
        raise kind(f"{what} {what_raised(error)}") from error


def is_of_code(error: BaseException) -> bool:
    """Whether code raised it; KeyboardInterrupt comes from who runs it."""
    return not isinstance(error, KeyboardInterrupt)


def of_user(one: object, what: str, kind: type[L2LError] = UserCodeError) -> contextlib.AbstractContextManager[None]:
    """`user_code` around a call of an object; nothing around one of this package, whose mistakes keep their traceback.

    Args:
        one: the object.
        what: what it is: "phase", "sampler".
        kind: what to raise.
    """
    if type(one).__module__.partition(".")[0] == __name__.partition(".")[0]:
        return contextlib.nullcontext()
    return user_code(f"{what} {type(one).__name__}", kind)


def what_raised(error: BaseException) -> str:
    """`raised ValueError: ...`, or that it ended the program."""
    if isinstance(error, SystemExit):
        return f"called sys.exit({error.code!r}); raise an error, or return"
    return f"raised {type(error).__name__}: {one_line(str(error), most=600)}{raised_where(error)}"


def raised_where(error: BaseException) -> str:
    """The last line of the user's own code that an error came through, in brackets; empty if there is none."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        package = str(frame.f_globals.get("__name__", "")).split(".")[0]
        if package not in ("l2l_nas", "torch", "contextlib", "numpy"):
            line = next(number for one, number in traceback.walk_tb(error.__traceback__) if one is frame)
            return f" ({Path(frame.f_code.co_filename).name}, line {line})"
    return ""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether memory, of the host or of a device, was what was missing."""
    while error is not None:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return True
        text = str(error)
        if isinstance(error, RuntimeError) and ("can't allocate memory" in text or "not enough memory" in text):
            return True
        error = error.__cause__
    return False


_OF_TRIAL = (NonFiniteError, SpaceError, TrialError)


def failure_of(error: Exception) -> L2LError:
    """What an architecture failed with: its layer raised, a number was not finite, or memory did not suffice.

    Raises:
        Exception: the error itself, where the architecture is not at fault; it ends the search.
    """
    if not is_of_trial(error):
        raise error
    if isinstance(error, _OF_TRIAL):
        return error
    return TrialError(f"out of memory: {described(error)}")


def is_of_trial(error: BaseException) -> bool:
    """Whether an architecture is at fault, so that a search goes on with others."""
    return isinstance(error, _OF_TRIAL) or is_out_of_memory(error)


def agreed(error: Raised) -> Raised:
    """Mark an error as one that all ranks raise, or one of their own for it, at the same place."""
    error.is_agreed = True  # type: ignore[attr-defined]
    return error


def is_agreed(error: BaseException) -> bool:
    """Whether all ranks raise it, so that they may go on together."""
    return any(getattr(one, "is_agreed", False) for one in (error, error.__cause__))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a message about a name that does not exist: the nearest one, or all there are."""
    names = [one for one in known if one != name]  # what is there and was refused is no advice
    close = difflib.get_close_matches(name, names, n=1) if isinstance(name, str) else []
    return f"; did you mean '{close[0]}'?" if close else f"; choose from {', '.join(names)}"


# what a terminal shows of an error: more would push the beginning off the screen
_MOST_CHARACTERS = 1200
_SECRET = r"(?:password|passwd|pwd|sslpassword|passphrase|secret|token)"


def without_passwords(text: str) -> str:
    """A text with the passwords of all addresses in it blotted out, before the @ and behind the question mark."""
    text = re.sub(r"(://[^/@:\s]*):[^\s]*@", r"\1:***@", text)
    return re.sub(rf"([?&;]{_SECRET}=)[^&;\s'\")\]}}]*", r"\1***", text, flags=re.IGNORECASE)


def without_passwords_in(content: Any) -> Any:
    """Plain data whose texts are all without passwords; of an address, all up to its last @ counts as one."""
    if isinstance(content, str):
        return without_passwords(re.sub(r"(\w://[^/@:\s]*):.*@", r"\1:***@", content, flags=re.DOTALL))
    if isinstance(content, Mapping):
        return {key: without_passwords_in(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [without_passwords_in(value) for value in content]
    return content


def one_line(text: str, *, most: int = _MOST_CHARACTERS) -> str:
    """A text as one line of bounded length, without passwords and control characters: how every error is reported."""
    text = without_passwords(" ".join(text.split()))
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    if len(text) <= most:
        return text
    head = 2 * most // 3
    return f"{text[:head].rstrip()} ... {text[head - most :].lstrip()}"


def described(error: BaseException, *, most: int = 300) -> str:
    """What an error says, or at least what it is; of a missing key, its name."""
    text = f"no {error}" if isinstance(error, KeyError) else str(error)
    return one_line(text, most=most) or type(error).__name__


def counted(number: int, noun: str) -> str:
    """A number of things: `1 trial`, `2 trials`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
