"""What every extension of the engine must do: update rules, schedules, storages, spaces, and layers that go on."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.identity import difference, space_of
from l2l_nas.eps.optimizers.base import Optimizer
from l2l_nas.eps.optimizers.rules import AdamW
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.storage import RamStorage, Storage
from l2l_nas.errors import SettingError
from l2l_nas.relay.reference import ReferenceTrainer
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.constraint import NonEmpty
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.sampling import UniformPaths
from l2l_nas.space.shapes import check_shapes
from l2l_nas.testing.problems import small_data, small_pool
from l2l_nas.training.data import Batches
from l2l_nas.training.fit import Trainer
from l2l_nas.training.problem import Problem
from l2l_nas.training.schedule import Cosine, MakeSchedule, Schedule, build_schedule
from l2l_nas.training.task import Classification

_SHAPES = ((3, 2), (4,), (), (80, 64))
_BATCH = 8


def check_optimizer(build: Callable[[], Optimizer], *, lr: float = 0.01, steps: int = 30) -> None:
    """It updates in place, keeps nothing of its own, learns, and trains in the relay as it does in plain PyTorch.

    Args:
        build: a new optimizer, or `Groups` of rules.
        lr: a learning rate that suits it.
        steps: of training.
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
        return _losses_of(trainer, lambda step: path, schedule, start=start, steps=end - start)

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
        problem = "is another one after a save: what it keeps must be in `state`"
        _require_equal(servers[3], servers[0], servers[0].visited, problem)


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


def check_storage(build: Callable[[LayerPool], Storage], *, steps: int = 20) -> None:
    """Training with it gives what training in host memory gives, bit by bit; and what is cleared is gone.

    Args:
        build: a new storage for the states of a pool, with two moments each.
        steps: of training, on random paths.
    """
    pool = small_pool()
    storage = build(pool)
    ours, theirs = (_trained(pool, one, steps) for one in (storage, RamStorage()))
    assert set(storage.keys) == set(theirs.storage.keys), "it does not hold the states that were put"
    for key in theirs.storage.keys:
        assert ours.state(key).steps.tolist() == theirs.state(key).steps.tolist(), f"{key}: another number of updates"
    _require_equal(ours, theirs, theirs.storage.keys, "is not what was written")
    storage.clear()
    assert storage.keys == (), "what is cleared is there"


def _trained(pool: LayerPool, storage: Storage, steps: int) -> ParamServer:
    server = ParamServer(pool, optimizer=AdamW(), seed=0, storage=storage)
    with contextlib.closing(Relay(server, device="cpu")) as relay:
        trainer = Trainer(relay, Classification(), Batches(small_data().train, batch_size=2 * _BATCH, seed=0), _BATCH)
        _losses_of(trainer, UniformPaths(pool, seed=0).path_at, Cosine(0.01, steps), steps=steps)
        relay.drain()
    return server


def check_space(build: Callable[[], Problem], *, steps: int = 12) -> None:
    """A space is the same each time it is built, fits its data, and trains on the relay as in plain PyTorch.

    Random paths are trained, each with another learning rate, by both; losses and weights must be equal, bit by bit.

    Args:
        build: a new problem each time.
        steps: how many paths.

    Raises:
        AssertionError: it does not.
        L2LError: layers, data or task that do not fit each other.
    """
    problem, other = build(), build()
    assert problem.data.digest == other.data.digest, "the data differ from one time it is built to the next"
    unlike = difference(space_of(problem.pool), space_of(other.pool))
    assert not unlike, f"the pool differs from one time it is built to the next: {unlike}"
    problem.check(check_shapes(problem.pool))
    servers = [ParamServer(problem.pool, optimizer=AdamW(), seed=0) for _ in range(2)]
    resident = ReferenceTrainer(servers[1], device="cpu")
    with contextlib.closing(Relay(servers[0], device="cpu")) as relay:
        losses = [_losses(problem, executor, steps) for executor in (relay, resident)]
        assert losses[0] == losses[1], "losses of the relay are not those of plain PyTorch"
        relay.drain()
        resident.write_back()
        ours, theirs = servers
        what = "is not what training in plain PyTorch gives"
        _require_equal(ours, theirs, theirs.visited, what, parts=("weights.", "buffers."))


def _losses(problem: Problem, executor: Relay | ReferenceTrainer, steps: int) -> list[float]:
    trainer = Trainer(executor, problem.task, Batches(problem.data.train, batch_size=_BATCH, seed=0), _BATCH)
    paths = UniformPaths(problem.pool, seed=0, constraints=(NonEmpty(problem.pool), *problem.constraints))
    return _losses_of(trainer, paths.path_at, Cosine(0.01, steps), steps=steps)


def _require_equal(
    ours: ParamServer, theirs: ParamServer, keys: Iterable[str], problem: str, *, parts: tuple[str, ...] = ("",)
) -> None:
    for key in keys:
        found, expected = ours.state(key).tensors(), theirs.state(key).tensors()
        for name in expected:
            if name.startswith(parts):
                assert torch.equal(found[name], expected[name]), f"{key}: {name} {problem}"


def check_extend(build: Callable[[], nn.Module], x: Tensor, *, pieces: Sequence[int] = (3, 1, 1, 2)) -> None:
    """`extend` gives at each place what `forward` does, however the places come.

    Args:
        build: makes the layer.
        x: its input [batch, places, ...], of more places than all pieces have.
        pieces: new places of one call after the other; what is left comes in one more.
    """
    layer = build().eval()
    extend: Callable[..., tuple[Tensor, tuple[Tensor, ...]]] = layer.extend  # type: ignore[assignment]
    with torch.no_grad():
        whole, cache, place = layer(x), None, 0
        for count in (*pieces, x.shape[1] - sum(pieces)):
            before = None if cache is None else [tensor.clone() for tensor in cache]
            given, after = extend(x[:, place : place + count], cache)
            expected = whole[:, place : place + count]
            assert given.shape == expected.shape, (
                f"gave {list(given.shape)} for {count} places after {place}, expected {list(expected.shape)}"
            )
            assert torch.allclose(given, expected, rtol=1e-4, atol=1e-5 * float(whole.abs().max())), (
                f"differs from forward by {float((given - expected).abs().max()):.3g} in {count} places after {place}"
            )
            assert isinstance(after, tuple), f"gave a cache that is {type(after).__name__}, expected a tuple of tensors"
            assert all(isinstance(tensor, Tensor) for tensor in after), "gave a cache that holds other than tensors"
            if cache is not None and before is not None:
                changed = [not torch.equal(one, other) for one, other in zip(cache, before, strict=True)]
                assert not any(changed), "changed the cache that it was given; make a new one"
            cache, place = after, place + count


def _losses_of(
    trainer: Trainer, path_at: Callable[[int], Architecture], schedule: Schedule, *, steps: int, start: int = 0
) -> list[float]:
    losses: list[float] = []
    trainer.fit(path_at, start=start, steps=steps, schedule=schedule, after_step=lambda step, loss: losses.append(loss))
    return losses
