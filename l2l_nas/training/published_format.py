"""A network as a model that others know: a folder that `transformers` loads, a GGUF file for llama.cpp."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from l2l_nas.errors import SettingError
from l2l_nas.space.pool import LayerPool
from l2l_nas.training.formats import ROUNDED, Call, ExportError, ExportSource, Format, write_tensors

MODELING = "modeling_l2l_nas"  # the module of a network that comes with its own code


@runtime_checkable
class Publishable(Protocol):
    """A pool whose networks may be models that others know."""

    @property
    def beside(self) -> Mapping[str, bytes]:
        """Files that go along with each network, by name, such as those of its tokenizer."""

    def hugging_face(self, source: ExportSource) -> HuggingFaceFiles:
        """What to write for a network. Raises ExportError: it cannot be expressed."""

    def card(self, source: ExportSource, files: HuggingFaceFiles) -> str:
        """The README.md of such a folder."""

    def write_gguf(self, source: ExportSource, path: Path, *, is_half: bool) -> None:
        """Write a network as GGUF. Raises ExportError: llama.cpp has no such model."""

    def read_gguf(self, source: ExportSource, path: Path) -> Call:
        """The network with what a file holds, as a function; see `Format.read`."""


class HuggingFaceFiles(Protocol):
    """What is written for a network."""

    @property
    def why(self) -> str:
        """Why it comes with its own code; empty if it does not."""

    @property
    def files(self) -> Mapping[str, bytes]:
        """Small ones by name, config.json among them."""

    def give(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Published tensors, of the network's parameters by name."""

    def read(self, path: Path, source: ExportSource) -> Call:
        """What was written, with published tensors at a path, as a function; see `Format.read`."""

    def compare(self, path: Path, call: Call) -> str:
        """Compare it, as it was read, with what others make of it; see `Format.compare`."""


class HuggingFace(Format):
    """A folder that `transformers` loads: `config.json`, `model.safetensors`, the tokenizer, and the like.

    The pool knows how (`PublishedPool.hugging_face`, in `l2l_nas.compress`): which config the found network has, and
    which published tensor each of its parameters is. A network whose layers differ comes with its own code.
    """

    files = (f"{MODELING}.py", "README.md", "config.json", "model.safetensors")

    def beside(self, pool: LayerPool) -> Mapping[str, bytes]:
        return pool.beside if isinstance(pool, Publishable) else {}

    def write(self, source: ExportSource, path: Path) -> None:
        pool = _published(source)
        files = pool.hugging_face(source)
        with torch.no_grad():
            tensors = files.give(dict(source.network.named_parameters(remove_duplicate=False)))
        for name, content in {**pool.beside, **files.files}.items():
            path.with_name(name).write_bytes(content)
        write_tensors(path, tensors, format="pt")
        path.with_name("README.md").write_text(pool.card(source, files))

    def read(self, path: Path, source: ExportSource) -> Call:
        return _published(source).hugging_face(source).read(path, source)

    def compare(self, path: Path, source: ExportSource, call: Call) -> str:
        return _published(source).hugging_face(source).compare(path, call)


class GGUFFile(Format):
    """A file for llama.cpp, of a network of the llama family."""

    files = ("model.gguf",)
    is_half = False  # whether matrices are float16
    tolerance = ROUNDED  # of numbers that the file has in float32

    def require(self) -> None:
        if importlib.util.find_spec("gguf") is None:
            raise SettingError("formats: gguf needs the package gguf, not installed: pip install 'l2l-nas[gguf]'")

    def write(self, source: ExportSource, path: Path) -> None:
        _published(source).write_gguf(source, path, is_half=self.is_half)

    def read(self, path: Path, source: ExportSource) -> Call:
        return _published(source).read_gguf(source, path)


class HalfGGUFFile(GGUFFile):
    """The same with matrices in float16."""

    files = ("model-f16.gguf",)
    is_half = True
    tolerance = 1e-2


def _published(source: ExportSource) -> Publishable:
    if not isinstance(source.pool, Publishable):
        raise ExportError(
            "the pool is not of a published model (space.pool=hf:FOLDER); export the network as state_dict or program"
        )
    return source.pool
