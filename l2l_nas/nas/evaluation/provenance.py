"""Which weights a network was scored with."""

from __future__ import annotations

from typing import Any

from l2l_nas.contents.tensors import checksum_of
from l2l_nas.cost.closed_form import path_states
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.state import Part
from l2l_nas.space.architecture import Architecture


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
            known = self._checksums.get(key)
            if known is None or known[0] != version:
                with server.all_gather(key, Part.WEIGHTS) as state:
                    known = version, f"{checksum_of([state.weights]):08x}"
                self._checksums[key] = known
            checksums.append(known[1])
        return {"kind": kind, "visits": visits, "crc32": "".join(checksums)}
