"""The resident reference: plain PyTorch, every layer on the device at once, behind the relay's interface.

It is what the relay must equal, and what its speed is compared with. It holds its own modules and a `torch.optim`
optimizer; from the param-server it takes first weights only, and gives them back with `write_back`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from l2l_nas.eps.layout import tied_name
from l2l_nas.eps.optimizer import SGD, AdamW
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.state import LayerState
from l2l_nas.errors import DataError, NonFiniteError
from l2l_nas.relay.device import open_device, stream_seed
from l2l_nas.relay.interface import (
    Batch,
    Objective,
    StepResult,
    Targets,
    bytes_of,
    cut_sizes,
    cut_targets,
    each,
    shares,
)
from l2l_nas.relay.visits import apart, back_from, full, refuse_own_parameters, with_plain_gradients
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.losses import collect_losses, weighted
from l2l_nas.space.pool import Layer
from l2l_nas.space.shapes import as_tuple, check_shapes


class Resident:
    """Runs architectures as plain PyTorch does: micro-batch after micro-batch, autograd, `torch.optim`.

    Like a plain loop, it looks at the loss but not at each gradient: a NaN there reaches its weights.

    Args:
        server: where first weights come from.
        device: as `Relay`'s.
        seed: of dropout's random numbers, keyed as the relay's.
        checkpointing: recompute each layer but the last in the backward (`torch.utils.checkpoint`). For layers without
            BatchNorm, whose statistics it would count twice.
        autocast: compute training in this dtype (`torch.autocast`), on float32 weights.
    """

    def __init__(
        self,
        server: ParamServer,
        *,
        device: str = "auto",
        seed: int = 0,
        checkpointing: bool = False,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.server = server
        self.device = open_device(device)
        self.pool = server.pool
        self.seed = seed
        self.checkpointing = checkpointing
        self.autocast = autocast
        self.modules: dict[str, nn.Module] = {}
        self._tied: dict[str, nn.Parameter] = {}
        self._optimizer: torch.optim.Optimizer | None = None

    def use(self, server: ParamServer) -> None:
        """See `Executor.use`. Weights that were not written back are lost."""
        self.server = server
        self.modules.clear()
        self._tied.clear()
        self._optimizer = None

    def module(self, layer: Layer) -> nn.Module:
        """A layer's module; one for every use of its key."""
        if layer.key not in self.modules:
            module = self.server.build_module(layer, self._tied).to(self.device.torch_device)
            self.modules[layer.key] = module
            self._register([p for p in module.parameters() if p.requires_grad])
        return self.modules[layer.key]

    def _register(self, parameters: list[nn.Parameter]) -> None:
        known = {id(p) for group in self._optimizer.param_groups for p in group["params"]} if self._optimizer else set()
        fresh = [p for p in parameters if id(p) not in known]
        if not fresh:
            return
        if self._optimizer is not None:
            self._optimizer.add_param_group({"params": fresh})
            self._start_momentum(fresh)
            return
        rule = self.server.optimizer
        if isinstance(rule, AdamW):
            self._optimizer = torch.optim.AdamW(
                fresh, lr=0.0, betas=rule.betas, eps=rule.eps, weight_decay=rule.weight_decay, fused=True
            )
        else:
            assert isinstance(rule, SGD)
            self._optimizer = torch.optim.SGD(
                fresh,
                lr=0.0,
                momentum=rule.momentum,
                weight_decay=rule.weight_decay,
                nesterov=rule.nesterov,
                fused=True,
            )

        self._start_momentum(fresh)

    def _start_momentum(self, parameters: list[nn.Parameter]) -> None:
        """Start from zeros, as torch does: its fused SGD raises where only some parameters have a momentum."""
        rule = self.server.optimizer
        if isinstance(rule, SGD) and rule.momentum:
            assert self._optimizer is not None
            for parameter in parameters:
                self._optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    def train_step(
        self,
        architecture: Architecture,
        inputs: Batch,
        targets: Targets,
        *,
        objective: Objective,
        micro_batch: int,
        lr: float,
        step: int,
        upcoming: Architecture | None = None,
    ) -> StepResult:
        """See `Executor.train_step`."""
        del upcoming  # everything is here already
        layers = self.pool.path(architecture)
        modules = [self.module(layer).train() for layer in layers]
        sizes = cut_sizes(len(inputs[0]), micro_batch)
        parts = [each(part, self.device.put) for part in cut_targets(targets, sizes)]
        count = sum(objective.count(part) for part in parts)
        if not count > 0:
            raise DataError("a mini-batch has no targets to learn from")
        total: Tensor | None = None
        auxiliary: list[Tensor] = []
        with self.device.preserved_generators():
            for index, batch in enumerate(zip(*(tensor.split(list(sizes)) for tensor in inputs), strict=True)):
                values = as_tuple([self.device.put(tensor) for tensor in batch])
                autocast = torch.autocast(
                    self.device.torch_device.type, self.autocast, enabled=self.autocast is not None
                )
                with autocast, collect_losses() as losses:
                    outputs = self._through(layers, modules, values, step=step, batch=index)
                values = tuple(t.float() if t.is_floating_point() else t for t in outputs)
                loss = objective.loss(values, parts[index]) / count
                if index == 0:
                    refuse_own_parameters(objective, loss, values)
                total = loss.detach() if total is None else total + loss.detach()
                share = shares(sizes)[index]
                auxiliary += [value.detach() * share for value in full(losses)]
                back_from([*([(loss, None)] if loss.requires_grad else []), *weighted(full(losses), share)])
        assert total is not None
        first, *others = torch.stack([total, *auxiliary]).tolist()
        if not all(map(math.isfinite, (first, *others))):
            if self._optimizer is not None:
                self._optimizer.zero_grad(set_to_none=True)
            raise NonFiniteError("auxiliary loss" if math.isfinite(first) else "loss", layer=None, step=step)
        if self._optimizer is not None:
            for group in self._optimizer.param_groups:
                group["lr"] = lr
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        return StepResult(first, count, auxiliary=sum(others))

    def _through(
        self, layers: Sequence[Layer], modules: Sequence[nn.Module], inputs: Batch, *, step: int, batch: int
    ) -> Batch:
        """One micro-batch through a path in training."""

        def call(place: int, *values: Tensor) -> object:
            module = modules[place]
            self.device.seed(stream_seed(self.seed, step, layers[place].position, batch))
            if self.checkpointing and module is not modules[-1]:
                outputs = as_tuple(checkpoint(module, *values, use_reentrant=False))
            else:
                outputs = as_tuple(module(*values))
            outputs = apart(values, outputs)
            with_plain_gradients(outputs)
            return outputs

        return self.pool.flow(layers).run(inputs, call)

    @torch.no_grad()
    def predict(self, architecture: Architecture, inputs: Batch, *, micro_batch: int) -> Batch:
        """See `Executor.predict`."""
        layers = self.pool.path(architecture)
        modules, flow = [self.module(layer).eval() for layer in layers], self.pool.flow(layers)
        sizes = list(cut_sizes(len(inputs[0]), micro_batch))
        outputs = []
        for batch in zip(*(tensor.split(sizes) for tensor in inputs), strict=True):
            values = as_tuple([self.device.put(tensor) for tensor in batch])
            outputs.append(flow.run(values, lambda place, *taken: modules[place](*taken)))
        return tuple(torch.cat(parts).cpu() for parts in zip(*outputs, strict=True))

    def predict_population(
        self, architectures: Sequence[Architecture], inputs: Batch, *, micro_batch: int, max_bytes: int | None = None
    ) -> list[Batch]:
        """See `Executor.predict_population`; one by one."""
        del max_bytes
        return [self.predict(architecture, inputs, micro_batch=micro_batch) for architecture in architectures]

    @property
    def sample_bytes(self) -> int:
        """See `Executor.sample_bytes`: outputs alone, as a micro-batch goes through all layers at once."""
        return bytes_of(check_shapes(self.pool).outputs)

    @property
    def evaluation_bytes(self) -> None:
        """See `Executor.evaluation_bytes`."""

    @torch.no_grad()
    def recalibrate(self, architecture: Architecture, batches: Sequence[Batch]) -> None:
        """See `Executor.recalibrate`."""
        if not batches:
            raise DataError("recalibration needs at least 1 batch, got 0")
        layers = self.pool.path(architecture)
        modules, flow = [self.module(layer).eval() for layer in layers], self.pool.flow(layers)
        with contextlib.ExitStack() as stack:
            for norm in {part for module in modules for part in module.modules() if isinstance(part, _BatchNorm)}:
                stack.callback(setattr, norm, "momentum", norm.momentum)
                norm.reset_running_stats()
                norm.momentum = None
                norm.train()
            for batch in batches:
                values = as_tuple([self.device.put(tensor) for tensor in batch])
                flow.run(values, lambda place, *taken: modules[place](*taken))

    def write_back(self) -> None:
        """Put weights, buffers and moments into the param-server, as a relay would have left them."""
        self.server.drain()
        for key in self.server.visited:
            with self.server.storage.writing(key) as state:
                self._write_back(key, state)
                state.mark_changed()

    def _write_back(self, key: str, state: LayerState) -> None:
        for name, parameter in self._parameters(key).items():
            index = [entry.name for entry in state.layout.parameters].index(name)
            entry = state.layout.parameters[index]
            moments = self._optimizer.state.get(parameter, {}) if self._optimizer else {}
            with torch.no_grad():
                state.parameters()[name].copy_(parameter)
                for block, kind in zip(state.moments, ("exp_avg", "exp_avg_sq"), strict=False):
                    value = moments.get(kind, moments.get("momentum_buffer"))
                    if value is not None:
                        entry.view(block).copy_(value)
                if "step" in moments:
                    state.steps[index] = moments["step"]
        if key in self.modules:
            values = dict(self.modules[key].named_buffers())
            for name, view in state.named_buffers().items():
                view.copy_(values[name])

    def _parameters(self, key: str) -> dict[str, nn.Parameter]:
        if tied_name(self.pool, key) is not None:
            group = key.removeprefix("tied/")
            return {"weight": self._tied[group]} if group in self._tied else {}
        if key not in self.modules:
            return {}
        named = dict(self.modules[key].named_parameters(remove_duplicate=False))
        return {entry.name: named[entry.name] for entry in self.server.layout(key).parameters}
