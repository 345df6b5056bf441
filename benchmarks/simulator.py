"""The simulator against the real executor on a CPU whose lanes have known rates: random pools, paths, policies.

Each piece of work of the executor takes at least what it would on a made-up machine (`Stress.pace`); the simulator is
given the same rates. Compared are the time of a step, the busiest lane, device and host bytes.

    python benchmarks/simulator.py [--triples 30] [--seed 0] [--out benchmarks/results/simulator.json]
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from l2l_nas import AdamW, Candidate, LayerPool, ParamServer, Position, Relay, TensorSpec
from l2l_nas.cost.hardware import Hardware
from l2l_nas.cost.paper import PaperDevice
from l2l_nas.cost.simulator import LANES
from l2l_nas.cost.step_time import StepTime, pool_bytes
from l2l_nas.relay.stress import Stress
from l2l_nas.relay.trace import Trace
from l2l_nas.space.architecture import Architecture

WIDTH = 32
HIDDEN = (32, 128, 512)
SAMPLES = 4
STEPS = 5  # of which the first two begin with empty slots
TIE = 0.02  # busy times that differ by less have no order
TYPICAL_S = 0.006  # of a piece of work, so that this machine's own speed hardly matters


class Block(nn.Sequential):
    """Two linear layers."""

    def __init__(self, hidden: int) -> None:
        super().__init__(nn.Linear(WIDTH, hidden), nn.ReLU(), nn.Linear(hidden, WIDTH))


def num_weights(hidden: int) -> int:
    """Of a block."""
    return 2 * WIDTH * hidden + hidden + WIDTH


@dataclass(frozen=True)
class Triple:
    """A pool, a path of it, and policies; and the rates of a machine."""

    choices: tuple[int, ...]
    options: dict[str, Any]
    hardware: Hardware

    @classmethod
    def draw(cls, generator: random.Random) -> Triple:
        """At random."""
        depth = generator.randint(3, 8)
        slots = generator.randint(2, 4)
        options = {
            "slots": slots,
            "keep": generator.choice([1, 1, slots, depth]),
            "update": generator.choice(["eager", "exact", "serial"]),
            "stash": generator.choice(["device", "host"]),
        }
        weights = num_weights(HIDDEN[1])
        flops = 2 * SAMPLES * 2 * WIDTH * HIDDEN[1]

        def rate(amount: float) -> float:
            return amount / (TYPICAL_S * generator.choice([0.25, 1.0, 4.0]) * generator.uniform(0.8, 1.25))

        hardware = Hardware(
            "throttled",
            {"fp32": rate(4 * flops)},
            efficiency=1.0,
            device_bytes=1 << 34,
            device_bandwidth=1e15,
            link_up=rate(2 * 4 * weights),
            link_down=rate(4 * weights),
            host_bytes=1 << 34,
            host_bandwidth=1e15,
            host_updates=rate(weights),
            kernel_s=0.0,
            step_s=2e-4,
            copy_s=1e-4,
            lanes="threads",
        )
        return cls(tuple(generator.choice(HIDDEN) for _ in range(depth)), options, hardware)

    def pool(self) -> LayerPool:
        """All candidates at each position."""
        candidates = [Candidate(f"h{hidden}", partial(Block, hidden)) for hidden in HIDDEN]
        positions = [Position(f"p{index}", candidates) for index in range(len(self.choices))]
        return LayerPool(positions, inputs=TensorSpec((WIDTH,)))

    def path(self, pool: LayerPool) -> Architecture:
        """The architecture."""
        return pool.architecture([f"h{hidden}" for hidden in self.choices])

    def pace(self, op: str, name: str) -> float:
        """Seconds that a piece of work takes on the machine, by its rates and the sizes of blocks."""
        rates = self.hardware
        index = int(name.split("/")[0].removeprefix("p")) if name else 0
        weights = num_weights(self.choices[index])
        # the first layer's input learns nothing, so that its backward is one product, not two
        forward = [2 * SAMPLES * 2 * WIDTH * hidden / rates.flops("fp32") for hidden in self.choices]
        back = [(1.5 if place == 0 else 2) * seconds for place, seconds in enumerate(forward)]
        return {
            "load": 4 * weights / rates.link_up,
            "send": 4 * weights / rates.link_down,
            "update": weights / rates.host_updates,
            "forward": forward[index],
            "enter": forward[index],
            "leave": back[index],
            "backward": forward[index] + back[index],
            "store": 4 * SAMPLES * WIDTH / rates.link_down,
            "fetch": 4 * SAMPLES * WIDTH / rates.link_up,
        }.get(op, 0.0)


class SquaredError:
    """A loss."""

    def count(self, targets: Any) -> float:
        """Samples."""
        return float(len(targets))

    def loss(self, outputs: Any, targets: Any) -> torch.Tensor:
        """Of squares."""
        return (outputs[0] - targets).square().sum()


def predicted(triple: Triple) -> dict[str, Any]:
    """By the simulator."""
    pool = triple.pool()
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device=PaperDevice(1 << 34), **triple.options)
    path = triple.path(pool)
    found = StepTime(relay, (SAMPLES,), triple.hardware).predict(path)
    lanes = {lane: found.simulation.busy_s[lane] for lane in LANES}
    return {
        "step_s": found.simulation.step_s,
        "busy_s": lanes,
        "binds": max(lanes, key=lambda lane: lanes[lane]),
        "device_bytes": found.owned_bytes,
        # of the whole pool: the search behind such a step holds all states
        "host_bytes": found.host_bytes - pool_bytes(relay, pool.path(path)) + pool_bytes(relay, pool.layers),
    }


def measured(triple: Triple) -> dict[str, Any]:
    """By the executor."""
    pool = triple.pool()
    path = triple.path(pool)
    trace = Trace()
    stress = Stress(longest_delay_s=0.0, pace=triple.pace, is_poisoning=False)
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    server.prepare(pool.states)
    relay = Relay(server, device="cpu", lanes="threads", stress=stress, trace=trace, **triple.options)
    inputs, targets = (torch.randn(SAMPLES, WIDTH),), torch.randn(SAMPLES, WIDTH)
    ends = []
    for step in range(STEPS):
        relay.train_step(
            path,
            inputs,
            targets,
            objective=SquaredError(),
            micro_batch=SAMPLES,
            lr=1e-3,
            step=step,
            upcoming=path,
        )
        ends.append(time.perf_counter())
    relay.drain()
    spans = [span for span in trace.spans if span.step == STEPS - 2]
    busy = {lane: sum(s.end_s - s.start_s for s in spans if s.lane == lane) for lane in LANES}
    staged = sum(block.numel() for block in server.gradients._blocks)
    host_bytes = server.num_bytes - 8 * len(server.visited) + staged + relay.stash._host.numel()
    device_bytes = relay.device_bytes
    relay.close()
    return {
        "step_s": statistics.median(b - a for a, b in itertools.pairwise(ends[1:])),
        "busy_s": busy,
        "binds": max(busy, key=lambda lane: busy[lane]),
        "device_bytes": device_bytes,
        "host_bytes": host_bytes,
    }


def compare(triple: Triple) -> dict[str, Any]:
    """One triple, both ways."""
    ours, real = predicted(triple), measured(triple)
    return {
        "choices": triple.choices,
        "options": triple.options,
        "rates": triple.hardware.to_json(),
        "predicted": ours,
        "measured": real,
        "step_error": abs(ours["step_s"] - real["step_s"]) / real["step_s"],
        "host_error": abs(ours["host_bytes"] - real["host_bytes"]) / real["host_bytes"],
        "device_is_exact": ours["device_bytes"] == real["device_bytes"],
        # two lanes may have the same work
        "binds_is_right": real["busy_s"][ours["binds"]] >= (1 - TIE) * real["busy_s"][real["binds"]],
    }


def _rank_correlation(first: list[float], second: list[float]) -> float:
    """Spearman's."""
    ranks = [[sorted(values).index(value) for value in values] for values in (first, second)]
    return statistics.correlation(*ranks)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of all triples."""
    ours, real = ([row[side]["step_s"] for row in rows] for side in ("predicted", "measured"))
    return {
        "triples": len(rows),
        "median_step_error": statistics.median(row["step_error"] for row in rows),
        "largest_step_error": max(row["step_error"] for row in rows),
        "rank_correlation": _rank_correlation(ours, real),
        "binds_right": sum(row["binds_is_right"] for row in rows),
        "device_exact": sum(row["device_is_exact"] for row in rows),
        "largest_host_error": max(row["host_error"] for row in rows),
    }


def main() -> None:
    """Compare, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--triples", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "simulator.json")
    given = parser.parse_args()
    generator = random.Random(given.seed)
    rows = []
    for number in range(given.triples):
        rows.append(compare(Triple.draw(generator)))
        row = rows[-1]
        print(
            f"{number:3} {row['options']['update']:6} {row['measured']['step_s']:.3f} s, predicted "
            f"{row['predicted']['step_s']:.3f} s ({row['step_error']:.1%}); {row['measured']['binds']:7} "
            f"{row['predicted']['binds']:7}; device exact: {row['device_is_exact']}; host {row['host_error']:.2%}"
        )
    found = summary(rows)
    print(json.dumps(found, indent=2))
    given.out.write_text(json.dumps({"seed": given.seed, "summary": found, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
