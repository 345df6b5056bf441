"""A found network as a model of its family: its config, and the published names of its parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from l2l_nas.compress.compared import Uncompared, compare_logits
from l2l_nas.compress.config import FULL, SLIDING
from l2l_nas.compress.families import Family, TensorSource, family_of, row_of
from l2l_nas.errors import StorageError
from l2l_nas.layers import FeedForward, LowRankMap, MixtureOfExperts, ParallelBlock, SelfAttention
from l2l_nas.space.candidate import Candidate
from l2l_nas.training.formats import Call, ExportError, ExportSource, module_call


@dataclass(frozen=True)
class FoundModel:
    """A network as a model of a family."""

    family: Family  # of the model that the network is
    names: Mapping[str, str]  # of positions in the network, by their names in that family
    files: Mapping[str, bytes]  # see `HuggingFaceFiles`
    why = ""  # see `HuggingFaceFiles`

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
            return compare_logits(path.parent, self.family, config, lambda tokens: call((tokens,))[0])
        except Uncompared as error:
            return f"not compared with transformers: {error}"
        except StorageError as error:
            raise ExportError(str(error)) from None


def found_model(config: Mapping[str, Any], layers: Sequence[tuple[str, Candidate]]) -> FoundModel:
    """The model that a network is.

    The config of the model that it was found in gets the network's depth, width and heads; then the family of that
    config must have the very layers of the network.

    Args:
        layers: the network's positions and candidates, in order, without those that are skipped.

    Raises:
        ExportError: the family has no such network.
    """
    row = row_of(config)
    for name, candidate in layers:
        if isinstance(candidate.factory, partial) and candidate.factory.func is LowRankMap:
            raise _not_expressed(f"'{name}' is a linear map", config)
    factories = [candidate.factory for _, candidate in layers if isinstance(candidate.factory, partial)]
    attention = [factory for factory in factories if factory.func in (SelfAttention, ParallelBlock)]
    inner = [factory for factory in factories if factory.func in (FeedForward, MixtureOfExperts, ParallelBlock)]
    if not attention or len(attention) != len(inner):
        raise _not_expressed(f"it has {len(attention)} attention and {len(inner)} feed-forward sub-layers", config)
    changed: dict[str, Any] = {row.keys["layers"]: len(attention), row.keys["width"]: inner[0].args[-1]}
    heads = attention[0].args[1]
    changed[row.keys["heads"]] = heads.count
    if "key_value" in row.keys:
        changed[row.keys["key_value"]] = heads.shared
    if "size" in row.keys:
        changed[row.keys["size"]] = heads.size
    elif heads.size is not None:
        name = next(name for name, candidate in layers if candidate.factory is attention[0])
        raise _not_expressed(f"'{name}' has fewer heads, whose size such a config cannot say", config)
    if config.get("layer_types") or config.get("use_sliding_window") or row.windows == "each":
        changed["layer_types"] = [SLIDING if factory.args[1].window else FULL for factory in attention]
    fields = {**config, **changed, "torch_dtype": "float32", "dtype": "float32"}
    # what is written is not quantised, has no code, and no other config beside it
    for name in ("quantization_config", "auto_map", "configuration_files"):
        fields.pop(name, None)
    family = family_of(fields)
    names = {}
    for position, (name, candidate) in zip(family.positions, layers, strict=True):
        original, chosen = _as_data(position.candidates[0].factory), _as_data(candidate.factory)
        if original[0] is not chosen[0]:
            raise _not_expressed("its attention and feed-forward sub-layers do not take turns", config)
        if original != chosen:
            raise _not_expressed(f"'{name}' is another layer than its others or than the family's", config)
        names[position.name] = name
    return FoundModel(family, names, {"config.json": json.dumps(fields, indent=2).encode()})


def _as_data(factory: Any) -> tuple[Any, ...]:
    if not isinstance(factory, partial):
        return (factory,)
    keywords = dict(factory.keywords)
    if "routing" in keywords:  # the weight of its loss follows from how many layers there are
        keywords["routing"] = replace(keywords["routing"], balance=0.0)
    return factory.func, factory.args, keywords


def _not_expressed(why: str, config: Mapping[str, Any]) -> ExportError:
    return ExportError(f"a {config['model_type']} model cannot be this network: {why}")
