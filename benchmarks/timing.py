"""Interleaved timing, and ratios with intervals.

Machines drift, so nothing is compared across runs: all sides of a comparison alternate within one process, ratios are
formed round by round, and a control compares one side with itself.
"""

from __future__ import annotations

import gc
import math
import platform
import socket
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from l2l_nas.relay.device import name_of


def interleave(sides: Mapping[str, Callable[[int], object]], *, rounds: int, warmup: int = 2) -> dict[str, list[float]]:
    """Seconds of each side in each round; sides alternate, in an order that rotates.

    Each is called with the number of the round, from 0; the first `warmup` rounds are not counted.
    """
    names = list(sides)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    gc.disable()
    try:
        for repeat in range(warmup + rounds):
            gc.collect()  # between rounds, so that no side pays for another's cycles
            for offset in range(len(names)):
                name = names[(repeat + offset) % len(names)]
                started = time.perf_counter()
                sides[name](repeat)
                if repeat >= warmup:
                    seconds[name].append(time.perf_counter() - started)
    finally:
        gc.enable()
    return seconds


def ratio(a: Sequence[float], b: Sequence[float]) -> dict[str, float]:
    """Median of a/b by rounds, with the 95 % interval of a median (order statistics of the binomial)."""
    ratios = sorted(x / y for x, y in zip(a, b, strict=True))
    count = len(ratios)
    tail = 0.0
    low = 0
    while tail + math.comb(count, low) / 2**count <= 0.025:
        tail += math.comb(count, low) / 2**count
        low += 1
    low = max(0, low - 1)
    return {
        "median": round(statistics.median(ratios), 4),
        "low": round(ratios[low], 4),
        "high": round(ratios[-1 - low], 4),
        "pairs": count,
    }


def machine(device: torch.device | None = None) -> dict[str, object]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    gpu = name_of(device) if device is not None and device.type != "cpu" else "none"
    return {"cpu": model, "threads": torch.get_num_threads(), "torch": torch.__version__, "gpu": gpu}


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return int(server.getsockname()[1])
