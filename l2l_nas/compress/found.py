"""A found network as a model that `transformers` loads: its config, and the published names of its parameters.

Where all layers are alike it is a model of its family, and any other one whose layers differ; see `varied.py`.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from l2l_nas.compress.compared import Uncompared, compare_logits
from l2l_nas.compress.config import Config
from l2l_nas.compress.families import Family, TensorSource, family_of, row_of
from l2l_nas.compress.rows import FamilyRow
from l2l_nas.compress.varied import (
    LAYERS,
    MAPS,
    OWN,
    PARTS,
    RANK,
    SKIP,
    VARIED,
    WIDTH,
    WINDOW,
    ModuleNames,
    block_of,
    is_varied,
    kind_of,
    layer_fields,
    model_of,
    plain_config,
)
from l2l_nas.errors import SpaceError, StorageError
from l2l_nas.layers import GatedDelta, Heads, LowRankMap, ParallelBlock, SelfAttention, StateSpace
from l2l_nas.space.candidate import Candidate
from l2l_nas.training.formats import Call, ExportError, ExportSource, module_call
from l2l_nas.training.published_format import MODELING

# the classes of networks whose layers differ; the last is as vLLM and others know Llama's
_CAUSAL, _MASKED, _DECI = "FoundForCausalLM", "FoundForMaskedLM", "DeciLMForCausalLM"


@dataclass(frozen=True)
class FoundModel:
    """A network as a model."""

    family: Family  # of the model that the network is
    names: Mapping[str, str]  # of positions in the network, by their names in that family
    files: Mapping[str, bytes]  # see `HuggingFaceFiles`
    why: str  # see `HuggingFaceFiles`

    def give(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """See `HuggingFaceFiles`."""
        parts: dict[str, list[tuple[TensorSource, Tensor]]] = {}
        for (position, name), source in self.family.sources.items():
            parts.setdefault(source.name, []).append((source, parameters[f"{self.names[position]}.{name}"]))
        return {name: TensorSource.give(*zip(*pairs, strict=True)) for name, pairs in parts.items()}

    def read(self, path: Path, source: ExportSource) -> Call:
        """See `HuggingFaceFiles`."""
        published, network = load_file(path), source.empty()
        taken = {
            f"{self.names[position]}.{name}": source.take(published[source.name])
            for (position, name), source in self.family.sources.items()
        }
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                parameter.copy_(taken[name])
        return module_call(network)

    def compare(self, path: Path, call: Call) -> str:
        """See `HuggingFaceFiles`; with what `transformers` makes of the folder."""
        config = json.loads(self.files["config.json"])
        try:
            return compare_logits(path.parent, self.family, config, lambda tokens: call((tokens,))[0], is_ours=True)
        except Uncompared as error:
            return f"not compared with transformers: {error}"
        except StorageError as error:
            raise ExportError(str(error)) from None


def found_model(config: Mapping[str, Any], layers: Sequence[tuple[str, Candidate]]) -> FoundModel:
    """The model that a network is.

    Args:
        config: of the model that it was found in.
        layers: the network's positions and candidates, in order, without those that are skipped.

    Raises:
        ExportError: no model is this network.
    """
    written = _Written(config, layers)
    content = written.content()
    try:
        family = model_of(content)
    except SpaceError as error:
        raise _not_expressed(str(error), config) from None
    names = {}
    for position, (name, candidate) in zip(family.positions, layers, strict=True):
        if _as_data(position.candidates[0].factory) != _as_data(candidate.factory):
            raise _not_expressed(f"'{name}' is another layer than a config can say", config)
        names[position.name] = name
    files = {"config.json": json.dumps(content, indent=2).encode()}
    if not is_varied(content):
        return FoundModel(family, names, files, why="")
    files[f"{MODELING}.py"] = _modeling(written.row, content).encode()
    return FoundModel(family, names, files, why="its layers differ")


@dataclass(frozen=True)
class _Part:
    """A position of a block."""

    number: int  # of its block in the model that the network was found in
    factory: Any


_Block = Mapping[str, _Part]  # by what the names of their positions begin with


class _Written:
    """The config of a network."""

    def __init__(self, config: Mapping[str, Any], layers: Sequence[tuple[str, Candidate]]) -> None:
        self._plain = plain_config(config)
        self.row = row_of(self._plain)
        self._blocks = [*_blocks(layers)]
        if not self._blocks:
            raise _not_expressed("it has neither attention nor a feed-forward network", self._plain)
        original = family_of(self._plain)
        self._windows = {
            place[1]: heads.window
            for one in original.positions
            if (place := block_of(one.name)) and (heads := _heads(one.candidates[0].factory))
        }
        self._hidden = original.shapes[original.sources["embedding", "token.weight"].name][1]
        self._entries = [self._entry(block) for block in self._blocks]

    def content(self) -> dict[str, Any]:
        """As it is written."""
        fields = {**self._plain, "torch_dtype": "float32", "dtype": "float32"}
        # what is written is not quantised, has no code, and no other config beside it
        for name in ("quantization_config", "auto_map", "configuration_files"):
            fields.pop(name, None)
        fields[self.row.keys["layers"]] = len(self._blocks)
        if fields.get("layer_types") or fields.get("use_sliding_window") or self.row.windows == "each":
            fields["layer_types"] = self._kinds()
        for name in layer_fields(self.row):
            values = {entry[name] for entry in self._entries if name in entry}
            if len(values) == 1:  # all layers that have it
                fields[name] = values.pop()
        entries = {
            str(number): own
            for number, entry in enumerate(self._entries)
            if (own := {name: value for name, value in entry.items() if fields.get(name) != value})
        }
        return fields if not entries else {**fields, **self._differing(fields), LAYERS: entries}

    def _entry(self, block: _Block) -> dict[str, Any]:
        """The numbers of a layer, and what it skips."""
        row, entry = self.row, dict[str, Any]()
        if skipped := sorted({*MAPS} - {PARTS[kind] for kind in block} - ({*MAPS} if "block" in block else set())):
            entry[SKIP] = skipped
        for kind, part in block.items():
            func, args, options = part.factory.func, part.factory.args, part.factory.keywords
            if func in (GatedDelta, StateSpace):
                raise _not_expressed("it has layers with states; export it as program or state_dict", self._plain)
            if func is LowRankMap:
                entry[MAPS[PARTS[kind]]] = args[1]
                continue
            if heads := _heads(part.factory):
                entry |= self._heads_entry(heads, self._windows.get(part.number))
            if func is not SelfAttention:
                entry[row.keys["width"]] = args[-1]
                entry |= {RANK: options["rank"]} if options.get("rank") is not None else {}
        return entry

    def _heads_entry(self, heads: Heads, window: int | None) -> dict[str, int]:
        entry, keys = {self.row.keys["heads"]: heads.count}, self.row.keys
        if "key_value" in keys:
            entry[keys["key_value"]] = heads.shared
        if "size" in keys and heads.size is not None:
            entry[keys["size"]] = heads.size
        elif heads.size is not None and heads.count * heads.size != self._hidden:
            entry = {WIDTH: heads.count * heads.size}
        if heads.window is not None and heads.window != window:
            entry[WINDOW] = heads.window
        return entry

    def _kinds(self) -> list[str]:
        """Of each block, what its attention sees in the original."""
        known = Config({**self.row.defaults, **self._plain})
        kinds = known.kinds(known.layers(self.row.keys["layers"]), self.row.windows)
        return [kinds[next(iter(block.values())).number] for block in self._blocks]

    def _differing(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """What the config of a model has whose layers differ."""
        factories = [part.factory for block in self._blocks for part in block.values()]
        names = ModuleNames(self.row, is_parallel=any("block" in block for block in self._blocks))
        deci = _deci(self._entries, fields) if fields["model_type"] == "llama" else None
        kind, auto = (_MASKED, "MaskedLM") if self.row.is_masked else (_CAUSAL if deci is None else _DECI, "CausalLM")
        return {
            "model_type": f"{VARIED}{fields['model_type']}",
            "architectures": [kind],
            "auto_map": {"AutoConfig": f"{MODELING}.FoundConfig", f"AutoModelFor{auto}": f"{MODELING}.{kind}"},
            "allow_global_per_layer_attribute_access": True,
            "modules": {
                "layers": names.layers,
                "skips": names.skips,
                "maps": names.maps,
                "map_bias": any(one.func is LowRankMap and one.keywords["style"].bias for one in factories),
                "products": {name: len(parts) for name, parts in names.products.items()},
                "heads": names.heads,
            },
            **({} if deci is None else {"block_configs": deci}),
        }


def _blocks(layers: Sequence[tuple[str, Candidate]]) -> Iterator[_Block]:
    """Attention and the feed-forward network behind it are a block, and so is either alone."""
    block: dict[str, _Part] = {}
    for name, candidate in layers:
        place = block_of(name)
        if place is None:
            continue
        kind, number = place
        if block and (kind != "feedforward" or "feedforward" in block):
            yield block
            block = {}
        block[kind] = _Part(number, candidate.factory)
        if kind == "block":
            yield block
            block = {}
    if block:
        yield block


def _deci(entries: Sequence[Mapping[str, Any]], fields: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """What each layer is as `DeciLMForCausalLM` has it; None where it has no such layers.

    All attention has as many heads of queries, and the first layer has attention: vLLM takes no other.
    """
    heads = fields["num_attention_heads"]
    found = []
    for entry in entries:
        skipped = entry.get(SKIP, [])
        if {*OWN} & entry.keys() or entry.get("num_attention_heads", heads) != heads:
            return None
        shared = entry.get("num_key_value_heads")
        attention = {"no_op": "attention" in skipped, "n_heads_in_group": heads // shared if shared else None}
        network = {"no_op": "mlp" in skipped, "intermediate_size": entry.get("intermediate_size")}
        found.append({"attention": attention, "ffn": network})
    return None if found[0]["attention"]["no_op"] or fields["hidden_act"] != "silu" else found


def _modeling(row: FamilyRow, content: Mapping[str, Any]) -> str:
    """The code of the classes, for this family."""
    text = inspect.getsource(importlib.import_module("l2l_nas.compress.modeling"))
    (kind,), family = content["architectures"], kind_of(content)
    text = text.replace('"llama"', f'"{family}"').replace(_CAUSAL, kind)
    return text.replace("MODEL_FOR_CAUSAL_LM_MAPPING", "MODEL_FOR_MASKED_LM_MAPPING") if row.is_masked else text


def _heads(factory: Any) -> Heads | None:
    is_attention = isinstance(factory, partial) and factory.func in (SelfAttention, ParallelBlock)
    return factory.args[1] if is_attention else None


def _as_data(factory: Any) -> tuple[Any, ...]:
    if not isinstance(factory, partial):
        return (factory,)
    keywords = dict(factory.keywords)
    if "routing" in keywords:  # the weight of its loss follows from how many layers there are
        keywords["routing"] = replace(keywords["routing"], balance=0.0)
    return factory.func, factory.args, keywords


def _not_expressed(why: str, config: Mapping[str, Any]) -> ExportError:
    return ExportError(f"a {config['model_type']} model cannot be this network: {why}")
