"""The resident reference, where it is not compared with the relay in tests/equivalence."""

from __future__ import annotations

import pytest
import torch

from l2l_nas import SGD, AdamW, ParamServer, ReferenceTrainer, Relay
from l2l_nas.eps.file_storage import FileStorage
from l2l_nas.errors import NonFiniteError
from tests.relay.test_refusals import NotANumber
from tests.toys import NextToken, SquaredError, dense_pool, language_pool, random_data

PATH = ["dense", "partial", "twice", "dense", "mlp"]


def step(executor, choices, *, number=0, objective=None, micro_batch=2):
    pool = executor.server.pool
    inputs, targets = random_data(pool, 5, seed=number)
    default = NextToken() if pool.inputs[0].dtype == torch.int64 else SquaredError()
    return executor.train_step(
        pool.architecture(choices), inputs, targets,
        objective=objective or default, micro_batch=micro_batch, lr=0.1, step=number,
    ).loss  # fmt: skip


@pytest.mark.parametrize("optimizer", [AdamW(), SGD()], ids=["adamw", "sgd"])
def test_recomputing_in_the_backward_changes_nothing(optimizer):
    losses = []
    for checkpointing in (False, True):
        server = ParamServer(dense_pool(), optimizer=optimizer, seed=0)
        resident = ReferenceTrainer(server, device="cpu", checkpointing=checkpointing)
        losses.append([step(resident, PATH, number=number) for number in range(4)])
    assert losses[0] == losses[1]


def test_gradients_of_a_refused_step_are_forgotten():
    server, other = (ParamServer(dense_pool(), optimizer=AdamW(), seed=0) for _ in range(2))
    resident, undisturbed = ReferenceTrainer(server, device="cpu"), ReferenceTrainer(other, device="cpu")
    for executor in (resident, undisturbed):
        step(executor, PATH)
    with pytest.raises(NonFiniteError):
        step(resident, PATH, number=1, objective=NotANumber())
    assert step(resident, PATH, number=2) == step(undisturbed, PATH, number=2)
    assert step(resident, PATH, number=3) == step(undisturbed, PATH, number=3)


def test_recalibration_equals_the_relay_s():
    path = ["normed", "dense", "normed", "normed", "linear"]
    servers = [ParamServer(dense_pool(), optimizer=AdamW(), seed=0) for _ in range(2)]
    relay, resident = Relay(servers[0], device="cpu"), ReferenceTrainer(servers[1], device="cpu")
    batches = [random_data(dense_pool(), size, seed=size)[0] for size in (3, 5)]
    for executor in (relay, resident):
        step(executor, path)
        executor.recalibrate(dense_pool().architecture(path), batches)
    resident.write_back()
    for key in servers[0].visited:
        for name, value in servers[0].state(key).named_buffers().items():
            assert torch.allclose(value, servers[1].state(key).named_buffers()[name], atol=1e-6)


def test_weights_go_back_to_the_server_tied_ones_included():
    server = ParamServer(language_pool(), optimizer=AdamW(), seed=0)
    resident = ReferenceTrainer(server, device="cpu")
    step(resident, ["embed", "feed", "attention", "skip", "head"])
    before = server.state("tied/tokens").parameters()["weight"].clone()
    resident.write_back()
    assert not torch.equal(server.state("tied/tokens").parameters()["weight"], before)
    assert server.state("tied/tokens").steps.tolist() == [1]


def test_what_is_written_back_arrives_in_files_as_in_memory(tmp_path):
    pool = dense_pool()
    inputs, targets = random_data(pool, 5, seed=0)
    found = []
    for storage in (None, FileStorage(tmp_path / "pool")):
        server = ParamServer(pool, optimizer=AdamW(), seed=0, storage=storage)
        resident = ReferenceTrainer(server, device="cpu")
        resident.train_step(
            pool.architecture(["dense"] * 4 + ["mlp"]), inputs, targets,
            objective=SquaredError(), micro_batch=2, lr=0.1, step=0,
        )  # fmt: skip
        versions = {key: server.state(key).version for key in server.visited}
        resident.write_back()
        assert all(server.state(key).version != version for key, version in versions.items())
        found.append({key: server.state(key).tensors() for key in server.visited})
    for key, named in found[0].items():
        for name, tensor in named.items():
            assert torch.equal(tensor, found[1][key][name]), f"{key} {name}"
