"""Small networks with everything held on a CPU, beside plain PyTorch: what the relay costs where nothing streams.

    python -m benchmarks small_networks [--threads 1 2] [--rounds 10] [--out FILE]

Six random networks of the default space, as `python -m l2l_nas search` builds and trains them, with one micro-batch a
step and with four; forward-only scoring of 256 images; and 48 layers of width 64. Plain PyTorch is the same layers in
an `nn.Sequential`, fused AdamW, a loop over the same micro-batches, `.item()` of the loss once a step. Its control is
the same once more. Both start from the same weights and must give the same losses and predictions, bit for bit.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks import RESULTS
from benchmarks.options import at_least
from benchmarks.paired import shown
from benchmarks.timing import interleave, machine, ratio
from l2l_nas import AdamW, Architecture, Candidate, Classification, LayerPool, ParamServer, Position, Relay, TensorSpec
from l2l_nas.files import write_json
from l2l_nas.space.sampling import UniformPaths
from search_spaces import image_blocks

NETWORKS, DEEP, BATCH, SCORED, STEPS = 6, 48, 64, 256, 5
SIDES = ("plain", "relay", "control")
ROWS = {"training, 1 micro-batch": BATCH, "training, 4 micro-batches": BATCH // 4, "scoring": BATCH}


class Measured:
    """A network on each side, from the same weights, that give the same."""

    def __init__(self, pool: LayerPool, architecture: Architecture) -> None:
        server = ParamServer(pool, optimizer=AdamW(betas=(0.9, 0.98), weight_decay=0.05), seed=0)
        self.relay = Relay(server, device="cpu", device_budget="all")
        self.architecture, self.task, self.step = architecture, Classification(), 0
        self.networks, self.optimizers = {}, {}
        for name in ("plain", "control"):
            tied: dict[str, Any] = {}
            network = nn.Sequential(*(server.build_module(layer, tied) for layer in pool.path(architecture)))
            self.networks[name] = network
            self.optimizers[name] = torch.optim.AdamW(
                network.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.05, fused=True
            )
        generator = torch.Generator().manual_seed(0)
        shape = pool.inputs[0].shape
        self.batch = torch.randn(BATCH, *shape, generator=generator), torch.randint(0, 10, (BATCH,))
        self.images = torch.randn(SCORED, *shape, generator=generator)
        for micro_batch in (BATCH, BATCH // 4):
            losses = {side: self.train(side, micro_batch, steps=2) for side in SIDES}
            assert losses["relay"] == losses["plain"] == losses["control"], losses
        assert torch.equal(self.score("relay"), self.score("plain"))

    def train(self, side: str, micro_batch: int, steps: int = STEPS) -> list[float]:
        if side != "relay":
            return [self._plain_step(side, micro_batch) for _ in range(steps)]
        losses = [self._relay_step(micro_batch) for _ in range(steps)]
        self.relay.drain()
        return losses

    def _relay_step(self, micro_batch: int) -> float:
        self.step += 1
        images, labels = self.batch
        result = self.relay.train_step(
            self.architecture, (images,), labels,
            objective=self.task, micro_batch=micro_batch, lr=1e-3, step=self.step, upcoming=self.architecture,
        )  # fmt: skip
        return result.loss

    def _plain_step(self, side: str, micro_batch: int) -> float:
        network, optimizer, total = self.networks[side].train(), self.optimizers[side], torch.zeros(())
        for images, labels in zip(*(tensor.split(micro_batch) for tensor in self.batch), strict=True):
            loss = cross_entropy(network(images), labels, reduction="sum") / BATCH
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(total.item())

    def train_rounds(self, micro_batch: int, side: str, number: int) -> None:
        self.train(side, micro_batch)

    def scores(self, side: str, number: int) -> None:
        for _ in range(STEPS):
            self.score(side)

    def score(self, side: str) -> torch.Tensor:
        if side == "relay":
            return self.relay.predict(self.architecture, (self.images,), micro_batch=BATCH)[0]
        network = self.networks[side].eval()
        with torch.no_grad():
            return torch.cat([network(images) for images in self.images.split(BATCH)])


def networks() -> dict[str, list[Measured]]:
    """Those of the default space, and one that is deep and narrow."""
    pool = image_blocks.build()
    found = [Measured(pool, UniformPaths(pool, seed=0).path_at(number)) for number in range(NETWORKS)]
    hidden = Candidate("hidden", lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU()))
    positions = [Position(f"layer_{index:02d}", hidden) for index in range(DEEP - 1)]
    positions.append(Position("head", Candidate("head", partial(nn.Linear, 64, 10))))
    narrow = LayerPool(positions, inputs=TensorSpec((64,)))
    deep = Measured(narrow, narrow.architecture([*["hidden"] * (DEEP - 1), "head"]))
    return {f"{NETWORKS} of the default space": found, f"{DEEP} layers": [deep]}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=at_least(1), nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=at_least(1), default=10)
    parser.add_argument("--out", type=Path, default=RESULTS / "small_networks.json")


def main(options: argparse.Namespace) -> None:
    rows: list[dict[str, Any]] = []
    for threads in options.threads:
        torch.set_num_threads(threads)
        for name, group in networks().items():
            for row, micro_batch in ROWS.items():
                total = {side: [0.0] * options.rounds for side in SIDES}
                for one in group:
                    work = one.scores if row == "scoring" else partial(one.train_rounds, micro_batch)
                    found = interleave({side: partial(work, side) for side in SIDES}, rounds=options.rounds, warmup=1)
                    total = {side: [a + b for a, b in zip(total[side], found[side], strict=True)] for side in SIDES}
                ratios = {side: {"wall": ratio(total[side], total["plain"])} for side in SIDES[1:]}
                rows.append({"networks": name, "row": row, "threads": threads, "ratios": ratios})
                told = (shown(ratios[side]["wall"]) for side in SIDES[1:])
                print(f"{threads} threads, {name}, {row}:", ", control ".join(told), flush=True)
    write_json(options.out, {"benchmark": "small_networks", "machine": machine(), "rows": rows})
