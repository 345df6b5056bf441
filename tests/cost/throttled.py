"""The executor on a CPU whose lanes have known rates, beside the simulator: random pools, paths, policies.

Each piece of work of the executor takes at least what it would on a made-up machine (`Stress.pace`); the simulator is
given the same rates. States are in memory, on the device, or in files on a disk of a known rate.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from l2l_nas import AdamW, Candidate, LayerPool, ParamServer, Position, Relay, TensorSpec
from l2l_nas.cost.chain import LANES
from l2l_nas.cost.closed_form import pool_bytes
from l2l_nas.cost.device_bytes import PaperDevice
from l2l_nas.cost.hardware import Hardware
from l2l_nas.cost.simulator import SAVING
from l2l_nas.cost.step_time import StepTime
from l2l_nas.eps.state import LayerState, Part
from l2l_nas.relay.device import open_device
from l2l_nas.relay.trace import Trace
from l2l_nas.space.architecture import Architecture
from tests.cost.slow import Disk, SlowFiles, lasting
from tests.relay.stress import AHEAD, ORDERS, Stress, relay_under

WIDTH = 32
HIDDEN = (32, 128, 512)
SAMPLES = 4
STEPS = 10  # of which the first two begin with empty slots
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

    @classmethod
    def draw(cls, generator: random.Random) -> Triple:
        """At random."""
        depth = generator.randint(3, 8)
        slots = generator.randint(2, 4)
        options = {
            "slots": slots,
            "keep": generator.choice([1, 1, slots, depth]),
            "update": generator.choice(ORDERS),
            "stash": generator.choice(["device", "host"]),
        }
        in_files = generator.random() < 0.3
        if not in_files and options["update"] is not AHEAD and generator.random() < 0.4:
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
        )
        return cls(tuple(generator.choice(HIDDEN) for _ in range(depth)), options, hardware, in_files)

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
        server = ParamServer(self.pool(), optimizer=AdamW(), seed=0)
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
            busy[span.lane] += (span.end_s - span.start_s) / 2
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

    def own_pace(op: str, name: str) -> float:
        return triple.pace(op, name)

    def pace(op: str, name: str) -> float:
        spent, writing = disk.spent()
        waits.append((time.perf_counter(), {"load": "up", "update": "host"}.get(op, ""), spent - writing))
        return spent + own_pace(op, name)

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
            files.disk, files.pace = disk, own_pace
            stack.callback(files.close)
        slow_updates(relay, own_pace)
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
        "busy_s": busy,
        "binds": max(busy, key=lambda lane: busy[lane]),
        "device_bytes": device_bytes,
        "host_bytes": host_bytes,
        "disk_bytes": states if triple.in_files else 0,
    }
