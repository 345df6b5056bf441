"""What ranks exchange in a training step, in which order and how much: a pure function of the plan.

The simulator prices it, ranks agree on what it follows from (`passes.py`), and a checker compares it with what a run
did (`tests/relay/exchanges.py`).

[Note: order of exchanges] An exchange is a part of a `LOAD`, a `SAVE` or a `SEND`. Each channel is used by one lane,
and these lanes work in the order of the plan. So all ranks exchange the same in the same order, however long anything
takes. The host's lane takes what is ready first: a `CHECK` or an `UPDATE` exchanges nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from l2l_nas.eps.agreement import MESSAGE_BYTES
from l2l_nas.eps.cut import Cuts
from l2l_nas.eps.exchange import Channel
from l2l_nas.eps.layout import wire_layout_of
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.sharded import LABEL_BYTES, ShardedServer
from l2l_nas.relay.buffers import may_change
from l2l_nas.relay.plan import Op, Plan
from l2l_nas.relay.schedule import COLLECTIVES
from l2l_nas.space.pool import Layer


class Message(NamedTuple):
    """One exchange of a step."""

    op: Op | None  # that it is part of; None for what ranks agree on
    layer: int  # index in the path, or its length for the first layer of the next path; -1 for none
    channel: Channel
    of: str  # the key of the state or layer
    num_bytes: int  # that each rank takes from the others, and gives them
    is_of_tensor: bool = False  # between ranks that share layers


class Exchanges:
    """The exchanges of training steps, but for sums within divided layers.

    Args:
        server: of one rank. A param-server of one process exchanges nothing.
        dtype: of weights that cross the link.
        chunks: of a rank; see [Note: chunks] in `eps/sums.py`.
    """

    def __init__(self, server: ParamServer, dtype: torch.dtype, *, chunks: int = 1) -> None:
        self._server, self._dtype, self._chunks = server, dtype, chunks
        self._cuts = server.cuts if isinstance(server, ShardedServer) else None
        # how many other ranks there are: with other mini-batches, in all, and with other parts of layers
        self._others, self._everyone = server.exchange.size - 1, server.world.size - 1
        self._tensor = server.tensor.size - 1

    def of_step(self, plan: Plan, layers: Sequence[Layer]) -> list[Message]:
        """Of a training step: first what ranks agree on, then what its plan asks for, then losses.

        Losses are read with the first gradient that is sent, or at the end.

        Args:
            layers: of the path, and behind them the first one of the next path, if it is known.
        """
        own = [message for step in plan.steps for message in self.of(step.op, step.layer, layers)]
        every = [self.agreement, *own, self.losses(len(layers))]
        return [message for message in every if message.num_bytes]

    def of(self, op: Op, place: int, layers: Sequence[Layer]) -> Iterator[Message]:
        """Of one step of a plan."""
        if self._cuts is None or op not in COLLECTIVES:
            return
        layer, channel = layers[place % len(layers)], COLLECTIVES[op]
        sizes = {Op.LOAD: self._loaded, Op.SAVE: self._saved, Op.SEND: self._sent}[op]
        for key, size, is_of_tensor in sizes(layer, self._cuts):
            others = self._tensor if is_of_tensor else self._others
            if others:
                yield Message(op, place, channel, key, others * size, is_of_tensor)

    @property
    def agreement(self) -> Message:
        """At the begin of a step, of all ranks."""
        return Message(None, -1, Channel.STEP, "", self._everyone * MESSAGE_BYTES)

    @property
    def comparison(self) -> Message:
        """Of small states, behind that, before some steps."""
        return Message(None, -1, Channel.STEP, "", self._others * MESSAGE_BYTES)

    def counts(self, micro_batches: int) -> Message:
        """Of targets, before all else, where each rank reads the samples of its own micro-batches alone.

        Args:
            micro_batches: of the rank that has most.
        """
        return Message(None, -1, Channel.STEP, "", self._others * 8 * micro_batches)

    def losses(self, num_layers: int) -> Message:
        """Those of the task, and of each layer."""
        return Message(None, -1, Channel.STEP, "", self._others * 2 * self._chunks * (num_layers + 1) * 8)

    def _loaded(self, layer: Layer, cuts: Cuts) -> Iterator[tuple[str, int, bool]]:
        for key in layer.states:
            if self._server.is_sharded(key):
                yield key, cuts.of(key).wires(self._dtype).num_bytes + LABEL_BYTES, False

    def _saved(self, layer: Layer, _: Cuts) -> Iterator[tuple[str, int, bool]]:
        if may_change(self._server.pool, layer):
            wire = wire_layout_of(self._server.pool, layer.key, self._dtype)
            yield layer.key, self._chunks * wire.buffer_bytes, False

    def _sent(self, layer: Layer, cuts: Cuts) -> Iterator[tuple[str, int, bool]]:
        """Gradients; notes of them; and what a rank's part adds to the norm, with a note of it."""
        for key in layer.states:
            layout = self._server.layout(key)
            if layout.is_trainable:
                cut = cuts.of(key)
                yield key, cut.part_bytes, False
                yield key, 8 * (len(layout.parameters) + max(part.num_blocks for part in cut.parts) + 2), False
                yield key, 2 * 8, True

    def memory_bytes(self, layers: Sequence[Layer]) -> int:
        """Host memory that exchanges of these layers pass through, which every one of a kind uses again."""
        if self._cuts is None:
            return 0
        ranks, gathered, received, sent = self._others + 1, 0, 0, 0
        for layer in layers:
            for _, size, _ in self._loaded(layer, self._cuts):
                gathered = max(gathered, (ranks + 1) * size)
            for key in layer.states:
                if self._server.layout(key).is_trainable:
                    cut = self._cuts.of(key)
                    received = max(received, ranks * cut.part_bytes)
                    sent = max(sent, (1 if cut.is_whole else ranks) * cut.part_bytes)
        return gathered + received + sent
