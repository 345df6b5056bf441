"""Layers run again for their graph alone: without the products behind the last tensor that the backward needs.

A backward visit runs a layer again because autograd has to save its tensors again. What the layer gives was stored by
its forward. So what it computes after the last tensor is saved is left out: autograd records those operations, and
their results are NaN. In a pre-norm transformer block that is the last linear layer, up to a third of the forward's
products. `torch.utils.checkpoint` stops a recompute at the same point (`set_checkpoint_early_stop`).

[Note: what is left out] A layer shows how it ends, for each shape of its inputs, in one run under observation. Later
runs are compared with that, operation by operation, from the last saved tensors on: where one differs, nothing is left
out any more, and a run that left out something is thrown away (`EndsOtherwise`). These are never left out, nor what
comes before them: operations that write to what is there, that give something else than one floating tensor, or whose
values decide what follows. Layers whose saved tensors are not all seen run whole: those with autograd functions of
their own, with hooks for saved tensors inside (checkpoints), and those that change buffers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node, saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.flop_counter import flop_registry

from l2l_nas.space.losses import add_loss, collect_losses
from l2l_nas.space.shapes import as_tuple

# floating-point operations that are worth it, on a host and on other devices: to watch a layer takes about 0.1 ms of
# the host
LEAST_FLOPS = {"cpu": 5e7, "": 1e10}

_MOST_SHAPES = 16  # of inputs, of one kind of layer


def least_flops(device: str) -> float:
    """Floating-point operations that are worth it, on a type of device."""
    return LEAST_FLOPS.get(device, LEAST_FLOPS[""])


def left_out(module: nn.Module, taken: Sequence[Tensor], *, least: float) -> float:
    """Floating-point operations that recomputes of a layer leave out; it is run twice for that.

    Args:
        taken: what it takes, on any device.
        least: as in `Recompute`.
    """
    endings: Endings = {}
    again = Recompute(module, endings, least_flops=least)
    try:
        for _ in range(2):
            again(*taken)
    except EndsOtherwise:
        return 0.0
    return sum(ending.flops for ending in endings.values() if ending is not None)


class EndsOtherwise(Exception):
    """A layer that was run without its end did not do what it did before; run it whole."""


@dataclass(frozen=True)
class _Result:
    """A floating tensor that an operation gives."""

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def without_values(self) -> Tensor:
        """A tensor of NaN in its place: whoever reads it all the same will know."""
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device).fill_(math.nan)


@dataclass(frozen=True)
class _Operation:
    """What a layer does after its last tensor is saved.

    Attributes:
        function: the operation.
        given: what it is given, tensors by their sizes, which values may decide.
        result: what it gives, where it may be left out.
        is_view: whether it is a view, which is made of whatever there is.
        flops: floating-point operations, if it is a product.
    """

    function: Any
    given: object
    result: _Result | None = None
    is_view: bool = False
    flops: float = 0.0

    def is_same(self, function: Any, args: Any, kwargs: Any) -> bool:
        """Whether this is it again."""
        return self.function is function and self.given == _given(args, kwargs)

    @property
    def is_needed(self) -> bool:
        """Whether what it takes must have been computed."""
        return self.result is None and not self.is_view


@dataclass(frozen=True)
class _Ending:
    """How a layer ends.

    Attributes:
        watched_from: after how many saved tensors operations are watched.
        saved: how many are saved.
        operations: those that come after the last one.
    """

    watched_from: int
    saved: int
    operations: tuple[_Operation, ...]

    @property
    def flops(self) -> float:
        """Floating-point operations that are left out."""
        return sum(one.flops for one in self.operations if one.result is not None)


Endings = dict[object, _Ending | None]


class Recompute:
    """Runs a layer for its graph.

    Args:
        module: the layer.
        endings: what is known of layers of its kind, by the shapes of their inputs; None where all of it is run.
        least_flops: floating-point operations that it must leave out to do so.
    """

    def __init__(self, module: nn.Module, endings: Endings, *, least_flops: float) -> None:
        self._module = module
        self._endings = endings
        self._least_flops = least_flops
        self._met: set[object] = set()

    def __call__(self, *taken: Tensor) -> object:
        """What the layer gives, with its graph; the values may be NaN.

        Raises:
            EndsOtherwise: this run is of no use.
        """
        shapes = tuple((one.shape, one.stride(), one.dtype, one.device, one.requires_grad) for one in taken)
        if shapes in self._endings:
            ending = self._endings[shapes]
            return self._module(*taken) if ending is None else self._shortened(shapes, ending, taken)
        if shapes in self._met:
            self._met.discard(shapes)
            return self._observed(shapes, taken)
        # autograd refuses changes in place of what it saved only where nobody watches: so the first run is not watched
        before = _buffers(self._module)
        outputs = self._module(*taken)
        if _buffers(self._module) != before:
            self._endings[shapes] = None
        elif len(self._endings) + len(self._met) < _MOST_SHAPES:
            self._met.add(shapes)
        return outputs

    def _observed(self, shapes: object, taken: Sequence[Tensor]) -> object:
        self._endings[shapes] = None
        observer = _Observer()
        try:
            with observer, observer.hooks, _Probe(observer), collect_losses() as losses:
                outputs = self._module(*taken)
        except Exception as error:  # torch.func takes no hooks; any other error comes again in the run that follows
            raise EndsOtherwise from error
        if not observer.sees_all:  # what others keep now holds the probes, too
            raise EndsOtherwise
        for loss in losses:
            add_loss(loss)
        if not any(map(_saves_unseen, _nodes((*as_tuple(outputs), *losses)))):
            ending = observer.ending()
            if ending is not None and ending.flops >= self._least_flops:
                self._endings[shapes] = ending
        return outputs

    def _shortened(self, shapes: object, ending: _Ending, taken: Sequence[Tensor]) -> object:
        run = _ShortRun(ending)
        try:
            with run.hooks:
                outputs = self._module(*taken)
        except Exception as error:
            self._endings[shapes] = None
            raise EndsOtherwise from error
        finally:
            run.close()
        if not run.is_alike:
            self._endings[shapes] = None
            if run.has_left_out:
                raise EndsOtherwise
        return outputs


class _Observer(TorchDispatchMode):
    """Notes the operations of a layer, and after how many of them each tensor is saved."""

    def __init__(self) -> None:
        super().__init__()
        self.hooks = saved_tensors_hooks(self._save, _same)
        self.sees_all = True
        self._is_probed = False
        self._operations: list[_Operation] = []
        self._saved: list[int] = []

    def probe(self, one: Tensor) -> None:
        """Save a tensor, and note whether that was seen: hooks within a layer come before these."""
        self._is_probed, found = True, len(self._saved)
        with torch.enable_grad():
            one.exp()
        self.sees_all &= len(self._saved) > found
        self._is_probed = False
        del self._saved[found:]

    def _save(self, tensor: Tensor) -> Tensor:
        self._saved.append(len(self._operations))
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        if not self._is_probed:
            self._operations.append(_operation(func, args, kwargs, outputs))
        return outputs

    def ending(self) -> _Ending | None:
        """How the layer ends, if anything can be left out."""
        last = self._saved[-1] if self._saved else 0
        found = self._operations[last:]
        first = max((place + 1 for place, one in enumerate(found) if one.is_needed), default=0)
        # a product may begin before its tensors are saved: operations are watched from the tensor before those on
        earlier = [place for place, count in enumerate(self._saved) if count < last]
        if not earlier or first == len(found):
            return None
        run = (_Operation(one.function, one.given) for one in found[:first])
        return _Ending(earlier[-1] + 1, len(self._saved), (*run, *found[first:]))


class _Probe(TorchFunctionMode):
    """Has an observer probe at each call of torch."""

    def __init__(self, observer: _Observer) -> None:
        super().__init__()
        self._observer = observer
        self._one = torch.ones((), requires_grad=True)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._observer.probe(self._one)
        return func(*args, **(kwargs or {}))


class _ShortRun(TorchDispatchMode):
    """Leaves out how a layer ends, as long as it does what is known of it.

    Attributes:
        has_left_out: whether it has left out anything.
    """

    def __init__(self, ending: _Ending) -> None:
        super().__init__()
        self.hooks = saved_tensors_hooks(self._save, _same)
        self.has_left_out = False
        self._ending = ending
        self._saved = 0
        self._next = 0
        self._is_astray = False
        self._is_watching = False

    def close(self) -> None:
        """The layer is done."""
        if self._is_watching:
            self.__exit__(None, None, None)

    @property
    def is_alike(self) -> bool:
        """Whether the layer did what is known."""
        counts = self._saved, self._next
        return not self._is_astray and counts == (self._ending.saved, len(self._ending.operations))

    def _save(self, tensor: Tensor) -> Tensor:
        self._saved += 1
        if self._saved == self._ending.watched_from:
            self.__enter__()
            self._is_watching = True
        return tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._saved >= self._ending.saved and not self._is_astray:
            known = self._ending.operations[self._next : self._next + 1]
            self._next += 1
            self._is_astray = self._saved > self._ending.saved or not known or not known[0].is_same(func, args, kwargs)
            if not self._is_astray and known[0].result is not None:
                self.has_left_out = True
                return known[0].result.without_values()
        return func(*args, **(kwargs or {}))


def _operation(function: Any, args: Any, kwargs: Any, outputs: object) -> _Operation:
    """What was done, and whether it may be left out."""
    given = _given(args, kwargs)
    tags = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded)
    # what is detached may be read by anybody
    is_open = function._schema.is_mutable or function.overloadpacket is torch.ops.aten.detach
    if is_open or any(tag in function.tags for tag in tags):
        return _Operation(function, given)
    if function.is_view:
        return _Operation(function, given, is_view=True)
    if not isinstance(outputs, Tensor) or not outputs.is_floating_point():
        return _Operation(function, given)
    count = flop_registry.get(function.overloadpacket)
    flops = float(count(*args, **(kwargs or {}), out_val=outputs)) if count else 0.0
    result = _Result(outputs.shape, outputs.stride(), outputs.dtype, outputs.device)
    return _Operation(function, given, result, flops=flops)


def _given(args: Any, kwargs: Any) -> object:
    """What an operation is given: numbers as they are, of tensors the size."""
    values, form = tree_flatten((args, kwargs or {}))
    return [(one.shape, one.stride(), one.dtype) if isinstance(one, Tensor) else one for one in values], form


def _saves_unseen(node: Node) -> bool:
    """Whether a node may hold tensors that no hook sees: functions of others can keep them as attributes."""
    return isinstance(node, BackwardCFunction) or "CppNode" in node.name()


def _nodes(outputs: Sequence[object]) -> Iterator[Node]:
    """The graph of these outputs."""
    waiting = [one.grad_fn for one in outputs if isinstance(one, Tensor)]
    known: set[Node | None] = {None}
    while waiting:
        node = waiting.pop()
        if node not in known and node is not None:
            known.add(node)
            yield node
            waiting += [following for following, _ in node.next_functions]


def _buffers(module: nn.Module) -> list[tuple[int, int]]:
    """Another list after anything wrote to its buffers."""
    return [(id(buffer), buffer._version) for buffer in module.buffers()]


def _same(tensor: Tensor) -> Tensor:
    return tensor
