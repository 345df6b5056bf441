"""Which images of a folder are taken, and what is told of the others."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest

from l2l_nas import Data
from l2l_nas.errors import DataError, SettingError, StorageError
from tests.training.test_folder import write_images

Image = pytest.importorskip("PIL.Image")


def counts(folder):
    return {name: len(part) for name, part in Data.from_folder(folder).parts.items()}


def test_images_in_folders_below_their_class_are_taken(tmp_path):
    write_images(tmp_path, each=10)
    write_images(tmp_path / "cat" / "more", classes=("1", "2"), each=5)
    assert sum(counts(tmp_path).values()) == 30
    (tmp_path / "dog" / "again").symlink_to(tmp_path / "dog")  # in a circle
    assert sum(counts(tmp_path).values()) == 40


@pytest.mark.parametrize(
    "names",
    [
        ("Training", "Testing"),
        ("Train", "Test"),
        ("train", "dev", "test"),
        ("train", "eval"),
        ("TRAIN_SET", "test-set"),
    ],
)
def test_parts_are_known_by_their_usual_names_in_any_case(tmp_path, names):
    for each, name in zip((12, 4, 3), names, strict=False):
        write_images(tmp_path / name, each=each)
    found = counts(tmp_path)
    if len(names) == 3:
        assert found == {"training": 24, "validation": 8, "test": 6}
    elif names[1] == "eval":
        assert found == {"training": 24, "validation": 8}
    else:
        assert found["test"] == 8
        assert found["training"] + found["validation"] == 24


def test_two_folders_of_one_part_are_refused(tmp_path):
    for name in ("train", "val", "dev"):
        write_images(tmp_path / name)
    with pytest.raises(DataError, match="'dev' and 'val' are both of the validation part"):
        Data.from_folder(tmp_path)


def test_trains_may_be_a_class(tmp_path):
    write_images(tmp_path, classes=("car", "train"))
    assert sum(counts(tmp_path).values()) == 20


def test_what_is_found_and_not_used_is_told(tmp_path):
    write_images(tmp_path)
    (tmp_path / "bird").mkdir()
    for name in ("a.HEIC", "b.heic", "notes.txt", ".hidden", "Thumbs.db", "README"):
        (tmp_path / "cat" / name).write_bytes(b"x")
    os.mkfifo(tmp_path / "dog" / "pipe.png")
    (tmp_path / "dog" / "0.png").rename(tmp_path / "stray.png")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        data = Data.from_folder(tmp_path)
    assert sum(map(len, data.parts.values())) == 19
    first, second = (str(one.message) for one in told)
    assert first == f"{tmp_path}: no images of 1 of the classes (bird)"
    assert second.startswith(f"{tmp_path}: 6 files not used (1 of no suffix, 2 of .heic, 2 of .png, 1 of .txt), beside")


def test_whatever_pillow_opens_is_taken(tmp_path):
    write_images(tmp_path)
    for suffix in ("jfif", "pcx", "tga", "JPG", "dib", "jp2", "qoi"):
        Image.new("RGB", (5, 6)).save(tmp_path / "cat" / f"x.{suffix}")
    assert sum(counts(tmp_path).values()) == 27
    Image.new("RGB", (5, 6)).save(tmp_path / "cat" / "x.eps")
    (tmp_path / "cat" / "x.eps").rename(tmp_path / "cat" / "x.png")  # which another program would be run for
    with pytest.raises(DataError, match=r"x\.png: damaged, not an image"):
        Data.from_folder(tmp_path)


def test_an_image_that_is_no_file_any_more_is_not_waited_for(tmp_path):
    write_images(tmp_path, each=5)
    data = Data.from_folder(tmp_path)
    for path in tmp_path.glob("*/*.png"):
        path.unlink()
        os.mkfifo(path)
    with pytest.raises(StorageError, match=r"\.png: a pipe or a device, not a file"):
        data.train.preview()


def test_more_processes_than_a_machine_has_are_not_begun(tmp_path):
    with pytest.raises(SettingError, match="workers"):
        Data.from_folder(write_images(tmp_path), workers=10**9)


def test_photos_are_seen_as_their_camera_was_held(tmp_path):
    """A file has its pixels as the sensor lies, and in EXIF how to turn them."""
    array = np.zeros((4, 6, 3), dtype=np.uint8)
    array[:, :2] = 200  # a bright edge at the left, or at the top where it is turned by a quarter
    turned = Image.Exif()
    turned[0x0112] = 6
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(10):
            upright = np.rot90(array, -1)
            kept, exif = (array, turned) if number % 2 else (upright, Image.Exif())
            Image.fromarray(kept).save(tmp_path / name / f"{number}.png", exif=exif)
    (images,), _ = Data.from_folder(tmp_path).train.preview()
    assert images.shape[1:] == (3, 6, 4)
    assert bool((images == images[0]).all())
