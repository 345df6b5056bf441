"""Blocks of a network that is taken apart imitate the original's, and networks learn from its outputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from l2l_nas.compress.block_speed import MEASURED_STEPS, block_seconds
from l2l_nas.compress.imitation import BlockDistillation, BlockSettings
from l2l_nas.cost.work import ForwardWork
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import SettingError, SpaceError
from l2l_nas.nas.evaluation.inline import InlineExecutor
from l2l_nas.nas.strategies.budget import Budget
from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.machine_speed import MachineSpeed, SpeedContext
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.relay.interface import Batch
from l2l_nas.relay.relay import Relay
from l2l_nas.space.pool import LayerPool
from l2l_nas.training.fit import Trainer
from l2l_nas.training.metrics import measured
from l2l_nas.training.teach import Divergence, TaughtBatches, TaughtTask


class DistilBlocks(Phase):
    """Trains each candidate to imitate the original of its position.

    Args:
        samples: how many of the training part.
    """

    def __init__(self, samples: int, settings: BlockSettings) -> None:
        self._samples, self._settings = samples, settings
        self.errors: dict[str, float] = {}

    @property
    def steps(self) -> int:
        """Of each candidate."""
        return self._settings.steps

    def check(self, server: ParamServer, budget: Budget) -> None:
        """See `Phase`.

        Raises:
            SettingError: trials would not use these weights, or parameters are updated in groups.
            SpaceError: a pool that cannot be taken apart.
        """
        if budget.trial_weights == "scratch":
            raise SettingError(
                "strategy=blockwise trains blocks, and with search.trial_weights=scratch no trial uses them; write "
                "search.trial_weights=shared or fork"
            )
        BlockDistillation(server, server.pool.original, Relay)
        if not server.pool.is_separable:
            raise SpaceError("the blocks of this pool depend on each other, so that their scores do not add up")

    def speed(self, speed: MachineSpeed, context: SpeedContext) -> MachineSpeed:
        """See `Phase`: a few steps of the first blocks of each kind, on a copy of the weights."""
        relay = context.relay
        distillation = self._distillation(context.trainer, relay, context.seed)
        distillation = replace(
            distillation,
            server=relay.server.fork(()),
            settings=replace(distillation.settings, steps=min(MEASURED_STEPS, self._settings.steps or MEASURED_STEPS)),
        )
        inputs = self._inputs(context.trainer)
        fixed, step = block_seconds(distillation, inputs, seconds=context.seconds)
        return replace(speed, fixed=speed.fixed + fixed, block_step=step)

    def run(self, search: SearchContext) -> None:
        total = sum(len(position.candidates) for position in search.pool.positions)
        search.callback.phase("blocks", total=total, done=len(self.errors))
        distillation = self._distillation(search.trainer, search.relay, search.seed)
        inputs = self._inputs(search.trainer)
        shares = _shares(search.pool)

        def after_step(key: str, samples: int) -> None:  # see [Note: a step] in `ledger.py`
            search.ledger.add(shares[key] * samples / search.trainer.batches.batch_size)
            search.callback.poll()

        for key, error in distillation.run(inputs, done=self.errors, after_step=after_step):
            self.errors[key] = error
            search.callback.advance(len(self.errors))
            search.save_when_due()

    def _distillation(self, trainer: Trainer, relay: Relay, seed: int) -> BlockDistillation:
        settings = replace(self._settings, micro_batch=min(self._settings.batch_size, trainer.micro_batch))
        server = relay.server
        return BlockDistillation(server, server.pool.original, relays_like(relay), settings, seed=seed)

    def _inputs(self, trainer: Trainer) -> Batch:
        parts = []
        for step in itertools.count():
            parts.append(trainer.batches.at(step)[0])
            if sum(len(part[0]) for part in parts) >= self._samples:
                return tuple(torch.cat(tensors)[: self._samples] for tensors in zip(*parts, strict=True))
        raise AssertionError

    def state(self, search: SearchContext) -> Mapping[str, Any]:
        return {"block_errors": self.errors}

    def restore(self, search: SearchContext, state: Mapping[str, Any]) -> None:
        self.errors = {str(key): float(value) for key, value in state.get("block_errors", {}).items()}


def _shares(pool: LayerPool) -> dict[str, float]:
    """Of the original's work, that of each candidate by `position/candidate`."""
    work = ForwardWork(pool)
    original = work.of_network(pool.original)
    names = [position.name for position in pool.positions]
    return {f"{names[one.position]}/{one.candidate.name}": work.of_layer(one) / original for one in pool.layers}


class AskForClasses(Phase):
    """Refuses a task without classes before blocks are trained that could not be scored by `Divergence`."""

    is_saved = False

    def run(self, search: SearchContext) -> None:
        """See `Phase`.

        Raises:
            DataError: the task has no classes.
        """
        Divergence(search.trainer.task)


class Teach(Phase):
    """From here on networks learn from the original's outputs, too.

    Args:
        share: of these in the loss.
    """

    is_saved = False

    def __init__(self, share: float) -> None:
        self._share = share

    def run(self, search: SearchContext) -> None:
        """See `Phase`.

        Raises:
            DataError: the task has no classes.
            SettingError: see `trainer`; or there are worker processes.
        """
        if not isinstance(search.executor, InlineExecutor):
            raise SettingError("strategy.teacher: worker processes have no teacher; use search.workers=1, or teacher=0")
        server, budget = search.server, search.budget
        if budget.trial_weights == "shared" and budget.steps_per_trial:  # trials train the original's weights, too
            server = server.another()
        search.evaluator.learn_from(self._taught(search.trainer, server))

    def trainer(self, trainer: Trainer) -> Trainer:
        """See `Phase`.

        Raises:
            DataError: the task has no classes.
            SettingError: a share outside of 0 to 1.
        """
        assert isinstance(trainer.executor, Relay)
        return self._taught(trainer, trainer.executor.server)

    def _taught(self, trainer: Trainer, server: ParamServer) -> Trainer:
        """With a server of the original's weights."""
        whole, task = trainer.executor, TaughtTask(measured(trainer.task), share=self._share)
        assert isinstance(whole, Relay)
        teacher = original_outputs(relays_like(whole)(server), micro_batch=trainer.micro_batch)
        return replace(trainer, task=task, batches=TaughtBatches(trainer.batches, lambda inputs: teacher(inputs)[:1]))


def original_outputs(relay: Relay, *, micro_batch: int) -> Callable[[Batch], Batch]:
    """What the original of a relay's pool gives for inputs."""
    server = relay.server

    def outputs(inputs: Batch) -> Batch:
        server.drain()  # of which another relay may have updates under way
        return relay.predict(server.pool.original, inputs, micro_batch=micro_batch)

    return outputs


def relays_like(whole: Relay, *, keeps: bool = False) -> Callable[[ParamServer], Relay]:
    """Makes relays like this one, for other servers.

    Args:
        keeps: whether they keep layers on the device as this one does: in half of what it has left free.
    """
    budget = "auto" if keeps and whole.config.memory.device_budget in ("auto", "all") else None

    def relay_of(server: ParamServer) -> Relay:
        return Relay(
            server,
            slots=1 if len(server.pool) == 1 else 2,
            device_budget=budget,
            update=whole.update,
            precision=whole.precision,
            device=str(whole.device.torch_device),
            seed=whole.seed,
        )

    return relay_of
