"""On a CUDA device, where there is one: the same code, other memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from l2l_nas import (
    AdamW,
    Candidate,
    LayerPool,
    ParamServer,
    Position,
    ReferenceTrainer,
    Relay,
    TensorSpec,
    UniformPaths,
)
from l2l_nas.eps.optimizers.precision import LowPrecision
from tests.relay.steps import train
from tests.relay.test_graphs import PATHS, plain_pool
from tests.toys import SquaredError, dense_pool, random_data

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
    pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk"),
]


def test_the_relay_equals_the_resident_reference_within_rounding() -> None:
    pool = dense_pool()
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cuda")
    resident = ReferenceTrainer(ParamServer(pool, optimizer=AdamW(), seed=0), device="cuda")
    paths = UniformPaths(pool, seed=0)
    for step in range(20):
        inputs, targets = random_data(pool, 22, seed=step)
        options = {"objective": SquaredError(), "micro_batch": 8, "lr": 1e-3, "step": step}
        got = relay.train_step(paths.path_at(step), inputs, targets, **options).loss
        assert got == pytest.approx(resident.train_step(paths.path_at(step), inputs, targets, **options).loss, rel=1e-4)


def test_a_change_of_architecture_takes_no_new_memory_from_the_device() -> None:
    pool = dense_pool()
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cuda")
    paths = UniformPaths(pool, seed=0)

    def segments_after(steps: range) -> int:
        for step in steps:
            inputs, targets = random_data(pool, 22, seed=step)
            relay.train_step(
                paths.path_at(step), inputs, targets, objective=SquaredError(), micro_batch=8, lr=1e-3, step=step
            )
        return torch.cuda.memory_stats()["segment.all.allocated"]

    assert segments_after(range(100)) == segments_after(range(100, 300))


@pytest.mark.parametrize("options", [{}, {"resident": "all"}], ids=str)
def test_layers_from_graphs_equal_those_that_run_as_they_are(options: dict[str, object]) -> None:
    pool = plain_pool()
    relay, other = (
        Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cuda", layers=layers, **options)
        for layers in ("graphs", "eager")
    )

    def losses(one: Relay) -> list[float]:
        return [train(one, PATHS[step % 3], step=step, batch=7).loss for step in range(12)]

    assert losses(relay) == pytest.approx(losses(other), rel=1e-5)
    assert relay.bank._calls.num_recordings


def test_recurrent_layers_train_on_the_weights_in_the_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch would have cuDNN use a copy of its own. Without TF32, as its products round to 10 bits."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    pool = plain_pool()
    relay, resident = (
        kind(ParamServer(pool, optimizer=AdamW(), seed=0), device="cuda") for kind in (Relay, ReferenceTrainer)
    )
    for step in range(6):
        ours, plain = (train(one, PATHS[1], step=step, batch=7).loss for one in (relay, resident))
        assert ours == pytest.approx(plain, rel=1e-4)


@pytest.mark.parametrize("resident", [None, "all"])
def test_moments_in_fewer_bytes_are_updated_where_they_lie(resident: str | None) -> None:
    pool = wide_pool(lambda: nn.Linear(128, 128))
    server, other = (ParamServer(pool, optimizer=LowPrecision(AdamW(), "bf16"), seed=0) for _ in range(2))
    relay, host = Relay(server, device="cuda", resident=resident), ReferenceTrainer(other, device="cpu")
    assert wide_losses(relay) == pytest.approx(wide_losses(host), rel=1e-3)


def test_a_layer_of_a_triton_kernel_equals_the_same_layer_of_torch() -> None:
    """Neither meta nor the host can run it."""
    pytest.importorskip("triton")
    from tests.relay.triton_layer import TritonDouble

    def double() -> nn.Module:
        return nn.Sequential(nn.Linear(128, 128), TritonDouble())

    def doubled() -> nn.Module:
        return nn.Sequential(nn.Linear(128, 128), Double())

    ours, plain = (
        wide_losses(Relay(ParamServer(wide_pool(build), optimizer=AdamW(), seed=0), device="cuda"))
        for build in (double, doubled)
    )
    assert ours == plain


class Double(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def wide_pool(build: Callable[[], nn.Module]) -> LayerPool:
    head = Candidate("c", lambda: nn.Linear(128, 2))
    return LayerPool([Position("a", Candidate("c", build)), Position("b", head)], inputs=TensorSpec((128,)))


def wide_losses(executor: Relay | ReferenceTrainer) -> list[float]:
    found = []
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        inputs, targets = (torch.randn(6, 128, generator=generator),), torch.randn(6, 2, generator=generator)
        path = executor.pool.architecture(["c", "c"])
        options = {"objective": SquaredError(), "micro_batch": 4, "lr": 0.01, "step": step}
        found.append(executor.train_step(path, inputs, targets, **options).loss)
    return found
