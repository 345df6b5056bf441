"""docs/architecture.md says what happens: a search is traced, and the page must name what was called."""

from __future__ import annotations

import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from l2l_nas.__main__ import main
from l2l_nas.space.pool import LayerPool
from l2l_nas.testing.problems import searched
from l2l_nas.training.data import Data
from l2l_nas.training.problem import Problem
from tests.cli.runs import ROOT
from tests.test_imports import LEVEL

PACKAGE = str(ROOT / "l2l_nas")
SAVE = ("StudyFile.save", "nas/study/journal.py")
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def frames_from(frame):
    """Calls of this package that are under way, from the outermost one."""
    found = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            found.append((frame.f_code.co_qualname, Path(frame.f_code.co_filename).relative_to(PACKAGE).as_posix()))
        frame = frame.f_back
    return found[::-1]


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """All that is called in a search of three trials, in order, and the calls under way when each trial is saved."""
    called, saves = [], []

    def profile(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            called.append((code.co_qualname, Path(code.co_filename).relative_to(PACKAGE).as_posix()))
            if called[-1] == SAVE:
                saves.append(frames_from(frame))

    sys.setprofile(profile)
    try:
        short = {"trials": 3, "trial_weights": "scratch", "warmup_steps": 0, "finalist_steps": 9}
        searched(tmp_path_factory.mktemp("traced") / "run", **short)
    finally:
        sys.setprofile(None)
    return called, saves


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
    called, _ = traced
    names = path_of_a_trial()
    assert len(names) >= 15
    for word, owner, file in names:
        wanted = {word, f"{owner}.{word}"}
        assert any(name in wanted and (not file or place == file) for name, place in called), (word, file)


@pytest.mark.slow
def test_a_trial_is_saved_after_at_most_ten_calls_through_at_most_six_files(traced):
    _, saves = traced
    assert len(saves) >= 3
    for stack in saves:
        path = stack[stack.index(("search", "runs/api.py")) :]
        assert len(path) <= 10, path
        assert len({file for _, file in path}) <= 6, path


@pytest.mark.slow
def test_a_trial_goes_through_few_functions_above_the_relay(traced):
    called, _ = traced
    first, second, *_ = [number for number, call in enumerate(called) if call == SAVE]
    above = {
        (name, file)
        for name, file in called[first + 1 : second + 1]
        if file.partition("/")[0] in ("nas", "report", "runs") and not name.endswith(">")
    }
    assert len(above) <= 66, sorted(above)
    assert len({file for _, file in above}) <= 13, sorted(above)


def names_it(code, setting):
    """Whether a function reads or passes on a setting by its name."""
    texts = {one for value in code.co_consts for one in (value if isinstance(value, tuple) else (value,))}
    return bool({setting, f"search.{setting}"} & {*code.co_names, *code.co_varnames, *texts})


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["steps_per_trial", "learning_rate", "finalist_steps"])
def test_a_setting_is_named_in_at_most_eight_files_from_the_command_line_to_its_use(setting, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    codes, used = set(), []

    def profile(frame, event, argument):
        code = frame.f_code
        if event == "call" and not used and code.co_filename.startswith(PACKAGE):
            codes.add(code)
            if code.co_qualname == "Evaluator.run":
                used.extend(frames_from(frame))

    words = ["trials=2", "trial_weights=scratch", "steps_per_trial=4", "finalist_steps=8", "finalists=1"]
    sys.setprofile(profile)
    try:
        assert main(["search", "data.source=digits", "export=false", *[f"search.{word}" for word in words]]) == 0
    finally:
        sys.setprofile(None)
    functions = [code for code in codes if not code.co_name.startswith("<")]
    files = {code.co_filename for code in functions if names_it(code, setting)}
    assert 2 <= len(files) <= 7, files  # and `runs/settings.py`, which declares it
    assert len({file for _, file in used}) <= 8, used


def names_of_problem(frame):
    """Arguments of a call that are a problem, or its pool or data."""
    code = frame.f_code
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return [name for name in arguments if isinstance(frame.f_locals.get(name), Problem | LayerPool | Data)]


@pytest.mark.slow
def test_a_problem_goes_straight_to_what_is_built_of_it(tmp_path):
    """From `search()` to the first phase: functions that are given the problem, its pool or its data, each once."""
    carriers, is_over = {}, False

    def profile(frame, event, argument):
        nonlocal is_over
        code = frame.f_code
        if event != "call" or is_over or not code.co_filename.startswith(PACKAGE) or code.co_name.startswith("<"):
            return
        is_over = code.co_qualname == "Search.run"
        call = code.co_qualname, Path(code.co_filename).relative_to(PACKAGE).as_posix()
        if (carriers or call == ("search", "runs/api.py")) and call not in carriers:
            names = [name for name in names_of_problem(frame) if name != "self"]
            if names:
                carriers[call] = names

    sys.setprofile(profile)
    try:
        searched(tmp_path / "run", trials=1, trial_weights="scratch", warmup_steps=0, finalist_steps=9)
    finally:
        sys.setprofile(None)
    composed = [file for _, file in carriers if file.partition("/")[0] in ("runs", "nas", "report")]
    for files, changes, climbs in ((composed, 18, 4), ([file for _, file in carriers], 60, 21)):
        rooms = [LEVEL[file.partition("/")[0].removesuffix(".py")] for file in files]
        assert sum(a != b for a, b in pairwise(files)) <= changes, list(carriers)
        assert sum(a < b for a, b in pairwise(rooms)) <= climbs, list(carriers)
    assert len({name for names in carriers.values() for name in names}) <= 6
