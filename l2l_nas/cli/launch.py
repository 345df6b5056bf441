"""Passes a command to Hydra, and reports whatever goes wrong in one line and an exit code."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
import threading
import traceback
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from hydra.errors import HydraException

import l2l_nas
from l2l_nas.cli.schema import register, with_own_choices
from l2l_nas.cli.words import check_words, hydra_line, is_of_hydra, is_sweep, read_words
from l2l_nas.errors import L2LError, RankError, SettingError, Stopped, one_line, what_raised
from l2l_nas.runs.terminal import explain, is_explained, report

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
    args = Namespace(overrides=[])
    try:
        args = read_words(words)
        check_words(command, args)
        with _signals(_leave):
            importlib.import_module("l2l_nas.cli.compose")
            importlib.import_module(f"l2l_nas.cli.{command}")
            if is_program:
                gc.freeze()
                gc.enable()
            args.overrides = with_own_choices(command, args.overrides)
        with plain_warnings(), _signals(signal.default_int_handler):
            return _go(command, args, ranks)
    except SystemExit as stop:
        *_, (frame, _) = traceback.walk_tb(stop.__traceback__)
        if str(frame.f_globals.get("__name__", "")).split(".")[0] in ("hydra", "argparse"):
            return 2 if stop.code else 0  # Hydra's is 1, after its line
        return report(f"your code {what_raised(stop)}")
    except Stopped:
        return 130
    except KeyboardInterrupt:
        if ranks is None or ranks.is_first:
            print("stopped", file=sys.stderr)
        return 130
    except Exception as error:
        line = ""
        if is_explained(error) and not isinstance(error, HydraException):  # one of Hydra's is an OSError, too
            line = explain(error)
        elif is_of_hydra(error):
            line = hydra_line(command, error, args.overrides)
        if not line or (ranks is not None and isinstance(error, RankError)):
            raise  # a mistake of this program: its traceback helps to mend it; or known to all ranks
        if ranks is not None:
            raise L2LError(line) from error
        return report(line)


def _go(command: str, args: Namespace, ranks: RunRanks | None) -> int:
    from l2l_nas.cli.compose import hydra_of, run, show

    with hydra_of(command, args) as hydra:
        if show(hydra, command, args) or (not is_sweep(args) and run(hydra, command, args, ranks)):
            return 0
        if ranks is not None:
            raise SettingError("several ranks do one run: start a sweep without torchrun")
        from l2l_nas.cli.sweep import sweep

        return sweep(hydra, command, args)


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Warnings of this program are lines, without the place in the code that gave them."""
    own, before = Path(l2l_nas.__file__).parent, warnings.formatwarning

    def line(message: Warning | str, category: type[Warning], filename: str, *rest: Any, **named: Any) -> str:
        is_own = Path(filename).is_relative_to(own)
        return f"warning: {one_line(str(message))}\n" if is_own else before(message, category, filename, *rest, **named)

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
