"""Ways in which ranks share the training of one stack: the relay's, and those of PyTorch. All compute the same step.

Each is built on every rank, from the stack's own first weights, with AdamW. Where ranks share the mini-batch, each has
some of its samples; where they share layers, each has them all. A step returns a rank's share of the loss: the sum over
ranks is the loss of the mini-batch.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from torch import Tensor, nn

from benchmarks.relay.others import Recomputed, adamw, token_loss
from benchmarks.relay.work import StackSizes, TokenLoss
from l2l_nas.eps.exchange import Channel, Exchange, Exchanged
from l2l_nas.eps.optimizers.rules import AdamW
from l2l_nas.eps.sharded import ShardedServer, server_of
from l2l_nas.relay.plan import Op
from l2l_nas.relay.relay import Relay
from l2l_nas.relay.trace import NET, Trace, busy_intervals, exposed_s

CHUNKS = 4


@dataclass(frozen=True)
class Rank:
    """One of the processes that share a step.

    Args:
        exchange: with the others; torch's default group is of the same ranks.
        work: the stack, and the mini-batch of all ranks.
        is_recomputed: whether layers but the last are computed again in the backward, so that their inner values need
            not be stored.
    """

    exchange: Exchange
    work: StackSizes
    is_recomputed: bool = True

    @property
    def tokens(self) -> Tensor:
        """Its share of the mini-batch, [batch / ranks, sequence]."""
        return self.work.tokens.chunk(self.exchange.size)[self.exchange.rank]

    def layers(self) -> list[nn.Module]:
        """Plain modules of the whole stack."""
        layers = self.work.modules()
        return [*map(Recomputed, layers[:-1]), layers[-1]] if self.is_recomputed else layers


class Way(Protocol):
    """One way at work on a rank."""

    def step(self, number: int) -> float:
        """One training step and all that it began; this rank's share of the loss before its update."""

    def facts(self) -> Mapping[str, float]:
        """What was counted since the last call."""

    def close(self) -> None:
        """Let go of everything."""


class RelayWay:
    """The relay; of several ranks each has a part of every state.

    Args:
        settings: of the relay, each by its own name.
    """

    def __init__(self, rank: Rank, **settings: Any) -> None:
        self._work, self._trace, self._taken = rank.work, Trace(), Counter[Channel]()
        self._server = server_of(self._work.pool, rank.exchange, optimizer=AdamW(), seed=self._work.seed)
        settings |= {} if rank.is_recomputed else {"device_budget": "all"}
        self._relay = Relay(self._server, device="cpu", seed=self._work.seed, trace=self._trace, **settings)
        if isinstance(self._server, ShardedServer):
            self._server.exchange.observers.append(self._note)

    def _note(self, done: Exchanged) -> None:
        self._taken[done.channel] += done.num_bytes

    def step(self, number: int) -> float:
        """See `Way.step`."""
        work = self._work
        result = self._relay.train_step(
            work.architecture, (work.tokens,), work.tokens,
            objective=TokenLoss(), micro_batch=work.micro_batch, lr=work.lr, step=number, upcoming=work.architecture,
        )  # fmt: skip
        self._relay.drain()
        return result.loss / self._server.exchange.size

    def facts(self) -> Mapping[str, float]:
        """See `Way.facts`.

        Seconds in which an exchange is under way, the waiting for other ranks included, and those of them in which no
        layer computes; bytes that came from other ranks, and the fewest possible: (ranks - 1) / ranks of the weights
        that were loaded and of the gradients that were sent, where a state is divided; bytes of the states.
        """
        size, spans = self._server.exchange.size, self._trace.spans
        moved = [span.layer for span in spans if span.op in (Op.LOAD.value, Op.SEND.value)]
        cut = [self._server.layout(key).parameter_bytes for key in moved if self._server.gathers(key)]
        exchanged_s = sum(end - start for start, end in busy_intervals(span for span in spans if span.lane == NET))
        facts = {
            "exchanged_s": exchanged_s,
            "exposed_s": exposed_s(spans),
            "received_bytes": self._taken.total(),
            "least_bytes": sum(cut) * (size - 1) / size,
            "state_bytes": self._server.num_bytes,
        }
        self._trace.clear()
        self._taken.clear()
        return facts

    def close(self) -> None:
        """See `Way.close`."""
        self._relay.close()


class TorchWay:
    """A plain module and AdamW.

    Args:
        model: takes tokens.
        tokens: of this rank's micro-batches.
        scale: of losses, where gradients are averaged over ranks instead of summed.
        share: of the loss of these tokens that this rank gives.
        around: makes what a micro-batch is computed within; it is told whether that is the last one.
    """

    def __init__(
        self,
        rank: Rank,
        model: nn.Module,
        tokens: Tensor,
        *,
        scale: float = 1.0,
        share: float = 1.0,
        around: Callable[[bool], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        self._model, self._scale, self._share, self._around = model, scale, share, around
        self._parts, self._count = tokens.split(rank.work.micro_batch), rank.work.tokens.numel()
        self._optimizer = adamw(model.parameters(), rank.work)

    def step(self, number: int) -> float:
        """See `Way.step`."""
        total = 0.0
        for index, tokens in enumerate(self._parts):
            with self._around(index == len(self._parts) - 1):
                loss = token_loss(self._model(tokens), tokens, self._count)
                (loss * self._scale).backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return total * self._share

    def facts(self) -> Mapping[str, float]:
        """See `Way.facts`."""
        return {}

    def close(self) -> None:
        """See `Way.close`."""
        del self._model, self._optimizer


def plain(rank: Rank) -> Way:
    """PyTorch in one process."""
    return TorchWay(rank, nn.Sequential(*rank.layers()), rank.tokens)


def ddp(rank: Rank) -> Way:
    """`DistributedDataParallel`: all has whole weights and moments; one sum of gradients a step."""
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(nn.Sequential(*rank.layers()), gradient_as_bucket_view=True)

    def around(is_last: bool) -> AbstractContextManager[object]:
        return contextlib.nullcontext() if is_last else model.no_sync()

    return TorchWay(rank, model, rank.tokens, scale=rank.exchange.size, around=around)


def fsdp2(rank: Rank, *, is_offloaded: bool, is_cut: bool = True) -> Way:
    """`fully_shard` of each layer; gradients are summed once a step.

    Args:
        is_offloaded: whether its `CPUOffloadPolicy` has parameters on the host.
        is_cut: whether the mini-batch is cut into micro-batches, each of which gathers all weights twice.
    """
    from benchmarks.relay.fsdp import shard

    layers = rank.layers()
    model = shard(nn.Sequential(*layers), layers, rank.work.torch_device, is_offloaded=is_offloaded)

    def around(is_last: bool) -> AbstractContextManager[object]:
        model.set_requires_gradient_sync(is_last)  # type: ignore[operator]
        return contextlib.nullcontext()

    if not is_cut:
        rank = replace(rank, work=replace(rank.work, micro_batch=rank.work.batch))
    return TorchWay(rank, model, rank.tokens, scale=rank.exchange.size, around=around)


def tensor_parallel(rank: Rank) -> Way:
    """Torch's tensor-parallel styles: attention by heads, feed-forward by columns and rows, logits by vocabulary."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (rank.exchange.size,))
    columns = dict.fromkeys(("0.query", "0.key", "0.value", "1.up"), ColwiseParallel())
    rows = dict.fromkeys(("0.out", "1.down"), RowwiseParallel())
    layers = rank.layers()
    for layer in layers[1:-1]:
        inner = layer.inner if isinstance(layer, Recomputed) else layer
        parallelize_module(inner, mesh, {**columns, **rows})
    parallelize_module(layers[-1], mesh, ColwiseParallel(output_layouts=Replicate()))
    return TorchWay(rank, nn.Sequential(*layers), rank.work.tokens, share=1 / rank.exchange.size)


class Pipeline:
    """`torch.distributed.pipelining`: each rank has a run of layers, as many as the others or one more.

    Args:
        schedule: "GPipe" or "1F1B".
    """

    def __init__(self, rank: Rank, schedule: str) -> None:
        from torch.distributed.pipelining import PipelineStage
        from torch.distributed.pipelining.schedules import get_schedule_class

        work, size, number = rank.work, rank.exchange.size, rank.exchange.rank
        layers = rank.layers()
        first, last = (place * len(layers) // size for place in (number, number + 1))
        own = nn.Sequential(*layers[first:last])
        self._stage = PipelineStage(own, number, size, work.torch_device)
        self._is_first, self._is_last, self._tokens = number == 0, number == size - 1, work.tokens
        self._schedule = get_schedule_class(schedule)(
            self._stage,
            n_microbatches=work.batch // work.micro_batch,
            loss_fn=partial(token_loss, count=work.tokens.numel()),
            scale_grads=False,
        )
        self._optimizer = adamw(own.parameters(), work)

    def step(self, number: int) -> float:
        """See `Way.step`."""
        losses: list[Tensor] = []
        inputs = (self._tokens,) if self._is_first else ()
        targets = {"target": self._tokens, "losses": losses} if self._is_last else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._schedule.step(*inputs, **targets)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return sum(loss.item() for loss in losses)

    def facts(self) -> Mapping[str, float]:
        """See `Way.facts`."""
        return {}

    def close(self) -> None:
        """See `Way.close`."""
        del self._schedule, self._stage, self._optimizer


WAYS: Mapping[str, Callable[[Rank], Way]] = {
    "relay": RelayWay,
    "relay_chunks": partial(RelayWay, chunks=CHUNKS),
    "relay_inline": partial(RelayWay, chunks=CHUNKS, lanes="inline"),
    "plain": plain,
    "ddp": ddp,
    "fsdp2": partial(fsdp2, is_offloaded=False),
    "fsdp2_offload": partial(fsdp2, is_offloaded=True),
    "fsdp2_offload_whole": partial(fsdp2, is_offloaded=True, is_cut=False),
    "tensor": tensor_parallel,
    "gpipe": partial(Pipeline, schedule="GPipe"),
    "1f1b": partial(Pipeline, schedule="1F1B"),
}
