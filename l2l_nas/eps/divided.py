"""A param-server whose layers are divided among ranks; see [Note: divided layers] in `space/split.py`.

Its states are this rank's parts, of the pool's parts; ranks that have the same part may share it further, as in
`eps/sharded.py`. Whoever reads, saves or replaces a state from outside has it whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from l2l_nas.eps.cut import RankPart
from l2l_nas.eps.exchange import Channel, Exchange, Mesh, ObservedExchange
from l2l_nas.eps.inbox import QueuedGradient
from l2l_nas.eps.layout import Layout, layout_of
from l2l_nas.eps.optimizers.base import Optimizer
from l2l_nas.eps.optimizers.groups import PoolRules, StateRules, freeze, rules_of, state_rules
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.sharded import Cuts, ShardedInbox, ShardedServer
from l2l_nas.eps.state import LayerState
from l2l_nas.eps.storage import Storage
from l2l_nas.eps.sums import num_blocks
from l2l_nas.errors import SettingError
from l2l_nas.space.pool import Layer, LayerPool


class DividedPool(Protocol):
    """What is known of a pool that is divided among ranks; names are of parameters and buffers, by state."""

    @property
    def whole(self) -> LayerPool:
        """The pool as one process has it."""

    @property
    def parts(self) -> LayerPool:
        """The pool of this rank's parts."""

    def take(self, key: str, name: str, tensor: Tensor, rank: int | None = None) -> Tensor | None:
        """A rank's part of a whole tensor, such as a weight or its moment; None where it has nothing of it."""

    def join(self, key: str, name: str, parts: Sequence[Tensor | None]) -> Tensor:
        """The whole tensor, of what each rank has of it."""

    def is_whole(self, key: str, name: str) -> bool:
        """Whether each rank has all of a tensor, and the same numbers in it."""


class PartRules(PoolRules):
    """How a rank's parts are updated: each as the whole parameter would be, by whatever groups and rules look at."""

    def __init__(self, divided: DividedPool, optimizer: Optimizer) -> None:
        self._whole, self._parts = rules_of(divided.whole, optimizer), divided.parts
        super().__init__(divided.whole, optimizer)

    def _of(self, key: str) -> StateRules:
        treatments, layout = self._whole.treatments(key), layout_of(self._parts, key)
        return state_rules(layout, [treatments[entry.name] for entry in layout.parameters])


class DividedInbox(ShardedInbox):
    """Gradients of parts. With their notes goes what each rank's share of the norm is.

    [Note: norms of divided layers] A parameter that every rank has is counted by the first one alone. A rank adds the
    squares of a state that it counts, and all ranks get the sums of all: so they clip, skip and refuse alike, and what
    every rank has stays the same to the bit. Beside the sum stands whose gradient it was if that is not finite.
    """

    def __init__(
        self, divided: DividedPool, rules: PoolRules, cuts: Cuts, exchange: Exchange, tensor: Exchange
    ) -> None:
        super().__init__(divided.parts, rules, cuts, exchange)
        self._divided, self._tensor = divided, tensor
        self._counted: dict[str, Tensor] = {}  # by state, which of its sums of squares this rank counts

    def _exchange_notes(self, key: str, queued: QueuedGradient, has_grad: Sequence[bool], received: Tensor) -> int:
        origin = super()._exchange_notes(key, queued, has_grad, received)
        assert queued.norms is not None
        if key not in self._counted:
            self._counted[key] = self._counts(key)
        own = math.fsum(queued.norms[self._counted[key]].tolist())  # rounded once, whoever has which of the squares
        every = torch.empty(self._tensor.size, 2, dtype=torch.float64)
        self._tensor.all_gather(torch.tensor([own, origin], dtype=torch.float64), every, Channel.SEND, of=key)
        queued.norms = every[:, 0]
        found = [(rank, number) for rank, number in enumerate(every[:, 1].tolist()) if number]
        if found:
            is_one = len(found) == 1 and found[0][1] > 0
            queued.is_own = found == [(self._tensor.rank, self._exchange.rank + 1)] if is_one else None
        return origin

    def _counts(self, key: str) -> Tensor:
        cut = self._cuts.of(key)
        parts: Sequence[RankPart] = cut.parts[:1] if cut.is_whole else cut.parts
        return torch.tensor(
            [
                self._tensor.rank == 0 or not self._divided.is_whole(key, entry.name)
                for part in parts
                for entry, (start, stop) in zip(part.layout.parameters, part.ranges, strict=True)
                for _ in range(num_blocks(stop - start))
            ],
            dtype=torch.bool,
        )


class DividedServer(ShardedServer):
    """This rank's parts of all layers. Every rank makes one alike, and calls the same methods in the same order.

    Args:
        divided: the pool, such as a `SplitPool`.
        mesh: the ranks; those of `mesh.tensor` share layers, in the order of its parts.
        optimizer, seed, storage, frozen: see `ParamServer`. What `optimizer` freezes is frozen in the whole pool.

    Raises:
        SettingError: as `ParamServer`; or a rule that needs whole weights is to update one that is divided.
    """

    def __init__(
        self,
        divided: DividedPool,
        mesh: Mesh,
        *,
        optimizer: Optimizer,
        seed: int,
        storage: Storage | None = None,
        frozen: Iterable[str] = (),
    ) -> None:
        self.divided, self.mesh = divided, mesh
        super().__init__(divided.parts, mesh.data, optimizer=optimizer, seed=seed, storage=storage, frozen=frozen)
        self.world, self.tensor = ObservedExchange.of(mesh.world), mesh.tensor
        self._refuse_whole_rules()
        self.gradients = DividedInbox(divided, self.rules, self.cuts, self.exchange, mesh.tensor)

    def _frozen(self, pool: LayerPool) -> LayerPool:
        whole = self.divided.whole
        if freeze(whole, self.optimizer) is not whole:
            raise SettingError("optimizer: its groups freeze parameters; divide the pool that freeze() gives")
        return pool

    def _make_rules(self) -> PoolRules:
        return PartRules(self.divided, self.optimizer)

    @property
    def whole_pool(self) -> LayerPool:
        return self.divided.whole

    def whole_layout(self, key: str) -> Layout:
        return rules_of(self.divided.whole, self.optimizer).of(key).layout

    def _refuse_whole_rules(self) -> None:
        """Refuse rules that do not treat each number by itself, of parameters that are divided."""
        for key in self.pool.states:
            rules = self.rules.of(key)
            for call in rules.calls:
                kept = [rules.layout.moments[number] for number in call.moments]
                for index in call.indices:
                    entry = rules.layout.parameters[index]
                    shapes = [dict(zip(one.indices, one.entries, strict=True))[index].shape for one in kept]
                    is_elementwise = getattr(call.rule, "is_elementwise", True)
                    if self.divided.is_whole(key, entry.name) or (is_elementwise and set(shapes) <= {entry.shape}):
                        continue
                    raise SettingError(
                        f"optimizer {call.rule.name} updates whole weights, but '{entry.name}' of '{key}' is divided "
                        f"among {self.mesh.tensor.size} ranks; take adamw, sgd or lion, leave such parameters to them "
                        "by a group, or have parallel.tensor=1"
                    )

    def put(self, key: str, state: LayerState) -> None:
        own = LayerState.zeros(self.rules.of(key).layout)
        whole = state.tensors()
        for name, tensor in own.tensors().items():
            if "." not in name:  # steps and visits
                continue
            part = self.divided.take(key, name.partition(".")[2], whole[name])
            assert part is not None, name
            tensor.copy_(part)
        names = [entry.name for entry in state.layout.parameters]
        own.steps.copy_(state.steps[[names.index(entry.name) for entry in own.layout.parameters]])
        own.visits, own.version = state.visits, state.version
        super().put(key, own)

    def _gathered_state(self, key: str, state: LayerState) -> LayerState:
        return self._joined(key, super()._gathered_state(key, state))

    def _joined(self, key: str, own: LayerState) -> LayerState:
        whole = LayerState.zeros(self.whole_layout(key))
        parts = own.tensors()
        for name, target in whole.tensors().items():
            if "." in name:
                self._join(key, name, parts.get(name), target)
        counts = dict(zip((entry.name for entry in own.layout.parameters), own.steps.tolist(), strict=True))
        steps = torch.tensor([counts.get(entry.name, 0.0) for entry in whole.layout.parameters])
        every = steps.new_empty(self.mesh.tensor.size, len(steps))
        self.mesh.tensor.all_gather(steps, every, Channel.STEP)
        whole.steps.copy_(every.amax(dim=0))
        whole.visits, whole.version = own.visits, own.version
        return whole

    def _join(self, key: str, name: str, own: Tensor | None, target: Tensor) -> None:
        """Have a tensor of the whole state be that of all ranks' parts."""
        tensor, ranks = name.partition(".")[2], range(self.mesh.tensor.size)
        if self.divided.is_whole(key, tensor):
            if own is not None:  # moments were not asked for
                target.copy_(own)
            return
        shapes = [self.divided.take(key, tensor, torch.empty_like(target, device="meta"), rank) for rank in ranks]
        row = target.new_zeros(max(one.numel() for one in shapes if one is not None))
        if own is not None:
            row[: own.numel()] = own.reshape(-1)
        rows = row.new_empty(len(ranks), len(row))
        self.mesh.tensor.all_gather(row, rows, Channel.STEP, of=key)
        pieces = [
            None if one is None else values[: one.numel()].view(one.shape)
            for one, values in zip(shapes, rows, strict=True)
        ]
        target.copy_(self.divided.join(key, tensor, pieces))

    def build_module(self, layer: Layer, tied: dict[str, nn.Parameter]) -> nn.Module:
        """See `ParamServer.build_module`; all ranks call it."""
        return super().build_module(self.whole_pool.owner(layer.key), tied)

    def _empty(self) -> ParamServer:
        return DividedServer(self.divided, self.mesh, optimizer=self.optimizer, seed=self.seed, frozen=self.frozen)
