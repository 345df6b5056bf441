"""The relay: streams a path's layers through the slots, each over all micro-batches before the next one comes.

Layer-major order, stash and recompute: L2L (arXiv 2002.05645). What is done when stands in the plan.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from l2l_nas.arguments import check_count, check_function, check_kind, check_list, check_seed, of_argument
from l2l_nas.eps.agreement import Pass, all_reduce_min
from l2l_nas.eps.exchange import ObservedExchange
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.sums import check_chunks
from l2l_nas.eps.wire import WireMemory
from l2l_nas.errors import DataError, SettingError
from l2l_nas.relay.access import StateAccess
from l2l_nas.relay.bank import SlotBank
from l2l_nas.relay.buffers import refuse_used_twice
from l2l_nas.relay.calls import alone, calls_of, refuse_modes
from l2l_nas.relay.config import ExecutionConfig, MemoryConfig, PrecisionConfig, RelayConfig, UpdateConfig
from l2l_nas.relay.device import Device, open_device
from l2l_nas.relay.device_states import DeviceStates, state_bytes
from l2l_nas.relay.evaluation import Evaluation, about, cut_batch
from l2l_nas.relay.executor import PlanExecutor
from l2l_nas.relay.extend import Caches
from l2l_nas.relay.held import HeldSteps
from l2l_nas.relay.interface import (
    Batch,
    Cuts,
    Objective,
    Reduce,
    StepResult,
    Targets,
    as_batch,
    bytes_of,
    cut_sizes,
    cut_up,
    next_places,
    refuse_cuts,
    sample_numbers,
)
from l2l_nas.relay.lanes import Lanes
from l2l_nas.relay.memory import MemoryPlan, decide
from l2l_nas.relay.mini_batch import MiniBatch, StepShare
from l2l_nas.relay.passes import Passes, checksums_of
from l2l_nas.relay.path import NumberedPath, PathLayer, numbered
from l2l_nas.relay.plan import UpdateOrder, UpdatePolicy
from l2l_nas.relay.population import prefixes
from l2l_nas.relay.stash import Stash
from l2l_nas.relay.step import TrainingStep
from l2l_nas.space.architecture import Architecture, check_architectures
from l2l_nas.space.pool import Layer, LayerPool
from l2l_nas.space.shapes import check_shapes

_PATHS = 256  # that are remembered as plans see them
_LARGEST = 1 << 62  # bytes
_SAMPLES = 1 << 24  # of a mini-batch that ranks have parts of


class Relay:
    """Runs any architecture of a pool in a fixed amount of device memory.

    Args:
        server: the host side; `use` changes to another one of the same pool.
        memory: what lies on the device.
        precision: a `PrecisionConfig`, or "fp32", "bf16" or "fp16".
        update: an `UpdateConfig`, or what updates go by: "eager" or "exact".
        execution: how work is issued.
        device: "auto", "cpu", "cuda" or "cuda:N"; or a device, such as torch's.
        seed: of dropout's random numbers.
        settings: fields of the configs, each by its own name: `slots=3`, `clip=Clip(1.0)`.

    Raises:
        SpaceError: a candidate that cannot be built, or whose shapes disagree.
        SettingError: a setting that makes no sense, or no such device.
    """

    def __init__(
        self,
        server: ParamServer,
        *,
        memory: MemoryConfig | None = None,
        precision: PrecisionConfig | str = "fp32",
        update: UpdateConfig | UpdatePolicy | str = "eager",
        execution: ExecutionConfig | None = None,
        device: str | torch.device | Device = "auto",
        seed: int = 0,
        **settings: Any,
    ) -> None:
        wanted = "a param-server, such as ParamServer(pool, optimizer=AdamW(), seed=0)"
        check_kind("server", server, ParamServer, wanted=wanted)
        given = {"memory": memory, "execution": execution}
        settings |= {name: config for name, config in given.items() if config is not None}
        self.config = config = RelayConfig.of({"precision": precision, "update": update, **settings})
        self.device = open_device(device)
        self.pool: LayerPool = server.pool
        self._memory = config.memory
        self.shapes = check_shapes(self.pool, device=self.device.torch_device)
        self.seed = check_seed(seed)
        ranks = server.exchange.size
        is_ranked = server.world.size > 1
        self.chunks = ranks if config.parallel.chunks is None and is_ranked else config.parallel.chunks
        if self.chunks is not None:
            check_chunks(self.chunks, ranks)
        self.trace = config.execution.trace
        self.at_work = threading.Lock()
        self._memory_plans: dict[tuple[int, ...], MemoryPlan] = {}
        self._paths: dict[tuple[Architecture, str], NumberedPath] = {}
        self._build(server)

    def _build(self, server: ParamServer) -> None:
        self.server = server
        config, device, dtype = self.config, self.device, self.config.precision.dtype
        calls = calls_of(config.execution.layers, device, is_chain=self.pool.wiring.is_chain)
        self._takes_cuts = calls is None
        # of the longest path; behind it comes the first layer of the next one
        slots = min(self._memory.slots, len(self.pool.positions) + 1)
        ranks = server.exchange.size
        chunks = None if self.chunks is None else self.chunks // ranks
        self.bank = SlotBank(self.pool, slots=slots, device=device, dtype=dtype, calls=calls, chunks=chunks)
        self.stash = Stash(self.pool, device, dtype)
        waits = device.torch_device.type != "cpu" or not server.storage.is_lasting or ranks > 1
        lanes = config.execution.lanes
        is_beside = lanes == "threads" or (lanes == "auto" and waits)
        executor = self._executor(is_beside=is_beside)
        self.lanes = executor.lanes
        self.wire = WireMemory(device.host_allocator, stores=config.memory.pinned is not None)
        self._device_states: DeviceStates | None = None
        if not device.shares_memory and self.has_states_on_device:
            if server.world.size > 1:
                raise SettingError("resident: states of several ranks live on the host; take resident=None")
            self._device_states = DeviceStates(server, device, dtype)
        held: HeldSteps | None = None
        is_plain = calls is None and not is_beside and chunks is None
        if is_plain and device.shares_memory and dtype == torch.float32:
            held = HeldSteps(self.bank, self.stash.specs, device, seed=self.seed, trace=self.trace)
        self._evaluation = Evaluation(executor, self.stash, held=held)
        self._training = TrainingStep(executor, self.stash, self._access(server), config, seed=self.seed, held=held)
        # by which evaluations are cut
        self._waiting_bytes = [
            self.stash.waiting_bytes + bytes_of(self.shapes.outputs),
            self.stash.waiting_inside_bytes,
        ]
        if self._is_divided:
            least = self._passes.begin(Pass.BUILD, {}, [-size for size in self._waiting_bytes])
            self._waiting_bytes = [-size for size in least]

    def _executor(self, *, is_beside: bool) -> PlanExecutor:
        """What carries out plans, and its lanes."""
        lanes = Lanes(self.device, threads=is_beside, trace=self.trace)
        return PlanExecutor(self.device, self.bank, lanes, dtype=self.config.precision.dtype)

    def _access(self, server: ParamServer) -> StateAccess:
        self.server = server
        self._passes = Passes(server, self.config, seed=self.seed)
        if self.config.precision.precision == "fp32" and self.wire.is_pinned:
            server.pin_masters(self.wire)
        if self.config.precision.is_scaled:
            server.gradients.scale_losses()
        server.gradients.has_block_norms = self.chunks is not None
        self._trace_exchanges(is_on=True)
        return StateAccess(
            server,
            self.device,
            dtype=self.config.precision.dtype,
            wire=self.wire,
            on_device=self._device_states,
        )

    def _trace_exchanges(self, *, is_on: bool) -> None:
        note = self.lanes.note_exchange
        for exchange in (self.server.exchange, self.server.world):
            if self.trace is not None and isinstance(exchange, ObservedExchange):
                if note in exchange.observers:
                    exchange.observers.remove(note)
                if is_on:
                    exchange.observers.append(note)

    def reconfigure(self, **settings: Any) -> None:
        """Have predictions of costs assume other settings. It does not train with them."""
        self.config = RelayConfig.of({**vars(self.config), **settings})

    @property
    def precision(self) -> str:
        return self.config.precision.precision

    @property
    def update(self) -> UpdatePolicy:
        return self.config.update.policy

    @property
    def usual_order(self) -> UpdateOrder:
        """When steps update states while nothing is clipped."""
        return self._training.usual_order

    @property
    def put_back(self) -> int:
        """Steps whose updates ahead were put back."""
        return self._training.put_back

    def use(self, server: ParamServer) -> None:
        """Take layers from another server of the same pool from now on, such as a fork."""
        check_kind("server", server, ParamServer, wanted="a ParamServer")
        if server.pool is not self.pool:
            raise SettingError("server: it is of another pool; a relay runs layers of one pool, so make another relay")
        self.drain()
        self.server.drain()  # what another relay has under way
        if server is self.server:
            return
        self.server.leave(self._training)
        if self._device_states is not None:
            self._device_states.serve(server)
        self.bank.unbind()
        self._training.use(self._access(server))

    def drain(self) -> None:
        """Finish all updates under way; raises NonFiniteError where a gradient of the last step was not finite."""
        self._training.drain()

    def _pause(self) -> None:
        """Before anything else than a training step."""
        refuse_modes(self.device)
        self._training.finish()
        self.server.serve(self._training)
        self._training.refresh()

    def close(self) -> None:
        """Finish updates and end the threads. A later call starts them again."""
        try:
            self.drain()
        finally:
            self.lanes.close()
            self._trace_exchanges(is_on=False)

    @property
    def device_bytes(self) -> int:
        """Device memory that it owns: slots, stash and states. It is fixed after the first steps of each shape."""
        states = 0 if self._device_states is None else self._device_states.num_bytes
        return self.bank.num_bytes + self.stash.arena.numel() + states

    def path(self, architecture: Architecture) -> tuple[PathLayer, ...]:
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
        """An architecture's path as plans see it, with numbers; `following` is the first layer of the next path."""
        key = (Architecture.from_choices(architecture), "".join(layer.key for layer in following))
        if key not in self._paths:
            if len(self._paths) == _PATHS:
                del self._paths[next(iter(self._paths))]
            upcoming = about(self.server, following[0]) if following else None
            self._paths[key] = numbered(self.path(architecture), upcoming)
        return self._paths[key]

    def memory_plan(self, sizes: tuple[int, ...]) -> MemoryPlan:
        """What stays on the device when micro-batches of these sizes are trained. It asks, and changes nothing."""
        plan = self._memory_plans.get(sizes) or self._decided(sizes, self.device.free_bytes)
        # as many as the least of all sizes allows: what smaller micro-batches leave free, larger ones may need
        return replace(plan, slots=min([plan.slots, *(other.slots for other in self._memory_plans.values())]))

    def settle_memory(self, sizes: tuple[int, ...]) -> MemoryPlan:
        """Have the device be ready for micro-batches of these sizes, too; all ranks call it."""
        if sizes not in self._memory_plans:
            plan = self._decided(sizes, self._free_bytes)
            if self._is_divided:
                keep, slots = self._passes.begin(Pass.BUILD, {"sizes": sizes}, [plan.keep, plan.slots])
                plan = replace(plan, keep=keep, slots=slots)
            self._memory_plans[sizes] = plan
            if (slots := self.memory_plan(sizes).slots) != len(self.bank.slots):
                self.drain()
                self.bank.resize(slots)
        return self._memory_plans[sizes]

    def _decided(self, sizes: tuple[int, ...], free_bytes: Callable[[], int]) -> MemoryPlan:
        return decide(self.pool, self.bank, self.stash, sizes, self._memory, free_bytes)

    @property
    def _is_divided(self) -> bool:
        """Whether layers are divided among ranks, whose parts may differ in size."""
        return self.server.whole_pool is not self.pool

    def _free_bytes(self) -> int:
        """Device memory that is free on every rank."""
        return all_reduce_min(self.server.world, self.device.free_bytes(), "free device memory")

    @property
    def has_states_on_device(self) -> bool:
        """Whether states that are trained live on the device, if it has memory of its own."""
        memory = self.config.memory
        if memory.resident == "auto":
            is_alone = self.server.world.size == 1  # states of several ranks live on the host
            return memory.device_budget == "all" and is_alone and self._has_space_for_states
        return memory.resident == "all"

    @cached_property
    def _has_space_for_states(self) -> bool:
        """Whether those of the whole pool fit on the device, as it was when this was first asked."""
        dtype = self.config.precision.dtype
        needed = sum(state_bytes(self.server, key, dtype) for key in self.pool.states)
        return needed <= self.device.free_bytes()

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
        samples: Sequence[int] | Tensor | None = None,
        lengths: Sequence[int] | None = None,
    ) -> StepResult:
        """See `Executor.train_step`. Updates may be running when this returns; `drain` waits for them."""
        refuse_modes(self.device)
        refuse_cuts("lengths", lengths, are_taken=self._takes_cuts)
        numbers = None if samples is None else sample_numbers(samples)
        share = None if numbers is None else self._share(_sizes(len(numbers), micro_batch))
        about: dict[str, Any] = {"objective": objective, "micro_batch": micro_batch, "lr": lr, "step": step}
        batch = MiniBatch.of(self.pool, architecture, inputs, targets, **about, share=share, lengths=lengths)
        layers, following = self.pool.path(architecture), self._first_of(upcoming) if upcoming is not None else ()
        self.server.serve(self._training)
        self.server.gradients.has_block_norms = self.chunks is not None  # another relay may have asked for the other
        if self._passes.has_ranks:
            if compares := self._passes.compares_at(step):
                self.drain()
            values = {"step": step, "learning rate": lr, **self._training.facts}
            self._passes.begin_training(batch, numbers, (*layers, *following), values)
            if compares:
                self._passes.compare_replicas(layers)
        if share is not None:
            batch = batch.counted(share.counts(batch.counts))
        elif (share := self._share(batch.sizes)) is not None and self.server.world.size > 1:
            batch = batch.part(share.micro_batches)
        chunks, sizes = (None, batch.sizes) if share is None else (share.chunks, share.most_sizes)
        memory = self.settle_memory(sizes)
        if (held := self._training.held_path(architecture, memory)) is not None:
            return self._training.run_held(held, batch, lr=lr, step=step)
        if chunks is not None and not chunks.is_single:
            refuse_used_twice(self.pool, layers)
        path = self.numbered(architecture, following)
        layers = (*layers, *following)
        job = self._training.prepare(batch, path, layers, memory=memory, lr=lr, step=step, chunks=chunks)
        self._training.run(job)
        return self._training.settle(job)

    def _first_of(self, upcoming: Architecture) -> tuple[Layer, ...]:
        with of_argument("upcoming"):
            return self.pool.path(upcoming)[:1]

    def own_rows(self, samples: int, micro_batch: int) -> slice:
        """Which samples of a mini-batch of so many this rank computes."""
        share = self._share(_sizes(samples, micro_batch))
        return slice(0, samples) if share is None else share.rows

    def _share(self, sizes: tuple[int, ...]) -> StepShare | None:
        """What this rank does of a mini-batch; None where nothing is summed by chunks."""
        return None if self.chunks is None else StepShare.of(self.server.exchange, sizes, self.chunks)

    def predict(self, architecture: Architecture, inputs: Batch, *, micro_batch: int) -> Batch:
        return self.predict_population([Architecture.from_choices(architecture)], inputs, micro_batch=micro_batch)[0]

    @alone
    def predict_population(
        self,
        architectures: Sequence[Architecture],
        inputs: Batch,
        *,
        micro_batch: int,
        max_bytes: int | None = None,
        reduce: Reduce | None = None,
        cuts: Cuts | None = None,
    ) -> list[Batch]:
        """Outputs of many architectures in evaluation mode, on the host; each equals `predict`'s, bit for bit.

        One pass over a prefix tree of their paths: each distinct layer is loaded once, what architectures begin alike
        is computed once. What needs more than `max_bytes` goes in several passes.
        """
        refuse_cuts("cuts", cuts, are_taken=self._takes_cuts)
        cut = list(cut_up(self.pool.inputs, as_batch(inputs), micro_batch, cuts))
        if reduce is not None:
            check_function("reduce", reduce)
        architectures = check_architectures("architectures", architectures)
        minima = []
        if max_bytes is not None:
            sizes = tuple(len(batch[0]) for batch in cut)
            lengths = None if cuts is None else tuple(batch[0].shape[1] for batch in cut)
            largest = max(self.stash.size_bytes(name, sizes, lengths) for name in self.stash.places)
            # ranks may have micro-batches of other sizes, and make the same passes
            minima = [min(check_count("max_bytes", max_bytes), _LARGEST) // largest]
        self._pause()
        (most,) = self._passes.begin(Pass.PREDICT, {"architectures": architectures}, minima, inputs=cut) or (None,)
        results: list[Batch] = [()] * len(architectures)
        for members, tree in self._evaluation.groups(architectures, most=most):
            outputs = self._evaluation.predict(self._training.states, tree, cut, reduce=reduce)
            for member, batches in zip(members, outputs, strict=True):
                results[member] = batches
        return results

    @alone
    def extend(self, architecture: Architecture, inputs: Batch, caches: Caches, *, micro_batch: int) -> Batch:
        """See `Executor.extend`. Each layer is loaded once for all sequences; with stash="host" caches wait there."""
        check_kind("caches", caches, Caches, wanted="Caches")
        self._pause()
        caches.on_host = self._memory.stash == "host"
        tree = prefixes(self.pool, [self.pool.path(architecture)])
        inputs = next_places(self.pool.inputs, inputs)
        cut = list(cut_batch(inputs, cut_sizes(len(inputs[0]), micro_batch)))
        self._passes.begin(Pass.EXTEND, {"architecture": architecture}, inputs=cut)
        return self._evaluation.predict(self._training.states, tree, cut, caches=caches)[0]

    @property
    def takes_cuts(self) -> bool:
        """See `Executor.takes_cuts`; what is compiled or captured is for one length."""
        return self._takes_cuts

    @property
    def sample_bytes(self) -> int:
        """See `Executor.sample_bytes`; of whatever path, so that the cut into chunks does not depend on it."""
        return self._waiting_bytes[0]

    @property
    def reduced_bytes(self) -> int:
        return self._waiting_bytes[1]

    @property
    def evaluation_bytes(self) -> int | None:
        """See `Executor.evaluation_bytes`: what a budget in bytes leaves beside the slots."""
        budget = self._memory.device_budget
        return max(1, budget - self.bank.num_bytes) if isinstance(budget, int) else None

    @alone
    def recalibrate(self, architecture: Architecture, batches: Sequence[Batch]) -> None:
        """See `Executor.recalibrate`. Layer-major order makes this one pass for all batches that fit the budget."""
        batches = check_list("batches", batches, of=object, wanted="batches")
        if not batches:
            raise DataError("batches: recalibration needs at least one")
        batches = [as_batch(batch, f"batches[{number}]") for number, batch in enumerate(batches)]
        self._pause()
        started: set[str] = set()
        layers = self.pool.path(architecture)
        most, largest = self.evaluation_bytes, max(len(batch[0]) for batch in batches) * self.sample_bytes
        count = len(batches) if most is None else max(1, most // max(1, largest))
        if self._passes.has_ranks:
            about = {"architecture": architecture, "batches": checksums_of(batches)}
            self._passes.begin(Pass.RECALIBRATE, about)
        for start in range(0, len(batches), count):
            self._evaluation.recalibrate(self._training.states, layers, batches[start : start + count], started)


def _sizes(samples: int, micro_batch: int) -> tuple[int, ...]:
    return cut_sizes(check_count("samples", samples, least=1, most=_SAMPLES), micro_batch)
