"""A plugin of pytest under `coverage run`: each line is known by the tests that ran it, and those by their ids."""

from __future__ import annotations

import coverage
import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> object:
    measured = coverage.Coverage.current()
    if measured is not None:
        measured.switch_context(item.nodeid)
    return (yield)
