"""The form of samples: what a data set gives for one becomes a pair of inputs and targets, all of them tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor

from l2l_nas.errors import DataError, user_code
from l2l_nas.relay.interface import Batch, each
from l2l_nas.training.samples import Loaded, as_target

Name = str | int
Columns = tuple[Name | tuple[Name, ...], Name | tuple[Name, ...]]


@dataclass(frozen=True)
class SampleForm:
    """How samples are read."""

    # names (of a dict) or places (of a tuple) of inputs and targets, such as `("image", "label")`, or
    # `(("tokens", "mask"), "label")` where there are several. None: samples are pairs.
    columns: Columns | None = None
    # makes a batch of a list of samples, as a `DataLoader`'s; None: tensors are stacked
    collate: Callable[[list[Any]], Any] | None = None
    transform: Callable[..., Any] | None = None  # of the inputs of each sample

    def sample(self, sample: object) -> object:
        """One sample as `batch` takes it, its inputs transformed."""
        if self.collate is not None:
            return sample
        inputs, targets = self._pair(sample, "the data set gives")
        if self.transform is not None:
            # images and arrays as they are, lists of numbers as tensors
            given = [_tensor(one) if isinstance(one, list) else one for one in _several(inputs)]
            with user_code("the transform", DataError):
                inputs = self.transform(*given)
        return _tensors(inputs), _tensors(targets)

    def batch(self, samples: Sequence[Any]) -> Loaded:
        """Inputs and targets of what `sample` gave; a DataError where samples differ in shape."""
        if self.collate is not None:
            with user_code("the DataLoader's collate_fn", DataError):
                made = self.collate(list(samples))
            inputs, targets = self._pair(made, "the DataLoader's collate_fn gives")
            return _tensors(inputs), _learned(_tensors(targets))
        return _stacked([inputs for inputs, _ in samples]), _learned(_stacked([targets for _, targets in samples]))

    def _pair(self, sample: Any, gives: str) -> tuple[object, object]:
        if self.columns is not None:
            try:
                inputs, targets = (_chosen(sample, names) for names in self.columns)
            except (KeyError, IndexError, TypeError):
                raise DataError(f"columns={self.columns!r}, but {gives} {_described(sample)}") from None
            return inputs, targets
        if isinstance(sample, Mapping):
            some = [repr(name) for name in list(sample)[:8]]
            names = some if len(some) > 1 else ["'image'", "'label'"]
            inputs = names[0] if len(names) == 2 else f"({', '.join(names[:-1])})"
            raise DataError(
                f"{gives} {_described(sample)}; say which of them are inputs and which are targets: "
                f"Data.from_dataset(..., columns=({inputs}, {names[-1]}))"
            )
        if isinstance(sample, tuple | list) and len(sample) == 2:
            return sample[0], sample[1]
        raise DataError(
            f"{gives} {_described(sample)}; expected a pair (input, target), with a tuple in place of one where there "
            "are several, or say which are which: Data.from_dataset(..., columns=((0, 1), 2))"
        )


def _chosen(sample: Any, names: Name | tuple[Name, ...]) -> object:
    return tuple(sample[name] for name in names) if isinstance(names, tuple | list) else sample[names]


def _tensors(value: object) -> Batch:
    return tuple(map(_tensor, _several(value)))


def _several(value: object) -> Sequence[object]:
    """What a tuple holds, or the one thing; a list of numbers is one thing."""
    return value if isinstance(value, tuple) or (isinstance(value, list) and not _is_numbers(value)) else (value,)


def _is_numbers(value: object) -> bool:
    return all(map(_is_numbers, value)) if isinstance(value, list) else isinstance(value, Number)


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    if isinstance(value, Number | np.generic) or (isinstance(value, list) and _is_numbers(value)):
        tensor = torch.as_tensor(value)
        return tensor.float() if tensor.is_floating_point() else tensor
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return torch.from_numpy(np.require(value, value.dtype.newbyteorder("="), ["C", "W"]))
    if type(value).__module__.partition(".")[0] == "PIL":
        return _image_tensor(value)
    raise DataError(
        f"a sample holds {_described(value)}; expected a tensor, array, number or image: make it one in the data "
        "set or its transform"
    )


def _image_tensor(image: Any) -> Tensor:
    """An image of PIL as float32 [channels, height, width] from 0 to 1: one channel if it is gray, three if not."""
    refuse_deep(image)
    array = np.array(image if image.mode in ("L", "RGB") else image.convert("L" if image.mode == "1" else "RGB"))
    tensor = torch.from_numpy(array).float().div_(255)
    return tensor.unsqueeze(0) if tensor.dim() == 2 else tensor.permute(2, 0, 1).contiguous()


def refuse_deep(image: Any) -> None:
    """Refuse an image of 16-bit or float pixels with a DataError."""
    if image.mode[:1] in ("I", "F"):
        raise DataError(
            f"an image has the mode {image.mode}, with more than 8 bits a pixel, which would be cut off; give arrays "
            "or tensors in float32 instead, such as by a Dataset of your own"
        )


def _stacked(samples: Sequence[Batch]) -> Batch:
    if len(set(map(len, samples))) > 1:
        raise DataError(f"samples of the data hold {min(map(len, samples))} and {max(map(len, samples))} tensors")
    found = []
    for tensors in zip(*samples, strict=True):
        kinds = {(tuple(tensor.shape), tensor.dtype) for tensor in tensors}
        if len(kinds) > 1:
            one, other = sorted((f"{list(shape)} {str(dtype).removeprefix('torch.')}" for shape, dtype in kinds))[:2]
            raise DataError(
                f"samples of the data differ: one is {one}, another {other}; resize or pad them in a transform, or "
                "give a DataLoader with a collate_fn"
            )
        found.append(torch.stack(tensors))
    return tuple(found)


def _learned(targets: Batch) -> Any:
    found = each(targets, as_target)
    return found[0] if len(found) == 1 else found


def _described(value: object) -> str:
    if isinstance(value, Mapping):
        names = [str(name) for name in value]
        return "dicts with " + ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
    if isinstance(value, tuple | list):
        return f"{len(value)} values (a {type(value).__name__})"
    if isinstance(value, Tensor):
        return f"a tensor of {list(value.shape)}"
    return "nothing (None)" if value is None else f"a {type(value).__name__}"
