"""The reference trainer: plain PyTorch, every layer on the device at once, behind the relay's interface.

It is what the relay must equal, and what its speed is compared with. It holds its own modules and `torch.optim`
optimizers; from the param-server it takes first weights only, and gives them back with `write_back`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from l2l_nas.arguments import check_count, check_flag, check_function, check_kind, check_list, check_seed, of_argument
from l2l_nas.eps.optimizers.base import Optimizer
from l2l_nas.eps.optimizers.plain import add_to, in_torch, moments_in
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import DataError, NonFiniteError
from l2l_nas.relay.device import open_device, stream_seed
from l2l_nas.relay.evaluation import cut_batch, measured_norms
from l2l_nas.relay.extend import Caches
from l2l_nas.relay.interface import (
    Batch,
    Cuts,
    Objective,
    Reduce,
    StepResult,
    Targets,
    as_batch,
    bytes_of,
    cut_sizes,
    cut_up,
    each,
    next_places,
    reduced,
    sample_numbers,
)
from l2l_nas.relay.mini_batch import MiniBatch, shares
from l2l_nas.relay.refusals import keeps_torch_state, refuse_own_parameters
from l2l_nas.relay.visits import apart, back_from, full, with_plain_gradients
from l2l_nas.space.architecture import Architecture, check_architectures
from l2l_nas.space.losses import collect_losses, weighted
from l2l_nas.space.objective import learned_by
from l2l_nas.space.pool import Layer, tied_group
from l2l_nas.space.randomness import preserved_generators
from l2l_nas.space.shapes import check_shapes
from l2l_nas.space.values import as_tuple


class ReferenceTrainer:
    """Runs architectures as plain PyTorch does: micro-batch after micro-batch, autograd, `torch.optim`.

    Like a plain loop, it checks the loss but not each gradient: a NaN there reaches its weights.

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
        device: str | torch.device = "auto",
        seed: int = 0,
        checkpointing: bool = False,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.use(server)
        self.device = open_device(device)
        self.pool = server.pool
        self.seed = check_seed(seed)
        self.checkpointing = check_flag("checkpointing", checkpointing)
        wanted = "None or a dtype, such as torch.bfloat16"
        self.autocast = check_kind("autocast", autocast, (torch.dtype, NoneType), wanted=wanted)

    def use(self, server: ParamServer) -> None:
        """See `Executor.use`. Weights that were not written back are lost."""
        self.server = check_kind("server", server, ParamServer, wanted="a ParamServer")
        self.modules: dict[str, nn.Module] = {}
        self._tied: dict[str, nn.Parameter] = {}
        # each with its share of the learning rate
        self._optimizers: list[tuple[Optimizer, float, torch.optim.Optimizer]] = []
        self._optimized: set[int] = set()  # ids of their parameters

    def module(self, layer: Layer) -> nn.Module:
        """A layer's module; one for every use of its key."""
        if layer.key not in self.modules:
            module = _moved(self.server.build_module(layer, self._tied), self.device.torch_device)
            self.modules[layer.key] = module
            for key in layer.states:
                self._optimize(key)
        return self.modules[layer.key]

    def _optimize(self, key: str) -> None:
        parameters = list(self._parameters(key).values())
        for call in self.server.rules.of(key).calls:
            fresh = [parameters[index] for index in call.indices if id(parameters[index]) not in self._optimized]
            self._optimized.update(map(id, fresh))
            same = (o for rule, scale, o in self._optimizers if (rule, scale) == (call.rule, call.lr_scale))
            if fresh and (optimizer := next(same, None)) is not None:
                add_to(optimizer, fresh)
            elif fresh:
                self._optimizers.append((call.rule, call.lr_scale, in_torch(call.rule, fresh)))

    @property
    def optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        """One for each rule and rate that parameters met so far have."""
        return tuple(optimizer for _, _, optimizer in self._optimizers)

    @keeps_torch_state
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
        samples: Sequence[int] | Tensor | None = None,
        lengths: Sequence[int] | None = None,
    ) -> StepResult:
        """See `Executor.train_step`; a mini-batch is always whole."""
        about: dict[str, Any] = {"objective": objective, "micro_batch": micro_batch, "lr": lr, "step": step}
        batch = MiniBatch.of(self.pool, architecture, inputs, targets, **about, lengths=lengths)
        if upcoming is not None:
            with of_argument("upcoming"):
                Architecture.from_choices(upcoming)
        if samples is not None:
            sample_numbers(samples)
        layers = self.pool.path(architecture)
        modules = [self.module(layer).train() for layer in layers]
        objective = learned_by(modules, objective)
        total: Tensor | None = None
        auxiliary: list[Tensor] = []
        kind = self.device.torch_device.type
        autocast = contextlib.nullcontext() if self.autocast is None else torch.autocast(kind, self.autocast)
        with preserved_generators(self.device.torch_device):
            for index, parts in enumerate(batch.micro_batches()):
                inputs = tuple(map(self.device.put, parts))
                with autocast, collect_losses() as losses:
                    outputs = self._through(layers, modules, inputs, step=step, batch=index)
                outputs = tuple(t.float() if t.is_floating_point() else t for t in outputs)
                loss = objective.loss(outputs, each(batch.targets[index], self.device.put)) / batch.count
                if index == 0:
                    refuse_own_parameters(objective, loss, outputs, modules)
                total = loss.detach() if total is None else total + loss.detach()
                share = shares(batch.sizes)[index]
                auxiliary += [value.detach() * share for value in full(losses)]
                back_from([*([(loss, None)] if loss.requires_grad else []), *weighted(full(losses), share)])
        assert total is not None
        first, *others = torch.stack([total, *auxiliary]).tolist()
        if not all(map(math.isfinite, (first, *others))):
            for optimizer in self.optimizers:
                optimizer.zero_grad(set_to_none=True)
            raise NonFiniteError("auxiliary loss" if math.isfinite(first) else "loss", layer=None, step=step)
        for _, scale, optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr * scale
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return StepResult(first, batch.count, auxiliary=sum(others))

    def _through(
        self, layers: Sequence[Layer], modules: Sequence[nn.Module], inputs: Batch, *, step: int, batch: int
    ) -> Batch:
        """One micro-batch through a path in training."""

        def call(place: int, *values: Tensor) -> object:
            module = modules[place]
            self.device.seed(stream_seed(self.seed, step, layers[place].position, batch))
            is_again = self.checkpointing and module is not modules[-1]
            outputs = checkpoint(module, *values, use_reentrant=False) if is_again else module(*values)
            outputs = apart(values, as_tuple(outputs))
            with_plain_gradients(outputs)
            return outputs

        return self.pool.flow(layers).run(inputs, call)

    def predict(self, architecture: Architecture, inputs: Batch, *, micro_batch: int) -> Batch:
        """See `Executor.predict`."""
        return self._predicted(architecture, inputs, micro_batch)

    def extend(self, architecture: Architecture, inputs: Batch, caches: Caches, *, micro_batch: int) -> Batch:
        """See `Executor.extend`."""
        check_kind("caches", caches, Caches, wanted="Caches")
        inputs = next_places(self.pool.inputs, inputs)
        return self._predicted(architecture, inputs, micro_batch, caches=caches)

    @keeps_torch_state
    @torch.no_grad()
    def _predicted(
        self,
        architecture: Architecture,
        inputs: Batch,
        micro_batch: int,
        *,
        caches: Caches | None = None,
        reduce: Reduce | None = None,
        cuts: Cuts | None = None,
    ) -> Batch:
        layers = self.pool.path(architecture)
        modules, flow = [self.module(layer).eval() for layer in layers], self.pool.flow(layers)
        outputs = []
        if caches is not None:
            cut = cut_batch(inputs, cut_sizes(len(inputs[0]), micro_batch))
        else:
            cut = cut_up(self.pool.inputs, as_batch(inputs), micro_batch, cuts)
        for number, parts in enumerate(cut):
            values = tuple(map(self.device.put, parts))
            calls: list[Callable[..., object]] = list(modules)
            if caches is not None:
                calls = [caches.caller(p, m, iter((number,)), self.device) for p, m in enumerate(modules)]
            part = flow.run(values, lambda place, *taken, calls=calls: calls[place](*taken))
            outputs.append(part if reduce is None else reduced(reduce, number, full(part)))
        return tuple(torch.cat(parts).cpu() for parts in zip(*outputs, strict=True))

    def predict_population(
        self,
        architectures: Sequence[Architecture],
        inputs: Batch,
        *,
        micro_batch: int,
        max_bytes: int | None = None,
        reduce: Reduce | None = None,
        cuts: Cuts | None = None,
    ) -> list[Batch]:
        """See `Executor.predict_population`; one by one."""
        if reduce is not None:
            check_function("reduce", reduce)
        if max_bytes is not None:
            check_count("max_bytes", max_bytes)
        architectures = check_architectures("architectures", architectures)
        return [self._predicted(one, inputs, micro_batch, reduce=reduce, cuts=cuts) for one in architectures]

    @property
    def takes_cuts(self) -> bool:
        """See `Executor.takes_cuts`."""
        return True

    @property
    def sample_bytes(self) -> int:
        """See `Executor.sample_bytes`: outputs alone, as a micro-batch goes through all layers at once."""
        return bytes_of(check_shapes(self.pool).outputs)

    @property
    def reduced_bytes(self) -> int:
        return 0  # nothing waits

    @property
    def evaluation_bytes(self) -> None:
        return None

    @keeps_torch_state
    @torch.no_grad()
    def recalibrate(self, architecture: Architecture, batches: Sequence[Batch]) -> None:
        """See `Executor.recalibrate`."""
        batches = check_list("batches", batches, of=object, wanted="batches")
        batches = [as_batch(one, f"batches[{number}]") for number, one in enumerate(batches)]
        if not batches:
            raise DataError("batches: recalibration needs at least one")
        layers = self.pool.path(architecture)
        modules, flow = [self.module(layer) for layer in layers], self.pool.flow(layers)
        with contextlib.ExitStack() as stack:
            for norm in {norm for module in modules for norm in measured_norms(module)}:
                stack.callback(setattr, norm, "momentum", norm.momentum)
                norm.reset_running_stats()
                norm.momentum = None
                norm.train()
            for batch in batches:
                flow.run(tuple(map(self.device.put, batch)), lambda place, *taken: modules[place](*taken))

    def write_back(self) -> None:
        """Put weights, buffers and moments into the param-server, as a relay would have left them."""
        self.server.drain()
        optimized = {id(p): moments for optimizer in self.optimizers for p, moments in optimizer.state.items()}
        for key in self.server.visited:
            with self.server.storage.writing(key) as state, torch.no_grad():
                tensors = state.tensors()
                for index, (name, parameter) in enumerate(self._parameters(key).items()):
                    moments = optimized.get(id(parameter), {})
                    for kind, value in {"weights": parameter, **moments_in(moments)}.items():
                        tensors[f"{kind}.{name}"].copy_(value)
                    if "step" in moments:
                        state.steps[index] = moments["step"]
                if key in self.modules:
                    values = dict(self.modules[key].named_buffers())
                    for name, view in state.named_buffers().items():
                        view.copy_(values[name])
                state.mark_changed()

    def _parameters(self, key: str) -> dict[str, nn.Parameter]:
        if (group := tied_group(key)) is not None:
            return {"weight": self._tied[group]} if group in self._tied else {}
        if key not in self.modules:
            return {}
        named = dict(self.modules[key].named_parameters(remove_duplicate=False))
        return {entry.name: named[entry.name] for entry in self.server.layout(key).parameters}


def _moved(module: nn.Module, device: torch.device) -> nn.Module:
    """A module on a device; `Module.to` alone makes two buffers of one that two parts share."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for part in module.modules():
        for name, tensor in (*part._parameters.items(), *part._buffers.items()):
            places.setdefault(id(tensor), []).append((part, name))
    module.to(device)
    for (owner, first), *others in places.values():
        for part, name in others:
            setattr(part, name, getattr(owner, first))
    return module
