"""Blocks of a network that is taken apart imitate the original's, and networks learn from its outputs."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from l2l_nas.compress.block_speed import MEASURED_STEPS, block_seconds
from l2l_nas.compress.imitation import AfterStep, BlockDistillation, BlockSettings
from l2l_nas.cost.work import ForwardWork
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import SettingError, SpaceError
from l2l_nas.nas.evaluation.evaluator import Evaluator
from l2l_nas.nas.evaluation.inline import InlineExecutor
from l2l_nas.nas.strategies.budget import Budget
from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.machine_speed import MachineSpeed, SpeedContext
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.relay.interface import Batch, bytes_of
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.shapes import check_shapes
from l2l_nas.text.recall import repeated_passages
from l2l_nas.training.metrics import measured
from l2l_nas.training.samples import Samples
from l2l_nas.training.teach import Divergence, TaughtBatches, TaughtSamples, TaughtTask


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
            SettingError: trials would not use these weights, parameters are updated in groups, or ranks share layers.
            SpaceError: a pool that cannot be taken apart.
        """
        if budget.trial_weights == "scratch":
            raise SettingError(
                "strategy=blockwise trains blocks, and with search.trial_weights=scratch no trial uses them; write "
                "search.trial_weights=shared or fork"
            )
        if server.whole_pool is not server.pool:
            raise SettingError(
                "strategy=blockwise: ranks cannot share a block that is trained alone; have parallel.tensor=1"
            )
        BlockDistillation(server, server.pool.original, Relay)
        if not server.pool.is_separable:
            raise SpaceError("the blocks of this pool depend on each other, so that their scores do not add up")

    def speed(self, speed: MachineSpeed, context: SpeedContext) -> MachineSpeed:
        """See `Phase`: a few steps of the first blocks of each kind, on a copy of the weights."""
        steps = min(MEASURED_STEPS, self._settings.steps or MEASURED_STEPS)
        some = BlockWork(self._samples, replace(self._settings, steps=steps), context.seed)
        fixed, step = context.evaluator.do(some.seconds, context.seconds, context.clock)
        return replace(speed, fixed=speed.fixed + fixed, block_step=step)

    def run(self, search: SearchContext) -> None:
        total = sum(len(position.candidates) for position in search.pool.positions)
        search.callback.phase("blocks", total=total, done=len(self.errors))
        shares = _shares(search.pool)
        batch_size = search.evaluator.batches.batch_size

        def after_step(key: str, samples: int) -> None:  # see [Note: a step] in `ledger.py`
            search.ledger.add(shares[key] * samples / batch_size)
            search.callback.poll()

        def after_block(key: str, error: float) -> None:
            self.errors[key] = error
            search.callback.advance(len(self.errors))
            search.save_when_due()

        work = BlockWork(self._samples, self._settings, search.seed)
        search.evaluator.do(work.imitate, dict(self.errors), after_step, after_block)

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


@dataclass(frozen=True)
class BlockWork:
    """What all that share the weights do to train blocks.

    Args:
        samples: how many of the training part.
    """

    samples: int
    settings: BlockSettings
    seed: int

    def imitate(
        self,
        evaluator: Evaluator,
        done: Mapping[str, float],
        after_step: AfterStep,
        after_block: Callable[[str, float], None],
    ) -> None:
        """Train what is not done yet; see `BlockDistillation.run`."""
        blocks = self._distillation(evaluator, evaluator.server, self.settings)
        for key, error in blocks.run(self._inputs(evaluator), done=done, after_step=after_step):
            after_block(key, error)

    def seconds(self, evaluator: Evaluator, seconds: float, clock: Callable[[], float]) -> tuple[float, float]:
        """See `block_seconds`; weights stay as they are."""
        blocks = self._distillation(evaluator, evaluator.server.fork(()), self.settings)
        return block_seconds(blocks, self._inputs(evaluator), seconds=seconds, clock=clock)

    def _distillation(self, evaluator: Evaluator, server: ParamServer, settings: BlockSettings) -> BlockDistillation:
        micro_batch = min(settings.batch_size, evaluator.trainer.micro_batch)
        relay_of = partial(relay_beside, evaluator.relay)
        settings = replace(settings, micro_batch=micro_batch)
        return BlockDistillation(server, server.pool.original, relay_of, settings, seed=self.seed)

    def _inputs(self, evaluator: Evaluator) -> Batch:
        parts = []
        for step in itertools.count():
            parts.append(evaluator.batches.at(step)[0])
            if sum(len(part[0]) for part in parts) >= self.samples:
                return tuple(torch.cat(tensors)[: self.samples] for tensors in zip(*parts, strict=True))
        raise AssertionError


class AskForClasses(Phase):
    """Refuses a task without classes before blocks are trained that could not be scored by `Divergence`.

    Args:
        scores: "divergence", or "recall", which is of texts.
    """

    is_saved = False

    def __init__(self, scores: str) -> None:
        self._scores = scores

    def check(self, server: ParamServer, budget: Budget) -> None:
        """See `Phase`. Raises SettingError: there are ranks."""
        _refuse_ranks(server, f"strategy.scores={self._scores}", "scores=exchange")

    def run(self, search: SearchContext) -> None:
        """See `Phase`. Raises DataError: the task has no classes, or the data are no texts that are long enough."""
        Divergence(search.evaluator.trainer.task)
        if self._scores == "recall":
            repeated_passages(search.evaluator.validation)


class Teach(Phase):
    """From here on networks learn from the original's outputs, too.

    Args:
        share: of these in the loss.
    """

    is_saved = False

    def __init__(self, share: float) -> None:
        self._share = share

    def check(self, server: ParamServer, budget: Budget) -> None:
        """See `Phase`. Raises SettingError: there are ranks."""
        _refuse_ranks(server, f"strategy.teacher={self._share:g}", "teacher=0")

    def run(self, search: SearchContext) -> None:
        """See `Phase`.

        Raises:
            DataError: the task has no classes.
            SettingError: a share outside of 0 to 1; or there are worker processes.
        """
        if not isinstance(search.executor, InlineExecutor):
            raise SettingError("strategy.teacher: worker processes have no teacher; use search.workers=1, or teacher=0")
        self.teach(search.evaluator)

    def teach(self, evaluator: Evaluator) -> None:
        """See `Phase`.

        Raises:
            DataError: the task has no classes.
            SettingError: a share outside of 0 to 1.
        """
        evaluator.do(partial(_learn_from_original, share=self._share))


def _learn_from_original(evaluator: Evaluator, share: float) -> None:
    trainer, server, budget = evaluator.trainer, evaluator.server, evaluator.budget
    task = TaughtTask(measured(trainer.task), share=share)
    if budget.trial_weights == "shared" and budget.steps_per_trial:  # trials train the original's weights, too
        server = server.like()
    teacher = original_outputs(relay_beside(evaluator.relay, server), micro_batch=trainer.micro_batch)
    batches = TaughtBatches(trainer.batches, lambda inputs: teacher(inputs)[:1])
    evaluator.learn_from(replace(trainer, task=task, batches=batches))


def _refuse_ranks(server: ParamServer, what: str, instead: str) -> None:
    """Refuse what asks the original while batches are read, which each rank does at its own pace.

    Raises:
        SettingError: there are ranks.
    """
    if server.world.size > 1:
        raise SettingError(f"{what}: several ranks cannot ask the original for its outputs; use {instead}")


_Scores = list[Mapping[str, float] | None]


def divergences(evaluator: Evaluator, networks: Sequence[Architecture]) -> _Scores:
    """As `Evaluator.score_all`, by the `Divergence` from the original's logits.

    Raises:
        DataError: the task has no classes.
    """
    return _divergences_on(evaluator.validation, evaluator, networks)


def recalls(evaluator: Evaluator, networks: Sequence[Architecture]) -> _Scores:
    """The same with its sum over the validation part and over `repeated_passages` of it.

    Raises:
        DataError: the task has no classes, or the data are no texts that are long enough.
    """
    passages = repeated_passages(evaluator.validation)
    found = [_divergences_on(samples, evaluator, networks) for samples in (evaluator.validation, passages)]
    return [
        None if one is None or other is None else {"recall": one["divergence"] + other["divergence"]}
        for one, other in zip(*found, strict=True)
    ]


# what compares networks with the original, by the name of the score
FROM_ORIGINAL: Mapping[str, Callable[[Evaluator, Sequence[Architecture]], _Scores]] = {
    "divergence": divergences,
    "recall": recalls,
}


def _divergences_on(validation: Samples, evaluator: Evaluator, networks: Sequence[Architecture]) -> _Scores:
    trainer = replace(evaluator.trainer, task=measured(Divergence(evaluator.trainer.task)))
    size = bytes_of(check_shapes(evaluator.server.pool).outputs)
    with contextlib.closing(relay_beside(evaluator.relay, evaluator.server)) as relay:
        teacher = original_outputs(relay, micro_batch=trainer.micro_batch)
        samples = TaughtSamples(validation, lambda inputs: teacher(inputs)[:1], sample_bytes=size)
        scorer = Evaluator(evaluator.relay, trainer, validation=samples, budget=evaluator.budget)
        scorer.provenance = evaluator.provenance  # which knows the weights
        return scorer.score_all(networks)


def original_outputs(relay: Relay, *, micro_batch: int) -> Callable[[Batch], Batch]:
    """What the original of a relay's pool gives for inputs."""
    server = relay.server

    def outputs(inputs: Batch) -> Batch:
        server.drain()  # of which another relay may have updates under way
        return relay.predict(server.pool.original, inputs, micro_batch=micro_batch)

    return outputs


def relay_beside(whole: Relay, server: ParamServer, *, keeps: bool = False) -> Relay:
    """A relay like another one, on a server of its own.

    Args:
        keeps: whether it keeps layers on the device as that one does: in half of what it has left free.
    """
    budget = "auto" if keeps and whole.config.memory.device_budget in ("auto", "all") else None
    return Relay(
        server,
        slots=1 if len(server.pool) == 1 else 2,
        device_budget=budget,
        update=whole.update,
        precision=whole.precision,
        device=str(whole.device.torch_device),
        seed=whole.seed,
        chunks=whole.chunks,
    )
