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


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"simulated accelerator: {simulated.library.accesses():,} accesses checked")
