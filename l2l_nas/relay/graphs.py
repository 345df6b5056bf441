"""Layers from graphs: what a layer launches in a slot is recorded once, and later issued by one call.

A template has one recording for each mode, for each sizes of what it takes, and for each place of its weights and
gradients: a forward, and in training its backward, which adds to the gradients where they lie. A layer runs as it is
the first time, is recorded the second time, and replayed from then on. What it takes is copied to where the recording
reads it, what it gives lies where the recording writes it, until something else runs in that slot.

A recording repeats kernels and nothing of the layer's Python. So a layer that draws random numbers, reads a value on
the host, adds a loss, moves its weights or gives several values with gradients runs as it is, with one warning; see
`_tried`. Each recording is replayed once when it is made, and must give what the layer gave; see `_refuse_other`.

[Note: memory of graphs] Recordings of one slot share their memory: a slot has one layer at a time, whose forward and
backward no other layer of the slot comes between. So what they hold grows with the slots and the sizes of values, not
with the kinds of layers, as all that the relay holds. A layer that is repeated in the tail is the exception: its runs
wait for their backwards together, and go without graphs (`Template.call_again`).
"""

from __future__ import annotations

import random
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from l2l_nas.errors import is_out_of_memory, what_raised
from l2l_nas.relay.accelerator import Capture
from l2l_nas.relay.device import Device
from l2l_nas.relay.interface import Batch
from l2l_nas.relay.slots import Template
from l2l_nas.space.losses import collect_losses
from l2l_nas.space.operations import OperationLog, graph_leaves
from l2l_nas.space.randomness import generators_of, preserved_generators
from l2l_nas.space.tolerance import is_near, noise_of, some_gradient
from l2l_nas.space.values import as_tuple

_MOST = 512  # recordings of a relay; the driver has memory of its own for each
_SEEN = 64  # what a template remembers of runs that were not recorded


class _Unfit(Exception):
    """A layer cannot run from a graph; the text says what it does."""


class _GraphSlot:
    """Memory beside a slot that recordings read and write, and a count of what ran there."""

    def __init__(self, device: Device, number: int) -> None:
        self._device = device
        self._known: dict[object, Tensor] = {}
        self.number = number
        self.runs = 0

    def like(self, role: str, number: int, tensor: Tensor) -> Tensor:
        """Memory for a tensor of this size in a role, the same each time. What layers pass on is contiguous."""
        key = (role, number, tensor.dtype, tuple(tensor.shape))
        if key not in self._known:
            block = self._device.allocate(tensor.nbytes)
            self._known[key] = block[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        return self._known[key]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.untyped_storage().nbytes() for tensor in self._known.values())


class Graphs:
    """Has templates run from graphs.

    Args:
        capture: how the device records.
        is_chain: whether each value of the pool has one reader.
    """

    def __init__(self, device: Device, capture: Capture, *, is_chain: bool) -> None:
        self.device = device
        self.capture = capture
        self.is_chain = is_chain
        self._most = _MOST
        self._slots: dict[int, _GraphSlot] = {}
        self._calls: weakref.WeakSet[_GraphCall] = weakref.WeakSet()  # of templates that live
        self.unfit: set[object] = set()  # kinds, each with its mode
        self._warned: set[object] = set()

    def __call__(self, kind: object, template: Template, slot: int) -> None:
        memory = self._slots.setdefault(slot, _GraphSlot(self.device, slot))
        template.call = call = _GraphCall(self, kind, template, memory)
        self._calls.add(call)

    @property
    def num_bytes(self) -> int:
        """Device memory for what recordings take and give. What they compute in between is the allocator's."""
        return sum(slot.num_bytes for slot in self._slots.values())

    @property
    def num_recordings(self) -> int:
        return sum(len(call.recordings) for call in self._calls)

    def has_room(self) -> bool:
        if self.num_recordings < self._most:
            return True
        self._warn(
            None, f"{self._most} recordings are kept; what is new runs without: fewer sizes of batches need fewer"
        )
        return False

    def refuse(self, kind: object, mode: object, name: str, why: str) -> None:
        """Have layers of a kind run as they are in a mode."""
        self.unfit.add((kind, mode))
        self._warn(kind, f"the layer '{name}' runs without a graph: it {why}")

    def _warn(self, kind: object, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(f"relay.layers=graphs: {text}", stacklevel=2)


class _GraphCall:
    """A template's forward, from a graph where there is one."""

    def __init__(self, graphs: Graphs, kind: object, template: Template, slot: _GraphSlot) -> None:
        self._graphs = graphs
        self._kind = kind
        self._template = weakref.proxy(template)  # which holds this: slots go when templates are dropped, not later
        self._slot = slot
        self.recordings: dict[object, _Recording] = {}
        self._seen: set[object] = set()

    def __call__(self, *inputs: Tensor) -> object:
        template, graphs = self._template, self._graphs
        mode = template.module.training, torch.is_grad_enabled()
        if (self._kind, mode) in graphs.unfit:
            return template.module(*inputs)
        key = (mode, template.addresses, *((t.dtype, tuple(t.shape), t.requires_grad) for t in inputs))
        if key not in self.recordings and not self._record(key, mode, inputs):
            return template.module(*inputs)
        return self.recordings[key](inputs)

    def _record(self, key: object, mode: object, inputs: Batch) -> bool:
        """Record what came before already; tell whether that could be done."""
        if key not in self._seen:
            if len(self._seen) >= _SEEN:
                self._seen.clear()
            self._seen.add(key)
        elif self._graphs.has_room():
            try:
                self.recordings[key] = _record(self._graphs, self._template, self._slot, inputs)
                self._seen.discard(key)
            except _Unfit as error:
                self._graphs.refuse(self._kind, mode, self._template.name, str(error))
        return key in self.recordings


@dataclass
class _Recording:
    """A layer's forward and backward as they were recorded.

    Args:
        takes, gives: what the forward reads and writes.
        learns: which one of `gives` has a gradient; None for none.
        incoming: the gradient that the backward reads.
        outgoing: those that it writes, for each of `takes`; None where there is none.
        touched: gradients of parameters that it adds to.
    """

    slot: _GraphSlot
    takes: Batch
    gives: Batch
    learns: int | None
    incoming: Tensor | None = None
    outgoing: tuple[Tensor | None, ...] = ()
    touched: tuple[Tensor, ...] = ()
    replay_forward: Callable[[], None] = lambda: None
    replay_backward: Callable[[], None] = lambda: None

    def __call__(self, inputs: Batch) -> Batch:
        if not torch.is_grad_enabled():
            return tuple(tensor.clone() for tensor in self.forward(inputs))  # evaluation holds all micro-batches
        if self.learns is None:
            return self.forward(inputs)
        # an input that has a gradient in any case, as the layer may have no other
        return _Replayed.apply(self, torch.empty(0, requires_grad=True), *inputs)  # type: ignore[no-any-return,no-untyped-call]

    def forward(self, inputs: Batch) -> Batch:
        for own, tensor in zip(self.takes, inputs, strict=True):
            own.copy_(tensor.detach())
        self.slot.runs += 1
        self.replay_forward()
        return tuple(tensor.detach() for tensor in self.gives)

    def backward(self, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of what the forward took; those of parameters are added where they lie."""
        assert self.incoming is not None
        self.incoming.copy_(gradient)
        self.replay_backward()
        torch.autograd.graph.increment_version(self.touched)  # `Template.has_grad` asks for it
        return tuple(None if own is None else own.clone() for own in self.outgoing)


class _Replayed(torch.autograd.Function):
    """A recording as a node of autograd's graph."""

    @staticmethod
    def forward(ctx: Any, recording: _Recording, anchor: Tensor, *inputs: Tensor) -> Batch:
        del anchor
        ctx.set_materialize_grads(False)
        outputs = recording.forward(inputs)
        ctx.recording, ctx.run = recording, recording.slot.runs
        ctx.mark_non_differentiable(*(t for number, t in enumerate(outputs) if number != recording.learns))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        recording: _Recording = ctx.recording
        assert ctx.run == recording.slot.runs, "another layer ran in the slot; see [Note: memory of graphs]"
        gradient = gradients[recording.learns or 0]
        if gradient is None:
            return None, None, *(None for _ in recording.takes)
        return None, None, *recording.backward(gradient)


def _record(graphs: Graphs, template: Template, slot: _GraphSlot, inputs: Batch) -> _Recording:
    """Record a layer's forward on what it is given and, with autograd on, its backward; _Unfit where it cannot be."""
    takes = tuple(slot.like("takes", n, tensor) for n, tensor in enumerate(inputs))
    for own, tensor in zip(takes, inputs, strict=True):
        own.copy_(tensor.detach())
    work = _CaptureWork(template, slot, takes, [tensor.requires_grad for tensor in inputs])
    buffers = template.buffers.clone()
    try:
        outputs, gradients = _tried(graphs, work)
        expected = [tensor.detach().clone() for tensor in outputs]
        expected_gradients = [gradient.clone() for gradient in gradients if gradient is not None]
        learns = next((n for n, tensor in enumerate(outputs) if tensor.requires_grad), None)
        gives = tuple(slot.like("gives", n, tensor) for n, tensor in enumerate(outputs))
        found = _Recording(slot, takes, gives, learns if torch.is_grad_enabled() else None)
        found.outgoing, found.touched = work.targets(gradients)
        del outputs, gradients
        found.replay_forward = graphs.capture(lambda: work.forward(gives), slot.number)
        if found.learns is not None:
            found.incoming = slot.like("incoming", 0, gives[found.learns])
            found.replay_backward = graphs.capture(lambda: work.backward(found), slot.number)
        template.buffers.copy_(buffers)
        _refuse_other(found, expected, expected_gradients)
    except _Unfit:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise _Unfit(f"cannot be recorded: {what_raised(error)}") from error
    finally:
        template.buffers.copy_(buffers)
    return found


class _CaptureWork:
    """A layer on memory of its slot, with leaves of its own.

    The template's own parameters may be in graphs of autograd that were made on another stream.
    """

    def __init__(self, template: Template, slot: _GraphSlot, takes: Batch, learning: Sequence[bool]) -> None:
        self._module, self._slot = template.module, slot
        self.takes = tuple(t.detach().requires_grad_(has) for t, has in zip(takes, learning, strict=True))
        self._own = {id(p): _leaf(p) for p in template.module.parameters()}
        self._names = dict(template.module.named_parameters(remove_duplicate=False))
        self._outputs: Batch = ()
        pairs = ((self._own[id(p)], p.grad) for p in template.module.parameters() if p.requires_grad)
        self._learned = [(own, gradient) for own, gradient in pairs if gradient is not None]
        self._wanted = [*(t for t in self.takes if t.requires_grad), *(own for own, _ in self._learned)]

    @property
    def has_moved(self) -> bool:
        """Whether a parameter lies elsewhere than the template's: cuDNN's recurrent layers gather theirs anew."""
        return any(self._own[id(p)].data_ptr() != p.data_ptr() for p in self._module.parameters())

    def run(self) -> Batch:
        tensors = {name: self._own[id(parameter)] for name, parameter in self._names.items()}
        return as_tuple(torch.func.functional_call(self._module, tensors, self.takes, tie_weights=False))

    def gradients(self, output: Tensor, incoming: Tensor) -> tuple[Tensor | None, ...]:
        if not self._wanted:
            return ()
        return torch.autograd.grad(output, self._wanted, incoming, allow_unused=True)

    def targets(self, gradients: Sequence[Tensor | None]) -> tuple[tuple[Tensor | None, ...], tuple[Tensor, ...]]:
        """Where such gradients go: a place for each of `takes`, None where there is none, and those of parameters."""
        like, found = self._slot.like, iter(gradients)
        has = [t.requires_grad and next(found, None) is not None for t in self.takes]
        outgoing = tuple(like("outgoing", n, t) if has[n] else None for n, t in enumerate(self.takes))
        touched = (g for (_, g), one in zip(self._learned, found, strict=False) if one is not None)
        return outgoing, tuple(touched)

    def forward(self, gives: Batch) -> None:
        self._outputs = self.run()
        for own, tensor in zip(gives, self._outputs, strict=True):
            own.copy_(tensor.detach())

    def backward(self, found: _Recording) -> None:
        assert found.incoming is not None
        output, self._outputs = self._outputs[found.learns or 0], ()
        gradients = [gradient for gradient in self.gradients(output, found.incoming) if gradient is not None]
        outgoing = [own for own in found.outgoing if own is not None]
        for target, gradient in zip(outgoing, gradients, strict=False):
            target.copy_(gradient)
        for target, gradient in zip(found.touched, gradients[len(outgoing) :], strict=True):
            target.add_(gradient)


def _leaf(parameter: nn.Parameter) -> Tensor:
    own = parameter.detach().requires_grad_(parameter.requires_grad)
    if parameter.requires_grad and parameter.dtype != torch.float32:
        own.grad_dtype = torch.float32  # as the template's own, so that sums are the same
    return own


class _OperationWatch(OperationLog):
    """Sees whether something is read on the host, or has a size that depends on values."""

    reads = False

    def after(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if func is torch.ops.aten.index.Tensor:  # only with masks
            self.reads |= any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
        else:
            tags = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
            self.reads |= any(tag in func.tags for tag in tags)
        devices = [t.device.type for t in args if isinstance(t, Tensor)]
        self.reads |= isinstance(result, Tensor) and result.device.type == "cpu" and any(d != "cpu" for d in devices)


def _tried(graphs: Graphs, work: _CaptureWork) -> tuple[Batch, Sequence[Tensor | None]]:
    """Run all that is to be recorded once, which sets up what kernels need: the layer's outputs, and gradients.

    _Unfit where it does what a recording does not repeat.
    """
    of_host, generators = _host_random(), generators_of(graphs.device.torch_device)
    with preserved_generators(graphs.device.torch_device):
        before = [generator.get_state() for generator in generators]
        with _OperationWatch() as watch, collect_losses() as losses:
            outputs = work.run()
            learning = [tensor for tensor in outputs if tensor.requires_grad] if torch.is_grad_enabled() else []
            uses = _uses(learning, work.takes)
            gradients = work.gradients(learning[0], some_gradient(learning[0])) if len(learning) == 1 else ()
        has_drawn = not all(map(torch.equal, before, (generator.get_state() for generator in generators)))
    if losses:
        raise _Unfit("adds a loss")
    if has_drawn or of_host != _host_random():
        raise _Unfit("draws random numbers")
    if work.has_moved:
        raise _Unfit("moves its weights to memory of its own")
    if watch.reads:
        raise _Unfit("reads values on the host, or has sizes that depend on them")
    if len(learning) > 1:
        raise _Unfit("gives several values that have gradients")
    if not graphs.is_chain and any(count > 1 for count in uses.values()):
        raise _Unfit("takes a value twice that may have other readers, whose gradients are added up one by one")
    return outputs, gradients


def _refuse_other(found: _Recording, expected: Sequence[Tensor], expected_gradients: Sequence[Tensor]) -> None:
    """Replay a recording on what it was recorded on, to see that it gives what the layer gave; _Unfit where not.

    The gradients of parameters are put back.
    """
    is_right = all(map(is_near, found.forward(found.takes), expected))
    if found.learns is not None:
        before = [tensor.clone() for tensor in found.touched]
        try:
            for tensor in found.touched:
                tensor.zero_()
            outgoing = found.backward(some_gradient(found.gives[found.learns]))
            gradients = [*(one for one in outgoing if one is not None), *(one.clone() for one in found.touched)]
        finally:  # they hold what micro-batches before this one added
            for tensor, own in zip(found.touched, before, strict=True):
                tensor.copy_(own)
        noise = noise_of(expected_gradients)
        is_right &= all(is_near(again, one, noise) for again, one in zip(gradients, expected_gradients, strict=True))
    if not is_right:
        raise _Unfit("gives other values when its graph is replayed")


def _host_random() -> tuple[object, bytes, int]:
    state: Any = np.random.get_state()
    return random.getstate(), state[1].tobytes(), int(state[2])


def _uses(outputs: Sequence[Tensor], leaves: Batch) -> Counter[int]:
    """Count for each leaf, by id, how often autograd adds to its gradient."""
    known = {id(leaf) for leaf in leaves}
    reached = [*outputs, *graph_leaves(outputs)]
    return Counter(id(tensor) for tensor in reached if id(tensor) in known)
