"""Layers run again for their graph alone: without the products behind the last tensor that the backward needs.

A backward visit runs a layer again because autograd has to save its tensors again. What the layer gives was stored by
its forward. So what it computes after the last tensor is saved is left out: autograd records those operations, and
their results are NaN. In a pre-norm transformer block that is the last linear layer, up to a third of the forward's
products. `torch.utils.checkpoint` stops a recompute at the same point (`set_checkpoint_early_stop`).

[Note: what is left out] A layer shows how it ends, for each shape of its inputs, in one run under observation. Later
runs compute everything up to the call of torch in which the first operation is to be left out, with no more watching
than a count of calls. From there on they are compared with the observed run, operation by operation. Where one differs
the run is thrown away before the operation is done (`EndsOtherwise`), and layers of that kind are run whole from then
on. These are never left out, nor what comes before them: operations that write to what is there, whose result is not
one floating tensor, has no gradient (it may be kept, or captured by a hook) or decides what follows; and what is read
by other means than an operation. Layers whose saved tensors are not all seen run whole: those with autograd functions
of their own, with hooks for saved tensors inside (checkpoints), and those that change buffers. So do layers whose end
begins outside of any call of torch, or in a mode of their own.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node, saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from l2l_nas.space.losses import add_loss, collect_losses
from l2l_nas.space.shapes import as_tuple

# floating-point operations that are worth it, on a host and on other devices: to watch a layer's end takes a tenth of a
# millisecond of the host
LEAST_FLOPS = {"cpu": 1e8, "": 1e11}

_MOST_SHAPES = 16  # of inputs, of one kind of layer

# what may be asked of a tensor without values
_ABOUT = {
    *(
        getattr(Tensor, name).__get__
        for name in ("shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_cuda")
    ),
    *(Tensor.size, Tensor.dim, Tensor.stride, Tensor.numel, Tensor.is_contiguous, Tensor.is_floating_point),
    Tensor.__len__,
}


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
    """What a layer does.

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

    @property
    def is_needed(self) -> bool:
        """Whether what it takes must have been computed."""
        return self.result is None and not self.is_view


@dataclass(frozen=True)
class _Ending:
    """How a layer ends.

    Attributes:
        call: which of its calls of torch is the first that has an operation to leave out.
        operations: those of this call and the ones after it.
        first: from which one on they are left out, or views.
        saved: how many tensors are saved from this call on.
    """

    call: int
    operations: tuple[_Operation, ...]
    first: int
    saved: int

    @property
    def flops(self) -> float:
        """Floating-point operations that are left out."""
        return sum(one.flops for one in self.operations[self.first :])


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
        self._short_runs: dict[object, _ShortRun] = {}

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
        observer, before = _Observer(), _buffers(self._module)
        copies = [buffer.clone() for buffer in self._module.buffers()]
        try:
            with observer.watch, observer.watch.hooks, _Calls(observer.call), collect_losses() as losses:
                outputs = self._module(*taken)
            observer.require_all()
        except Exception as error:  # torch.func takes no hooks; any other error comes again in the run that follows
            with torch.no_grad():
                for buffer, copy in zip(self._module.buffers(), copies, strict=True):
                    buffer.copy_(copy)
            raise EndsOtherwise from error
        for loss in losses:
            add_loss(loss)
        if _buffers(self._module) == before and not any(map(_saves_unseen, _nodes((*as_tuple(outputs), *losses)))):
            ending = observer.ending()
            if ending is not None and ending.flops >= self._least_flops:
                self._endings[shapes] = ending
        return outputs

    def _shortened(self, shapes: object, ending: _Ending, taken: Sequence[Tensor]) -> object:
        if shapes not in self._short_runs:
            self._short_runs[shapes] = _ShortRun(ending)
        run = self._short_runs[shapes]
        try:
            with _Calls(run.call), run:
                outputs = self._module(*taken)
            run.require_end()
        except Exception as error:
            self._endings[shapes] = None
            raise EndsOtherwise from error
        return outputs


class _Watch(TorchDispatchMode):
    """Sees operations, and the tensors that are saved.

    Args:
        do: gives what an operation gives, of its function, arguments and named arguments.
        save: called for each tensor that is saved.
    """

    def __init__(self, do: Callable[[Any, Any, Any], Any], save: Callable[[], None]) -> None:
        super().__init__()
        self._do = do
        self._save = save
        self.hooks = saved_tensors_hooks(self._pack, lambda tensor: tensor)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch should keep its compiler away from each operation, which costs time at each."""
        return False

    def _pack(self, tensor: Tensor) -> Tensor:
        self._save()
        with torch._C._DisableTorchDispatch():
            # not the tensor itself: an output that its own node holds would never be freed
            return tensor.detach()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._do(func, args, kwargs or {})


class _Observer:
    """Notes the operations of a layer, and after how many of them the last tensor is saved."""

    def __init__(self) -> None:
        self.watch = _Watch(self._do, self._save)
        self._operations: list[_Operation] = []
        self._calls_of: list[int | None] = []  # of each operation, in which call of torch it was; None: in none
        self._call: int | None = None
        self._num_saved = 0
        self._saved_before: list[int] = []  # each call of torch
        self._needed = 0  # operations up to the last tensor that is saved, or read
        self._one = torch.ones((), requires_grad=True)
        self._is_probing = False
        self._sees_all = True

    def _save(self) -> None:
        self._num_saved += 1
        if not self._is_probing:
            self._needed = len(self._operations)

    def _do(self, function: Any, args: Any, kwargs: Any) -> Any:
        outputs = function(*args, **kwargs)
        if not self._is_probing:
            self._operations.append(_operation(function, args, kwargs, outputs))
            self._calls_of.append(self._call)
        return outputs

    def call(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Call torch."""
        self._probe()
        self._saved_before.append(self._num_saved)
        self._call = len(self._saved_before)
        try:
            result = function(*args, **kwargs)
        finally:
            self._call = None
        if _is_read(function, (args, kwargs), result):
            self._needed = len(self._operations)
        return result

    def _probe(self) -> None:
        """Save a tensor, and note whether that was seen: hooks within a layer come before these."""
        self._is_probing, found = True, self._num_saved
        with torch.enable_grad():
            self._one.exp()
        self._sees_all &= self._num_saved > found
        self._is_probing, self._num_saved = False, found

    def require_all(self) -> None:
        """Raise where some were not seen: what others keep now holds the tensors of `_probe`, too."""
        if not self._sees_all:
            raise EndsOtherwise

    def ending(self) -> _Ending | None:
        """How the layer ends; None if it has no end that may be left out."""
        first = max([self._needed, *(place + 1 for place, one in enumerate(self._operations) if one.is_needed)])
        call = self._calls_of[first] if first < len(self._operations) else None
        if call is None:
            return None
        begin = self._calls_of.index(call)
        return _Ending(
            call, tuple(self._operations[begin:]), first - begin, self._num_saved - self._saved_before[call - 1]
        )


class _ShortRun:
    """Leaves out how a layer ends, as long as it does what is known of it. A context, again and again."""

    def __init__(self, ending: _Ending) -> None:
        self._watch = _Watch(self._do, self._save)
        self._ending = ending
        self._modes = contextlib.ExitStack()

    def __enter__(self) -> None:
        self._above = _get_current_dispatch_mode()
        self._num_calls = 0
        self._num_saved = 0
        self._next = 0
        self._is_alike = True

    def __exit__(self, *error: Any) -> None:
        self._modes.close()

    def call(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Call torch."""
        self._num_calls += 1
        if self._num_calls < self._ending.call:
            return function(*args, **kwargs)
        if self._num_calls == self._ending.call:
            self._require(
                _get_current_dispatch_mode() is self._above
            )  # a mode of the layer's own would be taken for ours
            self._modes.enter_context(self._watch.hooks)
            self._modes.enter_context(self._watch)
        result = function(*args, **kwargs)
        if _is_read(function, (args, kwargs), result):
            self._require(self._next <= self._ending.first)
        return result

    def _require(self, is_alike: bool) -> None:
        # remembered, as a layer may catch what is raised within it
        self._is_alike &= is_alike
        if not self._is_alike:
            raise EndsOtherwise

    def _save(self) -> None:
        self._num_saved += 1

    def _do(self, function: Any, args: Any, kwargs: Any) -> Any:
        place, ending = self._next, self._ending
        self._next = place + 1
        self._require(place < len(ending.operations))
        known = ending.operations[place]
        self._require(known.function is function and known.given == _given(args, kwargs))
        if place >= ending.first and known.result is not None:
            return known.result.without_values()
        return function(*args, **kwargs)

    def require_end(self) -> None:
        """Raise where the layer did something else, or not all of it."""
        self._require((self._num_saved, self._next) == (self._ending.saved, len(self._ending.operations)))


class _Calls(TorchFunctionMode):
    """Has calls of torch done by another.

    Args:
        call: gives what a call gives, of its function, arguments and named arguments.
    """

    def __init__(self, call: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()
        self._do = call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._do(func, args, kwargs or {})


def _is_read(function: Any, args: Any, result: object) -> bool:
    """Whether a call read a tensor by other means than an operation: it took one and gave none, and is not about one.

    What takes none, such as the switch of gradients in `no_grad`, must not be broken off: its context would never end.
    """
    return (
        type(result) is not Tensor
        and function not in _ABOUT
        and any(isinstance(one, Tensor) for one in tree_leaves(args))
        and not any(isinstance(one, Tensor) for one in tree_leaves(result))
    )


def _operation(function: Any, args: Any, kwargs: Any, outputs: object) -> _Operation:
    """What was done, and whether it may be left out."""
    given = _given(args, kwargs)
    taken = (one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor))
    has_gradient = torch.is_grad_enabled() and any(one.requires_grad for one in taken)
    tags = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded)
    is_open = function._schema.is_mutable or function.overloadpacket is torch.ops.aten.detach
    if is_open or not has_gradient or any(tag in function.tags for tag in tags):
        return _Operation(function, given)
    if function.is_view:
        return _Operation(function, given, is_view=True)
    if not isinstance(outputs, Tensor) or not outputs.is_floating_point():
        return _Operation(function, given)
    count = flop_registry.get(function.overloadpacket)
    flops = float(count(*args, **kwargs, out_val=outputs)) if count else 0.0
    result = _Result(outputs.shape, outputs.stride(), outputs.dtype, outputs.device)
    return _Operation(function, given, result, flops=flops)


def _given(args: Any, kwargs: Any) -> object:
    """What an operation is given: numbers as they are, of tensors the size, and whether they have a gradient."""
    return torch.is_grad_enabled(), [_about(one) for one in args], {name: _about(one) for name, one in kwargs.items()}


def _about(one: Any) -> object:
    if isinstance(one, Tensor):
        return one.shape, one.stride(), one.dtype, one.requires_grad
    return [_about(item) for item in one] if isinstance(one, list | tuple) else one


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
