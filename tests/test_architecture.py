"""docs/architecture.md says what happens: a search is traced, and the page must name what was called."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from l2l_nas.testing.problems import searched
from tests.cli.runs import ROOT

PACKAGE = str(ROOT / "l2l_nas")
PAGE = (ROOT / "docs" / "architecture.md").read_text()


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """All that is called in a search of three trials."""
    called = set()

    def profile(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            called.add((code.co_qualname, Path(code.co_filename).relative_to(PACKAGE).as_posix()))

    sys.setprofile(profile)
    try:
        short = {"trials": 3, "trial_weights": "scratch", "warmup_steps": 0, "finalist_steps": 9}
        searched(tmp_path_factory.mktemp("traced") / "run", **short)
    finally:
        sys.setprofile(None)
    return called


def path_of_a_trial():
    """Functions that the table names, with the file where one is named."""
    section = PAGE.partition("## The path of one trial")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| \d+ \| (.*?) \|", section, re.MULTILINE)
    names, owner = [], ""
    for row in rows:
        file = ""
        for word in re.findall(r"`([^`]+)`", row):
            if word.endswith(".py"):
                file = word
                continue
            owner = word.rpartition(".")[0] or owner
            names.append((word, owner, file))
    return names


@pytest.mark.slow
def test_all_that_the_page_names_of_a_trial_s_path_is_called(traced):
    names = path_of_a_trial()
    assert len(names) >= 15
    for word, owner, file in names:
        wanted = {word, f"{owner}.{word}"}
        assert any(name in wanted and (not file or place == file) for name, place in traced), (word, file)
