"""Everything that is measured on a GPU, in one run of under ten minutes.

    python benchmarks/gpu.py [--out FOLDER] [--device cuda] [--small]

It needs torch alone. Each part writes what it found into FOLDER/gpu_HARDWARE.json at once, so that a run that is cut
off keeps its parts; a part that fails says why and the others go on. `--small --device cpu` goes through all of them
with tiny layers, to try the script itself.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts: sums in one order

import torch

from l2l_nas.bench.peers import SIDES, Runner
from l2l_nas.bench.timing import interleave, machine, ratio
from l2l_nas.bench.work import TokenLoss, Work
from l2l_nas.relay.executor import Relay
from l2l_nas.relay.resident import Resident
from l2l_nas.relay.stress import Stress
from l2l_nas.relay.trace import Trace, overlap
from l2l_nas.space.sampling import UniformPaths

Result = dict[str, object]
CAP_BYTES = 16 << 30


def peak_bytes(work: Work) -> int:
    """The allocator's peak since the last call; 0 on a CPU."""
    if work.torch_device.type != "cuda":
        return 0
    peak = torch.cuda.max_memory_allocated(work.torch_device)
    torch.cuda.reset_peak_memory_stats(work.torch_device)
    return peak


def steps(runner: Runner, count: int, start: int = 0) -> list[float]:
    """Losses of so many steps."""
    losses = [runner.step(number) for number in range(start, start + count)]
    runner.finish()
    return losses


def exactness(work: Work) -> Result:
    """The relay, with delayed lanes and poisoned slots, against plain PyTorch, and plain PyTorch against itself."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    small = replace(work, depth=min(work.depth, 6), candidates=3)
    paths = UniformPaths(small.pool, seed=0)
    losses: dict[str, list[float]] = {}
    sides: dict[str, Callable[[], Relay | Resident]] = {
        "plain": lambda: Resident(small.server(), device=small.device),
        "plain_again": lambda: Resident(small.server(), device=small.device),
        **{
            f"relay_{update}_{stash}": partial(
                lambda update, stash: Relay(
                    small.server(), device=small.device, update=update, stash=stash, lanes="threads", stress=Stress(1)
                ),
                update,
                stash,
            )
            for update in ("eager", "exact", "serial")
            for stash in ("device", "host")
        },
    }
    for name, build in sides.items():
        executor = build()
        losses[name] = [
            executor.train_step(
                paths.path_at(step), (small.tokens,), small.tokens, objective=TokenLoss(),
                micro_batch=small.micro_batch, lr=small.lr, step=step, upcoming=paths.path_at(step + 1),
            ).loss
            for step in range(6)
        ]  # fmt: skip
    torch.use_deterministic_algorithms(False)
    worst = {n: max(abs(a - b) / abs(b) for a, b in zip(v, losses["plain"], strict=True)) for n, v in losses.items()}
    return {"largest_relative_difference_of_losses": worst}


def throughput(work: Work, rounds: int) -> Result:
    """Time of a step in bf16, alternately."""
    names = ["checkpointed_bf16", "relay_bf16", "relay_bf16_host", "fsdp2_bf16"]
    runners = {name: SIDES[name].build(work) for name in names}
    runners["checkpointed_bf16_again"] = SIDES["checkpointed_bf16"].build(work)
    seconds = interleave(
        {
            name: partial(lambda runner, repeat: steps(runner, 3, 3 * repeat), runner)
            for name, runner in runners.items()
        },
        rounds=rounds,
        warmup=1,
    )
    tokens = 3 * work.tokens.numel()
    for runner in runners.values():
        runner.close()
    return {
        "tokens_per_second": {n: round(tokens / sorted(s)[len(s) // 2]) for n, s in seconds.items()},
        "throughput_over": {
            base: {n: ratio(seconds[base], s) for n, s in seconds.items()}
            for base in ("checkpointed_bf16", "fsdp2_bf16")
        },
    }


def depth(work: Work, depths: list[int]) -> Result:
    """Peak device memory by depth, with the stash on the host."""
    found = {}
    for layers in depths:
        peak_bytes(work)
        runner = SIDES["relay_bf16_host"].build(replace(work, depth=layers))
        started = time.perf_counter()
        steps(runner, 2)
        found[layers] = {"peak_bytes": peak_bytes(work), "seconds": round(time.perf_counter() - started, 2)}
        runner.close()
        del runner
    return {"by_depth": found}


def segments(work: Work, architectures: int) -> Result:
    """Segments that the allocator took for so many architectures, after a few."""
    small = replace(work, depth=8, hidden=work.hidden // 4, feedforward=work.hidden, candidates=4)
    relay = Relay(small.server(), device=small.device, update="exact", stash="host")
    paths = UniformPaths(small.pool, seed=0)

    def taken(first: int, last: int) -> int:
        for step in range(first, last):
            relay.train_step(
                paths.path_at(step), (small.tokens,), small.tokens, objective=TokenLoss(),
                micro_batch=small.micro_batch, lr=small.lr, step=step, upcoming=paths.path_at(step + 1),
            )  # fmt: skip
        relay.drain()
        on_gpu = small.torch_device.type == "cuda"
        return torch.cuda.memory_stats(small.torch_device)["segment.all.allocated"] if on_gpu else 0

    before = taken(0, 50)
    return {"architectures": architectures, "new_segments": taken(50, 50 + architectures) - before}


def largest(work: Work) -> Result:
    """A pool as large as the host holds, trained within a cap on device memory."""
    on_gpu = work.torch_device.type == "cuda"
    if on_gpu:
        total = torch.cuda.get_device_properties(work.torch_device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, CAP_BYTES / total), work.torch_device)
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    per_block = (replace(work, depth=2).num_parameters - replace(work, depth=1).num_parameters) * 18
    blocks = max(2, int(0.6 * free / per_block)) if on_gpu else 4
    pool = replace(work, depth=max(1, blocks // 4), candidates=4)
    relay = Relay(pool.server(), device=pool.device, precision="bf16", stash="host", slots=3)
    paths = UniformPaths(pool.pool, seed=0)
    peak_bytes(pool)
    seen: set[str] = set()
    for step in range(6):
        path = paths.path_at(step)
        result = relay.train_step(
            path,
            (pool.tokens,),
            pool.tokens,
            objective=TokenLoss(),
            micro_batch=pool.micro_batch,
            lr=pool.lr,
            step=step,
        )
        seen |= {layer.key for layer in pool.pool.path(path)}
    relay.close()
    if on_gpu:
        torch.cuda.set_per_process_memory_fraction(1.0, work.torch_device)
    sizes = {key: relay.server.layout(key).num_parameters for key in pool.pool.states}
    return {
        "cap_bytes": CAP_BYTES,
        "pool_parameters": sum(sizes.values()),
        "parameters_trained": sum(sizes[key] for key in seen),
        "peak_bytes": peak_bytes(pool),
        "loss": result.loss,
    }


def timeline(work: Work, out: Path) -> Result:
    """What each lane did in the last of a few steps."""
    trace = Trace()
    relay = Relay(
        work.server(), device=work.device, precision="bf16", stash="host", slots=3, update="exact", trace=trace
    )
    for step in range(4):
        relay.train_step(
            work.architecture, (work.tokens,), work.tokens, objective=TokenLoss(), micro_batch=work.micro_batch,
            lr=work.lr, step=step, upcoming=work.architecture,
        )  # fmt: skip
    relay.close()
    trace.write_chrome(out / "gpu_trace.json")
    return {"overlap": overlap(trace.spans)}


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if options.small:
        work = Work(depth=3, hidden=32, heads=2, feedforward=64, sequence=16, vocabulary=50, batch=4, micro_batch=2)
        depths, architectures = [3, 6], 20
    else:  # BERT-Large, 16,384 tokens a step
        work = Work(
            depth=24, hidden=1024, heads=16, feedforward=4096, sequence=512, vocabulary=30522, batch=32, micro_batch=8
        )
        depths, architectures = [24, 96, 384], 1000
    work = replace(work, device=options.device)
    hardware = machine(work.torch_device)
    name = re.sub(r"[^A-Za-z0-9]+", "_", str(hardware["gpu"])).strip("_").lower()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"gpu_{name}.json"
    found: Result = {
        "benchmark": "gpu",
        "machine": hardware,
        "work": {k: v for k, v in vars(work).items() if isinstance(v, int)},
    }
    parts: dict[str, Callable[[], Result]] = {
        "exactness": partial(exactness, work),
        "throughput": partial(throughput, work, 2 if options.small else 6),
        "segments": partial(segments, work, architectures),
        "timeline": partial(timeline, work, options.out),
        "largest": partial(largest, work),
        "depth": partial(depth, work, depths),
    }
    for part, measure in parts.items():
        started = time.perf_counter()
        try:
            found[part] = measure()
        except Exception:
            found[part] = {"failed": traceback.format_exc(limit=-4)}
        print(part, f"{time.perf_counter() - started:.0f} s", json.dumps(found[part]), flush=True)
        path.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
