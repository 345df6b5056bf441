"""What all pages share: how templates are read, what text may stand in them, what a browser may load."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from l2l_nas.report.html import svg
from l2l_nas.report.styles import MARKS, hue_class
from l2l_nas.report.text import format_seconds, format_value, labelled, short_heading
from l2l_nas.space.architecture import format_choices

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff]")


def policy(script: str) -> str:
    """What a browser may load and run: only what stands in the page; its script, if it has one."""
    digest = _base64(hashlib.sha256(script.encode()).digest())
    return (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
        f"script-src 'sha256-{digest}'"
    )


@cache
def environment() -> Environment:
    """Of all templates."""
    found = Environment(
        loader=PackageLoader("l2l_nas.report", "html"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_clean,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    drawing = {one.__name__: one for one in (svg.number, svg.percent, svg.height, svg.thinned, svg.segments)}
    found.filters.update(drawing, base64=_base64, hue_class=hue_class, seconds=format_seconds)
    sizes = {name: getattr(svg, name) for name in ("HEIGHT_PX", "CEILING_PX", "FLOOR_PX")}
    words = {one.__name__: one for one in (format_choices, format_value, labelled, short_heading)}
    found.globals.update(sizes, **words, MARKS=MARKS)
    return found


def _clean(value: object) -> object:
    """Text as it may stand in a page; what no page may hold is left out.

    Control characters and halves of surrogate pairs come from damaged files alone: UTF-8 has no form for the latter.
    """
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return _CONTROL.sub("", value.encode("utf-8", "replace").decode())


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


@cache
def asset(name: str) -> str:
    """A style or a script that pages hold."""
    return files("l2l_nas.report.html").joinpath(name).read_text(encoding="utf-8")
