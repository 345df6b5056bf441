"""Ranks of which one does something else, again and again: all of them say so, and go on as if nothing had been.

    python -m tests.parallel.differing COUNT SEED

Prints the losses of steps in between, as JSON. With a COUNT of 0 no rank differs.
"""

from __future__ import annotations

import json
import random
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from l2l_nas import SGD, AdamW, Candidate, Classification, Clip, LayerPool, Position, Relay, TensorSpec
from l2l_nas.eps import checkpoint
from l2l_nas.eps.agreement import all_gather_bytes
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.sharded import server_of
from l2l_nas.errors import SettingError, StorageError
from l2l_nas.parallel.entry import run_ranked
from l2l_nas.parallel.world import World, WorldConfig
from l2l_nas.relay.config import RelayConfig

SAMPLES, MICRO_BATCH, STEPS = 12, 3, 12


def samples(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 160, generator=generator), torch.randint(0, 4, (count,), generator=generator)


class Layer(nn.Module):
    """Large enough that each rank has a part of its weights."""

    def __init__(self, act: type[nn.Module] = nn.Tanh, scale: float = 1.0) -> None:
        super().__init__()
        self.linear, self.norm, self.act, self.scale = nn.Linear(160, 160), nn.BatchNorm1d(160), act(), scale

    def forward(self, x):
        return x + self.scale * self.act(self.norm(self.linear(x)))


def pool(**options) -> LayerPool:
    layers = [Candidate("a", partial(Layer, **options)), Candidate("b", partial(Layer, **options))]
    middle = [Position(f"layer_{number}", layers) for number in range(3)]
    head = Position("head", Candidate("head", lambda: nn.Linear(160, 4)))
    return LayerPool([*middle, head], inputs=TensorSpec((160,)))


class Smooth(Classification):
    """An objective with code of the user's own."""

    def __init__(self, smoothing: float = 0.1) -> None:
        super().__init__()
        self.smoothing = smoothing

    def loss(self, outputs, targets):
        return nn.functional.cross_entropy(outputs[0], targets, reduction="sum", label_smoothing=self.smoothing)


class Halved(Smooth):
    def loss(self, outputs, targets):
        return super().loss(outputs, targets) / 2


# of each setting of a relay, another value than these ranks have
SETTINGS: dict[str, dict[str, Any]] = {
    "slots": {"slots": 3},
    "keep": {"keep": 2},
    "stash": {"stash": "host"},
    "device_budget": {"device_budget": 1 << 24},
    "resident": {"resident": None},
    "pinned": {"pinned": None},
    "sharers": {"sharers": 2},
    "precision": {"precision": "bf16"},
    "update": {"update": "exact"},
    "clip": {"clip": Clip(0.5, "layer")},
    "lanes": {"lanes": "inline"},
    "layers": {"layers": "compile"},
    "chunks": {"chunks": 8},
}
UNSEEN = {"trace"}  # which looks on


def refuse_unknown_settings() -> None:
    config = RelayConfig()
    known = {entry.name for section in fields(config) for entry in fields(getattr(config, section.name))}
    assert known == SETTINGS.keys() | UNSEEN, "each setting has a case here"


class Player:
    """One rank: calls as they are, and calls that differ."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world, self.folder = world, folder
        self.pool, self.server, self.relay = self.made()
        self.path = self.pool.architecture(["a", "b", "a", "head"])
        self.other_path = self.pool.architecture(["a", "b", "b", "head"])
        self.checkpoint = Checkpoint(folder / "weights")
        self.step, self.losses = 0, []

    def made(self, space=None, optimizer=None, seed=5, frozen=(), relay_seed=3, **settings):
        space = space or pool()
        server = server_of(
            space, self.world.exchange, optimizer=optimizer or AdamW(betas=(0.9, 0.99)), seed=seed, frozen=frozen
        )
        return space, server, Relay(server, device="cpu", seed=relay_seed, **settings)

    def train(
        self, relay=None, path=None, data_seed=None, micro_batch=MICRO_BATCH, objective=None, count=SAMPLES, **more
    ):
        relay = relay or self.relay
        inputs, targets = samples(count, self.step if data_seed is None else data_seed)
        about = {"lr": 0.01, "step": self.step, "objective": objective or Smooth(), **more}
        return relay.train_step(path or self.path, inputs, targets, micro_batch=micro_batch, **about)

    def predict(self, path=None, relay=None):
        inputs, _ = samples(4 + self.world.rank, self.world.rank)  # each rank has its own samples
        return (relay or self.relay).predict(path or self.path, inputs, micro_batch=3)

    def recalibrate(self, path=None, seed=0):
        self.relay.recalibrate(path or self.path, [samples(8, seed)[0]])

    def read(self, key="layer_0/a"):
        return self.server.state(key)

    def save(self):
        self.checkpoint.save(self.server)

    def load(self, **how):
        Checkpoint(self.folder / "weights").load(self.server, **how)

    def good_step(self) -> None:
        self.losses.append(self.train().loss)
        self.step += 1


@contextmanager
def full_disk() -> Iterator[None]:
    def write(path, data):
        raise StorageError(f"{path}: no space left")

    before, checkpoint.write_atomically = checkpoint.write_atomically, write
    try:
        yield
    finally:
        checkpoint.write_atomically = before


def differences(player: Player) -> dict[str, tuple[Callable[[], Any], Callable[[], Any], str]]:
    """By name: what all do, what one rank does in its place, and what the error says."""
    train, predict, own = player.train, player.predict, {}

    def of(name: str, usual: Callable[[], Any], other: Callable[[], Any], said: str) -> None:
        own[name] = (usual, other, said)

    for name, settings in SETTINGS.items():
        of(f"setting {name}", train, lambda s=settings: train(player.made(**s)[2]), f"another setting {name} than")
    for name, made in {
        "search space": {"space": pool(act=nn.ReLU)},
        "search space, a number": {"space": pool(scale=2.0)},
        "optimizer": {"optimizer": SGD()},
        "betas of the optimizer": {"optimizer": AdamW(betas=(0.5, 0.9))},
        "weight_decay of the optimizer": {"optimizer": AdamW(betas=(0.9, 0.99), weight_decay=0.5)},
        "seed": {"seed": 6},
        "seed, the relay's": {"relay_seed": 4},
        "set of frozen states": {"frozen": ["layer_0/a"]},
    }.items():
        of(name, train, lambda m=made: train(player.made(**m)[2]), f"another {name.partition(',')[0]} than")
        of(
            f"{name}: predict",
            predict,
            lambda m=made: predict(relay=player.made(**m)[2]),
            f"another {name.partition(',')[0]}",
        )
    for name, how in {
        "path": {"path": player.other_path},
        "path, the next": {"upcoming": player.path},
        "size of micro-batches": {"micro_batch": 4},
        "number of samples": {"count": 9, "micro_batch": 3},
        "mini-batch": {"data_seed": 77},
        "step": {"step": 99},
        "learning rate": {"lr": 0.02},
        "objective": {"objective": Smooth(0.2)},
        "objective, its code": {"objective": Halved()},
        "objective, its class": {"objective": Classification()},
    }.items():
        said = {"number of samples": "size of micro-batches"}.get(name, name.partition(",")[0])
        of(name, train, partial(train, **how), f"another {said} than")
    of("architectures", predict, lambda: predict(player.other_path), "another architectures than")
    of("architecture", player.recalibrate, lambda: player.recalibrate(player.other_path), "another architecture than")
    of("batches", player.recalibrate, lambda: player.recalibrate(seed=1), "another batches than")
    of("key", player.read, lambda: player.read("layer_1/b"), "another key than")
    of("save", player.load, lambda: player.load(weights_only=True), "another weights_only than")
    calls = {"train": train, "predict": predict, "recalibrate": player.recalibrate, "read": player.read,
             "save": player.save, "load": player.load}  # fmt: skip
    for name, usual in calls.items():
        for other, call in calls.items():
            if name != other:
                of(f"{other}, where others {name}", usual, call, "the same calls in the same order")
    return own


def disagree(player: Player, name: str, is_other: bool) -> None:
    usual, other, said = differences(player)[name]
    with pytest.raises(SettingError, match=re.escape(said)):
        (other if is_other else usual)()


def fail_to_save(player: Player) -> None:
    player.good_step()
    disk = full_disk() if player.world.rank == 0 else nullcontext()
    with disk, pytest.raises(StorageError, match="no space left"):
        player.save()


def main(world: World) -> None:
    refuse_unknown_settings()
    count, seed = map(int, sys.argv[1:3])
    torch.set_num_threads(1)
    chosen = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        first = all_gather_bytes(world.exchange, folder.encode())[0].decode()
        player = Player(world, Path(first))
        player.good_step()
        player.save()
        names = list(differences(player))
        order = [name for _ in range(1 + count // len(names)) for name in chosen.sample(names, len(names))][:count]
        for number in range(STEPS):
            for name in order[number::STEPS]:
                disagree(player, name, chosen.randrange(world.size) == world.rank)
            if count and number == STEPS // 2:
                fail_to_save(player)
            else:
                player.good_step()
        player.save()
        print(json.dumps([names if count else [], player.losses]), flush=True)


if __name__ == "__main__":
    run_ranked(main, WorldConfig(patience_s=20))
