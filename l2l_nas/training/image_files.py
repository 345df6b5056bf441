"""Images in folders: which files are taken, which are told to be left out, and how one is opened."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from l2l_nas.errors import DataError, SettingError
from l2l_nas.files import named_failures, open_file, parsing

# what a folder's parts may be called, in any case, also with "set" behind it
_PARTS = {"train": ("train", "training"), "validation": ("validation", "valid", "val", "dev", "eval"),
          "test": ("test", "testing")}  # fmt: skip
_PART_OF = {name: part for part, names in _PARTS.items() for name in names}
# by these a folder is known as one of images, whether they can be opened or not
_IMAGES = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm", ".avif",
           ".heic", ".heif", ".jp2", ".tga", ".ico", ".psd")  # fmt: skip
# formats of Pillow's that are none of pixels, or that another program is run for
_NO_PIXELS = {"EPS", "WMF", "PDF", "MPEG", "BUFR", "GRIB", "HDF5", "IPTC"}
_NOBODY_S = ("thumbs.db", "desktop.ini")


def has_images(folder: Path) -> bool:
    """Whether image files lie in it or below."""
    return any(path.suffix.lower() in _IMAGES for path in folder.rglob("*"))


def roots_of(folder: Path) -> dict[str, Path]:
    """By part, its folder; the folder itself as that of training where it has no parts.

    Raises:
        StorageError, DataError: no such folder, or two folders of one part.
    """
    inside = folders_in(folder)
    named: dict[str, Path] = {}
    for name in inside:
        part = _PART_OF.get(re.sub(r"[ _-]?set$", "", name.lower()))
        if part in named:
            raise DataError(f"{folder}: '{named[part].name}' and '{name}' are both of the {part} part; leave one")
        if part is not None:
            named[part] = folder / name
    others = [name for name in inside if folder / name not in named.values()]
    # trains may be a class among others
    if "train" not in named or (others and not folders_in(named["train"])):
        return {"train": folder}
    if others:
        shown = ", ".join(f"'{name}'" for name in others[:5]) + ", ..." * (len(others) > 5)
        _tell(f"{folder}: {shown} beside '{named['train'].name}' not used; parts are called train, validation and test")
    return named


def folders_in(root: Path) -> list[str]:
    """The folders right in one, by name, but hidden ones."""
    with named_failures(root):
        return sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith("."))


def images_in(root: Path, classes: list[str]) -> tuple[list[str], list[int]]:
    """Images below a folder, and the class of each. What is there and not used is told by a warning.

    Raises:
        SettingError, DataError: Pillow is missing, there are no images, or a class is none of these.
    """
    unknown = [name for name in folders_in(root) if name not in classes]
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
    try:
        from PIL import Image
    except ImportError:
        raise SettingError("images in files need the package pillow, not installed: pip install pillow") from None
    return Image


@contextlib.contextmanager
def opened(path: str) -> Iterator[Any]:
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
