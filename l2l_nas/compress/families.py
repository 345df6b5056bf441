"""A pool of our layers for a `config.json` of a published language model, and where its tensors go.

A block is two positions, `attention_I` and `feedforward_I`, or one, `block_I`, where these work beside each other. The
model's own layer is the one candidate of each. Nothing of `transformers` is needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from l2l_nas.compress.config import MOST_EXPERTS, MOST_PARAMETERS, SLIDING, Config, rotary_of
from l2l_nas.compress.rows import FAMILIES, ONLY, FamilyRow, Names
from l2l_nas.contents.fields import REQUIRED
from l2l_nas.errors import SpaceError, did_you_mean
from l2l_nas.layers import (
    CappedHead,
    Embedding,
    FeedForward,
    Heads,
    MaskedHead,
    MixtureOfExperts,
    ParallelBlock,
    Routing,
    SelfAttention,
    Style,
)
from l2l_nas.layers.style import NORMS
from l2l_nas.space.candidate import Candidate, Position, TensorSpec, skip
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.split import Splits, Vocabulary

ORIGINAL = "original"
Factory = Callable[[], nn.Module]
Sources = dict[tuple[str, str], "TensorSource"]


@dataclass(frozen=True)
class TensorSource:
    """A parameter of ours in a published model."""

    name: str  # of the published tensor
    is_transposed: bool = False  # whether that is [in, out], where ours is [out, in]
    rows: int = 0  # of the tensor, turned as ours is, if it holds others as well; 0: it is ours alone
    groups: int = 1  # equal groups of its rows, in each of which ours lie together
    begin: int = 0  # of ours within a group
    count: int = 0

    def take(self, published: Tensor) -> Tensor:
        """Our parameter, of the published tensor."""
        tensor = published.t() if self.is_transposed and published.dim() > 1 else published
        if not self.rows:
            return tensor
        grouped = tensor.unflatten(0, (self.groups, -1))
        return grouped[:, self.begin : self.begin + self.count].flatten(0, 1)

    @staticmethod
    def give(sources: Sequence[TensorSource], parameters: Sequence[Tensor]) -> Tensor:
        """The published tensor, of our parameters that are parts of it, in any order."""
        pairs = sorted(zip(sources, parameters, strict=True), key=lambda pair: pair[0].begin)
        grouped = [parameter.unflatten(0, (source.groups, -1)) for source, parameter in pairs]
        tensor = torch.cat(grouped, dim=1).flatten(0, 1)
        return tensor.t().contiguous() if sources[0].is_transposed and tensor.dim() > 1 else tensor


@dataclass(frozen=True)
class Family:
    """A published model."""

    positions: tuple[Position, ...]  # of the pool, each with the original alone
    sources: Mapping[tuple[str, str], TensorSource]  # by position and parameter; a tied one stands where it is defined
    shapes: Mapping[str, tuple[int, ...]]  # of the published tensors, by name
    vocabulary: int  # number of tokens
    length: int  # of the longest sequence
    ignored: tuple[str, ...]  # beginnings of names that may be there in addition: other heads
    copies: Mapping[str, str]  # names that may be there in addition, and of which tensor each is a copy, as it is tied

    def pool(self, *, length: int | None = None) -> LayerPool:
        """A pool of it, whose weights are drawn anew, and whose sub-layers may be left out."""
        positions = [
            one.with_candidates([*one.candidates, skip()]) if one.name[-1].isdigit() else one for one in self.positions
        ]
        return LayerPool(positions, inputs=self.inputs(self.length if length is None else length))

    def inputs(self, length: int) -> dict[str, TensorSpec]:
        """What a pool of sequences of this length takes.

        Raises:
            SpaceError: a length that the model has not.
        """
        if not 0 < length <= self.length:
            raise SpaceError(f"sequences of {length} tokens, but the model has places for 1 to {self.length}")
        return {"tokens": TensorSpec((length,), torch.int64)}


def row_of(config: Mapping[str, Any]) -> FamilyRow:
    """The family of a config, as data; an unknown one is a `SpaceError`."""
    kind = str(config.get("model_type"))
    if kind not in FAMILIES:
        raise SpaceError(f"config: 'model_type' is '{kind}'{did_you_mean(kind, list(FAMILIES))}")
    return FAMILIES[kind]


def family_of(config: Mapping[str, Any], *, heads_width: int | None = None) -> Family:
    """The family of a model whose `config.json` has this content.

    Args:
        heads_width: of all heads together, where it is less than that of the model and the config cannot say so.

    Raises:
        SpaceError: an unknown family, or something in it that our layers do not do.
    """
    row = row_of(config)
    fields = Config({**row.defaults, **config})
    family = _FamilyBuilder(row, fields, heads_width).family()
    fields.refuse_unread(ONLY, row.unread)
    return family


class _FamilyBuilder:
    def __init__(self, row: FamilyRow, config: Config, heads_width: int | None) -> None:
        config.only(row.only)
        self._row, self._config = row, config
        self._hidden, self._vocabulary, self._length = map(self._count, ("hidden", "vocabulary", "length"))
        self._layers = config.layers(row.keys["layers"])
        self._is_tied = config.is_true("tie_word_embeddings")
        self._style = Style(
            norm=row.norm,
            eps=config.number(row.keys["eps"]),
            is_post=row.norm_place == "sum",
            is_input_normed=row.norm_place in ("before", "both"),
            is_added_normed=row.norm_place in ("added", "both"),
            bias=self._has(row.inner_bias),
            dropout=self._dropout("dropout"),
        )
        self._num_heads, self._size = self._heads_of(heads_width)

    def family(self) -> Family:
        row = self._row
        positions = [("embedding", self._embedding)]
        for index, kind in enumerate(self._config.kinds(self._layers, row.windows)):
            positions += [(f"{name}_{index}", factory) for name, factory in self._block(kind).items()]
        if not row.is_masked:
            positions.append(("norm", partial(NORMS[row.norm], self._hidden, eps=self._style.eps)))
        positions.append(("head", self._head))
        ties = {"embedding": "token.weight", "head": "out.weight" if row.is_masked else "weight"}
        sources: dict[tuple[str, str], TensorSource] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        parameters_of: dict[str, dict[str, Tensor]] = {}  # blocks are alike
        for name, factory in positions:
            kind, _, number = name.partition("_")
            if kind not in parameters_of:
                with torch.device("meta"):
                    parameters_of[kind] = dict(factory().named_parameters())
            tied = ties[name] if self._is_tied and name == "head" else ""
            own_parameters = {key: parameter for key, parameter in parameters_of[kind].items() if key != tied}
            block = row.block.format(number) if number else ""
            for key, source in self._sources(kind, own_parameters, block):
                sources[name, key] = source
                first, *others = own_parameters[key].shape
                shape = (source.rows or first, *others)
                shapes[source.name] = shape[::-1] if source.is_transposed else shape
        tied_to = {name: {key: "embedding"} for name, key in ties.items()} if self._is_tied else {}
        originals = [
            Position(name, Candidate(ORIGINAL, factory, tied_to.get(name, {}), split=split_of(factory)))
            for name, factory in positions
        ]
        copies = dict(row.copies)
        if self._is_tied:
            head = row.names["head.out" if row.is_masked else "head"]
            copies[f"{head}.weight"] = sources["embedding", "token.weight"].name
        return Family(tuple(originals), sources, shapes, self._vocabulary, self._length, row.ignored, copies)

    def _count(self, key: str) -> int:
        return self._config.count(self._row.keys[key])

    def _has(self, bias: bool | str) -> bool:
        return self._config.is_true(bias) if isinstance(bias, str) else bias

    def _dropout(self, key: str) -> float:
        return self._config.number(self._row.keys[key], most=1.0, default=0.0) if key in self._row.keys else 0.0

    def _above(self, key: str) -> float | None:
        return self._config.above(self._row.keys[key]) if key in self._row.keys else None

    @property
    def _embedding(self) -> Factory:
        row, dropout = self._row, self._dropout("embedding_dropout")
        is_normed = "embedding.norm" in row.names
        options: dict[str, Any] = {
            "places": row.rope is None and self._length,
            "kinds": "kinds" in row.keys and self._count("kinds"),
            "style": (is_normed or dropout) and replace(self._style, dropout=dropout),
            "is_normed": is_normed,
            "scale": row.is_scaled and self._hidden**0.5,
        }
        asked = {name: option for name, option in options.items() if option}
        return partial(Embedding, self._vocabulary, self._hidden, **asked)

    @property
    def _head(self) -> Factory:
        if self._row.is_masked:
            activation = self._config.activation(self._row.keys["activation"], self._row.activations)
            return partial(MaskedHead, self._hidden, self._vocabulary, activation=activation, style=self._style)
        if (cap := self._above("cap")) is not None:
            return partial(CappedHead, self._hidden, self._vocabulary, cap=cap)
        return partial(nn.Linear, self._hidden, self._vocabulary, bias=False)

    def _block(self, kind: str) -> dict[str, Factory]:
        """The layers of a block of a kind, `FULL` or `SLIDING`, by what their positions are called."""
        row, hidden, heads = self._row, self._hidden, self._heads(kind)
        wide = self._config.count(row.keys["width"], row.width_factor * hidden or REQUIRED)
        options: dict[str, Any] = {
            "activation": self._config.activation(row.keys["activation"], row.activations),
            "style": self._style,
        }
        if row.parallel and self._config.is_true(row.parallel):
            return {"block": partial(ParallelBlock, hidden, heads, wide, **options)}
        if row.is_gated:
            options["is_gated"] = True
        inner: Factory = partial(FeedForward, hidden, wide, **options)
        if row.is_mixture:
            inner = partial(MixtureOfExperts, hidden, wide, routing=self._routing, **options)
        return {"attention": partial(SelfAttention, hidden, heads, self._style), "feedforward": inner}

    def _heads_of(self, width: int | None) -> tuple[int, int | None]:
        """How many heads there are, and their size, if it is not the width of the model over their number."""
        row, count = self._row, self._count("heads")
        if count > self._hidden:
            raise SpaceError(f"config: {count} attention heads for a width of {self._hidden}")
        if width is None:
            return count, self._config.count(row.keys["size"], self._hidden // count) if "size" in row.keys else None
        size = self._hidden // count
        if "size" in row.keys or not 0 < width < self._hidden or width % size:
            raise SpaceError(f"config: heads of a width of {width} together, where the model has {count} of {size}")
        return width // size, size

    def _heads(self, kind: str) -> Heads:
        row, config, count, size = self._row, self._config, self._num_heads, self._size
        shared = config.count(row.keys["key_value"], count) if "key_value" in row.keys else None
        rotary = rotary_of(config, row.rope, kind) if row.rope is not None else None
        if rotary is not None and (count % (shared or count) or rotary.turning(size or self._hidden // count) % 2):
            raise SpaceError(
                f"config: {count} attention heads of {size or self._hidden // count} with {shared or count} of keys "
                "and values; these divide them, and what turns of sizes is even"
            )
        scale, bias = self._above("scale"), self._has(row.bias)
        return Heads(
            count,
            key_value=shared,
            size=size,
            rotary=rotary,
            window=config.window if kind == SLIDING else None,
            is_causal=not row.is_masked,
            is_normed=row.query_norm == "head",
            is_normed_whole=row.query_norm == "whole",
            dropout=self._dropout("attention_dropout"),
            scale=None if scale is None else scale**-0.5,
            cap=self._above("attention_cap"),
            bias=None if bias == self._style.bias else bias,
            out_bias=None if row.out_bias is None else self._has(row.out_bias),
        )

    @property
    def _routing(self) -> Routing:
        """The routing of Mixtral, where the loss of several layers is the mean of theirs."""
        config = self._config
        most = min(MOST_EXPERTS, MOST_PARAMETERS // self._layers)
        experts = config.whole("num_local_experts", least=1, most=most, default=8)
        chosen = config.count("num_experts_per_tok", 2)
        if chosen > experts:
            raise SpaceError(f"config: 'num_experts_per_tok' is {chosen}, but there are {experts} experts")
        weight = config.number("router_aux_loss_coef", default=0.001) if config.get("output_router_logits") else 0.0
        return Routing(experts, chosen, balance=weight * chosen / self._layers, is_normalised=True)

    def _sources(self, kind: str, parameters: Mapping[str, Tensor], block: str) -> Iterator[tuple[str, TensorSource]]:
        """Where the parameters of a layer are; within a block, published names begin with that of the block."""
        row = self._row
        prefix = {"block": "", "feedforward": "feed_forward."}.get(kind, f"{kind}.")
        fused = {part: (name, parts) for name, parts in row.fused.items() for part in parts}
        for key, parameter in parameters.items():
            module, _, leaf = f"{prefix}{key}".rpartition(".")
            part = module.partition(".")[2]
            is_turned = row.is_transposed and bool(block) and parameter.dim() == 2
            if part not in fused:
                yield key, TensorSource(block + _named(row.names, f"{module}.{leaf}"), is_turned)
                continue
            name, parts = fused[part]
            groups = self._num_heads if row.is_by_head else 1
            before = key.removesuffix(f"{part}.{leaf}")
            counts = [len(parameters[f"{before}{other}.{leaf}"]) // groups for other in parts]
            begin = sum(counts[: parts.index(part)])
            rows, count = groups * sum(counts), counts[parts.index(part)]
            yield key, TensorSource(f"{block}{name}.{leaf}", is_turned, rows, groups, begin, count)


def split_of(factory: Factory) -> Splits | None:
    """A plan for a head of scores that is a linear layer; others know theirs."""
    return {"": Vocabulary()} if isinstance(factory, partial) and factory.func is nn.Linear else None


def _named(names: Names, key: str) -> str:
    """The published name of one of our parameters, found by its whole name or by its module's."""
    if key in names:
        return names[key]
    module, _, leaf = key.rpartition(".")
    number = re.search(r"\d+", module)
    if number is None:
        return f"{names[module]}.{leaf}"
    return f"{names[module.replace(number[0], '*', 1)].replace('*', number[0])}.{leaf}"
