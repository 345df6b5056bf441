"""Figures of the relay on a CPU: time, memory, ranks, files, language models; and of the simulator."""

from __future__ import annotations

from typing import Any

from benchmarks.pages.writing import bullets, format_bytes, markdown, ratio, raw

_SIDES = {
    "relay": "**relay** (2 slots, `eager`)",
    "relay_half": "**relay**, last half held",
    "relay_kept": "**relay**, everything held",
    "plain": "plain, nothing recomputed",
    "l2l_pytorch": "layer-to-layer-pytorch 0.3.0",
    "fsdp2": "FSDP2, `CPUOffloadPolicy`",
    "deepspeed": "DeepSpeed 0.19.8, ZeRO-3, offload",
    "control": "control: checkpointing again",
}


def over(side: str, other: str) -> list[str]:
    return [ratio(row["over"][other]) for row in raw("throughput_1_thread")["rows"] if row["side"] == side]


def throughput() -> str:
    lines = [[words, *over(side, "checkpointed")] for side, words in _SIDES.items()]
    lines.append(["everything held over plain", *over("relay_kept", "plain")])
    lines.append(["`exact` over `eager`", *over("relay_exact", "relay")])
    return markdown(["", "4 blocks", "12 blocks", "24 blocks"], lines)


def small_medians(side: str = "relay", threads: int | None = None) -> str:
    """The least and the most of the medians over plain PyTorch's time."""
    rows = [row for row in raw("small_networks")["rows"] if threads in (None, row["threads"])]
    found = [row["ratios"][side]["wall"]["median"] for row in rows]
    return f"{min(found):.2f} to {max(found):.2f}"


def small_networks() -> str:
    """Networks that are held, over plain PyTorch, in wall clock."""
    rows = raw("small_networks")["rows"]
    found = {(row["networks"], row["row"], row["threads"]): row["ratios"]["relay"]["wall"] for row in rows}
    names = dict.fromkeys((row["networks"], row["row"]) for row in rows)
    lines = [[": ".join(name), *(ratio(found[*name, threads]) for threads in (1, 2))] for name in names]
    lines.append(["control: plain again, medians of all rows", *(small_medians("control", n) for n in (1, 2))])
    return markdown(["", "one thread", "two threads"], lines)


def depth() -> str:
    sides = {"relay_host": "relay, stash on the host", "relay": "relay", "checkpointed": "resident, checkpointing"}
    sides |= {"plain": "plain"}
    rows = {(row["side"], row["depth"]): format_bytes(row["device_bytes"]) for row in raw("depth")["rows"]}
    return markdown(["blocks", *sides.values()], [[f"{n}", *(rows[s, n] for s in sides)] for n in (12, 96, 384)])


def larger() -> str:
    found = raw("larger_than_memory")
    rows = {row["side"]: row["over"].get("ram") for row in found["rows"]}
    states, memory = format_bytes(found["states_bytes"]), format_bytes(found["memory_bytes"])
    return bullets(
        [
            f"{states} of states on {memory} of memory: a step takes {ratio(rows['file'])} of its time from memory "
            f"(control {ratio(rows['control'])}); anonymous memory at most "
            f"{format_bytes(found['anonymous_bytes']['peak'])}."
        ]
    )


def two_ranks() -> dict[str, str]:
    """How many times as fast as one process."""
    return {row["side"]: ratio(row["speed_over_relay"]["wall"]) for row in raw("scaling_quiet")["rows"]
            if "speed_over_relay" in row}  # fmt: skip


def ranks() -> str:
    ways = {
        "relay_chunks, 2 ranks": "**relay**, 2 ranks",
        "relay_chunks, 2 ranks, control": "the same again (control)",
        "ddp, 2 ranks": "DDP, each rank with all weights and moments",
        "fsdp2_offload, 2 ranks": "FSDP2, `CPUOffloadPolicy`",
        "fsdp2_offload_whole, 2 ranks": "FSDP2, `CPUOffloadPolicy`, the rank's share as one micro-batch",
    }
    rows = two_ranks()
    return markdown(["", "times as fast as one process"], [[words, rows[side]] for side, words in ways.items()])


def language() -> str:
    lines = []
    for name, words in (("gpt2", "GPT-2"), ("bert", "BERT, whole words masked")):
        found: dict[str, Any] = raw(f"language_training_{name}")
        counts = [f"{found[what]}" for what in ("steps", "steps_with_another_loss")]
        weights = "equal" if found["weights_are_equal"] else "**differ**"
        seconds = f"{found['seconds']['relay'] / found['seconds']['plain']:.2f}"
        lines.append([f"{words}, {found['parameters']:,} parameters", *counts, weights, seconds])
    return markdown(["", "steps", "steps whose losses differ", "weights at the end", "relay over plain, time"], lines)


def simulator() -> str:
    """The simulator against the real executor on a throttled CPU."""
    about = raw("simulator")["summary"]
    return bullets(
        [
            f"{about['triples']} random pools, paths and orders of updates: median error of a step "
            f"{about['median_step_error']:.1%}, largest {about['largest_step_error']:.1%}; the busiest lane right in "
            f"{about['binds_right']}, device bytes exact in {about['device_exact']}, host bytes within "
            f"{about['largest_host_error']:.1%}."
        ]
    )


BLOCKS = {
    "throughput": throughput, "small_networks": small_networks, "depth": depth, "larger": larger, "ranks": ranks,
    "language": language, "simulator": simulator,
}  # fmt: skip
