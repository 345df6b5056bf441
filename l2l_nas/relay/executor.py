"""The executor: issues the steps of a plan to the lanes, each after the steps it must wait for.

[Note: no deadlock] Beyond the bound of `Staging` a gradient is sent after updates that were issued before it. So a wait
is always for work that was issued earlier; a lane, too, keeps work waiting only for work that was issued before it.
Whatever of all was issued first can go on, and so all of it ends. Where nothing earlier would free memory, as with the
first gradient of a layer that is used twice, a gradient is sent beyond the bound.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from l2l_nas.eps.exchange import Channel
from l2l_nas.eps.gradients import gradient_bytes
from l2l_nas.eps.host import free_memory_bytes
from l2l_nas.eps.inbox import GradientCheck
from l2l_nas.eps.scale import Clip
from l2l_nas.eps.state import Part
from l2l_nas.errors import NonFiniteError
from l2l_nas.relay.access import StateAccess
from l2l_nas.relay.bank import SlotBank
from l2l_nas.relay.buffers import BufferWatch, may_change
from l2l_nas.relay.device import Device
from l2l_nas.relay.lanes import CancelToken, Future, Label, Lanes
from l2l_nas.relay.losses import Losses
from l2l_nas.relay.mini_batch import MiniBatch
from l2l_nas.relay.path import NumberedPath
from l2l_nas.relay.plan import VISITS, Op, Plan, Step, UpdateOrder
from l2l_nas.relay.refusals import raise_named, refuse_changes, refuse_gradient_mode, refuse_replaced_buffers, where
from l2l_nas.relay.schedule import LANE, PlanSchedule, rank, update_ranks
from l2l_nas.relay.slots import Template
from l2l_nas.relay.stash import ArenaLayout, Frames
from l2l_nas.relay.visits import Job, Visits

_STAGING_SHARE = 0.25  # of free host memory, for gradients that wait for updates


@dataclass(kw_only=True)
class PlanJob(Job):
    """A plan to carry out, and what its steps need to know."""

    plan: Plan
    states: StateAccess
    path: NumberedPath  # says what the plan's numbers are
    number: int = -1  # of the training step, for messages
    cancel: CancelToken = field(default_factory=CancelToken)


@dataclass(kw_only=True)
class ForwardJob(PlanJob):
    """Forward visits alone: what is done with the template of each place."""

    visit: Callable[[int, Template], None]


@dataclass(kw_only=True)
class TrainJob(PlanJob):
    """A training step, and what came of it."""

    batch: MiniBatch  # its targets on the device
    arena: ArenaLayout
    lr: float
    update: UpdateOrder
    clip: Clip | None = None
    on_host: Losses | None = None  # its losses, once they came from the device
    is_reading: threading.Lock = field(default_factory=threading.Lock)
    check: GradientCheck | None = None  # once CHECK is done
    updated: list[str] = field(default_factory=list)  # states

    def require_finite_loss(self) -> Losses:
        """Refuse losses that are not finite, and cannot become so with a lower scale, before any gradient is used."""
        with self.is_reading:  # ranks agree on them once
            if self.chunks is not None and self.chunks.is_idle:
                self.losses.sums.clear()
            self.on_host = self.on_host or self.losses.read(self.layers, self.states.server.exchange)
        if self.scale == 1.0:
            self.on_host.require_finite(self.number)
        return self.on_host


class Staging:
    """A bound on the gradients that wait on the host: says after which updates one is sent; see [Note: no deadlock]."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._sent: dict[str, int] = {}  # by state, bytes whose update was not issued yet
        self._updates: list[tuple[Future, int]] = []

    def send(self, sizes: Mapping[str, int], *, newest_first: bool) -> tuple[Future, ...]:
        """Count gradients that are to be sent, in bytes by state; which updates are to be waited for first."""
        self._updates = [(future, size) for future, size in self._updates if not future.is_done]
        total = sum(sizes.values()) + sum(self._sent.values()) + sum(size for _, size in self._updates)
        awaited = []
        while self._updates and total > self.limit_bytes:
            future, size = self._updates.pop(-1 if newest_first else 0)
            total -= size
            awaited.append(future)
        for state, size in sizes.items():
            self._sent[state] = self._sent.get(state, 0) + size
        return tuple(awaited)

    def update(self, state: str, future: Future) -> None:
        """Count an update that was issued: at its end the gradients of its state are free."""
        self._updates.append((future, self._sent.pop(state, 0)))

    def clear(self) -> None:
        self._sent.clear()
        self._updates.clear()


class PlanExecutor:
    """Carries out plans, one after the other, in the same slots."""

    def __init__(self, device: Device, bank: SlotBank, lanes: Lanes, *, dtype: torch.dtype) -> None:
        self.bank = bank
        self.lanes = lanes
        self.device = device
        self._dtype = dtype
        self._visits = Visits(device)
        self._schedule: PlanSchedule[Future] = PlanSchedule()
        self._watches: dict[str, BufferWatch] = {}  # by layer
        self.staging = Staging(int(_STAGING_SHARE * free_memory_bytes()))

    def carry_out(self, job: PlanJob) -> None:
        """Issue all steps. Visits (on CUDA: issued), saves and the check of gradients are done when this returns."""
        issued: list[Future] = []
        ranks = update_ranks(job.path.layers, in_files=not job.states.storage.is_lasting)
        # other orders hold all gradients of a step
        is_staged = isinstance(job, TrainJob) and job.update is UpdateOrder.EAGER

        def submit(step: Step, after: tuple[Future, ...]) -> Future:
            if step.op is Op.SEND and is_staged:
                layouts = {key: job.states.server.layout(key) for key in job.layers[step.layer].states}
                sizes = {key: gradient_bytes(layout) for key, layout in layouts.items() if layout.is_trainable}
                after += self.staging.send(sizes, newest_first=bool(ranks))
            issued.append(self._submit(step, job, after, rank(step, ranks)))
            if step.op is Op.UPDATE and is_staged:
                self.staging.update(job.path.state(step.state), issued[-1])
            return issued[-1]

        try:
            for step in job.plan.steps:
                if step.op is Op.LOAD:
                    self.bank.build(job.layers[step.layer], step.slot)
            self.lanes.wait(self._schedule.issue(job.plan, job.path.state, submit))
            if isinstance(job, TrainJob):
                job.require_finite_loss()
        except BaseException as error:
            job.cancel.error = job.cancel.error or error
            self._quiet(issued)
            raise

    @property
    def has_failed(self) -> bool:
        """Whether an update of an earlier step is known to have failed; `drain` says how."""
        return any(future.is_done and future.error is not None for future in self._schedule.updates.values())

    @property
    def is_updating(self) -> bool:
        """Whether an update of an earlier step may be running."""
        updates = self._schedule.updates
        for state in [state for state, future in updates.items() if future.is_over()]:
            del updates[state]
        return bool(updates)

    def drain(self) -> None:
        """Wait for everything under way, and forget what slots hold."""
        last, self._schedule = self._schedule, PlanSchedule()
        self.staging.clear()
        self.lanes.wait([*last.updates.values(), *(future for used in last.slots.values() for future in used)])
        self.lanes.flush_trace()

    def _quiet(self, futures: Iterable[Future]) -> None:
        """Wait until nothing of a refused plan runs any more."""
        last, self._schedule = self._schedule, PlanSchedule()
        for future in [*futures, *last.updates.values()]:
            future.wait()
            self.device.wait(future.mark)
        with self.device.stream("compute"):
            self.device.wait(self.device.mark())  # a visit that failed left no mark, but perhaps work
        self.staging.clear()

    def _submit(self, step: Step, job: PlanJob, after: tuple[Future, ...], rank: int) -> Future:
        name = job.layers[step.layer].key if step.layer >= 0 else ""
        if step.op is Op.UPDATE:
            name = job.path.state(step.state)
        label = Label(step.op.value, name, job.number)
        work = partial(self._WORK[step.op], self, step, job)
        if step.op in VISITS:
            return self.lanes.compute(work, after=after, label=label, cancel=job.cancel)
        if step.op is Op.FETCH:  # visits are in this thread, behind it
            value = job.path.value(step.value)
            job.values[value] = self._frame(step, job)
        return self.lanes.submit(LANE[step.op], work, after=after, label=label, cancel=job.cancel, rank=rank)

    def _load(self, step: Step, job: PlanJob) -> None:
        layer, states = job.layers[step.layer], job.states
        template = self.bank.template(layer, step.slot)
        template.opened = tuple(
            states.open(key, block) for key, block in zip(layer.states, template.weights, strict=True)
        )
        if template.buffers.numel():
            with states.storage.reading(layer.key, Part.BUFFERS) as state:
                # from pinned memory, so that this lane does not wait for the copy
                is_pinned = self.device.host_allocator is not None
                template.load_buffers(self._staged(state.buffers) if is_pinned else state.buffers)

    def _save(self, step: Step, job: PlanJob) -> None:
        layer, states = job.layers[step.layer], job.states
        template = self.bank.template(layer, step.slot)
        refuse_replaced_buffers(layer, template, self.bank.pool)

        def stored() -> Tensor:
            with states.storage.reading(layer.key, Part.BUFFERS) as state:
                return state.buffers.clone()

        if layer.key not in self._watches:
            self._watches[layer.key] = BufferWatch(may_change(self.bank.pool, layer))
        watch = self._watches[layer.key]
        if job.sums_chunks and not watch.changes and template.statistics is not None:
            template.statistics.refuse_changes(where(layer, self.bank.pool))
            return
        if not watch.has_changed(template, stored, where(layer, self.bank.pool)):
            return
        after = self._after_all_chunks(step, job, template)
        with states.storage.reading(layer.key, Part.BUFFERS) as before:
            entry = self._staged(before.buffers)
        job.entry_buffers[step.layer] = entry
        for index, earlier in enumerate(job.layers[: step.layer]):
            if earlier.key == layer.key:  # it changed nothing there, so that nothing was noted
                job.entry_buffers.setdefault(index, entry)
        states.store_buffers(layer.key, after, template.buffer_layout)

    def _after_all_chunks(self, step: Step, job: PlanJob, template: Template) -> Tensor:
        """The buffers of a template after a forward, with those of all chunks and ranks; see [Note: statistics]."""
        statistics, exchange = template.statistics, job.states.server.exchange
        if statistics is None or job.chunks is None or job.chunks.is_single:
            return template.buffers
        own = torch.stack(statistics.ends).cpu()
        every = own.new_empty(exchange.size, *own.shape)
        exchange.all_gather(own, every, Channel.SEND, job.layers[step.layer].key)
        place = where(job.layers[step.layer], self.bank.pool)
        return statistics.combined(list(every.flatten(0, 1)), job.chunks.sizes, place)

    def _staged(self, buffers: Tensor) -> Tensor:
        """A copy of buffers on the host, where the device copies from without a detour."""
        return self.device.allocate_host(buffers.numel())[: buffers.numel()].copy_(buffers)

    def _send(self, step: Step, job: TrainJob) -> None:
        job.require_finite_loss()
        layer = job.layers[step.layer]
        template, server = self.bank.template(layer, step.slot), job.states.server
        for number, state in enumerate(layer.states):
            if server.layout(state).is_trainable:
                block, has_grad = template.gradients[number], template.has_grad(number)
                if job.chunks is not None and job.chunks.is_idle:
                    block.memory.zero_()
                    has_grad = [False] * len(has_grad)
                server.gradients.add(
                    state,
                    block,
                    has_grad,
                    lr=job.lr,
                    step=job.number,
                    stays=not template.has_gradients_in_slot(number),
                    allocate=self.device.host_allocator,
                )
        template.bind((), [None] * len(layer.states))  # so that blocks of the inbox can be freed

    def _frame(self, step: Step, job: PlanJob) -> Frames:
        assert isinstance(job, TrainJob)
        return job.arena.ring[step.frames[0]][job.path.value(step.value)]

    def _move(self, step: Step, job: TrainJob) -> None:
        """Copy a spilled value between its frame and the host."""
        source, target = self._frame(step, job), job.arena.host[job.path.value(step.value)]
        if step.op is Op.FETCH:
            source, target = target, source
        for from_batch, to_batch in zip(source, target, strict=True):
            for from_tensor, to_tensor in zip(from_batch, to_batch, strict=True):
                to_tensor.copy_(from_tensor, non_blocking=True)

    def _check(self, step: Step, job: TrainJob) -> None:
        losses = job.require_finite_loss()
        order: dict[tuple[str, int], None] = {}
        for layer in job.layers[: job.depth]:
            for number, index in self.bank.parameter_order(layer):
                order[layer.states[number], index] = None
        inbox, states = job.states.server.gradients, job.states.storage
        job.check = inbox.check(
            list(order),
            states,
            clip=job.clip,
            is_scaled=self._dtype == torch.float16,
            is_loss_finite=not losses.bad,
        )
        if not job.check.is_refused:
            job.cancel.has_passed = True
            inbox.confirm(states)

    def _update(self, step: Step, job: TrainJob) -> None:
        if job.check is not None and job.check.is_refused:
            return
        state, inbox, states = job.path.state(step.state), job.states.server.gradients, job.states.storage
        if job.update is UpdateOrder.AHEAD and job.check is None:
            inbox.update_ahead(state, states, scale=job.scale)
            return
        try:
            inbox.update(state, states, checked=job.update is not UpdateOrder.EAGER, clip=job.clip)
        except NonFiniteError as error:
            raise NonFiniteError(
                error.what, layer=error.layer, step=error.step, updated=job.updated, is_own=error.is_own
            ) from None
        job.updated.append(state)

    def _visit(self, step: Step, job: PlanJob) -> None:
        slots = (step.slot, *step.tail)
        layers = job.layers[step.layer : step.layer + len(slots)]
        templates = [self.bank.template(layer, slot) for layer, slot in zip(layers, slots, strict=True)]
        if step.op in (Op.FORWARD, Op.BACKWARD, Op.ENTER):
            self._bind(step, job, templates[0])
        versions = [template.weights_version for template in templates]
        job.at = step.layer
        try:
            # the caller may be within `no_grad`, and a training would leave all weights as they are
            with torch.set_grad_enabled(isinstance(job, TrainJob)):
                self._compute(step, job, templates[0])
                refuse_gradient_mode(is_training=isinstance(job, TrainJob))
        except BaseException as error:
            raise_named(error, job.layers[: job.depth], job.at, self.bank.pool, self._dtype)
        for layer, template, version in zip(layers, templates, versions, strict=True):
            refuse_changes(layer, template, version, self.bank.pool)

    @staticmethod
    def _bind(step: Step, job: PlanJob, template: Template) -> None:
        """Have a template compute on what its slot was loaded with."""
        if isinstance(job, TrainJob):
            template.have_gradients()
        tail = job.tail
        # a repeated layer of the tail enters again, with the gradients of its first place
        begins = step.op is Op.BACKWARD or (step.op is Op.ENTER and (tail is None or template not in tail.templates))
        gradients = [job.states.allocate_gradients(state) for state in template.opened] if begins else None
        template.bind([state.weights for state in template.opened], gradients)

    def _compute(self, step: Step, job: PlanJob, template: Template) -> None:
        place = step.layer
        if isinstance(job, ForwardJob):
            job.visit(place, template)
            return
        assert isinstance(job, TrainJob)
        match step.op:
            case Op.FORWARD:
                ring, own = iter(step.frames), job.arena.own
                names = job.flow.writes[place]
                frames = {n: job.arena.ring[next(ring)][n] if n in job.spilled else own[n] for n in names}
                self._visits.forward(job, place, template, frames)
            case Op.TAIL:
                self._visits.tail(job, job.batch.objective, job.batch.targets, job.batch.count)
            case Op.ENTER:
                self._visits.enter(job, place, template)
            case Op.LEAVE:
                self._visits.leave(job, place, template)
            case _:
                self._visits.backward(job, place, template)

    _WORK: ClassVar[Mapping[Op, Callable[[PlanExecutor, Step, Any], None]]] = {
        Op.LOAD: _load,
        Op.SAVE: _save,
        Op.SEND: _send,
        Op.STORE: _move,
        Op.FETCH: _move,
        Op.CHECK: _check,
        Op.UPDATE: _update,
        **dict.fromkeys(VISITS, _visit),
    }
