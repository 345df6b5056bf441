"""One finished run that tests of one module share, and the command line in this process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from l2l_nas.__main__ import main
from tests.cli.runs import TINY, assert_pages_whole, write_pool


@pytest.fixture(scope="session")
def finished_once(tmp_path_factory) -> Path:
    """A finished run in `run`, beside its pool `tiny.py`. Not to be changed: see `finished`."""
    place = tmp_path_factory.mktemp("finished")
    pool = write_pool(place)
    before = Path.cwd()
    os.chdir(place)
    try:
        assert main(["search", f"space.pool={pool.name}:build", "folder=run", *TINY]) == 0
    finally:
        os.chdir(before)
    assert_pages_whole(place)
    return place


@pytest.fixture
def finished(finished_once, tmp_path, monkeypatch) -> Path:
    """A copy of the finished run, in the working directory."""
    shutil.copytree(finished_once, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


@pytest.fixture
def pool(tmp_path, monkeypatch) -> str:
    """The tiny pool, in the working directory, as `space.pool` names it."""
    write_pool(tmp_path)
    monkeypatch.chdir(tmp_path)
    return "tiny.py:build"


@pytest.fixture(autouse=True)
def _without_pictures(request, monkeypatch):
    """As where matplotlib is not installed: a picture takes long beside a tiny search; see `pictures`."""
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr("l2l_nas.runs.output.is_matplotlib_installed", lambda: False)


@pytest.fixture
def pictures() -> None:
    """Of a test that examines the pictures of a run."""


@pytest.fixture
def refused(capsys, tmp_path) -> Callable[..., str]:
    """Runs a command that must end with exit code 2 and one line; returns the line."""

    def run(*words: str) -> str:
        capsys.readouterr()
        assert main(list(words)) == 2
        said = capsys.readouterr()
        assert said.err.count("\n") == 1, said.err
        assert said.err.startswith("error: ")
        assert "Traceback" not in said.err
        assert not said.out
        return said.err.strip()

    return run
