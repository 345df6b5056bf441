"""How things look, wherever they are drawn: colours, marks, and the styles that series of charts name.

Pages have classes of the same names in `html/page.css`, which also knows dark screens.
"""

from __future__ import annotations

from collections.abc import Mapping
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
_BROWN, _WINE = "#9C755F", "#882255"  # from Tableau's and Paul Tol's schemes, for what happens least


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
}


@dataclass(frozen=True)
class SeriesStyle:
    """How a series is drawn."""

    fill: str  # the colour of its dots, bars and lines
    edge: str = ""  # the colour of their edges; empty for the fill's
    marker: str = "o"  # matplotlib's name of the mark; empty for none
    size: float = 6.0  # of the mark, in points
    alpha: float = 1.0  # of mark or line; 1 hides what lies below
    glyph: str = "\N{BULLET}"  # the mark as a letter


_SIDES = (ORANGE, BLUE, GREEN, VERMILLION, PURPLE, SKY, INK)
_CURVES = (GREY, SKY, BLUE, VERMILLION, ORANGE, GREEN, PURPLE, INK)
_LARGE = "\N{BLACK CIRCLE}"
_OPS = {"read": PALE, "load": SKY, "fetch": GREY, "forward": GREEN, "enter": YELLOW, "tail": YELLOW, "leave": YELLOW}
_OPS |= {"backward": ORANGE, "save": _BROWN, "send": BLUE, "store": GREY, "update": PURPLE, "check": _WINE}
OPS = tuple(_OPS)  # of a step, in order
STYLES: Mapping[str, SeriesStyle] = {
    "trial": SeriesStyle(SKY, BLUE, size=5.0),
    "cached": SeriesStyle("white", BLUE, size=5.0, glyph="\N{WHITE CIRCLE}"),
    "gone": SeriesStyle(GREY, marker="+", glyph="+"),
    "best": SeriesStyle(ORANGE, INK, size=8.0, glyph=_LARGE),
    "front": SeriesStyle(ORANGE, INK, size=8.0, glyph=_LARGE),
    "final": SeriesStyle(SKY, INK, size=7.0),
    "chosen": SeriesStyle(ORANGE, INK, size=5.0),
    "stairs": SeriesStyle(ORANGE, marker=""),
    "course": SeriesStyle(SKY, marker="", alpha=0.6),
    "halved": SeriesStyle(GREY, marker="", alpha=0.6),
    "validation": SeriesStyle(BLUE, size=4.0),
    "training": SeriesStyle(SKY, size=4.0),
    "ideal": SeriesStyle(SKY),
    "measured": SeriesStyle(ORANGE),
    "stage": SeriesStyle(GREEN),
    "reference": SeriesStyle(GREY),
    "cloud": SeriesStyle(GREY, size=4.0, alpha=0.65),
    "alone": SeriesStyle(PALE),
    "beside": SeriesStyle(VERMILLION),
    "both": SeriesStyle(INK),
    "step": SeriesStyle(GREY),
    **{op: SeriesStyle(colour) for op, colour in _OPS.items()},
    **{
        state.value: SeriesStyle(hue(mark.hue), marker=mark.marker, size=7.0, glyph=mark.glyph)
        for state, mark in STATE_MARKS.items()
    },
    **{f"side{index}": SeriesStyle(_SIDES[index % 7], marker="osD^vP*"[index % 7]) for index in range(14)},
    **{f"curve{index}": SeriesStyle(_CURVES[index % 8], marker="") for index in range(16)},
    **{f"end{index}": SeriesStyle(_CURVES[index % 8], marker="D", size=5.0) for index in range(16)},
    **{f"cloud{index}": SeriesStyle(HUES[index % 4], size=4.0, alpha=0.65) for index in range(12)},
}


def style_of(name: str) -> SeriesStyle:
    """The style of this name; grey where there is none, as for an operation that only a plan of one's own has."""
    return STYLES.get(name, SeriesStyle(GREY))
