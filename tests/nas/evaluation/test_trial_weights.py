"""What a trial trains, and the note of it."""

from __future__ import annotations

import zlib
from functools import partial

import pytest
import torch
from torch import nn

from l2l_nas import AdamW, Candidate, LayerPool, ParamServer, Position, Relay, TensorSpec
from l2l_nas.eps.file_storage import FileStorage
from l2l_nas.eps.scale import LossScale
from l2l_nas.errors import SettingError
from l2l_nas.nas.evaluation.provenance import WeightProvenance
from l2l_nas.nas.evaluation.segment import START_WEIGHTS, check_trial_weights
from l2l_nas.training.task import Classification
from tests.nas.problems import pool_of

POOL = pool_of("tanh", "relu", "skip")
PATH = POOL.architecture(["linear", "tanh", "skip", "linear"])
KEYS = ("stem/linear", "p0/tanh", "head/linear")


def server_of(**options) -> ParamServer:
    return ParamServer(POOL, optimizer=AdamW(), seed=0, **options)


def train(server: ParamServer, steps: int, path=PATH) -> None:
    relay = Relay(server)
    for step in range(steps):
        x = torch.ones(4, 2)
        y = torch.zeros(4, dtype=torch.long)
        relay.train_step(path, (x,), y, objective=Classification(), micro_batch=4, lr=0.01, step=step)
    relay.close()


def test_a_name_that_is_none_gets_a_hint():
    with pytest.raises(SettingError, match=r"search\.trial_weights.*'frok'.*'fork'"):
        check_trial_weights("frok")


def test_what_trials_and_finalists_train():
    server = server_of()
    train(server, 2)
    assert START_WEIGHTS["shared"](server, PATH) is server
    for weights_for in (START_WEIGHTS["fork"],):
        fork = weights_for(server, PATH)
        assert set(fork.visited) == set(KEYS)
        assert torch.equal(fork.state("p0/tanh").weights, server.state("p0/tanh").weights)
        assert fork.state("p0/tanh").weights.data_ptr() != server.state("p0/tanh").weights.data_ptr()
    for weights_for in (START_WEIGHTS["scratch"],):
        fresh = weights_for(server, PATH)
        assert not fresh.visited
        assert torch.equal(fresh.state("p0/tanh").weights, server_of().state("p0/tanh").weights)


def test_a_fork_goes_on_with_the_loss_scale_and_keeps_its_own():
    server = server_of()
    server.gradients.loss_scale = LossScale()
    server.gradients.loss_scale.update(overflowed=True)
    fork = START_WEIGHTS["fork"](server, PATH)
    assert fork.gradients.loss_scale is not None
    assert fork.gradients.loss_scale.scale == server.gradients.loss_scale.scale
    fork.gradients.loss_scale.update(overflowed=True)
    assert fork.gradients.loss_scale.scale < server.gradients.loss_scale.scale


def test_an_entry_tells_visits_and_checksum_of_every_state_of_the_path():
    server = server_of()
    train(server, 3)
    entry = WeightProvenance().entry("shared", server, PATH)
    sums = [f"{zlib.crc32(bytes(server.state(key).weights.tolist())):08x}" for key in KEYS]
    assert entry == {"kind": "shared", "visits": [3, 3, 3], "crc32": "".join(sums)}


def test_an_entry_changes_with_what_was_trained_and_with_nothing_else():
    server, ledger = server_of(), WeightProvenance()
    train(server, 1)
    first = ledger.entry("shared", server, PATH)
    assert ledger.entry("shared", server, PATH) == first
    train(server, 1, POOL.architecture(["linear", "relu", "skip", "linear"]))
    second = ledger.entry("shared", server, PATH)
    assert second["visits"] == [2, 1, 2]
    parts = [entry["crc32"][8:16] for entry in (first, second)]
    assert parts[0] == parts[1]
    assert first["crc32"][:8] != second["crc32"][:8]


def test_after_a_crash_as_many_visits_with_other_weights_have_another_checksum():
    ledger = WeightProvenance()
    server, other = server_of(), server_of()
    train(server, 1)
    train(other, 1)
    other.state("p0/tanh").weights.view(torch.float32)[0] += 1e-6
    a, b = WeightProvenance().entry("shared", server, PATH), WeightProvenance().entry("shared", other, PATH)
    assert a["visits"] == b["visits"]
    assert a["crc32"] != b["crc32"]
    # a ledger goes by the version, which is never the same for two updates
    assert ledger.entry("shared", server, PATH) == a
    assert ledger.entry("shared", other, PATH) == b


def test_weights_are_read_once_for_each_version(monkeypatch):
    server, ledger = server_of(), WeightProvenance()
    train(server, 1)
    read = []
    monkeypatch.setattr(zlib, "crc32", lambda data, *more, real=zlib.crc32: read.append(len(data)) or real(data, *more))
    for _ in range(3):
        ledger.entry("shared", server, PATH)
    assert len(read) == 3
    fork = START_WEIGHTS["fork"](server, PATH)
    ledger.entry("fork", fork, PATH)
    assert len(read) == 3  # a copy has the version of what it was made from
    train(fork, 1)
    ledger.entry("fork", fork, PATH)
    assert len(read) == 6


def test_states_in_files_have_the_same_entry(tmp_path):
    entries = []
    for storage in (None, FileStorage(tmp_path)):
        server = server_of(storage=storage)
        train(server, 2)
        entries.append(WeightProvenance().entry("shared", server, PATH))
    assert entries[0] == entries[1]


def test_a_layer_without_weights_has_an_entry_too():
    pool = LayerPool(
        [
            Position("act", [Candidate("relu", nn.ReLU)]),
            Position("head", [Candidate("linear", partial(nn.Linear, 2, 2))]),
        ],
        inputs=TensorSpec((2,)),
    )
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    path = pool.architecture(["relu", "linear"])
    train(server, 2, path)
    entry = WeightProvenance().entry("shared", server, path)
    assert entry["visits"][1] == 2
    assert entry["crc32"].startswith("00000000")
