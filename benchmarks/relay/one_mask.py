"""What a mask costs that every layer reads: stored once as a value, or passed on from layer to layer.

    python -m benchmarks one_mask [--depth 96] [--out FILE]

A stack of encoder blocks over [batch, 128, 64], whose attention takes a mask of [batch, 128, 128] bools; 32 samples in
micro-batches of 8. Passed on, the mask is part of what each layer gives the next, and is stored at each of them. As a
value it is met once. Counted are the bytes of the stash on the device and on the host, and the bytes that a training
step copies between them. Losses of both are compared.
"""

from __future__ import annotations

import argparse
import itertools
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import RESULTS
from benchmarks.options import at_least
from benchmarks.timing import machine
from l2l_nas import AdamW, Candidate, LayerPool, ParamServer, Position, Regression, Relay, TensorSpec
from l2l_nas.cost.traffic import StreamedBytes
from l2l_nas.files import write_json
from search_spaces.encoder_decoder import EncoderBlock

LENGTH, HIDDEN, SIZES = 128, 64, (8, 8, 8, 8)


class Handing(nn.Module):
    """A block that passes its mask on."""

    def __init__(self) -> None:
        super().__init__()
        self.block = block()

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """What the next one takes."""
        return self.block(x, mask), mask


def block() -> EncoderBlock:
    """One layer."""
    return EncoderBlock(HIDDEN, heads=4, feedforward=2 * HIDDEN)


def pool(depth: int, *, is_value: bool) -> LayerPool:
    """The stack, and a head of one position that reads the last block alone."""
    specs = {"x": TensorSpec((LENGTH, HIDDEN)), "mask": TensorSpec((LENGTH, LENGTH), torch.bool)}
    names = ["x", *(f"block_{index}" for index in range(depth))]
    if is_value:
        blocks = [
            Position(name, Candidate("block", block), reads=(before, "mask"))
            for before, name in itertools.pairwise(names)
        ]
        return LayerPool([*blocks, Position("head", Candidate("linear", head), reads=names[-1])], inputs=specs)
    blocks = [Position(name, Candidate("block", Handing)) for name in names[1:]]
    return LayerPool([*blocks, Position("head", Candidate("linear", First))], inputs=tuple(specs.values()))


head = partial(nn.Linear, HIDDEN, 4)


class First(nn.Linear):
    """A head that leaves the mask alone."""

    def __init__(self) -> None:
        super().__init__(HIDDEN, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        """Of what the last block gave."""
        return super().forward(x)


def measure(depth: int, stash: str, *, is_value: bool) -> dict[str, Any]:
    """Bytes, and the losses of two steps."""
    found = pool(depth, is_value=is_value)
    relay = Relay(ParamServer(found, optimizer=AdamW(), seed=0), device="cpu", stash=stash)
    architecture = found.architecture(position.candidates[0].name for position in found.positions)
    generator = torch.Generator().manual_seed(0)
    inputs = (
        torch.randn(sum(SIZES), LENGTH, HIDDEN, generator=generator),
        torch.ones(sum(SIZES), LENGTH, LENGTH).bool(),
    )
    targets = torch.randn(sum(SIZES), LENGTH, 4, generator=generator)
    losses = [
        relay.train_step(
            architecture, inputs, targets, objective=Regression(), micro_batch=SIZES[0], lr=0.001, step=step
        ).loss
        for step in range(2)
    ]
    spilled = relay.memory_plan(SIZES).spilled
    host = sum(relay.stash.size_bytes(name, SIZES) for name in spilled)
    return {
        "stash": stash,
        "mask": "a value" if is_value else "passed on",
        "device_bytes": relay.stash.needs_bytes(SIZES, spilled),
        "host_bytes": host,
        "streamed_bytes": int(StreamedBytes(relay, SIZES)(architecture)),
        "losses": losses,
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--depth", type=at_least(1), default=96)
    parser.add_argument("--out", type=Path, default=RESULTS / "one_mask.json")


def main(arguments: argparse.Namespace) -> None:
    """Measure, print and save."""
    torch.set_num_threads(1)
    rows = [measure(arguments.depth, stash, is_value=one) for stash in ("device", "host") for one in (False, True)]
    assert rows[0]["losses"] == rows[1]["losses"] == rows[2]["losses"] == rows[3]["losses"]
    for row in rows:
        sizes = "  ".join(f"{name} {row[name] / 2**20:,.2f} MiB" for name in row if name.endswith("bytes"))
        print(f"stash={row['stash']:6}  {row['mask']:9}  {sizes}")
    write_json(arguments.out, {"benchmark": "one_mask", "depth": arguments.depth, "machine": machine(), "rows": rows})
