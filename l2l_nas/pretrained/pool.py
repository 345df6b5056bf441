"""Published models as pools: `hf:FOLDER` and `gguf:FILE`.

The model's own layers are the first candidate of each position; their weights are read when a layer is first needed.
Nothing of a folder or file is run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from l2l_nas.errors import SpaceError
from l2l_nas.layers import FeedForward, MixtureOfExperts, ParallelBlock, SelfAttention
from l2l_nas.pretrained.families import ORIGINAL, Family, TensorSource, family_of
from l2l_nas.pretrained.folder import Folder
from l2l_nas.pretrained.found import FoundModel, found_model
from l2l_nas.pretrained.gguf import GGUF
from l2l_nas.pretrained.tensors import Published
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.candidate import Candidate, FirstWeights, Position, skip
from l2l_nas.space.pool import LayerPool
from l2l_nas.text.tokenizer import Tokenizer

_KINDS: Mapping[str, Callable[[Path], Published]] = {"hf": Folder, "gguf": GGUF}
_MULTIPLE = 8  # widths of smaller layers are multiples of it


class PublishedPool(LayerPool):
    """A pool of a published model's layers; `original` is the model itself.

    Attributes:
        published: the files.
        family: what they hold.
        tokenizer: what its networks are trained with; None: the model's own.
    """

    tokenizer: Tokenizer | None = None

    def __init__(self, positions: Sequence[Position], published: Published, family: Family, *, length: int) -> None:
        super().__init__(positions, inputs=family.inputs(length))
        self.published = published
        self.family = family

    def hugging_face(self, architecture: Architecture) -> FoundModel:
        """See `training.hugging_face.Publishable`."""
        layers = [(self.positions[layer.position].name, layer.candidate) for layer in self.path(architecture)]
        config, tokenizer = self.published.config, self.tokenizer
        if tokenizer is not None:
            ends = tokenizer.end if len(tokenizer.ends) < 2 else sorted(tokenizer.ends)
            config = {
                **config,
                "bos_token_id": tokenizer.begin,
                "eos_token_id": ends,
                "pad_token_id": tokenizer.padding,
            }
        return found_model(config, layers, self.beside)

    @property
    def beside(self) -> Mapping[str, bytes]:
        """See `training.hugging_face.Publishable`."""
        if self.tokenizer is None:
            return self.published.beside
        return {name: text.encode() for name, text in self.tokenizer.texts.items()}


def is_published(name: str) -> bool:
    """Whether a pool's name is that of a published model."""
    return name.partition(":")[0] in _KINDS and ":" in name


def open_published(name: str) -> Published:
    """The files of `hf:FOLDER` or `gguf:FILE`.

    Raises:
        SettingError: a package is missing.
        StorageError: missing, damaged or of an unknown kind.
    """
    kind, _, location = name.partition(":")
    return _KINDS[kind](Path(location).expanduser())


def published_pool(
    name: str,
    *,
    length: int | None = None,
    skips: bool = True,
    widths: Sequence[float] = (),
    key_value: Sequence[int] = (),
    ranks: Sequence[float] = (),
    windows: Sequence[int] = (),
) -> LayerPool:
    """A published model's layers, and smaller ones beside them that `strategy=blockwise` teaches to stand in for them.

    Args:
        name: `hf:FOLDER` or `gguf:FILE`.
        length: of sequences; the model's longest, at most 1,024, by default.
        skips: whether attention and feed-forward sub-layers may be left out.
        widths: of narrower feed-forward networks, as shares of the model's: the units that do most.
        key_value: heads of attention with fewer keys and values: the means of the model's.
        ranks: of feed-forward networks whose matrices are products, as shares of the width of the model.
        windows: of attention to so many tokens.

    Raises:
        SettingError: a package is missing.
        StorageError: the files are missing, damaged, or not those of their config.
        SpaceError: an unknown family; a candidate that cannot be made.
    """
    published = open_published(name)
    family = family_of(published.config)
    published.check(family.shapes, family.ignored, family.copies)
    chosen = min(family.length, 1024) if length is None else length
    family.inputs(chosen)
    positions = []
    for position in family.positions:
        original = position.candidates[0]
        more: list[Candidate] = []
        kind = original.factory.func if isinstance(original.factory, partial) else None
        if kind in (FeedForward, MixtureOfExperts, ParallelBlock):
            more += [_narrower(original.factory, share, position.name) for share in widths]
        if kind in (FeedForward, ParallelBlock):
            more += [_low_rank(original.factory, share, position.name) for share in ranks]
        if kind in (SelfAttention, ParallelBlock):
            more += [_fewer(original.factory, count, position.name) for count in key_value]
            more += [_windowed(original.factory, window, position.name) for window in windows]
        if skips and kind in (FeedForward, MixtureOfExperts, ParallelBlock, SelfAttention):
            more.append(skip())
        read = partial(_read, published, family.sources, position.name)
        weights = FirstWeights(read, f"{published.fingerprint} {position.name}")
        candidate = Candidate(ORIGINAL, original.factory, original.tied, weights=weights)
        positions.append(position.with_candidates([candidate, *more]))
    return PublishedPool(positions, published, family, length=chosen)


def _read(published: Published, sources: Mapping[tuple[str, str], TensorSource], position: str, name: str) -> Tensor:
    source = sources[position, name]
    return source.take(published.read(source.name))


def _check_share(setting: str, share: float, position: str) -> None:
    if not 0 < share < 1:
        raise SpaceError(f"{setting} are shares between 0 and 1, got {share}", position=position)


def _narrower(factory: Any, share: float, position: str) -> Candidate:
    _check_share("widths", share, position)
    *others, width = factory.args
    wide = max(_MULTIPLE, round(share * width / _MULTIPLE) * _MULTIPLE)
    return Candidate(f"width_{wide}", partial(factory.func, *others, wide, **factory.keywords))


def _low_rank(factory: Any, share: float, position: str) -> Candidate:
    _check_share("ranks", share, position)
    rank = max(1, round(share * factory.args[0]))  # of the width of the model
    return Candidate(f"rank_{rank}", partial(factory.func, *factory.args, rank=rank, **factory.keywords))


def _fewer(factory: Any, count: int, position: str) -> Candidate:
    heads = factory.args[1]
    whole = heads.key_value or heads.count
    if count < 1 or whole % count or count == whole:
        raise SpaceError(
            f"key_value heads must divide the model's {whole} and be fewer, got {count}", position=position
        )
    return _changed_heads(factory, f"key_value_{count}", key_value=count)


def _windowed(factory: Any, window: int, position: str) -> Candidate:
    if window < 1:
        raise SpaceError(f"windows are of at least 1 token, got {window}", position=position)
    return _changed_heads(factory, f"window_{window}", window=window)


def _changed_heads(factory: Any, name: str, **change: Any) -> Candidate:
    hidden, heads, *rest = factory.args
    return Candidate(name, partial(factory.func, hidden, replace(heads, **change), *rest, **factory.keywords))
