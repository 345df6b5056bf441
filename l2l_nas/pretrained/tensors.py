"""Published models of every kind: a config, and tensors that are read one by one."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from l2l_nas.contents.tensors import refuse_non_finite
from l2l_nas.errors import StorageError
from l2l_nas.pretrained.families import Family
from l2l_nas.text.tokenizer import Tokenizer

_NAMED = 3  # tensors that an error names


class Published(ABC):
    """A model as others publish it."""

    path: Path  # its folder or file
    config: Mapping[str, Any]  # as in its config.json, with `model_type`
    shapes: Mapping[str, tuple[int, ...]]  # of all tensors, by the names that `transformers` gives them

    def read(self, name: str) -> Tensor:
        """One tensor, of the dtype it is stored in, in memory of its own.

        Raises:
            StorageError: the file has changed or cannot be read, or the tensor holds NaN or infinity.
        """
        tensor = self._read(name)
        refuse_non_finite(tensor, name, self.path)
        return tensor

    @abstractmethod
    def _read(self, name: str) -> Tensor: ...

    def pieces(self, name: str) -> Iterator[Tensor]:
        """A tensor row by row or in larger pieces, each of which is small."""
        yield self._read(name)

    @abstractmethod
    def sample(self, name: str) -> bytes:
        """A few of a tensor's bytes, without reading all of it."""

    @property
    def beside(self) -> Mapping[str, bytes]:
        """What goes along with its networks, by file name: its tokenizer, and what else is no weights and no config.

        Raises:
            StorageError: a file cannot be read.
        """
        return {}

    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """What it was trained with.

        Raises:
            SettingError: the package `tokenizers` is missing.
            StorageError: there is none, or one of another kind.
        """

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits of the config, all names and shapes, and a few bytes of each tensor."""
        digest = hashlib.sha256(json.dumps([self.config, sorted(self.shapes.items())], sort_keys=True).encode())
        for name in sorted(self.shapes):
            digest.update(self.sample(name))
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

    def _are_alike(self, name: str, other: str) -> bool:
        """Whether two tensors of one shape are equal, row by row."""
        pairs = zip(self.pieces(name), self.pieces(other), strict=True)
        return all(one.dtype == two.dtype and torch.equal(one, two) for one, two in pairs)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{'tensor' if len(names) == 1 else 'tensors'} {', '.join(names[:_NAMED])}{more}"
