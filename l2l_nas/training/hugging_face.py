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
from safetensors.torch import save as serialize
from torch import Tensor

from l2l_nas.space.architecture import Architecture
from l2l_nas.training.formats import Call, ExportError, ExportSource, module_call

WEIGHTS = "model.safetensors"
# what a tokenizer consists of, in folders of any age
TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.json", "merges.txt", "vocab.txt"),
)


@runtime_checkable
class Publishable(Protocol):
    """A pool whose networks may be models that others know."""

    def hugging_face(self, architecture: Architecture) -> HuggingFaceFiles:
        """What to write for a network.

        Raises:
            ExportError: its family cannot express it.
        """


class HuggingFaceFiles(Protocol):
    """What is written for a network.

    Attributes:
        texts: small files by name, config.json among them.
    """

    texts: Mapping[str, str]

    def give(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Published tensors, of the network's parameters by name."""

    def take(self, published: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The network's parameters, of published tensors."""


class HuggingFace:
    """`config.json`, `model.safetensors` and the tokenizer."""

    files: tuple[str, ...] = (*TOKENIZER, "generation_config.json", "config.json", WEIGHTS)
    is_exact = True

    def require(self) -> None:
        """Nothing beside what is installed."""

    def write(self, source: ExportSource, path: Path) -> None:
        """See `Format.write`."""
        files = _files(source)
        with torch.no_grad():
            tensors = files.give(dict(source.network.named_parameters(remove_duplicate=False)))
        for name, text in files.texts.items():
            path.with_name(name).write_text(text, encoding="utf-8")
        written = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
        path.write_bytes(serialize(written, metadata={"format": "pt"}))

    def read(self, path: Path, source: ExportSource) -> Call:
        """See `Format.read`."""
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
