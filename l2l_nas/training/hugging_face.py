"""A network as a folder that `transformers` loads, where the family of a published model can express it.

The pool knows how (`PublishedPool.hugging_face`, in `l2l_nas.pretrained`): which config the found network has, and
which published tensor each of its parameters is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from safetensors.torch import load_file
from torch import Tensor

from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool
from l2l_nas.training.formats import Call, ExportError, ExportSource, Format, module_call, write_tensors

WEIGHTS = "model.safetensors"
# what 0.2 wrote beside these, whatever the model brought
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt")
EARLIER = frozenset((*_TOKENIZER, "vocab.txt", "generation_config.json"))


@runtime_checkable
class Publishable(Protocol):
    """A pool whose networks may be models that others know."""

    @property
    def beside(self) -> Mapping[str, bytes]:
        """Files that go along with each network, by name, such as those of its tokenizer."""

    def hugging_face(self, architecture: Architecture) -> HuggingFaceFiles:
        """What to write for a network. Raises ExportError: its family cannot express it."""


class HuggingFaceFiles(Protocol):
    """What is written for a network."""

    @property
    def files(self) -> Mapping[str, bytes]:
        """Small ones by name, config.json among them."""

    def give(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Published tensors, of the network's parameters by name."""

    def take(self, published: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The network's parameters, of published tensors."""


class HuggingFace(Format):
    """`config.json`, `model.safetensors`, the tokenizer and what else the model's files bring."""

    files = ("config.json", WEIGHTS)

    def beside(self, pool: LayerPool) -> Mapping[str, bytes]:
        return pool.beside if isinstance(pool, Publishable) else {}

    def write(self, source: ExportSource, path: Path) -> None:
        files = _files(source)
        with torch.no_grad():
            tensors = files.give(dict(source.network.named_parameters(remove_duplicate=False)))
        for name, content in files.files.items():
            path.with_name(name).write_bytes(content)
        write_tensors(path, tensors, format="pt")

    def read(self, path: Path, source: ExportSource) -> Call:
        network = source.empty()
        taken = _files(source).take(load_file(path))
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                parameter.copy_(taken[name])
        return module_call(network)


def _files(source: ExportSource) -> HuggingFaceFiles:
    if not isinstance(source.pool, Publishable):
        raise ExportError(
            "hugging_face: the pool is not of a published model (space.pool=hf:FOLDER or gguf:FILE); export the "
            "network as source"
        )
    return source.pool.hugging_face(source.architecture)
