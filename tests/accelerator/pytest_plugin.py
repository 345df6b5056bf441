"""`pytest --device=simulated`: relays run on the simulated accelerator, and a test in which accesses race fails."""

from __future__ import annotations

import pytest

from tests.accelerator import simulated

simulated.use()


@pytest.fixture(autouse=True)
def no_races(request):
    """Every access comes after those it depends on, by the waits that were made."""
    simulated.library.races()
    yield
    races = simulated.library.races()
    if races and "races_are_expected" not in request.fixturenames:
        pytest.fail("\n".join([f"{len(races)} kinds of races", *(f"{races[kind]:6} {kind}" for kind in races)][:20]))


_elsewhere: list[int] = []  # accesses that processes which test beside this one have checked


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["accesses"] = simulated.library.accesses()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    _elsewhere.append(getattr(node, "workeroutput", {}).get("accesses", 0))


def pytest_terminal_summary(terminalreporter):
    checked = simulated.library.accesses() + sum(_elsewhere)
    terminalreporter.write_line(f"simulated accelerator: {checked:,} accesses checked")
