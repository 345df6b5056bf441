"""A training step: prepare what it needs, run its plan, settle what came of it.

[Note: many devices] Where several ranks share a step, these places exchange something with the others, in the order of
the plan, and no other does: what each is about to do (`Relay._begin_training`), the least of all budgets
(`Relay.memory_plan`), weights when a layer is loaded (`StateAccess.open`), buffers after a forward that changed them
(`PlanExecutor._save`), gradients and their squares when they are sent (`ShardedInbox`), and losses
(`TrainJob.require_finite_loss`). A check and an update exchange nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from l2l_nas.eps.inbox import GradientCheck
from l2l_nas.eps.storage import RamStorage
from l2l_nas.eps.sums import Chunks
from l2l_nas.errors import StateLostError
from l2l_nas.relay.access import StateAccess
from l2l_nas.relay.config import RelayConfig
from l2l_nas.relay.device import stream_seed
from l2l_nas.relay.evaluation import announce_reads
from l2l_nas.relay.executor import PlanExecutor, TrainJob
from l2l_nas.relay.held import HeldStep, HeldSteps
from l2l_nas.relay.held_path import HeldPath
from l2l_nas.relay.interface import StepResult, each
from l2l_nas.relay.losses import LossSums
from l2l_nas.relay.memory import MemoryPlan
from l2l_nas.relay.mini_batch import MiniBatch
from l2l_nas.relay.path import NumberedPath
from l2l_nas.relay.plan import Carry, UpdateOrder, UpdatePolicy
from l2l_nas.relay.planner import plan_training
from l2l_nas.relay.stash import Frames, Stash
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import Layer
from l2l_nas.space.randomness import preserved_generators

_CALM = 4  # steps in a row without clipping, after which updates run ahead again


class TrainingStep:
    """Training steps of a relay, one after the other, and what each leaves to the next: updates under way, full slots.

    Args:
        held: steps of paths that are held as a whole, where that is possible. See `relay/held.py`.

    Attributes:
        states: of the server that is trained.
        put_back: steps whose updates ahead were put back.
    """

    def __init__(
        self,
        executor: PlanExecutor,
        stash: Stash,
        states: StateAccess,
        config: RelayConfig,
        *,
        seed: int,
        held: HeldSteps | None,
    ) -> None:
        self.states = states
        self.config = config
        self.put_back = 0
        self._executor = executor
        self._bank = executor.bank
        self._device = executor.device
        self._stash = stash
        self._seed = seed
        self._held = held
        self._left: tuple[str | None, ...] | None = None  # what the last step left in slots; None: nothing was left
        self._calm = _CALM

    def use(self, states: StateAccess) -> None:
        if self._held is not None:
            self._held.release()
        self.states = states

    def prepare(
        self,
        batch: MiniBatch,
        path: NumberedPath,
        layers: Sequence[Layer],
        *,
        memory: MemoryPlan,
        lr: float,
        step: int,
        chunks: Chunks | None = None,
    ) -> TrainJob:
        """Plan a step; have its states and its inputs where it needs them.

        Args:
            layers: those of the path, and behind them the first one of the next path, if it is known.
            chunks: of the batch, where its gradients are summed by chunks.
        """
        states = self.states
        if self._executor.has_failed:
            self.drain()
        keys = [state for layer in layers for state in layer.states]
        states.server.prepare(keys)
        self._admit(keys)
        order = self._next_order()
        carry = None
        if self._left is not None:
            slot_keys = path.slot_keys(self._left[: len(self._bank.slots)])
            # where an update may be running, all are waited for, so that few plans differ
            carry = Carry(slot_keys, path.trainable if self._executor.is_updating else ())
        plan = plan_training(
            path.layers,
            slots=len(self._bank.slots),
            update=order,
            keep=memory.keep,
            spill=self._stash.spill(path.numbers_of(memory.spilled)),
            carry=carry,
            upcoming=path.upcoming,
        )
        announce_reads(states, plan, layers, path)
        arena = self._stash.lay_out(batch.sizes, memory.spilled, batch.lengths)
        scale, flow = states.server.gradients.loss_scale, self._bank.pool.flow(layers[: len(path.layers)])
        values = {name: arena.own[name] for name in flow.inputs}
        self._fill([values[name] for name in flow.inputs], batch)
        return TrainJob(
            plan=plan,
            layers=tuple(layers),
            depth=len(path.layers),
            flow=flow,
            specs=self._stash.specs,
            seeds=lambda position, number: stream_seed(self._seed, step, position, batch.first + number),
            values=dict(values),
            learning=path.learning,
            scale=scale.scale if scale is not None and self.config.precision.is_scaled else 1.0,
            shares=batch.shares,
            chunks=chunks,
            losses=LossSums(1 if chunks is None else chunks.count),
            spilled=memory.spilled,
            states=states,
            path=path,
            number=step,
            batch=replace(batch, targets=[each(part, self._device.put) for part in batch.targets]),
            arena=arena,
            lr=lr,
            update=order,
            clip=self.config.update.clip,
        )

    def _fill(self, values: Sequence[Frames], batch: MiniBatch) -> None:
        whole = replace(batch, inputs=tuple(map(self._device.put, batch.inputs)))
        for frames, tensors in zip(zip(*values, strict=True), whole.micro_batches(), strict=True):
            for target, tensor in zip((target for frame in frames for target in frame), tensors, strict=True):
                target.copy_(tensor)

    def run(self, job: TrainJob) -> None:
        """Have the plan carried out. Updates may be running when this returns.

        A step that is refused leaves nothing with `exact`. With `eager` the updates that were done before stay, and the
        error names their layers.
        """
        with preserved_generators(self._device.torch_device):
            try:
                self._executor.carry_out(job)
            except BaseException:
                self._left = None
                self.states.server.gradients.discard(self.states.storage)  # those that were not applied
                self._put_buffers_back(job)
                self._end_updates()
                raise

    def settle(self, job: TrainJob) -> StepResult:
        """What the step gave; what it leaves to the next one."""
        self._note(job.check, job.update)
        is_skipped = job.check is not None and job.check.is_refused
        # a layer loaded ahead may have buffers that are put back now
        slot_keys = job.plan.leaves.slot_keys
        self._left = tuple(None if key is None or is_skipped else job.path.state(key) for key in slot_keys)
        job.states.server.begin_updates(self)
        losses = job.require_finite_loss()
        if is_skipped and losses.bad:
            self._put_buffers_back(job)  # they have seen what overflowed
        norm = job.check.norm if job.check else None
        return StepResult(losses.task, job.batch.count, norm, is_skipped, losses.auxiliary)

    @property
    def facts(self) -> dict[str, object]:
        """What decides the plan of the next step beside its arguments, as ranks compare it."""
        return {"order of updates": self._next_order(), "last step": self._left}

    def held_path(self, architecture: Architecture, memory: MemoryPlan) -> HeldPath | None:
        """A path whose step waits for nothing, as all is held, see [Note: held]; None for others."""
        storage = self.states.server.storage
        if self._held is None or memory.spilled or not isinstance(storage, RamStorage):
            return None
        pool = self._bank.pool
        if memory.keep < len(pool.positions) and memory.keep < len(pool.path(architecture)):
            return None
        path = self._held.path(architecture)
        return path if path.layers else None

    def run_held(self, path: HeldPath, batch: MiniBatch, *, lr: float, step: int) -> StepResult:
        steps = self._held
        assert steps is not None
        if self._left is not None:
            self.finish()  # what a step of another kind left
        has_norm, clip = self.config.update.policy is UpdatePolicy.EXACT, self.config.update.clip
        losses, check = steps.run(HeldStep(path, self.states.server, batch, lr, step, clip, has_norm))
        if has_norm:
            self._note(check, UpdateOrder.CHECKED)
        norm = check.norm if check is not None and has_norm else None
        return StepResult(losses.task, batch.count, norm, auxiliary=losses.auxiliary)

    @property
    def usual_order(self) -> UpdateOrder:
        """When steps update states while nothing is clipped."""
        storage = self.states.server.storage
        # files are for what memory does not hold, and what lives on the device is updated there in any case
        is_beside = self._executor.lanes.is_beside and not self._device.shares_memory
        overlaps = is_beside and storage.is_lasting and self.states.on_device is None
        return self.config.update.order(overlaps=overlaps)

    def _next_order(self) -> UpdateOrder:
        order = self.usual_order
        return UpdateOrder.CHECKED if order is UpdateOrder.AHEAD and self._calm < _CALM else order

    def _note(self, check: GradientCheck | None, order: UpdateOrder) -> None:
        if check is not None:
            was_needed = check.is_clipped or check.is_refused
            self.put_back += was_needed and order is UpdateOrder.AHEAD
            self._calm = 0 if was_needed else min(self._calm + 1, _CALM)

    def _put_buffers_back(self, job: TrainJob) -> None:
        for index, buffers in reversed(job.entry_buffers.items()):
            with contextlib.suppress(StateLostError):  # an update ended half-way, which is the step's error
                self.states.store_buffers(job.layers[index].key, buffers)

    def drain(self) -> None:
        """Finish all updates under way, those that wait for the next step included."""
        try:
            self.finish()
        finally:
            if self.states.on_device is not None:
                self.states.on_device.write_back()
            self._end_updates()

    def release(self) -> None:
        """Finish all updates under way, and hold no state nor a copy of one on the device."""
        try:
            self.finish()
        finally:
            if self.states.on_device is not None:
                self.states.on_device.release()
            if self._held is not None:
                self._held.release()
            self._end_updates()

    def finish(self) -> None:
        """Finish updates. What lives on the device may be newer than the host's."""
        left, self._left = self._left, None
        if left is None:
            return
        try:
            self._executor.drain()
        finally:
            self.states.server.gradients.discard(self.states.storage)
            self._end_updates()

    def _end_updates(self) -> None:
        """Nothing is under way; only what lives on the device may be newer than the host's."""
        if self.states.on_device is None or not self.states.on_device.is_changed:
            self.states.server.end_updates()

    def refresh(self) -> None:
        """Have what was changed on the host come to the device again."""
        on_device = self.states.on_device
        if on_device is not None and (stale := on_device.stale()):
            self.finish()  # an update may be on its way to it
            on_device.forget(stale)

    def _admit(self, states: Sequence[str]) -> None:
        """Have the states of a step live on the device, if states do."""
        on_device = self.states.on_device
        if on_device is None:
            return
        self.refresh()
        if coming := [key for key in dict.fromkeys(states) if key not in on_device]:
            self.finish()
            on_device.bring(coming)
