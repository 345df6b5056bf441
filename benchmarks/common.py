"""Shared by the benchmarks: interleaved timing, ratios with intervals, results on disk.

Machines drift, so nothing is compared across runs: all sides of a comparison take turns within one process, ratios are
formed round by round, and a control compares one side with itself.
"""

from __future__ import annotations

import gc
import json
import math
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"


def interleave(sides: dict[str, Callable[[int], object]], *, rounds: int, warmup: int = 2) -> dict[str, list[float]]:
    """Seconds of each side in each round; sides take turns, in an order that rotates."""
    names = list(sides)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()
    try:
        for number in range(-warmup, rounds):
            for offset in range(len(names)):
                name = names[(number + offset) % len(names)]
                started = time.perf_counter()
                sides[name](number + warmup)
                if number >= 0:
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
    middle = (ratios[(count - 1) // 2] + ratios[count // 2]) / 2
    return {
        "median": round(middle, 4),
        "low": round(ratios[low], 4),
        "high": round(ratios[-1 - low], 4),
        "pairs": count,
    }


def machine() -> dict[str, object]:
    """What it was measured on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    return {"cpu": model, "threads": torch.get_num_threads(), "torch": torch.__version__, "gpu": "not measured"}


def save(name: str, content: dict[str, object]) -> None:
    """Write and print a result."""
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({"benchmark": name, "machine": machine(), **content}, indent=2)
    (RESULTS / f"{name}.json").write_text(text + "\n")
    print(text)
