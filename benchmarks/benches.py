"""All benches by name, with their own defaults."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.catalogue import CATALOGUE
from benchmarks.relay import architectures, larger, training
from benchmarks.search import chain, nas201, ranking, workers
from benchmarks.settings import Bench, BenchWatch, Settings
from benchmarks.timing import machine

_SMALL = {"hidden": 64, "feedforward": 256, "sequence": 32, "batch": 16}
_MEMORY_SIDES = (
    *("relay_host", "relay", "checkpointed", "plain"),
    *("fsdp2", "l2l_pytorch", "deepspeed"),
)
_THROUGHPUT_SIDES = (
    *("relay", "relay_exact", "relay_half", "relay_kept", "relay_bf16"),
    *("checkpointed", "plain", "fsdp2", "l2l_pytorch", "deepspeed"),
)

_BERT_LARGE = {"depth": 24, "hidden": 1024, "heads": 16, "feedforward": 4096, "sequence": 128}

BENCHES: dict[str, Bench] = {
    "depth": Bench(
        training.depth,
        {**_SMALL, "batch": 8},
        {"sides": _MEMORY_SIDES, "depths": (12, 24, 48, 96, 192, 384)},
    ),
    "batch": Bench(
        training.batch,
        _SMALL,
        {"sides": (*_MEMORY_SIDES, "plain_whole"), "batches": (4, 8, 16, 32, 64, 128)},
    ),
    "throughput": Bench(
        training.throughput,
        {},
        {"sides": _THROUGHPUT_SIDES, "depths": (4, 12, 24), "rounds": 8, "steps": 2},
    ),
    "switching": Bench(
        architectures.switching,
        {**_SMALL, "batch": 8, "depth": 8, "hidden": 128, "candidates": 4, "vocabulary": 100},
        {"steps": 1000},
        least_candidates=2,
    ),
    "population": Bench(
        architectures.population,
        {**_SMALL, "hidden": 128, "feedforward": 512, "candidates": 4, "vocabulary": 100, "batch": 32},
        {"rounds": 8, "architectures": 64, "population_bytes": 0},
        least_candidates=2,
    ),
    "storage": Bench(
        training.storage,
        {},
        {"rounds": 8, "steps": 2},
    ),
    "nas201": Bench(
        nas201.nas201,
        {},
        {"samplers": ("random", "nsga2", "tpe", "evolution", "gp_hamming"), "runs": 60, "trials": 200},
        refuse=nas201.check,
        trains=False,
    ),
    "workers": Bench(
        workers.workers,
        {},
        {"rounds": 6, "trials": 32, "steps": 24, "workers": 2, "trial_weights": "shared"},
        refuse=workers.check,
        trains=False,
    ),
    "ranking": Bench(
        ranking.ranking,
        {},
        {
            "samplers": ("uniform", "fair"),
            "architectures": 0,
            "runs": 3,
            "seeds": 3,
            "training_steps": 0,
            "warmup_steps": 3000,
        },
        refuse=ranking.check,
        trains=False,
        space="small_conv",
    ),
    "search_chain": Bench(
        chain.search_chain,
        {},
        {
            "architectures": 100,
            "seeds": 3,
            "runs": 2,
            "training_steps": 0,
            "warmup_steps": 0,
            "trials": 0,
            "steps": 0,
            "trial_weights": "scratch",
        },
        refuse=chain.check,
        trains=False,
        space="image_blocks",
        data="cluttered_digits",
    ),
    "larger_than_memory": Bench(
        larger.larger_than_memory,
        {**_BERT_LARGE, "batch": 8, "micro_batch": 4, "candidates": 8},
        {"rounds": 4, "steps": 2},
        least_candidates=2,
        refuse=larger.check,
    ),
}


def run_bench(name: str, settings: Settings, watch: BenchWatch) -> dict[str, Any]:
    """Measure; returns what is written as JSON."""
    bench = BENCHES[name]
    bench.check(settings)
    started = time.monotonic()
    result = bench.run(settings, watch)
    return {
        "bench": name,
        "about": CATALOGUE[name].about,
        "machine": machine(settings.work.torch_device),
        "settings": _as_json(settings, bench),
        "seconds": round(time.monotonic() - started, 1),
        **result,
    }


def all_agree(result: dict[str, Any]) -> bool:
    """Whether every side computed what it should, and nothing was made that should not be."""
    rows = result.get("rows", [])
    return (
        all(row.get("agreement", {}).get("agrees", True) for row in rows)
        and all(row.get("results_equal", True) for row in rows)
        and bool(result.get("nothing_new", True))
    )


def _as_json(settings: Settings, bench: Bench) -> dict[str, Any]:
    """The stack's sizes where one is trained, and those settings that the bench reads."""
    work = settings.work
    sizes = ("depth", "hidden", "heads", "feedforward", "sequence", "vocabulary", "batch", "micro_batch", "candidates")
    names = (*sizes, "device", "seed", "lr") if bench.trains else ("seed",)
    values: dict[str, Any] = {name: getattr(work, name) for name in names}
    for name in bench.defaults:
        value = getattr(settings, name)
        values[name] = list(value) if isinstance(value, tuple) else value
    if "depths" in values:
        del values["depth"]
    if "batches" in values:
        del values["batch"]
    return values
