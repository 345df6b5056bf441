"""A device that records and replays on a CPU, by the contract of `Capture`.

It suffices as what a replay does is what a graph of CUDA does: the same kernels on the same memory. It shows how a
recording is used, and nothing of how CUDA makes one. Memory that others of a place may use again is filled with NaNs.
"""

from __future__ import annotations

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from l2l_nas.relay.device import Cpu


class _Graph(TorchDispatchMode):
    """All operations below autograd while it is entered; memory of before is put back."""

    def __init__(self):
        super().__init__()
        self.calls = []
        self.own = {}  # by address, memory that it made
        self.reads = set()
        self._before = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        kwargs = kwargs or {}
        args, kwargs = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs))
        written = [arg.alias_info is not None and arg.alias_info.is_write for arg in func._schema.arguments]
        named = {arg.name: is_written for arg, is_written in zip(func._schema.arguments, written, strict=True)}
        pairs = [*zip(args, written, strict=False), *((value, named[name]) for name, value in kwargs.items())]
        for value, is_written in pairs:
            for tensor in pytree.tree_leaves(value):
                if not isinstance(tensor, torch.Tensor):
                    continue
                place = tensor.untyped_storage().data_ptr()
                self.reads.add(place)
                if is_written and place not in self.own and place not in self._before:
                    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
                    self._before[place] = whole, whole.clone()
        found = func(*args, **kwargs)
        is_view = not any(written) and any(one.alias_info is not None for one in func._schema.returns)
        results = [one.detach() for one in pytree.tree_leaves(found) if isinstance(one, torch.Tensor)]
        if not is_view:
            self.calls.append((func, args, kwargs, [] if any(written) else results, torch.is_grad_enabled()))
        if not is_view and not any(written):
            self.own |= {one.untyped_storage().data_ptr(): one for one in results}
        return found

    def put_back(self):
        for whole, before in self._before.values():
            whole.copy_(before)
        self._before.clear()
        self.poison(set())

    def poison(self, kept):
        for place, tensor in self.own.items():
            if place not in kept and tensor.is_floating_point():
                tensor.fill_(torch.nan)

    def replay(self):
        for func, args, kwargs, results, has_grad in self.calls:
            with torch.set_grad_enabled(has_grad):  # some kernels ask
                found = func(*args, **kwargs)
            again = [one for one in pytree.tree_leaves(found) if isinstance(one, torch.Tensor)]
            for result, one in zip(results, again, strict=bool(results)):
                result.copy_(one)


class Recording(Cpu):
    """Has memory of its own, and graphs.

    Attributes:
        recorded: by place, what was recorded.
        replays: how often anything ran again.
    """

    def __init__(self):
        super().__init__(copies=True)
        self.recorded = {}
        self.replays = 0
        self.capture = self._capture

    @property
    def num_recorded(self):
        return sum(len(graphs) for graphs in self.recorded.values())

    def _capture(self, work, place):
        graph = _Graph()
        with graph:
            work()
        graph.put_back()
        others = self.recorded.setdefault(place, [])
        others.append(graph)

        @torch.no_grad()
        def replay():
            self.replays += 1
            for other in others:
                if other is not graph:
                    other.poison(graph.reads)
            graph.replay()

        return replay
