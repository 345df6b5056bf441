"""Profiles of machines: the rates that the simulator needs. None of them was measured by this project, but "measured".

Peaks are the makers' figures for dense products; `efficiency` is the share of them that training is assumed to reach.
Link rates are what pinned copies are assumed to reach, about four fifths of the link's nominal rate. Host updates are
those of fused AdamW: it reads and writes 28 bytes a parameter, so that host memory bounds it.

Sources, by profile: V100 data sheet (NVIDIA, 2018); A100, H100 and H200 data sheets (NVIDIA, 2021 to 2024); Ada and
Blackwell GeForce architecture papers (NVIDIA, 2022 and 2025), with fp32 accumulation; GH200 data sheet (NVIDIA, 2024).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from l2l_nas.errors import SettingError, did_you_mean
from l2l_nas.files import read_json

ADAM_BYTES = 28  # a parameter: weight, two moments and gradient are read, all but the gradient written, in fp32
GIB = 1 << 30


@dataclass(frozen=True)
class Work:
    """What a visit of a layer asks of the device.

    Args:
        flops: of matrix products, convolutions and attention.
        bytes: that all other operations read and write.
        kernels: operations, each of which is launched.
    """

    flops: float = 0.0
    bytes: float = 0.0
    kernels: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes, self.kernels + other.kernels)

    def __mul__(self, count: int) -> Work:
        return Work(self.flops * count, self.bytes * count, self.kernels * count)


@dataclass(frozen=True)
class Hardware:
    """A device and its host.

    Args:
        name: of the profile.
        peak_flops: of matrix products a second, by precision. "fp32" is torch's default, without TF32.
        efficiency: share of the peak that layers reach.
        device_bytes: device memory.
        device_bandwidth: bytes a second of device memory.
        link_up: bytes a second from pinned host memory to the device.
        link_down: bytes a second from the device to pinned host memory.
        host_bytes: host memory.
        host_bandwidth: bytes a second of host memory.
        host_updates: parameters a second that the host's AdamW updates.
        disk: bytes a second that are read from or written to files.
        kernel_s: the least time between the launches of two operations.
        step_s: time of this program's own for a step of a plan, in the thread that issues it.
        copy_s: the same for a copy or an update.
        lanes: "streams" where work is issued ahead to the device; "threads" where the issuing thread computes, beside
            threads that copy and update; "inline" where it does everything.
        peers: bytes a second of collectives to devices of the same server, both ways together; 0: none.
        network: bytes a second of a server's collectives to other servers; 0: none.
        sources: where the figures come from.
    """

    name: str
    peak_flops: Mapping[str, float]
    device_bytes: int
    device_bandwidth: float
    link_up: float
    link_down: float
    host_bytes: int
    host_bandwidth: float
    host_updates: float
    efficiency: float = 0.45
    disk: float = 3.2e9
    kernel_s: float = 5e-6
    step_s: float = 60e-6
    copy_s: float = 20e-6
    lanes: str = "streams"
    peers: float = 0.0
    network: float = 0.0
    sources: str = ""

    def __post_init__(self) -> None:
        if self.lanes not in ("streams", "threads", "inline"):
            raise SettingError(f"hardware '{self.name}': lanes must be streams, threads or inline, got {self.lanes!r}")
        rates = [*self.peak_flops.values(), self.efficiency, self.device_bandwidth, self.link_up, self.link_down]
        rates += [self.host_bandwidth, self.host_updates, self.disk]
        if not self.peak_flops or not all(0 < rate < math.inf for rate in rates):
            raise SettingError(f"hardware '{self.name}': its rates must be finite and above 0")

    def flops(self, precision: str) -> float:
        """Matrix operations a second that layers reach; a precision that the device has no units for runs as fp32."""
        return self.efficiency * self.peak_flops.get(precision, self.peak_flops["fp32"])

    def seconds(self, work: Work, precision: str) -> float:
        """How long the device takes for a visit: no less than the launches of its operations take."""
        computed = work.flops / self.flops(precision) + work.bytes / self.device_bandwidth
        return max(computed, work.kernels * self.kernel_s)

    def resident_update_s(self, num_parameters: float) -> float:
        """How long AdamW on the device takes: device memory bounds it."""
        return num_parameters * ADAM_BYTES / self.device_bandwidth

    def to_json(self) -> dict[str, Any]:
        """As a profile's file holds it."""
        return asdict(self)


def _nvidia(name: str, peaks: tuple[float, float, float], memory: tuple[float, float], **others: Any) -> Hardware:
    fp32, bf16, fp16 = (1e12 * peak for peak in peaks)
    given = {"host_bytes": 512 * GIB, "host_bandwidth": 200e9, "host_updates": 5e9, **others}
    link = given.pop("link")
    return Hardware(
        name,
        {"fp32": fp32, "bf16": bf16, "fp16": fp16},
        device_bytes=int(memory[0] * GIB),
        device_bandwidth=memory[1],
        link_up=link,
        link_down=link,
        **given,
    )


_SHEET = "peaks, memory and links: NVIDIA's data sheet; efficiency and host: assumed"
PROFILES: dict[str, Hardware] = {
    one.name: one
    for one in (
        # V100 has no bf16 units: such products run as fp32
        _nvidia(
            "v100", (15.7, 15.7, 125), (16, 0.9e12), link=12e9, host_bandwidth=100e9, host_updates=2e9,
            peers=300e9, network=100e9, sources=_SHEET,
        ),
        _nvidia("a100", (19.5, 312, 312), (80, 2.0e12), link=25e9, host_updates=4e9, peers=600e9, network=200e9,
                sources=_SHEET),
        _nvidia("h100", (67, 989, 989), (80, 3.35e12), link=50e9, efficiency=0.4, peers=900e9, network=400e9,
                sources=_SHEET),
        _nvidia("h200", (67, 989, 989), (141, 4.8e12), link=50e9, efficiency=0.4, peers=900e9, network=400e9,
                sources=_SHEET),
        _nvidia("rtx4090", (82.6, 165, 165), (24, 1.008e12), link=25e9, efficiency=0.7, host_bytes=64 * GIB,
                host_bandwidth=70e9, host_updates=2.3e9, sources=_SHEET),
        _nvidia("rtx5090", (104.8, 209.5, 209.5), (32, 1.79e12), link=50e9, efficiency=0.7, host_bytes=96 * GIB,
                host_bandwidth=80e9, host_updates=2.6e9, sources=_SHEET),
        _nvidia("gh200", (67, 989, 989), (96, 4.0e12), link=375e9, efficiency=0.4, host_bytes=480 * GIB,
                host_bandwidth=384e9, host_updates=10e9, peers=900e9, network=400e9, sources=_SHEET),
        Hardware(
            "laptop", {"fp32": 400e9, "bf16": 200e9, "fp16": 50e9}, device_bytes=16 * GIB, device_bandwidth=40e9,
            link_up=15e9, link_down=15e9, host_bytes=16 * GIB, host_bandwidth=40e9, host_updates=1.4e9, efficiency=0.7,
            lanes="inline", sources="assumed: eight cores with AVX2 and two channels of DDR5; measure yours",
        ),
    )
}  # fmt: skip


def find_hardware(name: str) -> Hardware:
    """A profile by name, or from a JSON file that `plan hardware=measure` wrote.

    Raises:
        SettingError: no such profile, or no profile in that file.
        StorageError: the file cannot be read.
    """
    if name in PROFILES:
        return PROFILES[name]
    if not name.endswith(".json"):
        near = did_you_mean(name, PROFILES)
        raise SettingError(f"hardware: no '{name}'{near}; choose from {', '.join(PROFILES)}, measure, or FILE.json")
    found = read_json(Path(name))
    known = {entry.name: entry for entry in fields(Hardware)}
    if not isinstance(found, dict) or not found.keys() <= known.keys():
        unknown = sorted(found.keys() - known.keys())[:1] if isinstance(found, dict) else []
        raise SettingError(
            f"{name}: no hardware profile" + "".join(f": '{one}' is no figure of one" for one in unknown)
        )
    for key, value in found.items():
        if not _is_right(key, value):
            raise SettingError(f"{name}: {key} is {value!r}, expected " + _EXPECTED.get(key, "a number"))
    try:
        return Hardware(**found)
    except TypeError as error:
        raise SettingError(f"{name}: no hardware profile: {str(error).partition(') ')[2]}") from None


_EXPECTED = {"name": "a text", "lanes": "a text", "sources": "a text", "peak_flops": "numbers by precision, with fp32"}


def _is_right(key: str, value: object) -> bool:
    if key in ("name", "lanes", "sources"):
        return isinstance(value, str)
    if key == "peak_flops":
        return isinstance(value, dict) and "fp32" in value and all(map(_is_number, value.values()))
    return _is_number(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
