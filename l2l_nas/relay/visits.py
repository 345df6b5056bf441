"""Visits: what the device computes, one layer over all micro-batches at a time. Always in the caller's thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from l2l_nas.relay.device import Device
from l2l_nas.relay.interface import Batch, Objective
from l2l_nas.relay.slots import Template
from l2l_nas.space.pool import Layer
from l2l_nas.space.shapes import Specs, as_tuple

Gradients = Batch | tuple[None, ...]


@dataclass
class Run:
    """What one run of a plan carries from visit to visit.

    Attributes:
        layers: the path, and behind it the first layer of the next one if it is known.
        depth: how many of them are the path.
        boundaries: by position, what goes in; the last entry is what comes out.
        inputs: of each layer of the path, by micro-batch; None while they are on the host.
        seeds: of a position and a micro-batch.
        lowest: the first layer that learns; those before it need no gradient of their outputs.
        gradients: of the outputs of the layer whose backward is next, by micro-batch.
        entry_buffers: for each layer, its buffers on the host as its forward found them; from SAVE on.
        norms: by layer of the path, the norms of its gradients, one tensor for each of its states.
        scale: what the loss is multiplied by for the backward.
        at: the place of the layer whose own code runs now, for errors; the path's depth for the loss.
    """

    layers: tuple[Layer, ...]
    depth: int
    boundaries: Sequence[Specs]
    inputs: list[Sequence[Batch] | None]
    seeds: Callable[[int, int], int]
    lowest: int = 0
    scale: float = 1.0
    gradients: list[Gradients] = field(default_factory=list)
    entry_buffers: dict[int, Tensor] = field(default_factory=dict)
    norms: dict[int, list[Tensor]] = field(default_factory=dict)
    loss: Tensor | None = None
    at: int | None = None

    def batches(self, place: int) -> Sequence[Batch]:
        """The inputs of a layer of the path."""
        inputs = self.inputs[place]
        assert inputs is not None
        return inputs

    def after(self, place: int) -> Specs:
        """What a layer of the path gives: what its successor takes."""
        end = self.layers[place + 1].position if place + 1 < self.depth else len(self.boundaries) - 1
        return self.boundaries[end]


@dataclass(frozen=True)
class Visits:
    """Runs templates."""

    device: Device

    def forward(self, run: Run, place: int, template: Template, rooms: Sequence[Batch]) -> None:
        """All micro-batches through one layer, keeping only inputs.

        With a graph, though it is dropped: without one, some layers (LSTM) take other kernels, whose results differ in
        the last bit from what the backward will compute again.
        """
        template.module.train()
        run.at = place
        for index, batch in enumerate(run.batches(place)):
            self.device.seed(run.seeds(run.layers[place].position, index))
            outputs = as_tuple(template.call(*_leaves(batch, place > run.lowest)))
            for room, tensor in zip(rooms[index], outputs, strict=True):
                room.copy_(tensor.detach())
        run.inputs[place + 1] = rooms

    def turn(
        self,
        run: Run,
        place: int,
        templates: Sequence[Template],
        objective: Objective,
        targets: Sequence[Tensor],
        count: int,
    ) -> None:
        """The tail: forward, loss and backward of one micro-batch after the other."""
        entered: set[int] = set()
        for template in templates:
            if id(template) not in entered:
                template.module.train()
                template.zero_gradients()
                entered.add(id(template))
        total = None
        for index, batch in enumerate(run.batches(place)):
            leaves = _leaves(batch, place > run.lowest)
            values = leaves
            for number, template in enumerate(templates):
                run.at = place + number
                self.device.seed(run.seeds(run.layers[place + number].position, index))
                values = as_dtypes(run.after(place + number), as_tuple(template.call(*values)))
            run.at = run.depth
            loss = objective.loss(_full(values), targets[index]) / count
            total = loss.detach() if total is None else total + loss.detach()
            run.at = None
            if loss.requires_grad:
                (loss if run.scale == 1.0 else loss * run.scale).backward()  # type: ignore[no-untyped-call]
            run.gradients.append(tuple(leaf.grad for leaf in leaves))  # type: ignore[arg-type]
        run.loss = total
        for number, template in enumerate(templates):
            if id(template) in entered:  # a repeated layer leaves once, at its first place
                entered.remove(id(template))
                self._leave(run, place + number, template)

    def backward(self, run: Run, place: int, template: Template) -> None:
        """Run the layer again on each micro-batch, now for its graph, and go back through it."""
        template.module.train()
        if place in run.entry_buffers:
            template.load_buffers(run.entry_buffers[place])
        template.zero_gradients()
        run.at = place
        for index, batch in enumerate(run.batches(place)):
            self.device.seed(run.seeds(run.layers[place].position, index))
            leaves = _leaves(batch, place > run.lowest)
            outputs = as_dtypes(run.after(place), as_tuple(template.call(*leaves)))
            pairs = [
                (output, gradient)
                for output, gradient in zip(outputs, run.gradients[index], strict=True)
                if gradient is not None and output.requires_grad
            ]
            if pairs:
                torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])
            run.gradients[index] = tuple(leaf.grad for leaf in leaves)  # type: ignore[assignment]
        self._leave(run, place, template)

    def _leave(self, run: Run, place: int, template: Template) -> None:
        if not template.learns:
            return
        run.norms[place] = [template.norms(number) for number in range(len(template.segments))]


def _leaves(batch: Batch, needed: bool) -> Batch:
    """Inputs as leaves of a new graph; integers such as token numbers have no gradient."""
    return tuple(tensor.detach().requires_grad_(needed and tensor.is_floating_point()) for tensor in batch)


def as_dtypes(specs: Specs, outputs: Batch) -> Batch:
    """Outputs in the dtype in which the next layer takes them."""
    if all(tensor.dtype == spec.dtype for tensor, spec in zip(outputs, specs, strict=True)):
        return outputs
    return tuple(tensor.to(spec.dtype) for tensor, spec in zip(outputs, specs, strict=True))


def _full(values: Batch) -> Batch:
    """Outputs as the objective takes them: low precision becomes float32."""
    low = (torch.bfloat16, torch.float16)
    return tuple(tensor.float() if tensor.dtype in low else tensor for tensor in values)
