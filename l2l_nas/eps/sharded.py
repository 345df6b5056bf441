"""A param-server of several ranks: each has a part of every state, see `eps/partition.py`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from l2l_nas.eps.agreement import Pass, begin, facts_of
from l2l_nas.eps.cut import Cuts
from l2l_nas.eps.exchange import Channel, Exchange, Mesh, ObservedExchange
from l2l_nas.eps.layout import Layout
from l2l_nas.eps.optimizers.base import Optimizer
from l2l_nas.eps.optimizers.groups import PoolRules, freeze, rules_of
from l2l_nas.eps.partition import Divided, DividedPool, PartRules, join_parts, take_part
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.sharded_inbox import Rows, ShardedInbox, labels_differ
from l2l_nas.eps.state import LayerState, Part
from l2l_nas.eps.storage import Storage
from l2l_nas.errors import RankError, SettingError
from l2l_nas.space.pool import Layer, LayerPool

LABEL_BYTES = 16  # behind a row of weights: of which state they are; as many, so that rows stay aligned


def label_of(key: str) -> Tensor:
    """What stands behind weights of a state."""
    return torch.frombuffer(bytearray(hashlib.sha256(key.encode()).digest()[:LABEL_BYTES]), dtype=torch.uint8)


class ShardedServer(ParamServer):
    """A rank's part of all states. Every rank makes one alike, and calls the same methods in the same order.

    Whoever reads, saves or replaces a state from outside has it whole.

    Args:
        pool: of the layers; or a pool that is divided among ranks that share layers, such as a `SplitPool`.
        exchange: with the other ranks, which share mini-batches; or a mesh of ranks. Those of `mesh.tensor` share
            layers, in the order of the pool's parts.
        optimizer, seed, storage, frozen: see `ParamServer`. The storage keeps this rank's parts. What `optimizer`
            freezes is frozen in the whole pool.

    Attributes:
        cuts: of the states, among ranks that share mini-batches.
        divided: the pool, where ranks share layers.

    Raises:
        SettingError: as `ParamServer`; or a rule that needs whole weights is to update one that is divided.
    """

    exchange: ObservedExchange

    def __init__(
        self,
        pool: LayerPool | DividedPool,
        exchange: Exchange | Mesh,
        *,
        optimizer: Optimizer,
        seed: int,
        storage: Storage | None = None,
        frozen: Iterable[str] = (),
    ) -> None:
        mesh = exchange if isinstance(exchange, Mesh) else Mesh(exchange, exchange)
        self.divided = None if isinstance(pool, LayerPool) else pool
        own = pool if isinstance(pool, LayerPool) else pool.parts
        super().__init__(own, optimizer=optimizer, seed=seed, storage=storage, frozen=frozen)
        data = ObservedExchange.of(mesh.data)
        self.mesh = Mesh(data if mesh.world is mesh.data else ObservedExchange.of(mesh.world), data, mesh.tensor)
        self.exchange, self.world, self.tensor = data, self.mesh.world, mesh.tensor
        self.cuts = Cuts(self.rules, data.size)
        if self.divided is not None:
            self._refuse_whole_rules(self.divided)
        self.gradients = ShardedInbox(self.pool, self.rules, self.cuts, self.mesh, divided=self.divided)
        self._gathered = Rows()

    def _frozen(self, pool: LayerPool) -> LayerPool:
        if self.divided is None:
            return super()._frozen(pool)
        if freeze(self.divided.whole, self.optimizer) is not self.divided.whole:
            raise SettingError("optimizer: its groups freeze parameters; divide the pool that freeze() gives")
        return pool

    def _make_rules(self) -> PoolRules:
        return super()._make_rules() if self.divided is None else PartRules(self.divided, self.optimizer)

    @property
    def whole_pool(self) -> LayerPool:
        return self.pool if self.divided is None else self.divided.whole

    def whole_layout(self, key: str) -> Layout:
        whole = self.rules if self.divided is None else rules_of(self.divided.whole, self.optimizer)
        return whole.of(key).layout

    def _refuse_whole_rules(self, divided: DividedPool) -> None:
        """Refuse rules that do not treat each number by itself, of parameters that are divided."""
        for key in self.pool.states:
            rules = self.rules.of(key)
            for call in rules.calls:
                kept = [rules.layout.moments[number] for number in call.moments]
                for index in call.indices:
                    entry = rules.layout.parameters[index]
                    shapes = [dict(zip(one.indices, one.entries, strict=True))[index].shape for one in kept]
                    is_elementwise = getattr(call.rule, "is_elementwise", True)
                    if divided.is_whole(key, entry.name) or (is_elementwise and set(shapes) <= {entry.shape}):
                        continue
                    raise SettingError(
                        f"optimizer {call.rule.name} updates whole weights, but '{entry.name}' of '{key}' is divided "
                        f"among {self.mesh.tensor.size} ranks; take adamw, sgd or lion, leave such parameters to them "
                        "by a group, or have parallel.tensor=1"
                    )

    def held_layout(self, key: str) -> Layout:
        return self.cuts.of(key).parts[self.exchange.rank].layout

    def is_sharded(self, key: str) -> bool:
        return not self.cuts.of(key).is_whole

    def put(self, key: str, state: LayerState) -> None:
        if self.divided is not None:
            state = take_part(self._division(self.divided, key), state, self.tensor.rank)
        self._put_first(key, state)

    def _put_first(self, key: str, state: LayerState) -> None:
        cut = self.cuts.of(key)
        if not cut.is_whole:
            masters = self._masters if self.storage.is_lasting else None
            state = take_part(cut, state, self.exchange.rank, masters)
        self.storage.put(key, state)

    def _division(self, divided: DividedPool, key: str) -> Divided:
        return Divided(divided, key, whole_layout=self.whole_layout(key), layout=self.rules.of(key).layout)

    @contextmanager
    def all_gather(self, key: str, part: Part = Part.ALL) -> Iterator[LayerState]:
        """A state with the parts of all ranks; all of them call it for the same state. Changes of it are lost.

        Raises:
            SettingError: on all ranks, if they call it for different states.
        """
        with self.storage.reading(key, part) as state:  # what may fail on one rank, before any other waits for it
            begin(self.world, Pass.READ, facts_of({"key": key, "extent": part}))
            yield self._gathered_state(key, state)

    def _gathered_state(self, key: str, state: LayerState) -> LayerState:
        cut = self.cuts.of(key)
        own = state.clone() if cut.is_whole else join_parts(cut, state, self.exchange, key)
        return own if self.divided is None else join_parts(self._division(self.divided, key), own, self.tensor, key)

    @contextmanager
    def writing(self, key: str) -> Iterator[LayerState]:
        """See `ParamServer.writing`; all ranks call it, and change the whole state alike."""
        with self.all_gather(key) as state:
            yield state
        state.mark_changed()
        self.put(key, state)

    def state(self, key: str) -> LayerState:
        """The whole state, a copy; all ranks call it. See `ParamServer.state`."""
        self.drain()
        self.prepare([key])
        with self.all_gather(key) as state:
            return state

    @property
    def num_bytes(self) -> int:
        """Of this rank's parts."""
        self.drain()
        total = 0
        for key in self.visited:
            with self.storage.reading(key, Part.ALL) as state:
                total += sum(tensor.nbytes for tensor in state.tensors().values())
        return total

    def build_module(self, layer: Layer, tied: dict[str, nn.Parameter]) -> nn.Module:
        """See `ParamServer.build_module`; all ranks call it."""
        return super().build_module(layer if self.divided is None else self.whole_pool.owner(layer.key), tied)

    def like(self, pool: LayerPool | None = None, *, storage: Storage | None = None) -> ParamServer:
        if pool is not None and self.divided is not None:
            raise SettingError("layers that ranks share are trained in their own pool alone; have parallel.tensor=1")
        return ShardedServer(
            (self.divided or self.pool) if pool is None else pool,
            self.mesh,
            optimizer=self.optimizer,
            seed=self.seed,
            storage=storage,
            frozen=self.frozen,
        )

    def all_gather_weights(self, key: str, state: LayerState, slot: Tensor, dtype: torch.dtype) -> None:
        cut = self.cuts.of(key)
        wires, size = cut.wires(dtype), self.exchange.size
        rows = self._gathered.of(size + 1, wires.num_bytes + LABEL_BYTES)  # behind those of all ranks, this rank's own
        weights, labels = rows[:, :-LABEL_BYTES], rows[:, -LABEL_BYTES:]
        state.copy_to_wire(wires.layouts[self.exchange.rank], weights[size])
        labels[size].copy_(label_of(key))
        self.exchange.all_gather(rows[size], rows[:size], Channel.LOAD, of=key)
        if labels_differ(labels[:size], labels[size]):
            raise RankError(f"ranks load different layers at once, this one '{key}': their passes differ")
        cut.put_together(weights[:size], slot, dtype)


def server_of(pool: LayerPool, exchange: Exchange, **options: Any) -> ParamServer:
    """A param-server of one process, or a rank's part of one of several."""
    return ParamServer(pool, **options) if exchange.size == 1 else ShardedServer(pool, exchange, **options)
