"""What the benches run: a stack of encoder blocks on random tokens, the same for every side."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from l2l_nas.cost.closed_form import num_parameters
from l2l_nas.eps.optimizers.rules import AdamW
from l2l_nas.eps.server import ParamServer
from l2l_nas.layers import Embedding, FeedForward, Heads, SelfAttention
from l2l_nas.relay.device import open_device
from l2l_nas.relay.interface import Batch
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.candidate import Candidate, Position, TensorSpec
from l2l_nas.space.pool import LayerPool


class TokenLoss:
    """Cross entropy of every token."""

    def loss(self, outputs: Batch, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs[0].flatten(0, 1), targets.flatten(), reduction="sum")

    def count(self, targets: Tensor) -> int:
        return targets.numel()


class BenchBlock(nn.Sequential):
    """An encoder block; `kind` makes candidates that differ without costing more."""

    def __init__(self, kind: int, hidden: int, *, heads: int, feedforward: int) -> None:
        super().__init__(SelfAttention(hidden, Heads(heads, is_causal=False)), FeedForward(hidden, feedforward))
        self.kind = kind


@dataclass(frozen=True)
class StackSizes:
    """Sizes of the stack: embedding, `depth` encoder blocks, linear head; AdamW; every token is a target.

    A step has `batch` samples of `sequence` tokens, `micro_batch` at a time on the device. `hidden`, `heads` and
    `feedforward` are of a block; at every position there are as many equally costly blocks as `candidates`.
    """

    depth: int = 12
    hidden: int = 256
    heads: int = 4
    feedforward: int = 1024
    sequence: int = 128
    vocabulary: int = 1000
    batch: int = 32
    micro_batch: int = 4
    candidates: int = 1
    device: str = "auto"
    seed: int = 0
    lr: float = 1e-4

    @cached_property
    def torch_device(self) -> torch.device:
        return open_device(self.device).torch_device

    @cached_property
    def pool(self) -> LayerPool:
        """The stack as a pool; with one candidate a position it holds one architecture."""
        sizes = {"heads": self.heads, "feedforward": self.feedforward}
        blocks = [
            Candidate(f"block{kind}", partial(BenchBlock, kind, self.hidden, **sizes))
            for kind in range(self.candidates)
        ]
        embedding = partial(Embedding, self.vocabulary, self.hidden, places=self.sequence)
        return LayerPool(
            [
                Position("embedding", Candidate("tokens", embedding)),
                *(Position(f"block_{index:03d}", blocks) for index in range(self.depth)),
                Position("head", Candidate("linear", partial(nn.Linear, self.hidden, self.vocabulary))),
            ],
            inputs=TensorSpec((self.sequence,), torch.int64),
        )

    @property
    def architecture(self) -> Architecture:
        return self.pool.architecture(position.candidates[0].name for position in self.pool.positions)

    @property
    def num_parameters(self) -> int:
        return num_parameters(self.pool, self.architecture)

    def server(self, **options: object) -> ParamServer:
        """A fresh param-server; equal seeds give every side the same first weights."""
        return ParamServer(self.pool, optimizer=AdamW(), seed=self.seed, **options)  # type: ignore[arg-type]

    @cached_property
    def tokens(self) -> Tensor:
        """[batch, sequence], on the host; inputs and targets."""
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randint(self.vocabulary, (self.batch, self.sequence), generator=generator)

    def modules(self) -> list[nn.Module]:
        """The stack as plain modules on the host, with the weights that every side starts from."""
        server = self.server()
        return [server.build_module(layer, {}) for layer in self.pool.path(self.architecture)]
