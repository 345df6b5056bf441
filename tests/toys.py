"""Small layers, pools and objectives that several tests share."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from l2l_nas import Candidate, LayerPool, Position, TensorSpec, skip


class SquaredError:
    """Every number of the targets counts as one target."""

    def loss(self, outputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        return (outputs[0] - targets).square().sum()

    def count(self, targets: Tensor) -> int:
        return targets.numel()


class NextToken:
    """Cross entropy; targets below 0 do not count, so that micro-batches differ in their number of targets."""

    def loss(self, outputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs[0].flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=-1)

    def count(self, targets: Tensor) -> int:
        return int((targets >= 0).sum())


class Dense(nn.Sequential):
    """Linear, ReLU, dropout."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.3))


class Normed(nn.Module):
    """Two BatchNorms in one layer, over [batch, 3, width]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.linear, self.after = nn.BatchNorm1d(3), nn.Linear(width, width), nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.after(torch.tanh(self.linear(self.before(x))))


class Running(nn.Module):
    """Its output in training depends on a buffer that training changes, unlike BatchNorm's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.mul_(0.9).add_(x.detach().mean((0, 1)), alpha=0.1)
        return self.linear(x - self.mean)


class Partial(nn.Module):
    """One parameter never gets a gradient, one only from micro-batches of an odd size, one is frozen."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.never, self.sometimes = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(width))
        self.frozen = nn.Parameter(torch.full((width,), 0.5), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x) * self.frozen
        return x * self.sometimes if len(x) % 2 else x


class Twice(nn.Module):
    """One matrix under two names."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


class Frozen(nn.Linear):
    """Nothing to learn."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width)
        self.requires_grad_(False)


def dense_pool(width: int = 6, depth: int = 4) -> LayerPool:
    """Positions of their own layers, over [batch, 3, width]: one of each kind of difficulty."""
    kinds = {
        "dense": Dense,
        "normed": Normed,
        "running": Running,
        "partial": Partial,
        "twice": Twice,
        "frozen": Frozen,
    }
    middle = [Candidate(name, partial(kind, width)) for name, kind in kinds.items()]
    return LayerPool(
        [
            *(Position(f"layer{index}", [*middle, skip()]) for index in range(depth)),
            Position(
                "head", [Candidate("linear", partial(nn.Linear, width, 2)), Candidate("mlp", partial(_mlp, width))]
            ),
        ],
        inputs=TensorSpec((3, width)),
    )


def _mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.Dropout(0.3), nn.Linear(width, 2))


class Attention(nn.Module):
    """Self-attention; its side input, a mask, passes through."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = (q @ k.transpose(1, 2)).masked_fill(~mask[:, None, :], -1e4)
        return x + functional.dropout(self.out(scores.softmax(-1) @ v), 0.1, self.training), mask


class Feed(nn.Module):
    """A masked feed-forward layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.2), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return x + self.body(x) * mask[:, :, None], mask


class Embed(nn.Embedding):
    """Token numbers and their mask."""

    def forward(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        return super().forward(tokens), mask


class Head(nn.Module):
    """Logits by the embedding's own matrix, and a bias."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vocabulary, width))
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


def language_pool(width: int = 8, depth: int = 3, vocabulary: int = 11) -> LayerPool:
    """A language model in small: a head tied to the embedding, tuples with a bool side input, repeated blocks."""
    tied = {"weight": "tokens"}
    return LayerPool.repeated(
        [Candidate("attention", partial(Attention, width)), Candidate("feed", partial(Feed, width)), skip()],
        depth=depth,
        inputs=(TensorSpec((4,), torch.int64), TensorSpec((4,), torch.bool)),
        first=Candidate("embed", partial(Embed, vocabulary, width), tied=tied),
        last=Candidate("head", partial(Head, vocabulary, width), tied=tied),
    )


def repeated_pool(width: int = 6, depth: int = 4, *, twice: bool = True) -> LayerPool:
    """A shared pool: any layer may run again at any position, BatchNorm included."""
    kinds = {"dense": Dense, "normed": Normed, "running": Running, "partial": Partial} | (
        {"twice": Twice} if twice else {}
    )
    candidates = [Candidate(name, partial(kind, width)) for name, kind in kinds.items()]
    return LayerPool.repeated(
        [*candidates, skip()],
        depth=depth,
        inputs=TensorSpec((3, width)),
        last=Candidate("head", partial(nn.Linear, width, 2)),
    )


def random_data(pool: LayerPool, batch: int, *, seed: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """Inputs as the pool takes them, and targets: token numbers, or numbers of [batch, 3, 2]."""
    generator = torch.Generator().manual_seed(seed)
    if pool.inputs[0].dtype == torch.int64:
        tokens, targets = torch.randint(0, 11, (2, batch, 4), generator=generator)
        hidden = torch.rand(batch, 4, generator=generator) < 0.3
        hidden[0, 0] = False
        return (tokens, ~hidden), targets.masked_fill(hidden, -1)
    inputs = torch.randn(batch, *pool.inputs[0].shape, generator=generator)
    return (inputs,), torch.randn(batch, 3, 2, generator=generator)
