"""Visits: what the device computes, one layer over all micro-batches at a time. Always in the caller's thread.

[Note: sums of gradients] The gradient of a value that several layers read is summed in the order of the backward, last
reader first: what is there, then what the next one adds, each of its uses by itself, as autograd does in plain PyTorch.
So the sum that has come so far is handed to autograd as a first gradient of the value, which it adds the others to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from l2l_nas.eps.sums import Chunks
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

Ends = list[tuple[Tensor, Tensor | None]]  # where a backward begins, each with its gradient; None: 1, of a loss

# how many micro-batches of a template's first backwards are compared with its forward
_COMPARISONS = 4


@dataclass
class GraphSegment:
    """A part of a micro-batch's graph, which autograd goes back through at once."""

    leaves: dict[str, Batch]  # what it takes
    values: dict[str, Batch]  # what its layers find: its leaves, and what they gave each other
    outputs: dict[str, Batch] = field(default_factory=dict)  # what they gave
    ends: Ends = field(default_factory=list)  # losses


@dataclass
class Tail:
    """The tail of a path, at one micro-batch after the other.

    One graph, but for the last micro-batch: there each layer is a part of its own, the loss with the last one, so that
    each may leave. Where a layer is repeated its places add to one gradient in the order of one backward, so nothing
    is cut.
    """

    first: int  # place of its first layer
    has_repeats: bool
    templates: list[Template] = field(default_factory=list)  # by place
    # of the present micro-batch, parts of its graph by the place of their first layer, and what the layers gave
    segments: dict[int, GraphSegment] = field(default_factory=dict)
    values: dict[str, Batch] = field(default_factory=dict)


@dataclass(kw_only=True)
class Job:
    """What one pass through a plan carries from visit to visit."""

    layers: tuple[Layer, ...]  # the path, and behind it the first layer of the next one if it is known
    depth: int  # how many of them are the path
    flow: Flow = Flow({}, (), (), ())  # the values of the path
    specs: Mapping[str, Specs] = field(default_factory=dict)  # of values on the device
    seeds: Callable[[int, int], int] = lambda position, batch: 0
    values: dict[str, Sequence[Batch]] = field(default_factory=dict)  # where they are on the device, by micro-batch
    learning: frozenset[str] = frozenset()  # values whose gradient is of use
    # of values that forward visits wrote, which tensors of each micro-batch have a gradient in plain PyTorch: masks and
    # tables have none. Kernels may depend on it
    tracked: dict[str, list[tuple[bool, ...]]] = field(default_factory=dict)
    scale: float = 1.0  # what the loss is multiplied by for the backward
    shares: Sequence[float] = ()  # of each micro-batch, which part of the step's samples it has
    chunks: Chunks | None = None  # of a step whose gradients are summed by chunks
    losses: LossSums = field(default_factory=LossSums)
    # by value and micro-batch, what has come of its gradient so far
    gradients: dict[tuple[str, int], tuple[Tensor | None, ...]] = field(default_factory=dict)
    entry_buffers: dict[int, Tensor] = field(default_factory=dict)  # as a forward that changes them found them
    spilled: frozenset[str] = frozenset()  # values that are not on the device all the time
    tail: Tail | None = None  # from its first visit on
    at: int | None = None  # the place of the layer whose own code runs now, for errors; the depth for the loss

    def leaves(self, names: Sequence[str], index: int) -> dict[str, Batch]:
        """Values of a micro-batch as leaves of a new graph; integers such as token numbers have no gradient."""

        def leaf(name: str, number: int, tensor: Tensor) -> Tensor:
            is_tracked = name not in self.tracked or self.tracked[name][index][number]
            return tensor.detach().requires_grad_(name in self.learning and is_tracked and learns(tensor))

        return {
            name: tuple(leaf(name, number, tensor) for number, tensor in enumerate(self.values[name][index]))
            for name in names
        }

    @property
    def sums_chunks(self) -> bool:
        """Whether several chunks are summed, here or by all ranks."""
        return self.chunks is not None and not self.chunks.is_single

    def chunk(self, index: int) -> int:
        return 0 if self.chunks is None else self.chunks.of(index)

    def end_chunks(self, index: int, templates: Iterable[Template]) -> None:
        """After a micro-batch went back through layers: put sums of gradients aside of each chunk that ends with it."""
        if self.chunks is not None and not self.chunks.is_idle:
            for chunk in self.chunks.ending(index):
                for template in templates:
                    template.end_chunk(is_empty=self.chunks.is_empty(chunk))

    def begins_chunk(self, index: int) -> bool:
        """Whether a chunk begins with a micro-batch, behind another one."""
        return self.chunks is not None and self.chunks.starts[0] + index in self.chunks.starts[1:-1]

    def begin_statistics(self, template: Template) -> None:
        if template.statistics is not None and self.sums_chunks:
            template.statistics.begin(template.buffers)

    def end_statistics(self, index: int, templates: Iterable[Template]) -> None:
        """After a micro-batch's forward through layers: note their buffers for each chunk that ends with it."""
        chunks = self.chunks
        if chunks is None or chunks.is_single:
            return
        for chunk in range(chunks.count) if chunks.is_idle else chunks.ending(index):
            for template in templates:
                if template.statistics is not None:
                    template.statistics.end_chunk(template.buffers, is_empty=chunks.is_empty(chunk))

    def waiting(self, values: Mapping[str, Batch], index: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Tensors of a micro-batch whose gradient has come, at least in part, with it."""
        for name, tensors in values.items():
            if (name, index) in self.gradients:
                for tensor, gradient in zip(tensors, self.gradients[name, index], strict=True):
                    if gradient is not None and tensor.requires_grad:
                        yield tensor, gradient

    def entered(self, first: int, end: int) -> tuple[str, ...]:
        """The values that layers from `first` to before `end`, and behind the last one the loss, take from others."""
        written = {name for names in self.flow.writes[first:end] for name in names}
        read = [name for names in self.flow.reads[first:end] for name in names]
        read += self.flow.outputs if end == self.depth else ()
        return tuple(dict.fromkeys(name for name in read if name not in written))


@dataclass(frozen=True)
class Visits:
    """Runs templates."""

    device: Device

    def forward(self, job: Job, place: int, template: Template, frames: Mapping[str, Sequence[Batch]]) -> None:
        """All micro-batches through one layer, keeping only what it reads and writes.

        With a graph, though it is dropped: without one, some layers (LSTM) take other kernels, whose results differ in
        the last bit from what the backward will compute again.
        """
        template.module.train()
        job.begin_statistics(template)
        job.at = place
        for index in range(len(job.shares)):
            leaves = job.leaves(job.flow.reads[place], index)
            outputs, losses = self._through(job, place, template.call, leaves, index)
            job.losses.add_auxiliary(place, losses, job.shares[index], job.chunk(index))
            for name, tensors in outputs.items():
                job.tracked.setdefault(name, []).append(tuple(tensor.requires_grad for tensor in tensors))
                for frame, tensor in zip(frames[name][index], tensors, strict=True):
                    frame.copy_(tensor.detach())
            job.end_statistics(index, [template])
            del leaves, outputs, losses  # before the next micro-batch makes its own
        job.values.update(frames)

    def enter(self, job: Job, place: int, template: Template) -> None:
        """The first micro-batch through one layer of the tail."""
        if job.tail is None:
            keys = [layer.key for layer in job.layers[place : job.depth]]
            job.tail = Tail(place, has_repeats=len(set(keys)) < len(keys))
        if template not in job.tail.templates:
            template.module.train()
            template.zero_gradients()
            job.begin_statistics(template)
        job.tail.templates.append(template)
        self._go_on(job, job.tail, place, 0)

    def tail(self, job: Job, objective: Objective, targets: Sequence[Tensor], count: float) -> None:
        """The tail, one micro-batch after the other, less the first one's layers and the last one's way back."""
        tail = job.tail
        assert tail is not None
        modules = [template.module for template in tail.templates]
        objective = learned_by(modules, objective)
        for index in range(len(job.shares)):
            if index:
                for place in range(tail.first, job.depth):
                    self._go_on(job, tail, place, index)
            job.end_statistics(index, dict.fromkeys(tail.templates))
            job.at = job.depth
            segment = tail.segments[max(tail.segments)]
            given = full(tuple(tensor for name in job.flow.outputs for tensor in segment.values[name]))
            loss = objective.loss(given, targets[index]) / count
            if index == 0:
                refuse_own_parameters(objective, loss, given, modules)
            job.losses.add_task(loss, job.chunk(index))
            job.at = None
            if loss.requires_grad:
                segment.ends.append((loss if job.scale == 1.0 else loss * job.scale, None))
            if index < len(job.shares) - 1:
                self._go_back(job, tail.segments.pop(tail.first), index)
                job.end_chunks(index, dict.fromkeys(tail.templates))
                tail.values.clear()
            del segment, given, loss  # before the next micro-batch makes its own

    def leave(self, job: Job, place: int, template: Template) -> None:
        """The last micro-batch back through one layer of the tail, or through all of them where they are one graph."""
        tail = job.tail
        assert tail is not None
        segment = tail.segments.pop(tail.first if tail.has_repeats else place, None)
        if segment is not None:
            job.at = place if place < job.depth - 1 and not tail.has_repeats else None
            for name in segment.outputs:
                tail.values.pop(name)
            self._go_back(job, segment, len(job.shares) - 1)
        if tail.templates.index(template) == place - tail.first:  # a repeated layer leaves once, at its first place
            job.end_chunks(len(job.shares) - 1, [template])
            template.measure()

    def backward(self, job: Job, place: int, template: Template) -> None:
        """Run the layer again on each micro-batch, now for its graph, and go back through it."""
        template.module.train()
        if place in job.entry_buffers:
            self._load_buffers(template, job.entry_buffers[place])
        template.zero_gradients()
        job.at = place
        reads, writes = job.flow.reads[place], job.flow.writes[place]
        is_there = job.spilled.isdisjoint(writes)
        for index in range(len(job.shares)):
            leaves = job.leaves(reads, index)
            outputs, losses = self._through(job, place, template.call, leaves, index)
            if is_there and template.compared < _COMPARISONS:
                template.compared += 1
                for name, tensors in outputs.items():
                    _refuse_others(tensors, job.values[name][index])
            # the forward's auxiliary losses went with its graph, so that each counts once
            ends = weighted(losses, job.shares[index] * job.scale)
            self._go_back(job, GraphSegment(leaves, {}, outputs, ends), index)
            job.end_chunks(index, [template])
            if place in job.entry_buffers and job.begins_chunk(index + 1):  # as the forward did
                self._load_buffers(template, job.entry_buffers[place])
            del leaves, outputs, losses, ends  # before the next micro-batch makes its own
        template.measure()

    def _go_on(self, job: Job, tail: Tail, place: int, index: int) -> None:
        """A micro-batch through one layer of the tail."""
        is_cut = index == len(job.shares) - 1 and not tail.has_repeats
        if place == tail.first or is_cut:
            names = job.entered(place, place + 1 if is_cut else job.depth)
            leaves = job.leaves([name for name in names if name not in tail.values], index)
            for name in names:
                if name in tail.values:
                    leaves[name] = tuple(t.detach().requires_grad_(t.requires_grad) for t in tail.values[name])
            tail.segments[place] = GraphSegment(leaves, dict(leaves))
        segment = tail.segments[place if is_cut else tail.first]
        job.at = place
        template = tail.templates[place - tail.first]
        # a repeated layer waits for its backward more than once
        call = template.call_again if tail.has_repeats else template.call
        outputs, losses = self._through(job, place, call, segment.values, index)
        job.losses.add_auxiliary(place, losses, job.shares[index], job.chunk(index))
        segment.ends += weighted(losses, job.shares[index] * job.scale)
        segment.values |= outputs
        segment.outputs |= outputs
        tail.values |= outputs
        if not is_cut:
            for tensors in outputs.values():
                with_plain_gradients(tensors)

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
    def _go_back(job: Job, segment: GraphSegment, index: int) -> None:
        """A micro-batch back through a part of the graph, from the gradients of what it gave and from its losses."""
        ends: Ends = [*job.waiting(segment.outputs, index), *segment.ends]
        if ends:
            back_from([*ends, *job.waiting(segment.leaves, index)])  # see [Note: sums of gradients]
            for name, tensors in segment.leaves.items():
                if name in job.learning:
                    job.gradients[name, index] = tuple(leaf.grad for leaf in tensors)
        for name in segment.outputs:
            job.gradients.pop((name, index), None)

    def _through(
        self, job: Job, place: int, call: Callable[..., object], values: Mapping[str, Batch], index: int
    ) -> tuple[dict[str, Batch], Batch]:
        """One micro-batch through one layer: what it gives, by value, and its auxiliary losses."""
        self.device.seed(job.seeds(job.layers[place].position, index))
        taken = tuple(tensor for name in job.flow.reads[place] for tensor in values[name])
        with collect_losses() as losses:
            outputs = call(*taken)
        return given_by(job.flow.writes[place], taken, outputs, job.specs), full(losses)


def back_from(ends: Sequence[tuple[Tensor, Tensor | None]]) -> None:
    """Autograd from all of these at once."""
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
    """What a layer gave for what it took, by value, in the dtypes in which the next layer takes it."""
    return {
        name: tuple(tensor.to(spec.dtype) for tensor, spec in zip(tensors, specs[name], strict=True))
        for name, tensors in by_value(names, apart(taken, as_tuple(outputs))).items()
    }


def with_plain_gradients(values: Batch) -> None:
    """Have the gradients of these outputs come contiguous, as those that wait between two visits are.

    Kernels may sum strided ones in another order: what stays on the device would show in the last bits.
    """
    for tensor in values:
        if tensor.grad_fn is not None:
            tensor.register_hook(Tensor.contiguous)


def full(values: Sequence[Tensor]) -> Batch:
    """Outputs as the objective takes them, and auxiliary losses: low precision becomes float32."""
    low = (torch.bfloat16, torch.float16)
    return tuple(tensor.float() if tensor.dtype in low else tensor for tensor in values)


def _refuse_others(again: Batch, before: Batch) -> None:
    """Refuse a recompute that gives clearly other outputs than the forward; rounding may differ on some devices."""
    if not all(is_near(one.detach(), other.detach()) for one, other in zip(again, before, strict=True)):
        raise SpaceError(
            "gives other outputs when the backward runs it again on the same input: it draws random numbers from "
            "elsewhere than torch, or keeps something between calls that is no buffer"
        )
