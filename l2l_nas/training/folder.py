"""Data that lie in a folder: images, a folder for each class; or arrays in .npy files, read where they lie."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from l2l_nas.contents.arrays import map_npy
from l2l_nas.errors import DataError, StorageError
from l2l_nas.training.ahead import Workers
from l2l_nas.training.cut import classes_of, cut
from l2l_nas.training.dataset import DatasetSamples, SampleSource
from l2l_nas.training.form import SampleForm, refuse_deep
from l2l_nas.training.image_files import folders_in, images_in, opened, roots_of
from l2l_nas.training.samples import Mapped, Samples, spread, tensor_of

Parts = dict[str, Samples]
_PARTS = ("train", "validation", "test")
# images whose size is read before anything else is
_LOOKS = 512


@dataclass(frozen=True)
class Images:
    """A map-style data set of image files."""

    files: list[str]
    targets: list[int]
    mode: str  # of all images as they are read, "L" or "RGB"
    size: tuple[int, int] | None  # height and width that they are resized to; None: as they are

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        with opened(self.files[row]) as image:
            refuse_deep(image)
            found = image.convert(self.mode)
        if self.size is not None and (found.height, found.width) != self.size:
            found = found.resize((self.size[1], self.size[0]))
        return found, self.targets[row]


def image_parts(
    folder: Path,
    *,
    size: tuple[int, int] | None,
    transform: Callable[..., Any] | None,
    workers: int,
    fractions: tuple[float, float],
) -> Parts:
    """The parts of a folder of images: `CLASS/*.jpg`, or `train/CLASS/*.jpg` beside `validation` and `test`.

    Images may lie in folders below that of their class. What is found and not used is told by a warning.

    Args:
        size, transform, workers: see `Data.from_folder`.
        fractions: of the validation and the test part, where the folder has none.

    Raises:
        StorageError: no such folder.
        DataError: no classes, no images, classes that training has not, or sizes that differ.
    """
    roots = roots_of(folder)
    classes = folders_in(roots["train"])
    if len(classes) < 2:
        raise DataError(f"{roots['train']}: expected a folder for each class with its images, CLASS/*.jpg")
    found = {part: images_in(root, classes) for part, root in roots.items()}
    mode = "L" if all(image.mode in ("1", "L") for _, image in _looked_at(found["train"][0])) else "RGB"
    for files, _ in found.values():
        if size is None:
            _refuse_sizes(files)
    files, targets = found.pop("train")
    if roots["train"] == folder or "validation" not in found:
        test_fraction = fractions[1] if roots["train"] == folder else 0.0
        known = np.array(targets)
        cuts = cut(len(files), validation_fraction=fractions[0], test_fraction=test_fraction, classes=known)
        for name, rows in zip(_PARTS, cuts, strict=True):
            if len(rows):
                found[name] = [files[row] for row in rows], [targets[row] for row in rows]
    else:
        found["train"] = files, targets

    def part(name: str) -> Samples:
        files, targets = found[name]
        form = SampleForm(transform=transform if name == "train" else None)
        source = SampleSource(Images(files, targets, mode, size), form, Workers(workers))
        return DatasetSamples(source, targets=torch.tensor(targets, dtype=torch.int64))

    return {name: part(name) for name in _PARTS if name in found}


def _looked_at(files: list[str]) -> Iterator[tuple[str, Any]]:
    """Some of the images, which are spread over the files."""
    for row in spread(len(files), _LOOKS).tolist():
        with opened(files[row]) as image:
            yield files[row], image


def _refuse_sizes(files: list[str]) -> None:
    seen: dict[tuple[int, int], str] = {}
    for file, image in _looked_at(files):
        seen.setdefault((image.height, image.width), file)
        if len(seen) > 1:
            (one, first), (other, second) = seen.items()
            raise DataError(
                f"images differ in size: {first} is {one[0]}x{one[1]}, {second} {other[0]}x{other[1]}; say to which "
                f"size they are resized: Data.from_folder(..., size={one}), or data.size=[{one[0]},{one[1]}]"
            )


def has_arrays(folder: Path) -> bool:
    """Whether .npy files lie in it, so that it is no folder of images."""
    return any(folder.glob("*.npy"))


def refuse_left_over(names: Iterable[str], used: Collection[str], place: Path) -> None:
    """Refuse arrays that nothing would use, such as a part under another name. Raises DataError: with their names."""
    left = sorted(set(names) - set(used))
    if left:
        raise DataError(
            f"{place}: {', '.join(sorted(used))} are used, and {', '.join(left)} would not be; leave that out, or name "
            "arrays x_train y_train x_test y_test x_validation y_validation"
        )


def array_parts(folder: Path, *, fractions: tuple[float, float]) -> Parts:
    """The parts of a folder with `x.npy y.npy`, or with `x_train.npy y_train.npy x_test.npy y_test.npy`.

    Raises:
        StorageError: a file is missing, or no array.
        DataError: lengths that differ, or arrays that nothing would use.
    """

    def mapped(end: str, rows: np.ndarray | None = None) -> Mapped:
        inputs, targets = (_mapped(folder / f"{name}{end}.npy") for name in "xy")
        return Mapped(inputs, targets, as_inputs=images_of, rows=rows)

    def parts_of(end: str, test_fraction: float) -> Parts:
        classes = classes_of(_mapped(folder / f"y{end}.npy"))
        count = len(mapped(end))
        cuts = cut(count, validation_fraction=fractions[0], test_fraction=test_fraction, classes=classes)
        return {name: mapped(end, rows) for name, rows in zip(_PARTS, cuts, strict=True) if len(rows)}

    names = [path.stem for path in folder.glob("*.npy")]
    if "x" in names:
        refuse_left_over(names, ("x", "y"), folder)
        return parts_of("", fractions[1])
    given = [name for name in _PARTS if f"x_{name}" in names]
    if "train" not in given:
        raise StorageError(f"{folder}: expected x.npy and y.npy, or x_train.npy y_train.npy x_test.npy y_test.npy")
    refuse_left_over(names, [f"{kind}_{name}" for kind in "xy" for name in given], folder)
    parts: Parts = {name: mapped(f"_{name}") for name in given}
    return parts if "validation" in given else {**parts, **parts_of("_train", 0.0)}


def numbers(array: np.ndarray, place: str) -> np.ndarray:
    """The array, if it holds numbers of samples."""
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8 or array.ndim == 0:
        raise DataError(f"{place} is {array.dtype} {list(array.shape)}; expected numbers [samples, ...]")
    return array


def _mapped(path: Path) -> np.ndarray:
    return numbers(map_npy(path), f"{path}:")


def images_of(array: np.ndarray) -> Tensor:
    """Images as uint8 become float32 [images, channels, height, width] from 0 to 1; other numbers stay."""
    tensor = tensor_of(array)
    if tensor.dtype != torch.uint8:
        return tensor.float() if tensor.is_floating_point() else tensor
    tensor = tensor.float().div_(255)
    if tensor.dim() == 3:
        return tensor.unsqueeze(1)
    return tensor.permute(0, 3, 1, 2).contiguous() if tensor.dim() == 4 else tensor
