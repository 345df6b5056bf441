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
class SeriesStyle:
    """How a series is drawn."""

    fill: str  # the colour of its dots, bars and lines
    edge: str = ""  # the colour of their edges; empty for the fill's
    marker: str = "o"  # matplotlib's name of the mark; empty for none
    size: float = 6.0  # of the mark, in points
    alpha: float = 1.0  # of mark or line; 1 hides what lies below
    glyph: str = ""  # the mark as a letter, where a page shows that
    hue: int | None = None  # number of its colour, see `hue`, there


def _mark(number: int, marker: str, glyph: str) -> SeriesStyle:
    """What stands for a trial without a score."""
    return SeriesStyle(hue(number), marker=marker, size=7.0, glyph=glyph, hue=number)


_SIDES = (ORANGE, BLUE, GREEN, VERMILLION, PURPLE, SKY, INK)
_OPS = {"read": PALE, "load": SKY, "fetch": GREY, "forward": GREEN, "enter": YELLOW, "tail": YELLOW, "leave": YELLOW}
_OPS |= {"backward": ORANGE, "save": _BROWN, "send": BLUE, "store": GREY, "update": PURPLE, "check": _WINE}
_OPS |= {"gather": SKY, "reduce": BLUE, "sum": VERMILLION, "agree": GREY}  # exchanges between ranks
OPS = tuple(_OPS)  # of a step, in order
STYLES: Mapping[str, SeriesStyle] = {
    State.PRUNED: _mark(7, "|", "|"),
    State.STOPPED: _mark(3, "v", "\N{BLACK DOWN-POINTING TRIANGLE}"),
    State.FAILED: _mark(5, "x", "\N{MULTIPLICATION SIGN}"),
    "trial": SeriesStyle(SKY, BLUE, size=5.0),
    "cached": SeriesStyle("white", BLUE, size=5.0),
    "gone": SeriesStyle(GREY, marker="+"),
    "best": SeriesStyle(ORANGE, INK, size=8.0),
    "front": SeriesStyle(ORANGE, INK, size=8.0),
    "final": SeriesStyle(SKY, INK, size=7.0),
    "chosen": SeriesStyle(ORANGE, INK, size=5.0),
    "stairs": SeriesStyle(ORANGE, marker=""),
    "course": SeriesStyle(SKY, marker="", alpha=0.6),
    "halved": SeriesStyle(GREY, marker="", alpha=0.6),
    "validation": SeriesStyle(BLUE, size=4.0),
    "training": SeriesStyle(SKY, size=4.0),
    "alone": SeriesStyle(PALE),
    "beside": SeriesStyle(VERMILLION),
    "both": SeriesStyle(INK),
    **{op: SeriesStyle(colour) for op, colour in _OPS.items()},
    # what is compared, side by side
    **{f"side{index}": SeriesStyle(_SIDES[index % 7], marker="osD^vP*"[index % 7]) for index in range(16)},
}


def style_of(name: str) -> SeriesStyle:
    """The style of this name; grey where there is none, as for an operation that only a plan of one's own has."""
    return STYLES.get(name, SeriesStyle(GREY))
