"""How things look: colours, marks, and the styles of series in picture files.

Pages have classes for candidates' colours, and of the styles' names, in `html/page.css`, which also knows dark screens.
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
GREY_HUE = 7  # the number of grey, among the colours of candidates in `html/page.css`
INK, GREY, PALE = "#222222", "#6B6B6B", "#D0D0D0"
_BROWN, _WINE = "#9C755F", "#882255"  # from Tableau's and Paul Tol's schemes, for what happens least


def hue_class(number: int) -> str:
    """The class of this number on a page; above that of grey, the colours come again, with one more class."""
    return f"hue{number}" if number <= GREY_HUE else f"hue{number - GREY_HUE - 1} again"


# what stands on a page for a trial without a score: the number of its colour, and a letter
MARKS: Mapping[str, tuple[int, str]] = {
    State.PRUNED: (7, "|"),
    State.STOPPED: (3, "\N{BLACK DOWN-POINTING TRIANGLE}"),
    State.FAILED: (5, "\N{MULTIPLICATION SIGN}"),
}


@dataclass(frozen=True)
class SeriesStyle:
    """How a series is drawn."""

    fill: str  # the colour of its dots, bars and lines
    edge: str = ""  # the colour of their edges; empty for the fill's
    marker: str = "o"  # matplotlib's name of the mark; empty for none
    size: float = 6.0  # of the mark, in points


_SIDES = (ORANGE, BLUE, GREEN, VERMILLION, PURPLE, SKY, INK)
_OPS = {"read": PALE, "load": SKY, "fetch": GREY, "forward": GREEN, "enter": YELLOW, "tail": YELLOW, "leave": YELLOW}
_OPS |= {"backward": ORANGE, "save": _BROWN, "send": BLUE, "store": GREY, "update": PURPLE, "check": _WINE}
_OPS |= {"gather": SKY, "reduce": BLUE, "sum": VERMILLION, "agree": GREY}  # exchanges between ranks
OPS = tuple(_OPS)  # of a step, in order
STYLES: Mapping[str, SeriesStyle] = {
    "trial": SeriesStyle(SKY, BLUE, size=5.0),
    "best": SeriesStyle(ORANGE, INK, size=8.0),
    "front": SeriesStyle(ORANGE, INK, size=8.0),
    "final": SeriesStyle(SKY, INK, size=7.0),
    "chosen": SeriesStyle(ORANGE, INK, size=5.0),
    "stairs": SeriesStyle(ORANGE, marker=""),
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
