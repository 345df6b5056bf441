"""The relay: streams a path's layers through the slots, each over all micro-batches before the next one comes.

Layer-major order, stash and recompute: L2L (arXiv 2002.05645). What is done when stands in the plan; here is only how.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import DataError, NonFiniteError, SettingError, SpaceError
from l2l_nas.relay.device import Device, stream_seed
from l2l_nas.relay.interface import Batch, Objective, StepResult, cut_sizes
from l2l_nas.relay.plan import Op, PathLayer, Step, UpdatePolicy, plan_forward, plan_training
from l2l_nas.relay.slots import SlotBank, Template
from l2l_nas.relay.stash import DeviceStash
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.candidate import TensorSpec
from l2l_nas.space.pool import Layer, LayerPool
from l2l_nas.space.shapes import Specs, as_tuple, check_shapes, describe


@dataclass
class _Pass:
    """What one run of a plan carries from step to step.

    Attributes:
        layers: the path.
        activations: inputs of each layer of the path, by micro-batch; one more entry takes the outputs.
        lowest: the first layer that learns; those before it need no gradient of their outputs.
        gradients: of the outputs of the layer whose backward is next, by micro-batch.
        entry_buffers: for each layer, its buffers as its forward found them.
    """

    layers: tuple[Layer, ...]
    activations: list[list[Batch]]
    seeds: Callable[[int, int], int]
    lowest: int = 0
    gradients: list[Batch | tuple[None, ...]] = field(default_factory=list)
    entry_buffers: dict[int, Tensor] = field(default_factory=dict)
    loss: Tensor | None = None


class Relay:
    """Runs any architecture of a pool in a fixed amount of device memory.

    Args:
        server: the host side; `use` changes to another one of the same pool.
        slots: number of slots: 2 holds the running layer and the next.
        update: when the host updates layers.
        device: "auto", "cpu", "cuda" or "cuda:N".
        seed: of dropout's random numbers.

    Raises:
        SpaceError: a candidate that cannot be built, or whose shapes disagree.
        SettingError: no slots, no such update policy, or no such device.
    """

    def __init__(
        self,
        server: ParamServer,
        *,
        slots: int = 2,
        update: UpdatePolicy | str = UpdatePolicy.EAGER,
        device: str = "auto",
        seed: int = 0,
    ) -> None:
        self.server = server
        self.device = Device(device)
        self.pool: LayerPool = server.pool
        self.boundaries: tuple[Specs, ...] = check_shapes(self.pool)
        try:
            self.update = UpdatePolicy(update)
        except ValueError:
            raise SettingError(f"update must be one of {', '.join(UpdatePolicy)}, got {update!r}") from None
        self.seed = seed
        plan_forward([PathLayer("")], slots=slots)  # refuses a bad number of slots before memory is taken
        self.num_slots = slots
        self.bank = SlotBank(self.pool, slots=slots, device=self.device)
        self.stash = DeviceStash(self.boundaries, self.device)

    def use(self, server: ParamServer) -> None:
        """Take layers from another server of the same pool from now on, such as a fork."""
        assert server.pool is self.pool
        self.server = server

    def path(self, architecture: Architecture) -> tuple[PathLayer, ...]:
        """An architecture's path, as plans see it."""
        return tuple(self._about(layer) for layer in self.pool.path(architecture))

    def _about(self, layer: Layer) -> PathLayer:
        trainable = (state for state in layer.states if any(e.trainable for e in self.server.layout(state).parameters))
        return PathLayer(layer.key, tuple(trainable), bool(self.server.layout(layer.key).buffers))

    def train_step(
        self,
        architecture: Architecture,
        inputs: Batch,
        targets: Tensor,
        *,
        objective: Objective,
        micro_batch: int,
        lr: float,
        step: int,
    ) -> StepResult:
        """See `Executor.train_step`."""
        sizes = self._sizes(inputs, micro_batch, targets)
        path = self.path(architecture)
        plan = plan_training(path, slots=self.num_slots, update=self.update)
        layers = self.pool.path(architecture)
        stash = self.stash.cut(sizes)
        run = _Pass(
            layers=layers,
            activations=[stash[layer.position] for layer in layers],
            seeds=lambda position, batch: stream_seed(self.seed, step, position, batch),
            lowest=min((index for index, about in enumerate(path) if about.trainable), default=len(path)),
        )
        _fill(run.activations[0], inputs, sizes)
        batches = [self.device.put(part) for part in targets.split(list(sizes))]
        count = sum(objective.count(part) for part in batches)
        if count < 1:
            raise DataError("a mini-batch has no targets to learn from")
        with self.device.preserved_generators():
            try:
                for move in plan:
                    self._train(move, run, objective, batches, count, lr=lr, step=step)
            except BaseException:
                self._abandon(run)
                raise
        assert run.loss is not None
        return StepResult(float(run.loss), count)

    def predict(self, architecture: Architecture, inputs: Batch, *, micro_batch: int) -> Batch:
        """See `Executor.predict`."""
        sizes = self._sizes(inputs, micro_batch)
        run = self._forward_pass(architecture, list(_cut(inputs, sizes)))
        with torch.no_grad():
            for move in plan_forward(self.path(architecture), slots=self.num_slots):
                self._predict(move, run)
        return tuple(torch.cat(parts).cpu() for parts in zip(*run.activations[-1], strict=True))

    def recalibrate(self, architecture: Architecture, batches: Sequence[Batch]) -> None:
        """See `Executor.recalibrate`. Layer-major order makes this one pass, whatever the number of batches."""
        if not batches:
            raise DataError("a recalibration needs at least one batch, got 0")
        run = self._forward_pass(architecture, list(batches))
        plan = plan_forward(self.path(architecture), slots=self.num_slots, saves_buffers=True)
        started: set[str] = set()
        with torch.no_grad():
            for move in plan:
                if move.op is Op.SAVE:
                    self._save(move, run)
                    continue
                layer = run.layers[move.layer]
                norms: list[_BatchNorm] = []
                if move.op is Op.FORWARD:
                    module = self.bank.template(layer, move.slot).module
                    norms = [part for part in module.modules() if isinstance(part, _BatchNorm)]
                momenta = [norm.momentum for norm in norms]
                for norm in norms:
                    norm.momentum = None  # torch's way to say: the plain average over all batches
                    if layer.key not in started:
                        norm.reset_running_stats()
                if move.op is Op.FORWARD:
                    started.add(layer.key)
                try:
                    self._predict(move, run, training=tuple(norms))
                finally:
                    for norm, momentum in zip(norms, momenta, strict=True):
                        norm.momentum = momentum

    def _forward_pass(self, architecture: Architecture, batches: list[Batch]) -> _Pass:
        layers = self.pool.path(architecture)
        moved = [tuple(self.device.put(tensor) for tensor in batch) for batch in batches]
        return _Pass(layers=layers, activations=[moved], seeds=lambda position, batch: 0)

    def _sizes(self, inputs: Batch, micro_batch: int, *others: Tensor) -> tuple[int, ...]:
        got = tuple(TensorSpec.of(tensor) for tensor in inputs)
        if got != self.pool.inputs:
            takes = describe(self.pool.inputs)
            raise DataError(f"the data gives inputs {describe(got)}, the search space takes {takes}")
        lengths = [len(tensor) for tensor in (*inputs, *others)]
        if len(set(lengths)) > 1:
            raise DataError(f"inputs and targets differ in their number of samples: {lengths}")
        return cut_sizes(lengths[0], micro_batch)

    def _train(
        self,
        move: Step,
        run: _Pass,
        objective: Objective,
        targets: Sequence[Tensor],
        count: int,
        *,
        lr: float,
        step: int,
    ) -> None:
        """Do one step of a training plan."""
        match move.op:
            case Op.LOAD:
                self._load(move, run)
            case Op.FORWARD:
                self._forward(move, run)
            case Op.TURN:
                self._turn(move, run, objective, targets, count)
                if not math.isfinite(float(run.loss)):  # type: ignore[arg-type]
                    raise NonFiniteError("loss", layer=None, step=step)
            case Op.BACKWARD:
                self._backward(move, run)
            case Op.SAVE:
                self._save(move, run)
            case Op.SEND:
                layer = run.layers[move.layer]
                template = self.bank.template(layer, move.slot)
                for index, state in enumerate(layer.states):
                    if any(entry.trainable for entry in self.server.layout(state).parameters):
                        self.server.contribute(state, template.gradient_block(index), template.touched(index))
            case Op.UPDATE:
                if self.update is UpdatePolicy.SERIAL:
                    self.server.check_pending(step=step)  # a refused step changes nothing at all
                self.server.update(move.state, lr=lr, step=step)
            case Op.FREE:
                pass

    def _load(self, move: Step, run: _Pass) -> None:
        layer = run.layers[move.layer]
        template = self.bank.template(layer, move.slot)
        weights = self.bank.slots[move.slot].weights
        for state, segment in zip(layer.states, template.segments, strict=True):
            weights[segment.weights].copy_(self.server.state(state).weights)
        template.buffers.copy_(self.server.state(layer.key).buffers)

    def _forward(self, move: Step, run: _Pass) -> None:
        """All micro-batches through one layer, keeping only inputs."""
        layer = run.layers[move.layer]
        template = self._enter(move, run)
        inputs, outputs = run.activations[move.layer], run.activations[move.layer + 1]
        # With a graph, though it is dropped: without one, some layers (LSTM) take other kernels, whose results differ
        # in the last bit from what the backward will compute again.
        for index, batch in enumerate(inputs):
            self.device.seed(run.seeds(layer.position, index))
            for room, tensor in zip(outputs[index], as_tuple(template.module(*batch)), strict=True):
                room.copy_(tensor.detach())

    def _turn(self, move: Step, run: _Pass, objective: Objective, targets: Sequence[Tensor], count: int) -> None:
        """The last layer: forward, loss and backward of one micro-batch after the other."""
        layer = run.layers[move.layer]
        template = self._enter(move, run)
        template.zero_gradients()
        needed = move.layer > run.lowest
        total = None
        for index, batch in enumerate(run.activations[move.layer]):
            self.device.seed(run.seeds(layer.position, index))
            leaves = _leaves(batch, needed)
            loss = objective.loss(as_tuple(template.module(*leaves)), targets[index]) / count
            total = loss.detach() if total is None else total + loss.detach()
            if loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call]
            run.gradients.append(tuple(leaf.grad for leaf in leaves))  # type: ignore[arg-type]
        run.loss = total

    def _backward(self, move: Step, run: _Pass) -> None:
        """Run the layer again on each micro-batch, now with a graph, and go back through it."""
        layer = run.layers[move.layer]
        template = self.bank.template(layer, move.slot)
        template.module.train()
        if move.layer in run.entry_buffers:
            template.buffers.copy_(run.entry_buffers[move.layer])
        template.zero_gradients()
        needed = move.layer > run.lowest
        for index, batch in enumerate(run.activations[move.layer]):
            self.device.seed(run.seeds(layer.position, index))
            leaves = _leaves(batch, needed)
            outputs = as_tuple(template.module(*leaves))
            pairs = [
                (output, gradient)
                for output, gradient in zip(outputs, run.gradients[index], strict=True)
                if gradient is not None and output.requires_grad
            ]
            if pairs:
                torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])
            run.gradients[index] = tuple(leaf.grad for leaf in leaves)  # type: ignore[assignment]

    def _enter(self, move: Step, run: _Pass) -> Template:
        """Ready a template for a forward in training mode; remember the buffers it starts from."""
        layer = run.layers[move.layer]
        template = self.bank.template(layer, move.slot)
        template.module.train()
        if template.buffers.numel():
            run.entry_buffers[move.layer] = template.buffers.clone()
        return template

    def _save(self, move: Step, run: _Pass) -> None:
        layer = run.layers[move.layer]
        template = self.bank.template(layer, move.slot)
        for name in template.rebind_buffers():
            raise SpaceError(
                f"its forward replaces the buffer '{name}'; change it in place: self.{name}.copy_(...)",
                position=self.pool.positions[layer.position].name,
                candidate=layer.candidate.name,
            )
        self.server.state(layer.key).store_buffers(template.buffers)

    def _predict(self, move: Step, run: _Pass, *, training: Iterable[nn.Module] = ()) -> None:
        """Do one step of a forward plan, in evaluation mode but for the modules in `training`."""
        if move.op is Op.LOAD:
            self._load(move, run)
        elif move.op is Op.FORWARD:
            module = self.bank.template(run.layers[move.layer], move.slot).module
            module.eval()
            for part in training:
                part.train()
            run.activations[-1] = [self._kept(as_tuple(module(*batch))) for batch in run.activations[-1]]

    def _kept(self, outputs: Batch) -> Batch:
        """Outputs that outlive their slot: a layer may return a view of a weight or buffer, such as a mask."""
        blocks = {block.untyped_storage().data_ptr() for s in self.bank.slots for block in (s.weights, s.buffers)}
        return tuple(t.clone() if t.untyped_storage().data_ptr() in blocks else t for t in outputs)

    def _abandon(self, run: _Pass) -> None:
        """After a refused step: forget gradients that were not applied, and put buffers back."""
        self.server.discard_pending()
        for index, buffers in reversed(run.entry_buffers.items()):
            self.server.state(run.layers[index].key).store_buffers(buffers)


def _cut(inputs: Batch, sizes: Sequence[int]) -> Iterable[Batch]:
    return zip(*(tensor.split(list(sizes)) for tensor in inputs), strict=True)


def _fill(rooms: Sequence[Batch], inputs: Batch, sizes: Sequence[int]) -> None:
    for room, batch in zip(rooms, _cut(inputs, sizes), strict=True):
        for target, tensor in zip(room, batch, strict=True):
            target.copy_(tensor)


def _leaves(batch: Batch, needed: bool) -> Batch:
    """Inputs as leaves of a new graph; integers such as token numbers have no gradient."""
    return tuple(tensor.detach().requires_grad_(needed and tensor.is_floating_point()) for tensor in batch)
