"""Data in three parts: scikit-learn's digits by default, the user's own arrays and data sets, files and folders."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from l2l_nas.arguments import check_count, check_function, check_kind, check_list, check_path, of_argument, shown
from l2l_nas.contents.arrays import map_npy, read_npz
from l2l_nas.errors import DataError, SettingError
from l2l_nas.relay.interface import as_samples
from l2l_nas.training.cut import check_fractions, classes_of, cut
from l2l_nas.training.dataset import DatasetSamples, SampleSource
from l2l_nas.training.folder import image_parts
from l2l_nas.training.form import Columns, SampleForm
from l2l_nas.training.samples import Loaded, Mapped, Samples, Split, Wanted, as_target, read, tensor_of
from l2l_nas.training.task import IGNORED

# how the names of arrays of parts end
_ENDS = ("_train", "_validation", "_test")
_Maker = Callable[[np.ndarray, np.ndarray], Samples]  # of inputs and targets
_Pair = tuple[float, float]  # shares of validation and test
# `cluttered_digits`: pixels of a side of an image and of a piece, and how many pieces, and images of each digit
_CANVAS, _PIECE, _PIECES, _COPIES = 10, 3, 2, 4


@dataclass(frozen=True)
class Data:
    """Samples in three parts.

    Args:
        train: what weights are trained on, and BatchNorm's statistics measured on.
        validation: what a search selects on.
        test: what it never sees: measured once for each network that is reported. None: nothing is held out.
    """

    train: Samples
    validation: Samples
    test: Samples | None = None

    def __post_init__(self) -> None:
        for name, part in (("train", self.train), ("validation", self.validation), ("test", self.test)):
            if not isinstance(part, Samples) and (part is not None or name != "test"):
                raise DataError(
                    f"Data: {name} is {type(part).__name__}; write Split(inputs, targets) for tensors, or "
                    "Data.from_dataset(train, validation, test) for data sets and loaders"
                )

    @property
    def parts(self) -> dict[str, Samples]:
        test = {} if self.test is None else {"test": self.test}
        return {"training": self.train, "validation": self.validation, **test}

    @property
    def digest(self) -> str:
        """Hashes of the validation samples, then of the training samples, 16 hexadecimal digits each.

        A score is one of these samples after training on those: with others of either, scores cannot be compared. The
        test part is not in it, since no score that a search compares depends on it. Of a part that is not in memory,
        the number of samples and a few hundred of them are hashed. Short mini-batches make another training.
        """
        trained = self.train.digest
        if not self.train.drops_last:
            trained = hashlib.sha256(f"{trained} to the last sample".encode()).hexdigest()[:16]
        return self.validation.digest + trained

    @property
    def test_digest(self) -> str:
        """A hash of the test samples; empty where there are none."""
        return "" if self.test is None else self.test.digest

    def close(self) -> None:
        for part in self.parts.values():
            part.close()

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
        if stratify is not None:
            check_kind("stratify", stratify, bool, wanted="True, False or None")
        if isinstance(x, np.memmap) and x.ndim:
            known = np.asarray(y)
            whole: Samples = Mapped(x, known, as_inputs=tensor_of)
        else:
            given = ((name, as_samples(f"Data.from_arrays: {name}", one)) for name, one in (("x", x), ("y", y)))
            inputs, targets = (tensor.detach() for _, tensor in given)
            whole, known = _in_memory(inputs, targets), targets.numpy()
        return cls._cut(whole, classes_of(known, stratify), validation_fraction, test_fraction)

    @classmethod
    def _cut(cls, whole: Samples, classes: np.ndarray | None, validation_fraction: float, test_fraction: float) -> Data:
        rows = cut(len(whole), validation_fraction=validation_fraction, test_fraction=test_fraction, classes=classes)
        return cls._of([whole.some(torch.from_numpy(chosen)) for chosen in rows])

    @classmethod
    def _of(cls, parts: Sequence[Samples]) -> Data:
        train, validation, test = parts
        return cls(train, validation, test if len(test) else None)

    @classmethod
    def from_dataset(
        cls,
        train: object,
        validation: object = None,
        test: object = None,
        *,
        columns: Columns | None = None,
        transform: Callable[..., object] | None = None,
        length: int | tuple[int | None, ...] | None = None,
        validation_fraction: float = 0.2,
        test_fraction: float = 0.2,
    ) -> Data:
        """Data sets as PyTorch users have them: a `Dataset`, an `IterableDataset`, a Hugging Face one, or a list.

        A `DataLoader` stands for its data set, with its `collate_fn`, `num_workers`, `worker_init_fn`,
        `multiprocessing_context` and `drop_last`. Batches are drawn anew, so that a search can be resumed: its
        `batch_size` and `shuffle` have no effect.

        A sample is a pair of inputs and targets, each a tensor, an array, a number, an image of PIL or a tuple of such.
        What the data set and `transform` draw from the generators of Python, numpy and torch follows from the seed, the
        step and the sample, so that it is the same after a resume, in whatever process. See [Note: keys].

        Args:
            train: training samples. Without `validation`, they are cut in three, which augmented ones cannot be.
            validation, test: likewise.
            columns: names of inputs and of targets where samples are dicts, such as `("image", "label")` or
                `(("tokens", "mask"), "label")`; places where they are tuples.
            transform: of the inputs of a training sample, such as augmentation.
            length: samples of a pass of an iterable `train` that has no `__len__`; a tuple for all parts in turn.
            validation_fraction, test_fraction: as `from_arrays`.

        Raises:
            DataError: one is no data set, its samples are no pairs, or an iterable or random one is to be cut.
            SettingError: fractions as in `from_arrays`.
        """
        _check_form(columns, transform)
        check_fractions(validation_fraction, test_fraction)
        for one in length if isinstance(length, tuple) else (length,):
            if one is not None:
                check_count("length", one, least=1)
        with of_argument("train"):
            source = SampleSource.of(train, SampleForm(columns, transform=transform))
        lengths = (*(length if isinstance(length, tuple) else (length,)), None, None)
        if validation is None and test is not None:
            raise DataError("test= wants validation= beside it: a search chooses by samples that the test part lacks")
        if validation is not None:
            with of_argument("validation"):
                measured = SampleSource.of(validation, SampleForm(columns)).samples(lengths[1])
            with of_argument("test"):
                tested = None if test is None else SampleSource.of(test, SampleForm(columns)).samples(lengths[2])
            with of_argument("train"):
                return cls(source.samples(lengths[0]), measured, tested)
        if source.is_stream:
            raise DataError(
                f"{type(source.dataset).__name__} has an order of its own and cannot be cut in three; write "
                "Data.from_dataset(train, validation, test)"
            )
        plain = replace(source, form=replace(source.form, transform=None))
        with of_argument("train"):
            if transform is not None:
                source.samples()
            plain.samples(may_vary=False)
            rows = cut(len(source.dataset), validation_fraction=validation_fraction, test_fraction=test_fraction)
        return cls._of([DatasetSamples(one, rows=some) for one, some in zip((source, plain, plain), rows, strict=True)])

    @classmethod
    def from_folder(
        cls,
        folder: Path | str,
        *,
        size: tuple[int, int] | None = None,
        transform: Callable[..., object] | None = None,
        workers: int = 0,
        validation_fraction: float = 0.2,
        test_fraction: float = 0.2,
    ) -> Data:
        """Images in files, a folder for each class; or arrays in .npy files, which may be larger than memory.

        `CLASS/*.jpg` is cut in three. `train/CLASS/*.jpg` may stand beside `validation` and `test`. So may `x.npy` and
        `y.npy`, or `x_train.npy`, `y_train.npy` and the like, as `from_npz` reads them.

        Args:
            folder: where.
            size: height and width that images are resized to; None: all have one size.
            transform: of a training image of PIL; its result is an image, an array or a tensor.
            workers: processes that read images ahead.
            validation_fraction, test_fraction: as `from_arrays`, of what the folder does not have.

        Raises:
            StorageError: no such folder, or a file that cannot be read.
            DataError: no images or arrays, or images of several sizes.
            SettingError: fractions out of range, or the package pillow is missing.
        """
        folder, fractions = check_path("Data.from_folder: folder", folder), (validation_fraction, test_fraction)
        _check_form(None, transform)
        check_fractions(*fractions)
        check_count("workers", workers, most=4096)
        if size is not None and len(check_list("size", size, of=Integral, wanted="height and width")) != 2:
            raise SettingError(f"size takes a height and a width in pixels, got {size!r}")
        if has_arrays(folder):
            if size is not None or transform is not None or workers:
                raise SettingError(f"{folder} holds .npy arrays: size, transform and workers are of image files")
            files = {path.stem: path for path in folder.glob("*.npy")}
            mapped = partial(Mapped, as_inputs=_images_of)
            return _of_arrays(files, lambda name: map_npy(files[name]), mapped, place=folder, fractions=fractions)
        parts = image_parts(folder, size=size, transform=transform, workers=workers, fractions=fractions)
        return cls(parts["train"], parts["validation"], parts.get("test"))


def _check_form(columns: object, transform: object) -> None:
    if columns is not None and (not isinstance(columns, tuple | list) or len(columns) != 2):
        raise SettingError(f'columns takes a pair, such as ("image", "label"), got {shown(columns)}')
    if transform is not None:
        check_function("transform", transform)


def other_data(before: object, now: str) -> str:
    """What differs between two data sets, by their digests: "validation", "training", or nothing."""
    known = before if isinstance(before, str) else ""
    if known[:16] != now[:16]:
        return "validation"
    return "" if known == now else "training"


def digits(*, validation_fraction: float = 0.2, test_fraction: float = 0.2) -> Data:
    """scikit-learn's digits: 1,797 images of 8x8 as [1, 8, 8] from 0 to 1, ten classes.

    The split is scikit-learn's own, so that it can be made again without this library:
    `rest, test = train_test_split(range(1797), test_size=360, random_state=0, stratify=y)`, then
    `train_test_split(rest, test_size=360, random_state=0, stratify=y[rest])` for training and validation.
    """
    from sklearn.datasets import load_digits  # takes two seconds, and other data needs it not

    bunch = load_digits()
    x = torch.from_numpy(bunch.images).float().div_(16).unsqueeze(1)
    return Data.from_arrays(x, bunch.target, validation_fraction=validation_fraction, test_fraction=test_fraction)


def cluttered_digits(*, validation_fraction: float = 0.2, test_fraction: float = 0.2) -> Data:
    """scikit-learn's digits somewhere on a canvas among pieces of others: 7,188 images [1, 10, 10] from 0 to 1.

    Each digit of each part of `digits` comes four times, at random places, with two pieces of 3x3 pixels of random
    digits of its part; where two things overlap, the brighter pixel is seen. Drawn by numpy's PCG64, always the same.
    The four images of a digit are a group, which standard errors count as one.
    The task is that of cluttered translated MNIST (Mnih et al., arXiv 1406.6247, section 4.2), made smaller.

    Raises:
        SettingError: fractions out of range.
    """
    data = digits(validation_fraction=validation_fraction, test_fraction=test_fraction)
    parts = {name: _cluttered(part.preview(), seed=place) for place, (name, part) in enumerate(data.parts.items())}
    return Data(parts["training"], parts["validation"], parts.get("test"))


def _cluttered(whole: Loaded, *, seed: int) -> Split:
    (inputs,), targets = whole
    images, generator = inputs[:, 0].numpy(), np.random.Generator(np.random.PCG64(seed))
    size, count = images.shape[-1], _COPIES * len(images)
    made = np.zeros((count, 1, _CANVAS, _CANVAS), dtype=np.float32)
    # of each image: the pieces' digits; where each piece is cut out, and where it is put; where the digit is put
    piece_bounds = [size - _PIECE + 1] * 2 + [_CANVAS - _PIECE + 1] * 2
    bounds = [len(images)] * _PIECES + piece_bounds * _PIECES + [_CANVAS - size + 1] * 2
    drawn = generator.integers(np.tile(bounds, (count, 1)))
    every = np.arange(count)[:, None, None]

    def put(squares: np.ndarray, top: np.ndarray, left: np.ndarray) -> None:
        place = (every, 0, *_square(top, left, squares.shape[-1]))
        made[place] = np.maximum(made[place], squares)

    for number in range(_PIECES):
        start = _PIECES + len(piece_bounds) * number
        from_top, from_left, top, left = drawn[:, start : start + len(piece_bounds)].T
        put(images[drawn[:, number, None, None], *_square(from_top, from_left, _PIECE)], top, left)
    put(np.tile(images, (_COPIES, 1, 1)), *drawn[:, -2:].T)
    groups = torch.arange(len(images)).repeat(_COPIES)
    return Split((torch.from_numpy(made),), targets.repeat(_COPIES), groups)


def _square(top: np.ndarray, left: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of rows and of columns of a square in each image."""
    reach = np.arange(size)
    return top[:, None, None] + reach[:, None], left[:, None, None] + reach


def from_npz(path: Path, *, validation_fraction: float = 0.2, test_fraction: float = 0.2) -> Data:
    """An npz file with `x` and `y`, to be cut in three; or with `x_train y_train` and maybe those of other parts.

    The test part is `x_test y_test`. What is selected on is `x_validation y_validation` where they are there, and cut
    out of `x_train` where they are not.

    Images as uint8 [samples, height, width] or with channels last become float32 [channels, height, width] from 0 to 1.

    Raises:
        StorageError: no such file, or not an npz.
        DataError: arrays are missing, or are there that nothing would use.
    """
    arrays = read_npz(path)
    fractions = validation_fraction, test_fraction
    return _of_arrays(arrays, arrays.__getitem__, _images_in_memory, place=path, fractions=fractions)


def _images_in_memory(inputs: np.ndarray, targets: np.ndarray) -> Split:
    return _in_memory(_images_of(inputs), tensor_of(targets))


def _in_memory(inputs: Tensor, targets: Tensor) -> Split:
    if len(inputs) != len(targets):
        raise DataError(f"{len(inputs)} inputs in x, but {len(targets)} targets in y")
    return Split((inputs,), as_target(targets))


def _of_arrays(
    names: Collection[str], read: Callable[[str], np.ndarray], samples: _Maker, *, place: Path, fractions: _Pair
) -> Data:
    """Arrays `x` and `y`, or `x_train` and `y_train` and maybe those of other parts. Raises DataError: they are not."""
    ends = [""] if {"x", "y"} <= set(names) else [end for end in _ENDS if {f"x{end}", f"y{end}"} <= set(names)]
    if not {"", "_train"} & set(ends):
        raise DataError(
            f"{place}: holds {', '.join(sorted(names))}; expected x y, or x_train y_train (and x_test y_test, "
            "x_validation y_validation, if you have them)"
        )
    used = sorted(f"{kind}{end}" for kind in "xy" for end in ends)
    if left := sorted(set(names) - set(used)):
        raise DataError(
            f"{place}: {', '.join(used)} are used, and {', '.join(left)} would not be; leave that out, or name "
            "arrays x_train y_train x_test y_test x_validation y_validation"
        )
    arrays = {end: [_numbers(read(f"{kind}{end}"), f"{place}: '{kind}{end}'") for kind in "xy"] for end in ends}
    for end, (_, targets) in arrays.items():
        _tell_of_ignored(targets, f"{place}: 'y{end}'")
    parts = {end: samples(*pair) for end, pair in arrays.items()}
    if "_validation" in parts:
        return Data(parts["_train"], parts["_validation"], parts.get("_test"))
    first = ends[0]
    found = Data._cut(parts[first], classes_of(arrays[first][1]), fractions[0], 0.0 if first else fractions[1])
    return replace(found, test=parts.get("_test", found.test))


def _tell_of_ignored(targets: np.ndarray, place: str) -> None:
    """Say how many samples have a class that does not count, which may be a mistake."""
    count = int((targets == IGNORED).sum()) if targets.ndim == 1 and targets.dtype.kind == "i" else 0
    if count:
        warnings.warn(f"{place}: {count} of {len(targets)} targets are {IGNORED} and do not count", stacklevel=4)


def has_arrays(folder: Path) -> bool:
    """Whether .npy files lie in it, so that it is no folder of images."""
    return any(folder.glob("*.npy"))


def _numbers(array: np.ndarray, place: str) -> np.ndarray:
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8 or array.ndim == 0:
        raise DataError(f"{place} is {array.dtype} {list(array.shape)}; expected numbers [samples, ...]")
    if array.dtype == np.uint8 and array.ndim == 4 and array.shape[1] in (1, 3, 4) and array.shape[3] > 4:
        raise DataError(
            f"{place} is uint8 {list(array.shape)}; images of uint8 have their channels last: x.transpose(0, 2, 3, 1)"
        )
    return array


def _images_of(array: np.ndarray) -> Tensor:
    """Images as uint8 become float32 [images, channels, height, width] from 0 to 1; other numbers stay."""
    tensor = tensor_of(array)
    if tensor.dtype != torch.uint8:
        return tensor.float() if tensor.is_floating_point() else tensor
    tensor = tensor.float().div_(255)
    if tensor.dim() == 3:
        return tensor.unsqueeze(1)
    return tensor.permute(0, 3, 1, 2).contiguous() if tensor.dim() == 4 else tensor


class Batches:
    """Mini-batches of a part in an order that depends on the seed alone: batch `step` is the same after a resume.

    Every epoch is a new permutation, or the data set's own order where it has one. Its last samples that do not fill a
    mini-batch are a short one, or are left for other epochs where the part says so (`Samples.drops_last`). A short
    mini-batch is a step like others: its loss is the mean over its own samples.

    Args:
        part: such as `Data.train`.
        batch_size: samples of a mini-batch; all of them where there are fewer.
        seed: of the order, at least 0.

    Raises:
        DataError: a part without samples.
        SettingError: an argument of another type, or out of range.
    """

    def __init__(self, part: Samples, *, batch_size: int, seed: int) -> None:
        check_kind("Batches: part", part, Samples, wanted="Samples, such as Data.train")
        if not len(part):
            raise DataError("Batches: part has no samples")
        check_count("Batches: seed", seed)
        self.part = part
        self._size = min(check_count("train.batch_size", batch_size, least=1), len(part))
        self._seed = seed
        self._per_epoch = len(part) // self._size if part.drops_last else -(-len(part) // self._size)
        self._epoch = -1
        self._order = torch.empty(0, dtype=torch.int64)

    @property
    def batch_size(self) -> int:
        """Samples of a mini-batch that is not short."""
        return self._size

    def at(self, step: int) -> Loaded:
        """Inputs and targets of a step."""
        rows, key = self.wanted(step)
        return read(self.part, rows, key=key)

    def ahead(self, start: int, steps: int) -> Iterator[Loaded]:
        """What `at` gives for so many steps, loaded ahead where the data set has workers."""
        check_count("Batches.ahead: start", start)
        check_count("Batches.ahead: steps", steps)
        return self.part.batches(map(self.wanted, range(start, start + steps)))

    def sizes(self, start: int, steps: int) -> set[int]:
        """The numbers of samples that mini-batches have in these steps."""
        check_count("Batches.sizes: start", start)
        check_count("Batches.sizes: steps", steps)
        short = 0 if self.part.drops_last else len(self.part) % self._size
        num_short = (start + steps) // self._per_epoch - start // self._per_epoch if short else 0
        return ({short} if num_short else set()) | ({self._size} if num_short < steps else set())

    def wanted(self, step: int) -> Wanted:
        """The rows of a step, and the key of their random numbers."""
        check_count("Batches.wanted: step", step)
        epoch, place = divmod(step, self._per_epoch)
        first = place * self._size
        if self.part.is_sequential:  # its random numbers go through a pass
            if self.part.drops_last:
                # what does not fill a mini-batch is left at the end of one pass and at the beginning of the next
                first += len(self.part) % self._size * (epoch % 2)
            return torch.arange(first, min(first + self._size, len(self.part))), (self._seed, epoch)
        if epoch != self._epoch:
            generator = np.random.default_rng([self._seed, epoch])
            self._order = torch.from_numpy(generator.permutation(len(self.part)))
            self._epoch = epoch
        return self._order[first : first + self._size], (self._seed, step)
