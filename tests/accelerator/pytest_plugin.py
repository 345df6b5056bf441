"""`pytest --device=simulated`: relays run on the simulated accelerator, and a test in which accesses race fails."""

from __future__ import annotations

import pytest

from tests.accelerator import simulated

simulated.use()


# by a part of a test's name, why it cannot run here
LACKING = {
    "lstm": "torch computes an LSTM of such a device by a fused cell, which it has for its own devices alone",
    "plain_pytorch_does[complex": "torch makes a view of complex numbers as real ones on its own devices alone",
}


def pytest_collection_modifyitems(items):
    for item in items:
        for name, reason in LACKING.items():
            if name in item.name:
                item.add_marker(pytest.mark.skip(reason=reason))


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
