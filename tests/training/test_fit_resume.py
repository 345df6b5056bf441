"""Training that is killed at random steps and goes on equals training that is not, bit for bit."""

from __future__ import annotations

import hashlib
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from l2l_nas import SGD, AdamW, ParamServer, Relay, UniformPaths
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.scale import Clip
from l2l_nas.training.data import Batches, Split
from l2l_nas.training.fit import Trainer
from l2l_nas.training.schedule import Cosine
from tests.nursery import Nursery
from tests.toys import NextToken, SquaredError, dense_pool, language_pool, random_data, repeated_pool

# BatchNorm, statistics that the output depends on, dropout; tied weights; layers used at any position, also twice
POOLS = {"dense": dense_pool, "language": language_pool, "repeated": repeated_pool}
RULES = {"adamw": AdamW(), "sgd": SGD()}
SETTINGS: dict[str, dict[str, Any]] = {
    "eager": {"update": "eager", "lanes": "inline"},
    "exact": {"update": "exact", "lanes": "threads", "clip": Clip(0.5)},
    "checked": {"update": "exact", "lanes": "threads", "stash": "host"},
    "fp16": {"update": "exact", "lanes": "threads", "precision": "fp16"},
}
CASES = [(rule, setting) for rule in RULES for setting in SETTINGS if (rule, setting) != ("sgd", "fp16")]
STEPS, EVERY, KILLS = 36, 3, 3


def train(name: str, rule: str, setting: str, log: str, folder: str | None) -> None:
    """Random architectures, the loss of every step into `log`, at the end a hash of each tensor of each state.

    Without a folder, nothing is saved on the way.
    """
    pool = POOLS[name]()
    server = ParamServer(pool, optimizer=RULES[rule], seed=0)
    split = Split(*random_data(pool, 40, seed=0))
    task = NextToken() if name == "language" else SquaredError()
    relay = Relay(server, device="cpu", seed=0, **SETTINGS[setting])
    if server.gradients.loss_scale is not None:
        server.gradients.loss_scale.interval = 2  # it grows until gradients overflow, again and again
    trainer = Trainer(relay, task, Batches(split, batch_size=7, seed=0), 3)
    saves = Checkpoint(Path(folder), keep=2) if folder else None
    start = saves.load(server)["step"] if saves and saves.exists() else 0
    with open(log, "a", buffering=1) as losses:

        def after_step(step: int, loss: float) -> None:
            losses.write(f"{step} {loss.hex()}\n")
            time.sleep(0.003 if folder else 0)  # for the killer
            if saves and (step + 1) % EVERY == 0:
                saves.save(server, extra={"step": step + 1})

        trainer.fit(
            UniformPaths(pool, seed=0).path_at,
            start=start,
            steps=STEPS - start,
            schedule=Cosine(0.02, STEPS),
            after_step=after_step,
        )
        digests = {
            f"{key} {name}": hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
            for key in sorted(server.visited)
            for name, tensor in server.state(key).tensors().items()
        }
        losses.write(json.dumps(digests) + "\n")


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(scope="module")
def nursery():
    nursery = Nursery(__name__, "torch._dynamo")  # torch imports it late, in 1.5 s
    yield nursery
    nursery.close()


# each pool with both rules and three of the settings at least
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rule", "setting"),
    [
        (name, *case)
        for i, name in enumerate(POOLS)
        for j, case in enumerate(CASES)
        if (i + j + (case[0] == "sgd")) % 2 == 0
    ],
)
def test_training_killed_at_random_steps_equals_training_that_was_not(tmp_path, nursery, name, rule, setting):
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    generator = random.Random(seed)
    whole, cut, folder = tmp_path / "whole", tmp_path / "cut", tmp_path / "weights"
    nursery.run(train, name, rule, setting, str(whole), None)
    for kill in range(KILLS):
        # the first may come before the first save, the others go on from one; none comes after the last step
        wanted = len(lines(cut)) + generator.randrange(EVERY + 1 if kill else 1, 9)
        process = nursery.start(train, name, rule, setting, str(cut), str(folder))
        deadline = time.monotonic() + 60
        while len(lines(cut)) < wanted:
            assert time.monotonic() < deadline
            time.sleep(0.0005)
        time.sleep(generator.random() * 0.004)
        assert nursery.kill(process) == -9
    nursery.run(train, name, rule, setting, str(cut), str(folder))
    *losses, digests = lines(whole)
    *again, digests_again = lines(cut)
    assert json.loads(digests_again) == json.loads(digests)
    assert set(again) == set(losses)  # a step that was run twice gave the same loss twice
    assert len(losses) == STEPS
    assert len(Checkpoint(folder).saves) == 2
