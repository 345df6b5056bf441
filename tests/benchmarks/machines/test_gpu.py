"""`python -m benchmarks gpu` from end to end with tiny layers on a CPU, and what it does when something fails."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import pytest

from benchmarks import ROOT
from benchmarks.machines import gpu
from benchmarks.machines.forecast import Sizes, forecast, profile_of
from benchmarks.machines.sections import SECTIONS
from l2l_nas.cost.profiles import PROFILES


def run(folder, *words):
    command = [sys.executable, "-m", "benchmarks", "gpu", "--out", str(folder), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_limits_of_all_sections_are_under_ten_minutes():
    assert sum(section.limit_s for section in SECTIONS.values()) <= gpu._ALL_S < 600


def test_a_profile_is_found_by_the_name_of_the_device():
    assert profile_of("NVIDIA H100 80GB HBM3").name == "h100"
    assert profile_of("NVIDIA GeForce RTX 4090").name == "rtx4090"
    assert profile_of("Tesla V100-SXM2-16GB").name == "v100"
    assert profile_of("NVIDIA GH200 480GB").name == "gh200"
    assert profile_of("none") is None


@pytest.mark.slow
def test_a_section_that_takes_too_long_is_stopped_and_one_behind_the_end_left_out(tmp_path):
    options = argparse.Namespace(out=tmp_path, device="cpu", quick=True)
    found = gpu.in_process("timeline", options, 1.0)
    assert (found["failed"], found["rows"]) == ("stopped after 1 s; what it had by then stands here", [])
    assert gpu.in_process("timeline", options, 0.5)["failed"] == "left out: the time was over"


@pytest.mark.slow
def test_a_section_that_fails_says_why(tmp_path):
    options = argparse.Namespace(out=tmp_path / "missing", device="cuda:77", quick=True)
    found = gpu.in_process("segments", options, 100.0)
    assert "device=cuda:77" in found["failed"]
    assert found["rows"] == []


@pytest.mark.slow
def test_without_the_device_it_ends_in_one_line(tmp_path):
    done = run(tmp_path, "--device", "cuda:77")
    assert done.returncode == 2
    assert done.stderr.startswith("error: device=cuda:77")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.long
@pytest.mark.slow
def test_all_sections_run_and_each_prediction_stands_beside_what_was_measured(tmp_path):
    done = run(tmp_path, "--quick", "--device", "cpu", "--hardware", "laptop")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "gpu.json").read_text())
    assert list(result["sections"]) == list(SECTIONS)
    assert list(result["predictions"]) == ["laptop", "measured rates"]
    assert result["predictions"]["laptop"]["figures"] == forecast(Sizes.of("cpu", is_quick=True), PROFILES["laptop"])
    for section in result["sections"].values():
        assert not section["failed"]
    for name, figures in result["predictions"]["laptop"]["figures"].items():
        rows = {row["name"]: row for row in result["sections"][name]["rows"]}
        assert figures.keys() <= rows.keys()
        if name == "memory":  # what a relay owns is known beforehand to the byte
            own = [key for key in figures if key.endswith("slots and stash")]
            assert {key: rows[key]["value"] for key in own} == {key: figures[key] for key in own}
    losses = {row["name"]: row["value"] for row in result["sections"]["exactness"]["rows"]}
    assert losses.pop("layers=graphs") is None
    assert set(losses.values()) == {0.0}
    page = (tmp_path / "gpu.html").read_text()
    assert "No figure on this page was measured on a GPU" in page
    assert {path.name for path in tmp_path.iterdir()} == {"gpu.json", "gpu.html", "hardware.json", "trace.json"}
