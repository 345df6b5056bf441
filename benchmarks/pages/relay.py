"""Figures of the relay on a CPU: time, memory, ranks, files."""

from __future__ import annotations

from typing import Any

from benchmarks.pages.writing import markdown, ratio, raw
from benchmarks.table import format_bytes
from benchmarks.timing import ratio as timed

_SIDES = {
    "relay": "**relay** (2 slots, `eager`)",
    "relay_exact": "**relay**, `exact`",
    "relay_half": "**relay**, last half held",
    "relay_kept": "**relay**, everything held",
    "plain": "plain, nothing recomputed",
    "l2l_pytorch": "layer-to-layer-pytorch 0.3.0",
    "fsdp2": "FSDP2, `CPUOffloadPolicy`",
    "deepspeed": "DeepSpeed 0.19.8, ZeRO-3, offload",
    "control": "control: checkpointing again",
}
_BASE = "checkpointed"


def _found(name: str, by: str) -> dict[tuple[str, int], Any]:
    return {(row["side"], row[by]): row for row in raw(name)["rows"]}


def throughput() -> str:
    """A step over PyTorch with checkpointing."""
    rows = _found("throughput_1_thread", "depth")
    depths = sorted({depth for _, depth in rows})
    lines = [[words, *(ratio(rows[side, d]["over"][_BASE], 3) for d in depths)] for side, words in _SIDES.items()]
    for words, side, over in (
        ("everything held over plain", "relay_kept", "plain"),
        ("`exact` over `eager`", "relay_exact", "relay"),
    ):
        lines.append([words, *(ratio(rows[side, depth]["over"][over], 3) for depth in depths)])
    return markdown(["", *(f"{depth} blocks" for depth in depths)], lines)


def small_networks() -> str:
    """Networks that are held, over plain PyTorch, in wall clock."""
    rows = [row for row in raw("small_networks")["rows"] if row["checkout"] == "now"]
    names = dict.fromkeys((row["networks"], row["row"]) for row in rows)
    found = {(row["networks"], row["row"], row["threads"]): row["ratios"] for row in rows}
    lines = [
        [f"{networks}: {what}", *(ratio(found[networks, what, threads]["relay"]["wall"]) for threads in (1, 2))]
        for networks, what in names
    ]
    controls = {t: [one["control"]["wall"]["median"] for (*_, of), one in found.items() if of == t] for t in (1, 2)}
    lines.append(
        ["control: plain again, medians of all rows", *(f"{min(c):.2f} to {max(c):.2f}" for c in controls.values())]
    )
    return markdown(["", "one thread", "two threads"], lines)


_MEMORY = {
    "relay_host": "relay, stash on the host",
    "relay": "relay",
    "checkpointed": "resident, checkpointing",
    "plain": "plain",
}


def _memory(by: str, what: str, chosen: tuple[int, ...]) -> str:
    rows = _found(by, by)
    lines = [[f"{n}", *(format_bytes(rows[side, n]["device_bytes"]) for side in _MEMORY)] for n in chosen]
    return markdown([what, *_MEMORY.values()], lines)


def depth() -> str:
    """Device memory by depth."""
    return _memory("depth", "blocks", (12, 96, 384))


def batch() -> str:
    """Device memory by batch."""
    return _memory("batch", "batch, in micro-batches of 4", (4, 32, 128))


_WAYS = {
    "relay_chunks, 2 ranks": "**relay**, 2 ranks",
    "relay_chunks, 2 ranks, control": "the same again (control)",
    "ddp, 2 ranks": "DDP, each rank with all weights and moments",
    "fsdp2_offload, 2 ranks": "FSDP2, `CPUOffloadPolicy`",
    "fsdp2_offload_whole, 2 ranks": "FSDP2, `CPUOffloadPolicy`, the rank's share as one micro-batch",
}


def ranks() -> str:
    """Two ranks over one process."""
    rows = {row["side"]: row["speed_over_relay"]["wall"] for row in raw("scaling_quiet")["rows"]}
    return markdown(["", "times as fast as one process"], [[words, ratio(rows[side])] for side, words in _WAYS.items()])


def population() -> str:
    """Many architectures in one pass."""
    lines = [
        [row["population"], ratio(row["speedup"]), f"{row['ideal']:.2f}", "yes" if row["results_equal"] else "**no**"]
        for row in raw("population")["rows"]
    ]
    return markdown(["64 architectures", "speed-up over one by one", "ideal", "results bit-equal"], lines)


def others() -> str:
    """What one line each says: switching, files, data."""
    switching, storage, data, larger = (raw(n) for n in ("switching", "storage", "data", "larger_than_memory"))
    files = {row["side"]: row["over"]["ram"] for row in storage["rows"] if row["over"]}
    large = {row["side"]: row for row in larger["rows"]}
    rounds = {side: [one[side] for one in data["images"]["rounds"]] for side in ("files", "memory", "control")}
    lines = [
        [
            "1,000 architectures, one step each, over one fixed",
            ratio(switching["switching_over_fixed"], 3),
            ratio(switching["control"], 3),
        ],
        ["the pool in files, warm page cache, over memory", ratio(files["file"], 3), ratio(files["control"], 3)],
        [
            f"{format_bytes(larger['states_bytes'])} of states on {format_bytes(larger['memory_bytes'])} of memory, ",
            ratio(large["file"]["over"]["ram"], 3),
            ratio(large["control"]["over"]["ram"], 3),
        ],
        ["training from 2,400 JPEG files over memory"]
        + [ratio(timed(rounds[side], rounds["memory"]), 3) for side in ("files", "control")],
    ]
    lines[2][0] += f"over memory; anonymous memory at most {format_bytes(larger['anonymous_bytes']['peak'])}"
    return markdown(["time of a step", "ratio", "control"], lines)


def language() -> str:
    """Language models beside plain PyTorch."""
    lines = []
    for name, words in (("gpt2", "GPT-2"), ("bert", "BERT, whole words masked")):
        found = raw(f"language_training_{name}")
        seconds = found["seconds"]
        lines.append(
            [
                f"{words}, {found['parameters']:,} parameters",
                f"{found['steps']}",
                f"{found['steps_with_another_loss']}",
                "equal" if found["weights_are_equal"] else "**differ**",
                f"{found['test_loss']:.3f}",
                f"{seconds['relay'] / seconds['plain']:.2f}",
            ]
        )
    head = ["", "steps", "steps whose losses differ", "weights at the end", "test loss, nats a token"]
    return markdown([*head, "relay over plain, seconds"], lines)


def workers() -> str:
    """Searches with two workers."""
    lines = []
    rows = {row["side"]: row for row in raw("workers")["rows"]}
    for side in ("2 workers", "control"):
        over = rows[side]["over"]["one process"], rows[side]["once_started_over"]["one process"]
        lines.append([side, *(ratio(one) for one in over)])
    return markdown(["side", "trials a second over one process", "once started"], lines)


def moments() -> str:
    """Moments in bf16 beside fp32."""
    found = raw("moments")
    lines = []
    for name, words in (("adamw", "AdamW"), ("muon", "Muon with AdamW")):
        for precision, about in found["rules"][name].items():
            if precision not in ("fp32", "bf16"):  # moments of 8 bits are gone
                continue
            loss, accuracy = about["last_loss"], about["accuracy"]
            cells = [f"{loss['mean']:.4f}", f"{accuracy['mean']:.4f}"]
            if precision == "bf16":
                cells = [f"{one['difference']:+.4f} ± {one['standard_error']:.4f}" for one in (loss, accuracy)]
            size = about["runs"][0]["moment_bytes"]
            lines.append([f"{words}, {precision}", f"{size:.2f}", *cells, f"{about['update_ns']:.1f} ns"])
    return markdown(["", "bytes a parameter", "last loss", "validation accuracy", "update of a parameter"], lines)


BLOCKS = {
    "moments": moments,
    "throughput": throughput,
    "small_networks": small_networks,
    "depth": depth,
    "batch": batch,
    "ranks": ranks,
    "population": population,
    "others": others,
    "language": language,
    "workers": workers,
}
