"""Folders: images by class, and arrays that are read where they lie."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from l2l_nas import Batches, Data
from l2l_nas.errors import DataError, SettingError, StorageError
from l2l_nas.runs.locate import load_data, load_problem
from l2l_nas.training.data import from_npz
from tests.cli.runs import ROOT, environment

Image = pytest.importorskip("PIL.Image")


def write_images(folder, classes=("cat", "dog"), each=10, size=(6, 5), mode="RGB"):
    """Images whose pixels tell class and number."""
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for index in range(each):
            array = np.full((*size, 3), (100 * number + index) % 256, dtype=np.uint8)
            Image.fromarray(array).convert(mode).save(folder / name / f"{index}.png")
    return folder


def test_a_folder_of_classes_is_cut_in_three_with_every_class_in_its_share(tmp_path):
    data = Data.from_folder(write_images(tmp_path))
    assert [len(part) for part in data.parts.values()] == [12, 4, 4]
    for part in data.parts.values():
        (images,), targets = part.preview()
        assert images.shape[1:] == (3, 6, 5)
        assert torch.equal((images[:, 0, 0, 0] * 255 >= 100).long(), targets)
        assert int(targets.sum()) * 2 == len(part)
    assert data.digest == Data.from_folder(tmp_path).digest


def test_parts_of_a_folder_s_own_stay_as_they_are(tmp_path):
    for name, each in (("train", 10), ("val", 3), ("test", 2)):
        write_images(tmp_path / name, each=each, mode="L")
    data = Data.from_folder(tmp_path)
    assert {name: len(part) for name, part in data.parts.items()} == {"training": 20, "validation": 6, "test": 4}
    assert data.train.preview()[0][0].shape[1:] == (1, 6, 5)  # gray stays gray
    (tmp_path / "val").rename(tmp_path / "other")
    with pytest.warns(UserWarning, match="'other' beside 'train' not used"):
        data = Data.from_folder(tmp_path)
    assert [len(part) for part in data.parts.values()] == [16, 4, 4]


def test_images_are_resized_and_those_of_training_transformed(tmp_path):
    write_images(tmp_path)
    data = Data.from_folder(tmp_path, size=(4, 8), transform=lambda image: np.asarray(image)[:, ::2].astype(np.float32))
    assert data.train.preview()[0][0].shape[1:] == (4, 4, 3)
    assert data.validation.preview()[0][0].shape[1:] == (3, 4, 8)


def test_with_processes_images_are_the_same(tmp_path):
    write_images(tmp_path)
    plain, ahead = Data.from_folder(tmp_path), Data.from_folder(tmp_path, workers=2)
    pairs = zip(*(Batches(one.train, batch_size=5, seed=0).ahead(0, 5) for one in (plain, ahead)), strict=True)
    assert all(torch.equal(one[0][0], other[0][0]) for one, other in pairs)
    ahead.close()


def test_what_is_wrong_with_a_folder_is_one_line(tmp_path):
    with pytest.raises(StorageError, match="no such file or folder"):
        Data.from_folder(tmp_path / "none")
    with pytest.raises(DataError, match=r"expected a folder for each class with its images, CLASS/\*\.jpg"):
        Data.from_folder(tmp_path)
    write_images(tmp_path / "a")
    write_images(tmp_path / "a", classes=("bird",), size=(7, 7))
    with pytest.raises(
        DataError, match=r"differ in size: .* is 7x7, .* 6x5; say .* size=\(7, 7\)\), or data.size=\[7,7\]"
    ):
        Data.from_folder(tmp_path / "a")
    (tmp_path / "a" / "bird" / "0.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"0\.png: damaged, not an image that can be read"):
        Data.from_folder(tmp_path / "a")
    whole = (tmp_path / "a" / "bird" / "1.png").read_bytes()
    (tmp_path / "a" / "bird" / "0.png").write_bytes(
        whole[: whole.index(b"IDAT") + 8]
    )  # behind the pixels may lie EXIF data
    with pytest.raises(DataError, match=r"0\.png: damaged, not an image that can be read"):
        Data.from_folder(tmp_path / "a")
    write_images(tmp_path / "b" / "train")
    write_images(tmp_path / "b" / "test", classes=("cow",))
    with pytest.raises(DataError, match="the training images have no class 'cow'"):
        Data.from_folder(tmp_path / "b")
    (tmp_path / "c" / "x").mkdir(parents=True)
    (tmp_path / "c" / "y").mkdir()
    with pytest.raises(DataError, match="holds no images"):
        Data.from_folder(tmp_path / "c")


def test_the_command_line_takes_folders(tmp_path):
    write_images(tmp_path / "images", classes=[f"c{i:02}" for i in range(12)], each=20)
    problem = load_problem(
        "image_blocks", {}, source=str(tmp_path / "images"), validation_fraction=0.2, test_fraction=0.2, size=[8, 8]
    )
    assert problem.pool.inputs[0].shape == (3, 8, 8)
    from l2l_nas.space.shapes import check_shapes

    shapes = check_shapes(problem.pool)
    assert shapes.outputs[0].shape == (12,)
    problem.check(shapes)
    with pytest.raises(SettingError, match=r"data\.size is of a folder of images, which data.source=digits is not"):
        load_data("digits", 0.2, size=[8, 8])
    with pytest.raises(SettingError, match=r"data.size must be \[HEIGHT,WIDTH\]"):
        load_data(str(tmp_path / "images"), 0.2, size=[8])


def write_arrays(folder, arrays):
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.savez(folder.with_suffix(".npz"), **arrays)
    return folder


@pytest.mark.parametrize("parts", [("",), ("_train",), ("_train", "_test"), ("_train", "_validation", "_test")])
def test_arrays_in_a_folder_are_read_as_an_npz_is(tmp_path, parts):
    rng = np.random.default_rng(0)
    arrays = {f"x{part}": rng.integers(0, 255, (40, 5, 4, 3), dtype=np.uint8) for part in parts}
    arrays |= {f"y{part}": rng.integers(0, 4, 40) for part in parts}
    assert_read_alike(tmp_path, arrays)


@pytest.mark.parametrize("more", ["x_val", "y_train", "weights"])
def test_arrays_that_nothing_would_use_are_refused(tmp_path, more):
    arrays = {"x": np.zeros((40, 5)), "y": np.arange(40) % 4, more: np.zeros(40)}
    folder = write_arrays(tmp_path / "arrays", arrays)
    for read in (lambda: from_npz(folder.with_suffix(".npz")), lambda: Data.from_folder(folder)):
        with pytest.raises(DataError, match=f"x, y are used, and {more} would not be"):
            read()


def test_arrays_that_nothing_would_use_are_named_in_order(tmp_path):
    more = [f"part{number}" for number in range(9)]
    arrays = {"x": np.zeros((40, 5)), "y": np.arange(40) % 4, **dict.fromkeys(reversed(more), np.zeros(40))}
    np.savez(tmp_path / "arrays.npz", **arrays)
    with pytest.raises(DataError, match=", ".join(more)):
        from_npz(tmp_path / "arrays.npz")


@pytest.mark.parametrize("order", "<>")
def test_arrays_of_either_byte_order_are_read(tmp_path, order):
    rng = np.random.default_rng(0)
    x, y = rng.random((40, 5)).astype(f"{order}f4"), rng.integers(0, 4, 40).astype(f"{order}i4")
    assert_read_alike(tmp_path, {"x": x, "y": y})
    in_file = Data.from_folder(tmp_path / "arrays").train.preview()
    for given in (x, np.load(tmp_path / "arrays" / "x.npy", mmap_mode="r")):
        (inputs,), targets = Data.from_arrays(given, y).train.preview()
        assert torch.equal(inputs, in_file[0][0])
        assert torch.equal(targets, in_file[1])


def assert_read_alike(tmp_path, arrays):
    """From a folder as from an npz file."""
    folder = write_arrays(tmp_path / "arrays", arrays)
    whole, mapped = from_npz(folder.with_suffix(".npz")), Data.from_folder(folder)
    for one, other in zip(whole.parts.values(), mapped.parts.values(), strict=True):
        rows = torch.arange(len(one)).flip(0)
        (a,), targets = one.batch(rows)
        (b,), others = other.batch(rows)
        assert torch.equal(a, b)
        assert torch.equal(targets, others)
        assert torch.equal(other.preview()[1], one.targets)


def test_a_mapped_array_is_cut_as_one_in_memory_is(tmp_path):
    x, y = np.random.default_rng(0).random((50, 3), dtype=np.float32), np.arange(50) % 3
    np.save(tmp_path / "x.npy", x)
    mapped = Data.from_arrays(np.load(tmp_path / "x.npy", mmap_mode="r"), y)
    for one, other in zip(Data.from_arrays(x, y).parts.values(), mapped.parts.values(), strict=True):
        batches = [Batches(part, batch_size=7, seed=2).at(5) for part in (one, other)]
        assert torch.equal(batches[0][0][0], batches[1][0][0])
        assert torch.equal(batches[0][1], batches[1][1])


def test_files_that_are_no_arrays_are_refused(tmp_path):
    folder = write_arrays(tmp_path / "a", {"x": np.zeros((9, 2)), "y": np.zeros(8)})
    with pytest.raises(DataError, match="9 inputs in x, but 8 targets in y"):
        Data.from_folder(folder)
    (folder / "y.npy").write_bytes(b"no array")
    with pytest.raises(StorageError, match=r"y\.npy: damaged, not a \.npy file of a plain array"):
        Data.from_folder(folder)
    np.save(folder / "y.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(StorageError, match=r"damaged, not a \.npy file of a plain array"):
        Data.from_folder(folder)
    folder = write_arrays(tmp_path / "b", {"x_test": np.zeros((9, 2))})
    with pytest.raises(DataError, match=r"b: holds x_test; expected x y, or x_train y_train"):
        Data.from_folder(folder)


LARGER = """
import resource, sys
import numpy as np, torch
import sklearn.model_selection  # loaded where samples are cut: its own memory is not the data's
from torch import nn
from l2l_nas import (AdamW, Batches, Candidate, Cosine, Data, LayerPool, ParamServer, Position, Problem, Relay,
                     TensorSpec, Trainer)
from l2l_nas.space.shapes import check_shapes

torch.set_num_threads(1)
width, limit = 1 << 14, 1 << 28
used = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + limit, used + limit))
if sys.argv[2] == "mapped":
    data = Data.from_folder(sys.argv[1])
else:
    data = Data.from_arrays(np.load(sys.argv[1] + "/x.npy"), np.load(sys.argv[1] + "/y.npy"))
assert sum(map(len, data.parts.values())) * width * 4 == 3 * limit
pool = LayerPool([Position("a", Candidate("a", lambda: nn.Linear(width, 2)))], inputs=TensorSpec((width,)))
problem = Problem(pool, data)
problem.check(check_shapes(pool))
relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu")
trainer = Trainer(relay, problem.measured_task, Batches(data.train, batch_size=64, seed=0), 32)
path = pool.architecture(["a"])
trainer.fit(lambda step: path, start=0, steps=120, schedule=Cosine(0.001, 120))
print(trainer.score(path, data.validation).values["accuracy"])
"""


@pytest.mark.slow
def test_a_data_set_of_three_times_a_memory_limit_trains_within_it(tmp_path):
    samples, width = 3 << 12, 1 << 14
    y = np.arange(samples) % 2
    x = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.float32, shape=(samples, width))
    x[:, 0] = y * 8 - 4  # the rest are zeros, which the file does not store
    x.flush()
    del x
    np.save(tmp_path / "y.npy", y)
    done = {
        kind: subprocess.run(
            [sys.executable, "-c", LARGER, str(tmp_path), kind],
            env=environment(),
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        for kind in ("mapped", "loaded")
    }
    assert done["mapped"].returncode == 0, done["mapped"].stderr
    assert float(done["mapped"].stdout) > 0.99
    assert "MemoryError" in done["loaded"].stderr or "allocate memory" in done["loaded"].stderr


def test_what_is_of_image_files_is_refused_for_arrays(tmp_path):
    write_arrays(tmp_path / "arrays", {"x": np.zeros((20, 1, 4, 4), np.float32), "y": np.arange(20) % 2})
    with pytest.raises(SettingError, match=r"holds .npy arrays: size, transform and workers are of image files"):
        Data.from_folder(tmp_path / "arrays", workers=2)


def test_images_of_more_than_8_bits_are_refused(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for index in range(12):
        array = np.full((4, 4), 1000 * index, dtype=np.uint16)
        Image.fromarray(array).save(tmp_path / "ab"[index % 2] / f"{index}.png")
    with pytest.raises(DataError, match=r"an image has the mode I;16, with more than 8 bits"):
        Data.from_folder(tmp_path).train.preview()


def test_one_gray_image_makes_no_folder_gray(tmp_path):
    write_images(tmp_path)
    with Image.open(tmp_path / "cat" / "0.png") as image:
        gray = image.convert("L")
    gray.save(tmp_path / "cat" / "0.png")
    assert Data.from_folder(tmp_path).train.preview()[0][0].shape[1:] == (3, 6, 5)
