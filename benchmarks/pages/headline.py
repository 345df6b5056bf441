"""What README tells of measurements, each favourable figure beside the contrary ones of its file."""

from __future__ import annotations

from benchmarks.pages import gpu, models, relay, searches
from benchmarks.pages.faults import num_kills
from benchmarks.pages.searches import TASKS
from benchmarks.pages.writing import markdown, points


def measured() -> str:
    return markdown(
        ["question", "answer, with 95 % intervals"],
        [
            [f"search minus random search of as many steps, points of test accuracy, {_seeds()}", _ahead(named=True)],
            [f"the same at half of the steps, {_seeds('_3_trainings')}", _ahead("_3_trainings")],
            [
                f"the same with `search.learn_from=[]`, {_seeds('_alone')}, twice",
                f"{_ahead('_alone')}; again {_ahead('_alone_again')}",
            ],
            ["other packages at equal steps, **simulated**", _packages()],
            ["a published model made smaller, beside six other ways to prune", _pruning()],
            ["a step on a CPU over plain PyTorch's, everything held", _held()],
            ["a step on a CPU, streamed, over activation checkpointing's", _streamed()],
            ["a step on an H100 or H200 over plain PyTorch's, four runs of one machine each, no intervals", _gpu()],
            ["two ranks on two cores over one process", _ranks()],
            ["`kill -9` at random moments", _kills()],
        ],
    )


def _seeds(kind: str = "") -> str:
    return f"{searches.num_seeds(kind)} seeds"


def _ahead(kind: str = "", *, named: bool = False) -> str:
    return "; ".join(f"{words}: " * named + points(searches.ahead(task, kind=kind)) for task, words in TASKS.items())


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
    return (
        f"large layers {', '.join(relay.over('relay_kept', 'plain'))} with 4, 12, 24 blocks; small networks "
        f"{relay.small_medians()} (medians)"
    )


def _streamed() -> str:
    return f"{', '.join(relay.over('relay', 'checkpointed'))} with 4, 12, 24 blocks: two of three not resolved"


def _gpu() -> str:
    names = {
        "everything resident": "everything on the device",
        "everything kept, updated on the host": "kept, updated on the host",
        "streamed, 2 slots": "streamed",
    }
    told = "; ".join(f"{words} {gpu.spread(way).rpartition(' (')[0]}" for way, words in names.items())
    return (
        f"{told}. Tokens a second, streamed, over activation checkpointing's: {gpu.over('checkpointed')}. No layer "
        "larger than 12.6 M parameters was timed"
    )


def _ranks() -> str:
    rows = relay.two_ranks()
    return (
        f"{rows['relay_chunks, 2 ranks']} times as fast; DDP {rows['ddp, 2 ranks']}, FSDP2 with offload "
        f"{rows['fsdp2_offload, 2 ranks']}"
    )


def _kills() -> str:
    return f"{num_kills():,} kills: no trial lost; what went wrong [stands there](docs/benchmarks.md#killed)"


BLOCKS = {"measured": measured}
