"""Published models as pools: `hf:FOLDER`.

The model's own layers are the first candidate of each position; their weights are read when a layer is first needed.
Nothing of a folder is run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from l2l_nas.compress.compared import Uncompared, compare_logits, compare_tokens
from l2l_nas.compress.families import Family, TensorSource
from l2l_nas.compress.folder import Folder
from l2l_nas.compress.found import FoundModel, found_model
from l2l_nas.compress.gguf_out import GGUFModel
from l2l_nas.compress.gguf_tokenizer import add_tokenizer
from l2l_nas.compress.library import LibraryFiles, LibraryModel, told_of
from l2l_nas.compress.model_card import LICENCES, model_card
from l2l_nas.compress.rows import FAMILIES
from l2l_nas.compress.varied import kind_of, model_of
from l2l_nas.errors import SpaceError, StorageError, did_you_mean
from l2l_nas.layers import (
    DeltaHeads,
    FeedForward,
    GatedDelta,
    Heads,
    LowRankMap,
    MixtureOfExperts,
    ParallelBlock,
    SelfAttention,
    StateHeads,
    StateSpace,
    Style,
)
from l2l_nas.relay.interface import Batch
from l2l_nas.space.candidate import Candidate, FirstWeights, Position, TensorSpec, skip
from l2l_nas.space.pool import LayerPool
from l2l_nas.text.tokenizer import Tokenizer
from l2l_nas.training.export import first_module
from l2l_nas.training.formats import Call, ExportError, ExportSource, module_call
from l2l_nas.training.published_format import HuggingFaceFiles

_KIND = "hf:"
MIXERS = ("delta", "state_space")
_MULTIPLE = 8  # widths of smaller layers are multiples of it
_NETWORKS = (FeedForward, MixtureOfExperts, ParallelBlock)
_SUBLAYERS = (SelfAttention, LowRankMap, *_NETWORKS)
# a smaller layer than the model's own: its name, its arguments, and further ones by name
_Smaller = tuple[str, tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class _SmallerAttention:
    """Which smaller attention is wanted; see `published_pool`."""

    heads: Sequence[int]
    groups: Sequence[int]
    key_value: Sequence[int]
    windows: Sequence[int]
    refused: dict[str, SpaceError] = field(default_factory=dict)  # why a layer cannot have it, by candidate's name
    offered: set[str] = field(default_factory=set)  # names of candidates that some layer has

    def refuse(self, name: str, why: str, position: str) -> None:
        """Note that a layer has no such candidate; layers of a found network are unlike."""
        self.refused.setdefault(name, SpaceError(why, position=position))

    def check(self) -> None:
        """Refuse what no layer can have, with a SpaceError."""
        for name, error in self.refused.items():
            if name not in self.offered:
                raise error


class PublishedPool(LayerPool, ABC):
    """A pool of a published model's layers; `original` is the model itself."""

    tokenizer: Tokenizer | None = None  # what its networks are trained with; None: the model's own

    def __init__(self, positions: Sequence[Position], published: Folder, *, inputs: Mapping[str, TensorSpec]) -> None:
        super().__init__(positions, inputs=inputs)
        self.published = published

    @abstractmethod
    def compare(self) -> str:
        """Compare the original with what `transformers` makes of its folder; returns what to tell of it.

        Raises:
            StorageError: logits or tokens differ.
        """

    @abstractmethod
    def hugging_face(self, source: ExportSource) -> HuggingFaceFiles:
        """See `training.published_format.Publishable`."""

    def card(self, source: ExportSource, files: HuggingFaceFiles) -> str:
        """See `training.published_format.Publishable`."""
        return model_card(self.published, source, files={**self.beside, **files.files}, why=files.why)

    @property
    def token_fields(self) -> Mapping[str, Any]:
        """Fields of the config that follow from the tokenizer, where it is another one than the model's."""
        tokenizer = self.tokenizer
        if tokenizer is None:
            return {}
        ends = tokenizer.end if len(tokenizer.ends) < 2 else sorted(tokenizer.ends)
        return {"bos_token_id": tokenizer.begin, "eos_token_id": ends, "pad_token_id": tokenizer.padding}

    @property
    def beside(self) -> Mapping[str, bytes]:
        """See `training.published_format.Publishable`."""
        if self.tokenizer is None:
            return self.published.beside
        texts = {name: text.encode() for name, text in self.tokenizer.texts.items()}
        return {name: text for name, text in self.published.beside.items() if LICENCES.match(name)} | texts


class LibraryPool(PublishedPool):
    """A pool of `transformers`' own modules; see `library.py`."""

    def __init__(self, library: LibraryModel, published: Folder, *, length: int, skips: bool) -> None:
        found = library.pool(length=length, skips=skips)
        super().__init__(found.positions, published, inputs={"input_ids": TensorSpec((length,), torch.int64)})
        self.library = library

    def hugging_face(self, source: ExportSource) -> LibraryFiles:
        """See `training.published_format.Publishable`."""
        return LibraryFiles(self.library, source, tokens=self.token_fields)

    def compare(self) -> str:
        """See `PublishedPool`; the modules are the very ones."""
        return told_of(self.library, self.published.tokenizer() if self.tokenizer is None else None)

    def write_gguf(self, source: ExportSource, path: Path, *, is_half: bool) -> None:
        """See `training.published_format.Publishable`."""
        raise self._no_gguf

    def read_gguf(self, source: ExportSource, path: Path) -> Call:
        """See `training.published_format.Publishable`."""
        raise self._no_gguf

    @property
    def _no_gguf(self) -> ExportError:
        return ExportError(f"no GGUF file is written of a {self.library.kind} model")


class FamilyPool(PublishedPool):
    """A pool of our layers, of a family that a row describes, or of a network that was found before."""

    def __init__(self, positions: Sequence[Position], published: Folder, family: Family, *, length: int) -> None:
        super().__init__(positions, published, inputs=family.inputs(length))
        self.family = family

    def hugging_face(self, source: ExportSource) -> FoundModel:
        """See `training.published_format.Publishable`; a network whose layers differ comes with code."""
        return found_model(self._config, self._chosen(source))

    def write_gguf(self, source: ExportSource, path: Path, *, is_half: bool) -> None:
        """See `training.published_format.Publishable`."""
        model = GGUFModel(self._chosen(source), length=self.family.length)
        parameters = dict(source.network.named_parameters())
        tokenizer = partial(add_tokenizer, files=self.beside, config=self._config)
        model.write(path, parameters, tokenizer, is_half=is_half)

    def read_gguf(self, source: ExportSource, path: Path) -> Call:
        """See `training.published_format.Publishable`."""
        network = source.empty()
        GGUFModel(self._chosen(source), length=self.family.length).read(path, dict(network.named_parameters()))
        return module_call(network)

    def compare(self) -> str:
        """See `PublishedPool`."""
        try:
            found = [compare_logits(self.published.path, self.family, self.published.config, self._logits)]
            if self.tokenizer is None:
                found.append(compare_tokens(self.published.path, self.published.tokenizer()))
        except Uncompared as error:
            return f"not compared with transformers: {error}"
        return "; ".join(found)

    def _logits(self, tokens: Tensor) -> Tensor:
        """Of the original, with one layer at a time in memory."""
        tied: dict[str, nn.Parameter] = {}
        values: Batch = (tokens,)
        for layer in self.path(self.original):
            values = module_call(first_module(self, layer, tied).eval())(values)
        return values[0]

    def _chosen(self, source: ExportSource) -> list[tuple[str, Candidate]]:
        return [(self.positions[layer.position].name, layer.candidate) for layer in self.path(source.architecture)]

    @property
    def _config(self) -> Mapping[str, Any]:
        return {**self.published.config, **self.token_fields}


def is_published(name: str) -> bool:
    """Whether a pool's name is that of a published model."""
    return name.startswith(_KIND)


def vocabulary_of(published: Folder) -> int:
    """How many tokens a model has."""
    if has_family(published.config):
        return model_of(published.config).vocabulary
    count = published.config.get("vocab_size")
    if type(count) is not int or count < 1:
        raise StorageError(f"{published.path}: its config.json has no vocab_size")
    return count


def has_family(config: Mapping[str, Any]) -> bool:
    """Whether a row describes the model, or its config its layers; `transformers` makes all others."""
    return kind_of(config) in FAMILIES


def open_published(name: str) -> Folder:
    """The files of `hf:FOLDER`. Raises StorageError: missing or damaged."""
    return Folder(Path(name.removeprefix(_KIND)).expanduser())


def published_pool(
    name: str,
    *,
    length: int | None = None,
    skips: bool = True,
    widths: Sequence[float] = (),
    heads: Sequence[int] = (),
    groups: Sequence[int] = (),
    key_value: Sequence[int] = (),
    ranks: Sequence[float] = (),
    windows: Sequence[int] = (),
    linear: Sequence[float] = (),
    mixers: Sequence[str] = (),
) -> PublishedPool:
    """A published model's layers, and smaller ones beside them that `strategy=blockwise` teaches to stand in for them.

    A model of a type that no row describes is made by `transformers`: its blocks may be left out, and have no others
    beside them.

    Args:
        name: `hf:FOLDER`.
        length: of sequences; the model's longest, at most 1,024, by default.
        skips: whether attention and feed-forward sub-layers, or whole blocks, may be left out.
        widths: of narrower feed-forward networks, as shares of the model's: the units that cost most to remove.
        heads: of queries, of attention that keeps all keys and values; where each head has its own, these go along.
        groups: of attention that keeps only so many heads of keys and values, and their queries.
        key_value: heads of attention with fewer keys and values for as many queries: the model's, merged.
        ranks: of feed-forward networks whose matrices are products, as shares of the width of the model. Where they
            are products already, there are no further ones, nor narrower ones.
        windows: of attention to so many tokens.
        linear: ranks of linear maps in place of a whole sub-layer, as shares of the width of the model.
        mixers: of `MIXERS`, in place of causal attention: "delta", linear attention with a gate and the delta rule, and
            "state_space", Mamba-2's. Their states do not grow with the text.

    Raises:
        StorageError: the files are missing, damaged, or not those of their config.
        SettingError: `transformers` is needed, and missing.
        SpaceError: a candidate that no layer can have, or a model that cannot be taken apart.
    """
    published = open_published(name)
    if not has_family(published.config):
        asked: dict[str, Sequence[object]] = {"widths": widths, "heads": heads, "groups": groups, "ranks": ranks}
        asked |= {"key_value": key_value, "windows": windows, "linear": linear, "mixers": mixers}
        for setting in (name for name, values in asked.items() if values):
            raise SpaceError(
                f"{setting}: a {published.config['model_type']} model has no smaller layers, and its blocks may be "
                f"left out alone; write space.args.{setting}=[]"
            )
        library = LibraryModel(published)
        chosen = min(library.length, 1024) if length is None else length
        return LibraryPool(library, published, length=chosen, skips=skips)
    family = model_of(published.config)
    published.check(family)
    chosen = min(family.length, 1024) if length is None else length
    family.inputs(chosen)
    positions = []
    attention = _SmallerAttention(heads, groups, key_value, windows)
    for position in family.positions:
        factory: Any = position.candidates[0].factory
        smaller = [*_networks(factory, position.name, widths, ranks)]
        if factory.func in (SelfAttention, ParallelBlock):
            smaller += _attention(factory.args, position.name, attention)
        more = [
            Candidate(name, partial(factory.func, *args, **{**factory.keywords, **options}))
            for name, args, options in smaller
        ]
        if factory.func is SelfAttention:
            more += _mixers(factory.args, position.name, mixers)
        if factory.func in _SUBLAYERS:
            more += _linear(factory, position.name, linear)
            more += [skip()] if skips else []
        read = partial(_read, published, family.sources, position.name)
        weights = FirstWeights(read, f"{published.fingerprint} {position.name}")
        candidate = replace(position.candidates[0], weights=weights)
        positions.append(position.with_candidates([candidate, *more]))
    attention.check()
    return FamilyPool(positions, published, family, length=chosen)


def _read(published: Folder, sources: Mapping[tuple[str, str], TensorSource], position: str, name: str) -> Tensor:
    source = sources[position, name]
    return source.take(published.read(source.name))


def _networks(factory: Any, position: str, widths: Sequence[float], ranks: Sequence[float]) -> Iterator[_Smaller]:
    if factory.func not in _NETWORKS or factory.keywords.get("rank") is not None:
        return
    hidden, *_, width = factory.args
    for share in widths:
        _check_share("widths", share, position)
    for share in ranks:
        _check_share("ranks", share, position)
    for wide in dict.fromkeys(max(_MULTIPLE, round(share * width / _MULTIPLE) * _MULTIPLE) for share in widths):
        yield f"width_{wide}", (*factory.args[:-1], wide), {}
    if factory.func is not MixtureOfExperts:
        for rank in dict.fromkeys(min(width, max(1, round(share * hidden))) for share in ranks):
            yield f"rank_{rank}", factory.args, {"rank": rank}


def _linear(factory: Any, position: str, ranks: Sequence[float]) -> Iterator[Candidate]:
    """Linear maps in place of a sub-layer; one that is such a map has those of lower ranks."""
    hidden, *rest = factory.args
    style = next((one for one in rest if isinstance(one, Style)), factory.keywords.get("style"))
    for share in ranks:
        _check_share("linear", share, position)
    for rank in dict.fromkeys(max(1, round(share * hidden)) for share in ranks):
        if factory.func is not LowRankMap or rank < rest[0]:
            yield Candidate(f"linear_{rank}", partial(LowRankMap, hidden, rank, style=style))


def _attention(args: tuple[Any, ...], position: str, wanted: _SmallerAttention) -> Iterator[_Smaller]:
    hidden, heads, *rest = args
    whole, each, size = heads.shared, heads.count // heads.shared, heads.size or hidden // heads.count
    found: dict[str, Heads] = {}
    for count in wanted.heads:
        own = whole if each > 1 else 1  # of keys and values, which stay
        if not 0 < count < heads.count or count % own:
            multiple = f" and multiples of its {own} of keys and values" if own > 1 else ""
            why = f"heads must be fewer than the model's {heads.count}{multiple}, got {count}"
            wanted.refuse(f"heads_{count}", why, position)
            continue
        shared = whole if each > 1 else count
        found[f"heads_{count}"] = replace(heads, count=count, key_value=heads.key_value and shared, size=size)
    for count in wanted.groups:
        if not 0 < count < whole:
            wanted.refuse(f"groups_{count}", f"groups must be fewer than the model's {whole}, got {count}", position)
            continue
        found[f"groups_{count}"] = replace(heads, count=count * each, key_value=heads.key_value and count, size=size)
    for count in wanted.key_value:
        if count < 1 or whole % count or count == whole:
            why = f"key_value heads must divide the model's {whole} and be fewer, got {count}"
            wanted.refuse(f"key_value_{count}", why, position)
            continue
        found[f"key_value_{count}"] = replace(heads, key_value=count)
    for window in wanted.windows:
        if window < 1:
            raise SpaceError(f"windows are of at least 1 token, got {window}", position=position)
        if heads.window is None or window < heads.window:
            found[f"window_{window}"] = replace(heads, window=window)
    wanted.offered.update(found)
    for name, smaller in found.items():
        yield name, (hidden, smaller, *rest), {}


def _mixers(args: tuple[Any, ...], position: str, names: Sequence[str]) -> Iterator[Candidate]:
    """Layers with states in place of causal attention, of as many heads."""
    hidden, heads, style = args
    for name in names:
        if name not in MIXERS:
            raise SpaceError(f"mixers: no '{name}'{did_you_mean(name, MIXERS)}", position=position)
    size = heads.size or hidden // heads.count
    for name in names if heads.is_causal else ():
        if name == "delta":
            yield Candidate(name, partial(GatedDelta, hidden, DeltaHeads(heads.count, size), style=style))
        else:
            states = StateHeads(heads.count, size=size, state=size, groups=heads.count)
            yield Candidate(name, partial(StateSpace, hidden, states, style=style))


def _check_share(setting: str, share: float, position: str) -> None:
    if not 0 < share < 1:
        raise SpaceError(f"{setting} are shares between 0 and 1, got {share}", position=position)
