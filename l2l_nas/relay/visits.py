"""Visits: what the device computes, one layer over all micro-batches at a time. Always in the caller's thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from l2l_nas.errors import SettingError, SpaceError
from l2l_nas.relay.device import Device
from l2l_nas.relay.interface import Batch, Objective
from l2l_nas.relay.slots import Template
from l2l_nas.space.pool import Layer
from l2l_nas.space.probe import learns
from l2l_nas.space.shapes import Specs, as_tuple

Gradients = Batch | tuple[None, ...]

# how many micro-batches of a template's first backwards are compared with its forward, and how closely
_COMPARISONS = 4
_ROUNDING = 1e-2


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
        loaded: for each layer whose inputs are kept, the age of the weights that its forward ran with.
        norms: by layer of the path, the norms of its gradients, one tensor for each of its states.
        scale: what the loss is multiplied by for the backward.
        spilled: positions whose inputs are not on the device all the time.
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
    loaded: dict[int, tuple[int, ...]] = field(default_factory=dict)
    norms: dict[int, list[Tensor]] = field(default_factory=dict)
    loss: Tensor | None = None
    spilled: frozenset[int] = frozenset()
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
        run.loaded[place] = template.loaded

    def tail(
        self,
        run: Run,
        place: int,
        templates: Sequence[Template],
        objective: Objective,
        targets: Sequence[Tensor],
        count: float,
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
                with_plain_gradients(values)
            run.at = run.depth
            values = _full(values)
            loss = objective.loss(values, targets[index]) / count
            if index == 0:
                refuse_own_parameters(objective, loss, values)
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
        # another process may have updated the weights since; then other outputs are right
        is_same = template.loaded == run.loaded[place] and run.layers[place + 1].position not in run.spilled
        for index, batch in enumerate(run.batches(place)):
            self.device.seed(run.seeds(run.layers[place].position, index))
            leaves = _leaves(batch, place > run.lowest)
            outputs = as_dtypes(run.after(place), as_tuple(template.call(*leaves)))
            if is_same and template.compared < _COMPARISONS:
                template.compared += 1
                _refuse_others(outputs, run.batches(place + 1)[index])
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
    return tuple(tensor.detach().requires_grad_(needed and learns(tensor)) for tensor in batch)


def with_plain_gradients(values: Batch) -> None:
    """Have the gradients of these outputs come contiguous, as those that wait between two visits are.

    Kernels may sum strided ones in another order: what stays on the device would show in the last bits.
    """
    for tensor in values:
        if tensor.grad_fn is not None:
            tensor.register_hook(Tensor.contiguous)


def refuse_own_parameters(objective: Objective, loss: Tensor, outputs: Batch) -> None:
    """Refuse an objective that would learn: nothing would update it.

    Args:
        loss: what it gave for these outputs.

    Raises:
        SettingError: the loss depends on a parameter that the outputs do not come from.
    """
    known = {tensor.grad_fn for tensor in outputs}
    nodes = [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in known:
            continue
        known.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and all(leaf is not tensor for tensor in outputs):
            raise SettingError(
                f"the objective {type(objective).__name__} has parameters of its own, which nothing would train; make "
                "them part of the last layer, or detach them"
            )
        nodes += [following for following, _ in node.next_functions]


def _refuse_others(again: Batch, before: Batch) -> None:
    """Refuse a recompute that gives clearly other outputs than the forward; rounding may differ on some devices."""
    for one, other in zip(again, before, strict=True):
        if torch.equal(one, other):
            continue
        one, other = one.detach(), other.detach()
        largest = other.abs().max() if learns(other) else 0
        if bool(((one - other).abs() > _ROUNDING * largest).any() if learns(other) else one.ne(other).any()):
            raise SpaceError(
                "gives other outputs when the backward runs it again on the same input: it draws random numbers from "
                "elsewhere than torch, or keeps something between calls that is no buffer"
            )


def as_dtypes(specs: Specs, outputs: Batch) -> Batch:
    """Outputs in the dtype in which the next layer takes them."""
    if all(tensor.dtype == spec.dtype for tensor, spec in zip(outputs, specs, strict=True)):
        return outputs
    return tuple(tensor.to(spec.dtype) for tensor, spec in zip(outputs, specs, strict=True))


def _full(values: Batch) -> Batch:
    """Outputs as the objective takes them: low precision becomes float32."""
    low = (torch.bfloat16, torch.float16)
    return tuple(tensor.float() if tensor.dtype in low else tensor for tensor in values)
