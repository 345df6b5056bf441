from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from l2l_nas import Data, TensorSpec
from l2l_nas.errors import DataError, SettingError, StorageError
from l2l_nas.training.data import Batches, Split, cluttered_digits, digits, from_npz, other_data
from l2l_nas.training.problem import check_part
from l2l_nas.training.samples import Samples


def numbered(samples: int = 20, classes: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(samples, dtype=torch.float32)[:, None], torch.arange(samples) % classes


def test_the_split_is_the_same_every_time_and_loses_nothing():
    first, second = (Data.from_arrays(*numbered(), validation_fraction=0.25, test_fraction=0.1) for _ in range(2))
    assert torch.equal(first.train.inputs[0], second.train.inputs[0])
    parts = (first.train, first.validation, first.test)
    assert tuple(map(len, parts)) == (13, 5, 2)
    together = torch.cat([part.inputs[0] for part in parts]).flatten()
    assert sorted(together.tolist()) == list(range(20))
    for split in parts:
        assert torch.equal(split.targets, split.inputs[0].flatten().long() % 2)


def test_a_test_part_is_the_same_whatever_the_share_of_validation():
    x, y = numbered(100)
    few, many = (Data.from_arrays(x, y, validation_fraction=fraction) for fraction in (0.1, 0.5))
    assert torch.equal(few.test.inputs[0], many.test.inputs[0])
    assert (len(few.validation), len(many.validation)) == (10, 50)


@pytest.mark.parametrize("fraction", [0.2, 0.3, 1 / 3])
def test_without_a_test_part_the_split_is_that_of_version_0_1_0(fraction):
    x, y = numbered(97, classes=3)
    data = Data.from_arrays(x, y, validation_fraction=fraction, test_fraction=0.0)
    train, validation = train_test_split(np.arange(97), test_size=fraction, random_state=0, stratify=y.numpy())
    assert data.test is None
    assert data.train.inputs[0].flatten().tolist() == train.tolist()
    assert data.validation.inputs[0].flatten().tolist() == validation.tolist()


def test_a_digest_tells_validation_from_training_and_leaves_the_test_part_out():
    x, y = numbered(40)
    data = Data.from_arrays(x, y)
    assert other_data(data.digest, data.digest) == ""
    changed = Split((data.train.inputs[0] + 1,), data.train.targets)
    assert other_data(data.digest, replace(data, validation=changed).digest) == "validation"
    assert other_data(data.digest, replace(data, train=changed).digest) == "training"
    other = replace(data, test=changed)
    assert other.digest == data.digest
    assert other.test_digest != data.test_digest != ""
    assert replace(data, test=None).test_digest == ""
    assert other_data(None, data.digest) == "validation"


def test_every_class_keeps_its_share():
    x, _ = numbered(100)
    y = (torch.arange(100) < 10).long()
    assert int(Data.from_arrays(x, y).validation.targets.sum()) == 2
    assert Data.from_arrays(x, torch.rand(100, generator=torch.Generator().manual_seed(0))).train.targets.dtype == (
        torch.float32
    )


def test_arrays_that_do_not_fit_are_refused():
    x, y = numbered()
    with pytest.raises(DataError, match="20 inputs in x, but 19 targets in y"):
        Data.from_arrays(x, y[:-1])
    with pytest.raises(DataError, match="cannot split 2 samples"):
        Data.from_arrays(x[:2], y[:2])
    for fraction in (0, 1, -1, float("nan")):
        with pytest.raises(SettingError, match="validation_fraction must"):
            Data.from_arrays(x, y, validation_fraction=fraction)
    for fraction in (1, -0.1, float("nan")):
        with pytest.raises(SettingError, match="test_fraction must"):
            Data.from_arrays(x, y, test_fraction=fraction)
    with pytest.raises(SettingError, match="leave no samples to train on"):
        Data.from_arrays(x, y, validation_fraction=0.5, test_fraction=0.5)


def test_targets_are_whole_numbers_that_int64_holds_floats_or_complex_ones():
    x = torch.zeros(100, 2)
    for given, found in (("uint64", "int64"), ("uint8", "int64"), ("float64", "float32"), ("complex128", "complex64")):
        data = Data.from_arrays(x, (np.arange(100) % 2).astype(given))
        assert data.train.targets.dtype is getattr(torch, found)
    for y in (np.full(100, 2**63, dtype=np.uint64), np.full(100, 2**64 - 1, dtype=np.uint64)):
        with pytest.raises(DataError, match=r"2\^63 or more"):
            Data.from_arrays(x, y)


def test_samples_with_gradients_are_taken_without_or_refused():
    x, y = numbered()
    data = Data.from_arrays(x.clone().requires_grad_(), y)
    assert torch.equal(data.train.inputs[0], Data.from_arrays(x, y).train.inputs[0])
    assert not data.train.inputs[0].requires_grad
    with pytest.raises(DataError, match="detach them"):
        Split((x.clone().requires_grad_(),), y)


def test_a_split_takes_arrays_and_lists_too():
    x, y = numbered()
    for given in (Split(x, y.tolist()), Split([x.numpy()], y.numpy())):
        assert torch.equal(given.inputs[0], x)
        assert torch.equal(given.batch(torch.arange(3))[1], y[:3])
    with pytest.raises(DataError, match="Split: targets takes a tensor"):
        Split((x,), ["a"] * len(x))


def test_the_split_of_the_digits_can_be_made_again_with_scikit_learn_alone():
    data = digits()
    bunch = load_digits()
    y = bunch.target
    rest, test = train_test_split(range(1797), test_size=360, random_state=0, stratify=y)
    train, validation = train_test_split(rest, test_size=360, random_state=0, stratify=y[rest])
    for split, chosen in ((data.train, train), (data.validation, validation), (data.test, test)):
        images = torch.from_numpy(bunch.images[chosen] / 16).float().unsqueeze(1)
        assert torch.equal(split.inputs[0], images)
        assert split.targets.tolist() == bunch.target[chosen].tolist()


def test_cluttered_digits_are_the_digits_of_each_part_among_pieces_of_others_and_always_the_same():
    data, plain = cluttered_digits(), digits()
    assert {name: tuple(split.inputs[0].shape) for name, split in data.parts.items()} == {
        "training": (4308, 1, 10, 10),
        "validation": (1440, 1, 10, 10),
        "test": (1440, 1, 10, 10),
    }
    # published figures and runs that are resumed depend on these very images
    assert (data.digest, data.test_digest) == ("5e5724f7c6f20190ad702294c73d6acb", "c3682b49b0e2c6aa")
    for name, split in data.parts.items():
        source = plain.parts[name]
        assert torch.equal(split.targets, source.targets.repeat(4))
        assert torch.equal(split.groups, torch.arange(len(source)).repeat(4))  # images of one digit
        assert float(split.inputs[0].min()) >= 0
        assert float(split.inputs[0].max()) <= 1
        spots = set()
        for index in range(0, len(split), 97):
            digit = source.inputs[0][index % len(source), 0]
            windows = split.inputs[0][index, 0].unfold(0, 8, 1).unfold(1, 8, 1)
            # where it is, no pixel is darker than the digit's
            fits = (windows >= digit).all(-1).all(-1)
            assert fits.any(), (name, index)
            spots.add(tuple(fits.nonzero()[0].tolist()))
        assert len(spots) > 4
    assert cluttered_digits(test_fraction=0).test is None
    with pytest.raises(SettingError, match="leave no samples to train on"):
        cluttered_digits(validation_fraction=0.5, test_fraction=0.5)


def test_an_npz_s_test_part_is_kept_apart_and_validation_is_cut_out_of_training(tmp_path):
    x, y = np.random.default_rng(0).random((20, 3), dtype=np.float32), np.arange(20) % 2
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x[:2] + 1, y_test=y[:2])
    data = from_npz(tmp_path / "a.npz", validation_fraction=0.25)
    assert data.test.inputs[0].numpy().tolist() == (x[:2] + 1).tolist()
    assert (len(data.train), len(data.validation), len(data.test)) == (15, 5, 2)
    both = torch.cat((data.train.inputs[0], data.validation.inputs[0])).numpy()
    assert sorted(map(tuple, both)) == sorted(map(tuple, x))
    assert data.train.targets.dtype == torch.int64


def test_an_npz_with_three_parts_is_taken_as_it_is(tmp_path):
    x, y = np.random.default_rng(0).random((6, 3), dtype=np.float32), np.arange(6)
    parts = {"train": slice(0, 3), "validation": slice(3, 5), "test": slice(5, 6)}
    arrays = {f"{letter}_{name}": array[rows] for name, rows in parts.items() for letter, array in (("x", x), ("y", y))}
    np.savez(tmp_path / "a.npz", **arrays)
    data = from_npz(tmp_path / "a.npz")
    for name, rows in parts.items():
        assert getattr(data, name).inputs[0].numpy().tolist() == x[rows].tolist()
        assert getattr(data, name).targets.tolist() == y[rows].tolist()
    np.savez(tmp_path / "b.npz", x_test=x, y_test=y)
    with pytest.raises(DataError, match=r"b.npz: holds x_test, y_test; expected x y, or x_train y_train \(and x_test"):
        from_npz(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", x_train=x, y_train=y % 2)
    assert [len(part) for part in from_npz(tmp_path / "c.npz", validation_fraction=0.4).parts.values()] == [3, 3]


@pytest.mark.parametrize(("shape", "becomes"), [((10, 4, 5), (1, 4, 5)), ((10, 4, 5, 3), (3, 4, 5)), ((10, 7), (7,))])
def test_bytes_become_images_from_0_to_1_with_channels_first(tmp_path, shape, becomes):
    x = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.savez_compressed(tmp_path / "a.npz", x=x, y=np.arange(10) % 2)
    data = from_npz(tmp_path / "a.npz", validation_fraction=0.3)
    got = torch.cat([part.inputs[0] for part in (data.train, data.validation, data.test)])
    assert tuple(got.shape[1:]) == becomes
    assert got.dtype == torch.float32
    assert float(got.max()) == pytest.approx(x.max() / 255)
    assert (len(data.train), len(data.validation), len(data.test)) == (5, 3, 2)


def test_bytes_with_channels_first_are_refused_as_they_would_be_read_as_others(tmp_path):
    x = np.zeros((10, 3, 12, 12), dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(10) % 2)
    with pytest.raises(DataError, match=r"a.npz: 'x' is uint8 \[10, 3, 12, 12\]; .* channels last: x.transpose"):
        from_npz(tmp_path / "a.npz")


def test_doubles_become_floats_and_bool_targets_classes(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.random.default_rng(0).random((10, 2)), y=np.arange(10) % 2 == 0)
    data = from_npz(tmp_path / "a.npz")
    assert data.train.inputs[0].dtype == torch.float32
    assert data.train.targets.dtype == torch.int64


def test_targets_that_do_not_count_are_told(tmp_path):
    y = np.where(np.arange(40) < 6, -100, np.arange(40) % 2)
    np.savez(tmp_path / "a.npz", x=np.zeros((40, 2), np.float32), y=y)
    with pytest.warns(UserWarning, match=r"a.npz: 'y': 6 of 40 targets are -100 and do not count"):
        data = from_npz(tmp_path / "a.npz")
    assert sum(len(part) for part in data.parts.values()) == 40


def test_a_file_that_is_no_npz_is_named(tmp_path):
    path = tmp_path / "a.npz"
    with pytest.raises(StorageError, match=r"a\.npz: no such file"):
        from_npz(path)
    np.savez_compressed(path, x=np.zeros((100, 100)), y=np.zeros(100))
    whole = bytearray(path.read_bytes())
    whole[200:260] = bytes(60)  # damage inside a member, its directory whole
    path.write_bytes(whole)
    with pytest.raises(StorageError, match="not an npz file of plain arrays"):
        from_npz(path)
    np.savez(path, x=np.array([{}, {}]), y=np.arange(2))
    with pytest.raises(StorageError, match="not an npz file of plain arrays"):
        from_npz(path)


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (torch.zeros(0, 2), "has no samples"),
        (torch.zeros(3, 3), r"is \[batch, 3\] float32, the pool takes \[batch, 2\] float32"),
        (torch.zeros(3, 2, dtype=torch.int64), r"is \[batch, 2\] int64"),
        (torch.zeros(4, 2), "has 4 inputs, but 3 targets"),
        (torch.tensor([[0, 1], [float("nan"), 0], [float("inf"), 0]]), "2 of 3 samples of the toy data hold NaN"),
    ],
)
def test_samples_that_cannot_be_trained_on_are_refused(inputs, says):
    targets = torch.zeros(0 if len(inputs) == 0 else 3, dtype=torch.int64)
    with pytest.raises(DataError, match=says):
        check_part(Split((inputs,), targets), (TensorSpec((2,)),), name="toy")
    with pytest.raises(DataError, match="has 2 inputs, the pool takes"):
        check_part(Split((inputs, inputs), torch.zeros(3)), (TensorSpec((2,)),), name="toy")


def test_every_epoch_is_a_permutation_and_another_one():
    x, y = numbered(20)
    batches = Batches(Split((x,), y), batch_size=5, seed=3)
    epochs = [[int(i) for step in range(e * 4, e * 4 + 4) for i in batches.at(step)[0][0]] for e in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(20))
    assert epochs[0] != epochs[1] != epochs[2]
    for step in (0, 7):
        (inputs,), targets = batches.at(step)
        assert torch.equal(targets, inputs.flatten().long() % 2)


def test_a_batch_depends_on_seed_and_step_alone():
    x, y = numbered(23)
    split = Split((x,), y)
    forward, backward = (Batches(split, batch_size=4, seed=1) for _ in range(2))
    order = {step: forward.at(step)[0][0].tolist() for step in range(17)}
    assert {step: backward.at(step)[0][0].tolist() for step in reversed(range(17))} == {
        step: order[step] for step in order
    }
    assert Batches(split, batch_size=4, seed=2).at(0)[0][0].tolist() != order[0]


def test_a_batch_is_never_larger_than_the_data_and_never_short():
    x, y = numbered(7)
    assert len(Batches(Split((x,), y), batch_size=100, seed=0).at(5)[1]) == 7
    assert {len(Batches(Split((x,), y), batch_size=3, seed=0).at(step)[1]) for step in range(9)} == {3}
    with pytest.raises(SettingError, match="at least 1, got 0"):
        Batches(Split((x,), y), batch_size=0, seed=0)


def test_what_samples_of_the_user_s_own_raise_names_them():
    class Own(Samples):
        def __len__(self):
            return 12

        def batch(self, rows, *, key=(0, 0)):
            if int(rows.max()) > 5:
                raise KeyError(int(rows.max()))
            return (torch.zeros(len(rows), 2),), torch.zeros(len(rows), dtype=torch.int64)

    part = Own()
    reads = {
        "at": lambda: [Batches(part, batch_size=4, seed=0).at(step) for step in range(3)],
        "ahead": lambda: list(Batches(part, batch_size=4, seed=0).ahead(0, 3)),
        "some": lambda: part.some(torch.arange(12)).batch(torch.arange(12)),
        "preview": lambda: part.preview(),
    }
    for name, read in reads.items():
        with pytest.raises(DataError, match=r"data set Own raised KeyError: \d+ \(test_data.py, line") as raised:
            read()
        assert isinstance(raised.value.__cause__, KeyError), name
