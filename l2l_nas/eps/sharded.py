"""A param-server of several ranks: each has a part of every state, see [Note: parts] in `eps/cut.py`."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from l2l_nas.eps.agreement import Pass, begin, facts_of
from l2l_nas.eps.cut import Cut
from l2l_nas.eps.exchange import Channel, Exchange, ObservedExchange
from l2l_nas.eps.gradients import GradientBlock, gradient_bytes
from l2l_nas.eps.inbox import GradientInbox, QueuedGradient
from l2l_nas.eps.layout import Layout
from l2l_nas.eps.optimizers.base import Optimizer
from l2l_nas.eps.optimizers.groups import PoolRules, StateRules
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.state import LayerState, Part
from l2l_nas.eps.storage import Storage
from l2l_nas.eps.sums import squares_of, tree_sum
from l2l_nas.eps.wire import Allocate
from l2l_nas.errors import RankError
from l2l_nas.space.pool import LayerPool

LABEL_BYTES = 16  # behind a row of weights: of which state they are; as many, so that rows stay aligned


def label_of(key: str) -> Tensor:
    """What stands behind weights of a state."""
    return torch.frombuffer(bytearray(hashlib.sha256(key.encode()).digest()[:LABEL_BYTES]), dtype=torch.uint8)


def _differ(labels: Tensor, own: Tensor) -> bool:
    """Whether a rank has another label than this one; one that is not there (`PaperRanks`) has none."""
    return bool(((labels != own) & (labels != 0)).any())


class Cuts:
    """The cut of each state of a pool."""

    def __init__(self, rules: PoolRules, size: int) -> None:
        self._rules = rules
        self._size = size
        self._cuts: dict[str, Cut] = {}

    def of(self, key: str) -> Cut:
        if key not in self._cuts:
            self._cuts[key] = Cut(self._rules.of(key), self._size)
        return self._cuts[key]


class _Rows:
    """Memory that every exchange of a kind uses again."""

    def __init__(self) -> None:
        self._memory = torch.zeros(0, dtype=torch.uint8)

    def of(self, count: int, num_bytes: int) -> Tensor:
        """Bytes of shape [count, num_bytes], which may hold anything."""
        if self._memory.numel() < count * num_bytes:
            self._memory = torch.zeros(count * num_bytes, dtype=torch.uint8)
        return self._memory[: count * num_bytes].view(count, num_bytes)


class ShardedInbox(GradientInbox):
    """Gradients that all ranks form, summed over them as they arrive: a rank gets those of its part.

    Every rank adds the same states in the same order. With a sum go notes, on the same channel: which parameters got a
    gradient on any rank, the sums of squares of all parts, and whose gradient it was if a sum is not finite. So no
    update and no check waits for another rank.
    """

    def __init__(self, pool: LayerPool, rules: PoolRules, cuts: Cuts, exchange: Exchange) -> None:
        super().__init__(pool, rules)
        self._cuts = cuts
        self._exchange = exchange
        self._received, self._sent = _Rows(), _Rows()
        self.has_block_norms = True

    def _layout(self, key: str) -> Layout:
        return self._cuts.of(key).parts[self._exchange.rank].layout

    def _rules_of(self, key: str) -> StateRules:
        return self._cuts.of(key).parts[self._exchange.rank].rules

    def add(
        self,
        key: str,
        block: GradientBlock,
        has_grad: Sequence[bool],
        *,
        lr: float,
        step: int,
        stays: bool = False,
        allocate: Allocate | None = None,
    ) -> None:
        """See `GradientInbox.add`; all ranks call it for the same state. `block` is of the whole state."""
        cut, layout = self._cuts.of(key), self._layout(key)
        own = self.allocate(gradient_bytes(layout), allocate)
        received = self._swapped(key, cut, block)
        summed = tree_sum(list(received.view(torch.float32)))  # the upper part of the tree of chunks
        own.views(layout).values.copy_(summed[: layout.parameter_bytes // 4])
        if stays:
            self.give_back([block])
        queued = self.waiting.setdefault(key, QueuedGradient(lr, step))
        if queued.parts:  # the sum is formed now, so that its squares can be exchanged
            self._views(key, queued).values.add_(own.views(layout).values)
            self.give_back([own])
        else:
            queued.parts.append(own)
        self._exchange_notes(key, queued, has_grad, received)

    def _swapped(self, key: str, cut: Cut, block: GradientBlock) -> Tensor:
        """What all ranks have of this rank's part of a state's gradients: bytes [rank, part_bytes]."""
        size = self._exchange.size
        whole = block.memory[: cut.rules.layout.parameter_bytes]
        received = self._received.of(size, cut.part_bytes)
        if cut.is_whole:
            own = self._sent.of(1, len(whole))[0]  # `whole` may lie on the device
            own.copy_(whole)
            self._exchange.all_gather(own, received, Channel.SEND, of=key)
        else:
            rows = self._sent.of(size, cut.part_bytes)
            cut.take_apart(whole, rows)
            self._exchange.all_to_all(rows, received, Channel.SEND, of=key)
        return received

    def _exchange_notes(self, key: str, queued: QueuedGradient, has_grad: Sequence[bool], received: Tensor) -> int:
        """Have what ranks tell each other of a sum, of these rows.

        Returns:
            Whose row it was, if the sum is not finite: 1 + a rank; -1 for several; 0 where that is not known.
        """
        cut, rank = self._cuts.of(key), self._exchange.rank
        counts = [part.num_blocks for part in cut.parts]
        squares = squares_of(self._views(key, queued).gradients)
        notes = torch.zeros(len(has_grad) + max(counts) + 2, dtype=torch.float64)
        notes[-2] = zlib.crc32(key.encode())
        notes[: len(has_grad)] = torch.tensor(has_grad)
        notes[len(has_grad) :][: counts[rank]] = squares
        if not squares.isfinite().all():
            notes[-1] = _only([row + 1 for row in self._not_finite_rows(key, received)])
        all_notes = notes.new_empty(self._exchange.size, len(notes))
        self._exchange.all_gather(notes, all_notes, Channel.SEND, of=key)
        if _differ(all_notes[:, -2:-1], notes[-2:-1]):
            raise RankError(
                f"ranks send gradients of different layers at once, this one of '{key}': their passes differ"
            )
        touched = all_notes[:, : len(has_grad)].any(dim=0).tolist()
        before = queued.has_grad or [False] * len(cut.parts[rank].indices)
        queued.has_grad = [old or touched[index] for old, index in zip(before, cut.parts[rank].indices, strict=True)]
        rows = [all_notes[rank]] if cut.is_whole else list(all_notes)
        queued.norms = torch.cat([row[len(has_grad) :][:count] for row, count in zip(rows, counts, strict=False)])
        origin = _only(map(int, all_notes[:, -1].tolist()))
        if origin:
            queued.is_own = origin == rank + 1 if origin > 0 else None
        return origin

    def _not_finite_rows(self, key: str, received: Tensor) -> list[int]:
        parameters = self._layout(key).parameters
        are_finite = [all(entry.view(row).isfinite().all() for entry in parameters) for row in received]
        return [rank for rank, is_finite in enumerate(are_finite) if not is_finite]


def _only(found: Iterable[int]) -> int:
    """The number that all have that are not 0; -1 where these differ, 0 where there are none."""
    numbers = set(found) - {0}
    return -1 if len(numbers) > 1 else next(iter(numbers), 0)


class ShardedServer(ParamServer):
    """A rank's part of all states. Every rank makes one alike, and calls the same methods in the same order.

    Args:
        exchange: with the other ranks.
        pool, optimizer, seed, storage, frozen: see `ParamServer`. The storage keeps this rank's parts.

    Attributes:
        cuts: of the states.
    """

    exchange: ObservedExchange

    def __init__(
        self,
        pool: LayerPool,
        exchange: Exchange,
        *,
        optimizer: Optimizer,
        seed: int,
        storage: Storage | None = None,
        frozen: Iterable[str] = (),
    ) -> None:
        super().__init__(pool, optimizer=optimizer, seed=seed, storage=storage, frozen=frozen)
        self.exchange = self.world = ObservedExchange.of(exchange)
        self.cuts = Cuts(self.rules, exchange.size)
        self.gradients = ShardedInbox(self.pool, self.rules, self.cuts, self.exchange)
        self._gathered = _Rows()

    def held_layout(self, key: str) -> Layout:
        return self.cuts.of(key).parts[self.exchange.rank].layout

    def is_sharded(self, key: str) -> bool:
        return not self.cuts.of(key).is_whole

    def put(self, key: str, state: LayerState) -> None:
        self.storage.put(key, self._part_of(key, state))

    def _put_first(self, key: str, state: LayerState) -> None:
        self.storage.put(key, self._part_of(key, state))

    def _part_of(self, key: str, state: LayerState) -> LayerState:
        """This rank's part of a whole state."""
        cut = self.cuts.of(key)
        if cut.is_whole:
            return state
        part = cut.parts[self.exchange.rank]
        own = LayerState.zeros(part.layout, self._masters if self.storage.is_lasting else None)
        whole = state.tensors()
        for name, parameter, tensor in _cut_tensors(own):
            start, stop = part.range_of(parameter)
            source = whole[name]
            tensor.copy_(source if source.shape == tensor.shape else source.reshape(-1)[start:stop])
        own.steps.copy_(state.steps[list(part.indices)])
        own.buffers.copy_(state.buffers)
        own.visits, own.version = state.visits, state.version
        return own

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
        return state.clone() if cut.is_whole else self._gather(cut, state)

    @contextmanager
    def writing(self, key: str) -> Iterator[LayerState]:
        """See `ParamServer.writing`; all ranks call it, and change the whole state alike."""
        with self.all_gather(key) as state:
            yield state
        state.mark_changed()
        self.put(key, state)

    def _gather(self, cut: Cut, state: LayerState) -> LayerState:
        whole = LayerState.zeros(cut.rules.layout)
        steps = whole.steps.new_zeros(len(cut.rules.layout.parameters))
        rank = self.exchange.rank
        steps[list(cut.parts[rank].indices)] = state.steps
        every = steps.new_empty(self.exchange.size, len(steps))
        self.exchange.all_gather(steps, every, Channel.STEP)
        whole.steps.copy_(every.amax(dim=0))
        for name, parameter, target in _cut_tensors(whole):
            self._gather_tensor(cut, name, parameter, state, target)
        whole.buffers.copy_(state.buffers)
        whole.visits, whole.version = state.visits, state.version
        return whole

    def _gather_tensor(self, cut: Cut, name: str, parameter: str, state: LayerState, target: Tensor) -> None:
        ranges = [part.range_of(parameter) for part in cut.parts]
        # a moment may have another shape than its weight, then its parameter has one owner
        flat = target.reshape(-1)
        full = cut.rules.layout.parameters
        numel = next(entry.numel for entry in full if entry.name == parameter)
        lengths = [flat.numel() if (start, stop) == (0, numel) else stop - start for start, stop in ranges]
        own = state.tensors().get(name)
        row = flat.new_zeros(max(lengths))
        if own is not None:
            row[: own.numel()] = own.reshape(-1)
        rows = row.new_empty(self.exchange.size, len(row))
        self.exchange.all_gather(row.view(torch.uint8), rows.view(torch.uint8), Channel.STEP)
        for (start, _), length, values in zip(ranges, lengths, rows, strict=True):
            flat[start : start + length] = values[:length]

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

    def _empty(self) -> ParamServer:
        return ShardedServer(self.pool, self.exchange, optimizer=self.optimizer, seed=self.seed, frozen=self.frozen)

    def all_gather_weights(self, key: str, state: LayerState, slot: Tensor, dtype: torch.dtype) -> None:
        cut = self.cuts.of(key)
        wires, size = cut.wires(dtype), self.exchange.size
        rows = self._gathered.of(size + 1, wires.num_bytes + LABEL_BYTES)  # behind those of all ranks, this rank's own
        weights, labels = rows[:, :-LABEL_BYTES], rows[:, -LABEL_BYTES:]
        state.copy_to_wire(wires.layouts[self.exchange.rank], weights[size])
        labels[size].copy_(label_of(key))
        self.exchange.all_gather(rows[size], rows[:size], Channel.LOAD, of=key)
        if _differ(labels[:size], labels[size]):
            raise RankError(f"ranks load different layers at once, this one '{key}': their passes differ")
        cut.put_together(weights[:size], slot, dtype)


def _cut_tensors(state: LayerState) -> Iterator[tuple[str, str, Tensor]]:
    """Tensors of a state that ranks have parts of, each with its name and its parameter's."""
    for name, tensor in state.tensors().items():
        kind, _, parameter = name.partition(".")
        if kind not in ("visits", "steps", "buffers"):
            yield name, parameter, tensor


def server_of(pool: LayerPool, exchange: Exchange, **options: Any) -> ParamServer:
    """A param-server of one process, or a rank's part of one of several."""
    return ParamServer(pool, **options) if exchange.size == 1 else ShardedServer(pool, exchange, **options)
