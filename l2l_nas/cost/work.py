"""What a layer asks of a device: its operations, counted on meta tensors if they tell, so that nothing is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from l2l_nas.cost.device import run_through
from l2l_nas.cost.hardware import Work
from l2l_nas.space.candidate import Specs
from l2l_nas.space.pool import Layer, LayerPool


def layer_work(
    pool: LayerPool, layer: Layer, inputs: Specs, samples: int, *, dtype: torch.dtype, needs_gradient: bool
) -> tuple[Work, Work]:
    """What one micro-batch of a layer asks for: its forward, and its backward without the forward run again.

    Args:
        inputs: in the dtypes of the device.
        dtype: of weights on the device.
        needs_gradient: whether its inputs get one.
    """
    counter = _Counter()
    passes = run_through(pool, layer, inputs, samples, dtype=dtype, needs_gradient=needs_gradient, mode=counter)
    next(passes)
    forward, counter.work = counter.work, Work()
    next(passes)
    return forward, counter.work


class _Counter(TorchDispatchMode):
    """Adds up what operations ask for; views ask for nothing."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.work = Work()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and count it."""
        result = func(*args, **(kwargs or {}))
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        made = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        known = {t.untyped_storage()._cdata for t in given}
        if not func._schema.is_mutable and all(t.untyped_storage()._cdata in known for t in made):
            return result  # a view
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.work += Work(float(count(*args, **(kwargs or {}), out_val=result)), 0.0, 1)
        else:
            moved = sum(t.numel() * t.element_size() for t in (*given, *made))
            self.work += Work(0.0, float(moved), 1)
        return result
