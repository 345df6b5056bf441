"""Relays, steps and snapshots that tests of the relay share."""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from l2l_nas import AdamW, Candidate, LayerPool, ParamServer, Position, Relay, TensorSpec
from l2l_nas.relay import relay as relay_module
from tests.relay.stress import relay_under
from tests.toys import NextToken, SquaredError, random_data

PATH = ["normed", "dense", "running", "partial", "mlp"]  # through `dense_pool`
OTHER = ["dense", "normed", "twice", "normed", "linear"]
GRACE_S = 20  # after which a thread that should have ended is taken to hang


def copying():
    """A device with memory of its own: loads copy to it."""
    device = relay_module.open_device("cpu")
    device.shares_memory = False
    return device


def relay_of(pool: LayerPool, *, optimizer=None, storage=None, **options) -> Relay:
    server = ParamServer(pool, optimizer=optimizer or AdamW(), seed=0, storage=storage)
    return relay_under(server, **{"device": copying()} | options)


def relay_on_host(pool: LayerPool, **options) -> Relay:
    """A relay whose layers compute where the host's states lie."""
    return relay_of(pool, **{"device": "cpu"} | options)


def train(relay, choices, *, step=0, batch=5, micro_batch=2, objective=None, upcoming=None, lr=0.05):
    """A step on the data of its number."""
    pool = relay.server.pool
    inputs, targets = random_data(pool, batch, seed=step)
    return relay.train_step(
        pool.architecture(choices), inputs, targets,
        objective=objective or (NextToken() if pool.inputs[0].dtype == torch.int64 else SquaredError()),
        micro_batch=micro_batch, lr=lr, step=step,
        upcoming=None if upcoming is None else pool.architecture(upcoming),
    )  # fmt: skip


def tensors(server: ParamServer) -> dict[tuple[str, str], Tensor]:
    """Copies of all that a server holds."""
    return {
        (key, name): tensor.clone() for key in server.visited for name, tensor in server.state(key).tensors().items()
    }


def is_same(server: ParamServer, expected: dict[tuple[str, str], Tensor]) -> bool:
    """Whether a server holds this, NaNs counting as different."""
    own = tensors(server)
    return own.keys() == expected.keys() and all(bool((own[name] == expected[name]).all()) for name in own)


def assert_same(server: ParamServer, expected: dict[tuple[str, str], Tensor]) -> None:
    """A server holds this, of what both have."""
    assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors(server).items() if name in expected)


def chain_pool(*factories) -> LayerPool:
    """One candidate, "c", at each position."""
    return LayerPool(
        [Position(f"p{index}", [Candidate("c", factory)]) for index, factory in enumerate(factories)],
        inputs=TensorSpec((3, 6)),
    )


def in_time(work):
    """What `work` gives or raises, unless it hangs."""
    result: list[object] = []
    failure: list[BaseException] = []

    def run():
        try:
            result.append(work())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(GRACE_S)
    assert not thread.is_alive(), f"it hangs: no end after {GRACE_S} s"
    if failure:
        raise failure[0]
    return result[0]


def lane_threads() -> list[threading.Thread]:
    """The threads of all relays that live."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("l2l_nas ")]
