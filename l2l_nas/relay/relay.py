"""The relay: streams a path's layers through the slots, each over all micro-batches before the next one comes.

Layer-major order, stash and recompute: L2L (arXiv 2002.05645). What is done when stands in the plan.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from l2l_nas.arguments import check_count, check_kind, check_list, check_seed, check_whole, shown
from l2l_nas.eps.inbox import GradientCheck
from l2l_nas.eps.scale import Clip, LossScale
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.storage import RamStorage
from l2l_nas.eps.wire import WireMemory
from l2l_nas.errors import DataError, SettingError, did_you_mean, user_code
from l2l_nas.relay.access import StateAccess
from l2l_nas.relay.calls import Layers, alone, calls_of, refuse_modes
from l2l_nas.relay.device import Device, open_device, stream_seed
from l2l_nas.relay.device_states import DeviceStates, fitting
from l2l_nas.relay.evaluation import Evaluation, about, cut_batch, expect
from l2l_nas.relay.executor import PlanExecutor, StepJob
from l2l_nas.relay.extend import Caches
from l2l_nas.relay.held import HeldStep, HeldSteps
from l2l_nas.relay.held_path import HeldPath
from l2l_nas.relay.interface import (
    Batch,
    Objective,
    Reduce,
    StepResult,
    Targets,
    as_batch,
    as_targets,
    bytes_of,
    check_objective,
    check_rate,
    checked_sizes,
    cut_sizes,
    cut_targets,
    each,
    shares,
)
from l2l_nas.relay.lanes import Lanes
from l2l_nas.relay.path import NumberedPath, PathLayer, numbered
from l2l_nas.relay.plan import Carry, UpdateOrder, UpdatePolicy
from l2l_nas.relay.planner import plan_training
from l2l_nas.relay.population import prefixes
from l2l_nas.relay.residency import STASHES, Budget, Residency, Wanted, check_budget, decide
from l2l_nas.relay.slots import EagerCalls, SlotBank
from l2l_nas.relay.stash import Stash
from l2l_nas.relay.stress import Stress
from l2l_nas.relay.trace import Trace
from l2l_nas.relay.visits import Run
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import Layer, LayerPool
from l2l_nas.space.shapes import check_shapes, refuse_lone_sample

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LANES = ("auto", "threads", "inline")
_PATHS = 256  # that are remembered as plans see them
_CALM = 4  # steps in a row without clipping, after which updates run ahead again


class Relay:
    """Runs any architecture of a pool in a fixed amount of device memory.

    Args:
        server: the host side; `use` changes to another one of the same pool.
        slots: number of slots: 2 holds the running layer and the next. More than a path can use are not made.
        update: what updates go by: "eager", each layer's own gradient; or "exact", the whole gradient, which a clip by
            global norm and fp16 need.
        clip: scales gradients down; by global norm not with "eager".
        precision: of weights and activations on the device: "fp32", "bf16", or "fp16" with a dynamic loss scale.
            Master weights, moments and sums of gradients are float32 in any case.
        stash: where values wait for the backward: "device", "host" (the device's memory then does not grow with the
            depth of a chain).
        keep: how many of the last layers stay on the device and are not recomputed, where there is no budget.
        device_budget: bytes of device memory to use; what is left after the least is used to keep layers and stash.
            "all" keeps everything, "auto" what half of the free memory holds; None what `slots` and `keep` say.
        resident: bytes of device memory for states that live there, moments included, and are updated there; "all" for
            the states of every path, "auto" for those with `device_budget="all"`, None for none. Not where processes
            share states. On a CPU they are where layers compute in any case.
        pinned: "all" to store weights on the host as they cross the link; None to round them for each load, into a
            block that is used again. See `eps/wire.py`.
        lanes: "threads" for copies and updates beside the layers, "inline" for in between; "auto": threads, but on a
            CPU, where they would take the cores from the layers, unless they wait for a disk.
        layers: how they run: "eager", "compile" (`torch.compile`, one graph for each kind; or a backend of it), or
            "graphs": CUDA graphs for each kind, slot and mode, where the device has them. See `relay/graphs.py`.
        device: "auto", "cpu", "cuda" or "cuda:N"; or a device, such as torch's.
        seed: of dropout's random numbers.
        stress: disturbs the lanes, for tests.
        trace: records what each lane does.
        sharers: relays, this one among them, that fill the same device memory with `device_budget="auto"`.

    Raises:
        SpaceError: a candidate that cannot be built, or whose shapes disagree.
        SettingError: a setting that makes no sense, or no such device.
    """

    def __init__(
        self,
        server: ParamServer,
        *,
        slots: int = 2,
        update: UpdatePolicy | UpdateOrder | str = UpdatePolicy.EAGER,
        clip: Clip | None = None,
        precision: str = "fp32",
        stash: str = "device",
        keep: int = 1,
        device_budget: Budget = None,
        resident: Budget = "auto",
        pinned: Literal["all"] | None = "all",
        lanes: str = "auto",
        layers: Layers = "eager",
        device: str | torch.device | Device = "auto",
        seed: int = 0,
        stress: Stress | None = None,
        trace: Trace | None = None,
        sharers: int = 1,
    ) -> None:
        _check_kinds(server, clip=clip, stress=stress, trace=trace)
        for name, budget in (("device_budget", device_budget), ("resident", resident)):
            check_budget(name, budget)
        check_count("sharers", sharers, least=1)
        depth = len(server.pool.positions)  # of the longest path; behind it comes the first layer of the next one
        slots = min(check_count("slots", slots, least=1), depth + 1)
        keep = min(check_count("keep", keep, least=1), depth)
        # tests say in which order exact updates are done
        self.order = update if isinstance(update, UpdateOrder) else None
        self.update = _policy(update)
        dtype = PRECISIONS[_one_of("precision", precision, tuple(PRECISIONS))]
        if stash == "auto":
            raise SettingError("stash=auto is gone; take stash=host, which hides behind the layers, or device")
        _one_of("stash", stash, STASHES)
        if pinned not in ("all", None):
            raise SettingError(f"pinned takes all or none, and no number of bytes any more; got {shown(pinned)}")
        _one_of("lanes", lanes, LANES)
        self.clip = clip
        self._refuse_eager_with(precision)
        self.device = found = open_device(device)
        self._wanted = Wanted(slots, keep, stash, device_budget, lambda: found.free_bytes() // sharers)
        self.pool: LayerPool = server.pool
        self.shapes = check_shapes(self.pool, device=self.device.torch_device)
        self.precision = precision
        self.seed = check_seed(seed)
        self.trace = trace
        self.put_back = 0  # steps whose updates ahead were put back
        self._calm = _CALM
        self._at_work = threading.Lock()
        self._residencies: dict[tuple[int, ...], Residency] = {}
        calls = calls_of(layers, self.device, is_chain=self.pool.wiring.is_chain)
        self.bank = SlotBank(self.pool, slots=slots, device=self.device, dtype=dtype, calls=calls)
        self.stash = Stash(self.pool, self.device, dtype)
        waits = self.device.torch_device.type != "cpu" or not server.storage.is_lasting
        is_beside = lanes == "threads" or (lanes == "auto" and waits)
        self.lanes = Lanes(self.device, threads=is_beside, stress=stress, trace=trace)
        self.wire = WireMemory(self.device.host_allocator, stores=pinned is not None)
        self._held: HeldSteps | None = None
        is_plain = isinstance(calls, EagerCalls) and stress is None and not is_beside
        if is_plain and self.device.shares_memory and dtype == torch.float32:
            self._held = HeldSteps(self.pool, self.bank, self.stash.specs, self.device, seed=self.seed, trace=trace)
        self._executor = PlanExecutor(self.device, self.bank, self.lanes, dtype=dtype, stress=stress)
        self._passes = Evaluation(
            self.pool, bank=self.bank, stash=self.stash, executor=self._executor, device=self.device, held=self._held
        )
        self._left: tuple[str | None, ...] | None = None  # what the last step left in slots; None: nothing was left
        self._paths: dict[tuple[Architecture, str], NumberedPath] = {}
        if resident == "auto":
            resident = "all" if device_budget == "all" else None
        self.resident: int | Literal["all"] = resident or 0
        self._device_states: DeviceStates | None = None
        if self.resident and not self.device.shares_memory:
            budget = None if self.resident == "all" else self.resident
            self._device_states = DeviceStates(server, self.device, dtype, budget=budget)
        self._copies = stress is not None  # what is disturbed is copied: poison would not reach masters
        self._serve(server)

    def _refuse_eager_with(self, precision: str) -> None:
        if self.update is not UpdatePolicy.EAGER:
            return
        if self.clip is not None and self.clip.scope == "global":
            raise SettingError(
                "eager updates cannot wait for the norm of all gradients; use update=exact, or clip per layer"
            )
        if precision == "fp16":
            raise SettingError(
                "with fp16 a step is refused when any gradient overflows, which eager updates cannot know; "
                "use update=exact"
            )

    def _serve(self, server: ParamServer) -> None:
        self.server = server
        if self.precision == "fp32" and self.wire.is_pinned:
            server.pin_masters(self.wire)
        self._states = StateAccess(
            server,
            self.device,
            dtype=PRECISIONS[self.precision],
            wire=self.wire,
            on_device=self._device_states,
            copies=self._copies,
        )
        if self.precision == "fp16" and server.loss_scale is None:
            server.loss_scale = LossScale()

    def use(self, server: ParamServer) -> None:
        """Take layers from another server of the same pool from now on, such as a fork."""
        check_kind("server", server, ParamServer, wanted="a ParamServer")
        if server.pool is not self.pool:
            raise SettingError("server: it is of another pool; a relay runs layers of one pool, so make another relay")
        self.drain()
        if server is self.server:
            return
        self.server.leave(self)
        if self._device_states is not None:
            self._device_states.serve(server)
        self.bank.unbind()
        if self._held is not None:
            self._held.release()
        self._serve(server)

    def drain(self) -> None:
        """Finish all updates under way, those that wait for the next step included.

        Raises:
            NonFiniteError: a gradient of the last step was not finite.
        """
        try:
            self._finish()
        finally:
            if self._device_states is not None:
                self._device_states.write_back()
            self._end_updates()

    def release(self) -> None:
        """Finish all updates under way, and hold no copy of a state on the device."""
        try:
            self._finish()
        finally:
            if self._device_states is not None:
                self._device_states.release()
            self._end_updates()

    def _finish(self) -> None:
        """Finish updates. What lives on the device may be newer than the host's."""
        left, self._left = self._left, None
        if left is None:
            return
        try:
            self._executor.drain()
        finally:
            self.server.gradients.discard(self._states.storage)
            self._end_updates()

    def _end_updates(self) -> None:
        """Nothing is under way; only what lives on the device may be newer than the host's."""
        if self._device_states is None or not self._device_states.is_changed:
            self.server.end_updates()

    def _pause(self) -> None:
        """Before anything else than a training step."""
        refuse_modes(self.device)
        self._finish()
        self.server.serve(self)
        self._refresh()

    def _refresh(self) -> None:
        """Have what was changed on the host come to the device again."""
        stale = [] if self._device_states is None else self._device_states.stale()
        if self._device_states is not None and stale:
            self._finish()  # an update may be on its way to it
            self._device_states.forget(stale)

    def _admit(self, states: Sequence[str]) -> None:
        """Have states live on the device that fit its budget; those of this step are used now."""
        if self._device_states is None or self.server.storage.is_shared:
            return
        self._refresh()
        coming, leaving = self._device_states.next_step(states)
        if coming or leaving:
            self._finish()
            self._device_states.move(coming, leaving)

    def close(self) -> None:
        """Finish updates and end the threads. A later call starts them again."""
        try:
            self.drain()
        finally:
            self.lanes.close()

    @property
    def device_bytes(self) -> int:
        """Device memory that it owns: slots, stash, and states that live there.

        Slots and stash are fixed after the first step of each shape, states once those that fit have come.
        """
        states = 0 if self._device_states is None else self._device_states.num_bytes
        return self.bank.num_bytes + self.stash.arena.numel() + states

    def path(self, architecture: Architecture) -> tuple[PathLayer, ...]:
        """An architecture's path, as plans see it."""
        layers = self.pool.path(architecture)
        flow = self.pool.flow(layers)
        own = {name for names in flow.writes[-1:] for name in names}
        # the last layer is where the loss is computed
        reads = [*flow.reads[:-1], *((*r, *(n for n in flow.outputs if n not in own)) for r in flow.reads[-1:])]
        return tuple(
            about(self.server, layer)._replace(reads=tuple(dict.fromkeys(taken)), writes=given)
            for layer, taken, given in zip(layers, reads, flow.writes, strict=True)
        )

    def numbered(self, architecture: Architecture, following: Sequence[Layer] = ()) -> NumberedPath:
        """An architecture's path as plans see it, with numbers; paths of before are remembered.

        Args:
            following: the first layer of the next path, if it is known.
        """
        key = (architecture, "".join(layer.key for layer in following))
        if key not in self._paths:
            if len(self._paths) == _PATHS:
                del self._paths[next(iter(self._paths))]
            upcoming = about(self.server, following[0]) if following else None
            self._paths[key] = numbered(self.path(architecture), upcoming)
        return self._paths[key]

    def residency(self, sizes: tuple[int, ...]) -> Residency:
        """What stays on the device, for micro-batches of these sizes.

        Raises:
            SettingError: the device budget is too small.
        """
        if sizes not in self._residencies:
            self._residencies[sizes] = decide(self.pool, self.bank, self.stash, sizes, self._wanted)
            self._have_slots(min(known.slots for known in self._residencies.values()))
        return self._residencies[sizes]

    def residents(self, architecture: Architecture) -> tuple[str, ...]:
        """States that live on a device with memory of its own while this architecture alone is trained."""
        states = dict.fromkeys(state for layer in self.pool.path(architecture) for state in layer.states)
        budget = math.inf if self.resident == "all" else self.resident
        return fitting(self.server, states, PRECISIONS[self.precision], budget) if budget else ()

    def _have_slots(self, count: int) -> None:
        """As many as the least of all sizes allows: what smaller micro-batches leave free, larger ones may need."""
        if count == len(self.bank.slots):
            return
        self.drain()
        self.bank.shrink(count)
        self.bank.grow(count)

    @alone
    def train_step(
        self,
        architecture: Architecture,
        inputs: Batch,
        targets: Targets,
        *,
        objective: Objective,
        micro_batch: int,
        lr: float,
        step: int,
        upcoming: Architecture | None = None,
    ) -> StepResult:
        """See `Executor.train_step`. Updates may be running when this returns; `drain` waits for them."""
        refuse_modes(self.device)
        check_rate(lr)
        check_whole("step", step)
        check_objective(objective)
        inputs, targets = as_batch(inputs), as_targets(targets)
        others = (targets,) if isinstance(targets, Tensor) else targets
        sizes = checked_sizes(self.pool.inputs, inputs, micro_batch, *others)
        parts = cut_targets(targets, sizes)
        with user_code("the task's count"):
            count = sum(objective.count(part) for part in parts)
        if not count > 0:
            raise DataError("a mini-batch has no targets to learn from")
        if 1 in sizes:
            refuse_lone_sample(self.pool, architecture, advice="choose sizes of micro-batches that leave no rest of 1")
        self.server.serve(self)
        if self._executor.has_failed:
            self.drain()
        residency = self.residency(sizes)
        held_path = self._held_path(architecture, residency)
        if held_path is not None:
            if upcoming is not None and upcoming != architecture:
                self.pool.path(upcoming)
            return self._held_step(held_path, inputs, parts, sizes, objective=objective, count=count, lr=lr, step=step)
        layers = self.pool.path(architecture)
        following = self.pool.path(upcoming)[:1] if upcoming is not None else ()
        self.server.prepare(state for layer in (*layers, *following) for state in layer.states)
        self._admit([state for layer in (*layers, *following) for state in layer.states])
        path = self.numbered(architecture, following)
        order = self._next_order()
        plan = plan_training(
            path.layers,
            slots=len(self.bank.slots),
            update=order,
            keep=residency.keep,
            spill=self.stash.spill(path.numbers_of(residency.spilled)),
            carry=self._taken_over(path),
            upcoming=path.upcoming,
        )
        expect(self._states, plan, (*layers, *following), path)
        cut = self.stash.cut(sizes, residency.spilled)
        scale = self.server.loss_scale
        run = Run(
            layers=(*layers, *following),
            depth=len(layers),
            flow=self.pool.flow(layers),
            specs=self.stash.specs,
            values={name: cut.own[name] for name in self.pool.sources},
            seeds=lambda position, batch: stream_seed(self.seed, step, position, batch),
            learning=path.learning,
            scale=scale.scale if scale is not None and self.precision == "fp16" else 1.0,
            spilled=residency.spilled,
            shares=shares(sizes),
        )
        for name, tensors in run.flow.by_input(inputs).items():
            _fill(run.values[name], each(tensors, self.device.put), sizes)
        job = StepJob(
            plan,
            run,
            self._states,
            path,
            step=step,
            lr=lr,
            objective=objective,
            targets=[each(part, self.device.put) for part in parts],
            count=count,
            cut=cut,
            update=order,
            clip=self.clip,
        )
        with self.device.preserved_generators():
            try:
                self._executor.carry_out(job)
            except BaseException:
                self._abandon(run)
                raise
        self._note(job.check, order)
        is_skipped = job.check is not None and job.check.is_refused
        # a layer loaded ahead may have buffers that are put back now
        left = [None if key is None or is_skipped else path.state(key) for key in plan.leaves.held]
        self._left = tuple(left)
        self.server.begin_updates(self)
        if is_skipped and not job.is_loss_finite:
            self._put_buffers_back(run)  # they have seen what overflowed
        assert run.loss is not None
        norm = job.check.norm if job.check else None
        return StepResult(job.loss, count, norm, is_skipped, job.auxiliary)

    def _held_path(self, architecture: Architecture, residency: Residency) -> HeldPath | None:
        """A path whose step waits for nothing, as all is held; None for others. See [Note: held]."""
        if self._held is None or residency.spilled or not isinstance(self.server.storage, RamStorage):
            return None
        if residency.keep < len(self.pool.positions) and residency.keep < len(self.pool.path(architecture)):
            return None
        path = self._held.path(architecture)
        return path if path.layers else None

    def _held_step(
        self,
        path: HeldPath,
        inputs: Batch,
        parts: Sequence[Targets],
        sizes: tuple[int, ...],
        *,
        objective: Objective,
        count: float,
        lr: float,
        step: int,
    ) -> StepResult:
        steps = self._held
        assert steps is not None
        if self._left is not None:
            self._finish()  # what a step of another kind left
        is_eager = self.update is UpdatePolicy.EAGER
        held = HeldStep(
            path,
            self.server,
            [path.flow.by_input(batch) for batch in steps.batches(inputs, sizes)],
            parts,
            shares(sizes),
            objective=objective,
            count=count,
            lr=lr,
            step=step,
            clip=self.clip,
            has_norm=not is_eager,
        )
        loss, auxiliary, check = steps.run(held)
        if is_eager:
            return StepResult(loss, count, auxiliary=auxiliary)
        self._note(check, UpdateOrder.CHECKED)
        return StepResult(loss, count, check.norm if check else None, auxiliary=auxiliary)

    @property
    def usual_order(self) -> UpdateOrder:
        """When steps update states while nothing is clipped."""
        storage = self.server.storage
        # files are for what memory does not hold, and what lives on the device is updated there in any case
        is_beside = self.lanes.is_beside and not self.device.shares_memory
        overlaps = is_beside and storage.is_lasting and not self.resident
        order = self.order or UpdateOrder.of(self.update, overlaps=overlaps)
        # to put back would undo what other processes did to a state meanwhile
        return UpdateOrder.CHECKED if order is UpdateOrder.AHEAD and storage.is_shared else order

    def _next_order(self) -> UpdateOrder:
        order = self.usual_order
        return UpdateOrder.CHECKED if order is UpdateOrder.AHEAD and self._calm < _CALM else order

    def _note(self, check: GradientCheck | None, order: UpdateOrder) -> None:
        """Remember whether running ahead pays."""
        if check is not None:
            was_needed = check.is_clipped or check.is_refused
            self.put_back += was_needed and order is UpdateOrder.AHEAD
            self._calm = 0 if was_needed else min(self._calm + 1, _CALM)

    def _taken_over(self, path: NumberedPath) -> Carry | None:
        """What the last plan left. Where an update may be running, all are waited for, so that few plans differ."""
        if self._left is None:
            return None
        held = path.slot_keys(self._left[: len(self.bank.slots)])
        return Carry(held, path.trainable if self._executor.is_updating else ())

    def _abandon(self, run: Run) -> None:
        """After a refused step: forget gradients that were not applied, and put buffers back."""
        self._left = None
        self.server.gradients.discard(self._states.storage)
        self._put_buffers_back(run)
        self._end_updates()

    def _put_buffers_back(self, run: Run) -> None:
        for index, buffers in reversed(run.entry_buffers.items()):
            self._states.store_buffers(run.layers[index].key, buffers)

    def predict(self, architecture: Architecture, inputs: Batch, *, micro_batch: int) -> Batch:
        """See `Executor.predict`."""
        return self.predict_population([architecture], inputs, micro_batch=micro_batch)[0]

    @alone
    def predict_population(
        self,
        architectures: Sequence[Architecture],
        inputs: Batch,
        *,
        micro_batch: int,
        max_bytes: int | None = None,
        reduce: Reduce | None = None,
    ) -> list[Batch]:
        """Outputs of many architectures in evaluation mode, on the host; each equals `predict`'s, bit for bit.

        One pass over a prefix tree of their paths: each distinct layer is loaded once, what architectures begin alike
        is computed once.

        Args:
            max_bytes: of activations that wait on the device; more architectures than that go in several passes.
            reduce: see `Executor.predict_population`.
        """
        inputs = as_batch(inputs)
        sizes = checked_sizes(self.pool.inputs, inputs, micro_batch)
        kinds = (Architecture, tuple, list)
        architectures = check_list("architectures", architectures, of=kinds, wanted="architectures")
        if max_bytes is not None:
            check_count("max_bytes", max_bytes)
        self._pause()
        most = (
            None if max_bytes is None else max_bytes // max(self.stash.size_bytes(n, sizes) for n in self.stash.places)
        )
        results: list[Batch] = [()] * len(architectures)
        for members, tree in self._passes.groups(architectures, most=most):
            outputs = self._passes.predict(self._states, tree, inputs, sizes, reduce=reduce)
            for member, batches in zip(members, outputs, strict=True):
                results[member] = batches
        return results

    @alone
    def extend(self, architecture: Architecture, inputs: Batch, caches: Caches, *, micro_batch: int) -> Batch:
        """See `Executor.extend`. Each layer is loaded once for all sequences; with stash="host" caches wait there."""
        self._pause()
        caches.on_host = self._wanted.where == "host"
        tree = prefixes(self.pool, [self.pool.path(architecture)])
        sizes = cut_sizes(len(inputs[0]), micro_batch)
        return self._passes.predict(self._states, tree, inputs, sizes, caches=caches)[0]

    @property
    def sample_bytes(self) -> int:
        """See `Executor.sample_bytes`; of whatever path, so that the cut into chunks does not depend on it."""
        return self.stash.waiting_bytes + bytes_of(self.shapes.outputs)

    @property
    def reduced_bytes(self) -> int:
        """See `Executor.reduced_bytes`."""
        return self.stash.waiting_inside_bytes

    @property
    def evaluation_bytes(self) -> int | None:
        """See `Executor.evaluation_bytes`: what a budget in bytes leaves beside the slots."""
        budget = self._wanted.budget
        return max(1, budget - self.bank.num_bytes) if isinstance(budget, int) else None

    @alone
    def recalibrate(self, architecture: Architecture, batches: Sequence[Batch]) -> None:
        """See `Executor.recalibrate`. Layer-major order makes this one pass for all batches that fit the budget."""
        batches = check_list("batches", batches, of=object, wanted="batches")
        if not batches:
            raise DataError("a recalibration needs at least one batch, got 0")
        batches = [as_batch(batch) for batch in batches]
        self._pause()
        started: set[str] = set()
        layers = self.pool.path(architecture)
        most, largest = self.evaluation_bytes, max(len(batch[0]) for batch in batches) * self.sample_bytes
        count = len(batches) if most is None else max(1, most // max(1, largest))
        for start in range(0, len(batches), count):
            self._passes.recalibrate(self._states, layers, batches[start : start + count], started)


def _fill(frames: Sequence[Batch], inputs: Batch, sizes: Sequence[int]) -> None:
    for frame, batch in zip(frames, cut_batch(inputs, sizes), strict=True):
        for target, tensor in zip(frame, batch, strict=True):
            target.copy_(tensor)


def _check_kinds(server: object, *, clip: object, stress: object, trace: object) -> None:
    own = "ParamServer(pool, optimizer=AdamW(), seed=0)"
    check_kind("server", server, ParamServer, wanted=f"a param-server, such as {own}")
    for name, value, kind, wanted in (
        ("clip", clip, Clip, "None or an l2l_nas.Clip, such as Clip(1.0)"),
        ("stress", stress, Stress, "None or a Stress"),
        ("trace", trace, Trace, "None or a Trace"),
    ):
        if value is not None:
            check_kind(name, value, kind, wanted=wanted)


def _policy(update: UpdatePolicy | UpdateOrder | str) -> UpdatePolicy:
    if isinstance(update, UpdateOrder):
        return UpdatePolicy.EAGER if update is UpdateOrder.EAGER else UpdatePolicy.EXACT
    if update in ("ahead", "serial"):
        raise SettingError(f"update: '{update}' is now 'exact', which chooses how it runs")
    return UpdatePolicy(_one_of("update", update, tuple(UpdatePolicy)))


def _one_of(name: str, value: str, known: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in known:
        raise SettingError(f"{name}: no {shown(value)}{did_you_mean(str(value), known)}")
    return value
