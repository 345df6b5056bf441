"""Relays on the simulated accelerator, in a process of its own: torch knows one accelerator a process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.accelerator.build import build, compiler

ROOT = Path(__file__).parents[2]
SUITES = {
    "the accelerator": ["tests/accelerator"],
    "population": ["tests/relay/test_population.py"],
    "equivalence": ["tests/equivalence"],
    "a relay": ["tests/relay/test_relay.py", "tests/relay/test_evaluation.py", "tests/relay/test_refusals.py"],
    "memory_plan": ["tests/relay/test_memory_plan.py", "tests/relay/test_device_states.py"],
    "checkpoint": ["tests/eps/test_checkpoint.py", "tests/eps/test_checkpoint_weights.py"],
    "search": [
        "tests/nas/evaluation",
        "tests/nas/strategies/test_default_strategy.py",
        "tests/nas/strategies/test_trial_copies.py",
    ],
}
LONG = ("equivalence", "search")


def passes(paths: list[str]) -> str:
    build()
    # all cores are taken by tests that run beside
    settings = os.environ | {"OMP_NUM_THREADS": "1"}
    arguments = ["-m", "pytest", "-p", "no:cacheprovider", "-m", "not slow", "--device=simulated", *paths]
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, env=settings, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


pytestmark = [
    pytest.mark.skipif(compiler() is None, reason="the simulated accelerator needs a C++ compiler: none is found"),
    pytest.mark.timeout(1200),
    pytest.mark.slow,
]


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in SUITES])
def test_tests_pass_on_it_without_a_race(name: str, request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--device") == "simulated":
        pytest.skip("runs on the host, and starts the tests that run on it")
    found = re.search(r"([\d,]+) accesses checked", passes(SUITES[name]))
    assert found is not None
    assert int(found[1].replace(",", "")) > 1000
