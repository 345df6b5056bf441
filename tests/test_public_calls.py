"""Every public callable, with odd things for each argument: an error that names what is wrong, or a success.

The calls, what is odd and what is right: see `calls.py`.
"""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import l2l_nas
from l2l_nas.errors import SettingError
from l2l_nas.runs.fields import settings
from l2l_nas.runs.search import SearchRun
from l2l_nas.runs.settings import SearchConf
from tests import calls

SECONDS = 3.0  # of one call; all of them take milliseconds


class Hangs(KeyboardInterrupt):
    """Not caught by what is called."""


@contextmanager
def limited() -> Iterator[None]:
    def raised(*_: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, raised)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def _searches_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SearchRun, "go", lambda self: 0.0)
    calls.examples()  # whose imports take longer than a call may


@pytest.mark.parametrize("name", calls.calls())
def test_a_wrong_argument_is_refused_by_its_name_or_taken(name):
    faults = []
    for argument in calls.arguments(name):
        for odd in calls.odds(name, argument):
            with limited():
                found = calls.judged(name, argument, odd)
            if found:
                said = found if isinstance(found, str) else f"{type(found).__name__}: {found}"
                faults.append(f"{name}({argument}={odd}): {said}")
    assert not faults, "\n".join(faults)


def test_what_stands_beside_an_odd_value_is_taken():
    for name in set(calls.calls()) - {"compare"}:  # of finished runs
        calls.use(name, calls.right(name))


_OF_SETTINGS = (
    "None", "True", "-1", "10**59", "0.5", "nan", "''", "'x'", "a long text", "a surrogate", "[]", "[None]",
    "{'x': 5}", "object()", "a class", "a tensor", "an array",
)  # fmt: skip
_SETTINGS = sorted({name for name, *_ in settings(SearchConf)})


@pytest.mark.parametrize("name", _SETTINGS)
def test_a_wrong_setting_of_a_search_is_refused_by_its_name_or_taken(name):
    section, _, leaf = name.rpartition(".")
    problem, faults = calls.examples()["problem"], {}
    for shown in _OF_SETTINGS:
        value = calls.ODDS[shown]()
        said = {section: {leaf: value}} if section and section != "search" else {leaf: value}
        with limited():
            found = calls.fault(lambda: l2l_nas.search(problem, progress=False, **said), leaf, section)  # noqa: B023
        if found:
            faults[f"search({name}={shown})"] = f"{type(found).__name__}: {found}"
    assert not faults, "\n".join(f"{call}: {what}" for call, what in faults.items())


def test_an_error_that_does_not_name_its_argument_is_found(monkeypatch):
    def example(steps: int = 1, *, name: str = "x") -> None:
        raise SettingError(f"steps: no {steps!r}, {name!r}")

    monkeypatch.setattr(l2l_nas, "example", example, raising=False)
    assert calls.judged("example", "steps", "'x'") is None
    assert isinstance(calls.judged("example", "name", "5"), SettingError)


def test_what_is_of_another_kind_and_is_taken_without_a_word_is_found(monkeypatch):
    def example(steps: int = 1, *, name: str = "x") -> None:
        del steps, name

    monkeypatch.setattr(l2l_nas, "example", example, raising=False)
    taken = list(itertools.product(("steps", "name"), ("None", "True", "5", "'x'")))
    found = {(argument, odd) for argument, odd in taken if calls.judged("example", argument, odd)}
    assert found == set(taken) - {("steps", "5"), ("name", "'x'")}
