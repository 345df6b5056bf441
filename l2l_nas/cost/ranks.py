"""Ranks that share a step: what they exchange through, and what they take from each other. Nothing of it runs here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from l2l_nas.cost.hardware import Hardware

SERVER = 8  # devices that reach each other without the network


def inside_bandwidth(hardware: Hardware) -> float:
    """Of a device to others of its server, both ways together: by their links, or through the host."""
    return hardware.peers or hardware.link_up + hardware.link_down


@dataclass(frozen=True)
class RankLink:
    """What ranks exchange through."""

    bandwidth: float  # bytes a second that each takes from the others while it gives as many
    latency_s: float  # the least time of an exchange

    @classmethod
    def of(cls, hardware: Hardware, ranks: int) -> RankLink:
        """Between so many ranks, each with a device."""
        own = hardware.rank_bandwidth or inside_bandwidth(hardware) / 2
        if not hardware.rank_bandwidth and ranks > SERVER and hardware.network:
            own = hardware.network / 2 / SERVER
        return cls(own, hardware.rank_latency_s)

    def seconds(self, sizes: Iterable[float]) -> float:
        """Of exchanges in which each rank takes so many bytes."""
        return sum(self.latency_s + size / self.bandwidth for size in sizes)


def summed_bytes(num_bytes: float, ranks: int) -> float:
    """What each rank takes while a ring sums so many bytes (Patarasuk and Yuan, JPDC 69, 2009)."""
    return 2 * (ranks - 1) / ranks * num_bytes
