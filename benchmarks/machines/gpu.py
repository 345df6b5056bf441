"""What a GPU does with the relay, in one run of less than ten minutes.

    python -m benchmarks gpu [--out FOLDER] [--device cuda] [--quick]

FOLDER gets gpu.json with all figures, steps beside what the simulator predicts with this machine's own rates; and
hardware.json with these rates, which `plan hardware=` takes. Each section is a process of its own with a time limit:
one that fails or hangs costs no other. `--quick --device cpu` goes through all sections with tiny layers, to try the
script itself.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import ROOT
from benchmarks.relay.peers import SIDES, ExecutorRunner, Runner
from benchmarks.relay.work import StackSizes
from benchmarks.timing import machine
from l2l_nas.cost.device_bytes import PaperDevice
from l2l_nas.cost.hardware import Hardware
from l2l_nas.cost.measure import measure
from l2l_nas.cost.step_time import StepTime
from l2l_nas.eps.host import free_memory_bytes
from l2l_nas.eps.scale import Clip
from l2l_nas.errors import L2LError, SettingError
from l2l_nas.files import read_json, write_json
from l2l_nas.relay.device import open_device
from l2l_nas.relay.interface import cut_sizes
from l2l_nas.relay.reference import ReferenceTrainer
from l2l_nas.relay.relay import Relay
from l2l_nas.space.sampling import UniformPaths
from tests.relay.stress import Stress, relay_under

Options = dict[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """What is measured: the stack of most sections, and what single sections go through."""

    work: StackSizes
    tokens: tuple[int, ...]
    small: StackSizes  # layers that hardly compute
    depths: tuple[int, ...]
    batches: tuple[int, ...]
    architectures: int
    patience_s: float  # for one figure of time
    layers: tuple[str, ...] = ("eager", "compile", "graphs")

    @classmethod
    def of(cls, device: str, *, is_quick: bool) -> Sizes:
        """BERT-Large, or as small as goes through all sections."""
        if is_quick:
            tiny = StackSizes(
                3, hidden=32, heads=2, feedforward=64, sequence=16, vocabulary=50, batch=4, micro_batch=2, device=device
            )
            return cls(tiny, (64,), tiny, (3, 6), (4,), 8, 0.1, ("eager", "graphs"))  # compiling takes long
        large = StackSizes(
            24, hidden=1024, heads=16, feedforward=4096, sequence=512, vocabulary=30522, batch=32, micro_batch=8,
            device=device,
        )  # fmt: skip
        small = replace(large, depth=12, hidden=128, heads=4, feedforward=512, sequence=64, vocabulary=1000)
        return cls(large, (4096, 16384, 65536), small, (24, 96, 384), (32, 256), 1000, 1.5)

    def of_tokens(self, tokens: int) -> StackSizes:
        """The stack with so many tokens a step."""
        batch = max(1, tokens // self.work.sequence)
        return replace(self.work, batch=batch, micro_batch=min(batch, self.work.micro_batch))


_STREAMED: Options = {"resident": None, "slots": 3}
# relays of the section `steps`
SETTINGS: dict[str, Options] = {
    "everything resident": {"device_budget": "all"},
    "everything kept, updated on the host": {"device_budget": "all", "resident": None},
    "streamed, 2 slots": {**_STREAMED, "slots": 2},
    "streamed, 3 slots": _STREAMED,
    "streamed, stash on the host": {**_STREAMED, "stash": "host"},
    "exact, 3 slots, nothing clipped": {**_STREAMED, "update": "exact", "clip": Clip(1e9)},
}


def predicted_ms(work: StackSizes, hardware: Hardware, options: Options) -> float | None:
    """Of a step of the stack, by the simulator; None where it does not fit the device."""
    device = PaperDevice(hardware.device_bytes)
    relay = Relay(work.server(), device=device, seed=work.seed, **{"precision": "bf16", **options})
    try:
        found = StepTime(relay, cut_sizes(work.batch, work.micro_batch), hardware).predict(work.architecture)
        return 1000 * found.simulation.step_s
    except SettingError:
        return None
    finally:
        relay.close()


def _row(name: str, value: float | None, note: str = "", **more: Any) -> Row:
    return {"name": name, "value": value, "note": note, **more}


def _rates(sizes: Sizes, folder: Path) -> Iterator[Row]:
    hardware = measure(sizes.work.device, folder=folder)
    write_json(folder / "hardware.json", hardware.to_json())
    rates = {
        "products in bf16, TFLOP/s": hardware.flops("bf16") / 1e12,
        "products in fp32, TFLOP/s": hardware.flops("fp32") / 1e12,
        "device memory, GB/s": hardware.device_bandwidth / 1e9,
        "link to the device, GB/s": hardware.link_up / 1e9,
        "link from the device, GB/s": hardware.link_down / 1e9,
        "updates on the host, G parameters/s": hardware.host_updates / 1e9,
        "time between launches, us": hardware.kernel_s * 1e6,
    }
    yield from (_row(name, value) for name, value in rates.items())


def _exactness(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """The relay, with delayed lanes and poisoned slots, against plain PyTorch, and plain PyTorch against itself."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    work = replace(sizes.work, depth=min(sizes.work.depth, 6), candidates=3)
    paths = UniformPaths(work.pool, seed=0)

    def losses(executor: Relay | ReferenceTrainer) -> list[float]:
        found = [_train(executor, work, paths, step) for step in range(6)]
        if isinstance(executor, Relay):
            executor.close()
        return found

    plain = losses(ReferenceTrainer(work.server(), device=work.device))
    again = losses(ReferenceTrainer(work.server(), device=work.device))
    yield _row("plain again (the control)", _difference(again, plain))
    for update, stash in itertools.product(("eager", "exact"), ("device", "host")):
        relay = _relay(work, precision="fp32", lanes="threads", update=update, stash=stash, stress=Stress(1))
        yield _row(f"{update}, stash on the {stash}", _difference(losses(relay), plain))
    for layers in sizes.layers[1:]:
        try:
            relay = _relay(work, precision="fp32", layers=layers)
            yield _row(f"layers={layers}", _difference(losses(relay), plain))
        except L2LError as error:
            yield _row(f"layers={layers}", None, str(error))


def _steps(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Every setting at every number of tokens; plain training first and last, as its own control."""
    hardware = Hardware(**read_json(folder / "hardware.json"))
    server = sizes.work.server()
    for tokens in sizes.tokens:
        work = sizes.of_tokens(tokens)

        def plain(work: StackSizes = work) -> float:
            resident = ReferenceTrainer(server, device=work.device, autocast=torch.bfloat16)
            return _step_ms(ExecutorRunner(resident, work), sizes.patience_s)

        yield _tried(f"{tokens:,} tokens: plain", plain)
        for name, options in SETTINGS.items():

            def streamed(work: StackSizes = work, options: Options = options) -> float:
                relay = Relay(server, device=work.device, **{"precision": "bf16", **options})
                return _step_ms(ExecutorRunner(relay, work), sizes.patience_s)

            found = _tried(f"{tokens:,} tokens: {name}", streamed)
            yield {**found, "predicted": predicted_ms(work, hardware, options)}
        yield _tried(f"{tokens:,} tokens: plain again (the control)", plain)


def _layers(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Layers as they are, compiled and from graphs: large ones, and small ones of which launches take the time."""
    for size, work in (("large", sizes.work), ("small", sizes.small)):
        for layers in sizes.layers:

            def step(work: StackSizes = work, layers: str = layers) -> float:
                relay = _relay(work, slots=3, resident=None, layers=layers)
                return _step_ms(ExecutorRunner(relay, work), sizes.patience_s)

            yield _tried(f"{size} layers, {layers}", step)


def _peers(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Beside activation checkpointing and FSDP2 with offload, in bf16."""
    work = sizes.work

    def tokens(name: str) -> float:
        return work.batch * work.sequence * 1000 / _step_ms(SIDES[name].build(work), sizes.patience_s)

    for name in ("checkpointed_bf16", "relay_bf16", "relay_bf16_host", "fsdp2_bf16"):
        yield _tried(name, partial(tokens, name))
    yield _tried("checkpointed_bf16 again (the control)", partial(tokens, "checkpointed_bf16"))


def _memory(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """What the relay owns of device memory, and the allocator's peak of a step, by depth and by batch."""
    cases = [(f"batch {n}, stash on the device", replace(sizes.work, batch=n), "device") for n in sizes.batches]
    cases += [(f"{n} layers, stash on the host", replace(sizes.work, depth=n), "host") for n in sizes.depths]
    for name, work, stash in cases:
        if work.num_parameters * 16 > 0.8 * free_memory_bytes():
            yield _row(name, None, f"{work.num_parameters:,} parameters need more host memory than is free")
            continue
        _peak_bytes(work)
        relay = _relay(work, stash=stash, slots=3, resident=None)
        runner = ExecutorRunner(relay, work)
        runner.step(0)
        runner.finish()
        yield _row(f"{name}: slots and stash", float(relay.device_bytes))
        peak = _peak_bytes(work)
        yield _row(f"{name}: peak", float(peak) or None, "" if peak else "a CPU has no allocator that counts")
        runner.close()


def _segments(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Segments that the allocator took from the driver for architectures, after the first fifty."""
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
            yield _row(f"new segments after {step - first + 1} architectures", float(taken() - before))
    yield _row("new bytes of slots and stash", float(relay.device_bytes - owned))
    relay.close()


# by name: what measures it, and when it is stopped, in seconds
SECTIONS: dict[str, tuple[Callable[[Sizes, Path], Iterator[Row]], int]] = {
    "rates": (_rates, 60), "exactness": (_exactness, 70), "steps": (_steps, 150), "layers": (_layers, 60),
    "peers": (_peers, 70), "memory": (_memory, 70), "segments": (_segments, 30),
}  # fmt: skip


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


def _tried(name: str, value: Callable[[], float]) -> Row:
    """A figure, or why there is none: others go on."""
    try:
        return _row(name, value())
    except (L2LError, MemoryError, RuntimeError) as error:
        return _row(name, None, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")


def _peak_bytes(work: StackSizes) -> int:
    """The allocator's peak since the last call; 0 on a CPU."""
    if work.torch_device.type != "cuda":
        return 0
    peak = torch.cuda.max_memory_allocated(work.torch_device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(work.torch_device)
    return peak


def in_process(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """A section by a process of its own; what it has when its time is over, or when it fails."""
    _, limit_s = SECTIONS[name]
    command = [sys.executable, "-m", "benchmarks", "gpu", "--section", name, "--device", options.device]
    command += ["--out", str(options.out.resolve()), *(["--quick"] if options.quick else [])]
    begun, failed, pipe = time.monotonic(), "", subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    try:
        output, errors = process.communicate(timeout=None if options.quick else limit_s)
        if process.returncode:
            failed = (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # compilers that it started, too
        output, _ = process.communicate()
        failed = f"stopped after {limit_s:.0f} s; what it had by then stands here"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    rows = [json.loads(line.removeprefix("FIGURE ")) for line in output.splitlines() if line.startswith("FIGURE ")]
    return {"seconds": round(time.monotonic() - begun, 1), "failed": failed, "rows": rows}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("gpu"), help="folder for all files")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny layers")
    parser.add_argument("--section", choices=list(SECTIONS), help="only this one, in this process")


def main(options: argparse.Namespace) -> int:
    """Measure everything; 1 if a section did not end."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts: sums in one order
    options.out.mkdir(parents=True, exist_ok=True)
    if options.section:
        sizes = Sizes.of(options.device, is_quick=options.quick)
        for row in SECTIONS[options.section][0](sizes, options.out):
            print("FIGURE " + json.dumps(row), flush=True)
        return 0
    sections: dict[str, Any] = {}
    about = machine(open_device(options.device).torch_device)
    for name in SECTIONS:
        sections[name] = in_process(name, options)
        made = time.strftime("%Y-%m-%d %H:%M:%S")
        write_json(options.out / "gpu.json", {"benchmark": "gpu", "machine": about, "made": made, "sections": sections})
        print(f"{name}: {sections[name]['seconds']:.0f} s {sections[name]['failed']}", flush=True)
        for row in sections[name]["rows"]:
            print("  " + ", ".join(f"{key} {value}" for key, value in row.items() if value not in ("", None)))
    return int(any(section["failed"] for section in sections.values()))
