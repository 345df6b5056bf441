"""Numbered saves of states whose content tells which save they are of, and what must hold of a folder of them."""

from __future__ import annotations

from pathlib import Path

import torch

from l2l_nas import AdamW, ParamServer
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.manifest import Manifest
from tests.toys import dense_pool

POOL = dense_pool(depth=2)
KEYS = ("layer0/normed", "layer0/partial", "layer1/dense", "head/mlp")


def fresh() -> ParamServer:
    return ParamServer(POOL, optimizer=AdamW(), seed=0)


def changed_at(key: str, step: int) -> int:
    """The last step up to this one that changed a state: the first every step, the second every other one."""
    return step - step % (KEYS.index(key) + 1)


def write(server: ParamServer, step: int) -> ParamServer:
    """The states as they are after a step: their numbers tell at which one they last changed."""
    for key in KEYS:
        state, changed = server.state(key), changed_at(key, step)
        if state.visits != changed + 1:
            for tensor in state.parameters().values():
                tensor.fill_(changed)
            state.visits = changed + 1
            state.version += 1
    return server


def assert_is(server: ParamServer, step: int) -> None:
    assert set(server.visited) == set(KEYS)
    for key in KEYS:
        values = torch.cat([tensor.flatten() for tensor in server.state(key).parameters().values()])
        assert torch.equal(values, torch.full_like(values, changed_at(key, step))), (key, step)


def saved_up_to(step: int, folder: Path, *, keep: int) -> tuple[ParamServer, Checkpoint]:
    """Saves 1 to `step`, each of the states after so many steps."""
    server, checkpoint = fresh(), Checkpoint(folder, keep=keep)
    for number in range(1, step + 1):
        checkpoint.save(write(server, number), extra={"step": number})
    return server, checkpoint


def assert_whole(folder: Path, saves: tuple[int, ...]) -> None:
    """All these saves can be loaded, into a new server and into one that has states."""
    used = fresh()
    assert Checkpoint(folder).saves == saves
    for number in saves:
        for server in (fresh(), used):
            assert Checkpoint(folder).load(server, save=number) == {"step": number}
            assert_is(server, number)


def assert_tidy(folder: Path) -> None:
    """Nothing is there but manifests and the files that they name."""
    manifests = [Manifest.read(path) for path in folder.glob("manifest*.json")]
    needed = {entry["file"] for manifest in manifests for entry in manifest.entries.values()}
    assert {path.name for path in folder.iterdir()} == needed | {manifest.path.name for manifest in manifests}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
