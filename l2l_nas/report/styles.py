"""The colours of all pictures and pages, and the marks of trials without a score."""

from __future__ import annotations

from dataclasses import dataclass

from l2l_nas.nas.objectives import State

# Okabe and Ito, Color Universal Design (2008): distinguished with any kind of colour vision
ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILLION, PURPLE = (
    "#E69F00",
    "#56B4E9",
    "#009E73",
    "#F0E442",
    "#0072B2",
    "#D55E00",
    "#CC79A7",
)
# the colours of candidates and of trials without a score; what has none of its own is grey
HUES = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION, YELLOW)
FIXED_HUE = "#8A8F98"
INK, GREY, PALE = "#222222", "#6B6B6B", "#D0D0D0"


def hue(number: int) -> str:
    """The colour of this number: 7 is grey, those of 8 to 14 come again. Pages have classes `hue0` to `hue7`."""
    return (*HUES, FIXED_HUE, *HUES)[number]


def hue_class(number: int) -> str:
    """The class of this number on a page; what comes again has one more."""
    grey = len(HUES)
    return f"hue{number}" if number <= grey else f"hue{number - grey - 1} again"


@dataclass(frozen=True)
class StateMark:
    """What stands for a trial without a score."""

    marker: str  # matplotlib's name of the mark
    glyph: str  # the same as a letter
    hue: int  # number of its colour, see `hue`


STATE_MARKS = {
    State.PRUNED: StateMark("|", "|", 7),
    State.STOPPED: StateMark("v", "\N{BLACK DOWN-POINTING TRIANGLE}", 3),
    State.FAILED: StateMark("x", "\N{MULTIPLICATION SIGN}", 5),
    State.LOST: StateMark("D", "\N{BLACK DIAMOND}", 2),
}
