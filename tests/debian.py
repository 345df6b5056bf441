"""Programs of Debian that tests need: installed where that is possible, else the test is skipped."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


def install(*packages: str) -> None:
    """Install packages, or skip."""
    names = " and ".join(packages)
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        pytest.skip(f"{names} is not installed, and only root can install it, by apt-get")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        done = subprocess.run(
            ["apt-get", "-q", *words], env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        if done.returncode:
            said = (done.stderr.splitlines() or ["apt-get failed"])[-1]
            pytest.skip(f"{names} cannot be installed: {said}")
