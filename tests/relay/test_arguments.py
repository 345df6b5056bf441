"""What relays, servers and optimizers are given: right things are taken, others are refused by name at the call."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from l2l_nas import (
    SGD,
    Adafactor,
    AdamW,
    Candidate,
    Clip,
    FileStorage,
    Group,
    Groups,
    LayerPool,
    Lion,
    Muon,
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


@pytest.mark.parametrize(
    "options",
    [
        {"slots": 0}, {"slots": "2"}, {"slots": 1.5}, {"keep": True}, {"keep": None}, {"update": 3}, {"clip": 1.0},
        {"precision": torch.bfloat16}, {"stash": None}, {"device_budget": "x"}, {"device_budget": -1},
        {"resident": "x"}, {"resident": 4096}, {"pinned": -1}, {"pinned": "x"}, {"sharers": 0}, {"lanes": []},
        {"layers": "fast"}, {"device": 3}, {"device": "abacus"}, {"seed": "x"}, {"stress": 1}, {"trace": True},
    ],
    ids=str,
)  # fmt: skip
def test_a_relay_refuses_what_it_does_not_take_by_the_argument_s_name(options):
    with pytest.raises(L2LError) as caught:
        Relay(server_of(), **{"device": "cpu"} | options)
    (name,) = options
    assert name.split("_")[-1] in str(caught.value)


def test_what_is_no_server_is_refused_with_what_to_write():
    for wrong in (POOL, None, ParamServer):
        with pytest.raises(L2LError, match=r"ParamServer\(pool"):
            Relay(wrong, device="cpu")
        with pytest.raises(L2LError, match="ParamServer"):
            ReferenceTrainer(wrong, device="cpu")


@pytest.mark.parametrize(
    "options",
    [{"pool": 5}, {"optimizer": "adamw"}, {"optimizer": AdamW}, {"optimizer": None}, {"seed": "x"}, {"seed": 1.0},
     {"seed": 1 << 70}, {"storage": "ram"}, {"storage": FileStorage}],
    ids=str,
)  # fmt: skip
def test_a_server_refuses_what_it_does_not_take(options):
    with pytest.raises(L2LError, match=next(iter(options))):
        server_of(**options)


@pytest.mark.parametrize(
    "make",
    [
        partial(AdamW, betas=0.9), partial(AdamW, betas=(0.9, "x")), partial(AdamW, betas=(0.9, 0.99, 0.999)),
        partial(AdamW, eps="x"), partial(AdamW, weight_decay=None), partial(SGD, momentum="x"),
        partial(SGD, weight_decay=float("nan")), partial(Lion, betas=None), partial(Adafactor, eps=1e-3),
        partial(Adafactor, eps=(1e-8, None)), partial(Adafactor, clip="x"), partial(Muon, iterations=2.5),
        partial(Muon, eps=None), partial(Clip, "x"), partial(Clip, 0), partial(Clip, 1.0, scope=None),
        partial(Groups, "adamw"), partial(Groups, AdamW), partial(Groups, AdamW(), [1]),
        partial(Groups, AdamW(), Group("all")),
        partial(Group, "all", weight_decay="x"), partial(FileStorage, 5), partial(FileStorage, "x", frames="x"),
        partial(FileStorage, "x", frames=10**9), partial(FileStorage, "x", cached_bytes=-1),
    ],
    ids=str,
)  # fmt: skip
def test_rules_clips_groups_and_storages_refuse_what_they_do_not_take(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(L2LError):
        make()
    assert not list(tmp_path.iterdir())


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
    [{"inputs": None}, {"inputs": "x"}, {"inputs": [1, "x"]}, {"targets": None}, {"targets": "x"}, {"targets": 1.0},
     {"targets": {"a": "x"}}, {"objective": 5}, {"objective": SquaredError}, {"micro_batch": 2.0},
     {"micro_batch": "x"}, {"lr": "x"}, {"step": "x"}, {"step": None}, {"architecture": 5}, {"architecture": "ab"},
     {"upcoming": 5}],
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
        lambda relay: relay.predict(POOL.original, None, micro_batch=2),
        lambda relay: relay.predict(POOL.original, (INPUTS,), micro_batch="x"),
        lambda relay: relay.predict_population(5, (INPUTS,), micro_batch=2),
        lambda relay: relay.predict_population([5], (INPUTS,), micro_batch=2),
        lambda relay: relay.predict_population([POOL.original], (INPUTS,), micro_batch=2, max_bytes="x"),
        lambda relay: relay.recalibrate(POOL.original, 5),
        lambda relay: relay.recalibrate(POOL.original, []),
        lambda relay: relay.use(5),
        lambda relay: relay.use(ParamServer(POOL.like(POOL.positions), optimizer=AdamW(), seed=0)),
        lambda relay: relay.server.state("c/layer"),
        lambda relay: relay.server.state(5),
        lambda relay: relay.server.fork(5),
    ],
)
def test_other_calls_refuse_what_they_do_not_take(call):
    with pytest.raises(L2LError):
        call(Relay(server_of(), device="cpu"))
