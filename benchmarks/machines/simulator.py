"""The simulator against the real executor on a CPU whose lanes have known rates: random pools, paths, policies.

Each piece of work of the executor takes at least what it would on a made-up machine (`Stress.pace`); the simulator is
given the same rates. States are in memory, on the device, or in files on a disk of a known rate. Compared are the time
of a step, the busiest lane, device, host and disk bytes.

    python -m benchmarks simulator [--triples 30] [--seed 0] [--ranks 1] [--out benchmarks/results/simulator.json]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import RESULTS
from benchmarks.machines.slow import Disk, SlowFiles, SlowRanks, exchanged_s, lasting
from benchmarks.options import at_least
from l2l_nas import AdamW, Candidate, LayerPool, Position, Relay, TensorSpec
from l2l_nas.cost.chain import LANES
from l2l_nas.cost.closed_form import pool_bytes
from l2l_nas.cost.device import PaperDevice
from l2l_nas.cost.hardware import Hardware
from l2l_nas.cost.simulator import SAVING
from l2l_nas.cost.step_time import StepTime
from l2l_nas.eps import cut
from l2l_nas.eps.exchange import Alone
from l2l_nas.eps.sharded import server_of
from l2l_nas.eps.state import LayerState, Part
from l2l_nas.relay.device import open_device
from l2l_nas.relay.trace import NET, Trace
from l2l_nas.space.architecture import Architecture
from tests.relay.stress import AHEAD, ORDERS, Stress, relay_under

WIDTH = 32
HIDDEN = (32, 128, 512)
SAMPLES = 4
EXCHANGED = {"gather": "up", "reduce": "down", "agree": "down"}  # the lane that an exchange is within
STEPS = 10  # of which the first two begin with empty slots
TIE = 0.02  # busy times that differ by less have no order
TYPICAL_S = 0.03  # of a piece of work, so that what else this machine does hardly matters


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
    in_files: bool = False
    ranks: int = 1  # that share each state

    @classmethod
    def draw(cls, generator: random.Random, ranks: int = 1) -> Triple:
        """At random."""
        depth = generator.randint(3, 8)
        slots = generator.randint(2, 4)
        options: dict[str, Any] = {
            "slots": slots,
            "keep": generator.choice([1, 1, slots, depth]),
            "update": generator.choice(ORDERS),
            "stash": generator.choice(["device", "host"]),
        }
        in_files = generator.random() < 0.3 and ranks == 1
        if not in_files and options["update"] is not AHEAD and generator.random() < 0.4 and ranks == 1:
            options["resident"] = "all"
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
            disk=rate(2 * 12 * weights),
            kernel_s=0.0,
            step_s=2e-4,
            copy_s=1e-4,
            lanes="threads",
            rank_bandwidth=rate(4 * weights),
            rank_latency_s=2e-3,
        )
        return cls(tuple(generator.choice(HIDDEN) for _ in range(depth)), options, hardware, in_files, ranks)

    def pool(self) -> LayerPool:
        """All candidates at each position."""
        candidates = [Candidate(f"h{hidden}", partial(Block, hidden)) for hidden in HIDDEN]
        positions = [Position(f"p{index}", candidates) for index in range(len(self.choices))]
        return LayerPool(positions, inputs=TensorSpec((WIDTH,)))

    def path(self, pool: LayerPool) -> Architecture:
        """The architecture."""
        return pool.architecture([f"h{hidden}" for hidden in self.choices])

    @property
    def is_resident(self) -> bool:
        """Whether states live on the device."""
        return "resident" in self.options

    def relay(self, device: Any, **others: Any) -> Relay:
        """Of these policies."""
        rates = self.hardware
        exchange = SlowRanks(self.ranks, rates.rank_bandwidth, rates.rank_latency_s) if self.ranks > 1 else Alone()
        server = server_of(self.pool(), exchange, optimizer=AdamW(), seed=0)
        return relay_under(server, device=device, **self.options, **others)

    def pace(self, op: str, name: str) -> float:
        """Seconds that a piece of work takes on the machine, by its rates and the sizes of blocks."""
        rates = self.hardware
        index = int(name.split("/")[0].removeprefix("p")) if name else 0
        weights = 0 if self.is_resident else num_weights(self.choices[index])
        # the first layer's input learns nothing, so that its backward is one product, not two
        forward = [2 * SAMPLES * 2 * WIDTH * hidden / rates.flops("fp32") for hidden in self.choices]
        back = [(1.5 if place == 0 else 2) * seconds for place, seconds in enumerate(forward)]
        return {
            "load": 4 * weights / rates.link_up,
            "send": 4 * weights / rates.link_down,
            "update": weights / self.ranks / rates.host_updates,
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


def slow_updates(relay: Relay, pace: Callable[[str, str], float]) -> None:
    """Have updates take their time while they hold the gradient's block, not after it."""
    storage = relay._training.states.storage
    writing = storage.writing

    @contextlib.contextmanager
    def slowly(key: str, part: Part = Part.ALL) -> Iterator[LayerState]:
        seconds = pace("update", key) if part is Part.ALL else 0.0
        is_ahead = key in relay.server.gradients.waiting  # of the check
        with writing(key, part) as state, lasting(seconds * (1 + SAVING * is_ahead)):
            yield state

    storage.writing = slowly  # type: ignore[method-assign]


def predicted(triple: Triple) -> dict[str, Any]:
    """By the simulator."""
    relay = triple.relay(PaperDevice(1 << 34))
    path = triple.path(relay.pool)
    found = StepTime(relay, (SAMPLES,), triple.hardware, in_files=triple.in_files).predict(path)
    lanes = {lane: found.simulation.busy_s[lane] for lane in LANES}
    staged = found.simulation.staged_bytes if triple.is_resident else 0  # see `measured`
    # of the whole pool: the search behind such a step holds all states
    others = pool_bytes(relay, relay.pool.layers) - pool_bytes(relay, relay.pool.path(path))
    return {
        "step_s": found.simulation.step_s,
        "busy_s": lanes,
        "binds": max(lanes, key=lambda lane: lanes[lane]),
        "device_bytes": found.owned_bytes + found.resident_bytes,
        "host_bytes": found.host_bytes - staged + (0 if triple.in_files else others),
        "disk_bytes": found.disk_bytes + (others if triple.in_files else 0),
    }


def busy_in(trace: Trace, first: int) -> dict[str, float]:
    """How long each lane worked in a step, of this one and the next."""
    busy = dict.fromkeys(LANES, 0.0)
    for span in trace.spans:
        if span.step in (first, first + 1):
            if span.lane == NET:  # within another lane's work
                lane, sign = EXCHANGED[span.op], -1
            else:
                lane, sign = span.lane, 1
            busy[lane] += sign * (span.end_s - span.start_s) / 2
    return busy


def _ends_of_steps(relay: Relay, path: Architecture) -> list[float]:
    """When each of some steps on one path returned."""
    inputs, targets = (torch.randn(SAMPLES, WIDTH),), torch.randn(SAMPLES, WIDTH)
    ends = []
    for step in range(STEPS):
        relay.train_step(
            path, inputs, targets,
            objective=SquaredError(), micro_batch=SAMPLES, lr=1e-3, step=step, upcoming=path,
        )  # fmt: skip
        ends.append(time.perf_counter())
    return ends


def _host_side(relay: Relay, *, is_resident: bool) -> tuple[int, int]:
    """Bytes of the states that were visited, and of all that the host holds for the relay."""
    server = relay.server
    # what lives on this device has its gradients in blocks of the same queue
    staged = 0 if is_resident else sum(block.memory.numel() for block in server.gradients._blocks)
    own = [server.state(key) for key in server.visited]
    states = sum(block.nbytes for state in own for block in (*state.updated_blocks, state.buffers))
    frames = sum(frame.block.numel() for frame in server.storage._table) if isinstance(server.storage, SlowFiles) else 0
    return states, (frames or states) + staged + relay.stash._host.numel()


def measured(triple: Triple) -> dict[str, Any]:
    """By the executor."""
    disk = Disk(triple.hardware.disk)
    waits: list[tuple[float, str, float]] = []

    def pace(op: str, name: str) -> float:
        spent, writing = disk.spent()
        spent += exchanged_s()
        waits.append((time.perf_counter(), {"load": "up", "update": "host"}.get(op, ""), spent - writing))
        return spent + triple.pace(op, name)

    trace = Trace()
    stress = Stress(longest_delay_s=0.0, pace=pace, is_poisoning=False)
    device = open_device("cpu")
    device.shares_memory = False
    with contextlib.ExitStack() as stack:
        relay = triple.relay(device, lanes="threads", stress=stress, trace=trace)
        server, pool = relay.server, relay.pool
        if triple.in_files:
            files = SlowFiles(Path(stack.enter_context(tempfile.TemporaryDirectory())))
            server.move_to(files)
            files.disk, files.pace = disk, triple.pace
            stack.callback(files.close)
        slow_updates(relay, triple.pace)
        server.prepare(pool.states)
        stack.enter_context(disk.beneath())
        ends = _ends_of_steps(relay, triple.path(pool))
        device_bytes = relay.device_bytes
        relay.drain()
        # of all steps but the last, which nothing follows, the two in a row that were disturbed least: what else runs
        # on this machine makes a step longer, and what it left to do makes the next one shorter
        pairs = range(2, STEPS - 2)
        first = min(pairs, key=lambda step: ends[step + 1] - ends[step - 1])
        begin, end = ends[first - 1], ends[first + 1]
        if triple.in_files:
            busy = busy_in(trace, first)
            for when, lane, seconds in waits:
                if lane and begin < when <= end:
                    busy[lane] -= seconds / 2
            busy["disk"] = sum(seconds for when, seconds in disk.work if begin < when <= end) / 2
        else:  # of each lane by itself, where it was disturbed least
            found = [busy_in(trace, step) for step in pairs]
            busy = {lane: min(one[lane] for one in found) for lane in LANES}
        states, host_bytes = _host_side(relay, is_resident=triple.is_resident)
        relay.close()
    return {
        "step_s": (end - begin) / 2,
        "median_step_s": statistics.median(b - a for a, b in itertools.pairwise(ends[1:-1])),
        "busy_s": busy,
        "binds": max(busy, key=lambda lane: busy[lane]),
        "device_bytes": device_bytes,
        "host_bytes": host_bytes,
        "disk_bytes": states if triple.in_files else 0,
    }


def compare(triple: Triple) -> dict[str, Any]:
    """One triple, both ways."""
    ours, real = predicted(triple), measured(triple)
    return {
        "choices": triple.choices,
        "options": {**triple.options, "update": str(triple.options["update"])},
        "rates": triple.hardware.to_json(),
        "predicted": ours,
        "measured": real,
        "step_error": abs(ours["step_s"] - real["step_s"]) / real["step_s"],
        # how many states are copied before their update ahead of the check is a matter of time; for ranks see
        # `tests/parallel/test_predicted.py`
        "host_error": 0.0
        if triple.options["update"] is AHEAD or triple.ranks > 1
        else abs(ours["host_bytes"] - real["host_bytes"]) / real["host_bytes"],
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


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--triples", type=at_least(3), default=30)
    parser.add_argument("--seed", type=at_least(0), default=0)
    parser.add_argument("--ranks", type=at_least(1), default=1, help="that share each state; the others are made up")
    parser.add_argument("--out", type=Path, default=RESULTS / "simulator.json")


def main(given: argparse.Namespace) -> None:
    """Compare, print, write."""
    generator = random.Random(given.seed)
    if given.ranks > 1:
        cut.SMALL_BYTES = 0  # these layers are small
    rows = []
    for number in range(given.triples):
        rows.append(compare(Triple.draw(generator, given.ranks)))
        row = rows[-1]
        print(
            f"{number:3} {row['options']['update']:6} {row['measured']['step_s']:.3f} s, predicted "
            f"{row['predicted']['step_s']:.3f} s ({row['step_error']:.1%}); {row['measured']['binds']:7} "
            f"{row['predicted']['binds']:7}; device exact: {row['device_is_exact']}; host {row['host_error']:.2%}"
        )
    found = summary(rows)
    print(json.dumps(found, indent=2))
    given.out.write_text(json.dumps({"seed": given.seed, "summary": found, "rows": rows}, indent=1) + "\n")
