"""The GPU's figures, of all four runs."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.pages.writing import markdown, raw

RUNS = {"H100": "gpu_h100", "H100, again": "gpu_h100_2", "H200": "gpu_h200", "H200, again": "gpu_h200_2"}
TOKENS = ("4,096", "16,384", "65,536")
WAYS = {
    "everything resident": "everything resident: updated on the device",
    "everything kept, updated on the host": "everything kept, updated on the host",
    "streamed, 2 slots": "streamed, 2 slots, `eager`",
    "exact, 3 slots, nothing clipped": "streamed, 3 slots, `exact`",
}
AGAIN = {"exact, 3 slots, nothing clipped": "ahead, 3 slots, nothing clipped"}  # the first H200 run's name for it
PLAIN = ("plain", "plain again (the control)")
PARAMETERS = 24 * 12_596_224  # of the layers: BERT-Large's


def section(run: str, name: str) -> dict[str, float]:
    """Figures of a section of a run by name; empty where it was not reached."""
    sections: dict[str, Any] = raw(RUNS[run])["sections"]
    return {row["name"]: row["value"] for row in sections.get(name, {}).get("rows", [])}


def over_plain(run: str, tokens: str, way: str) -> float | None:
    """A step's time over plain PyTorch's, the mean of what it took before and after; None where not measured."""
    steps = section(run, "steps")
    plain = [steps[f"{tokens} tokens: {name}"] for name in PLAIN if f"{tokens} tokens: {name}" in steps]
    known = [steps[key] for key in (f"{tokens} tokens: {way}", f"{tokens} tokens: {AGAIN.get(way)}") if key in steps]
    return known[0] / statistics.fmean(plain) if known and plain else None


def steps() -> str:
    """Steps over plain PyTorch's."""
    places = [(run, tokens) for run in RUNS for tokens in TOKENS]
    places = [place for place in places if over_plain(*place, "everything resident") is not None]
    rows = []
    for way, words in WAYS.items():
        found = [over_plain(*place, way) for place in places]
        rows.append([words, *("" if one is None else f"{one:.2f}" for one in found)])
    rows.append(["plain PyTorch, ms: before, after", *(_plain(*place) for place in places)])
    return markdown(["over plain", *(f"{run} {tokens}" for run, tokens in places)], rows)


def _plain(run: str, tokens: str) -> str:
    known = section(run, "steps")
    names = [f"{tokens} tokens: {name}" for name in PLAIN]
    return ", ".join(f"{known[name]:,.0f}" for name in names if name in known)


def layers() -> str:
    """Graphs over eager layers."""
    rows = []
    for size in ("large", "small"):
        cells = []
        for run in RUNS:
            known = section(run, "layers")
            graphs, eager = (known.get(f"{size} layers, {way}") for way in ("graphs", "eager"))
            cells.append("" if graphs is None or eager is None else f"{graphs / eager:.2f}")
        rows.append([f"{size} layers: `graphs` over `eager`", *cells])
    return markdown(["", *RUNS], rows)


def peers() -> str:
    """Tokens a second beside checkpointing and FSDP2."""
    runs = ("H100", "H200")
    known = {run: section(run, "peers") for run in runs}
    names = {
        "relay_bf16": "relay",
        "relay_bf16_host": "relay, stash on the host",
        "checkpointed_bf16": "activation checkpointing",
        "checkpointed_bf16 again (the control)": "the same again",
        "fsdp2_bf16": "FSDP2 with offload",
    }
    rows = [[words, *(f"{known[run][name]:,.0f}" for run in runs)] for name, words in names.items()]
    for words, others in {
        "relay over checkpointing, before and after": ("checkpointed_bf16", "checkpointed_bf16 again (the control)"),
        "relay over FSDP2": ("fsdp2_bf16",),
    }.items():
        cells = [", ".join(f"{known[run]['relay_bf16'] / known[run][one]:.2f}" for one in others) for run in runs]
        rows.append([words, *cells])
    peak = [section(run, "rates")["products in bf16, TFLOP/s"] for run in runs]
    work = [6e-12 * PARAMETERS * known[run]["relay_bf16"] for run in runs]
    rows.append(
        [
            "operations of the layers' products, TFLOP/s (of the peak measured there)",
            *(f"{one:.0f} ({one / most:.0%})" for one, most in zip(work, peak, strict=True)),
        ]
    )
    return markdown(["tokens a second, 16,384 a step", *runs], rows)


def memory() -> str:
    """Slots and stash, and the allocator's peak."""
    names = {
        "batch 32, stash on the device": "24 layers, batch 32, stash on the device",
        "batch 256, stash on the device": "24 layers, batch 256, stash on the device",
        "24 layers, stash on the host": "24 layers, batch 32, stash on the host",
        "96 layers, stash on the host": "96 layers, batch 32, stash on the host",
    }
    known = section("H100", "memory")
    rows = [
        [words, *(f"{known[f'{name}: {what}'] / 1e9:.2f} GB" for what in ("slots and stash", "peak"))]
        for name, words in names.items()
    ]
    return markdown(["H100", "slots and stash, as predicted", "the allocator's peak"], rows)


def spread(way: str) -> str:
    """The least and the most of a way's time over plain PyTorch's, over all runs and sizes of a step."""
    found = [over_plain(run, tokens, way) for run in RUNS for tokens in TOKENS]
    known = [one for one in found if one is not None]
    return f"{min(known):.2f} to {max(known):.2f}"


def over_checkpointing() -> str:
    """The least and the most of the relay's tokens a second over those of activation checkpointing."""
    known = [section(run, "peers") for run in ("H100", "H200")]
    found = [
        peers["relay_bf16"] / tokens
        for peers in known
        for name, tokens in peers.items()
        if name.startswith("checkpointed")
    ]
    return f"{min(found):.2f} to {max(found):.2f}"


BLOCKS = {"gpu_steps": steps, "gpu_layers": layers, "gpu_peers": peers, "gpu_memory": memory}
