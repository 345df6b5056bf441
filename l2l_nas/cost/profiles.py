"""Profiles of machines: the figures that the simulator needs, each beside its source. None was measured here.

Peaks are the makers' figures for dense products, with sums in fp32. Link rates are what pinned copies are assumed to
reach. A source that begins with "assumed" is nobody's figure but this project's: replace it in a file of your own.
"""

from __future__ import annotations

from typing import Any

from l2l_nas.cost.hardware import ADAM_BYTES, ASSUMED, GIB, Hardware, read_hardware
from l2l_nas.errors import SettingError, did_you_mean

_V100 = "NVIDIA, Tesla V100 data sheet (2018), SXM2"
_A100 = "NVIDIA, A100 80GB data sheet (2021), SXM"
_H100 = "NVIDIA, H100 data sheet (2023), SXM; half of the figure with sparsity"
_H200 = "NVIDIA, H200 data sheet (2024), SXM; half of the figure with sparsity"
_ADA = "NVIDIA, Ada GPU architecture paper (2022), table of the RTX 4090; FP16 and BF16 with FP32 accumulation, dense"
_BLACKWELL = "NVIDIA, RTX Blackwell GPU architecture paper (2025), table of the RTX 5090; with FP32 accumulation, dense"
_GH200 = "NVIDIA, GH200 Grace Hopper data sheet (2024), 96 GB HBM3; half of the figure with sparsity"
_LAPTOP = f"{ASSUMED}: eight cores with AVX2, two channels of DDR5; measure yours"

Figure = tuple[Any, str]  # a value, and where it comes from
# what this program takes, whatever the device
_PROGRAM: dict[str, Figure] = {
    "disk": (3.2e9, f"{ASSUMED}: cold reads of this project's development machine"),
    "kernel_s": (5e-6, f"{ASSUMED}: the time in which PyTorch launches an operation"),
    "step_s": (60e-6, f"{ASSUMED}: the issuing of a visit in Python"),
    "copy_s": (20e-6, f"{ASSUMED}: the handing of a copy to a thread"),
    "rank_bandwidth": (0.0, f"{ASSUMED}: what the links between devices allow, or the host's where there are none"),
    "rank_latency_s": (50e-6, f"{ASSUMED}: the begin of an exchange between processes"),
}


def _profile(name: str, lanes: str = "streams", /, **figures: Figure) -> Hardware:
    whole = {**_PROGRAM, **figures}
    values = {figure: value for figure, (value, _) in whole.items()}
    return Hardware(name, lanes=lanes, sources={figure: source for figure, (_, source) in whole.items()}, **values)


def _card(name: str, /, **others: Figure) -> Hardware:
    source, peaks, gib, bandwidth = _CARDS[name]
    return _profile(
        name,
        peak_flops=({name: 1e12 * peak for name, peak in zip(("fp32", "bf16", "fp16"), peaks, strict=True)}, source),
        device_bytes=(gib * GIB, source),
        device_bandwidth=(bandwidth, source),
        **others,
    )


def _link(rate: float, generation: int, nominal: float) -> dict[str, Figure]:
    """Both directions of a slot with sixteen lanes."""
    source = f"{ASSUMED}: of the {nominal / 1e9:g} GB/s each way of PCIe {generation}.0 x16 (PCI-SIG)"
    return dict.fromkeys(("link_up", "link_down"), (rate, source))


def _host(num_bytes: int, bandwidth: float, updates: float, what: str) -> dict[str, Figure]:
    used = (
        f"{ASSUMED}: {updates * ADAM_BYTES / 1e9:.0f} of the {bandwidth / 1e9:g} GB/s, {ADAM_BYTES} bytes a parameter"
    )
    return {
        "host_bytes": (num_bytes, f"{ASSUMED}: {what}"),
        "host_bandwidth": (bandwidth, f"{ASSUMED}: {what}"),
        "host_updates": (updates, used),
    }


# source, TFLOP/s in fp32, bf16 and fp16, GiB of memory, and its bytes a second
_CARDS = {
    "v100": (_V100, (15.7, 15.7, 125), 16, 0.9e12),  # it has no bf16 units: such products run as fp32
    "a100": (_A100, (19.5, 312, 312), 80, 2.0e12),
    "h100": (_H100, (67, 989, 989), 80, 3.35e12),
    "h200": (_H200, (67, 989, 989), 141, 4.8e12),
    "rtx4090": (_ADA, (82.6, 165, 165), 24, 1.008e12),
    "rtx5090": (_BLACKWELL, (104.8, 209.5, 209.5), 32, 1.79e12),
    "gh200": (_GH200, (67, 989, 989), 96, 4.0e12),
}
_SERVER = "a server's share for one device"
_DESK = "a desktop with two channels of DDR5"
_PEERLESS: dict[str, Figure] = {
    "peers": (0.0, "none: the card has no NVLink"),
    "network": (0.0, f"{ASSUMED}: one machine"),
}
_SUMS_IN_FP32 = (0.7, f"{ASSUMED}: its peak is half of what its units do with sums in fp16")
_AS_H100 = (0.4, f"{ASSUMED}: as the H100's, whose units these are")
_NVLINK_C2C = (375e9, f"{ASSUMED}: of the 450 GB/s each way of NVLink-C2C ({_GH200.partition(';')[0]})")
_ALL = (
    _card(
        "v100",
        efficiency=(0.45, f"{ASSUMED}; Megatron-LM's own baseline reaches 0.31 (arXiv 1909.08053, section 5.1)"),
        peers=(300e9, _V100),
        network=(200e9, "eight adapters, 100 GB/s between servers (arXiv 1909.08053, section 5), both ways"),
        **_link(12e9, 3, 15.75e9),
        **_host(512 * GIB, 100e9, 2e9, _SERVER),
    ),
    _card(
        "a100",
        efficiency=(0.45, "44 to 52 % of the peak (arXiv 2104.04473, table 1)"),
        peers=(600e9, _A100),
        network=(400e9, "NVIDIA, DGX A100 data sheet (2020): eight adapters of 200 Gb/s, both ways"),
        **_link(25e9, 4, 31.5e9),
        **_host(512 * GIB, 200e9, 4e9, _SERVER),
    ),
    _card(
        "h100",
        efficiency=(0.4, "38 to 43 % of the peak (arXiv 2407.21783, table 4)"),
        peers=(900e9, _H100),
        network=(800e9, "NVIDIA, DGX H100 data sheet (2023): eight adapters of 400 Gb/s, both ways"),
        **_link(50e9, 5, 63e9),
        **_host(512 * GIB, 200e9, 5e9, _SERVER),
    ),
    _card(
        "h200",
        efficiency=_AS_H100,
        peers=(900e9, _H200),
        network=(800e9, "NVIDIA, DGX H200 data sheet (2024): eight adapters of 400 Gb/s, both ways"),
        **_link(50e9, 5, 63e9),
        **_host(512 * GIB, 200e9, 5e9, _SERVER),
    ),
    _card(
        "rtx4090",
        efficiency=_SUMS_IN_FP32,
        **_PEERLESS,
        **_link(25e9, 4, 31.5e9),
        **_host(64 * GIB, 70e9, 2.3e9, _DESK),
    ),
    _card(
        "rtx5090",
        efficiency=_SUMS_IN_FP32,
        **_PEERLESS,
        **_link(50e9, 5, 63e9),
        **_host(96 * GIB, 80e9, 2.6e9, _DESK),
    ),
    _card(
        "gh200",
        efficiency=_AS_H100,
        link_up=_NVLINK_C2C,
        link_down=_NVLINK_C2C,
        peers=(900e9, f"{ASSUMED}: NVLink of the H100"),
        network=(800e9, f"{ASSUMED}: as servers of the H100"),
        **{
            **_host(480 * GIB, 384e9, 10e9, "Grace's LPDDR5X"),
            "host_bytes": (480 * GIB, _GH200.partition(";")[0]),
            "host_bandwidth": (384e9, f"{ASSUMED}: of the 512 GB/s at most ({_GH200.partition(';')[0]})"),
        },
    ),
    _profile(
        "laptop",
        "inline",
        peak_flops=({"fp32": 400e9, "bf16": 200e9, "fp16": 50e9}, _LAPTOP),
        efficiency=(0.7, _LAPTOP),
        device_bytes=(16 * GIB, _LAPTOP),
        device_bandwidth=(40e9, _LAPTOP),
        **_PEERLESS,
        **dict.fromkeys(("link_up", "link_down"), (15e9, _LAPTOP)),
        rank_bandwidth=(1e9, f"{ASSUMED}: processes of one machine that exchange through its network stack"),
        rank_latency_s=(300e-6, f"{ASSUMED}: processes of one machine that exchange through its network stack"),
        **_host(16 * GIB, 40e9, 1.4e9, _LAPTOP.partition(": ")[2]),
    ),
)
PROFILES: dict[str, Hardware] = {profile.name: profile for profile in _ALL}


def find_hardware(name: str) -> Hardware:
    """A profile by name, or from a JSON file that `plan hardware=measure` wrote.

    Raises:
        SettingError: no such profile, or no profile in that file.
        StorageError: the file cannot be read.
    """
    if name in PROFILES:
        return PROFILES[name]
    if not name.endswith(".json"):
        raise SettingError(f"hardware: no '{name}'{did_you_mean(name, (*PROFILES, 'measure', 'FILE.json'))}")
    return read_hardware(name)
