"""What `python -m benchmarks gpu` measures on a device, section by section: each gives one figure after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.machines.forecast import Sizes, rates_of, settings, step_name
from benchmarks.relay.peers import SIDES, ExecutorRunner, Runner
from benchmarks.relay.work import StackSizes
from l2l_nas.cost.measure import measure
from l2l_nas.eps.host import free_memory_bytes
from l2l_nas.errors import L2LError
from l2l_nas.files import write_json
from l2l_nas.relay.reference import ReferenceTrainer
from l2l_nas.relay.relay import Relay
from l2l_nas.relay.trace import Trace, overlap
from l2l_nas.space.sampling import UniformPaths
from tests.relay.stress import Stress, relay_under

CAP_BYTES = 16 << 30  # of device memory, for the largest pool


@dataclass(frozen=True)
class MeasuredFigure:
    """A figure.

    Args:
        name: what was measured.
        value: None where it could not be.
        note: what a reader must know, or why it could not be.
    """

    name: str
    value: float | None
    note: str = ""


@dataclass(frozen=True)
class Section:
    """Figures of one kind.

    Args:
        about: what they are.
        unit: of all of them; empty where each name has its own.
        limit_s: when it is stopped, whatever it has by then.
        run: measures; the folder is for files that stay.
    """

    about: str
    unit: str
    limit_s: int
    run: Callable[[Sizes, Path], Iterator[MeasuredFigure]]


def _rates(sizes: Sizes, folder: Path) -> Iterator[MeasuredFigure]:
    hardware = measure(sizes.work.device, folder=folder)
    write_json(folder / "hardware.json", hardware.to_json())
    yield from (MeasuredFigure(name, value) for name, value in rates_of(hardware).items())


def _exactness(sizes: Sizes, folder: Path) -> Iterator[MeasuredFigure]:
    """The relay, with delayed lanes and poisoned slots, against plain PyTorch, and plain PyTorch against itself."""
    del folder
    torch.use_deterministic_algorithms(True, warn_only=True)
    work = replace(sizes.work, depth=min(sizes.work.depth, 6), candidates=3)
    paths = UniformPaths(work.pool, seed=0)

    def losses(executor: Relay | ReferenceTrainer) -> list[float]:
        found = [_train(executor, work, paths, step) for step in range(6)]
        if isinstance(executor, Relay):
            executor.close()
        return found

    plain = losses(ReferenceTrainer(work.server(), device=work.device))
    sides: dict[str, dict[str, Any]] = {
        f"{update}, stash on the {stash}": {"update": update, "stash": stash, "stress": Stress(1)}
        for update in ("eager", "exact")
        for stash in ("device", "host")
    }
    again = losses(ReferenceTrainer(work.server(), device=work.device))
    yield MeasuredFigure("plain again (the control)", _difference(again, plain))
    for name, options in sides.items():
        yield MeasuredFigure(
            name, _difference(losses(_relay(work, precision="fp32", lanes="threads", **options)), plain)
        )
    for layers in sizes.layers[1:]:
        try:
            yield MeasuredFigure(
                f"layers={layers}", _difference(losses(_relay(work, precision="fp32", layers=layers)), plain)
            )
        except L2LError as error:
            yield MeasuredFigure(f"layers={layers}", None, str(error))


def _steps(sizes: Sizes, folder: Path) -> Iterator[MeasuredFigure]:
    """Every setting at every number of tokens; plain training first and last, as its own control."""
    del folder
    server = sizes.work.server()
    for tokens in sizes.tokens:
        work = sizes.of_tokens(tokens)

        def plain(work: StackSizes = work) -> float:
            resident = ReferenceTrainer(server, device=work.device, autocast=torch.bfloat16)
            return _step_ms(ExecutorRunner(resident, work), sizes.patience_s)

        yield _tried(step_name(tokens, "plain"), plain)
        for name, options in settings(work).items():
            trace = Trace()

            def streamed(work: StackSizes = work, options: dict[str, Any] = options, trace: Trace = trace) -> float:
                relay = Relay(server, device=work.device, **{"precision": "bf16", "trace": trace, **options})
                return _step_ms(ExecutorRunner(relay, work), sizes.patience_s)

            found = _tried(step_name(tokens, name), streamed)
            busy = overlap(trace.spans)["busy_s"]
            yield replace(found, note=found.note or f"busiest lane: {max(busy, key=lambda lane: busy[lane])}")
        yield _tried(step_name(tokens, "plain again (the control)"), plain)


def _layers(sizes: Sizes, folder: Path) -> Iterator[MeasuredFigure]:
    """Layers as they are, compiled and from graphs: large ones, and small ones of which launches take the time."""
    del folder
    for size, work in (("large", sizes.work), ("small", sizes.small)):
        for layers in sizes.layers:

            def step(work: StackSizes = work, layers: str = layers) -> float:
                relay = _relay(work, slots=3, resident=None, layers=layers)
                return _step_ms(ExecutorRunner(relay, work), sizes.patience_s)

            yield _tried(f"{size} layers, {layers}", step)


def _peers(sizes: Sizes, folder: Path) -> Iterator[MeasuredFigure]:
    """Beside activation checkpointing and FSDP2 with offload, in bf16."""
    del folder
    work = sizes.work

    def tokens(name: str) -> float:
        return work.batch * work.sequence * 1000 / _step_ms(SIDES[name].build(work), sizes.patience_s)

    for name in ("checkpointed_bf16", "relay_bf16", "relay_bf16_host", "fsdp2_bf16"):
        yield _tried(name, partial(tokens, name))
    yield _tried("checkpointed_bf16 again (the control)", partial(tokens, "checkpointed_bf16"))


def _memory(sizes: Sizes, folder: Path) -> Iterator[MeasuredFigure]:
    """What the relay owns of device memory, and the allocator's peak of a step, by depth and by batch."""
    del folder
    cases = [(f"batch {n}, stash on the device", replace(sizes.work, batch=n), "device") for n in sizes.batches]
    cases += [(f"{n} layers, stash on the host", replace(sizes.work, depth=n), "host") for n in sizes.depths]
    for name, work, stash in cases:
        if work.num_parameters * 16 > 0.8 * free_memory_bytes():
            yield MeasuredFigure(name, None, f"{work.num_parameters:,} parameters need more host memory than is free")
            continue
        _peak_bytes(work)
        relay = _relay(work, stash=stash, slots=3, resident=None)
        runner = ExecutorRunner(relay, work)
        runner.step(0)
        runner.finish()
        yield MeasuredFigure(f"{name}: slots and stash", float(relay.device_bytes))
        peak = _peak_bytes(work)
        yield MeasuredFigure(f"{name}: peak", float(peak) or None, "" if peak else "a CPU has no allocator that counts")
        runner.close()


def _segments(sizes: Sizes, folder: Path) -> Iterator[MeasuredFigure]:
    """Segments that the allocator took from the driver for architectures, after the first fifty."""
    del folder
    work = replace(sizes.work, depth=min(sizes.work.depth, 8), candidates=4)
    if sizes.architectures > 100:
        work = replace(work, hidden=work.hidden // 4, feedforward=work.hidden)
    relay = _relay(work, update="exact", stash="host", precision="fp32")
    paths = UniformPaths(work.pool, seed=0)
    first = min(50, sizes.architectures)

    def taken() -> int:
        on_gpu = work.torch_device.type == "cuda"
        return int(torch.cuda.memory_stats(work.torch_device)["segment.all.allocated"]) if on_gpu else 0

    for step in range(first):
        _train(relay, work, paths, step)
    before, owned = taken(), relay.device_bytes
    for step in range(first, first + sizes.architectures):
        _train(relay, work, paths, step)
        if step - first in (9, 99, sizes.architectures - 1):
            yield MeasuredFigure(f"new segments after {step - first + 1} architectures", float(taken() - before))
    yield MeasuredFigure("new bytes of slots and stash", float(relay.device_bytes - owned))
    relay.close()


def _largest(sizes: Sizes, folder: Path) -> Iterator[MeasuredFigure]:
    """A pool as large as the host holds, trained within a cap on device memory."""
    del folder
    device = sizes.work.torch_device
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, CAP_BYTES / total), device)
    one, two = (replace(sizes.work, depth=depth).num_parameters for depth in (1, 2))
    # states are made as paths come to them: six steps of a path of a quarter of the blocks
    blocks = max(4, int(sizes.share * free_memory_bytes() / (18 * (two - one))))
    work = replace(sizes.work, depth=max(1, min(blocks, 400) // 4), candidates=4)
    relay = _relay(work, stash="host", slots=3, resident=None)
    paths = UniformPaths(work.pool, seed=0)
    _peak_bytes(work)
    counts = {key: relay.server.layout(key).num_parameters for key in work.pool.states}
    yield MeasuredFigure("parameters of the pool", float(sum(counts.values())))
    for step in range(6):
        _train(relay, work, paths, step)
        trained = float(sum(counts[key] for key in relay.server.visited))
        yield MeasuredFigure(f"parameters trained after {step + 1} steps", trained)
        yield MeasuredFigure(f"peak bytes after {step + 1} steps", float(_peak_bytes(work) or relay.device_bytes))
    relay.close()


def _timeline(sizes: Sizes, folder: Path) -> Iterator[MeasuredFigure]:
    """What each lane did in a few steps; for chrome://tracing."""
    trace = Trace()
    relay = _relay(sizes.work, stash="host", slots=3, update="exact", resident=None, trace=trace, lanes="threads")
    runner = ExecutorRunner(relay, sizes.work)
    for step in range(4):
        runner.step(step)
    runner.finish()
    runner.close()
    trace.write_chrome(folder / "trace.json")
    found = overlap(trace.spans)
    yield MeasuredFigure("share of copies and updates beside the layers", found["hidden_fraction"], "trace.json")
    for lane, busy_s in found["busy_s"].items():
        yield MeasuredFigure(f"lane {lane}, share of the time", busy_s / found["wall_s"] if found["wall_s"] else None)


SECTIONS: dict[str, Section] = {
    "rates": Section("What the simulator needs to know of a machine", "", 60, _rates),
    "exactness": Section("Largest relative difference of losses from plain PyTorch's", "", 70, _exactness),
    "steps": Section("A training step in bf16", "ms", 150, _steps),
    "layers": Section("Layers as they are, compiled, and from graphs", "ms", 60, _layers),
    "peers": Section("Beside checkpointing and FSDP2, tokens a second", "tokens/s", 70, _peers),
    "memory": Section("Peak device memory of a step", "bytes", 70, _memory),
    "segments": Section("New device memory after changes of the architecture", "", 30, _segments),
    "largest": Section("A pool as large as the host holds, 16 GiB of device memory", "", 60, _largest),
    "timeline": Section("What hides behind the layers", "", 20, _timeline),
}


def _relay(work: StackSizes, **options: Any) -> Relay:
    return relay_under(work.server(), device=work.device, seed=work.seed, **{"precision": "bf16", **options})


def _train(executor: Relay | ReferenceTrainer, work: StackSizes, paths: UniformPaths, step: int) -> float:
    return ExecutorRunner(executor, work).train(step, paths.path_at(step), paths.path_at(step + 1))


def _difference(losses: list[float], others: list[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(losses, others, strict=True))


def _step_ms(runner: Runner, patience_s: float) -> float:
    """Milliseconds of a step in the midst of training, updates included."""
    for number in range(3):
        runner.step(number)
    runner.finish()
    begun, count = time.perf_counter(), 0
    while count < 2 or (time.perf_counter() - begun < patience_s and count < 50):
        runner.step(3 + count)
        count += 1
    runner.finish()
    seconds = time.perf_counter() - begun
    runner.close()
    return 1000 * seconds / count


def _tried(name: str, value: Callable[[], float]) -> MeasuredFigure:
    """A figure, or why there is none: others go on."""
    try:
        return MeasuredFigure(name, value())
    except (L2LError, MemoryError, RuntimeError) as error:
        return MeasuredFigure(name, None, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")


def _peak_bytes(work: StackSizes) -> int:
    """The allocator's peak since the last call; 0 on a CPU."""
    if work.torch_device.type != "cuda":
        return 0
    peak = torch.cuda.max_memory_allocated(work.torch_device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(work.torch_device)
    return peak
