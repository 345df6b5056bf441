"""Data sets in memory: scikit-learn's digits by default, the user's own arrays, or an npz file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

from l2l_nas.errors import DataError, SettingError
from l2l_nas.relay.interface import Batch
from l2l_nas.space.shapes import Specs, describe
from l2l_nas.training.arrays import read_npz


@dataclass(frozen=True)
class Split:
    """Samples and their targets.

    Args:
        inputs: tensors whose first dimension is the sample.
        targets: likewise.
    """

    inputs: Batch
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)


@dataclass(frozen=True)
class Data:
    """What to train on, and what to measure on."""

    train: Split
    validation: Split

    @property
    def digest(self) -> str:
        """A hash of the samples that scores are measured on: scores on others cannot be compared."""
        content = hashlib.sha256()
        for tensor in (*self.validation.inputs, self.validation.targets):
            content.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            content.update(tensor.contiguous().numpy().tobytes())
        return content.hexdigest()[:16]

    @classmethod
    def from_arrays(
        cls, x: object, y: object, *, validation_fraction: float = 0.2, stratify: bool | None = None
    ) -> Data:
        """Split arrays or tensors into training and validation samples, the same way every time.

        Args:
            x: inputs [samples, ...].
            y: targets [samples, ...].
            validation_fraction: share of the samples to measure on.
            stratify: whether every class keeps its share; by default for integer targets.

        Raises:
            DataError: the arrays do not fit each other or are too small.
            SettingError: a fraction outside (0, 1).
        """
        if not 0 < validation_fraction < 1:
            raise SettingError(f"validation_fraction must lie between 0 and 1, got {validation_fraction}")
        inputs, targets = torch.as_tensor(x), torch.as_tensor(y)
        if len(inputs) != len(targets):
            raise DataError(f"{len(inputs)} inputs, but {len(targets)} targets")
        integer = not targets.is_floating_point()
        by_class = integer if stratify is None else stratify
        try:
            train, validation = train_test_split(
                np.arange(len(targets)),
                test_size=validation_fraction,
                random_state=0,
                stratify=targets.numpy() if by_class and len(torch.unique(targets)) > 1 else None,
            )
        except ValueError as error:
            raise DataError(f"cannot split {len(targets)} samples: {error}") from None
        targets = targets.long() if integer else targets.float()
        return cls(Split((inputs[train],), targets[train]), Split((inputs[validation],), targets[validation]))


def digits(*, validation_fraction: float = 0.2) -> Data:
    """scikit-learn's digits: 1,797 images of 8x8 as [1, 8, 8] from 0 to 1, ten classes.

    The split is scikit-learn's own, so that it can be made again without this library:
    `train_test_split(range(1797), test_size=0.2, random_state=0, stratify=y)`.
    """
    bunch = load_digits()
    x = torch.from_numpy(bunch.images).float().div_(16).unsqueeze(1)
    return Data.from_arrays(x, bunch.target, validation_fraction=validation_fraction)


def from_npz(path: Path, *, validation_fraction: float = 0.2) -> Data:
    """An npz file with `x_train` and `y_train`, and `x_test` and `y_test` to measure on, or `x` and `y` to be split.

    Images as uint8 [samples, height, width] or with channels last become float32 [channels, height, width] from 0 to 1.

    Raises:
        StorageError: no such file, or not an npz.
        DataError: arrays are missing.
    """
    arrays = read_npz(path)
    _refuse_unusable(arrays, path)
    if {"x_train", "y_train", "x_test", "y_test"} <= arrays.keys():
        train, test = (
            Split((_images(arrays[f"x_{part}"]),), _targets(arrays[f"y_{part}"])) for part in ("train", "test")
        )
        return Data(train, test)
    if {"x", "y"} <= arrays.keys():
        return Data.from_arrays(_images(arrays["x"]), _targets(arrays["y"]), validation_fraction=validation_fraction)
    raise DataError(f"{path}: holds {', '.join(sorted(arrays))}; expected x_train y_train x_test y_test, or x y")


def _refuse_unusable(arrays: Mapping[str, np.ndarray], path: Path) -> None:
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8 or array.ndim == 0:
            raise DataError(f"{path}: '{name}' is {array.dtype} {list(array.shape)}; expected numbers [samples, ...]")


def _images(array: np.ndarray) -> Tensor:
    if array.dtype != np.uint8:
        return torch.from_numpy(array).float() if array.dtype.kind == "f" else torch.from_numpy(array)
    tensor = torch.from_numpy(array).float().div_(255)
    if tensor.dim() == 3:
        return tensor.unsqueeze(1)
    return tensor.permute(0, 3, 1, 2).contiguous() if tensor.dim() == 4 else tensor


def _targets(array: np.ndarray) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor.float() if tensor.is_floating_point() else tensor.long()


def check_split(split: Split, inputs: Specs, *, name: str) -> None:
    """Refuse samples that cannot be trained on.

    Raises:
        DataError: no samples, NaN or inf, another shape or dtype than the pool takes, or lengths that differ.
    """
    if len(split) == 0:
        raise DataError(f"the {name} data has no samples")
    if len(split.inputs) != len(inputs):
        raise DataError(f"the {name} data has {len(split.inputs)} inputs, the pool takes {describe(inputs)}")
    for tensor, spec in zip(split.inputs, inputs, strict=True):
        if tuple(tensor.shape[1:]) != spec.shape or tensor.dtype != spec.dtype:
            got = f"[batch, {', '.join(map(str, tensor.shape[1:]))}] {str(tensor.dtype).removeprefix('torch.')}"
            raise DataError(f"the {name} data is {got}, the pool takes {spec}")
        if len(tensor) != len(split):
            raise DataError(f"the {name} data has {len(tensor)} inputs, but {len(split)} targets")
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            bad = int((~tensor.isfinite()).flatten(1).any(dim=1).sum())
            raise DataError(f"{bad} of {len(tensor)} samples of the {name} data hold NaN or inf; remove or fill them")


class Batches:
    """Mini-batches of a split in an order that depends on the seed alone: batch `step` is the same after a resume.

    Every epoch is a new permutation; its last samples that do not fill a mini-batch are left for other epochs.
    """

    def __init__(self, split: Split, *, batch_size: int, seed: int) -> None:
        if batch_size < 1:
            raise SettingError(f"train.batch_size must be at least 1, got {batch_size}")
        self._split = split
        self._size = min(batch_size, len(split))
        self._seed = seed
        self._per_epoch = len(split) // self._size
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    def at(self, step: int) -> tuple[Batch, Tensor]:
        """Inputs and targets of a step."""
        epoch, place = divmod(step, self._per_epoch)
        if epoch != self._epoch:
            generator = np.random.default_rng([self._seed, epoch])
            self._order = torch.from_numpy(generator.permutation(len(self._split)))
            self._epoch = epoch
        chosen = self._order[place * self._size : (place + 1) * self._size]
        return tuple(tensor[chosen] for tensor in self._split.inputs), self._split.targets[chosen]
