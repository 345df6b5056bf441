"""Weights are read and written by all that share them: see `lead.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.server import ParamServer
from l2l_nas.training.lead import Lead, Solo


class SharedWeights:
    """Saves and loads weights of a run.

    Args:
        server: with the run's own weights.
        lead: who does the work.
    """

    def __init__(self, server: ParamServer, lead: Lead | None = None) -> None:
        self._server = server
        self._lead: Lead = lead or Solo()

    def save(self, checkpoint: Checkpoint, server: ParamServer, *, extra: Mapping[str, Any] | None = None) -> None:
        """Save the run's weights, or others that came of its training. See `Checkpoint.save`."""
        self._lead.do(
            "save weights",
            (checkpoint.folder.absolute(), server),
            lambda folder, server: checkpoint.save(server, extra=extra),
        )

    def load(self, checkpoint: Checkpoint, *, needs: Iterable[str] = ()) -> dict[str, Any]:
        """Put saved weights in the place of the run's; returns what was saved with them. See `Checkpoint.load`."""

        def here(folder: Path, needs: Iterable[str]) -> dict[str, Any]:
            return checkpoint.load(self._server, needs=needs)

        return self._lead.do("load weights", (checkpoint.folder.absolute(), list(needs)), here)

    def load_some(self, folder: Path, keys: Iterable[str]) -> tuple[str, ...]:
        """Take over these states' weights alone; returns those that are not there. See `Checkpoint.load_weights`."""
        return self._lead.do(
            "load some weights",
            (folder.absolute(), list(keys)),
            lambda folder, keys: Checkpoint(folder).load_weights(self._server, keys),
        )

    def read(
        self, folder: Path, *, save: int | None = None, needs: Iterable[str] = ()
    ) -> tuple[ParamServer, dict[str, Any]]:
        """Saved weights by themselves, and what was saved with them. See `Checkpoint.load`."""

        def here(folder: Path, save: int | None, needs: Iterable[str]) -> tuple[ParamServer, dict[str, Any]]:
            server = self._server.fork(())
            return server, Checkpoint(folder).load(server, save=save, needs=needs)

        return self._lead.do("read weights", (folder.absolute(), save, list(needs)), here)

    def actions(self) -> dict[str, Callable[..., Any]]:
        """What those do that follow, by the names that `Lead.do` is given."""
        return {
            "save weights": lambda folder, server: self.save(Checkpoint(folder), server),
            "load weights": lambda folder, needs: self.load(Checkpoint(folder), needs=needs),
            "load some weights": self.load_some,
            "read weights": lambda folder, save, needs: self.read(folder, save=save, needs=needs),
        }


def in_one_process(server: ParamServer, saved: Checkpoint) -> ParamServer:
    """A server with all of its weights in this process: itself, or, where ranks have parts, what was saved of it.

    Raises:
        StorageError: what was saved cannot be read.
    """
    if server.world.size == 1:
        return server
    whole = server.another()
    saved.load(whole)
    return whole
