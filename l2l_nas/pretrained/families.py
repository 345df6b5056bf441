"""Families of published language models: a pool of our layers for a `config.json`, and where its tensors go.

A block is two positions, `attention_I` and `feedforward_I`. The model's own layer is the one candidate of each.
Nothing of `transformers` is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from l2l_nas.arguments import shown
from l2l_nas.contents.fields import REQUIRED, Fields
from l2l_nas.errors import SpaceError, did_you_mean
from l2l_nas.layers import Embedding, FeedForward, Heads, MaskedHead, MixtureOfExperts, Routing, SelfAttention, Style
from l2l_nas.layers.style import NORMS
from l2l_nas.space.candidate import Candidate, Position, TensorSpec, skip
from l2l_nas.space.pool import LayerPool

# activations as configurations name them, and as our layers do
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
ORIGINAL = "original"
# damaged configs name more
_LARGEST, _MOST_LAYERS = 1 << 24, 10_000


@dataclass(frozen=True)
class TensorSource:
    """A parameter of ours in a published model.

    Args:
        name: of the published tensor.
        is_transposed: whether that is [in, out], where ours is [out, in].
        part: which of several equal parts along our first dimension it is, and of how many.
    """

    name: str
    is_transposed: bool = False
    part: tuple[int, int] = (0, 1)

    def take(self, published: Tensor) -> Tensor:
        """Our parameter, of the published tensor."""
        tensor = published.t() if self.is_transposed else published
        index, count = self.part
        return tensor if count == 1 else tensor.chunk(count)[index]

    @staticmethod
    def give(sources: Sequence[TensorSource], parameters: Sequence[Tensor]) -> Tensor:
        """The published tensor, of our parameters that are parts of it, in any order."""
        pairs = sorted(zip(sources, parameters, strict=True), key=lambda pair: pair[0].part)
        tensor = torch.cat([parameter for _, parameter in pairs])
        return tensor.t().contiguous() if sources[0].is_transposed else tensor


@dataclass(frozen=True)
class Family:
    """A published model.

    Args:
        positions: of the pool, each with the original alone.
        sources: by position and parameter; a tied one stands where it is defined.
        vocabulary: number of tokens.
        length: of the longest sequence.
        ignored: beginnings of names that may be there in addition: other heads.
        copies: names that may be there in addition, and of which tensor each is a copy, as it is tied.
    """

    positions: tuple[Position, ...]
    sources: Mapping[tuple[str, str], TensorSource]
    vocabulary: int
    length: int
    ignored: tuple[str, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)

    def pool(self, *, length: int | None = None, skips: bool = True) -> LayerPool:
        """A pool of it, whose weights are drawn anew.

        Args:
            length: of sequences; the model's longest by default.
            skips: whether attention and feed-forward sub-layers may be left out.

        Raises:
            SpaceError: a length that the model has not.
        """
        inner = {position.name for position in self.positions if position.name[-1].isdigit()} if skips else set()
        return LayerPool(
            [one.with_candidates([*one.candidates, *([skip()] * (one.name in inner))]) for one in self.positions],
            inputs=self.inputs(self.length if length is None else length),
        )

    def inputs(self, length: int) -> dict[str, TensorSpec]:
        """What a pool of sequences of this length takes.

        Raises:
            SpaceError: a length that the model has not.
        """
        if not 0 < length <= self.length:
            raise SpaceError(f"sequences of {length} tokens, but the model has places for 1 to {self.length}")
        return {"tokens": TensorSpec((length,), torch.int64)}

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the published tensors, by name."""
        found: dict[str, tuple[int, ...]] = {}
        for position in self.positions:
            with torch.device("meta"):
                parameters = dict(position.candidates[0].factory().named_parameters())
            for (name, parameter), source in self.sources.items():
                if name == position.name:
                    first, *others = parameters[parameter].shape
                    shape = (first * source.part[1], *others)
                    found[source.name] = shape[::-1] if source.is_transposed else shape
        return found


def family_of(config: Mapping[str, Any]) -> Family:
    """The family of a model.

    Args:
        config: as `config.json` holds it.

    Raises:
        SpaceError: an unknown family, or something in it that our layers do not do.
    """
    kind = str(config.get("model_type"))
    if kind not in FAMILIES:
        raise SpaceError(f"config: 'model_type' is '{kind}'{did_you_mean(kind, list(FAMILIES))}")
    return FAMILIES[kind](_Config({**_UNSAID[kind], **config}))


class _Config:
    """Fields of a configuration; what is missing or unusual is refused by name."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields
        self._checked = Fields(fields, "config", advice="is it the config of a whole model?", error=SpaceError)

    def number(self, name: str, default: float = REQUIRED) -> float:
        """A finite number, at least 0."""
        value: float = self._checked.number(name, default=default)
        return value

    def share(self, name: str, default: float) -> float:
        """A number from 0 to 1."""
        value: float = self._checked.number(name, most=1.0, default=default)
        return value

    def count(self, name: str, default: int = REQUIRED) -> int:
        """A whole number above 0."""
        value: int = self._checked.whole(name, least=1, most=_LARGEST, default=default)
        return value

    def layers(self, name: str) -> int:
        """How many blocks there are."""
        count = self.count(name)
        if count > _MOST_LAYERS:
            raise SpaceError(f"config: '{name}' is {count}; expected at most {_MOST_LAYERS}")
        return count

    def get(self, name: str, default: Any = None) -> Any:
        """A field as it is."""
        return self._fields.get(name, default)

    def only(self, **wanted: Any) -> None:
        """Refuse other values of these fields than the one that our layers do; what is missing is right."""
        for name, value in wanted.items():
            if self._fields.get(name, value) != value:
                raise SpaceError(f"config: '{name}' is {self._fields[name]!r}, of which only {value!r} is known here")

    def activation(self, name: str) -> str:
        """An activation, as our layers name it."""
        value = self._fields.get(name)
        if not isinstance(value, str) or value not in _ACTIVATIONS:
            raise SpaceError(f"config: '{name}' is {value!r}; known are {', '.join(_ACTIVATIONS)}")
        return _ACTIVATIONS[value]

    def rotary(self) -> float:
        """The base of rotary positions."""
        name = "rope_parameters" if self._fields.get("rope_parameters") else "rope_scaling"
        about = self._checked.table(name, default={})
        kind = about.get("rope_type", about.get("type", "default"))
        if kind != "default":
            raise SpaceError(f"config: rotary positions of type '{kind}', of which only 'default' is known here")
        where = Fields(about, f"config: {name}", error=SpaceError) if "rope_theta" in about else self._checked
        base: float = where.number("rope_theta", default=10000.0)
        if not base:
            where.refuse("rope_theta", "a number above 0")
        return base

    @property
    def is_tied(self) -> bool:
        """Whether the head has the embedding's weights."""
        if not isinstance(self._fields["tie_word_embeddings"], bool | None):
            self._checked.refuse("tie_word_embeddings", "true or false")
        return bool(self._fields["tie_word_embeddings"])


def _linear(ours: str, theirs: str, *, bias: bool, **how: Any) -> Iterator[tuple[str, TensorSource]]:
    yield f"{ours}.weight".lstrip("."), TensorSource(f"{theirs}.weight", **how)
    if bias:
        yield f"{ours}.bias".lstrip("."), TensorSource(f"{theirs}.bias", part=how.get("part", (0, 1)))


def _candidate(factory: Callable[[], nn.Module], tied: Mapping[str, str] | None = None) -> Candidate:
    return Candidate(ORIGINAL, factory, tied=tied or {})


def _named(
    position: str, pairs: Iterator[tuple[str, TensorSource]] | Sequence[tuple[str, TensorSource]]
) -> dict[Any, TensorSource]:
    return {(position, name): source for name, source in pairs}


def _gpt2(config: _Config) -> Family:
    config.only(scale_attn_weights=True, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    hidden, vocabulary, length = (config.count(name) for name in ("n_embd", "vocab_size", "n_positions"))
    style = Style(eps=config.number("layer_norm_epsilon", 1e-5), dropout=config.share("resid_pdrop", 0.1))
    heads = Heads(config.count("n_head"), dropout=config.share("attn_pdrop", 0.1))
    wide = config.count("n_inner", 4 * hidden)
    inner = partial(FeedForward, hidden, wide, activation=config.activation("activation_function"), style=style)
    embedding = replace(style, dropout=config.share("embd_pdrop", 0.1))
    sources = _named("embedding", [("token.weight", TensorSource("transformer.wte.weight"))])
    sources |= _named("embedding", [("place.weight", TensorSource("transformer.wpe.weight"))])
    for index in range(config.layers("n_layer")):
        block = f"transformer.h.{index}"
        for part, name in enumerate(("query", "key", "value")):
            pairs = _linear(name, f"{block}.attn.c_attn", bias=True, is_transposed=True, part=(part, 3))
            sources |= _named(f"attention_{index}", pairs)
        for position, ours, theirs, is_transposed in (
            ("attention", "out", "attn.c_proj", True),
            ("attention", "norm", "ln_1", False),
            ("feedforward", "up", "mlp.c_fc", True),
            ("feedforward", "down", "mlp.c_proj", True),
            ("feedforward", "norm", "ln_2", False),
        ):
            pairs = _linear(ours, f"{block}.{theirs}", bias=True, is_transposed=is_transposed)
            sources |= _named(f"{position}_{index}", pairs)
    sources |= _named("norm", _linear("", "transformer.ln_f", bias=True))
    parts = _Parts(
        _candidate(
            partial(Embedding, vocabulary, hidden, places=length, style=embedding), {"token.weight": "embedding"}
        ),
        [(partial(SelfAttention, hidden, heads, style), inner) for _ in range(config.layers("n_layer"))],
        partial(NORMS["layer"], hidden, eps=style.eps),
        partial(nn.Linear, hidden, vocabulary, bias=False),
    )
    return _causal(parts, sources, config, vocabulary, length)


def _llama(config: _Config) -> Family:
    config.only(attention_bias=False, mlp_bias=False, pretraining_tp=1, router_jitter_noise=0.0)
    hidden, vocabulary = config.count("hidden_size"), config.count("vocab_size")
    length, layers = config.count("max_position_embeddings"), config.layers("num_hidden_layers")
    style = Style(norm="rms", eps=config.number("rms_norm_eps", 1e-6), bias=False)
    is_normed = config.get("model_type") == "qwen3"
    count = config.count("num_attention_heads")
    heads = Heads(
        count,
        key_value=config.count("num_key_value_heads", count),
        size=config.count("head_dim", hidden // count),
        rotary=config.rotary(),
        is_normed=is_normed,
        dropout=config.share("attention_dropout", 0.0),
    )
    if count % (heads.key_value or count) or (heads.size or 0) % 2:
        raise SpaceError(
            f"config: {count} attention heads of {heads.size} with {heads.key_value} of keys and values; these divide "
            "them, and sizes are even"
        )
    windows = _windows(config, layers)
    wide = config.count("intermediate_size")
    how: dict[str, Any] = {"activation": config.activation("hidden_act"), "is_gated": True, "style": style}
    inner: Callable[[], nn.Module] = partial(FeedForward, hidden, wide, **how)
    networks = [(name, f"mlp.{name}_proj") for name in ("gate", "up", "down")]
    if config.get("model_type") == "mixtral":
        routing = _routing(config, layers)
        inner = partial(MixtureOfExperts, hidden, wide, routing=routing, **how)
        networks = [("router", "block_sparse_moe.gate")]
        for expert in range(routing.experts):
            for ours, theirs in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
                networks.append((f"experts.{expert}.{ours}", f"block_sparse_moe.experts.{expert}.{theirs}"))
    sources = _named("embedding", [("token.weight", TensorSource("model.embed_tokens.weight"))])
    for index in range(layers):
        block = f"model.layers.{index}"
        attention = [(ours, f"self_attn.{theirs}_proj") for ours, theirs in zip(_PROJECTED, "qkvo", strict=True)]
        attention += [("query_norm", "self_attn.q_norm"), ("key_norm", "self_attn.k_norm")] if is_normed else []
        for position, ours, theirs in (
            *(("attention", *pair) for pair in (*attention, ("norm", "input_layernorm"))),
            *(("feedforward", *pair) for pair in networks),
            ("feedforward", "norm", "post_attention_layernorm"),
        ):
            sources |= _named(f"{position}_{index}", _linear(ours, f"{block}.{theirs}", bias=False))
    sources |= _named("norm", _linear("", "model.norm", bias=False))
    parts = _Parts(
        _candidate(partial(Embedding, vocabulary, hidden), {"token.weight": "embedding"} if config.is_tied else None),
        [(partial(SelfAttention, hidden, replace(heads, window=window), style), inner) for window in windows],
        partial(NORMS["rms"], hidden, eps=style.eps),
        partial(nn.Linear, hidden, vocabulary, bias=False),
    )
    return _causal(parts, sources, config, vocabulary, length)


_PROJECTED = ("query", "key", "value", "out")


def _routing(config: _Config, layers: int) -> Routing:
    """Of Mixtral; the loss of a model of several layers is the mean of theirs."""
    chosen, experts = config.count("num_experts_per_tok", 2), config.count("num_local_experts", 8)
    if chosen > experts:
        raise SpaceError(f"config: 'num_experts_per_tok' is {chosen}, but there are {experts} experts")
    weight = config.number("router_aux_loss_coef", 0.001) if config.get("output_router_logits") else 0.0
    return Routing(experts, chosen, balance=weight * chosen / layers, is_normalised=True)


def _windows(config: _Config, layers: int) -> list[int | None]:
    """By layer, how many tokens each sees; None: all."""
    window = None if config.get("sliding_window") is None else config.count("sliding_window")
    kinds = config.get("layer_types")
    if kinds is not None:
        known = {"full_attention": None, "sliding_attention": window}
        if not isinstance(kinds, list) or len(kinds) != layers or not all(str(kind) in known for kind in kinds):
            raise SpaceError(f"config: 'layer_types' are {shown(kinds)}; known are {', '.join(known)}, for each layer")
        return [known[kind] for kind in kinds]
    first = 0  # that has it
    if config.get("model_type") not in ("mistral", "mixtral"):
        first = int(config.number("max_window_layers")) if config.get("use_sliding_window") else layers
    return [window if index >= first else None for index in range(layers)]


def _bert(config: _Config) -> Family:
    config.only(position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    hidden, vocabulary, length = (
        config.count(name) for name in ("hidden_size", "vocab_size", "max_position_embeddings")
    )
    layers = config.layers("num_hidden_layers")
    style = Style(
        eps=config.number("layer_norm_eps", 1e-12), is_post=True, dropout=config.share("hidden_dropout_prob", 0.1)
    )
    heads = Heads(
        config.count("num_attention_heads"),
        is_causal=False,
        dropout=config.share("attention_probs_dropout_prob", 0.1),
    )
    activation, kinds = config.activation("hidden_act"), config.count("type_vocab_size", 2)
    inner = partial(FeedForward, hidden, config.count("intermediate_size"), activation=activation, style=style)
    sources = {
        ("embedding", f"{ours}.weight"): TensorSource(f"bert.embeddings.{theirs}_embeddings.weight")
        for ours, theirs in (("token", "word"), ("place", "position"), ("kind", "token_type"))
    }
    sources |= _named("embedding", _linear("norm", "bert.embeddings.LayerNorm", bias=True))
    for index in range(layers):
        for position, ours, theirs in (
            *(("attention", name, f"attention.self.{name}") for name in _PROJECTED[:3]),
            ("attention", "out", "attention.output.dense"),
            ("attention", "norm", "attention.output.LayerNorm"),
            ("feedforward", "up", "intermediate.dense"),
            ("feedforward", "down", "output.dense"),
            ("feedforward", "norm", "output.LayerNorm"),
        ):
            pairs = _linear(ours, f"bert.encoder.layer.{index}.{theirs}", bias=True)
            sources |= _named(f"{position}_{index}", pairs)
    sources |= _named("head", _linear("dense", "cls.predictions.transform.dense", bias=True))
    sources |= _named("head", _linear("norm", "cls.predictions.transform.LayerNorm", bias=True))
    sources |= _named("head", [("out.bias", TensorSource("cls.predictions.bias"))])
    if not config.is_tied:
        sources["head", "out.weight"] = TensorSource("cls.predictions.decoder.weight")
    embedding = partial(Embedding, vocabulary, hidden, places=length, kinds=kinds, style=style, is_normed=True)
    parts = _Parts(
        _candidate(embedding, {"token.weight": "embedding"} if config.is_tied else None),
        [(partial(SelfAttention, hidden, heads, style), inner) for _ in range(layers)],
        None,
        partial(MaskedHead, hidden, vocabulary, activation=activation, style=style),
    )
    copies = {"cls.predictions.decoder.bias": "cls.predictions.bias"}
    if config.is_tied:
        copies["cls.predictions.decoder.weight"] = sources["embedding", "token.weight"].name
    ignored = ("bert.pooler.", "cls.seq_relationship.")
    return Family(parts.positions(config.is_tied, "out.weight"), sources, vocabulary, length, ignored, copies)


def _causal(
    parts: _Parts, sources: dict[tuple[str, str], TensorSource], config: _Config, vocabulary: int, length: int
) -> Family:
    """With a head of its own, or the embedding's, of which the files may hold a copy."""
    positions, name = parts.positions(config.is_tied, "weight"), "lm_head.weight"
    if not config.is_tied:
        return Family(positions, {**sources, ("head", "weight"): TensorSource(name)}, vocabulary, length)
    copies = {name: sources["embedding", "token.weight"].name}
    return Family(positions, sources, vocabulary, length, copies=copies)


@dataclass(frozen=True)
class _Parts:
    """What the positions of a model hold."""

    embedding: Candidate
    blocks: Sequence[tuple[Callable[[], nn.Module], Callable[[], nn.Module]]]
    norm: Callable[[], nn.Module] | None
    head: Callable[[], nn.Module]

    def positions(self, is_tied: bool, tied: str) -> tuple[Position, ...]:
        """The positions, in order; `tied` is the head's parameter that the embedding defines."""
        found = [Position("embedding", self.embedding)]
        for index, (attention, inner) in enumerate(self.blocks):
            found.append(Position(f"attention_{index}", _candidate(attention)))
            found.append(Position(f"feedforward_{index}", _candidate(inner)))
        if self.norm is not None:
            found.append(Position("norm", _candidate(self.norm)))
        found.append(Position("head", _candidate(self.head, {tied: "embedding"} if is_tied else None)))
        return tuple(found)


FAMILIES: Mapping[str, Callable[[_Config], Family]] = {
    "bert": _bert,
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _llama,
    "mixtral": _llama,
    "qwen3": _llama,
}
# fields that a config leaves out are these where `transformers` has others than our layers, or differs by family
_UNSAID: Mapping[str, Mapping[str, Any]] = {
    "bert": {"tie_word_embeddings": True},
    "gpt2": {"tie_word_embeddings": True},
    "llama": {"tie_word_embeddings": False},
    "mistral": {"tie_word_embeddings": False, "num_key_value_heads": 8, "sliding_window": 4096},
    "mixtral": {"tie_word_embeddings": False, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6},
    "qwen3": {"tie_word_embeddings": False, "num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28},
}
