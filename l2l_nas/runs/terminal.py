"""What a command prints: every line that is no error, and what is told of an error."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from l2l_nas.errors import L2LError, StorageError, described, is_out_of_memory, one_line
from l2l_nas.files import named_failures

_LOGGER = logging.getLogger("l2l_nas")


def open_terminal(*, quiet: bool = False) -> Console:
    """A console that takes no text for markup: names, paths and messages are the user's, and may hold brackets."""
    return Console(highlight=False, markup=False, quiet=quiet)


def warn(console: Console, text: str) -> None:
    """A line about what is not as it should be, and does not end the run.

    The logger `l2l_nas` gets it as well, if anything handles what it gets, or if the terminal is quiet: then Python
    itself prints what nothing handles.
    """
    if console.quiet or _LOGGER.hasHandlers():
        _LOGGER.warning(one_line(text))
    console.print(Text.assemble(("warning", "yellow"), f": {one_line(text)}"), soft_wrap=True)


def say(console: Console, head: str, text: str) -> None:
    """A line whose first words stand out."""
    console.print(Text.assemble((head, "bold"), text), soft_wrap=True)


def explain(error: Exception) -> str:
    """What to tell of an error that ends a command."""
    if is_out_of_memory(error):
        return (
            f"out of memory ({described(error)}); take a smaller train.batch_size and train.micro_batch, fewer "
            "search.workers, relay.storage=file, or a smaller pool"
        )
    if isinstance(error, RecursionError):
        return "something is nested too deep: a setting, or calls in your own code"
    if isinstance(error, OSError):
        try:
            with named_failures(Path(str(error.filename or "."))):
                raise error
        except StorageError as named:
            return str(named)
    return str(error) if isinstance(error, L2LError) else f"{type(error).__name__}: {described(error)}"


def is_explained(error: Exception) -> bool:
    """Whether `explain` can tell; another one is a mistake of this program."""
    return isinstance(error, L2LError | OSError | RecursionError) or is_out_of_memory(error)


def report(message: str) -> int:
    """Print an error as one line; returns the exit code of bad input."""
    print("error: " + one_line(message), file=sys.stderr)
    return 2
