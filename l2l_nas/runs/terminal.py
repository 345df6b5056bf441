"""The terminal: where every line of a command goes that is no error."""

from __future__ import annotations

import logging

from rich.console import Console
from rich.text import Text

from l2l_nas.errors import one_line

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
