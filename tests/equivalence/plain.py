"""Plain PyTorch: what the relay must equal, written without it.

Its own modules from the pool's factories, autograd, one fused `torch.optim` optimizer for each parameter. From the
project it takes the first weights (`ParamServer.state`) and the seeds of dropout (`stream_seed`), nothing else.
Between layers, values and their gradients are contiguous: kernels may sum strided ones in another order.
"""

from __future__ import annotations

import dataclasses
from itertools import pairwise as pairwise_ends

import torch
from torch import Tensor, nn

from l2l_nas import SGD, Architecture, ParamServer
from l2l_nas.relay.device import stream_seed


class Plain:
    """Trains architectures micro-batch by micro-batch, or layer by layer with detached boundaries.

    Args:
        layer_major: for an architecture and a batch size, how many of the last layers to run together, micro-batch by
            micro-batch; those before them layer by layer. None: all together.
        clip: a norm and its scope, as `Clip`.
        group_of: for `position/candidate/parameter` and the parameter, what is other in its param group; None freezes
            it. The "lr" in it multiplies the rate.
        chunks: of micro-batches whose losses and gradients are summed by a binary tree; not with `layer_major`.
    """

    def __init__(
        self, server: ParamServer, *, seed: int, layer_major=None, clip=None, group_of=lambda path, p: {}, chunks=None
    ) -> None:
        self.chunks = chunks
        self.server, self.seed, self.layer_major, self.clip = server, seed, layer_major, clip
        self.group_of = group_of
        self.scales: dict[nn.Parameter, float] = {}
        self.modules: dict[str, nn.Module] = {}
        self.tied: dict[str, nn.Parameter] = {}
        self.optimizers: dict[nn.Parameter, torch.optim.Optimizer] = {}

    def module(self, layer) -> nn.Module:
        if layer.key not in self.modules:
            module, first = layer.candidate.factory(), self.server.state(layer.key)
            for name, group in layer.candidate.tied.items():
                value = nn.Parameter(self.server.state(f"tied/{group}").parameters()["weight"].clone())
                path, _, leaf = name.rpartition(".")
                setattr(module.get_submodule(path), leaf, self.tied.setdefault(group, value))
            for values, own in ((first.parameters(), module.get_parameter), (first.named_buffers(), module.get_buffer)):
                for name, value in values.items():
                    own(name).data.copy_(value)
            kind = torch.optim.SGD if isinstance(self.server.optimizer, SGD) else torch.optim.AdamW
            position = self.server.pool.positions[layer.position].name
            for name, p in module.named_parameters():
                group = self.group_of(f"{position}/{layer.candidate.name}/{name}", p)
                if group is None and p not in self.optimizers:
                    p.requires_grad_(False)
                if p.requires_grad and p not in self.optimizers:
                    self.scales[p] = group.pop("lr", 1.0)
                    self.optimizers[p] = kind([p], fused=True, **{**vars(self.server.optimizer), **group})
            self.modules[layer.key] = module
        return self.modules[layer.key]

    def step(
        self, architecture: Architecture, inputs, targets: Tensor, *, objective, micro_batch, lr, step, upcoming=None
    ) -> float:
        pool = self.server.pool
        layers = pool.path(architecture)
        batches = list(zip(*(tensor.split(micro_batch) for tensor in inputs), strict=True))
        parts = targets.split(micro_batch)
        count = sum(map(objective.count, parts))

        def run(layer, number, values, copies=None):
            module = self.module(layer).train()
            torch.default_generator.manual_seed(stream_seed(self.seed, step, layer.position, number))
            outputs = torch.func.functional_call(module, copies, values) if copies else module(*values)
            if isinstance(outputs, dict) or dataclasses.is_dataclass(outputs):
                given = outputs if isinstance(outputs, dict) else vars(outputs)
                outputs = tuple(tensor for tensor in given.values() if tensor is not None)
            outputs = tuple(t.contiguous() for t in (outputs if isinstance(outputs, tuple) else (outputs,)))
            outputs = tuple(t.view_as(t) if any(t is one for one in values) else t for t in outputs)
            for tensor in outputs:
                if tensor.grad_fn is not None:
                    tensor.register_hook(Tensor.contiguous)
            return outputs

        losses = []
        if self.chunks is not None:
            losses = self._by_chunks(architecture, batches, parts, objective, count, run)
        elif self.layer_major is None:
            for number, (batch, part) in enumerate(zip(batches, parts, strict=True)):
                outputs = self._through(
                    architecture, batch, lambda layer, values, number=number: run(layer, number, values)
                )
                losses.append(objective.loss(outputs, part) / count)
                losses[-1].backward()
        else:
            losses = self._layer_major(layers, batches, parts, objective, count, run)
        self._clip(layers)
        for p, optimizer in self.optimizers.items():  # a parameter without gradient is left alone
            optimizer.param_groups[0]["lr"] = lr * self.scales[p]
            optimizer.step()
            optimizer.zero_grad()
        return float(sum(loss.detach() for loss in losses))

    def _by_chunks(self, architecture, batches, parts, objective, count, run):
        """The sums of chunks added in pairs, pairs of pairs and so on; of chunks without a micro-batch nothing."""

        def pairwise(values):
            values = list(values)
            while len(values) > 1:
                pairs = zip(values[::2], values[1::2], strict=True)
                values = [b if a is None else a if b is None else a + b for a, b in pairs]
            return values[0]

        ends = [number * len(batches) // self.chunks for number in range(self.chunks + 1)]
        sums, losses = [], []
        for start, end in pairwise_ends(ends):
            loss = None
            for number in range(start, end):
                outputs = self._through(
                    architecture, batches[number], lambda layer, values, number=number: run(layer, number, values)
                )
                part = objective.loss(outputs, parts[number]) / count
                part.backward()
                loss = part.detach() if loss is None else loss + part.detach()
            losses.append(loss)
            sums.append({p: p.grad for p in self.optimizers if p.grad is not None})
            for p in self.optimizers:
                p.grad = None
        for p in self.optimizers:
            p.grad = pairwise(found.get(p) for found in sums)
        return [pairwise(losses)]

    def _through(self, architecture, batch, run):
        """One micro-batch, position by position; a skip gives what it takes."""
        pool, values, before = self.server.pool, {}, tuple(self.server.pool.sources)
        rest = iter(batch)
        for name, specs in pool.sources.items():
            values[name] = tuple(next(rest) for _ in specs)
        live = {layer.position: layer for layer in pool.path(architecture)}
        for index, position in enumerate(pool.positions):
            taken = [values[name] for name in (position.reads or before) if name in values]
            if index in live:
                given = run(live[index], tuple(tensor for value in taken for tensor in value))
                taken = [given] if len(position.writes) == 1 else [(tensor,) for tensor in given]
            elif not position[architecture.choices[index]].is_skip:
                taken = []  # of no use to anybody
            values.update(zip(position.writes, taken, strict=False))
            before = position.writes
        return tuple(tensor for name in pool.wiring.outputs for tensor in values[name])

    def _layer_major(self, layers, batches, parts, objective, count, run):
        """Group after group, the last layers as one group; each group's gradients are added up by themselves."""
        start = len(layers) - self.layer_major(layers, [len(part) for part in parts])
        groups = [*([layer] for layer in layers[:start]), layers[start:]]
        visits, total = [], {}
        # a weight tied between layers of one group has one gradient for each of them
        copies = [
            {n: self.tied[g].detach().clone().requires_grad_() for n, g in layer.candidate.tied.items()}
            for layer in groups[-1]
            if self.module(layer)
        ]
        for group in groups:
            cut = [
                [t.detach().requires_grad_(t.is_floating_point() or t.is_complex()) for t in values]
                for values in batches
            ]
            batches = []
            for number, values in enumerate(cut):
                for place, layer in enumerate(group):
                    values = run(layer, number, tuple(values), copies[place] if group is groups[-1] else None)
                batches.append(values)
            visits.append((group, cut, batches))
        losses = [objective.loss(values, part) / count for values, part in zip(batches, parts, strict=True)]
        ends = [[(loss, None)] for loss in losses]
        for place in reversed(range(len(visits))):
            for pairs in ends:
                torch.autograd.backward(*zip(*pairs, strict=True))
            group = visits[place][0]
            for index, layer in reversed(list(enumerate(group))):
                found = [(p, p) for p in self.module(layer).parameters()]
                if place == len(visits) - 1:
                    found += [(self.tied[layer.candidate.tied[n]], copy) for n, copy in copies[index].items()]
                for p, holder in found:
                    if holder.grad is not None:
                        total[p], holder.grad = total[p] + holder.grad if p in total else holder.grad, None
            if place:
                ends = [
                    [(out, leaf.grad) for out, leaf in zip(outs, leaves, strict=True) if leaf.grad is not None]
                    for outs, leaves in zip(visits[place - 1][2], visits[place][1], strict=True)
                ]
        for p, gradient in total.items():
            p.grad = gradient
        return losses

    def _clip(self, layers) -> None:
        if self.clip is None:
            return
        listed = list(dict.fromkeys(p for layer in layers for p in self.module(layer).parameters() if p.requires_grad))
        if self.clip.scope == "global":
            torch.nn.utils.clip_grad_norm_(listed, self.clip.norm)
            return
        tied = set(self.tied.values())
        own = {layer.key: [p for p in self.module(layer).parameters() if p not in tied] for layer in layers}
        for parameters in (*own.values(), *([p] for p in tied)):
            torch.nn.utils.clip_grad_norm_(parameters, self.clip.norm)
