"""A device and its host as the figures that the simulator needs; `profiles.py` has those of known machines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from l2l_nas.contents.fields import Fields
from l2l_nas.errors import SettingError
from l2l_nas.files import read_json
from l2l_nas.relay.measure import Work

ADAM_BYTES = 28  # a parameter: weight, two moments and gradient are read, all but the gradient written, in fp32
GIB = 1 << 30
ASSUMED = "assumed"  # how a source begins that is nobody's figure


@dataclass(frozen=True)
class Hardware:
    """A device and its host. Rates are bytes a second."""

    name: str
    peak_flops: Mapping[str, float]  # of matrix products a second, by precision; "fp32" is torch's, without TF32
    device_bytes: int
    device_bandwidth: float  # of device memory
    link_up: float  # from pinned host memory to the device
    link_down: float  # from the device to pinned host memory
    host_bytes: int
    host_bandwidth: float  # of host memory
    host_updates: float  # parameters a second that the host's AdamW updates
    efficiency: float = 0.45  # share of the peak that layers reach
    disk: float = 3.2e9  # read from or written to files
    kernel_s: float = 5e-6  # the least time between the launches of two operations
    step_s: float = 60e-6  # time of this program's own for a step of a plan, in the thread that issues it
    copy_s: float = 20e-6  # the same for a copy or an update
    # "streams" where work is issued ahead to the device; "threads" where the issuing thread computes, beside threads
    # that copy and update; "inline" where it does everything
    lanes: str = "streams"
    peers: float = 0.0  # of collectives to devices of the same server, both ways together; 0: none
    network: float = 0.0  # from a server to other servers, both ways together; 0: none
    # between ranks: what each takes from the others while it gives as much; 0: as `peers` and `network` allow
    rank_bandwidth: float = 0.0
    rank_latency_s: float = 50e-6  # the least time of an exchange between ranks
    sources: Mapping[str, str] = field(default_factory=dict)  # by figure

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

    def device_update_s(self, num_parameters: float) -> float:
        """How long AdamW on the device takes: device memory bounds it."""
        return num_parameters * ADAM_BYTES / self.device_bandwidth

    @property
    def origin(self) -> str:
        """Where its figures come from, in a line."""
        different = set(self.sources.values())
        if len(different) < 2:
            return "".join(different) or "a profile of your own"
        assumed = sum(source.startswith(ASSUMED) for source in self.sources.values())
        return (
            f"{len(self.sources) - assumed} figures as published, {assumed} assumed; plan.json has the source of each"
        )

    def to_json(self) -> dict[str, Any]:
        """The content of a profile's file."""
        return asdict(self)


def read_hardware(name: str) -> Hardware:
    """A profile in a JSON file, such as the `hardware.json` of `plan`; see `find_hardware`."""
    content = read_json(Path(name))
    if not isinstance(content, dict):
        raise SettingError(f"{name}: no hardware profile")
    if unknown := sorted(content.keys() - {entry.name for entry in fields(Hardware)}):
        raise SettingError(f"{name}: no hardware profile: '{unknown[0]}' is no figure of one")
    if isinstance(content.get("sources"), str):  # one for all figures, as files of before have it
        content["sources"] = {"all": content["sources"]}
    figures = Fields(content, name, advice="measure it: plan hardware=measure", error=SettingError)
    for key in content:
        _check(figures, key)
    try:
        return Hardware(**content)
    except TypeError as error:
        raise SettingError(f"{name}: no hardware profile: {str(error).partition(') ')[2]}") from None


def _check(figures: Fields, key: str) -> None:
    if key in ("name", "lanes"):
        figures.text(key)
    elif key == "sources":
        if not all(isinstance(source, str) for source in figures.table(key).values()):
            figures.refuse(key, "texts by figure")
    elif key == "peak_flops":
        peaks = figures.table(key)
        rates = Fields(peaks, f"{figures.where}: {key}", error=SettingError)
        for precision in peaks:
            rates.number(precision)
        if "fp32" not in peaks:
            figures.refuse(key, "numbers by precision, with fp32")
    else:
        figures.number(key)
