"""What every space must do."""

from __future__ import annotations

from collections.abc import Callable

import torch

from l2l_nas.eps.identity import difference, space_of
from l2l_nas.eps.optimizers.rules import AdamW
from l2l_nas.eps.server import ParamServer
from l2l_nas.relay.reference import ReferenceTrainer
from l2l_nas.relay.relay import Relay
from l2l_nas.space.constraint import NonEmpty
from l2l_nas.space.sampling import UniformPaths
from l2l_nas.space.shapes import check_shapes
from l2l_nas.testing.problems import losses_of
from l2l_nas.training.data import Batches
from l2l_nas.training.fit import Trainer
from l2l_nas.training.problem import Problem
from l2l_nas.training.schedule import Cosine

_BATCH = 8


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
    relay = Relay(ParamServer(problem.pool, optimizer=AdamW(), seed=0), device="cpu")
    resident = ReferenceTrainer(ParamServer(problem.pool, optimizer=AdamW(), seed=0), device="cpu")
    try:
        losses = [_losses(problem, executor, steps) for executor in (relay, resident)]
        assert losses[0] == losses[1], "losses of the relay are not those of plain PyTorch"
        relay.drain()
        resident.write_back()
        for key in resident.server.visited:
            ours, theirs = relay.server.state(key).tensors(), resident.server.state(key).tensors()
            for name in (one for one in ours if one.startswith(("weights.", "buffers."))):
                same = torch.equal(ours[name], theirs[name])
                assert same, f"{key}: {name} is not what training in plain PyTorch gives"
    finally:
        relay.close()


def _losses(problem: Problem, executor: Relay | ReferenceTrainer, steps: int) -> list[float]:
    trainer = Trainer(executor, problem.task, Batches(problem.data.train, batch_size=_BATCH, seed=0), _BATCH)
    paths = UniformPaths(problem.pool, seed=0, constraints=(NonEmpty(problem.pool), *problem.constraints))
    return losses_of(trainer, paths.path_at, Cosine(0.01, steps), steps=steps)
