"""Small layers, pools and objectives that several tests share."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from l2l_nas import Candidate, LayerPool, Position, TensorSpec, elastic, skip
from l2l_nas.layers import (
    FeedForward,
    Heads,
    LinearAttention,
    MixtureOfExperts,
    Routing,
    SelfAttention,
    StateHeads,
    StateSpace,
    Style,
)


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
        return self.linear(x - self.mean.to(x.dtype))


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


class Numbered(nn.Module):
    """A number of a document for each token: one begins where a mask has False."""

    def forward(self, mask: Tensor) -> Tensor:
        return (~mask).long().cumsum(dim=1)


def mixer_pool(width: int = 8, depth: int = 3, *, documents: bool = True) -> LayerPool:
    """Residual sub-layers of language models, over [batch, 3, width]; a second input tells where documents begin."""
    style = Style(norm="rms", bias=False, dropout=0.1, sublayers=2 * depth)
    grouped = Heads(4, key_value=2, size=4, rotary=100.0, is_normed=True, dropout=0.1)
    mixers = [
        Candidate("grouped", partial(SelfAttention, width, grouped, style)),
        Candidate("window", partial(SelfAttention, width, Heads(2, window=2), Style(is_post=True, deviation=0.1))),
        Candidate("linear", partial(LinearAttention, width, 2, chunk=2, style=style)),
        Candidate("state", partial(StateSpace, width, StateHeads(4, size=4, state=3, groups=2, chunk=2), style)),
        skip(),
    ]
    routing = Routing(4, balance=0.0, is_normalised=True)
    inner = [
        Candidate("gated", partial(FeedForward, width, 12, activation="silu", is_gated=True, style=style)),
        Candidate("rank", partial(FeedForward, width, 12, rank=2, style=Style(is_post=True))),
        Candidate("experts", partial(MixtureOfExperts, width, 6, routing=routing, is_gated=True, style=style)),
        skip(),
    ]
    positions = [Position("first", Candidate("first", partial(nn.Linear, width, width)), reads="x")]
    if documents:
        positions.append(Position("documents", Candidate("numbered", Numbered), reads="mask"))
    before = "first"
    for index in range(depth):
        reads = (before, "documents") if documents else None
        positions.append(Position(f"mixer_{index}", mixers, reads=reads))
        positions.append(Position(f"inner_{index}", inner))
        before = f"inner_{index}"
    positions.append(Position("head", Candidate("head", partial(nn.Linear, width, 2))))
    masks = {"mask": TensorSpec((3,), torch.bool)} if documents else {}
    return LayerPool(positions, inputs={"x": TensorSpec((3, width)), **masks})


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


class Joined(nn.Module):
    """Takes several values: each as wide, or whole samples where it is not."""

    def __init__(self, width: int, count: int = 2) -> None:
        super().__init__()
        self.linear = nn.Linear(count * width, width)

    def forward(self, *values: Tensor) -> Tensor:
        return torch.tanh(self.linear(torch.cat(values, -1)))


class Sum(nn.Module):
    """A node of a cell."""

    def forward(self, *values: Tensor) -> Tensor:
        return torch.stack(values).sum(0)


class Zero(nn.Module):
    """An edge of a cell that is not there."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


class Memory(nn.Module):
    """Writes a stream and the memory of an encoder: two values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stream, self.memory = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.stream(x), torch.sigmoid(self.memory(x))


class Cross(nn.Module):
    """Attends to a memory, which it reads twice, where a mask allows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * width)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        k, v = self.kv(memory).chunk(2, -1)
        scores = (self.q(x) @ k.transpose(1, 2)).masked_fill(~mask[:, None, :], -1e4)
        return functional.dropout(x, 0.1, self.training) + scores.softmax(-1) @ (v + memory)


def _dense(width: int) -> list[Candidate]:
    kinds = {"dense": Dense, "normed": Normed, "partial": Partial, "frozen": Frozen}
    return [Candidate(name, partial(kind, width)) for name, kind in kinds.items()]


def unet_pool(width: int = 6) -> LayerPool:
    """Down and up again, each layer on its way up with what the one of its level wrote on its way down."""
    joined = Candidate("joined", partial(Joined, width))
    return LayerPool(
        [
            *(Position(f"down{i}", [*_dense(width), Candidate("same", nn.Identity), skip()]) for i in range(3)),
            Position("middle", [*_dense(width), skip()]),
            *(
                Position(f"up{i}", [joined, skip()], reads=(f"up{i + 1}" if i < 2 else "middle", f"down{i}"))
                for i in (2, 1, 0)
            ),
            Position("head", Candidate("linear", partial(nn.Linear, width, 2))),
        ],
        inputs=TensorSpec((3, width)),
    )


def cell_pool(width: int = 6) -> LayerPool:
    """Two cells of four nodes: each edge has its operation, each node sums its edges."""
    positions = [Position("stem", Candidate("dense", partial(Dense, width)))]
    entry = "stem"
    for cell in range(2):
        nodes = [entry]
        for node in (1, 2, 3):
            edges = [f"c{cell}_{before}_{node}" for before in range(node)]
            operations = [*_dense(width)[:2], Candidate("none", Zero), skip()]
            positions += [Position(edge, operations, reads=nodes[i]) for i, edge in enumerate(edges)]
            positions.append(Position(f"c{cell}_{node}", Candidate("sum", Sum), reads=edges))
            nodes.append(f"c{cell}_{node}")
        entry = nodes[-1]
    positions.append(Position("head", Candidate("linear", partial(nn.Linear, width, 2))))
    return LayerPool(positions, inputs=TensorSpec((3, width)))


def elastic_pool(width: int = 6) -> LayerPool:
    """Layers whose smaller candidates are regions of the largest one's weights, in both dimensions of some."""
    return LayerPool(
        [
            Position("stem", Candidate("dense", partial(Dense, width))),
            *(
                Position(
                    f"l{index}",
                    [*elastic(f"l{index}", {f"w{n}": partial(Hidden, width, n) for n in (8, 5, 3)}), skip()],
                )
                for index in range(3)
            ),
            Position("head", Candidate("linear", partial(nn.Linear, width, 2))),
        ],
        inputs=TensorSpec((3, width)),
    )


class Hidden(nn.Module):
    """Two hidden layers of a width, BatchNorm and dropout between."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.into, self.between, self.out = (
            nn.Linear(width, hidden),
            nn.Linear(hidden, hidden),
            nn.Linear(hidden, width),
        )
        self.norm, self.drop = nn.BatchNorm1d(3), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.out(self.drop(torch.tanh(self.between(self.norm(torch.tanh(self.into(x)))))))


def decoder_pool(width: int = 6) -> LayerPool:
    """A decoder whose every layer reads a memory and a mask, and a second head on the way, whose output counts too."""
    cross = [Candidate("cross", partial(Cross, width)), skip()]
    reads = ["stream", "dec0", "dec1", "dec2"]
    return LayerPool(
        [
            Position("encoder", [*_dense(width), skip()], reads="tokens"),
            Position("both", Candidate("memory", partial(Memory, width)), writes=("stream", "memory")),
            *(Position(f"dec{i}", cross, reads=(reads[i], "memory", "mask")) for i in range(3)),
            Position("early", Candidate("linear", partial(nn.Linear, width, 2)), reads="dec1"),
            Position("head", Candidate("linear", partial(nn.Linear, width, 2)), reads="dec2"),
        ],
        inputs={"tokens": TensorSpec((3, width)), "mask": TensorSpec((3,), torch.bool)},
        outputs=("head", "early"),
    )


class BothHeads(SquaredError):
    """The error of two outputs."""

    def loss(self, outputs: tuple[Tensor, ...], targets: Tensor) -> Tensor:
        return sum((output - targets).square().sum() for output in outputs)


def random_data(pool: LayerPool, batch: int, *, seed: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """Inputs as the pool takes them, and targets: token numbers, or numbers of [batch, 3, 2]."""
    generator = torch.Generator().manual_seed(seed)
    if pool.inputs[0].dtype == torch.int64:
        tokens, targets = torch.randint(0, 11, (2, batch, 4), generator=generator)
        hidden = torch.rand(batch, 4, generator=generator) < 0.3
        hidden[0, 0] = False
        return (tokens, ~hidden), targets.masked_fill(hidden, -1)
    inputs = [torch.randn(batch, *pool.inputs[0].shape, generator=generator)]
    for spec in pool.inputs[1:]:
        mask = torch.rand(batch, *spec.shape, generator=generator) < 0.7
        mask[:, 0] = True
        inputs.append(mask)
    return tuple(inputs), torch.randn(batch, 3, 2, generator=generator)
