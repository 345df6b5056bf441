"""What the host cannot stand in for: optimizer state on a device, and kernels that a device alone has."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from l2l_nas import AdamW, Candidate, LayerPool, ParamServer, Position, ReferenceTrainer, Relay, TensorSpec
from l2l_nas.eps.optimizers.precision import LowPrecision
from l2l_nas.errors import SpaceError
from tests.toys import SquaredError

WIDTH = 128


class DeviceAlone(nn.Module):
    """As a layer of a Triton kernel: it raises on any other device than the accelerator."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        if x.device.type != "simulated":
            raise RuntimeError(f"this kernel has no code for {x.device.type}")
        return x + self.linear(torch.nn.functional.dropout(x, 0.5, self.training))


def pool_of(kind: type[nn.Module]) -> LayerPool:
    return LayerPool(
        [
            Position("a", Candidate("own", kind)),
            Position("b", Candidate("linear", lambda: nn.Linear(WIDTH, 2))),
        ],
        inputs=TensorSpec((WIDTH,)),
    )


def losses(executor: Relay | ReferenceTrainer, pool: LayerPool) -> list[float]:
    found = []
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        inputs, targets = (torch.randn(6, WIDTH, generator=generator),), torch.randn(6, 2, generator=generator)
        options = {"objective": SquaredError(), "micro_batch": 4, "lr": 0.01, "step": step}
        found.append(executor.train_step(pool.architecture(["own", "linear"]), inputs, targets, **options).loss)
    return found


def test_a_layer_that_runs_on_the_relays_device_alone_trains_as_in_plain_pytorch():
    pool = pool_of(DeviceAlone)
    torch.manual_seed(3)
    before = torch.get_rng_state(), torch.simulated.get_rng_state()
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="simulated", device_budget="auto")
    assert torch.equal(before[0], torch.get_rng_state())
    assert torch.equal(before[1], torch.simulated.get_rng_state())
    plain = ReferenceTrainer(ParamServer(pool, optimizer=AdamW(), seed=0), device="simulated")
    assert losses(relay, pool) == losses(plain, pool)


def test_a_layer_that_runs_on_no_device_is_refused_with_what_it_raised_there():
    class Nowhere(DeviceAlone):
        def forward(self, x):
            raise RuntimeError(f"this kernel has no code for {x.device.type}")

    with pytest.raises(SpaceError, match="no code for simulated"):
        Relay(ParamServer(pool_of(Nowhere), optimizer=AdamW(), seed=0), device="simulated")


@pytest.mark.parametrize("resident", [None, "all"])
def test_moments_in_fewer_bytes_are_updated_where_they_lie(resident):
    pool = pool_of(lambda: nn.Linear(WIDTH, WIDTH))
    optimizer = LowPrecision(AdamW(), "bf16")
    relay = Relay(ParamServer(pool, optimizer=optimizer, seed=0), device="simulated", resident=resident)
    assert losses(relay, pool) == losses(
        ReferenceTrainer(ParamServer(pool, optimizer=optimizer, seed=0), device="cpu"), pool
    )
