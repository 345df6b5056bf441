"""Layers run again for their graph alone: without the products behind the last tensor that the backward needs.

A backward visit runs a layer again because autograd has to save its tensors again. What the layer gives was stored by
its forward. So what it computes after the last tensor is saved is left out: autograd records those operations, and
their results are NaN. In a pre-norm transformer block that is the last linear layer, up to a third of the forward's
products. `torch.utils.checkpoint` stops a recompute at the same point (`set_checkpoint_early_stop`).

[Note: what is left out] A layer shows how it ends, for each shape of its inputs, in one run under observation. Later
runs compute everything up to the call of torch in which the first operation is to be left out, with no more watching
than a count of calls. From there on they are compared with the observed run, operation by operation. One that differs
before anything was left out goes on whole. One that differs later is thrown away before the operation is done
(`EndsOtherwise`), with its buffers as they were. Either way layers of that kind are run whole from then on. These are
never left out, nor what comes before them: operations that write to what is there, whose result is not one floating
tensor, has no gradient (it may be kept, or captured by a hook), lives on after the layer or decides what follows; and
what is read by other means than an operation. Layers whose saved tensors are not all seen run whole: those with
autograd functions of their own (compiled parts are such), with hooks for saved tensors inside (checkpoints), with
tensors of classes of their own or threads; and those that change buffers. So do layers whose end begins outside of any
call of torch, or in a mode of their own.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from l2l_nas.relay.endings import (
    CallMode,
    Ending,
    Endings,
    EndObserver,
    OperationMode,
    given_to,
    is_read,
    keep_compiler_away,
    saves_unseen,
    with_bases,
)
from l2l_nas.space.losses import add_loss, collect_losses
from l2l_nas.space.shapes import as_tuple

# floating-point operations that are worth it, on a host and on other devices: to watch a layer's end takes a tenth of a
# millisecond of the host
LEAST_FLOPS = {"cpu": 1e8, "": 1e11}

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
        self._buffers = list(module.buffers())

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
        if _buffers(self._module) != before or saves_unseen(as_tuple(outputs)):
            self._endings[shapes] = None
        elif len(self._endings) + len(self._met) < _MOST_SHAPES:
            self._met.add(shapes)
        return outputs

    def _observed(self, shapes: object, taken: Sequence[Tensor]) -> object:
        keep_compiler_away()
        self._endings[shapes] = None
        observer, before = EndObserver(), _buffers(self._module)
        with (
            self._undone_if_raised(),
            observer.watch,
            observer.hooks,
            CallMode(observer.call),
            collect_losses() as losses,
        ):
            outputs = self._module(*taken)
            if not observer.sees_all:
                raise EndsOtherwise
        for loss in losses:
            add_loss(loss)
        if _buffers(self._module) != before or saves_unseen((*as_tuple(outputs), *losses), hooked=True):
            return outputs
        ending = observer.ending(outputs, losses)
        if ending is not None and ending.flops >= self._least_flops:
            self._endings[shapes] = ending
        return outputs

    def _shortened(self, shapes: object, ending: Ending, taken: Sequence[Tensor]) -> object:
        if shapes not in self._short_runs:
            self._short_runs[shapes] = _ShortRun(ending)
        run = self._short_runs[shapes]
        try:
            with self._undone_if_raised():
                with run, collect_losses() as losses:
                    outputs = self._module(*taken)
                run.require_end((*as_tuple(outputs), *losses))
        except EndsOtherwise:
            self._endings[shapes] = None
            raise
        if not run.is_short:
            self._endings[shapes] = None
        for loss in losses:
            add_loss(loss)
        return outputs

    @contextlib.contextmanager
    def _undone_if_raised(self) -> Iterator[None]:
        """Raise `EndsOtherwise` for whatever is raised, with buffers and the switch of gradients as they were.

        torch.func, for example, takes no hooks. An error of the layer's own comes again in the run that follows.
        """
        with_gradients = torch.is_grad_enabled()
        copies = [(buffer, _version(buffer), buffer.clone()) for buffer in self._buffers]
        try:
            yield
        except Exception as error:
            torch.set_grad_enabled(with_gradients)
            with torch.no_grad():
                for buffer, version, copy in copies:
                    if _version(buffer) != version:
                        buffer.copy_(copy)
            raise EndsOtherwise from error


class _ShortRun:
    """Leaves out how a layer ends, as long as it does what is known of it. A context, again and again.

    Attributes:
        is_short: something was left out.
    """

    def __init__(self, ending: Ending) -> None:
        self._watch = OperationMode(self._do)
        self._ending = ending
        self._modes = contextlib.ExitStack()

    def __enter__(self) -> None:
        self._above = _get_current_dispatch_mode()
        self._num_calls = 0
        self._next = 0
        self._is_alike = True
        self.is_short = False
        self._left_out: list[weakref.ref[Tensor]] = []
        self._modes.enter_context(CallMode(self._call))

    def __exit__(self, *error: Any) -> None:
        self._modes.close()

    def _call(self, function: Any, args: Any, kwargs: Any) -> Any:
        self._num_calls += 1
        if self._num_calls == self._ending.call:
            if _get_current_dispatch_mode() is self._above:
                self._modes.enter_context(self._watch)
            else:
                self._is_alike = False  # a mode of the layer's own would be taken for ours
        result = function(*args, **kwargs)
        if self.is_short and self._is_alike and is_read(function, (args, kwargs), result):
            self._differ()
        return result

    def _differ(self) -> None:
        # what was begun may be ended, by `finally` and others: nothing more is compared or raised
        self._is_alike = False
        if self.is_short:
            raise EndsOtherwise

    def _do(self, function: Any, args: Any, kwargs: Any) -> Any:
        place, ending = self._next, self._ending
        if self._is_alike:
            known = ending.operations[place] if place < len(ending.operations) else None
            if known is None or known.function is not function or known.given != given_to(args, kwargs):
                self._differ()
            else:
                self._next = place + 1
                if place >= ending.first and known.result is not None:
                    self.is_short = True
                    result = known.result.without_values()
                    self._left_out.append(weakref.ref(result))
                    return result
        return function(*args, **kwargs)

    def require_end(self, outputs: Sequence[Tensor]) -> None:
        """Raise where something was left out, and the layer that gave these did something else, or not all of it."""
        if not self.is_short:
            return
        is_whole = self._is_alike and self._next == len(self._ending.operations)
        given = with_bases(outputs)
        is_kept = any(one is not None and id(one) not in given for one in (left() for left in self._left_out))
        if not is_whole or is_kept:
            raise EndsOtherwise


def _buffers(module: nn.Module) -> list[tuple[int, int]]:
    """Another list after anything wrote to its buffers."""
    return [(id(buffer), _version(buffer)) for buffer in module.buffers()]


def _version(buffer: Tensor) -> int:
    return -1 if buffer.is_inference() else buffer._version
