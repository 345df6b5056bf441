"""Data that lie in a folder: images, a folder for each class; or arrays in .npy files, read where they lie."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
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
from l2l_nas.training.dataset import MapSamples, SampleSource
from l2l_nas.training.form import SampleForm, refuse_deep
from l2l_nas.training.image_files import folders_in, images_in, opened, roots_of
from l2l_nas.training.samples import Mapped, Samples, spread

Parts = dict[str, Samples]
# images whose size is read before anything else is
_LOOKS = 512


@dataclass(frozen=True)
class Images:
    """A map-style data set of image files.

    Args:
        files: paths.
        targets: the class of each.
        mode: of all images as they are read, "L" or "RGB".
        size: height and width that they are resized to; None: as they are.
    """

    files: list[str]
    targets: list[int]
    mode: str
    size: tuple[int, int] | None

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
    mode = _mode(found["train"][0])
    for files, _ in found.values():
        _refuse_sizes(files, size)

    def part(files: list[str], targets: list[int], is_training: bool) -> Samples:
        form = SampleForm(transform=transform if is_training else None)
        known = torch.tensor(targets, dtype=torch.int64)
        return MapSamples(SampleSource(Images(files, targets, mode, size), form, Workers(workers)), targets=known)

    files, targets = found["train"]
    rows: dict[str, np.ndarray] = {"train": np.arange(len(files))}
    missing = [name for name in ("validation", "test") if name not in found]
    if roots["train"] == folder:
        cuts = cut(len(files), validation_fraction=fractions[0], test_fraction=fractions[1], classes=np.array(targets))
        rows = dict(zip(("train", "validation", "test"), cuts, strict=True))
    elif "validation" in missing:
        cuts = cut(len(files), validation_fraction=fractions[0], test_fraction=0.0, classes=np.array(targets))
        rows = dict(zip(("train", "validation"), cuts, strict=False))
    parts = {
        name: part([files[row] for row in some], [targets[row] for row in some], name == "train")
        for name, some in rows.items()
        if len(some)
    }
    return {**parts, **{name: part(*found[name], False) for name in ("validation", "test") if name in found}}


def _mode(files: list[str]) -> str:
    """Gray if all images are that are opened for it, which are spread over the files; else RGB."""
    for row in spread(len(files), _LOOKS).tolist():
        with opened(files[row]) as image:
            if image.mode not in ("1", "L"):
                return "RGB"
    return "L"


def _refuse_sizes(files: list[str], size: tuple[int, int] | None) -> None:
    seen: dict[tuple[int, int], str] = {}
    for row in spread(len(files), _LOOKS).tolist() if size is None else ():
        with opened(files[row]) as image:
            seen.setdefault((image.height, image.width), files[row])
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
    """Refuse arrays that nothing would use, such as a part under another name.

    Raises:
        DataError: with their names.
    """
    left = sorted(set(names) - set(used))
    if left:
        raise DataError(
            f"{place}: {', '.join(sorted(used))} are used, and {', '.join(left)} would not be; leave that out, or name "
            "arrays x_train y_train x_test y_test x_validation y_validation"
        )


_OF_ARRAYS = ("train", "validation", "test")


def array_parts(
    folder: Path,
    *,
    as_inputs: Callable[[np.ndarray], Tensor],
    as_targets: Callable[[np.ndarray], Tensor],
    fractions: tuple[float, float],
) -> Parts:
    """The parts of a folder with `x.npy y.npy`, or with `x_train.npy y_train.npy x_test.npy y_test.npy`.

    Raises:
        StorageError: a file is missing, or no array.
        DataError: lengths that differ, or arrays that nothing would use.
    """

    def mapped(end: str, rows: np.ndarray | None = None) -> Mapped:
        inputs, targets = (_mapped(folder / f"{name}{end}.npy") for name in "xy")
        return Mapped((inputs,), targets, rows=rows, as_inputs=as_inputs, as_targets=as_targets)

    names = [path.stem for path in folder.glob("*.npy")]
    if "x" in names:
        refuse_left_over(names, ("x", "y"), folder)
        classes = classes_of(_mapped(folder / "y.npy"))
        cuts = cut(len(mapped("")), validation_fraction=fractions[0], test_fraction=fractions[1], classes=classes)
        return {name: mapped("", rows) for name, rows in zip(_OF_ARRAYS, cuts, strict=True) if len(rows)}
    given = [name for name in _OF_ARRAYS if f"x_{name}" in names]
    if "train" not in given:
        raise StorageError(f"{folder}: expected x.npy and y.npy, or x_train.npy y_train.npy x_test.npy y_test.npy")
    refuse_left_over(names, [f"{kind}_{name}" for kind in "xy" for name in given], folder)
    parts: Parts = {name: mapped(f"_{name}") for name in given}
    if "validation" not in given:
        classes = classes_of(_mapped(folder / "y_train.npy"))
        cuts = cut(len(parts["train"]), validation_fraction=fractions[0], test_fraction=0.0, classes=classes)
        parts |= {"train": mapped("_train", cuts[0]), "validation": mapped("_train", cuts[1])}
    return parts


def _mapped(path: Path) -> np.ndarray:
    """An array of numbers in a file, of which only what is used is read."""
    found = map_npy(path)
    if found.dtype.kind not in "biuf" or found.dtype.itemsize > 8 or found.ndim == 0:
        raise DataError(f"{path}: is {found.dtype} {list(found.shape)}; expected numbers [samples, ...]")
    return found
