"""Small networks with everything held on a CPU, beside plain PyTorch: what the relay costs where nothing streams.

    python -m benchmarks small_networks [--before CHECKOUT] [--threads 1 2] [--rounds 10] [--out FILE]

Six random networks of the default space, as `python -m l2l_nas search` builds and trains them, with one micro-batch a
step and with four; forward-only scoring of 256 images; and 48 layers of width 64. Plain PyTorch is the same layers in
an `nn.Sequential`, fused AdamW, a loop over the same micro-batches, `.item()` of the loss once a step. Its control is
the same once more. Both start from the same weights and must give the same losses and predictions, bit for bit.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import RESULTS, ROOT
from benchmarks.options import at_least
from benchmarks.paired import Side, in_turns, joined, ratios, shown

NETWORKS, DEEP, BATCH, SCORED, STEPS = 6, 48, 64, 256, 5
SIDES = ("plain", "relay", "control")
ROWS = {
    "training, 1 micro-batch": {"kind": "train", "micro_batch": BATCH},
    "training, 4 micro-batches": {"kind": "train", "micro_batch": BATCH // 4},
    "scoring": {"kind": "score", "micro_batch": BATCH},
}


class Measured:
    """A network on each side, from the same weights."""

    def __init__(self, pool: Any, architecture: Any) -> None:
        import torch
        from torch import nn

        from l2l_nas import AdamW, Classification, ParamServer, Relay

        server = ParamServer(pool, optimizer=AdamW(betas=(0.9, 0.98), weight_decay=0.05), seed=0)
        self.relay = Relay(server, device="cpu", device_budget="all")
        self.architecture, self.task, self.step = architecture, Classification(), 0
        self.networks, self.optimizers = {}, {}
        for name in ("plain", "control"):
            tied: dict[str, Any] = {}
            layers = [server.build_module(layer, tied) for layer in pool.path(architecture)]
            network = nn.Sequential(*layers)
            self.networks[name] = network
            self.optimizers[name] = torch.optim.AdamW(
                network.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.05, fused=True
            )
        generator = torch.Generator().manual_seed(0)
        shape = pool.inputs[0].shape
        self.batch = torch.randn(BATCH, *shape, generator=generator), torch.randint(0, 10, (BATCH,))
        self.images = torch.randn(SCORED, *shape, generator=generator)

    def train(self, side: str, micro_batch: int, steps: int = STEPS) -> list[float]:
        """Losses of some steps."""
        if side == "relay":
            losses = [self._relay_step(micro_batch, number) for number in range(steps)]
            self.relay.drain()
            return losses
        network, optimizer = self.networks[side].train(), self.optimizers[side]
        return [self._plain_step(network, optimizer, micro_batch) for _ in range(steps)]

    def _relay_step(self, micro_batch: int, number: int) -> float:
        self.step += 1
        images, labels = self.batch
        result = self.relay.train_step(
            self.architecture, (images,), labels,
            objective=self.task, micro_batch=micro_batch, lr=1e-3, step=self.step, upcoming=self.architecture,
        )  # fmt: skip
        return result.loss

    def _plain_step(self, network: Any, optimizer: Any, micro_batch: int) -> float:
        from torch.nn.functional import cross_entropy

        total: Any = 0.0
        for images, labels in zip(*(tensor.split(micro_batch) for tensor in self.batch), strict=True):
            loss = cross_entropy(network(images), labels, reduction="sum") / BATCH
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return float(total.item())

    def scores(self, side: str, micro_batch: int) -> None:
        """As often as there are steps."""
        for _ in range(STEPS):
            self.score(side, micro_batch)

    def score(self, side: str, micro_batch: int) -> Any:
        """Outputs."""
        import torch

        if side == "relay":
            return self.relay.predict(self.architecture, (self.images,), micro_batch=micro_batch)[0]
        network = self.networks[side].eval()
        with torch.no_grad():
            return torch.cat([network(images) for images in self.images.split(micro_batch)])


@cache
def network(number: int) -> Measured:
    """One of the default space; the last is deep and narrow. Its sides are compared before anything is timed."""
    import torch
    from torch import nn

    from l2l_nas import Candidate, LayerPool, Position, TensorSpec, UniformPaths

    if number == NETWORKS:
        hidden = Candidate("hidden", lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU()))
        positions = [Position(f"layer_{index:02d}", hidden) for index in range(DEEP - 1)]
        positions.append(Position("head", Candidate("head", partial(nn.Linear, 64, 10))))
        pool = LayerPool(positions, inputs=TensorSpec((64,)))
        found = Measured(pool, pool.architecture([*["hidden"] * (DEEP - 1), "head"]))
    else:
        pool = import_module("search_spaces.image_blocks").build()
        found = Measured(pool, UniformPaths(pool, seed=0).path_at(number))
    for micro_batch in (BATCH, BATCH // 4):
        losses = {side: found.train(side, micro_batch, steps=2) for side in SIDES}
        assert losses["relay"] == losses["plain"] == losses["control"], losses
    assert torch.equal(found.score("relay", BATCH), found.score("plain", BATCH))
    return found


def answer(number: int, kind: str, micro_batch: int, rounds: int, seed: int) -> Any:
    """Seconds of each side, by round."""
    one = network(number)
    work: Callable[[str, int], object] = one.train if kind == "train" else one.scores
    for side in SIDES:
        work(side, micro_batch)
    return in_turns({side: partial(work, side, micro_batch) for side in SIDES}, rounds=rounds, seed=seed)


def measured(checkouts: dict[str, Path], *, threads: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each kind of work and checkout; checkouts take turns, network by network."""
    sides = {name: Side(answer, path, threads=threads) for name, path in checkouts.items()}
    rows = []
    for networks, numbers in ((f"{NETWORKS} of the default space", range(NETWORKS)), (f"{DEEP} layers", [NETWORKS])):
        for row, job in ROWS.items():
            found: dict[str, list[Any]] = {name: [] for name in sides}
            for number in numbers:
                for name, side in sides.items():
                    found[name].append(side.ask(number=number, rounds=rounds, seed=number, **job))
            for name, parts in found.items():
                rows.append(summary(parts) | {"networks": networks, "row": row, "checkout": name, "threads": threads})
                tell(rows[-1])
    for side in sides.values():
        side.process.communicate()
    return rows


def summary(parts: Sequence[Any]) -> dict[str, Any]:
    """Ratios over all networks, those of single ones, and milliseconds of processor time."""
    work = joined(parts)
    count = STEPS * len(parts)
    each = [ratios(part, over="plain")["relay"]["cpu"]["median"] for part in parts]
    milliseconds = {side: round(1e3 * min(own["cpu"]) / count, 3) for side, own in work.items()}
    return {"ratios": ratios(work, over="plain"), "each": each, "least_cpu_ms": milliseconds}


def tell(row: dict[str, Any]) -> None:
    """Print it."""
    relay, control = row["ratios"]["relay"], row["ratios"]["control"]
    print(
        f"{row['checkout']:7}{row['threads']} threads, {row['networks']:24}{row['row']:27}"
        f"cpu {shown(relay['cpu'])}, wall {shown(relay['wall'])}, control {shown(control['cpu'])}, "
        f"{row['least_cpu_ms']['plain']:.2f} and {row['least_cpu_ms']['relay']:.2f} ms, "
        f"single ones {min(row['each']):.2f} to {max(row['each']):.2f}, median {statistics.median(row['each']):.2f}",
        flush=True,
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--before", type=Path, help="another checkout, measured beside this one")
    parser.add_argument("--threads", type=at_least(1), nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=at_least(1), default=10)
    parser.add_argument("--out", type=Path, default=RESULTS / "small_networks.json")


def main(options: argparse.Namespace) -> None:
    """Measure and write."""
    from benchmarks.timing import machine
    from l2l_nas.files import write_json

    checkouts = {"now": ROOT} | ({"before": options.before.resolve()} if options.before else {})
    rows = [row for count in options.threads for row in measured(checkouts, threads=count, rounds=options.rounds)]
    about = {"benchmark": "small_networks", "machine": {**machine(), "threads": options.threads}}
    write_json(options.out, about | {"steps": STEPS, "batch": BATCH, "scored": SCORED, "rows": rows})
