"""The eager param-server: layer states by key, created on first visit, updated as their gradients arrive."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from l2l_nas.eps.layout import Layout, layout_of
from l2l_nas.eps.optimizer import Optimizer
from l2l_nas.eps.state import LayerState, first_state
from l2l_nas.errors import NonFiniteError
from l2l_nas.space.pool import Layer, LayerPool


@dataclass
class _Pending:
    """A gradient on the host that waits for its update."""

    gradients: Tensor
    touched: list[bool]
    is_checked: bool = False


class ParamServer:
    """All layer states of a pool, in host memory.

    Host cost: 12 bytes a parameter with AdamW when updates are eager (weights and two moments; gradients pass through
    one staging buffer), 16 when gradients are kept until the end of the step (`serial`).

    Args:
        pool: what the states belong to.
        optimizer: the update rule of every state.
        seed: with a state's key, it decides the state's first weights.
    """

    def __init__(self, pool: LayerPool, *, optimizer: Optimizer, seed: int) -> None:
        self.pool = pool
        self.optimizer = optimizer
        self.seed = seed
        self._states: dict[str, LayerState] = {}
        self._pending: dict[str, _Pending] = {}
        self._staging: list[Tensor] = []

    def layout(self, key: str) -> Layout:
        """Where the tensors of a state lie."""
        return layout_of(self.pool, key)

    def state(self, key: str) -> LayerState:
        """The state of a key, created now if this is its first visit.

        Raises:
            SpaceError: its factory raised.
        """
        if key not in self._states:
            self._states[key] = first_state(self.pool, key, num_moments=self.optimizer.num_moments, seed=self.seed)
        return self._states[key]

    @property
    def visited(self) -> tuple[str, ...]:
        """Keys of the states that exist."""
        return tuple(self._states)

    def adopt(self, states: dict[str, LayerState]) -> None:
        """Replace all states, as a checkpoint does."""
        self._states = dict(states)

    def build_module(self, layer: Layer, tied: dict[str, nn.Parameter]) -> nn.Module:
        """A plain module with a copy of a layer's weights and buffers, on the host.

        Args:
            tied: parameters shared between modules, by name; what is missing is added, for the next module.
        """
        module = self.pool.build_module(layer)
        parameters = dict(module.named_parameters(remove_duplicate=False))
        buffers = dict(module.named_buffers())
        state = self.state(layer.key)
        with torch.no_grad():
            for name, value in state.parameters().items():
                parameters[name].copy_(value)
            for name, value in state.named_buffers().items():
                buffers[name].copy_(value)
        for name, group in layer.candidate.tied.items():
            if group not in tied:
                key = f"tied/{group}"
                value = self.state(key).parameters()["weight"]
                tied[group] = nn.Parameter(value.clone(), requires_grad=self.layout(key).parameters[0].trainable)
            path, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(path), leaf, tied[group])
        return module

    def contribute(self, key: str, gradients: Tensor, touched: Sequence[bool]) -> None:
        """Take a gradient from the device; a state used twice in a path contributes twice.

        Args:
            gradients: a block laid out as the state's weights, on any device. It is copied before this returns.
            touched: for each parameter, whether it got a gradient.
        """
        pending = self._pending.get(key)
        if pending is None:
            buffer = self._stage(gradients.numel())
            buffer[: gradients.numel()].copy_(gradients)
            self._pending[key] = _Pending(buffer, list(touched))
            return
        total = pending.gradients[: gradients.numel()].view(torch.float32)
        total.add_(gradients.to("cpu").view(torch.float32))
        pending.is_checked = False
        pending.touched = [a or b for a, b in zip(pending.touched, touched, strict=True)]

    def update(self, key: str, *, lr: float, step: int) -> None:
        """Apply a state's contributions, then forget them.

        Raises:
            NonFiniteError: the gradient has a NaN or inf; the state is as it was.
        """
        pending = self._pending.pop(key)
        state = self._states[key]
        try:
            self._check(key, pending, step=step)
            state.update(self.optimizer, pending.gradients[: state.layout.parameter_bytes], pending.touched, lr=lr)
        finally:
            self._staging.append(pending.gradients)

    def check_pending(self, *, step: int) -> None:
        """Look at all gradients that wait, before any of them is applied.

        Raises:
            NonFiniteError: one has a NaN or inf; it names the first such state.
        """
        for key, pending in self._pending.items():
            self._check(key, pending, step=step)

    def _check(self, key: str, pending: _Pending, *, step: int) -> None:
        if pending.is_checked:
            return
        flat = pending.gradients[: self._states[key].layout.parameter_bytes].view(torch.float32)
        # one pass; a norm that overflows on finite numbers is looked at again
        if not math.isfinite(float(torch.linalg.vector_norm(flat))) and not bool(flat.isfinite().all()):
            raise NonFiniteError("gradient", layer=key, step=step)
        pending.is_checked = True

    def discard_pending(self) -> None:
        """Forget gradients that were not applied, after a refused step."""
        self._staging += [pending.gradients for pending in self._pending.values()]
        self._pending.clear()

    def fork(self, keys: Iterable[str]) -> ParamServer:
        """A server with copies of these states; the others start from their seeds. This one is not touched."""
        other = ParamServer(self.pool, optimizer=self.optimizer, seed=self.seed)
        other._states = {key: self._states[key].clone() for key in keys if key in self._states}
        return other

    def _stage(self, num_bytes: int) -> Tensor:
        """The smallest free staging buffer that is large enough; a new one if there is none."""
        fitting = [index for index, buffer in enumerate(self._staging) if buffer.numel() >= num_bytes]
        if fitting:
            return self._staging.pop(min(fitting, key=lambda index: self._staging[index].numel()))
        if self._staging:  # a larger one takes the place of one that is free: their number stays what a step needs
            self._staging.pop()
        return torch.empty(num_bytes, dtype=torch.uint8)
