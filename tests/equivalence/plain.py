"""Plain PyTorch: what the relay must equal, written without it.

Its own modules from the pool's factories, autograd, one fused `torch.optim` optimizer for each parameter. From the
project it takes the first weights (`ParamServer.state`) and the seeds of dropout (`stream_seed`), nothing else.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from l2l_nas import SGD, Architecture, ParamServer
from l2l_nas.relay.device import stream_seed


class Plain:
    """Trains architectures micro-batch by micro-batch; with `layer_major`, layer by layer with detached boundaries."""

    def __init__(self, server: ParamServer, *, seed: int, layer_major: bool = False) -> None:
        self.server, self.seed, self.layer_major = server, seed, layer_major
        self.modules: dict[str, nn.Module] = {}
        self.tied: dict[str, nn.Parameter] = {}
        self.optimizers: dict[nn.Parameter, torch.optim.Optimizer] = {}

    def module(self, layer) -> nn.Module:
        if layer.key not in self.modules:
            module, first = layer.candidate.factory(), self.server.state(layer.key)
            for name, group in layer.candidate.tied.items():
                value = nn.Parameter(self.server.state(f"tied/{group}").parameters()["weight"].clone())
                setattr(module, name, self.tied.setdefault(group, value))
            for values, own in ((first.parameters(), module.get_parameter), (first.named_buffers(), module.get_buffer)):
                for name, value in values.items():
                    own(name).data.copy_(value)
            kind = torch.optim.SGD if isinstance(self.server.optimizer, SGD) else torch.optim.AdamW
            for p in module.parameters():
                if p.requires_grad and p not in self.optimizers:
                    self.optimizers[p] = kind([p], fused=True, **vars(self.server.optimizer))
            self.modules[layer.key] = module
        return self.modules[layer.key]

    def step(self, architecture: Architecture, inputs, targets: Tensor, *, objective, micro_batch, lr, step) -> float:
        layers = self.server.pool.path(architecture)
        batches = list(zip(*(tensor.split(micro_batch) for tensor in inputs), strict=True))
        parts = targets.split(micro_batch)
        count = sum(map(objective.count, parts))

        def run(layer, number, values):
            module = self.module(layer).train()
            torch.default_generator.manual_seed(stream_seed(self.seed, step, layer.position, number))
            outputs = module(*values)
            return outputs if isinstance(outputs, tuple) else (outputs,)

        losses, visits, total = [], [], {}
        if not self.layer_major:
            for number, (values, part) in enumerate(zip(batches, parts, strict=True)):
                for layer in layers:
                    values = run(layer, number, values)
                losses.append(objective.loss(values, part) / count)
                losses[-1].backward()
        else:
            for layer in layers:
                cut = [[t.detach().requires_grad_(t.is_floating_point()) for t in values] for values in batches]
                batches = [run(layer, number, values) for number, values in enumerate(cut)]
                visits.append((layer, cut, batches))
            losses = [objective.loss(values, part) / count for values, part in zip(batches, parts, strict=True)]
            ends = [[(loss, None)] for loss in losses]
            for place in reversed(range(len(visits))):
                for pairs in ends:
                    torch.autograd.backward(*zip(*pairs, strict=True))
                for p in self.module(visits[place][0]).parameters():
                    if p.grad is not None:
                        total[p], p.grad = total[p] + p.grad if p in total else p.grad, None
                if place:
                    ends = [
                        [(out, leaf.grad) for out, leaf in zip(outs, leaves, strict=True) if leaf.grad is not None]
                        for outs, leaves in zip(visits[place - 1][2], visits[place][1], strict=True)
                    ]
            for p, gradient in total.items():
                p.grad = gradient
        for optimizer in self.optimizers.values():  # a parameter without gradient is left alone
            optimizer.param_groups[0]["lr"] = lr
            optimizer.step()
            optimizer.zero_grad()
        return float(sum(loss.detach() for loss in losses))
