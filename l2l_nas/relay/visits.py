"""Visits: what the device computes, one layer over all micro-batches at a time. Always in the caller's thread.

[Note: sums of gradients] The gradient of a value that several layers read is summed in the order of the backward, last
reader first: what is there, then what the next one adds, each of its uses by itself, as autograd does in plain PyTorch.
So the sum that has come so far is handed to autograd as a first gradient of the value, which it adds the others to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from l2l_nas.errors import SpaceError
from l2l_nas.relay.device import Device
from l2l_nas.relay.interface import Batch, Objective
from l2l_nas.relay.losses import LossSums
from l2l_nas.relay.refusals import refuse_own_parameters
from l2l_nas.relay.slots import Template
from l2l_nas.space.candidate import Specs
from l2l_nas.space.losses import collect_losses, weighted
from l2l_nas.space.objective import learned_by
from l2l_nas.space.pool import Layer
from l2l_nas.space.tolerance import is_near
from l2l_nas.space.values import Flow, as_tuple, by_value, learns

Gradients = Batch | tuple[None, ...]

# how many micro-batches of a template's first backwards are compared with its forward
_COMPARISONS = 4


@dataclass
class GraphSegment:
    """A part of a micro-batch's graph, which autograd goes back through at once.

    Attributes:
        leaves: what it takes.
        values: what its layers find: its leaves, and what they gave each other.
        outputs: what they gave.
        ends: losses that the way back begins with, each with its gradient; None: 1.
    """

    leaves: dict[str, Batch]
    values: dict[str, Batch]
    outputs: dict[str, Batch] = field(default_factory=dict)
    ends: list[tuple[Tensor, Tensor | None]] = field(default_factory=list)


@dataclass
class Tail:
    """The tail of a path, at one micro-batch after the other.

    One graph, but for the last micro-batch: there each layer is a part of its own, the loss with the last one, so that
    each may leave. Where a layer is repeated its places add to one gradient in the order of one backward, so nothing
    is cut.

    Attributes:
        first: place of its first layer.
        has_repeats: whether it has a layer twice.
        templates: by place.
        segments: parts of the present micro-batch's graph, each by the place of its first layer.
        values: what its layers gave for the present micro-batch.
    """

    first: int
    has_repeats: bool
    templates: list[Template] = field(default_factory=list)
    segments: dict[int, GraphSegment] = field(default_factory=dict)
    values: dict[str, Batch] = field(default_factory=dict)


@dataclass
class StepContext:
    """What one pass through a plan carries from visit to visit.

    Attributes:
        layers: the path, and behind it the first layer of the next one if it is known.
        depth: how many of them are the path.
        flow: the values of the path.
        specs: of values on the device.
        values: by name, where a value is on the device, by micro-batch.
        seeds: of a position and a micro-batch.
        learning: values whose gradient is of use.
        tracked: by value that a forward visit wrote, by micro-batch, which of its tensors have a gradient in plain
            PyTorch: masks and tables have none. Kernels may depend on it.
        gradients: by value, what has come of its gradient so far, by micro-batch.
        entry_buffers: for each layer, its buffers on the host as a forward that changes them found them; from SAVE on.
        loaded: for each layer whose inputs are stored, the age of the weights that its forward ran with.
        scale: what the loss is multiplied by for the backward.
        shares: of each micro-batch, which part of the step's samples it has.
        spilled: values that are not on the device all the time.
        tail: from its first visit on.
        at: the place of the layer whose own code runs now, for errors; the path's depth for the loss.
    """

    layers: tuple[Layer, ...]
    depth: int
    flow: Flow
    specs: Mapping[str, Specs]
    seeds: Callable[[int, int], int]
    values: dict[str, Sequence[Batch]] = field(default_factory=dict)
    learning: frozenset[str] = frozenset()
    tracked: dict[str, list[tuple[bool, ...]]] = field(default_factory=dict)
    scale: float = 1.0
    shares: Sequence[float] = ()
    losses: LossSums = field(default_factory=LossSums)
    gradients: dict[str, list[Gradients]] = field(default_factory=dict)
    entry_buffers: dict[int, Tensor] = field(default_factory=dict)
    loaded: dict[int, tuple[int | None, ...]] = field(default_factory=dict)
    spilled: frozenset[str] = frozenset()
    tail: Tail | None = None
    at: int | None = None

    def leaves(self, names: Sequence[str], index: int) -> dict[str, Batch]:
        """Values of a micro-batch as leaves of a new graph; integers such as token numbers have no gradient."""

        def leaf(name: str, number: int, tensor: Tensor) -> Tensor:
            is_tracked = name not in self.tracked or self.tracked[name][index][number]
            return tensor.detach().requires_grad_(name in self.learning and is_tracked and learns(tensor))

        return {
            name: tuple(leaf(name, number, tensor) for number, tensor in enumerate(self.values[name][index]))
            for name in names
        }

    def taken(self, place: int, values: Mapping[str, Batch]) -> Batch:
        """What a layer of the path takes."""
        return tuple(tensor for name in self.flow.reads[place] for tensor in values[name])

    def given(self, place: int, taken: Batch, outputs: object) -> dict[str, Batch]:
        """What a layer of the path gave for what it took, by value, in the dtypes in which it is stored."""
        return given_by(self.flow.writes[place], taken, outputs, self.specs)

    def weigh(self, losses: Batch, index: int) -> list[tuple[Tensor, Tensor | None]]:
        """The auxiliary losses of a micro-batch, each with its gradient."""
        return weighted(losses, self.shares[index] * self.scale)

    def waiting(self, values: Mapping[str, Batch], index: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Tensors of a micro-batch whose gradient has come, at least in part, with it."""
        for name, tensors in values.items():
            for tensor, gradient in zip(tensors, self._came(name, index, len(tensors)), strict=True):
                if gradient is not None and tensor.requires_grad:
                    yield tensor, gradient

    def _came(self, name: str, index: int, count: int) -> Gradients:
        return self.gradients[name][index] if name in self.gradients else (None,) * count

    def note(self, leaves: Mapping[str, Batch], index: int) -> None:
        """Keep the gradients of these values, which hold what came before."""
        for name, tensors in leaves.items():
            if name in self.learning:
                found = self.gradients.setdefault(name, [(None,) * len(tensors)] * self.num_batches)
                found[index] = tuple(leaf.grad for leaf in tensors)  # type: ignore[assignment]

    @property
    def num_batches(self) -> int:
        """Micro-batches of the step."""
        return len(next(iter(self.values.values())))

    def entered(self, first: int, end: int) -> tuple[str, ...]:
        """The values that layers from `first` to before `end`, and behind the last one the loss, take from others."""
        own = {name for names in self.flow.writes[first:end] for name in names}
        taken = [name for names in self.flow.reads[first:end] for name in names]
        taken += self.flow.outputs if end == self.depth else ()
        return tuple(dict.fromkeys(name for name in taken if name not in own))


@dataclass(frozen=True)
class Visits:
    """Runs templates."""

    device: Device

    def forward(
        self, context: StepContext, place: int, template: Template, frames: Mapping[str, Sequence[Batch]]
    ) -> None:
        """All micro-batches through one layer, keeping only what it reads and writes.

        With a graph, though it is dropped: without one, some layers (LSTM) take other kernels, whose results differ in
        the last bit from what the backward will compute again.
        """
        template.module.train()
        context.at = place
        for index in range(context.num_batches):
            leaves = context.leaves(context.flow.reads[place], index)
            outputs, losses = self._through(context, place, template.call, leaves, index)
            context.losses.add_auxiliary(place, losses, context.shares[index])
            for name, tensors in outputs.items():
                context.tracked.setdefault(name, []).append(tuple(tensor.requires_grad for tensor in tensors))
                for frame, tensor in zip(frames[name][index], tensors, strict=True):
                    frame.copy_(tensor.detach())
            del leaves, outputs, losses  # before the next micro-batch makes its own
        context.values.update(frames)
        context.loaded[place] = template.loaded

    def enter(self, context: StepContext, place: int, template: Template) -> None:
        """The first micro-batch through one layer of the tail."""
        if context.tail is None:
            keys = [layer.key for layer in context.layers[place : context.depth]]
            context.tail = Tail(place, has_repeats=len(set(keys)) < len(keys))
        if template not in context.tail.templates:
            template.module.train()
            template.zero_gradients()
        context.tail.templates.append(template)
        self._go_on(context, context.tail, place, 0)

    def tail(self, context: StepContext, objective: Objective, targets: Sequence[Tensor], count: float) -> None:
        """The tail, one micro-batch after the other, less the first one's layers and the last one's way back."""
        tail = context.tail
        assert tail is not None
        modules = [template.module for template in tail.templates]
        objective = learned_by(modules, objective)
        for index in range(context.num_batches):
            if index:
                for place in range(tail.first, context.depth):
                    self._go_on(context, tail, place, index)
            context.at = context.depth
            segment = tail.segments[max(tail.segments)]
            given = full(tuple(tensor for name in context.flow.outputs for tensor in segment.values[name]))
            loss = objective.loss(given, targets[index]) / count
            if index == 0:
                refuse_own_parameters(objective, loss, given, modules)
            context.losses.add_task(loss)
            context.at = None
            if loss.requires_grad:
                segment.ends.append((loss if context.scale == 1.0 else loss * context.scale, None))
            if index < context.num_batches - 1:
                self._go_back(context, tail.segments.pop(tail.first), index)
                tail.values.clear()
            del segment, given, loss  # before the next micro-batch makes its own

    def leave(self, context: StepContext, place: int, template: Template) -> None:
        """The last micro-batch back through one layer of the tail, or through all of them where they are one graph."""
        tail = context.tail
        assert tail is not None
        segment = tail.segments.pop(tail.first if tail.has_repeats else place, None)
        if segment is not None:
            context.at = place if place < context.depth - 1 and not tail.has_repeats else None
            for name in segment.outputs:
                tail.values.pop(name)
            self._go_back(context, segment, context.num_batches - 1)
        if tail.templates.index(template) == place - tail.first:  # a repeated layer leaves once, at its first place
            template.measure()

    def _go_on(self, context: StepContext, tail: Tail, place: int, index: int) -> None:
        """A micro-batch through one layer of the tail."""
        is_cut = index == context.num_batches - 1 and not tail.has_repeats
        if place == tail.first or is_cut:
            names = context.entered(place, place + 1 if is_cut else context.depth)
            leaves = context.leaves([name for name in names if name not in tail.values], index)
            leaves |= {name: _leaves_of(tail.values[name]) for name in names if name in tail.values}
            tail.segments[place] = GraphSegment(leaves, dict(leaves))
        segment = tail.segments[place if is_cut else tail.first]
        context.at = place
        template = tail.templates[place - tail.first]
        # a repeated layer waits for its backward more than once
        call = template.call_again if tail.has_repeats else template.call
        outputs, losses = self._through(context, place, call, segment.values, index)
        context.losses.add_auxiliary(place, losses, context.shares[index])
        segment.ends += context.weigh(losses, index)
        segment.values |= outputs
        segment.outputs |= outputs
        tail.values |= outputs
        if not is_cut:
            for tensors in outputs.values():
                with_plain_gradients(tensors)

    def backward(self, context: StepContext, place: int, template: Template) -> None:
        """Run the layer again on each micro-batch, now for its graph, and go back through it."""
        template.module.train()
        if place in context.entry_buffers:
            self._load_buffers(template, context.entry_buffers[place])
        template.zero_gradients()
        context.at = place
        # another process may have updated the weights since; then other outputs are right
        reads, writes = context.flow.reads[place], context.flow.writes[place]
        is_same = template.loaded == context.loaded[place] and context.spilled.isdisjoint(writes)
        for index in range(context.num_batches):
            leaves = context.leaves(reads, index)
            outputs, losses = self._through(context, place, template.call, leaves, index)
            if is_same and template.compared < _COMPARISONS:
                template.compared += 1
                for name, tensors in outputs.items():
                    _refuse_others(tensors, context.values[name][index])
            # the forward's auxiliary losses went with its graph, so that each counts once
            self._go_back(context, GraphSegment(leaves, {}, outputs, context.weigh(losses, index)), index)
            del leaves, outputs, losses  # before the next micro-batch makes its own
        template.measure()

    def _load_buffers(self, template: Template, buffers: Tensor) -> None:
        """Load buffers behind all that was issued until now, before what is issued next.

        On the stream of the lane that copies: what fences pinned memory knows no other.
        """
        before = self.device.mark()
        with self.device.stream("up"):
            self.device.stream_wait(before)
            template.load_buffers(buffers)
            loaded = self.device.mark()
        self.device.stream_wait(loaded)

    @staticmethod
    def _go_back(context: StepContext, segment: GraphSegment, index: int) -> None:
        """A micro-batch back through a part of the graph, from the gradients of what it gave and from its losses."""
        pairs: list[tuple[Tensor, Tensor | None]] = [*context.waiting(segment.outputs, index), *segment.ends]
        if pairs:
            pairs += context.waiting(segment.leaves, index)  # see [Note: sums of gradients]
            back_from(pairs)
            context.note(segment.leaves, index)
        for name in segment.outputs:
            if name in context.gradients:
                context.gradients[name][index] = (None,) * len(context.gradients[name][index])

    def _through(
        self, context: StepContext, place: int, call: Callable[..., object], values: Mapping[str, Batch], index: int
    ) -> tuple[dict[str, Batch], Batch]:
        """One micro-batch through one layer: what it gives, by value, and its auxiliary losses."""
        self.device.seed(context.seeds(context.layers[place].position, index))
        taken = context.taken(place, values)
        with collect_losses() as losses:
            outputs = call(*taken)
        return context.given(place, taken, outputs), full(losses)


def _leaves_of(tensors: Batch) -> Batch:
    """What another part of the graph gave, as leaves."""
    return tuple(tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors)


def back_from(ends: Sequence[tuple[Tensor, Tensor | None]]) -> None:
    """Autograd from all of these at once, each with its gradient; None: 1, of a loss."""
    if ends:
        torch.autograd.backward([tensor for tensor, _ in ends], [gradient for _, gradient in ends])


def apart(taken: Batch, outputs: Batch) -> Batch:
    """Outputs, each a node of its own: where a layer gives what it takes, the two are two values all the same.

    So the gradient of each is summed by itself wherever a layer runs; see [Note: sums of gradients].
    """
    known = {id(tensor) for tensor in taken}
    if known.isdisjoint(map(id, outputs)):
        return outputs
    return tuple(tensor.view_as(tensor) if id(tensor) in known else tensor for tensor in outputs)


def given_by(names: Sequence[str], taken: Batch, outputs: object, specs: Mapping[str, Specs]) -> dict[str, Batch]:
    """What a layer that trains gave for what it took, by value."""
    return written(names, apart(taken, as_tuple(outputs)), specs)


def written(names: Sequence[str], outputs: Batch, specs: Mapping[str, Specs]) -> dict[str, Batch]:
    """What a layer gave, by value, in the dtypes of the specs."""
    return {name: as_dtypes(specs[name], tensors) for name, tensors in by_value(names, outputs).items()}


def with_plain_gradients(values: Batch) -> None:
    """Have the gradients of these outputs come contiguous, as those that wait between two visits are.

    Kernels may sum strided ones in another order: what stays on the device would show in the last bits.
    """
    for tensor in values:
        if tensor.grad_fn is not None:
            tensor.register_hook(Tensor.contiguous)


def _refuse_others(again: Batch, before: Batch) -> None:
    """Refuse a recompute that gives clearly other outputs than the forward; rounding may differ on some devices."""
    if not all(is_near(one.detach(), other.detach()) for one, other in zip(again, before, strict=True)):
        raise SpaceError(
            "gives other outputs when the backward runs it again on the same input: it draws random numbers from "
            "elsewhere than torch, or keeps something between calls that is no buffer"
        )


def as_dtypes(specs: Specs, outputs: Batch) -> Batch:
    """Outputs in the dtype in which the next layer takes them."""
    if all(tensor.dtype == spec.dtype for tensor, spec in zip(outputs, specs, strict=True)):
        return outputs
    return tuple(tensor.to(spec.dtype) for tensor, spec in zip(outputs, specs, strict=True))


def full(values: Sequence[Tensor]) -> Batch:
    """Outputs as the objective takes them, and auxiliary losses: low precision becomes float32."""
    low = (torch.bfloat16, torch.float16)
    return tuple(tensor.float() if tensor.dtype in low else tensor for tensor in values)
