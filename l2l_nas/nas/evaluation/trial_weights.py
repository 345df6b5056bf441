"""Which weights a trial trains and is scored with, and the note of them that is stored with it."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

from l2l_nas.cost.closed_form import path_states
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.state import Part
from l2l_nas.errors import SettingError, did_you_mean
from l2l_nas.space.architecture import Architecture

WeightsFor = Callable[[ParamServer, Architecture], ParamServer]


# what a network trains first, given the shared weights; a server other than the shared one is its own
START_WEIGHTS: dict[str, WeightsFor] = {
    "shared": lambda shared, architecture: shared,
    "fork": lambda shared, architecture: shared.fork(path_states(shared.pool, architecture)),
    "scratch": lambda shared, architecture: shared.fork(()),  # every layer from the run's seed
}


def check_trial_weights(name: str) -> None:
    """Refuse a name that is none.

    Raises:
        SettingError: with those there are.
    """
    if name not in START_WEIGHTS:
        raise SettingError(f"search.trial_weights: no such weights as '{name}'{did_you_mean(name, START_WEIGHTS)}")


class WeightProvenance:
    """Tells which version of each layer state an architecture is scored with.

    A checksum of weights is taken when they have changed since the last one; that reads them once.
    """

    def __init__(self) -> None:
        self._checksums: dict[str, tuple[int, str]] = {}  # version and checksum of a state, by key

    def entry(self, kind: str, server: ParamServer, architecture: Architecture) -> dict[str, Any]:
        """What to keep with a trial, as JSON.

        Args:
            kind: a key of `START_WEIGHTS`.
            server: the weights it is scored with.

        Returns:
            `kind`, and for every state of the path, in the order of `path_states`, how many updates it has had
            (`visits`) and the CRC-32 of its weights (`crc32`, eight hexadecimal digits each, in one string): after a
            crash, visits are counted again from the last save, with other weights.

        Raises:
            NonFiniteError: an update under way had a gradient that is not finite.
        """
        server.drain()
        keys = path_states(server.pool, architecture)
        server.prepare(keys)
        visits, checksums = [], []
        for key in keys:
            with server.storage.reading(key, Part.BUFFERS) as state:
                visits.append(state.visits)
                version = state.version
            checksums.append(self._checksum(server, key, version))
        return {"kind": kind, "visits": visits, "crc32": "".join(checksums)}

    def _checksum(self, server: ParamServer, key: str, version: int) -> str:
        known = self._checksums.get(key)
        if known is None or known[0] != version:
            with server.storage.reading(key, Part.WEIGHTS) as state:
                known = version, f"{zlib.crc32(state.weights.numpy().data):08x}"
            self._checksums[key] = known
        return known[1]
