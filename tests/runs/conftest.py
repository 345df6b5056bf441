"""A pool, a finished run and the command line, as the tests of the commands have them; and a problem for calls."""

from __future__ import annotations

import importlib.util

import pytest

from tests.cli.conftest import _without_pictures, finished, finished_once, pictures, pool, refused
from tests.cli.runs import write_pool

__all__ = ["_without_pictures", "finished", "finished_once", "pictures", "pool", "refused"]


@pytest.fixture
def problem(tmp_path, monkeypatch):
    """That of the tiny pool, in the working directory."""
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("tiny_problem", write_pool(tmp_path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build()
