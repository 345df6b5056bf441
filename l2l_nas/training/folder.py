"""Images in files, a folder for each class.

What is found and not used is told by a warning.
"""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from l2l_nas.errors import DataError
from l2l_nas.files import named_failures, open_file, parsing
from l2l_nas.plugins import optional
from l2l_nas.training.ahead import Workers
from l2l_nas.training.cut import cut
from l2l_nas.training.dataset import DatasetSamples, SampleSource
from l2l_nas.training.form import SampleForm, refuse_deep
from l2l_nas.training.samples import Samples, spread

Parts = dict[str, Samples]
# images whose size is read before anything else is
_LOOKS = 512
# what a folder's parts may be called, in any case, also with "set" behind it
_PARTS = {"train": ("train", "training"), "validation": ("validation", "valid", "val", "dev", "eval"),
          "test": ("test", "testing")}  # fmt: skip
_PART_OF = {name: part for part, names in _PARTS.items() for name in names}
# by these a folder is known as one of images, whether they can be opened or not
_IMAGES = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm", ".avif",
           ".heic", ".heif", ".jp2", ".tga", ".ico", ".psd")  # fmt: skip
# formats of Pillow's that are none of pixels, or that another program is run for
_NO_PIXELS = {"EPS", "WMF", "PDF", "MPEG", "BUFR", "GRIB", "HDF5", "IPTC"}
_ORIENTATION, _ON_ITS_SIDE = 0x0112, (5, 6, 7, 8)  # of EXIF: the tag, and values by which width and height change
_NOBODY_S = ("thumbs.db", "desktop.ini")


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
        with _opened(self.files[row]) as image:
            refuse_deep(image)
            found = _upright(image).convert(self.mode)
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
    roots = _roots_of(folder)
    classes = _folders_in(roots["train"])
    if len(classes) < 2:
        raise DataError(f"{roots['train']}: expected a folder for each class with its images, CLASS/*.jpg")
    found = {part: _images_in(root, classes) for part, root in roots.items()}
    mode = "L" if all(mode in ("1", "L") for _, mode, _ in _looked_at(found["train"][0])) else "RGB"
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


def _looked_at(files: list[str]) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """Of some of the images, which are spread over the files: path, mode, height and width as they are seen."""
    for row in spread(len(files), _LOOKS).tolist():
        with _opened(files[row]) as image:  # where EXIF data lie behind the pixels, Pillow reads these as well
            on_its_side = image.getexif().get(_ORIENTATION, 1) in _ON_ITS_SIDE
            size = (image.width, image.height) if on_its_side else (image.height, image.width)
            found = files[row], image.mode, size
        yield found


def _refuse_sizes(files: list[str]) -> None:
    seen: dict[tuple[int, int], str] = {}
    for file, _, size in _looked_at(files):
        seen.setdefault(size, file)
        if len(seen) > 1:
            (one, first), (other, second) = seen.items()
            raise DataError(
                f"images differ in size: {first} is {one[0]}x{one[1]}, {second} {other[0]}x{other[1]}; say to which "
                f"size they are resized: Data.from_folder(..., size={one}), or data.size=[{one[0]},{one[1]}]"
            )


def _upright(image: Any) -> Any:
    """An image as its EXIF data say that it is to be seen: cameras store how they were held."""
    from PIL import ImageOps

    return ImageOps.exif_transpose(image)


def has_images(folder: Path) -> bool:
    """Whether image files lie in it or below."""
    return any(path.suffix.lower() in _IMAGES for path in folder.rglob("*"))


def _roots_of(folder: Path) -> dict[str, Path]:
    """By part, its folder; the folder itself as that of training where it has no parts.

    Raises:
        StorageError, DataError: no such folder, or two folders of one part.
    """
    inside = _folders_in(folder)
    named: dict[str, Path] = {}
    for name in inside:
        part = _PART_OF.get(re.sub(r"[ _-]?set$", "", name.lower()))
        if part in named:
            raise DataError(f"{folder}: '{named[part].name}' and '{name}' are both of the {part} part; leave one")
        if part is not None:
            named[part] = folder / name
    others = [name for name in inside if folder / name not in named.values()]
    # trains may be a class among others
    if "train" not in named or (others and not _folders_in(named["train"])):
        return {"train": folder}
    if others:
        shown = ", ".join(f"'{name}'" for name in others[:5]) + ", ..." * (len(others) > 5)
        _tell(f"{folder}: {shown} beside '{named['train'].name}' not used; parts are called train, validation and test")
    return named


def _folders_in(root: Path) -> list[str]:
    """The folders right in one, by name, but hidden ones."""
    with named_failures(root):
        return sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))


def _images_in(root: Path, classes: list[str]) -> tuple[list[str], list[int]]:
    """Images below a folder, and the class of each. What is there and not used is told by a warning.

    Raises:
        SettingError, DataError: Pillow is missing, there are no images, or a class is none of these.
    """
    unknown = [name for name in _folders_in(root) if name not in classes]
    if unknown:
        raise DataError(f"{root}: the training images have no class '{unknown[0]}'")
    openable = _openable()
    with named_failures(root):
        left = Counter(_suffix(entry.name) for entry in os.scandir(root) if _suffix(entry.name) in _IMAGES)
    files: list[str] = []
    targets: list[int] = []
    empty: list[str] = []
    for number, name in enumerate(classes):
        inside = sorted(_below(root / name, "", set())) if (root / name).is_dir() else []
        images = [path for path, is_file in inside if is_file and _suffix(path) in openable]
        files += [str(root / name / path) for path in images]
        targets += [number] * len(images)
        left.update(_suffix(path) for path, is_file in inside if not is_file or _suffix(path) not in openable)
        empty += [name] * (not images and (root / name).is_dir())
    if not files:
        raise DataError(f"{root}: holds no images ({', '.join(_IMAGES)})")
    if empty:
        _tell(f"{root}: no images of {len(empty)} of the classes ({', '.join(empty[:5])}{', ...' * (len(empty) > 5)})")
    if left:
        kinds = ", ".join(f"{count} of {suffix or 'no suffix'}" for suffix, count in sorted(left.items()))
        _tell(
            f"{root}: {left.total()} files not used ({kinds}), beside {len(files)} images in folders of classes; save "
            "images as .png, and put them into those folders"
        )
    return files, targets


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def _below(folder: Path, place: str, seen: set[tuple[int, int]]) -> Iterator[tuple[str, bool]]:
    """All that lies in a folder and below: its path from there, and whether it is a file. Links are followed once."""
    with named_failures(folder / place):
        entries = [entry for entry in os.scandir(folder / place) if not entry.name.startswith(".")]
        for entry in entries:
            path = os.path.join(place, entry.name)
            if not entry.is_dir():
                if entry.name.lower() not in _NOBODY_S:
                    yield path, entry.is_file()
                continue
            found = entry.stat()
            if (found.st_dev, found.st_ino) not in seen:
                seen.add((found.st_dev, found.st_ino))
                yield from _below(folder, path, seen)


def _tell(text: str) -> None:
    warnings.warn(text, stacklevel=5)


def _formats() -> list[str]:
    image = _pillow()
    image.init()
    return [name for name in image.OPEN if name not in _NO_PIXELS]


def _openable() -> set[str]:
    formats = _formats()
    return {suffix for suffix, name in _pillow().registered_extensions().items() if name in formats}


def _pillow() -> Any:
    return optional("PIL.Image", "images in files need", extra="images")


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Any]:
    """An image; its pixels are read when they are used.

    Raises:
        SettingError, StorageError, DataError: Pillow is missing, it is no file, or none that can be read as an image.
    """
    advice = "save it again, or leave it out"
    with (
        open_file(Path(path)) as file,
        parsing(path, "an image that can be read", advice=advice, error=DataError),
        _pillow().open(file, formats=_formats()) as image,
    ):
        yield image
