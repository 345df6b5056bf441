"""Tables of coloured cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

DASH = "\N{EN DASH}"


@dataclass(frozen=True)
class Cell:
    """A candidate of a position."""

    text: str  # text, small: the figure, and a lesser one behind it
    small: str = ""
    # -1 to 1, how far the figure is below or above the mean; None where there is none to compare
    heat: float | None = None


Cells = tuple[Cell | None, ...]  # of a position, one a column; None where it does not offer that candidate


@dataclass(frozen=True)
class Grid:
    """Rows of cells, or the message why there is nothing to show."""

    title: str  # what it shows
    columns: tuple[str, ...] = ()  # names of candidates
    rows: Mapping[str, Cells] = field(default_factory=dict)  # by position with a choice, or several of them
    caption: str = ""  # what the cells are
    message: str = ""  # why there is nothing to show
