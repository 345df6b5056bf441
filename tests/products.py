"""Tests of many settings at once: every pair of values in `make test`, every combination where slow proofs run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any

import pytest


def every_pair(**axes: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize with the product of all axes; what is not needed to see each pair of values once is marked slow.

    Args:
        axes: names of arguments with their values, each shown by `str`, or as its function is called.
    """
    keys = list(product(*(range(len(values)) for values in axes.values())))
    quick = _cover(keys)
    params = []
    for key in keys:
        values = [values[index] for values, index in zip(axes.values(), key, strict=True)]
        marks = () if key in quick else pytest.mark.slow
        shown = "-".join(getattr(value, "__name__", None) or str(value) for value in values)
        params.append(pytest.param(*values, marks=marks, id=shown))
    return pytest.mark.parametrize(tuple(axes), params)


def _cover(keys: Sequence[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Keys that hold every pair, by always taking the key with the most pairs that no earlier one has."""
    pairs = {key: set(combinations(enumerate(key), 2)) for key in keys}
    missing = set().union(*pairs.values())
    found: set[tuple[int, ...]] = set()
    while missing:
        best = max(keys, key=lambda key: len(pairs[key] & missing))
        found.add(best)
        missing -= pairs[best]
    return found
