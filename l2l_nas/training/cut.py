"""Cuts samples in three parts, the same way every time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from l2l_nas.arguments import check_number
from l2l_nas.errors import DataError, SettingError


def shares_of(splits: Sequence[float]) -> list[float]:
    """Shares of training, validation and maybe test, in their ratio; their sum is finite.

    Raises:
        SettingError: not two or three numbers, such as `(949, 50, 1)`.
    """
    shares = list(splits)
    is_share = all(isinstance(share, int | float) and 0 <= share < math.inf for share in shares)
    if not 2 <= len(shares) <= 3 or not is_share or not shares[0] or not shares[1]:
        raise SettingError(
            f"data.splits are shares of training, validation and test, such as [949,50,1], got {shares}; the "
            "first two are above 0"
        )
    return shares if sum(shares) < math.inf else [share / max(shares) for share in shares]


def check_fractions(validation_fraction: float, test_fraction: float) -> None:
    """Shares of the validation and the test part.

    Raises:
        SettingError: one is out of range, or they leave nothing to train on.
    """
    check_number("validation_fraction", validation_fraction)
    check_number("test_fraction", test_fraction)
    if not 0 < validation_fraction < 1:
        raise SettingError(f"validation_fraction must lie between 0 and 1, got {validation_fraction}")
    if not 0 <= test_fraction < 1:
        raise SettingError(f"test_fraction must lie between 0 and 1, got {test_fraction}; 0: no test part")
    if not validation_fraction + test_fraction < 1:
        raise SettingError(
            f"validation_fraction {validation_fraction} and test_fraction {test_fraction} leave no samples to "
            "train on; together they must be below 1"
        )


def cut(
    count: int, *, validation_fraction: float, test_fraction: float, classes: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of the training, the validation and the test part.

    The test samples are drawn first, so that they stay the same whatever the share of validation.

    Args:
        classes: of each sample, where every class keeps its share.

    Raises:
        SettingError: a fraction out of range, or fractions that leave nothing to train on.
        DataError: there are too few samples.
    """
    check_fractions(validation_fraction, test_fraction)
    rest, parts = np.arange(count), []
    for fraction in (test_fraction, validation_fraction):
        chosen = rest[:0]
        if fraction:
            rest, chosen = _cut(rest, math.ceil(fraction * count), classes)
        parts.append(chosen)
    return rest, parts[1], parts[0]


def _cut(rest: np.ndarray, size: int, classes: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The samples without `size` of them, and these: drawn by scikit-learn, every class by its share."""
    from sklearn.model_selection import train_test_split  # takes two seconds, and data that comes in parts needs it not

    by = None if classes is None else classes[rest]
    try:
        rest, chosen = train_test_split(rest, test_size=size, random_state=0, stratify=by)
    except ValueError as error:
        why = str(error) if by is None or by.ndim > 1 else _why_not(by)
        raise DataError(f"cannot split {len(rest)} samples: {why}") from None
    return rest, chosen


def _why_not(classes: np.ndarray) -> str:
    """What keeps every class from having its share of two parts."""
    names, counts = np.unique(classes, return_counts=True)
    few = names[counts < 2]
    why = f"{len(names)} classes need as many samples in each part"
    if len(few):
        shown = ", ".join(map(str, few[:5])) + ", ..." * (len(few) > 5)
        why = f"of {len(names)} classes {len(few)} have too few samples to be in each part ({shown})"
    return f"{why}; add samples, leave classes out, or give the parts yourself"


def classes_of(targets: np.ndarray, stratify: bool | None = None) -> np.ndarray | None:
    """The targets themselves if every class is to keep its share: by default integers of two values or more."""
    by_class = targets.dtype.kind not in "fc" and targets.ndim == 1 if stratify is None else stratify
    return targets if by_class and len(np.unique(targets)) > 1 else None
