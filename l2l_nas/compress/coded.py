"""A found network as a Hugging Face folder with its own code, for networks that no family has.

The code is what `export formats=[source]` writes, in classes that `transformers` knows how to load; see `modeling.py`.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from l2l_nas.compress.coded_family import CODED, PREFIX
from l2l_nas.compress.families import Family
from l2l_nas.errors import one_line
from l2l_nas.layers import MaskedHead, ParallelBlock, SelfAttention
from l2l_nas.plugins import optional
from l2l_nas.relay.extend import extend_of, is_placewise
from l2l_nas.relay.interface import Batch
from l2l_nas.training.formats import Call, ExportError, ExportSource, silence
from l2l_nas.training.published_format import LEAD, MODELING
from l2l_nas.training.source_format import NetworkSource, source_of

_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


class CodedModel:
    """A network with its own code; see `HuggingFaceFiles`.

    Args:
        source: the network.
        config: of the model that it was found in.
        family: of that model.
        why: no family has the network.

    Raises:
        ExportError: layers that cannot be written as source.
    """

    def __init__(self, source: ExportSource, config: Mapping[str, Any], family: Family, *, why: str) -> None:
        self.why = why
        written = source_of(source, lead=LEAD)
        last = [*source.network.children()][-1]
        self._class = "FoundForMaskedLM" if isinstance(last, MaskedHead) else "FoundForCausalLM"
        content = json.dumps(self._config(source, written, config, family), indent=2)
        self.files: Mapping[str, bytes] = {
            "config.json": content.encode(),
            f"{MODELING}.py": _modeling(written).encode(),
            **{name: text.encode() for name, text in written.files.items()},
        }

    def _config(
        self, source: ExportSource, written: NetworkSource, config: Mapping[str, Any], family: Family
    ) -> dict[str, Any]:
        network, is_causal = source.network, self._class == "FoundForCausalLM"
        tied: dict[str, str] = {}
        for name, layer in zip(network._modules, source.pool.path(source.architecture), strict=True):
            tied |= {f"{name}.{key}": group for key, group in layer.candidate.tied.items()}
        embedding = next(part for part in network.modules() if isinstance(part, nn.Embedding))
        goes_on = is_causal and all(extend_of(layer) is not None or is_placewise(layer) for layer in network.children())
        auto = "AutoModelForCausalLM" if is_causal else "AutoModelForMaskedLM"
        return {
            "model_type": CODED,
            "architectures": [self._class],
            "auto_map": {"AutoConfig": f"{MODELING}.FoundConfig", auto: f"{MODELING}.{self._class}"},
            "found_in": config.get("found_in", config["model_type"]),
            "torch_dtype": "float32",
            "dtype": "float32",
            "vocab_size": family.vocabulary,
            "hidden_size": embedding.embedding_dim,
            "max_position_embeddings": family.length,
            "num_hidden_layers": sum(isinstance(one, SelfAttention | ParallelBlock) for one in network.children()),
            "tie_word_embeddings": bool(tied),
            "has_cache": goes_on,
            **{name: config[name] for name in _TOKENS if name in config},
            "layers": list(written.layers.items()),  # `transformers` sorts what has names
            "tied": tied,
        }

    def give(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """See `HuggingFaceFiles`; one that is tied is written once."""
        first: dict[int, str] = {}
        for name, parameter in parameters.items():
            first.setdefault(id(parameter), name)
        return {f"{PREFIX}{name}": parameters[name] for name in first.values()}

    def read(self, path: Path, source: ExportSource) -> Call:
        """See `HuggingFaceFiles`; by the classes that were written, as `transformers` loads them."""
        optional("transformers", "no family has this network, and to check its own code needs", extra="transformers")
        try:
            with _imported(path.parent) as module, silence():
                model = getattr(module, self._class).from_pretrained(path.parent).eval()
        except Exception as error:
            raise ExportError(f"what was written does not load: {one_line(str(error))}") from error

        def call(batch: Batch) -> Batch:
            with torch.no_grad():
                return (model(*batch).logits,)

        return call

    def compare(self, path: Path, call: Call) -> str:
        """See `HuggingFaceFiles`; `read` has it run in `transformers` already."""
        return ""


def _modeling(written: NetworkSource) -> str:
    """The code of the classes, with the layers of the network."""
    text = inspect.getsource(importlib.import_module("l2l_nas.compress.modeling"))
    (stub,) = (one for one in ast.parse(text).body if isinstance(one, ast.FunctionDef) and one.name == "build")
    lines = text.splitlines(keepends=True)
    before, after = lines[: stub.lineno - 3], lines[stub.end_lineno :]  # without the two empty lines above it
    return "".join([*before, "\n", written.imports, "\n\n\n", written.build, *after])


@contextlib.contextmanager
def _imported(folder: Path) -> Iterator[ModuleType]:
    """The code of a folder, which is forgotten afterwards."""
    name = "l2l_nas_written"
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.modules[name] = importlib.util.module_from_spec(spec)
    importlib.invalidate_caches()
    try:
        yield importlib.import_module(f"{name}.{MODELING}")
    finally:
        sys.dont_write_bytecode = writes
        for one in [one for one in sys.modules if one == name or one.startswith(f"{name}.")]:
            del sys.modules[one]
