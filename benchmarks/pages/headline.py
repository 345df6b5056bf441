"""What README tells of measurements, each favourable figure beside the contrary ones of its file."""

from __future__ import annotations

from benchmarks.pages import gpu, models, searches
from benchmarks.pages.faults import num_kills
from benchmarks.pages.searches import TASKS
from benchmarks.pages.writing import markdown, points, ratio, raw


def measured() -> str:
    """The one table of README."""
    return markdown(
        ["question", "answer, with 95 % intervals"],
        [
            ["search against random search with as many steps, points of test accuracy, ten seeds", _search()],
            ["the shipped memory of two other tasks, mean of three tasks", _memory()],
            ["other packages at equal steps, **simulated**", _packages()],
            ["a published model made smaller, beside six other ways to prune", _pruning()],
            ["a step on a CPU over plain PyTorch's, everything held", _held()],
            ["a step on a CPU, streamed, over activation checkpointing's", _streamed()],
            ["a step on an H100 or H200 over plain PyTorch's, four runs of one machine each, no intervals", _gpu()],
            ["two ranks on two cores over one process", _ranks()],
            ["`kill -9` at random moments", _kills()],
        ],
    )


def _search() -> str:
    told = [f"{words}: {points(searches.ahead(task))}" for task, words in TASKS.items()]
    again = [points(searches.memory_of(task, "none_6", "random_search")) for task in TASKS]
    return f"{'; '.join(told)}. Measured again: {'; '.join(again)}. An interval that holds 0 shows no difference"


def _memory() -> str:
    six, three = searches.mean_ahead("shipped_6", "none_6"), searches.mean_ahead("shipped_3", "none_3", "_2")
    alone = sum(searches.memory_of(task, "shipped_6", "none_6")["low"] > 0 for task in TASKS)
    return (
        f"{points(six)} at the default budget, {points(three)} at half of it; at the default resolved on {alone} of 3 "
        "tasks alone"
    )


def _packages() -> str:
    return (
        f"at 6 trainings {searches.peers_range()} points ahead of NePS, Syne Tune, DEHB and Optuna on two landscapes, "
        f"{searches.peers_range(landscapes=('trained',))} on 216 networks that were really trained, where at 3 and 12 "
        "trainings many are not resolved. The search's rounds were chosen on these landscapes, the packages have their "
        "defaults: read gains at half"
    )


def _pruning() -> str:
    return (
        f"SmolLM2-135M: {models.headline('pruning_512')}. Gemma 3 270M: {models.headline('pruning_512_gemma')}; "
        f"with the other rate {models.headline('pruning_512_gemma_3e-4')}. "
        f"The search takes {models.search_time()} times their processor time"
    )


def _held() -> str:
    large = [row for row in raw("throughput_1_thread")["rows"] if row["side"] == "relay_kept"]
    small = [
        one["ratios"]["relay"]["wall"]["median"] for one in raw("small_networks")["rows"] if one["checkout"] == "now"
    ]
    return (
        f"large layers {', '.join(ratio(row['over']['plain']) for row in large)} with 4, 12, 24 blocks; small networks "
        f"{min(small):.2f} to {max(small):.2f} (medians)"
    )


def _streamed() -> str:
    rows = [row for row in raw("throughput_1_thread")["rows"] if row["side"] == "relay"]
    told = ", ".join(ratio(row["over"]["checkpointed"]) for row in rows)
    return f"{told} with 4, 12, 24 blocks: two of three not resolved"


def _gpu() -> str:
    names = {
        "everything resident": "everything on the device",
        "everything kept, updated on the host": "kept, updated on the host",
        "streamed, 2 slots": "streamed",
    }
    told = "; ".join(f"{words} {gpu.spread(way)}" for way, words in names.items())
    return (
        f"{told}. Tokens a second, streamed, over activation checkpointing's: {gpu.over_checkpointing()}. No layer "
        "larger than 12.6 M parameters was timed"
    )


def _ranks() -> str:
    rows = {row["side"]: row["speed_over_relay"]["wall"] for row in raw("scaling_quiet")["rows"]}
    return (
        f"{ratio(rows['relay_chunks, 2 ranks'])} times as fast; DDP {ratio(rows['ddp, 2 ranks'])}, FSDP2 with offload "
        f"{ratio(rows['fsdp2_offload, 2 ranks'])}"
    )


def _kills() -> str:
    return f"{num_kills():,} kills: no trial lost; what went wrong [stands there](docs/benchmarks.md#killed)"


BLOCKS = {"measured": measured}
