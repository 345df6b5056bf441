from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.__main__ import main
from tests.cli.runs import write_pool


@pytest.fixture
def refused(capsys) -> Callable[..., str]:
    """Runs a benchmark that must end with exit code 2 and one line; returns the line."""

    def run(*words: str) -> str:
        capsys.readouterr()
        assert main(words) == 2
        said = capsys.readouterr()
        assert said.err.count("\n") == 1, said.err
        assert said.err.startswith("error: ")
        assert not said.out
        return said.err.strip()

    return run


@pytest.fixture
def pool(tmp_path, monkeypatch) -> str:
    """A tiny pool of one's own, in the present folder."""
    write_pool(tmp_path)
    monkeypatch.chdir(tmp_path)
    return "tiny.py:build"
