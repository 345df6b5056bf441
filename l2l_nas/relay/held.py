"""A training step where everything is held: what a plain loop does, and no more.

[Note: held] Where layers compute on the master weights themselves, and the whole path fits the device with what its
backward needs, nothing is loaded, stored, sent or recomputed, and nothing overlaps. The plan of such a step would be
one `TAIL` over all layers, one `CHECK` of all gradients and one `UPDATE` of all states: the step does just these three,
in the caller's thread. Its result is that of a plan's execution to the last bit, whatever the update policy: values
flow between layers as the tail's do, and gradients are summed, checked and clipped in the same order.

Each layer has a template of its own here, bound to the states for as long as those stay. `.grad`s are autograd's own
tensors: what autograd leaves at None has no gradient, and the first micro-batch's gradient costs no addition.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

import torch
from torch import Tensor

from l2l_nas.eps.inbox import GradientCheck
from l2l_nas.eps.scale import Clip, are_finite, norms_of, total_norm
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import L2LError, LaneError, NonFiniteError
from l2l_nas.relay.bank import SlotBank
from l2l_nas.relay.buffers import BufferWatch, may_change
from l2l_nas.relay.device import Device, step_seeds
from l2l_nas.relay.held_path import HeldPath, memory_of
from l2l_nas.relay.interface import Batch
from l2l_nas.relay.lanes import Label
from l2l_nas.relay.losses import Losses, LossSums
from l2l_nas.relay.mini_batch import MiniBatch, shares
from l2l_nas.relay.population import PopulationPass
from l2l_nas.relay.refusals import raise_named, refuse_own_parameters, refuse_torch_change, where
from l2l_nas.relay.slots import Template
from l2l_nas.relay.trace import Trace
from l2l_nas.relay.visits import back_from, full, given_by, with_plain_gradients
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.candidate import Specs
from l2l_nas.space.losses import collect_losses, weighted
from l2l_nas.space.pool import Layer
from l2l_nas.space.randomness import preserved_generators
from l2l_nas.space.torch_state import GRADIENTS
from l2l_nas.space.values import Flow

_MOST_PATHS = 64  # that are remembered


@dataclass
class HeldStep:
    """What a step is to do, and what it found.

    Attributes:
        has_norm: whether the norm of all gradients is wanted.
        at: the place of the layer whose own code runs now, for errors; the path's depth for the loss.
    """

    path: HeldPath
    server: ParamServer
    batch: MiniBatch
    lr: float
    step: int
    clip: Clip | None
    has_norm: bool
    at: int | None = None
    losses: LossSums = field(default_factory=LossSums)


class HeldSteps:
    """Does the steps of paths that are held, on a device that shares the host's memory; see [Note: held]."""

    def __init__(
        self, bank: SlotBank, specs: Mapping[str, Specs], device: Device, *, seed: int, trace: Trace | None
    ) -> None:
        self._pool, self._bank, self._specs, self._device = bank.pool, bank, specs, device
        self._seed, self._trace = seed, trace
        self._paths: dict[object, HeldPath] = {}  # by choices; those of evaluations by layers
        self._bound: object = None  # which path is bound to which states, in which mode
        self._watches: dict[str, BufferWatch] = {}

    def path(self, architecture: Architecture) -> HeldPath:
        """Of an architecture; the latest are remembered."""
        choices = Architecture.from_choices(architecture).choices
        return self._latest(choices, lambda: self._pool.path(architecture))

    def _latest(self, key: object, layers: Callable[[], Sequence[Layer]], flow: Flow | None = None) -> HeldPath:
        found = self._paths.pop(key, None)
        if found is None:
            own = layers()
            found = HeldPath(own, self._pool.flow(own) if flow is None else flow, self._specs, self._bank)
            while len(self._paths) >= _MOST_PATHS:
                self._paths.pop(next(iter(self._paths)))
        self._paths[key] = found
        return found

    def release(self) -> None:
        """Refer to no state."""
        for path in self._paths.values():
            path.release()
        self._bank.unbind()
        self._bound = None

    def run(self, held: HeldStep) -> tuple[Losses, GradientCheck | None]:
        """Do a step: its losses, and what all gradients together say; None where nothing learns.

        Raises:
            NonFiniteError: the loss, an auxiliary loss or a gradient is not finite; nothing was changed.
            L2LError: what the user's code raised, or changed and may not.
        """
        path, server = held.path, held.server
        self._bind(path, server, is_training=True)
        try:
            with preserved_generators(self._device.torch_device), self._span("compute", "tail", held):
                self._compute(held)
            losses = held.losses.read(path.layers)
            losses.require_finite(held.step)
            changed = {number for number in path.with_buffers if self._has_new_buffers(path, number, server)}
            check = None
            if path.uses:
                gradients = path.gradients()
                with self._span("host", "check", held):
                    check, gradients = _check_gradients(held, gradients)
                with self._span("host", "update", held):
                    _apply_gradients(held, gradients)
            self._store_buffers(path, server, changed)
        except BaseException:
            self._forget(path)
            raise
        finally:
            for parameter in path.parameters:
                parameter.grad = None
        return losses, check

    def visit(self, server: ParamServer, tree: PopulationPass, do: Callable[[int, Template], None]) -> None:
        """Do something with each layer of a pass where it lies, in evaluation."""
        key = tuple([(layer.position, layer.key) for layer in tree.layers])
        held = self._latest(key, lambda: tree.layers, Flow({}, (), (), ()))
        templates = dict(zip((layer.key for layer in held.owners), held.templates, strict=True))
        self._bind(held, server, is_training=False)
        versions, at = held.versions, 0
        try:
            with torch.no_grad():
                for at, layer in enumerate(held.layers):
                    do(at, templates[layer.key])
            held.refuse_changes(self._pool, versions)
        except BaseException as error:
            self._forget(held)
            raise_named(error, held.layers, at, self._pool, torch.float32)
        finally:
            for number in held.with_buffers:
                held.templates[number].buffers_version = None

    def _bind(self, path: HeldPath, server: ParamServer, *, is_training: bool) -> None:
        """Have templates compute on the states of the server."""
        storage = memory_of(server)
        states = storage, storage.changes
        # a forward may have changed the mode of a module
        if self._bound != (path, states, is_training) or path.has_other_modes:
            path.bind(server, states, is_training=is_training)
            self._bound = path, states, is_training
        for number in path.with_buffers:
            template, state = path.templates[number], storage.open(path.owners[number].key)
            if template.buffers_version == state.version:
                template.watch_buffers()
            else:
                template.load_buffers(state.buffers)
                template.buffers_version = state.version

    def _forget(self, path: HeldPath) -> None:
        """After an error: what a forward made of its module, or of buffers, is of no use."""
        for layer in path.owners:
            self._bank.forget(layer)
        self._paths.clear()
        self._bound = None

    def _span(self, lane: str, op: str, held: HeldStep) -> contextlib.AbstractContextManager[object]:
        """What is done inside, for a trace and for torch's profiler."""
        label = Label(op, held.path.layers[0].key if op == "tail" else "", held.step)
        return label.profiled() if self._trace is None else _recorded(self._trace, lane, label)

    def _compute(self, held: HeldStep) -> None:
        path, batch = held.path, held.batch
        parts = ([tensor.detach() for tensor in inputs] for inputs in batch.micro_batches())
        versions, last, count = path.versions, len(batch.sizes) - 1, 0
        try:
            with torch.enable_grad():
                for index, (inputs, share) in enumerate(zip(parts, shares(batch.sizes), strict=True)):
                    ends, loss = self._forward(held, index, tuple(map(_copied, inputs)), share)
                    if not torch.is_grad_enabled():
                        refuse_torch_change(self._pool, path.layers, GRADIENTS, None)
                    held.at = None
                    if index == 0 and path.versions != versions:
                        path.refuse_changes(self._pool, versions)
                    if loss.requires_grad:
                        ends.append((loss, None))
                    back_from(ends)
                    if index < last and count < (count := sum(p.grad is not None for p in path.parameters)):
                        path.own_gradients()
        except BaseException as error:
            raise_named(error, path.layers, held.at, self._pool, torch.float32)
        path.refuse_changes(self._pool, versions)

    def _forward(
        self, held: HeldStep, index: int, inputs: Batch, share: float
    ) -> tuple[list[tuple[Tensor, Tensor | None]], Tensor]:
        """A micro-batch through all layers: its auxiliary losses, each with its gradient, and the task's loss."""
        path, batch = held.path, held.batch
        seeds, seed = step_seeds(self._seed, held.step), self._device.seed
        specs, depth = self._specs, len(path.layers)
        values, ends = path.flow.by_input(inputs), []
        # the last micro-batch's backward begins with the last layer and the loss as one part, see `Visits.leave`
        is_hooked = index < len(batch.sizes) - 1 or path.has_repeats
        with collect_losses() as collected:
            for number, (layer, module, reads, writes, dtype) in enumerate(path.places):
                held.at = number
                taken = values[reads[0]] if len(reads) == 1 else tuple(t for name in reads for t in values[name])
                seed(seeds(layer.position, index))
                outputs = module(*taken)
                if dtype is not None and is_plain(outputs, dtype, taken):
                    given: Batch = (outputs,)
                    values[writes[0]] = given
                else:
                    found = given_by(writes, taken, outputs, specs)
                    values |= found
                    given = tuple(tensor for tensors in found.values() for tensor in tensors)
                if collected:
                    losses = full(collected)
                    collected.clear()
                    held.losses.add_auxiliary(number, losses, share)
                    ends += weighted(losses, share)
                if is_hooked or number < depth - 1:
                    with_plain_gradients(given)
        held.at = depth
        given = full(tuple(tensor for name in path.flow.outputs for tensor in values[name]))
        objective = path.objective or batch.objective
        loss = objective.loss(given, batch.targets[index]) / batch.count
        if index == 0:
            refuse_own_parameters(objective, loss, given, [template.module for template in path.templates])
        held.losses.add_task(loss)
        return ends, loss

    def _has_new_buffers(self, path: HeldPath, number: int, server: ParamServer) -> bool:
        layer, template = path.owners[number], path.templates[number]
        if layer.key not in self._watches:
            self._watches[layer.key] = BufferWatch(may_change(self._pool, layer))
        stored = memory_of(server).open(layer.key).buffers
        return self._watches[layer.key].has_changed(template, lambda: stored, where(layer, self._pool))

    def _store_buffers(self, path: HeldPath, server: ParamServer, changed: set[int]) -> None:
        """Have the host's buffers be those that the forward left."""
        for number in path.with_buffers:
            key, template = path.owners[number].key, path.templates[number]
            if number in changed and key in server.frozen:
                template.buffers_version = None
                continue
            state = memory_of(server).open(key)
            if number in changed:
                state.store_buffers(template.buffers, template.buffer_layout)
            template.buffers_version = state.version


@contextlib.contextmanager
def _recorded(trace: Trace, lane: str, label: Label) -> Iterator[None]:
    start = time.perf_counter()
    with label.profiled():
        yield
    trace.add(lane, label.op, label.layer, label.step, start, time.perf_counter())


def _copied(tensor: Tensor) -> Tensor:
    """Contiguous and aligned, as kernels find inputs elsewhere; a copy, as a layer may write to what it takes."""
    return tensor.clone(memory_format=torch.contiguous_format)


def is_plain(outputs: object, dtype: torch.dtype, taken: Batch = ()) -> TypeGuard[Tensor]:
    """Whether what a layer gave is one tensor as the next layer takes it: `given_by` would change nothing."""
    for tensor in taken:  # a generator would take as long as all other questions
        if outputs is tensor:
            return False
    return type(outputs) is Tensor and outputs.dtype is dtype and outputs.is_contiguous() and not outputs.is_neg()


def _check_gradients(held: HeldStep, gradients: list[Tensor | None]) -> tuple[GradientCheck, list[Tensor | None]]:
    """What all gradients together say, and these as they are to be applied. See `GradientInbox.check`."""
    path, clip = held.path, held.clip
    numbers = [number for number, gradient in enumerate(gradients) if gradient is not None]
    present = [gradient for gradient in gradients if gradient is not None]
    if not present or (clip is None and not held.has_norm):
        if not are_finite(present):
            _refuse(held, gradients)
        return GradientCheck(0.0), gradients
    norms, places = norms_of(present), {number: place for place, number in enumerate(numbers)}
    order = path.order
    if len(present) < len(gradients):
        order = torch.tensor([places[number] for number in order.tolist() if number in places])
    listed = norms[order]
    total = total_norm(listed)
    norm = float(total)
    if not math.isfinite(norm):
        _refuse(held, gradients)  # or it overflowed on finite numbers
    if clip is None:
        return GradientCheck(norm), gradients
    shared = clip.coefficient(total) if clip.scope == "global" else 1.0
    is_clipped = False
    for use in path.uses:
        own = [number for number in use.numbers if number in places]
        factor = shared
        if clip.scope == "layer" and own:
            factor = clip.coefficient(total_norm(norms[places[own[0]] : places[own[-1]] + 1]))
        if factor != 1.0 and own:
            # not in place: what autograd gave for two parameters may be one memory
            scaled = torch._foreach_mul([present[places[number]] for number in own], factor)
            for number, gradient in zip(own, scaled, strict=True):
                gradients[number] = gradient
            is_clipped = True
    return GradientCheck(norm, is_clipped=is_clipped), gradients


def _refuse(held: HeldStep, gradients: Sequence[Tensor | None]) -> None:
    """Raise for the first state with a gradient that is not finite, in the order in which they would have come."""
    for use in held.path.uses:
        if not are_finite([gradient for number in use.numbers if (gradient := gradients[number]) is not None]):
            raise NonFiniteError("gradient", layer=use.key, step=held.step)


def _apply_gradients(held: HeldStep, gradients: Sequence[Tensor | None]) -> None:
    """Apply gradients that were checked.

    Raises:
        LaneError: a rule raised; what becomes of states that it had changed by then, says `Storage.writing`.
    """
    path, server = held.path, held.server
    singles: Sequence[int] = path.singles
    if path.joints and any(gradient is None for gradient in gradients):
        singles = range(len(path.uses))
    elif path.joints:
        _update_jointly(held, gradients)
    for number in singles:
        use = path.uses[number]
        own: list[Tensor | None] = [None] * use.num_parameters
        for index, place in zip(use.indices, use.numbers, strict=True):
            own[index] = gradients[place]
        try:
            with server.storage.writing(use.key) as state:
                state.update(server.rules.of(use.key).calls, own, lr=held.lr)
        except L2LError:
            raise
        except Exception as error:
            raise LaneError("update", use.key, error) from error


def _update_jointly(held: HeldStep, gradients: Sequence[Tensor | None]) -> None:
    """One call of each rule for all states that it updates."""
    path, storage = held.path, memory_of(held.server)
    before = [block._version for _, block in path.joint_blocks]
    try:
        for joint in path.joints:
            own = [gradient for number in joint.gradients if (gradient := gradients[number]) is not None]
            joint.rule.update(joint.weights, own, joint.moments, joint.steps, lr=held.lr * joint.lr_scale)
    except BaseException as error:
        changed = (key for (key, block), old in zip(path.joint_blocks, before, strict=True) if block._version != old)
        lost = list(dict.fromkeys(changed))
        for key in lost:
            storage.lose(key, error)
        if isinstance(error, Exception) and not isinstance(error, L2LError):
            raise LaneError("update", (*lost, path.uses[0].key)[0], error) from error
        raise
    for state in path.joint_states:
        state.mark_updated()
