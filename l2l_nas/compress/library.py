"""Published models of types that no row describes: `transformers`' own modules, one position for each block.

The model is made by its own class, and never by code of its folder. `convert` takes it apart, so that masks, positions
and scales are what that class computes. A found network has fewer blocks; it is written by that class, too.
"""

from __future__ import annotations

import copy
import json
import math
import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from l2l_nas.arguments import shown
from l2l_nas.compress.compared import OFFLINE, Uncompared, compare_tokens
from l2l_nas.compress.config import MOST_LAYERS
from l2l_nas.compress.folder import Folder
from l2l_nas.errors import SpaceError, StorageError, described, one_line
from l2l_nas.plugins import optional
from l2l_nas.relay.interface import Batch
from l2l_nas.space.candidate import Candidate, skip
from l2l_nas.space.convert.convert import ConvertedPool, convert
from l2l_nas.space.convert.parts import BlockLayer
from l2l_nas.training.formats import Call, ExportError, ExportSource, silence
from l2l_nas.training.samples import own_generators

_LONGEST = 1 << 20  # of sequences, where a config names no longest one
# what names of fields end with that list numbers of layers
_NUMBERS = ("indices", "idxs", "_layers")
_OF_BLOCKS = ("layer", "block", "pattern", "idx", "indices")  # a part of names of fields that are of blocks
_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")  # what configs call the number of blocks
_MOST_BUFFERS = 1 << 26  # numbers


class LibraryModel:
    """A folder's model, as `transformers` makes it.

    Raises:
        SettingError: there is no `transformers`.
        StorageError: it does not load the folder, or the folder lacks tensors or has others.
        SpaceError: the model has no list of blocks.
    """

    def __init__(self, published: Folder) -> None:
        self.path, self.kind = published.path, str(published.config["model_type"])
        os.environ.setdefault("USE_HUB_KERNELS", "NO")  # code from elsewhere; of use before the import alone
        _refuse_kernels(published)
        self._library = optional("transformers", f"a {self.kind} model needs", extra="transformers")
        if "quantization_config" in published.config:
            raise StorageError(f"{self.path}: its weights are quantised, and are not read; save the model unquantised")
        self._refuse_larger(published)
        self.model: Any
        self.model, told = self._load()
        for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if names := sorted(map(str, told[what])):
                raise StorageError(
                    f"{self.path}: {what.replace('_keys', '')} for transformers {self._library.__version__}: "
                    f"{', '.join(names[:3])}{' and others' if len(names) > 3 else ''}; save the plain model anew"
                )
        self.config: Any = self.model.config

    def _refuse_larger(self, published: Folder) -> None:
        """Refuse a config that asks for more than the files have, before memory is taken for it."""
        for name in _COUNTS:
            layers = published.config.get(name, 1)
            if type(layers) is not int or not 0 < layers <= MOST_LAYERS:
                raise StorageError(f"{self.path}: {name} is {shown(layers)}; expected 1 to {MOST_LAYERS}")
        try:
            with silence(), torch.device("meta"):
                config = self._library.AutoConfig.from_pretrained(self.path, **OFFLINE)
                empty = self._auto.from_config(config, attn_implementation="eager")
        except Exception as error:  # of anybody's
            raise StorageError(f"{self.path}: transformers does not load it: {_reason(error)}") from error
        there = sum(math.prod(shape) for shape in published.shapes.values())
        counts = {"parameters": empty.parameters(), "numbers beside its parameters": empty.buffers()}
        for what, most in (("parameters", there), ("numbers beside its parameters", max(there, _MOST_BUFFERS))):
            wanted = sum(one.numel() for one in counts[what])
            if wanted > most:
                raise StorageError(
                    f"{self.path}: its config asks for {wanted:,} {what}, and its files have {there:,}; they are of "
                    "two models, or tensors are missing"
                )

    @cached_property
    def blocks(self) -> str:
        """The path of the list of blocks."""
        count = getattr(self.config, "num_hidden_layers", None)
        for path, module in self.model.named_modules():
            if isinstance(module, nn.ModuleList) and len(module) == count:
                return path
        raise SpaceError(f"a {self.kind} model has no list of as many blocks as its config names ({count})")

    @property
    def length(self) -> int:
        """Of the longest sequence."""
        return int(getattr(self.config, "max_position_embeddings", None) or _LONGEST)

    def pool(self, *, length: int, skips: bool) -> ConvertedPool:
        """A pool of it; see `convert`.

        Raises:
            SpaceError: no such length, or a model that cannot be taken apart.
        """
        if not 0 < length <= self.length:
            raise SpaceError(f"sequences of {length} tokens, but the model has places for 1 to {self.length}")
        generator = torch.Generator().manual_seed(0)
        vocabulary = self.model.get_input_embeddings().num_embeddings
        tokens = torch.randint(vocabulary, (1, length), generator=generator)
        example = {"input_ids": tokens, "use_cache": False}
        return convert(self.model, example, blocks=self.blocks, candidates={"skip": skip()} if skips else None)

    def smaller(self, kept: Sequence[int]) -> Any:
        """The config of the same model with these blocks alone."""
        config, count = copy.deepcopy(self.config), self.config.num_hidden_layers
        for name, value in vars(self.config).items():
            if not isinstance(value, list | tuple) or not any(part in name for part in _OF_BLOCKS):
                continue
            if len(value) == count and list(value) != list(range(count)):  # one for each block
                setattr(config, name, [value[index] for index in kept])
            elif name.endswith(_NUMBERS) and all(type(one) is int and 0 <= one < count for one in value):
                setattr(config, name, [new for new, index in enumerate(kept) if index in value])
        config.num_hidden_layers = len(kept)
        return config

    def made(self, config: Any) -> nn.Module:
        """A model of a config, with weights that are drawn.

        Raises:
            ExportError: `transformers` does not make it.
        """
        try:
            with silence(), own_generators():
                made: nn.Module = self._auto.from_config(
                    config, dtype=torch.float32, attn_implementation=self._attention
                )
                return made.eval()
        except Exception as error:  # of anybody's
            raise ExportError(f"transformers does not make it: {_reason(error)}") from error

    def opened(self, folder: Path) -> nn.Module:
        """The model of another folder of this type."""
        with silence():
            found: nn.Module = self._auto.from_pretrained(folder, **self._how(self._attention))
            return found.eval()

    @property
    def version(self) -> str:
        """Of `transformers`."""
        return str(self._library.__version__)

    @property
    def _auto(self) -> Any:
        return self._library.AutoModelForCausalLM

    @property
    def _attention(self) -> str:
        return str(self.config._attn_implementation)

    @staticmethod
    def _how(attention: str) -> dict[str, Any]:
        return {**OFFLINE, "use_safetensors": True, "dtype": torch.float32, "attn_implementation": attention}

    @own_generators()
    def _load(self) -> tuple[nn.Module, Mapping[str, Any]]:
        for attention in ("sdpa", "eager"):  # some classes have the second alone
            try:
                with silence():
                    how = {**self._how(attention), "output_loading_info": True}
                    model, told = self._auto.from_pretrained(self.path, **how)
                    return model.eval(), told
            except Exception as error:  # of anybody's
                if attention == "sdpa" and isinstance(error, ValueError) and "attention" in str(error):
                    continue
                raise StorageError(f"{self.path}: transformers does not load it: {_reason(error)}") from error
        raise AssertionError


class LibraryFiles:
    """A found network as a folder of its model's type; see `HuggingFaceFiles`.

    Args:
        tokens: fields of the config that follow from another tokenizer.

    Raises:
        ExportError: no model of this type is the network.
    """

    why = ""

    def __init__(self, library: LibraryModel, source: ExportSource, *, tokens: Mapping[str, Any]) -> None:
        self._library, self._source = library, source
        layers = [one.candidate for one in source.pool.path(source.architecture)]
        blocks = [module for module in map(_module_of, layers) if isinstance(module, BlockLayer)]
        if any(not block.path for block in blocks):
            raise ExportError(f"a {library.kind} model has its own blocks alone, and this network has others")
        # numbers that the blocks have in the original
        self._kept = [int(block.path.rpartition(".")[2]) for block in blocks]
        self._config = library.smaller(self._kept)
        for name, value in tokens.items():
            setattr(self._config, name, value)
        config = json.loads(self._config.to_json_string(use_diff=False))
        for name in ("_name_or_path", "_commit_hash"):  # of the folder on this machine
            config.pop(name, None)
        self.files: Mapping[str, bytes] = {"config.json": json.dumps(config, indent=2).encode()}

    def give(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """See `HuggingFaceFiles`: what the model's own class saves."""
        model = self._library.made(self._config)
        found = self._found()
        wanted = model.state_dict()
        alike = {tensor.data_ptr(): found[name] for name, tensor in wanted.items() if name in found}
        # what is tied may have one of its names alone
        found |= {name: alike[one.data_ptr()] for name, one in wanted.items() if one.data_ptr() in alike}
        if found.keys() != wanted.keys() or any(found[name].shape != wanted[name].shape for name in wanted):
            raise ExportError(f"a {self._library.kind} model of fewer blocks has others than these")
        model.load_state_dict(found)
        with tempfile.TemporaryDirectory() as folder, silence():
            model.save_pretrained(folder, max_shard_size="100TB")  # type: ignore[operator]
            return dict(load_file(Path(folder) / "model.safetensors"))

    def read(self, path: Path, source: ExportSource) -> Call:
        """See `HuggingFaceFiles`."""
        try:
            model = self._library.opened(path.parent)
        except Exception as error:  # of anybody's
            raise ExportError(f"what was written does not load: {_reason(error)}") from error

        def call(batch: Batch) -> Batch:
            with torch.no_grad():
                return (model(input_ids=batch[0], use_cache=False).logits,)

        return call

    def compare(self, path: Path, call: Call) -> str:
        """See `HuggingFaceFiles`; `read` has it run in `transformers` already."""
        return ""

    def _found(self) -> dict[str, Tensor]:
        """Tensors of the network by the names that the smaller model has for them."""
        found: dict[str, Tensor] = {}
        source, blocks = self._source, self._library.blocks
        new = {f"{blocks}.{index}": f"{blocks}.{number}" for number, index in enumerate(self._kept)}
        path = source.pool.path(source.architecture)
        for (name, _), layer in zip(source.network.named_children(), path, strict=True):
            module = _module_of(layer.candidate)
            inner, outer = ("block.", f"{new[module.path]}.") if isinstance(module, BlockLayer) else ("model.", "")
            state = source.network.get_submodule(name).state_dict()
            found |= {outer + key.removeprefix(inner): tensor for key, tensor in state.items()}
        return found


def _refuse_kernels(published: Folder) -> None:
    """Refuse a config that names implementations in a repository of others, which would be run."""

    def named(value: object, name: str) -> bool:
        if isinstance(value, dict):
            return any(named(inner, key) for key, inner in value.items())
        return name.endswith("_implementation") and isinstance(value, str) and "/" in value

    if named(published.config, ""):
        raise StorageError(
            f"{published.path}: its config.json names an implementation that is code of others; remove the fields that "
            "end with _implementation"
        )


def told_of(library: LibraryModel, tokenizer: Any) -> str:
    """What to tell of it beside `transformers`, whose modules it has.

    Args:
        tokenizer: the folder's, as it is read here; None: another one is used.
    """
    found = [f"its layers are those of transformers {library.version}"]
    try:
        found += [] if tokenizer is None else [compare_tokens(library.path, tokenizer)]
    except Uncompared as error:
        found.append(f"tokens not compared with transformers: {error}")
    return "; ".join(found)


def _module_of(candidate: Candidate) -> object:
    return getattr(candidate.factory, "module", None)


def _reason(error: BaseException) -> str:
    """What an error says, and what was behind it."""
    behind = "" if error.__cause__ is None else f" ({_reason(error.__cause__)})"
    return one_line(described(error), most=200) + behind
