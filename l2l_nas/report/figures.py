"""What all pictures share: colours, an empty figure, PNG bytes.

Figures are made without pyplot: no display, no backend setting and no state of the user's own plots is touched.
matplotlib is an extra, so every import of it stands inside a function.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito, Color Universal Design (2008): told apart with any kind of colour vision
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
    """The colour of this number; one past the end is grey. Pages have the same as classes, `hue0` to `hue7`."""
    return (*HUES, FIXED_HUE)[number]


def is_matplotlib_installed() -> bool:
    """Whether pictures can be made."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def new_figure(width_in: float, height_in: float, *, layout: Literal["constrained"] | None = None) -> Figure:
    """An empty figure of 100 pixels per inch."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), dpi=100, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def new_chart(title: str, *, height_in: float = 4.5, rows: int = 1) -> tuple[Figure, Axes]:
    """A figure of 800 by 450 pixels with one pair of axes, or the first of several below each other."""
    figure = new_figure(8.0, height_in, layout="constrained")
    engine = figure.get_layout_engine()
    assert engine is not None  # the constrained one
    engine.set(w_pad=0.1, h_pad=0.08)  # type: ignore[call-arg]
    axes = figure.add_subplot(rows, 1, 1)
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK, pad=12)
    style_axes(axes)
    return figure, axes


def style_axes(axes: Axes) -> None:
    """A light grid, no frame."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.grid(color=PALE, linewidth=0.6, alpha=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=GREY, labelcolor=INK, labelsize=9, which="both")


def message_figure(title: str, message: str) -> Figure:
    """A picture that says why there is nothing to show."""
    figure = new_figure(8.0, 2.0)
    figure.text(0.03, 0.82, title, fontsize=12, fontweight="bold", color=INK)
    figure.text(0.5, 0.42, message, fontsize=12, color=GREY, ha="center", va="center")
    return figure


def png_bytes(figure: Figure) -> bytes:
    """The figure as a PNG; the same figure gives the same bytes, at any time of day."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
