"""On a CUDA device, where there is one: the same code, other memory."""

from __future__ import annotations

import pytest
import torch

from l2l_nas import AdamW, ParamServer, Relay, Resident, UniformPaths
from tests.relay.steps import train
from tests.relay.test_graphs import PATHS, plain_pool
from tests.toys import SquaredError, dense_pool, random_data

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


def test_the_relay_equals_the_resident_reference_within_rounding() -> None:
    pool = dense_pool()
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cuda")
    resident = Resident(ParamServer(pool, optimizer=AdamW(), seed=0), device="cuda")
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


@pytest.mark.parametrize("options", [{}, {"device_budget": "all"}, {"resident": "all"}], ids=str)
def test_layers_from_graphs_equal_those_that_run_as_they_are(options: dict[str, object]) -> None:
    """Not run on a GPU yet; see `test_graphs.py` for what is known of how recordings are used."""
    pool = plain_pool()
    relay, other = (
        Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cuda", layers=layers, **options)
        for layers in ("graphs", "eager")
    )
    for step in range(12):
        ours, plain = (train(one, PATHS[step % 3], step=step, batch=7).loss for one in (relay, other))
        assert ours == pytest.approx(plain, rel=1e-5)
    assert relay.bank._dress.num_recordings
