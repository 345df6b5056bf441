"""Networks of a family whose layers differ, as a config of `transformers` says it: `per_layer_config`.

Such a config has the numbers that most layers share, and of each other layer what differs, or what it skips. Beside
the fields of the family there are those of `OWN`. `modeling.py`, which an export writes beside it, makes the layers in
`transformers`; here the config is read, and nothing of a folder is run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from l2l_nas.arguments import shown
from l2l_nas.compress.config import Config
from l2l_nas.compress.families import ORIGINAL, Factory, Family, TensorSource, family_of, row_of, split_of
from l2l_nas.compress.rows import FamilyRow
from l2l_nas.contents.fields import Fields
from l2l_nas.errors import SpaceError
from l2l_nas.layers import FeedForward, LowRankMap, ParallelBlock, SelfAttention, Style
from l2l_nas.space.candidate import Candidate, Position

VARIED = "l2l_nas_"  # what the names of such models begin with, before that of the family
LAYERS, SKIP = "per_layer_config", "skip"
PARTS = {"attention": "attention", "feedforward": "mlp", "block": "attention"}  # what is skipped, by position
# of a layer, beside fields of its family: the rank of a linear map in place of a sub-layer; that of the products which
# a feed-forward network's matrices are; how many tokens attention sees; the width of all its heads, where the family's
# config says no size of heads
MAPS = {"attention": "attention_map", "mlp": "mlp_map"}
RANK, WINDOW, WIDTH = "mlp_rank", "attention_window", "attention_width"
OWN = (*MAPS.values(), RANK, WINDOW, WIDTH)
# of the whole model, which no family knows
_TOP = (LAYERS, "modules", "block_configs", "allow_global_per_layer_attribute_access", "architectures")
_MOST = 1 << 24


def model_of(config: Mapping[str, Any]) -> Family:
    """The model whose `config.json` has this content: of a family, or one whose layers differ.

    Raises:
        SpaceError: an unknown family, or something in it that our layers do not do.
    """
    return _Varied(config).family() if is_varied(config) else family_of(config)


def is_varied(config: Mapping[str, Any]) -> bool:
    """Whether it is of a model whose layers differ."""
    return str(config.get("model_type")).startswith(VARIED)


def kind_of(config: Mapping[str, Any]) -> str:
    """The family of a model, of such ones too."""
    return str(config.get("model_type")).removeprefix(VARIED)


def plain_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without what its layers differ in."""
    if not is_varied(config):
        return dict(config)
    return {name: value for name, value in config.items() if name not in _TOP} | {"model_type": kind_of(config)}


def block_of(name: str) -> tuple[str, int] | None:
    """What a position's name says: what of a block it is, and which block; None for those that are of none."""
    kind, _, number = name.partition("_")
    return (kind, int(number)) if kind in PARTS and number.isdigit() else None


def layer_fields(row: FamilyRow) -> tuple[str, ...]:
    """The fields of a family's config in which its layers may differ."""
    return tuple(row.keys[what] for what in ("width", "heads", "key_value", "size") if what in row.keys)


@dataclass(frozen=True)
class ModuleNames:
    """What parts of a family's layers are called in `transformers`, and what is put there; see `modeling.py`.

    A kind is what stands there: "zeros", "same", a linear "map"; those of attention are told by `_attention` behind it.
    """

    row: FamilyRow
    is_parallel: bool  # whether both sub-layers work beside each other

    @property
    def layers(self) -> str:
        """The list of layers."""
        return self.row.block.removesuffix(".{}.")

    @property
    def skips(self) -> dict[str, dict[str, str]]:
        """By what is skipped, what stands where."""
        if self.row.norm_place == "sum":
            return {"attention": {"attention": "same_attention"}, "mlp": {"intermediate": "same", "output": "same"}}
        norms = {part: dict.fromkeys(self._norms(part), "same") for part in MAPS}
        return {
            "attention": {self._body("attention"): "zeros_attention", **norms["attention"]},
            "mlp": {self._body("mlp"): "zeros", **norms["mlp"]},
        }

    @property
    def maps(self) -> dict[str, dict[str, str]]:
        """By what a linear map stands in for, what stands where."""
        if self.row.norm_place == "sum":
            names = {"attention": ("attention.self", "attention.output.dense"), "mlp": ("intermediate", "output.dense")}
        else:
            names = {part: (self._body(part), "") for part in MAPS}
        kinds = {"attention": "map_attention", "mlp": "map"}
        found = {part: {name: kinds[part], **({last: "same"} if last else {})} for part, (name, last) in names.items()}
        if self.is_parallel:
            found["attention"] |= self.skips["mlp"]
        return found

    def map(self, part: str) -> str:
        """The module that such a map is."""
        return next(iter(self.maps[part]))

    @property
    def products(self) -> dict[str, list[str]]:
        """The linear layers of a feed-forward network, and which of ours each holds."""
        found: dict[str, list[str]] = {}
        for part in ("gate", "up", "down"):
            fused = next((name for name, parts in self.row.fused.items() if part in parts), None)
            name = fused or self.row.names.get(f"feed_forward.{part}")
            if name is not None and (part != "gate" or self.row.is_gated):
                found.setdefault(name, []).append(part)
        return found

    @property
    def heads(self) -> dict[str, int]:
        """The linear layers of attention, by how often each gives the width of its heads; 0: it takes it."""
        if "size" in self.row.keys:
            return {}
        fused = {name: len(parts) for name, parts in self.row.fused.items() if "query" in parts}
        own = {self.row.names[f"attention.{part}"]: 1 for part in ("query", "key", "value")} if not fused else {}
        return {**fused, **own, self.row.names["attention.out"]: 0}

    def _body(self, part: str) -> str:
        if part == "mlp" and self.row.is_mixture:
            return "mlp"  # its published names are older than that
        last = {"attention": "attention.out", "mlp": "feed_forward.down"}[part]
        return self.row.names[last].partition(".")[0]

    def _norms(self, part: str) -> list[str]:
        ours = {"attention": "attention", "mlp": "feed_forward"}[part]
        norms = {"before": ("norm",), "added": ("added_norm",), "both": ("norm", "added_norm")}[self.row.norm_place]
        return [self.row.names[f"{ours}.{norm}"] for norm in norms]


class _Varied:
    """Reads such a config."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._fields = Fields(config, "config", error=SpaceError)
        self._plain = plain_config(config)
        self._row = row_of(self._plain)
        self._whole = family_of(self._plain)
        self._count = Config(self._plain).layers(self._row.keys["layers"])
        self._known: dict[str, Family] = {}

    def family(self) -> Family:
        """The model."""
        entries = self._entries()
        ends = [position for position in self._whole.positions if block_of(position.name) is None]
        sources = {key: one for key, one in self._whole.sources.items() if block_of(key[0]) is None}
        within: list[Position] = []
        for number in range(self._count):
            entry = entries.get(number, {})
            layer = _Layer(self._row, number, entry, self._family(entry))
            within += layer.positions
            sources |= layer.sources
        positions = (ends[0], *within, *ends[1:])
        return replace(self._whole, positions=positions, sources=sources, shapes=_shapes(positions, sources))

    def _entries(self) -> dict[int, Mapping[str, Any]]:
        """What differs, by layer; each name and number is one that is known here."""
        entries: dict[int, Mapping[str, Any]] = {}
        known = {*layer_fields(self._row), *OWN}
        for key, entry in self._fields.table(LAYERS, default={}).items():
            number = int(key) if key.isdecimal() and len(key) < 6 else self._count
            if number >= self._count or number in entries or not isinstance(entry, Mapping):
                raise SpaceError(f"config: {LAYERS} has '{key}'; expected numbers of layers, and what differs in each")
            skip = entry.get(SKIP, [])
            if not isinstance(skip, list) or not set(map(str, skip)) <= {*MAPS}:
                raise SpaceError(f"config: {LAYERS}: layer {number} skips {shown(skip)}; known are {', '.join(MAPS)}")
            for name, value in entry.items():
                if name != SKIP and (name not in known or type(value) is not int or not 0 < value <= _MOST):
                    raise SpaceError(
                        f"config: {LAYERS}: layer {number} has '{name}': {shown(value)}; known are "
                        f"{', '.join(sorted(known))}, numbers above 0"
                    )
            entries[number] = entry
        return entries

    def _family(self, entry: Mapping[str, Any]) -> Family:
        """The family of a model all of whose layers are like this one."""
        fields = {name: entry[name] for name in layer_fields(self._row) if name in entry}
        width = entry.get(WIDTH)
        known = json.dumps([fields, width], sort_keys=True)
        if known not in self._known:
            self._known[known] = family_of({**self._plain, **fields}, heads_width=width)
        return self._known[known]


class _Layer:
    """A layer of such a model: what its positions are, and where their parameters lie.

    Args:
        entry: what the config says of it.
        family: of a model all of whose layers have its numbers.
    """

    def __init__(self, row: FamilyRow, number: int, entry: Mapping[str, Any], family: Family) -> None:
        self._row, self._entry, self._family = row, entry, family
        self._block = row.block.format(number)
        self.sources: dict[tuple[str, str], TensorSource] = {}
        own = [one for one in family.positions if (place := block_of(one.name)) and place[1] == number]
        self._names = ModuleNames(row, is_parallel=len(own) == 1)
        self.positions = [*self._kept(own)]
        unused = {*entry} - {SKIP, *layer_fields(row), WIDTH} - self._used
        if unused or (len(own) == 1 and entry.get(SKIP)):
            raise SpaceError(f"config: {LAYERS}: layer {number} has {', '.join(sorted(unused or [SKIP]))}, for nothing")

    def _kept(self, positions: Sequence[Position]) -> Iterator[Position]:
        self._used: set[str] = set()
        for position in positions:
            kind, _ = block_of(position.name) or ("", 0)
            part = PARTS[kind]
            if part in self._entry.get(SKIP, []):
                continue
            factory, renamed = self._changed(part, position.candidates[0].factory)
            for name in _parameters(factory):
                self.sources[position.name, name] = renamed.get(name) or self._family.sources[position.name, name]
            yield Position(position.name, Candidate(ORIGINAL, factory, split=split_of(factory)))

    def _changed(self, part: str, factory: Any) -> tuple[Factory, dict[str, TensorSource]]:
        """A layer with what is its own, and the names of parameters that the family has not."""
        func, args, options = factory.func, factory.args, dict(factory.keywords)
        rank = self._entry.get(MAPS[part])
        if rank is not None:
            self._used.add(MAPS[part])
            style: Style = args[2] if func is SelfAttention else options["style"]
            made = partial(LowRankMap, args[0], rank, style=style)
            begin = f"{self._block}{self._names.map(part)}."
            found = {name: TensorSource(begin + name) for name in _parameters(made) if name.startswith("map.")}
            if func is ParallelBlock:  # whose norm is that of its attention
                found |= {
                    name: TensorSource(f"{self._block}{self._row.names['attention.norm']}.{name.partition('.')[2]}")
                    for name in _parameters(made)
                    if name.startswith("norm.")
                }
            return made, found
        renamed: dict[str, TensorSource] = {}
        if func in (SelfAttention, ParallelBlock) and WINDOW in self._entry:
            self._used.add(WINDOW)
            args = (args[0], replace(args[1], window=self._entry[WINDOW]), *args[2:])
        if func in (FeedForward, ParallelBlock) and RANK in self._entry:
            self._used.add(RANK)
            options["rank"] = self._entry[RANK]
            before = "feed_forward." if func is ParallelBlock else ""
            for name, parts in self._names.products.items():
                for index, ours in enumerate(parts):
                    for leaf in ("0.weight", "1.weight", "1.bias"):
                        renamed[f"{before}{ours}.{leaf}"] = TensorSource(f"{self._block}{name}.products.{index}.{leaf}")
        return partial(func, *args, **options), renamed


def _parameters(factory: Factory) -> dict[str, torch.Size]:
    with torch.device("meta"):
        return {name: parameter.shape for name, parameter in factory().named_parameters()}


def _shapes(
    positions: Sequence[Position], sources: Mapping[tuple[str, str], TensorSource]
) -> dict[str, tuple[int, ...]]:
    """The shapes of all published tensors, by name."""
    shapes: dict[str, tuple[int, ...]] = {}
    for position in positions:
        for name, (first, *others) in _parameters(position.candidates[0].factory).items():
            if (source := sources.get((position.name, name))) is not None:
                shape = (source.rows or first, *others)
                shapes[source.name] = shape[::-1] if source.is_transposed else shape
    return shapes
