"""What moments in bf16 do to a training, and how many bytes a parameter the optimizers keep.

    python -m benchmarks moments [--seeds 4] [--steps 240] [--out FILE]

A network of four linear layers (64, 256, 256, 256, 10) learns handwritten digits in the relay, by AdamW and by Muon
with AdamW, with moments in float32 and bfloat16. Runs of one seed have the same first weights and
batches, so that their losses are compared in pairs; how far apart runs of different seeds are is written beside them.
Bytes are those of the state's own blocks. The time is that of an update of all layers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.options import at_least
from benchmarks.timing import machine
from l2l_nas import Batches, Candidate, Classification, LayerPool, ParamServer, Position, Relay, TensorSpec, Trainer
from l2l_nas.eps.optimizers.base import Optimizer
from l2l_nas.eps.optimizers.registry import build_optimizer
from l2l_nas.files import write_json
from l2l_nas.runs.locate import load_data
from l2l_nas.training.data import Data
from l2l_nas.training.samples import Samples, Split
from l2l_nas.training.schedule import Cosine

WIDTH, WINDOW = 256, 20
KEPT = ("fp32", "bf16")
RULES: Mapping[str, Mapping[str, Any]] = {"adamw": {"weight_decay": 0.05}, "muon": {"weight_decay": 0.05}}
RATES = {"adamw": 2e-3, "muon": 2e-3}


def layer(width: int) -> nn.Module:
    """One hidden layer."""
    return nn.Sequential(nn.Linear(width, WIDTH), nn.ReLU())


def pool(width: int) -> LayerPool:
    """The network; nothing to choose."""
    hidden = [Position(f"layer_{i}", Candidate("linear", partial(layer, width if not i else WIDTH))) for i in range(3)]
    return LayerPool(
        [*hidden, Position("head", Candidate("linear", partial(nn.Linear, WIDTH, 10)))], inputs=TensorSpec((width,))
    )


def flat(data: Data) -> Data:
    """The images as vectors."""

    def part(split: Samples) -> Split:
        assert isinstance(split, Split)
        return Split(tuple(tensor.flatten(1) for tensor in split.inputs), split.targets)

    return Data(part(data.train), part(data.validation), None if data.test is None else part(data.test))


def width_of(data: Data) -> int:
    """Of flat images."""
    assert isinstance(data.train, Split)
    return data.train.inputs[0].shape[1]


def trained(data: Data, optimizer: Optimizer, *, rate: float, seed: int, steps: int) -> dict[str, Any]:
    """Losses by window, metrics of the validation part, and the bytes kept for a parameter."""
    space = pool(width_of(data))
    server = ParamServer(space, optimizer=optimizer, seed=seed)
    relay = Relay(server, device="cpu", seed=seed)
    trainer = Trainer(relay, Classification(), Batches(data.train, batch_size=64, seed=seed), 64)
    architecture = space.architecture(["linear"] * 4)
    losses: list[float] = []
    trainer.fit(
        lambda step: architecture,
        start=0,
        steps=steps,
        schedule=Cosine(rate, steps),
        after_step=lambda step, loss: losses.append(loss),
    )
    values = trainer.evaluate(architecture, data.validation)
    relay.close()
    return {
        "losses": [statistics.fmean(losses[i : i + WINDOW]) for i in range(0, steps, WINDOW)],
        "accuracy": values["accuracy"],
        "validation_loss": values["loss"],
        "moment_bytes": bytes_of(server),
    }


def bytes_of(server: ParamServer) -> float:
    """Bytes of moments a parameter, of the blocks that there are."""
    states = [server.state(key) for key in server.visited]
    count = sum(state.layout.num_parameters for state in states)
    return sum(block.numel() for state in states for block in state.moments) / count


def update_seconds(optimizer: Optimizer, width: int, *, rounds: int = 30) -> float:
    """Median time of an update of all layers, a parameter, in nanoseconds."""
    server = ParamServer(pool(width), optimizer=optimizer, seed=0)
    states = {key: server.state(key) for key in server.pool.states}
    gradients = {key: [torch.randn_like(view) for view in state.views] for key, state in states.items()}
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        for key, state in states.items():
            state.update(server.rules.of(key).calls, gradients[key], lr=1e-4)
        times.append(time.perf_counter() - begun)
    return statistics.median(times) / sum(state.layout.num_parameters for state in states.values()) * 1e9


def compared(runs: Mapping[str, list[dict[str, Any]]], name: str) -> dict[str, Any]:
    """A precision beside float32, in pairs of one seed: means of differences, and their standard errors."""
    found = {}
    for figure, of in {
        "last_loss": lambda run: run["losses"][-1],
        "mean_loss": lambda run: statistics.fmean(run["losses"]),
        "validation_loss": lambda run: run["validation_loss"],
        "accuracy": lambda run: run["accuracy"],
    }.items():
        differences = [of(run) - of(full) for run, full in zip(runs[name], runs["fp32"], strict=True)]
        error = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
        values = [of(run) for run in runs[name]]
        found[figure] = {
            "mean": statistics.fmean(values),
            "between_seeds": statistics.stdev(values) if len(values) > 1 else 0.0,
            "difference": statistics.fmean(differences),
            "standard_error": error,
        }
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=at_least(1), default=4)
    parser.add_argument("--steps", type=at_least(1), default=240)
    parser.add_argument("--out", type=Path)


def main(asked: argparse.Namespace) -> None:
    """Measure, print, write."""
    torch.set_num_threads(1)
    data = flat(load_data("digits", 0.2, 0.2))
    width = width_of(data)
    result: dict[str, Any] = {"machine": machine(), "seeds": asked.seeds, "steps": asked.steps, "rules": {}}
    for name, arguments in RULES.items():
        runs: dict[str, list[dict[str, Any]]] = {kept: [] for kept in KEPT}
        for seed in range(asked.seeds):
            for kept in KEPT:
                optimizer = build_optimizer({"name": name, **arguments, "moments": kept})
                runs[kept].append(trained(data, optimizer, rate=RATES[name], seed=seed, steps=asked.steps))
        rows = {}
        for kept in KEPT:
            time_ns = update_seconds(build_optimizer({"name": name, **arguments, "moments": kept}), width)
            rows[kept] = {**compared(runs, kept), "update_ns": time_ns, "runs": runs[kept],
                          "moment_bytes": runs[kept][0]["moment_bytes"]}  # fmt: skip
            figures = [f"{rows[kept]['moment_bytes']:.2f} B, {time_ns:.1f} ns a parameter"]
            for figure in ("last_loss", "accuracy"):
                one = rows[kept][figure]
                figures.append(f"{figure} {one['mean']:.4f} ({one['difference']:+.4f} +- {one['standard_error']:.4f})")
            print(f"{name} {kept}: " + ", ".join(figures))
        result["rules"][name] = rows
    result["bytes"] = {}
    for name in ("adamw", "sgd", "lion", "adafactor", "muon"):
        for kept in KEPT:
            server = ParamServer(pool(width), optimizer=build_optimizer({"name": name, "moments": kept}), seed=0)
            server.prepare(server.pool.states)
            result["bytes"][f"{name} {kept}"] = bytes_of(server)
            print(f"{name} {kept}: {bytes_of(server):.3f} bytes of moments a parameter")
    if asked.out is not None:
        write_json(asked.out, result)
