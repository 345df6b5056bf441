"""A pool, a finished run and the command line, as the tests of the commands have them."""

from __future__ import annotations

from tests.cli.conftest import _without_pictures, finished, finished_once, pictures, pool, refused

__all__ = ["_without_pictures", "finished", "finished_once", "pictures", "pool", "refused"]
