"""The benches of many architectures: another one at every step, and a whole population at once."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.relay.others import finish
from benchmarks.relay.peers import ExecutorRunner
from benchmarks.relay.work import StackSizes
from benchmarks.settings import BenchWatch, Settings
from benchmarks.timing import interleave, ratio
from l2l_nas.eps.layout import layout_of
from l2l_nas.relay.interface import Batch
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import Layer, LayerPool
from l2l_nas.space.sampling import UniformPaths

Result = dict[str, Any]

_BLOCK = 25  # steps of one pair of `switching`
_PARENTS = 4
_TRIES = 100


def switching(settings: Settings, watch: BenchWatch) -> Result:
    """Another architecture at every step, over one fixed architecture; what the device side owns before and after.

    Candidates are equally costly, so architectures differ in their layers but not in their arithmetic.
    """
    work, steps = settings.work, settings.steps
    paths = _distinct(work.pool, steps, seed=work.seed)
    names = ("switching", "fixed", "control")
    watch.start(steps)
    with contextlib.ExitStack() as stack:
        relays = {name: Relay(work.server(), device=work.device, seed=work.seed) for name in names}
        runners = {name: ExecutorRunner(relay, work) for name, relay in relays.items()}
        for relay in relays.values():
            stack.callback(relay.close)
            for layer in work.pool.layers:  # all exist before anything is timed
                relay.server.state(layer.key)

        def step(name: str, number: int) -> float:
            chosen, upcoming = (
                paths[at % len(paths)] if name == "switching" else paths[0] for at in (number, number + 1)
            )
            started = time.perf_counter()
            runners[name].train(number, chosen, upcoming)
            relays[name].drain()
            return time.perf_counter() - started

        for number in range(2 * _BLOCK):
            for name in names:
                step(name, number)
        before = _owned(relays["switching"])
        blocks: dict[str, list[float]] = {name: [] for name in names}
        for start in range(0, steps, _BLOCK):
            taken = dict.fromkeys(names, 0.0)
            for number in range(start, min(start + _BLOCK, steps)):
                for offset in range(len(names)):
                    name = names[(number + offset) % len(names)]
                    taken[name] += step(name, number)
                watch.advance(1, f"step {number + 1} of {steps}")
            for name, seconds in taken.items():
                blocks[name].append(seconds)
        after = _owned(relays["switching"])
    return {
        "architectures": len(set(paths)),
        "steps": steps,
        "block_steps": _BLOCK,
        "device_side_before": before,
        "device_side_after": after,
        "nothing_new": {**before, "templates": 0} == {**after, "templates": 0},  # those are built when first needed
        "switching_over_fixed": ratio(blocks["switching"], blocks["fixed"]),
        "control": ratio(blocks["control"], blocks["fixed"]),
        "seconds_by_block": {name: [round(value, 4) for value in values] for name, values in blocks.items()},
    }


def _distinct(pool: LayerPool, count: int, *, seed: int) -> list[Architecture]:
    """Different architectures, fewer where a small pool has no more."""
    sampler = UniformPaths(pool, seed=seed)
    return list(dict.fromkeys(sampler.path_at(step) for step in range(4 * count)))[:count]


def _owned(relay: Relay) -> dict[str, int]:
    """What the device side owns; on an accelerator also how often the allocator had to ask the driver for memory."""
    owned = {"device_bytes": relay.device_bytes, "templates": relay.bank.num_templates}
    device = relay.device.torch_device
    if device.type != "cpu":
        owned["segments"] = int(torch.accelerator.memory_stats(device)["segment.all.allocated"])
    return owned


def population(settings: Settings, watch: BenchWatch) -> Result:
    """A population evaluated in one pass over the prefix tree of its paths, over one architecture after the other."""
    work = settings.work
    populations = {
        "mutants": mutants(work, settings.architectures),
        "uniform": [UniformPaths(work.pool, seed=work.seed).path_at(step) for step in range(settings.architectures)],
    }
    watch.start(len(populations) * 2 * (settings.rounds + 1))
    bound = settings.population_bytes or None
    relay = Relay(work.server(), device=work.device, seed=work.seed)
    try:
        rows = [_evaluated(name, relay, chosen, settings, watch, bound) for name, chosen in populations.items()]
    finally:
        relay.close()
    return {"rows": rows, "parents": _PARENTS, "population_bytes": bound}


def mutants(work: StackSizes, count: int) -> list[Architecture]:
    """So many architectures, each one of a few random parents with one block exchanged; different while there are."""
    generator = random.Random(f"{work.seed}/mutants")
    sampler = UniformPaths(work.pool, seed=work.seed + 1)
    parents = [sampler.path_at(number) for number in range(_PARENTS)]
    found: list[Architecture] = []
    for number in range(count):
        for _ in range(_TRIES):
            one = _mutant(work, parents[number % _PARENTS], generator)
            if one not in found:
                break
        found.append(one)
    return found


def _mutant(work: StackSizes, parent: Architecture, generator: random.Random) -> Architecture:
    choices = list(parent.choices)
    place = generator.randrange(1, 1 + work.depth)
    others = [c.name for c in work.pool.positions[place].candidates if c.name != choices[place]]
    choices[place] = generator.choice(others)
    return work.pool.architecture(choices)


def _evaluated(
    name: str, relay: Relay, chosen: Sequence[Architecture], settings: Settings, watch: BenchWatch, bound: int | None
) -> Result:
    work = settings.work
    outputs: dict[str, list[Batch]] = {}

    def one_by_one(number: int) -> None:
        outputs["one_by_one"] = [relay.predict(one, (work.tokens,), micro_batch=work.micro_batch) for one in chosen]
        finish(work.torch_device)

    def together(number: int) -> None:
        outputs["together"] = relay.predict_population(
            chosen, (work.tokens,), micro_batch=work.micro_batch, max_bytes=bound
        )
        finish(work.torch_device)

    seconds = interleave(
        {"one_by_one": one_by_one, "together": together},
        rounds=settings.rounds,
        warmup=1,
        tick=lambda side: watch.advance(1, f"{name}, {side.replace('_', ' ')}"),
    )
    speedup = ratio(seconds["one_by_one"], seconds["together"])
    ideal = ideals(work.pool, chosen)
    return {
        "population": name,
        "architectures": len(chosen),
        "different": len(set(chosen)),
        **ideal,
        "speedup": speedup,
        "speedup_over_ideal": round(speedup["median"] / ideal["ideal"], 4),
        "results_equal": _equal(outputs["one_by_one"], outputs["together"]),
    }


def ideals(pool: LayerPool, chosen: Sequence[Architecture]) -> Result:
    """How much there is to share.

    `layers_over_prefixes` counts every layer as one. `ideal`, which the measured speed-up is compared with, weighs each
    by its multiplications: a layer's weights, but none for an embedding, which finds by index.
    """
    layers = 0
    work_alone = 0
    prefixes: dict[tuple[str, ...], int] = {}
    for architecture in chosen:
        path = pool.path(architecture)
        keys = tuple(layer.key for layer in path)
        for index, layer in enumerate(path):
            weight = _multiplications(pool, layer)
            layers += 1
            work_alone += weight
            prefixes[keys[: index + 1]] = weight
    return {
        "layers": layers,
        "distinct_prefixes": len(prefixes),
        "distinct_layers": len({keys[-1] for keys in prefixes}),
        "layers_over_prefixes": round(layers / len(prefixes), 4),
        "ideal": round(work_alone / sum(prefixes.values()), 4),
    }


def _multiplications(pool: LayerPool, layer: Layer) -> int:
    return 0 if layer.position == 0 else layout_of(pool, layer.key).num_parameters


def _equal(alone: Sequence[Batch], together: Sequence[Batch]) -> bool:
    return len(alone) == len(together) and all(
        torch.equal(x, y) for one, other in zip(alone, together, strict=True) for x, y in zip(one, other, strict=True)
    )
