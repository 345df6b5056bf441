"""A sample of the benchmark `mutations`: damaged files and hostile input end in one line or do no harm."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.cli.runs import ROOT, environment


@pytest.mark.long
@pytest.mark.slow
def test_damaged_files_and_hostile_input_do_no_harm():
    words = ["--small", "--files", "10", "--inputs", "6", "--seed", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "mutations", *words],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert '"failures": 0' in done.stdout
    assert '"files": 10, "inputs": 6' in done.stdout


@pytest.mark.slow
def test_damaged_files_of_every_kind_are_read_as_they_were_or_refused():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "readers", "--files", "300", "--seed", "1"],
        cwd=ROOT, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
