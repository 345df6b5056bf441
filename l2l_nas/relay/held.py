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
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeGuard

import torch
from torch import Tensor

from l2l_nas.eps.inbox import GradientCheck
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.state import LayerState
from l2l_nas.eps.storage import RamStorage
from l2l_nas.relay.bank import SlotBank
from l2l_nas.relay.buffers import BufferWatch, may_change
from l2l_nas.relay.device import Device, step_seeds
from l2l_nas.relay.held_path import HeldLayers, HeldPath
from l2l_nas.relay.held_update import HeldStep, apply_gradients, checked_gradients
from l2l_nas.relay.interface import Batch
from l2l_nas.relay.lanes import Label
from l2l_nas.relay.losses import Losses
from l2l_nas.relay.population import PopulationPass
from l2l_nas.relay.refusals import raise_named, refuse_own_parameters, where
from l2l_nas.relay.slots import Template
from l2l_nas.relay.trace import Trace
from l2l_nas.relay.visits import back_from, full, given_by, with_plain_gradients
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.candidate import Specs
from l2l_nas.space.losses import collect_losses, weighted
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.randomness import preserved_generators

_MOST_PATHS = 64  # whose programs are remembered
_MOST_PASSES = 8  # of evaluations, likewise


class HeldSteps:
    """Does the steps of paths that are held; see [Note: held].

    Args:
        pool: of the paths.
        bank: makes templates.
        specs: of values.
        device: shares the host's memory.
        seed: of dropout's random numbers.
        trace: records what is done.
    """

    def __init__(
        self,
        pool: LayerPool,
        bank: SlotBank,
        specs: Mapping[str, Specs],
        device: Device,
        *,
        seed: int,
        trace: Trace | None,
    ) -> None:
        self._pool, self._bank, self._specs, self._device = pool, bank, specs, device
        self._seed, self._trace = seed, trace
        self._programs: dict[tuple[str, ...], HeldPath] = {}  # by choices
        self._bound: tuple[HeldLayers, bool, RamStorage, int] | None = None  # whose templates have which states
        self._visited: dict[int, tuple[PopulationPass, HeldLayers]] = {}  # by identity of the pass
        self._watches: dict[str, BufferWatch] = {}

    def path(self, architecture: Architecture) -> HeldPath:
        """Of a path; the latest are remembered."""
        choices = Architecture.from_choices(architecture).choices
        found = self._programs.pop(choices, None)
        if found is None:
            layers = self._pool.path(architecture)
            found = HeldPath(layers, self._pool.flow(layers), self._specs, self._bank)
            while len(self._programs) >= _MOST_PATHS:
                self._programs.pop(next(iter(self._programs)))
        self._programs[choices] = found
        return found

    def batches(self, inputs: Batch, sizes: Sequence[int]) -> list[Batch]:
        """Copies of the inputs in micro-batches: contiguous and aligned, as kernels find them elsewhere.

        Copies, as a layer may write to what it takes.
        """
        parts = [tensor.detach().split(list(sizes)) for tensor in inputs]
        return [tuple(map(_copied, batch)) for batch in zip(*parts, strict=True)]

    def release(self) -> None:
        """Refer to no state."""
        for held in (*self._programs.values(), *(layers for _, layers in self._visited.values())):
            held.release()
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
            check = None
            if path.uses:
                gradients = path.gradients()
                with self._span("host", "check", held):
                    check, gradients = checked_gradients(held, gradients)
                with self._span("host", "update", held):
                    apply_gradients(held, gradients)
            self._store_buffers(path, server)
        except BaseException:
            self._forget(path)
            raise
        finally:
            for parameter in path.parameters:
                parameter.grad = None
        return losses, check

    def layers(self, tree: PopulationPass) -> HeldLayers:
        """Those of a pass, for `visit`; of the latest passes they are remembered."""
        found = self._visited.pop(id(tree), None)
        if found is None or found[0] is not tree:
            found = tree, HeldLayers(tree.layers, self._bank)
            while len(self._visited) >= _MOST_PASSES:
                self._visited.pop(next(iter(self._visited)))
        self._visited[id(tree)] = found
        return found[1]

    def visit(self, server: ParamServer, held: HeldLayers, do: Callable[[int, Template], None]) -> None:
        """Do something with each of these layers where they lie, in evaluation."""
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

    def _bind(self, path: HeldLayers, server: ParamServer, *, is_training: bool) -> None:
        """Have templates be in training or evaluation, on the states of the server."""
        storage = server.storage
        assert isinstance(storage, RamStorage)
        # a forward may have changed the mode of a module
        if self._bound != (path, is_training, storage, storage.changes) or path.has_other_modes:
            path.bind(server, storage, is_training=is_training)
            self._bound = path, is_training, storage, storage.changes
        for number in path.with_buffers:
            layer, template = path.owners[number], path.templates[number]
            state = storage.open(layer.key)
            if template.buffers_version == state.version:
                template.watch_buffers()
            else:
                template.load_buffers(state.buffers)

    def _forget(self, path: HeldLayers) -> None:
        """After an error: what a forward made of its module, or of buffers, is of no use."""
        for layer, template in zip(path.owners, path.templates, strict=True):
            self._bank.forget(layer)
            template.buffers_version = None
        self._programs = {choices: one for choices, one in self._programs.items() if not one.shares(path)}
        self._visited.clear()
        self._bound = None

    @contextlib.contextmanager
    def _recorded(self, lane: str, label: Label) -> Iterator[None]:
        start = time.perf_counter()
        with label.profiled():
            yield
        if self._trace is not None:
            self._trace.add(lane, label.op, label.layer, label.step, start, time.perf_counter())

    def _span(self, lane: str, op: str, held: HeldStep) -> contextlib.AbstractContextManager[object]:
        """What is done inside, for a trace and for torch's profiler."""
        label = Label(op, held.path.layers[0].key if op == "tail" else "", held.step)
        return label.profiled() if self._trace is None else self._recorded(lane, label)

    def _compute(self, held: HeldStep) -> None:
        """All micro-batches forward and backward."""
        path = held.path
        versions, last, count = path.versions, len(held.batches) - 1, 0
        try:
            with torch.enable_grad():
                for index in range(len(held.batches)):
                    ends, loss = self._forward(held, index)
                    held.at = None
                    if index == 0 and path.versions != versions:
                        path.refuse_changes(self._pool, versions)
                    if loss.requires_grad:
                        ends.append((loss, None))
                    back_from(ends)
                    if index < last and count < (count := path.num_gradients):
                        path.own_gradients()
        except BaseException as error:
            raise_named(error, path.layers, held.at, self._pool, torch.float32)
        path.refuse_changes(self._pool, versions)

    def _forward(self, held: HeldStep, index: int) -> tuple[list[tuple[Tensor, Tensor | None]], Tensor]:
        """A micro-batch through all layers: its auxiliary losses, each with its gradient, and the task's loss."""
        path, seeds, seed = held.path, step_seeds(self._seed, held.step), self._device.seed
        specs, depth = self._specs, len(path.layers)
        values, ends = held.batches[index], []
        # the last micro-batch's backward begins with the last layer and the loss as one part, see `Visits.leave`
        is_hooked = index < len(held.batches) - 1 or path.has_repeats
        with collect_losses() as collected:
            for number, place in enumerate(path.places):
                held.at = number
                reads = place.reads
                taken = values[reads[0]] if len(reads) == 1 else tuple(t for name in reads for t in values[name])
                seed(seeds(place.layer.position, index))
                outputs = place.module(*taken)
                if place.dtype is not None and is_plain(outputs, place.dtype, taken):
                    given: Batch = (outputs,)
                    values[place.writes[0]] = given
                else:
                    found = given_by(place.writes, taken, outputs, specs)
                    values |= found
                    given = tuple(tensor for tensors in found.values() for tensor in tensors)
                if collected:
                    losses = full(collected)
                    collected.clear()
                    held.losses.add_auxiliary(number, losses, held.shares[index])
                    ends += weighted(losses, held.shares[index])
                if is_hooked or number < depth - 1:
                    with_plain_gradients(given)
        held.at = depth
        given = full(tuple(tensor for name in path.flow.outputs for tensor in values[name]))
        objective = path.objective or held.objective
        loss = objective.loss(given, held.targets[index]) / held.count
        if index == 0:
            refuse_own_parameters(objective, loss, given, [template.module for template in path.templates])
        held.losses.add_task(loss)
        values.clear()
        return ends, loss

    def _store_buffers(self, path: HeldPath, server: ParamServer) -> None:
        """Have the host's buffers be those that the forward left."""
        for number in path.with_buffers:
            layer, template = path.owners[number], path.templates[number]
            state = server.storage.open(layer.key)  # type: ignore[attr-defined]
            watch = self._watches.setdefault(layer.key, BufferWatch(may_change(server.pool, layer)))
            if watch.has_changed(template, partial(_buffers_of, state), where(layer, self._pool)):
                if layer.key in server.frozen:
                    template.buffers_version = None
                    continue
                state.store_buffers(template.buffers, template.buffer_layout)
            template.buffers_version = state.version


def _buffers_of(state: LayerState) -> Tensor:
    return state.buffers


def _copied(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def is_plain(outputs: object, dtype: torch.dtype, taken: Batch = ()) -> TypeGuard[Tensor]:
    """Whether what a layer gave is one tensor as the next layer takes it: `given_by` would change nothing."""
    return (
        type(outputs) is Tensor
        and outputs.dtype is dtype
        and outputs.is_contiguous()
        and not outputs.is_neg()
        and all(outputs is not tensor for tensor in taken)
    )
