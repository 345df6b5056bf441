"""The GPU's figures, of all four runs."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.pages.writing import bullets, markdown, raw

RUNS = ("gpu_h100", "gpu_h100_2", "gpu_h200", "gpu_h200_2")
_PEERS = {"gpu_h100": "H100", "gpu_h200": "H200"}  # runs that measured them
_TOKENS = ("4,096", "16,384", "65,536")
_WAYS = {
    "everything resident": "everything resident: updated on the device",
    "everything kept, updated on the host": "everything kept, updated on the host",
    "streamed, 2 slots": "streamed, 2 slots, `eager`",
    "exact, 3 slots, nothing clipped": "streamed, 3 slots, `exact`",
}
_AGAIN = {"exact, 3 slots, nothing clipped": "ahead, 3 slots, nothing clipped"}  # the first H200 run's name for it
_PLAIN = ("plain", "plain again (the control)")
_PARAMETERS = 24 * 12_596_224  # of the layers: BERT-Large's


def section(run: str, name: str) -> dict[str, float]:
    """Figures of a section of a run by name; empty where it was not reached."""
    sections: dict[str, Any] = raw(run)["sections"]
    return {row["name"]: row["value"] for row in sections.get(name, {}).get("rows", [])}


def spread(way: str, sizes: tuple[str, ...] = _TOKENS) -> str:
    """The least and the most of a way's time over plain PyTorch's (the mean before and after), over runs and sizes."""
    found = []
    for run in RUNS:
        steps = section(run, "steps")
        for tokens in sizes:
            plain = [steps[f"{tokens} tokens: {name}"] for name in _PLAIN if f"{tokens} tokens: {name}" in steps]
            own = [f"{tokens} tokens: {name}" for name in (way, _AGAIN.get(way)) if f"{tokens} tokens: {name}" in steps]
            if plain and own:
                found.append(steps[own[0]] / statistics.fmean(plain))
    return f"{min(found):.2f} to {max(found):.2f} ({len(found)})" if found else ""


def steps() -> str:
    rows = [[words, *(spread(way, (tokens,)) for tokens in _TOKENS)] for way, words in _WAYS.items()]
    return markdown(["over plain, the least and most of so many runs", *(f"{one} tokens" for one in _TOKENS)], rows)


def layers() -> str:
    found: dict[str, list[float]] = {"large": [], "small": []}
    for run, (size, ratios) in ((run, item) for run in RUNS for item in found.items()):
        known = section(run, "layers")
        graphs, eager = (known.get(f"{size} layers, {way}") for way in ("graphs", "eager"))
        if graphs and eager:
            ratios.append(graphs / eager)
    return bullets(
        f"`graphs` over `eager`, {size} layers: {min(r):.2f} to {max(r):.2f} ({len(r)} runs)"
        for size, r in found.items()
    )


def over(other: str) -> str:
    """The least and the most of the relay's tokens a second over those of another way."""
    known = [section(run, "peers") for run in _PEERS]
    found = [one["relay_bf16"] / value for one in known for name, value in one.items() if name.startswith(other)]
    return f"{min(found):.2f} to {max(found):.2f}"


def peers() -> str:
    """Tokens a second beside checkpointing and FSDP2."""
    known = {run: section(run, "peers") for run in _PEERS}
    names = {
        "relay_bf16": "relay",
        "checkpointed_bf16": "activation checkpointing",
        "checkpointed_bf16 again (the control)": "the same again",
        "fsdp2_bf16": "FSDP2 with offload",
    }
    rows = [[words, *(f"{known[run][name]:,.0f}" for run in _PEERS)] for name, words in names.items()]
    peak = [section(run, "rates")["products in bf16, TFLOP/s"] for run in _PEERS]
    work = [6e-12 * _PARAMETERS * known[run]["relay_bf16"] for run in _PEERS]
    shares = (f"{one:.0f} ({one / most:.0%})" for one, most in zip(work, peak, strict=True))
    rows.append(["the relay's products, TFLOP/s (of the peak measured there)", *shares])
    return markdown(["tokens a second, 16,384 a step", *_PEERS.values()], rows)


def memory() -> str:
    names = {
        "batch 32, stash on the device": "24 layers, batch 32, stash on the device",
        "batch 256, stash on the device": "24 layers, batch 256, stash on the device",
        "24 layers, stash on the host": "24 layers, batch 32, stash on the host",
        "96 layers, stash on the host": "96 layers, batch 32, stash on the host",
    }
    known = section("gpu_h100", "memory")
    rows = [
        [words, *(f"{known[f'{name}: {what}'] / 1e9:.2f} GB" for what in ("slots and stash", "peak"))]
        for name, words in names.items()
    ]
    return markdown(["H100", "slots and stash", "the allocator's peak"], rows)


BLOCKS = {"gpu_steps": steps, "gpu_layers": layers, "gpu_peers": peers, "gpu_memory": memory}
