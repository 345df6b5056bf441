"""Data that do not lie in memory: what loading costs, and how much memory training and scoring take.

    python -m benchmarks data images --records FILE.xz [--workers 1]   JPEG files beside the same images in memory
    python -m benchmarks data larger                                   arrays of three times a memory limit
    python -m benchmarks data tokens                                   250,000 tokens of a vocabulary of 50,000

`images`: CIFAR-10 as xz of records (2 bytes of length, little-endian, 1 byte of class, JPEG), written as files into a
temporary folder. A path of `image_blocks` is trained for some steps from files (`Data.from_folder`), from memory, and
from memory once more as a control, in an order that changes from round to round. Compared are the seconds of a round.
The limit of `larger` is RLIMIT_DATA beside what is used after the
imports, the figure of `tokens` the process's largest resident memory, all of torch included.
"""

from __future__ import annotations

import argparse
import itertools
import lzma
import resource
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks import RESULTS
from benchmarks.options import at_least, need
from benchmarks.timing import machine
from l2l_nas import (
    AdamW,
    Batches,
    Candidate,
    Classification,
    Cosine,
    Data,
    LayerPool,
    ParamServer,
    Position,
    Relay,
    Split,
    TensorSpec,
    Tokens,
    Trainer,
)
from l2l_nas.files import read_json, write_json
from l2l_nas.runs.locate import load_problem

OUT = RESULTS / "data.json"
STEPS, BATCH = 90, 64
LIMIT, WIDTH = 1 << 28, 1 << 14
SAMPLES, LENGTH, VOCABULARY, HIDDEN = 2000, 125, 50_000, 64


def write_images(records: Path, folder: Path, *, most: int) -> None:
    """As many of the records as files `CLASS/NUMBER.jpg`, evenly spread."""
    raw = lzma.decompress(records.read_bytes())
    found, at = [], 0
    while at < len(raw):
        (size,) = struct.unpack_from("<H", raw, at)
        found.append((raw[at + 2], raw[at + 3 : at + 3 + size]))
        at += 3 + size
    for number, (label, image) in enumerate(found[:: -(-len(found) // most)]):
        (folder / str(label)).mkdir(exist_ok=True)
        (folder / str(label) / f"{number:05}.jpg").write_bytes(image)


class Timed(Batches):
    """Batches, and how long training waited for them."""

    waited = 0.0

    def ahead(self, start: int, steps: int) -> Iterator[Any]:
        """See `Batches.ahead`."""
        batches = super().ahead(start, steps)
        for _ in range(steps):
            begun = time.perf_counter()
            batch = next(batches)
            self.waited += time.perf_counter() - begun
            yield batch


def images(records: Path, *, workers: int, rounds: int) -> dict[str, Any]:
    """Seconds of training from files and from memory, and their ratios."""
    with tempfile.TemporaryDirectory() as name:
        write_images(records, Path(name), most=4000)
        data = Data.from_folder(name, workers=workers)
        size = len(data.train)
        memory = Split(*data.train.batch(torch.arange(size)))
        problem = load_problem("image_blocks", {}, source=name, validation_fraction=0.2)
        pool = problem.pool
        path = pool.architecture([position.candidates[0].name for position in pool.positions])

        def trainer(part: Any) -> Callable[[int], tuple[float, list[float], float]]:
            relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu")
            batches = Timed(part, batch_size=BATCH, seed=0)
            made = Trainer(relay, problem.task, batches, BATCH)

            def run(start: int) -> tuple[float, list[float], float]:
                batches.waited = 0.0
                losses: list[float] = []
                begun = time.perf_counter()
                made.fit(
                    lambda step: path,
                    start=start,
                    steps=STEPS,
                    schedule=Cosine(0.001, 10_000),
                    after_step=lambda step, loss: losses.append(loss),
                )
                relay.drain()
                return time.perf_counter() - begun, losses, batches.waited

            return run

        sides = {"files": trainer(data.train), "memory": trainer(memory), "control": trainer(memory)}
        orders = itertools.cycle(itertools.permutations(sides))
        rows, waits = [], []
        for number in range(rounds + 1):
            found = {side: sides[side](number * STEPS) for side in next(orders)}
            assert found["files"][1] == found["memory"][1], "other batches"
            if number:  # the first starts processes and warms up
                rows.append({side: seconds for side, (seconds, _, _) in found.items()})
                waits.append(found["files"][2] / found["files"][0])
        data.close()
        begun = time.perf_counter()
        data.train.batch(torch.arange(512))
        decoding = (time.perf_counter() - begun) / 512
    ratio = [2 * row["files"] / (row["memory"] + row["control"]) for row in rows]
    control = [row["control"] / row["memory"] for row in rows]
    return {
        "samples": size,
        "workers": workers,
        "steps_per_round": STEPS,
        "batch": BATCH,
        "seconds_per_image_read": decoding,
        "rounds": rows,
        "median_files_over_mean_of_memory_and_control": statistics.median(ratio),
        "median_control_over_memory": statistics.median(control),
        "median_share_waited_for_files": statistics.median(waits),
        "spread_of_files": [min(ratio), max(ratio)],
        "spread_of_control": [min(control), max(control)],
    }


def larger() -> dict[str, Any]:
    """Trains on arrays of three times what it may use."""
    with tempfile.TemporaryDirectory() as name:
        samples = 3 * LIMIT // (4 * WIDTH)
        y = np.arange(samples) % 2
        x = np.lib.format.open_memmap(f"{name}/x.npy", mode="w+", dtype=np.float32, shape=(samples, WIDTH))
        x[:, 0] = 8 * y - 4
        x.flush()
        np.save(f"{name}/y.npy", y)
        used = int(_status("VmData"))
        resource.setrlimit(resource.RLIMIT_DATA, (used + LIMIT, used + LIMIT))
        data = Data.from_folder(name)
        pool = LayerPool([Position("a", Candidate("a", partial(nn.Linear, WIDTH, 2)))], inputs=TensorSpec((WIDTH,)))
        relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu")
        trainer = Trainer(relay, Classification(), Batches(data.train, batch_size=64, seed=0), 64)
        path = pool.architecture(["a"])
        steps = len(data.train) // 64
        begun = time.perf_counter()
        trainer.fit(lambda step: path, start=0, steps=steps, schedule=Cosine(0.001, steps))
        values = trainer.evaluate(path, data.validation)
        return {
            "data_bytes": samples * WIDTH * 4,
            "limit_bytes": LIMIT,
            "used_bytes": int(_status("VmData")) - used,
            "steps": steps,
            "seconds": time.perf_counter() - begun,
            "accuracy": values["accuracy"],
        }


def tokens() -> dict[str, Any]:
    """Scores a language model whose logits are 50 GB."""
    pool = LayerPool(
        [
            Position("embedding", Candidate("embedding", partial(nn.Embedding, VOCABULARY, HIDDEN))),
            Position("block", [Candidate("linear", partial(nn.Linear, HIDDEN, HIDDEN))]),
            Position("head", Candidate("linear", partial(nn.Linear, HIDDEN, VOCABULARY))),
        ],
        inputs=TensorSpec((LENGTH,), torch.int64),
    )
    numbers = torch.randint(VOCABULARY, (SAMPLES, LENGTH), generator=torch.Generator().manual_seed(0))
    split = Split((numbers,), numbers.roll(-1, dims=1))
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu")
    trainer = Trainer(relay, Tokens(), Batches(split, batch_size=8, seed=0), 8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    begun = time.perf_counter()
    values = trainer.evaluate(pool.architecture(["embedding", "linear", "linear"]), split)
    return {
        "tokens": numbers.numel(),
        "vocabulary": VOCABULARY,
        "logits_bytes": numbers.numel() * VOCABULARY * 4,
        "resident_bytes_before": before,
        "resident_bytes_at_most": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "seconds": time.perf_counter() - begun,
        "values": values,
    }


def _status(name: str) -> int:
    """Of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("images", "larger", "tokens"))
    parser.add_argument("--records", type=Path)
    parser.add_argument("--workers", type=at_least(0), default=1)
    parser.add_argument("--rounds", type=at_least(1), default=9)
    parser.add_argument("--out", type=Path, default=OUT)


def main(arguments: argparse.Namespace) -> None:
    """Measure one, print it, and add it to the results."""
    torch.set_num_threads(1)
    if arguments.what == "images":
        need(arguments, "images", "records")
        found = images(arguments.records, workers=arguments.workers, rounds=arguments.rounds)
    else:
        found = {"larger": larger, "tokens": tokens}[arguments.what]()
    results = read_json(arguments.out) if arguments.out.exists() else {"benchmark": "data"}
    results |= {"machine": machine(), arguments.what: found}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_json(arguments.out, results)
    print({name: value for name, value in found.items() if name != "rounds"})
