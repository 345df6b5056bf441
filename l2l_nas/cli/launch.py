"""Passes a command to Hydra, and reports whatever goes wrong in one line and an exit code."""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import signal
import sys
import threading
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from hydra.errors import HydraException

import l2l_nas
from l2l_nas.cli.schema import register, with_own_choices
from l2l_nas.cli.words import check_words, explain_hydra, is_of_hydra, is_sweep, read_words
from l2l_nas.errors import (
    L2LError,
    RankError,
    SettingError,
    one_line,
    what_raised,
)
from l2l_nas.runs.command_line import fill_in
from l2l_nas.runs.terminal import explain, is_explained

if TYPE_CHECKING:
    from l2l_nas.runs.ranks import RunRanks


def launch(command: str, words: list[str], *, is_program: bool = False, ranks: RunRanks | None = None) -> int:
    """Run a command under Hydra; returns the exit code.

    Args:
        is_program: whether this process does nothing else: then Python's collector never walks through what was
            imported, which would take a sixth of the processor time of a start.
        ranks: of the command, where torchrun started several; what would be reported is raised.

    Raises:
        L2LError: on ranks, where one of them reports it.
    """
    register(command)
    args = Namespace()
    try:
        args = read_words(words)
        check_words(command, args)
        with _signals(_leave):
            from l2l_nas.cli.compose import is_for_hydra, run, run_by_hydra

            importlib.import_module(f"l2l_nas.cli.{command}")
            if is_program:
                gc.freeze()
                gc.enable()
            sweeps = is_sweep(args)
            if ranks is not None and (sweeps or is_for_hydra(args)):
                raise SettingError("several ranks do one run: start a sweep, --cfg and --info without torchrun")
            args.overrides = with_own_choices(command, args.overrides)
        with (
            _logging_as_it_was(),
            plain_warnings(),
            _signals(signal.default_int_handler),
        ):
            if sweeps:
                from l2l_nas.cli.sweep import sweeping  # it prints its errors by means of this module

                with sweeping(command, words):
                    run_by_hydra(command, args)
            elif is_for_hydra(args):
                run_by_hydra(command, args)
            else:
                run(command, args, ranks)
    except SystemExit as stop:
        asked = _asked_by(stop)
        if asked not in ("l2l_nas", "hydra", "argparse"):
            return report(f"your code {what_raised(stop)}")
        if isinstance(stop.code, int) and (asked == "l2l_nas" or not stop.code):
            return stop.code
        return 2  # Hydra's is 1, after its line
    except KeyboardInterrupt:
        if ranks is None or ranks.consensus.is_first:
            print("stopped", file=sys.stderr)
        return 130
    except Exception as error:
        if ranks is not None:
            _raise_for_ranks(error, explain_hydra(command, error, args) if is_of_hydra(error) else "")
        if is_explained(error) and not isinstance(error, HydraException):  # one of Hydra's is an OSError, too
            return report(explain(error))
        if not is_of_hydra(error):
            raise  # a mistake of this program: its traceback helps to mend it
        return report(explain_hydra(command, error, args))
    return 0


class _ExplainedError(L2LError):
    """What the line says."""


def _raise_for_ranks(error: Exception, said: str, again: str = "") -> NoReturn:
    """Where ranks report an error: all of them end, and one prints the line."""
    if isinstance(error, RankError | _ExplainedError) or not (said or is_explained(error)):
        raise error  # known to all, explained already, or a mistake of this program
    raise _ExplainedError(fill_in(said or explain(error), again)) from error


@contextlib.contextmanager
def reporting_errors(again: str = "", *, ranks: RunRanks | None = None) -> Iterator[None]:
    """Around what a command does: an error that can be explained ends it with one line and exit code 2.

    Hydra, which calls the command, would print all settings in front of it.

    Args:
        again: the command that goes on, where there is a run to go on with.
        ranks: see `launch`.
    """
    try:
        yield
    except Exception as error:
        if ranks is not None:
            _raise_for_ranks(error, "", again)
        if not is_explained(error):
            raise
        sys.exit(report(fill_in(explain(error), again)))


def _asked_by(stop: SystemExit) -> str:
    """The package whose code asked for an exit: this program, Hydra, or the user's."""
    frame = stop.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    asked = frame.tb_frame.f_globals.get("__name__", "") if frame is not None else ""
    return str(asked).split(".")[0]


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Warnings of this program are lines, without the place in the code that gave them."""
    own, before = Path(l2l_nas.__file__).parent, warnings.formatwarning

    def line(message: Warning | str, category: type[Warning], filename: str, *rest: Any, **named: Any) -> str:
        if Path(filename).is_relative_to(own):
            return f"warning: {one_line(str(message))}\n"
        return before(message, category, filename, *rest, **named)

    warnings.formatwarning = line
    try:
        yield
    finally:
        warnings.formatwarning = before


@contextlib.contextmanager
def _signals(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Ctrl-C and SIGTERM do this meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = [(number, signal.signal(number, handler)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, old in before:
            signal.signal(number, old)


def _leave(number: int, frame: FrameType | None) -> None:
    """End at once: an exception in the middle of importing a C library comes out as some other error."""
    os.write(2, b"stopped\n")
    os._exit(130)


def report(message: str) -> int:
    """Print an error as one line; returns the exit code of bad input."""
    print("error: " + one_line(fill_in(message)), file=sys.stderr)
    return 2


@contextlib.contextmanager
def _logging_as_it_was() -> Iterator[None]:
    """With --info and hydra.verbose Hydra has the whole process log everything, and goes on to do so.

    It would compose the settings six times more in each later command of this process, to log them.
    """
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
