"""The training step that docs/architecture.md tells: a real one enters its files and functions in that order."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import l2l_nas
from tests.relay.steps import PATH, relay_of, train
from tests.toys import dense_pool

PACKAGE = Path(l2l_nas.__file__).parent
PAGE = PACKAGE.parent / "docs" / "architecture.md"


def told() -> list[tuple[str, str]]:
    """File and function of each row of the page's table, in its order."""
    section = PAGE.read_text().partition("## One training step")[2].partition("\n## ")[0]
    return re.findall(r"^\| \d+ \| `([\w/]+\.py)` `([\w.]+)` \|", section, re.MULTILINE)


def entered() -> list[tuple[str, str]]:
    """File and function of each first call within the package, of a warm step that streams its layers."""
    relay = relay_of(dense_pool(), lanes="inline")
    train(relay, PATH)
    relay.drain()
    seen: dict[tuple[str, str], None] = {}

    def note(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            seen.setdefault((str(path.relative_to(PACKAGE)), frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        train(relay, PATH, step=1)
    finally:
        sys.setprofile(None)
    return list(seen)


def test_a_step_enters_what_the_page_tells_in_that_order():
    story, seen = told(), entered()
    assert len(story) > 10
    assert [step for step in seen if step in story] == story
