"""Data sets in memory: scikit-learn's digits by default, the user's own arrays, or an npz file."""

from __future__ import annotations

import hashlib
import math
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
    """Samples in three parts.

    Args:
        train: what weights are trained on, and BatchNorm's statistics measured on.
        validation: what a search selects on.
        test: what it never sees: looked at once for each network that is reported. None: nothing is kept apart.
    """

    train: Split
    validation: Split
    test: Split | None = None

    @property
    def parts(self) -> dict[str, Split]:
        """By name: training, validation, and test where there is one."""
        test = {} if self.test is None else {"test": self.test}
        return {"training": self.train, "validation": self.validation, **test}

    @property
    def digest(self) -> str:
        """Hashes of the validation samples, then of the training samples, 16 hexadecimal digits each.

        A score is one of these samples after training on those: with others of either, scores cannot be compared. The
        test part is not in it, since no score that a search compares depends on it.
        """
        return _digest(self.validation) + _digest(self.train)

    @property
    def test_digest(self) -> str:
        """A hash of the test samples; empty where there are none."""
        return "" if self.test is None else _digest(self.test)

    @classmethod
    def from_arrays(
        cls,
        x: object,
        y: object,
        *,
        validation_fraction: float = 0.2,
        test_fraction: float = 0.2,
        stratify: bool | None = None,
    ) -> Data:
        """Split arrays or tensors into training, validation and test samples, the same way every time.

        The test samples are drawn first, so that they stay the same whatever the share of validation.

        Args:
            x: inputs [samples, ...].
            y: targets [samples, ...].
            validation_fraction: share of all samples to select on.
            test_fraction: share of all samples to keep apart; 0: there is no test part.
            stratify: whether every class keeps its share; by default for integer targets, one a sample.

        Raises:
            DataError: the arrays do not fit each other or are too small.
            SettingError: a fraction out of range, or fractions that leave nothing to train on.
        """
        if not 0 < validation_fraction < 1:
            raise SettingError(f"validation_fraction must lie between 0 and 1, got {validation_fraction}")
        if not 0 <= test_fraction < 1:
            raise SettingError(f"test_fraction must lie between 0 and 1, got {test_fraction}; 0: no test part")
        if not validation_fraction + test_fraction < 1:
            raise SettingError(
                f"validation_fraction {validation_fraction} and test_fraction {test_fraction} leave no samples to "
                "train on; together they must be below 1"
            )
        inputs, targets = torch.as_tensor(x), torch.as_tensor(y)
        if len(inputs) != len(targets):
            raise DataError(f"{len(inputs)} inputs, but {len(targets)} targets")
        integer = not targets.is_floating_point()
        by_class = integer and targets.dim() == 1 if stratify is None else stratify
        classes = targets.numpy() if by_class and len(torch.unique(targets)) > 1 else None
        targets = targets.long() if integer else targets.float()
        rest, parts = np.arange(len(targets)), []
        for fraction in (test_fraction, validation_fraction):
            chosen = rest[:0]
            if fraction:
                rest, chosen = _cut(rest, math.ceil(fraction * len(targets)), classes)
            parts.append(chosen)
        test, validation, train = (Split((inputs[chosen],), targets[chosen]) for chosen in (*parts, rest))
        return cls(train, validation, test if len(test) else None)


def _digest(split: Split) -> str:
    content = hashlib.sha256()
    for tensor in (*split.inputs, split.targets):
        content.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        content.update(tensor.contiguous().numpy().tobytes())
    return content.hexdigest()[:16]


def other_data(before: object, now: str) -> str:
    """What differs between two data sets, by their digests: "validation", "training", or nothing.

    Version 0.1.0 kept the first half of a digest alone.
    """
    known = before if isinstance(before, str) else ""
    if known[:16] != now[:16]:
        return "validation"
    return "" if known in (now, now[:16]) else "training"


def _cut(rest: np.ndarray, size: int, classes: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The samples without `size` of them, and these: drawn by scikit-learn, every class by its share.

    Raises:
        DataError: there are too few.
    """
    by = None if classes is None else classes[rest]
    try:
        rest, chosen = train_test_split(rest, test_size=size, random_state=0, stratify=by)
    except ValueError as error:
        raise DataError(f"cannot split {len(rest)} samples: {error}") from None
    return rest, chosen


def digits(*, validation_fraction: float = 0.2, test_fraction: float = 0.2) -> Data:
    """scikit-learn's digits: 1,797 images of 8x8 as [1, 8, 8] from 0 to 1, ten classes.

    The split is scikit-learn's own, so that it can be made again without this library:
    `rest, test = train_test_split(range(1797), test_size=360, random_state=0, stratify=y)`, then
    `train_test_split(rest, test_size=360, random_state=0, stratify=y[rest])` for training and validation.
    """
    bunch = load_digits()
    x = torch.from_numpy(bunch.images).float().div_(16).unsqueeze(1)
    return Data.from_arrays(x, bunch.target, validation_fraction=validation_fraction, test_fraction=test_fraction)


def cluttered_digits(*, validation_fraction: float = 0.2, test_fraction: float = 0.2) -> Data:
    """scikit-learn's digits somewhere on a canvas among pieces of others: 7,188 images [1, 10, 10] from 0 to 1.

    Each digit of each part of `digits` comes four times, at random places, with two pieces of 3x3 pixels of random
    digits of its part; where two things overlap, the brighter pixel is seen. Drawn by numpy's PCG64, always the same.
    Standard errors take each image as a sample of its own, and are about a fourth too small: four show one digit.
    The task is that of cluttered translated MNIST (Mnih et al., arXiv 1406.6247, section 4.2), made smaller.

    Raises:
        SettingError: fractions out of range.
    """
    data = digits(validation_fraction=validation_fraction, test_fraction=test_fraction)
    parts = {name: _cluttered(split, seed=place) for place, (name, split) in enumerate(data.parts.items())}
    return Data(parts["training"], parts["validation"], parts.get("test"))


def _cluttered(split: Split, *, seed: int, copies: int = 4, canvas: int = 10, pieces: int = 2, piece: int = 3) -> Split:
    images, generator = split.inputs[0][:, 0].numpy(), np.random.Generator(np.random.PCG64(seed))
    size, count = images.shape[-1], copies * len(images)
    made = np.zeros((count, 1, canvas, canvas), dtype=np.float32)

    def put(image: np.ndarray, onto: np.ndarray) -> None:
        top, left = generator.integers(canvas - len(image) + 1, size=2)
        place = onto[top : top + len(image), left : left + len(image)]
        np.maximum(place, image, out=place)

    for index in range(count):
        for other in generator.integers(len(images), size=pieces):
            top, left = generator.integers(size - piece + 1, size=2)
            put(images[other, top : top + piece, left : left + piece], made[index, 0])
        put(images[index % len(images)], made[index, 0])
    return Split((torch.from_numpy(made),), split.targets.repeat(copies))


def from_npz(path: Path, *, validation_fraction: float = 0.2, test_fraction: float = 0.2) -> Data:
    """An npz file with `x_train y_train x_test y_test`, or with `x` and `y` to be cut in three.

    `x_test` is the test part. What is selected on is `x_validation` and `y_validation` where they are there, and cut
    out of `x_train` where they are not.

    Images as uint8 [samples, height, width] or with channels last become float32 [channels, height, width] from 0 to 1.

    Raises:
        StorageError: no such file, or not an npz.
        DataError: arrays are missing.
    """
    arrays = read_npz(path)
    _refuse_unusable(arrays, path)
    if {"x_train", "y_train", "x_test", "y_test"} <= arrays.keys():
        return _as_it_is(arrays, validation_fraction)
    if {"x", "y"} <= arrays.keys():
        x, y = _images(arrays["x"]), _targets(arrays["y"])
        return Data.from_arrays(x, y, validation_fraction=validation_fraction, test_fraction=test_fraction)
    raise DataError(
        f"{path}: holds {', '.join(sorted(arrays))}; expected x_train y_train x_test y_test (and x_validation "
        "y_validation, if you have them), or x y"
    )


def _as_it_is(arrays: Mapping[str, np.ndarray], validation_fraction: float) -> Data:
    """A file's own parts; without one to select on, it is cut out of the training samples."""
    parts = {
        name: Split((_images(arrays[f"x_{name}"]),), _targets(arrays[f"y_{name}"]))
        for name in ("train", "validation", "test")
        if {f"x_{name}", f"y_{name}"} <= arrays.keys()
    }
    train, test = parts["train"], parts["test"]
    if "validation" in parts:
        return Data(train, parts["validation"], test)
    cut = Data.from_arrays(train.inputs[0], train.targets, validation_fraction=validation_fraction, test_fraction=0.0)
    return Data(cut.train, cut.validation, test)


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
