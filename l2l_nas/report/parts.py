"""What all sections of a page are made of."""

from __future__ import annotations

from collections.abc import Iterable

from l2l_nas.report.svg import Markup, tag

# said wherever trial scores stand
SCORES = (
    "A trial score is on the weights that the trial had, which many networks share or which were trained a little: it "
    "ranks trials, and says nothing of what a network comes to."
)
DASH = "\N{EN DASH}"


def section(name: str, title: str, *parts: Markup) -> Markup:
    """A section, to which the navigation leads by its name."""
    return tag("section", tag("h2", title), *parts, id=name)


def lead(text: object) -> Markup:
    """What a section shows, in a sentence or two."""
    return tag("p", text, class_="lead")


def note(text: object) -> Markup:
    """Something small print."""
    return tag("p", text, class_="note")


def swatch(kind: str) -> Markup:
    """A small dot as a chart has them."""
    return tag("span", class_=f"swatch {kind}".strip())


def table(head: Iterable[Markup], rows: Iterable[Markup], *, is_whole: bool = False) -> Markup:
    """A table in a box of its own, in which it can be scrolled: sideways alone where it is to be seen whole."""
    content = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *rows))
    return tag("div", content, class_="scroll whole" if is_whole else "scroll", tabindex="0")


def number(text: str, *, class_: str = "n") -> Markup:
    """A cell of a number."""
    return tag("td", text, class_=class_)
