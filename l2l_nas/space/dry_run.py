"""Dry runs: a layer runs on an example batch, while modes look on.

All that is found out about a layer before it is trained is found so: what it gives, whether the relay can carry it, its
operations, the memory it needs. It runs on meta, which costs no memory and no arithmetic; on the host where meta
cannot tell; on the relay's device where the host cannot either. `l2l_nas.space.probe` finds out which.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from l2l_nas.space.candidate import Specs, TensorSpec
from l2l_nas.space.losses import collect_losses
from l2l_nas.space.operations import OperationLog, Phase
from l2l_nas.space.randomness import preserved_generators
from l2l_nas.space.split import TRIED_OUT
from l2l_nas.space.torch_state import refuse_change, unchanged
from l2l_nas.space.values import as_tuple, learns

# any size above 1 does: layers that squeeze or normalise over the batch treat 1 specially
BATCH = 2


class DryRun:
    """A layer and an example batch. No run changes the random numbers of the process.

    Args:
        module: on the device.
        device: "meta", "cpu", or the name of the relay's.
        needs_gradient: whether its inputs get a gradient.
    """

    def __init__(
        self, module: nn.Module, inputs: Specs, device: str, *, samples: int = BATCH, needs_gradient: bool = True
    ) -> None:
        self.module = module
        self._device = device
        with preserved_generators(device):
            self._batch = [_example(spec, device, samples) for spec in inputs]
        for tensor in self._batch:
            tensor.requires_grad_(needs_gradient and learns(tensor))
        self._ends: list[Tensor] = []

    def forward(self, *modes: AbstractContextManager[Any]) -> tuple[Tensor, ...]:
        """Run it in training: what it gives."""
        self.module.train()
        # not the leaves themselves, which no layer may change in place, and which autograd keeps in any case
        inputs = [tensor.clone() for tensor in self._batch]
        with self._watched("forward", inputs, modes), collect_losses() as losses:
            outputs = as_tuple(self.module(*inputs))
        self.adds_losses = bool(losses)
        self._ends = [tensor for tensor in (*outputs, *losses) if tensor.requires_grad]
        return outputs

    def backward(self, *modes: AbstractContextManager[Any]) -> None:
        """Run the backward of the last forward, from its outputs and auxiliary losses."""
        ends, self._ends = self._ends, []
        gradients = [torch.ones_like(tensor) for tensor in ends]
        with self._watched("backward", gradients, modes):
            if ends:
                torch.autograd.backward(ends, gradients)

    @torch.no_grad()
    def evaluate(self, *modes: AbstractContextManager[Any]) -> tuple[Tensor, ...]:
        """Run it in evaluation: what it gives."""
        self.module.eval()
        inputs = [tensor.detach().clone() for tensor in self._batch]
        with self._watched("evaluation", inputs, modes):
            return as_tuple(self.module(*inputs))

    @contextlib.contextmanager
    def _watched(
        self, phase: Phase, tensors: Sequence[Tensor], modes: Sequence[AbstractContextManager[Any]]
    ) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(preserved_generators(self._device))
            stack.callback(TRIED_OUT.reset, TRIED_OUT.set(True))
            for mode in modes:
                if isinstance(mode, OperationLog):
                    mode.begin(phase, tensors)
                stack.enter_context(mode)
            stack.enter_context(unchanged(refuse_change("backward" if phase == "backward" else "forward")))
            yield


def _example(spec: TensorSpec, device: str, samples: int) -> Tensor:
    """Random numbers, and zeros where integers may be indices."""
    make = torch.randn if spec.dtype.is_floating_point or spec.dtype.is_complex else torch.zeros
    return make(samples, *spec.shape, dtype=spec.dtype, device=device)
