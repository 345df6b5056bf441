"""Plain mixed-precision training: what the relay must equal in bf16 and fp16, written without it.

At each place of a path a copy of its module, cast to low precision but for BatchNorm and buffers; gradients summed in
float32 over the names of a weight, over micro-batches, then over places; float32 masters, one fused `torch.optim.AdamW`
for each.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from l2l_nas import Architecture, ParamServer, collect_losses
from l2l_nas.relay.device import stream_seed


class Mixed:
    """Trains architectures, micro-batch by micro-batch.

    Args:
        server: gives the first weights.
        scale: what the loss is multiplied by at first; it halves after a step that overflows and doubles after
            `interval` good ones. None for no scaling.
        clip: the largest norm of all gradients.
    """

    def __init__(self, server: ParamServer, dtype, *, seed=0, scale=None, interval=2000, clip=None) -> None:
        self.server, self.dtype, self.seed, self.clip = server, dtype, seed, clip
        self.scale, self.interval, self.good = scale, interval, 0
        self.is_skipped = False
        self.masters: dict[tuple[str, str], nn.Parameter] = {}
        self.optimizers: dict[nn.Parameter, torch.optim.Optimizer] = {}
        self.modules: dict[tuple[int, str], nn.Module] = {}

    def _module(self, layer) -> nn.Module:
        if (layer.position, layer.key) not in self.modules:
            module = layer.candidate.factory()
            state = self.server.state(layer.key)
            for name, value in state.named_buffers().items():
                module.get_buffer(name).copy_(value)
            for part in module.modules():
                if not isinstance(part, _NormBase):
                    for name, tensor in part.named_parameters(recurse=False):  # buffers stay as they were made
                        if tensor.dtype == torch.float32 and name not in getattr(part, "keep_dtype", ()):
                            tensor.data = tensor.data.to(self.dtype)
            self._part_names(module)
            self.modules[layer.position, layer.key] = module
        module = self.modules[layer.position, layer.key]
        for name, parameter in module.named_parameters():
            master = self._master(layer, module.first_names.get(name, name), parameter.requires_grad)
            parameter.data.copy_(master.data)  # round(master)
            parameter.grad = None
            parameter.grad_dtype = torch.float32  # one that an operation computes in float32 is not rounded
        return module.train()

    @staticmethod
    def _part_names(module) -> None:
        """A parameter of two names becomes two: autograd would add up their gradients in low precision."""
        names: dict[int, str] = {}
        module.first_names = {}
        for name, parameter in list(module.named_parameters(remove_duplicate=False)):
            first = names.setdefault(id(parameter), name)
            if first != name:
                path, _, leaf = name.rpartition(".")
                setattr(module.get_submodule(path), leaf, nn.Parameter(parameter.data.clone()))
                module.first_names[name] = first

    def _master(self, layer, name, is_trainable) -> nn.Parameter:
        group = layer.candidate.tied.get(name)
        key = (f"tied/{group}", "weight") if group else (layer.key, name)
        if key not in self.masters:
            value = self.server.state(key[0]).parameters()[key[1]].clone()
            self.masters[key] = nn.Parameter(value, requires_grad=is_trainable)
            if is_trainable:
                options = vars(self.server.optimizer)
                self.optimizers[self.masters[key]] = torch.optim.AdamW([self.masters[key]], fused=True, **options)
        return self.masters[key]

    def step(self, architecture: Architecture, inputs, targets: Tensor, *, objective, micro_batch, lr, step) -> float:
        layers = self.server.pool.path(architecture)
        modules = [self._module(layer) for layer in layers]
        parts = targets.split(micro_batch)
        count = sum(map(objective.count, parts))
        sums: dict[tuple[int, str], Tensor] = {}
        total = torch.zeros(())
        for number, (batch, part) in enumerate(
            zip(zip(*(tensor.split(micro_batch) for tensor in inputs), strict=True), parts, strict=True)
        ):
            values, extra = self._low(batch), []
            for layer, module in zip(layers, modules, strict=True):
                torch.default_generator.manual_seed(stream_seed(self.seed, step, layer.position, number))
                with collect_losses() as added:
                    outputs = module(*values)
                extra += [value.float() * (len(part) / len(targets)) for value in added]
                values = self._low(outputs if isinstance(outputs, tuple) else (outputs,))
            loss = objective.loss(tuple(v.float() if v.is_floating_point() else v for v in values), part) / count
            total = total + loss.detach()
            (sum(extra, loss) * (self.scale or 1.0)).backward()
            for place, module in enumerate(modules):
                for name, gradient in self._taken(module).items():
                    sums[place, name] = sums[place, name] + gradient if (place, name) in sums else gradient
        self._collect(layers, sums)
        self._apply(lr, self._listed(layers, modules))
        return float(total)

    @staticmethod
    def _taken(module) -> dict[str, Tensor]:
        """The gradients of one micro-batch, by the first name of each weight."""
        taken: dict[str, Tensor] = {}
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                first, gradient = module.first_names.get(name, name), parameter.grad.float()
                taken[first] = taken[first] + gradient if first in taken else gradient
                parameter.grad = None
        return taken

    def _low(self, values):
        return tuple(value.to(self.dtype) if value.dtype == torch.float32 else value for value in values)

    def _collect(self, layers, sums) -> None:
        """Sum over places, last to first."""
        for place in reversed(range(len(layers))):
            for (where, name), gradient in sums.items():
                if where == place:
                    master = self._master(layers[place], name, True)
                    master.grad = gradient if master.grad is None else master.grad + gradient

    def _listed(self, layers, modules):
        """Masters in the order in which a plain model lists them."""
        named = [
            (layer, name, parameter)
            for layer, module in zip(layers, modules, strict=True)
            for name, parameter in module.named_parameters()
            if name not in module.first_names
        ]
        masters = [self._master(layer, name, p.requires_grad) for layer, name, p in named if p.requires_grad]
        return list(dict.fromkeys(masters))

    def _apply(self, lr, listed) -> None:
        learning = [master for master in listed if master.grad is not None]
        self.is_skipped = self.scale is not None and not all(m.grad.isfinite().all() for m in learning)
        if not self.is_skipped:
            for master in learning:
                master.grad.mul_(1.0 / (self.scale or 1.0))
            if self.clip is not None:
                torch.nn.utils.clip_grad_norm_(learning, self.clip)
            for master in learning:
                self.optimizers[master].param_groups[0]["lr"] = lr
                self.optimizers[master].step()
        for master in learning:
            master.grad = None
        if self.scale is not None:
            self.good = 0 if self.is_skipped else self.good + 1
            if self.is_skipped:
                self.scale /= 2
            elif self.good == self.interval:
                self.scale, self.good = self.scale * 2, 0
