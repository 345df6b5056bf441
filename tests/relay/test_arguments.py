"""What relays are given: right things are taken, others are refused at the call; odd ones: `test_public_calls.py`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from l2l_nas import (
    AdamW,
    Candidate,
    LayerPool,
    ParamServer,
    Position,
    Relay,
    TensorSpec,
)
from l2l_nas.errors import L2LError
from l2l_nas.relay.reference import ReferenceTrainer
from tests.toys import SquaredError

POOL = LayerPool(
    [Position(name, [Candidate("layer", lambda: nn.Linear(4, 4))]) for name in "ab"], inputs=TensorSpec((4,))
)
INPUTS, TARGETS = torch.ones(4, 4), torch.ones(4, 4)  # the same in each process: they are parts of names of tests


def server_of(**options):
    return ParamServer(**{"pool": POOL, "optimizer": AdamW(), "seed": 0} | options)


def test_what_is_no_server_is_refused_with_what_to_write():
    for wrong in (POOL, None, ParamServer):
        with pytest.raises(L2LError, match=r"ParamServer\(pool"):
            Relay(wrong, device="cpu")
        with pytest.raises(L2LError, match="ParamServer"):
            ReferenceTrainer(wrong, device="cpu")


def trained(kind=Relay, *, inputs=(INPUTS,), targets=TARGETS, architecture=None, **options):
    executor = kind(server_of(), **{"device": "cpu"} | options)
    architecture = POOL.original if architecture is None else architecture
    loss = executor.train_step(
        architecture, inputs, targets, objective=SquaredError(), micro_batch=2, lr=0.1, step=0, upcoming=architecture
    ).loss
    return loss, executor.predict(architecture, inputs, micro_batch=2)[0]


@pytest.mark.parametrize("kind", [Relay, ReferenceTrainer])
@pytest.mark.parametrize(
    "given",
    [
        {"inputs": INPUTS}, {"inputs": [INPUTS]}, {"inputs": INPUTS.numpy()}, {"targets": TARGETS.numpy()},
        {"targets": TARGETS.tolist()}, {"architecture": ["layer", "layer"]}, {"architecture": ("layer", "layer")},
        {"device": torch.device("cpu")}, {"seed": np.int64(0)},
    ],
    ids=lambda given: f"{next(iter(given))} {type(next(iter(given.values()))).__name__}",
)  # fmt: skip
def test_tensors_arrays_lists_and_devices_are_taken_as_they_are_meant(kind, given):
    expected, outputs = trained(kind)
    loss, found = trained(kind, **given)
    assert loss == expected
    assert torch.equal(found, outputs)


def test_more_slots_than_a_path_uses_and_a_longer_tail_are_as_many_as_it_uses():
    expected = trained(slots=3, keep=2)[0]
    assert trained(slots=10**9, keep=10**9)[0] == expected


@pytest.mark.parametrize(
    "given",
    [{"inputs": "x"}, {"targets": {"a": "x"}}, {"objective": SquaredError}, {"upcoming": 5}],
    ids=str,
)  # fmt: skip
def test_a_step_refuses_what_it_does_not_take(given):
    relay = Relay(server_of(), device="cpu")
    arguments = {
        "architecture": POOL.original, "inputs": (INPUTS,), "targets": TARGETS, "objective": SquaredError(),
        "micro_batch": 2, "lr": 0.1, "step": 0,
    }  # fmt: skip
    with pytest.raises(L2LError):
        relay.train_step(**arguments | given)
    assert relay.train_step(**arguments).loss > 0


@pytest.mark.parametrize(
    "call",
    [
        lambda relay: relay.predict_population(5, (INPUTS,), micro_batch=2),
        lambda relay: relay.recalibrate(POOL.original, []),
        lambda relay: relay.use(ParamServer(POOL.like(POOL.positions), optimizer=AdamW(), seed=0)),
        lambda relay: relay.server.state("c/layer"),
    ],
)
def test_other_calls_refuse_what_they_do_not_take(call):
    with pytest.raises(L2LError):
        call(Relay(server_of(), device="cpu"))
