"""What every update rule, and every schedule, must do."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.optimizers.base import Optimizer
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import SettingError
from l2l_nas.relay.reference import ReferenceTrainer
from l2l_nas.relay.relay import Relay
from l2l_nas.testing.problems import losses_of, small_data, small_pool
from l2l_nas.training.data import Batches
from l2l_nas.training.fit import Trainer
from l2l_nas.training.schedule import MakeSchedule, build_schedule
from l2l_nas.training.task import Classification

_SHAPES = ((3, 2), (4,), (), (80, 64))


def check_optimizer(build: Callable[[], Optimizer], *, lr: float = 0.01, steps: int = 30) -> None:
    """It updates in place, keeps nothing of its own, learns, and trains in the relay as it does in plain PyTorch.

    Args:
        build: a new optimizer, or `Groups` of rules.
        lr: a learning rate that suits it.
        steps: of training.

    Raises:
        AssertionError: it does not; what it raises comes through.
    """
    rule = build()
    assert isinstance(rule, Optimizer), "it has no name, state or update; see l2l_nas.eps.optimizers.base.Optimizer"
    assert isinstance(rule.name, str), f"its name is {rule.name!r}"
    for shape in _SHAPES:
        if not _takes(rule, shape):
            continue
        names = [tensor.name for tensor in rule.state(shape)]
        assert len(set(names)) == len(names), f"keeps two tensors of one name for a parameter of shape {shape}"
        assert rule.state(shape) == rule.state(shape), f"keeps now this, now that for a parameter of shape {shape}"
        alone = _updated(rule, shape, lr=lr)
        among_others = _updated(rule, shape, lr=lr, others=build())
        for name in alone:
            assert torch.equal(alone[name], among_others[name]), f"{name} depends on other parameters, or on itself"
        assert alone["steps"].item() == 2, "update adds 1 to each of `steps`"
    _check_training(build, lr=lr, steps=steps)


def _takes(rule: Optimizer, shape: tuple[int, ...]) -> bool:
    try:
        rule.state(shape)
    except SettingError:  # refused, as Muon refuses vectors
        return False
    return True


def _updated(
    rule: Optimizer, shape: tuple[int, ...], *, lr: float, others: Optimizer | None = None
) -> dict[str, Tensor]:
    """A parameter and what is stored for it after two updates: by itself, or with another one and another's between."""
    count = 1 if others is None else 2
    generator = torch.Generator().manual_seed(0)
    first, gradients = (torch.randn(shape, generator=generator) for _ in range(2))
    weights = [first * (1 + index) for index in range(count)]
    moments = [[torch.zeros(one.shape, dtype=one.dtype) for _ in range(count)] for one in rule.state(shape)]
    steps = [torch.zeros(()) for _ in range(count)]
    for number in range(2):
        given = [gradients * (1 + number + index) for index in range(count)]
        before = [gradient.clone() for gradient in given]
        rule.update(weights, given, moments, steps, lr=lr)
        assert all(map(torch.equal, given, before)), "the rule changes gradients, which may be applied again"
        if others is not None and number == 0:
            _updated(others, shape, lr=lr)
            _updated(rule, shape, lr=10 * lr)
    held = {tensor.name: own[0] for tensor, own in zip(rule.state(shape), moments, strict=True)}
    return {"weights": weights[0], "steps": steps[0], **held}


def _check_training(build: Callable[[], Optimizer], *, lr: float, steps: int) -> None:
    pool = small_pool()
    path = pool.architecture(["linear", "tanh", "relu", "skip", "tanh", "linear"])
    batches = Batches(small_data().train, batch_size=16, seed=0)

    def fit(trainer: Trainer, start: int, end: int) -> list[float]:
        schedule = build_schedule("constant")(lr, steps)
        return losses_of(trainer, lambda step: path, schedule, start=start, steps=end - start)

    with contextlib.ExitStack() as stack:

        def relay_on(server: ParamServer) -> Trainer:
            relay = stack.enter_context(contextlib.closing(Relay(server, device="cpu")))
            return Trainer(relay, Classification(), batches, 16)

        servers = [ParamServer(pool, optimizer=build(), seed=0) for _ in range(4)]
        resident = ReferenceTrainer(servers[1], device="cpu")
        losses = fit(relay_on(servers[0]), 0, steps)
        assert all(map(math.isfinite, losses)), f"a loss is not finite: {losses}"
        assert fit(Trainer(resident, Classification(), batches, 16), 0, steps) == losses, (
            "the relay trains otherwise than plain PyTorch: the rule depends on more than its arguments"
        )
        few = max(1, len(losses) // 5)
        course = f"{losses[0]:.4f} to {losses[-1]:.4f}"
        assert sum(losses[-few:]) < sum(losses[:few]), f"does not learn with lr={lr}: {course}"
        fit(relay_on(servers[2]), 0, steps // 2)
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        Checkpoint(Path(folder)).save(servers[2])
        Checkpoint(Path(folder)).load(servers[3])
        fit(relay_on(servers[3]), steps // 2, steps)
        for key in servers[0].visited:
            expected, found = servers[0].state(key).tensors(), servers[3].state(key).tensors()
            for name, tensor in expected.items():
                same = torch.equal(found[name], tensor)
                assert same, f"{key}: {name} is another one after a save: what it keeps must be in `state`"


def check_schedule(make: str | MakeSchedule, *, peak: float = 0.1) -> None:
    """It gives a rate for every step of trainings of any length, the same whenever it is asked.

    Args:
        make: a function of the peak and the steps, or a name; as `l2l_nas.search(schedule=...)` takes it.

    Raises:
        AssertionError: it does not.
        L2LError: it gives no rate, or raises something.
    """
    build = build_schedule(make)
    for steps in (0, 1, 2, 30, 100):
        schedule = build(peak, steps)
        rates = [schedule.at(step) for step in range(steps + 5)]
        again = build(peak, steps)
        for step in reversed(range(steps + 5)):
            assert again.at(step) == rates[step], f"gave {rates[step]} and then {again.at(step)} at step {step}"
        doubled = build(2 * peak, steps)
        assert steps == 0 or any(doubled.at(step) != rates[step] for step in range(steps)), "does not follow its peak"
