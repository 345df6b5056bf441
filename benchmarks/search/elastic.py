"""One elastic network against the same widths as separate candidates: host bytes, and quality at equal training.

    python -m benchmarks elastic --out FILE [--seeds 3] [--steps 450]

Each position of `elastic_conv` has six blocks, which are regions of the largest; the other space has the same blocks
with weights of their own. Both are trained on scikit-learn's digits by as many steps of the same paths (fair: each
block equally often), paired by seed, one after the other in an order that alternates. Then 40 random networks, the
smallest and the largest are scored on the validation part, BatchNorm measured anew for each.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.options import at_least
from benchmarks.search.standalone import Recipe
from benchmarks.timing import machine
from l2l_nas import Architecture, Batches, Candidate, LayerPool, ParamServer, Position, Problem, Relay, UniformPaths
from l2l_nas.files import write_json
from l2l_nas.space.sampling import build_paths
from l2l_nas.training.data import digits
from l2l_nas.training.fit import Trainer
from l2l_nas.training.schedule import Cosine
from search_spaces import elastic_conv

_RANDOM = 40


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=at_least(1), default=3)
    parser.add_argument("--steps", type=at_least(1), default=450)


def main(arguments: argparse.Namespace) -> None:
    """Train, score, compare, write."""
    torch.set_num_threads(1)
    data = digits()
    pools = {"elastic": elastic_conv.build(), "apart": apart(elastic_conv.build())}
    rows = []
    for seed in range(arguments.seeds):
        for name in sorted(pools, reverse=seed % 2 == 1):
            rows.append({"space": name, "seed": seed, **trained(Problem(pools[name], data), arguments.steps, seed)})
            print(rows[-1], flush=True)
    result = {"settings": {"seeds": arguments.seeds, "steps": arguments.steps}, "machine": machine(), "rows": rows}
    result["differences"] = {
        which: difference(rows, which) for which in ("mean_of_random", "smallest", "largest", "best_of_random")
    }
    write_json(arguments.out, result)
    print(result["differences"])


def apart(pool: LayerPool) -> LayerPool:
    """The same blocks, each with weights of its own."""
    positions = [
        Position(
            position.name,
            [Candidate(one.name, _block_of(one)) if one.tied else one for one in position.candidates],
        )
        for position in pool.positions
    ]
    return LayerPool(positions, inputs=pool.inputs[0])


def _block_of(candidate: Candidate) -> Any:
    """The factory that `elastic` was given."""
    assert isinstance(candidate.factory, partial)
    return candidate.factory.args[0]


def trained(problem: Problem, steps: int, seed: int) -> dict[str, float]:
    """Validation accuracies of shared weights, and the bytes of all states."""
    recipe = Recipe(steps)
    pool = problem.pool
    server = ParamServer(pool, optimizer=recipe.optimizer, seed=seed)
    relay = Relay(server, device="cpu", device_budget="all", seed=seed)
    trainer = Trainer(
        relay, problem.task, Batches(problem.data.train, batch_size=recipe.batch, seed=seed), recipe.batch
    )
    paths = build_paths("fair", pool, seed=seed)
    trainer.fit(paths.path_at, start=0, steps=steps, schedule=Cosine(recipe.learning_rate, steps))
    inner = len(pool.positions) - 2
    choices = {"smallest": "x2k3", "largest": "x6k5"}
    networks = {name: pool.architecture(["conv", *[block] * inner, "linear"]) for name, block in choices.items()}
    random = UniformPaths(pool, seed=99)

    def score(architecture: Architecture) -> float:
        trainer.recalibrate(architecture)
        return trainer.evaluate(architecture, problem.data.validation)["accuracy"]

    found = {name: score(architecture) for name, architecture in networks.items()}
    scores = [score(random.path_at(step)) for step in range(_RANDOM)]
    bytes_of_states = server.num_bytes
    relay.close()
    return {
        **found,
        "mean_of_random": statistics.fmean(scores),
        "best_of_random": max(scores),
        "host_bytes": bytes_of_states,
    }


def difference(rows: list[dict[str, Any]], which: str) -> dict[str, float]:
    """Elastic minus apart, paired by seed: mean and standard error."""
    by = {(row["space"], row["seed"]): row[which] for row in rows}
    pairs = [by["elastic", seed] - by["apart", seed] for space, seed in by if space == "elastic"]
    error = statistics.stdev(pairs) / len(pairs) ** 0.5 if len(pairs) > 1 else 0.0
    return {"mean": round(statistics.fmean(pairs), 4), "standard_error": round(error, 4)}
