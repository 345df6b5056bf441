"""What tests of the simulated accelerator share."""

from __future__ import annotations

import pytest

from tests.accelerator.build import compiler


@pytest.fixture(autouse=True)
def _simulated(request):
    if request.config.getoption("--device") != "simulated":
        pytest.skip("runs with --device=simulated" + ("" if compiler() else ", which needs a C++ compiler"))


@pytest.fixture
def library():
    from tests.accelerator.simulated import library

    return library
