"""Folders as `transformers` saves them: config.json, and safetensors in one file or in several with an index.

Tensors are read through a memory map, each when it is asked for. Nothing here runs code of a folder: pickled weights
(`pytorch_model.bin`) are refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from l2l_nas.compress.families import Family
from l2l_nas.compress.rows import FAMILIES
from l2l_nas.contents.tensors import refuse_non_finite
from l2l_nas.errors import StorageError
from l2l_nas.files import named_failures, parsing, read_bytes, read_json, refuse_other_than_file
from l2l_nas.text.tokenizer import Tokenizer, load_tokenizer

CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
# `transformers` loads an adapter on top of the model
_ADAPTER = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
# how files end that do not go along: weights in any library's format, their index, code
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pt2", ".pth", ".ckpt", ".h5", ".msgpack", ".ot", ".pkl", ".npz", ".npy")
_LEFT = (*_WEIGHTS, ".onnx", ".onnx_data", ".onnx.data", ".gguf", ".ggml", ".tflite", ".index.json", ".py")
# of the model, and of an export that the folder is itself
_NOT_BESIDE = (CONFIG, "export.json")
_MOST_BESIDE_BYTES = 1 << 27  # the largest tokenizers have a quarter of it
# names of old
_RENAMED = ((".gamma", ".weight"), (".beta", ".bias"))
_PIECE = 1024  # rows that are compared at a time
_NAMED = 3  # tensors that an error names
_DTYPES = {"F64", "F32", "F16", "BF16"}
# masks that old versions stored among the weights
_CONSTANTS = (
    *(f".{name}.{mask}" for name in ("attn", "attention") for mask in ("bias", "masked_bias")),
    *("embeddings.position_ids", "rotary_emb.inv_freq"),
)


class Folder:
    """A model in a Hugging Face folder.

    Attributes:
        config: its config.json, with `model_type`.
        shapes: of all tensors, by the names that `transformers` gives them.

    Raises:
        StorageError: no such folder, no config or tensors in it, or a file that is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_dir():
            raise StorageError(f"there is no folder {path}; name one with config.json and model.safetensors")
        if not (path / CONFIG).exists():
            raise StorageError(f"{path} has no {CONFIG}; is it a Hugging Face model folder?")
        if adapter := next((name for name in _ADAPTER if (path / name).exists()), ""):
            raise StorageError(
                f"{path} has {adapter}: an adapter beside the model, which is not read; save the model with it merged "
                "(merge_and_unload of peft), or move its files elsewhere"
            )
        config = read_json(path / CONFIG)
        if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
            raise StorageError(f"{path / CONFIG} has no model_type; is it the config of a model?")
        self.config: dict[str, Any] = config
        self._open: dict[str, Any] = {}
        self._places: dict[str, tuple[str, str]] = {}  # of each tensor, its file and its name there
        self.shapes: dict[str, tuple[int, ...]] = {}
        for file, names in self._parts().items():
            self._scan(file, names)
        kind = config["model_type"]
        # some are saved without their head, and names begin otherwise
        base = FAMILIES[kind].base if kind in FAMILIES else ""
        if base and not any(name.startswith(base) for name in self.shapes):
            self.shapes = {f"{base}{name}": shape for name, shape in self.shapes.items()}
            self._places = {f"{base}{name}": place for name, place in self._places.items()}

    def read(self, name: str) -> Tensor:
        """One tensor, of the dtype it is stored in, in memory of its own.

        Raises:
            StorageError: the file has changed or cannot be read, or the tensor holds NaN or infinity.
        """
        file, stored = self._places[name]
        with self._named(file):
            tensor: Tensor = self._handle(file).get_tensor(stored)
        refuse_non_finite(tensor, name, self.path)
        return tensor

    def tokenizer(self) -> Tokenizer:
        """What it was trained with.

        Raises:
            SettingError: the package `tokenizers` is missing.
            StorageError: there is none, or one of another kind.
        """
        return load_tokenizer(str(self.path))

    @property
    def beside(self) -> dict[str, bytes]:
        """What goes along with its networks, by file name: its tokenizer, and what else is no weights and no config.

        These are files right in the folder, but hidden ones, code, and what is too large.

        Raises:
            StorageError: a file cannot be read.
        """
        contents = {}
        with named_failures(self.path):
            paths = sorted(self.path.iterdir())
        for path in paths:
            is_left = path.name in _NOT_BESIDE or path.name.endswith(_LEFT) or path.name.startswith(".")
            if is_left or not path.is_file() or not self._is_within(path):
                continue
            if path.stat().st_size <= _MOST_BESIDE_BYTES:
                content = read_bytes(path, most_bytes=_MOST_BESIDE_BYTES)
                contents[path.name] = _without_code(content) if path.name.endswith("_config.json") else content
        return contents

    def _is_within(self, path: Path) -> bool:
        """Whether a file is no link to somewhere else; a snapshot in the library's cache is all links to its blobs."""
        folder = self.path.resolve()
        blobs = folder.parent.parent / "blobs"
        return path.resolve().parent in (folder, *([blobs] if folder.parent.name == "snapshots" else []))

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits of the config, all names and shapes, and a few bytes of each tensor."""
        digest = hashlib.sha256(json.dumps([self.config, sorted(self.shapes.items())], sort_keys=True).encode())
        for name in sorted(self.shapes):
            digest.update(self._sample(name))
        return digest.hexdigest()[:16]

    def check(self, family: Family) -> None:
        """Compare the tensors that there are with those of a family.

        Raises:
            StorageError: tensors are missing, have other shapes, are not part of the family, or are no copies.
        """
        missing = [name for name in family.shapes if name not in self.shapes]
        copies = {name: original for name, original in family.copies.items() if name in self.shapes}
        more = self.shapes.keys() - family.shapes.keys() - copies.keys()
        extra = sorted(name for name in more if not name.startswith(family.ignored))
        if missing:
            raise StorageError(f"{self.path} lacks {_listed(missing)}, which its config asks for; get the files again")
        if extra:
            raise StorageError(
                f"{self.path} has {_listed(extra)}, which a {self.config.get('model_type')} model of its config does "
                "not have; was it changed (adapters, another head)? Save the plain model anew"
            )
        for name, shape in family.shapes.items():
            if self.shapes[name] != shape:
                raise StorageError(
                    f"{self.path}: {name} is {list(self.shapes[name])}, its config asks for {list(shape)}; config and "
                    "tensors are of two models"
                )
        for name, original in copies.items():
            if self.shapes[name] != self.shapes[original] or not self._are_alike(name, original):
                advice = ' or, for a head of its own, write "tie_word_embeddings": false into config.json'
                raise StorageError(
                    f"{self.path}: {name} is tied to {original}, but their values differ; save the model anew"
                    + advice * name.endswith(".weight")
                )

    def _sample(self, name: str) -> bytes:
        """A few of a tensor's bytes: the first, the middle and the last row."""
        (file, stored), rows = self._places[name], (self.shapes[name] or (0,))[0]
        with self._named(file):
            if not rows:
                return b""
            part = self._handle(file).get_slice(stored)
            chosen = [part[row : row + 1].contiguous().view(torch.uint8) for row in (0, rows // 2, rows - 1)]
            return b"".join(row.numpy().tobytes() for row in chosen)

    def _are_alike(self, name: str, other: str) -> bool:
        """Whether two tensors of one shape are equal, row by row."""
        pairs = zip(self._pieces(name), self._pieces(other), strict=True)
        return all(one.dtype == two.dtype and torch.equal(one, two) for one, two in pairs)

    def _pieces(self, name: str) -> Iterator[Tensor]:
        """A tensor a few rows at a time."""
        file, stored = self._places[name]
        with self._named(file):
            part = self._handle(file).get_slice(stored)
            for row in range(0, self.shapes[name][0], _PIECE):
                yield part[row : row + _PIECE]

    def _parts(self) -> dict[str, set[str] | None]:
        """The files, and what the index says that each holds; None without an index."""
        if (self.path / SINGLE).exists():
            return {SINGLE: None}
        if not (self.path / INDEX).exists():
            pickled = next(iter(sorted(self.path.glob("*.bin"))), None)
            if pickled is not None:
                raise StorageError(
                    f"{pickled} is pickled, which could run code, and is not read; convert it where you trust it: "
                    "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
                )
            raise StorageError(f"{self.path} has no {SINGLE} and no {INDEX}; its weights are missing")
        index = read_json(self.path / INDEX)
        table = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(table, dict) or not all(isinstance(file, str) for file in table.values()):
            raise StorageError(f"{self.path / INDEX} has no weight_map of file names; get it again")
        parts: dict[str, set[str] | None] = {}
        for name, file in table.items():
            if Path(file).name != file or not file.endswith(".safetensors"):
                raise StorageError(f"{self.path / INDEX} names {file!r}, which is no safetensors file of its folder")
            held = parts.setdefault(file, set())
            assert held is not None
            held.add(name)
        return parts

    def _scan(self, file: str, names: set[str] | None) -> None:
        with self._named(file):
            handle = self._handle(file)
            stored = set(handle.keys())
            for name in sorted(stored):
                part = handle.get_slice(name)
                if name.endswith(_CONSTANTS):
                    continue
                if part.get_dtype() not in _DTYPES:
                    raise StorageError(
                        f"{self.path / file}: {name} is {part.get_dtype()}; weights are {', '.join(sorted(_DTYPES))}, "
                        "save the model unquantised"
                    )
                ours = name
                for old, new in _RENAMED:
                    ours = ours.removesuffix(old) + new if ours.endswith(old) else ours
                self.shapes[ours] = tuple(part.get_shape())
                self._places[ours] = file, name
        if names is not None and names != stored:
            name = min(names ^ stored)
            raise StorageError(
                f"{self.path / file} {'lacks' if name in names else 'has'} {name}, other than {INDEX} says; get both "
                "again"
            )

    def _handle(self, file: str) -> Any:
        if file not in self._open:
            path = self.path / file
            refuse_other_than_file(path)
            self._open[file] = safe_open(path, framework="pt")
        return self._open[file]

    def _named(self, file: str) -> AbstractContextManager[None]:
        return parsing(self.path / file, "a safetensors file")


def _without_code(content: bytes) -> bytes:
    """A config that names no code, which may be another's, to be run where that of a found network is trusted."""
    try:
        fields = json.loads(content)
    except (RecursionError, ValueError):  # no program reads it
        return content
    if not isinstance(fields, dict) or "auto_map" not in fields:
        return content
    return json.dumps({name: value for name, value in fields.items() if name != "auto_map"}, indent=2).encode()


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{'tensor' if len(names) == 1 else 'tensors'} {', '.join(names[:_NAMED])}{more}"
