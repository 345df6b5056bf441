"""What a layer does, and how it ends, found in a run under observation; `recompute.py` says what for."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node, saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from l2l_nas.space.shapes import as_tuple

# what may be asked of a tensor without values
_ABOUT = {
    *(
        getattr(Tensor, name).__get__
        for name in ("shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_cuda")
    ),
    *(Tensor.size, Tensor.dim, Tensor.stride, Tensor.numel, Tensor.is_contiguous, Tensor.is_floating_point),
    Tensor.__len__,
}


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
class Operation:
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
class Ending:
    """How a layer ends.

    Attributes:
        call: which of its calls of torch is the first that has an operation to leave out.
        operations: those of this call and the ones after it.
        first: from which one on they are left out, or views.
    """

    call: int
    operations: tuple[Operation, ...]
    first: int

    @property
    def flops(self) -> float:
        """Floating-point operations that are left out."""
        return sum(one.flops for one in self.operations[self.first :])


Endings = dict[object, Ending | None]


class OperationMode(TorchDispatchMode):
    """Has operations done by another.

    Args:
        do: gives what an operation gives, of its function, arguments and named arguments.
    """

    def __init__(self, do: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()
        self._do = do

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Whether torch should keep its compiler away from each operation, which costs time at each."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._do(func, args, kwargs or {})


class EndObserver:
    """Notes the operations of a layer, and after how many of them the last tensor is saved.

    Attributes:
        watch, hooks: to be entered around the layer, and `CallMode` with `call`.
        sees_all: whether all tensors were saved under these hooks. If not, others may keep tensors of the probes, too.
    """

    def __init__(self) -> None:
        self.watch = OperationMode(self._do)
        self.hooks = saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self._operations: list[Operation] = []
        self._results: list[tuple[int, weakref.ref[Tensor]]] = []  # of operations, by their number
        self._calls_of: list[int | None] = []  # of each operation, in which call of torch it was; None: in none
        self._call: int | None = None
        self._num_calls = 0
        self._num_saved = 0
        self._needed = 0  # operations up to the last tensor that is saved, or read
        self._one = torch.ones((), requires_grad=True)
        self._is_probing = False
        self.sees_all = True

    def _pack(self, tensor: Tensor) -> Tensor:
        self._num_saved += 1
        if not self._is_probing:
            self._needed = len(self._operations)
        if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
            self.sees_all = False
            return tensor.detach()
        with torch._C._DisableTorchDispatch():
            # not the tensor itself: an output that its own node holds would never be freed
            return tensor.detach()

    def _do(self, function: Any, args: Any, kwargs: Any) -> Any:
        outputs = function(*args, **kwargs)
        if not self._is_probing:
            if isinstance(outputs, Tensor):
                self._results.append((len(self._operations), weakref.ref(outputs)))
            self._operations.append(_operation(function, args, kwargs, outputs))
            self._calls_of.append(self._call)
        return outputs

    def call(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Call torch."""
        self._probe()
        self._num_calls += 1
        self._call = self._num_calls
        try:
            result = function(*args, **kwargs)
        finally:
            self._call = None
        if is_read(function, (args, kwargs), result):
            self._needed = len(self._operations)
        return result

    def _probe(self) -> None:
        """Save a tensor, and note whether that was seen: hooks within a layer come before these."""
        self._is_probing, found = True, self._num_saved
        with torch.enable_grad():
            self._one.exp()
        self.sees_all &= self._num_saved > found
        self._is_probing, self._num_saved = False, found

    def ending(self, outputs: object, losses: Sequence[Tensor]) -> Ending | None:
        """How the layer that gave these ends; None if it has no end that may be left out."""
        given, others = {id(one) for one in as_tuple(outputs)}, with_bases((*as_tuple(outputs), *losses))
        # an output is held by a name here and one of `getrefcount`, and by the tuple of outputs or two names for them
        holders = 4 if isinstance(outputs, Tensor) else 3
        needed = [self._needed, *(place + 1 for place, one in enumerate(self._operations) if one.is_needed)]
        for place, result in self._results:
            found = result()
            is_kept = sys.getrefcount(found) > holders if id(found) in given else id(found) not in others
            if found is not None and is_kept:
                needed.append(place + 1)
        first = max(needed)
        call = self._calls_of[first] if first < len(self._operations) else None
        if call is None:
            return None
        begin = self._calls_of.index(call)
        return Ending(call, tuple(self._operations[begin:]), first - begin)


class CallMode(TorchFunctionMode):
    """Has calls of torch done by another.

    Args:
        call: gives what a call gives, of its function, arguments and named arguments.
    """

    def __init__(self, call: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()
        self._do = call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._do(func, args, kwargs or {})


def is_read(function: Any, args: Any, result: object) -> bool:
    """Whether a call read a tensor by other means than an operation: it took one and gave none, and is not about one.

    What takes none, such as the switch of gradients in `no_grad`, must not be broken off: its context would never end.
    """
    return (
        type(result) is not Tensor
        and function not in _ABOUT
        and any(isinstance(one, Tensor) for one in tree_leaves(args))
        and not any(isinstance(one, Tensor) for one in tree_leaves(result))
    )


def _operation(function: Any, args: Any, kwargs: Any, outputs: object) -> Operation:
    """What was done, and whether it may be left out."""
    given = given_to(args, kwargs)
    taken = (one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor))
    has_gradient = torch.is_grad_enabled() and any(one.requires_grad for one in taken)
    tags = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded)
    is_open = function._schema.is_mutable or function.overloadpacket is torch.ops.aten.detach
    if is_open or not has_gradient or any(tag in function.tags for tag in tags):
        return Operation(function, given)
    if function.is_view:
        return Operation(function, given, is_view=True)
    if not isinstance(outputs, Tensor) or not outputs.is_floating_point():
        return Operation(function, given)
    count = flop_registry.get(function.overloadpacket)
    flops = float(count(*args, **kwargs, out_val=outputs)) if count else 0.0
    result = _Result(outputs.shape, outputs.stride(), outputs.dtype, outputs.device)
    return Operation(function, given, result, flops=flops)


def given_to(args: Any, kwargs: Any) -> object:
    """What an operation is given: numbers as they are, of tensors the size, and whether they have a gradient."""
    return torch.is_grad_enabled(), [_about(one) for one in args], {name: _about(one) for name, one in kwargs.items()}


def _about(one: Any) -> object:
    if isinstance(one, Tensor):
        return one.shape, one.stride(), one.dtype, one.requires_grad
    return [_about(item) for item in one] if isinstance(one, list | tuple) else one


@functools.cache
def keep_compiler_away() -> None:
    """torch.compile in a layer would compile what each call of torch goes through, for the first and then for all."""
    setattr(CallMode, "__torch_function__", torch.compiler.disable(CallMode.__torch_function__))  # noqa: B010


def saves_unseen(outputs: Sequence[object], *, hooked: bool = False) -> bool:
    """Whether the graph of these may hold tensors that no hook sees: functions of others can keep them as attributes.

    Args:
        hooked: it was made under hooks, so that what has none was saved in another thread.
    """
    return any(
        isinstance(node, BackwardCFunction) or "CppNode" in node.name() or (hooked and _has_unhooked(node))
        for node in _nodes(outputs)
    )


def _has_unhooked(node: Node) -> bool:
    """Whether it saved a tensor that may still be given hooks; it is given some. Numbers never have any."""
    for name in dir(node):
        if name.startswith("_raw_saved_"):
            raw, values = _listed(getattr(node, name)), _listed(getattr(node, name.removeprefix("_raw")))
            for one, value in zip(raw, values, strict=True):
                # RuntimeError: it has hooks
                with contextlib.suppress(RuntimeError), torch._C._DisableTorchDispatch():
                    if isinstance(value, Tensor) and value.dim():
                        one.register_hooks(torch.detach, lambda tensor: tensor)
                        return True
    return False


def _listed(one: Any) -> Sequence[Any]:
    return one if isinstance(one, tuple | list) else (one,)


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


def with_bases(tensors: Sequence[Tensor]) -> set[int]:
    """Which tensors they are, and of which they are views."""
    return {id(one) for tensor in tensors for one in (tensor, tensor._base)}
