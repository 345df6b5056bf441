"""A table like that of NAS-Bench-201, made up.

It suffices because the bench only reads values: all 15,625 cells, whose accuracy grows with the number of 3x3
convolutions, three seeds each that differ by less than one step.
"""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

from benchmarks.search.nas201 import DATASETS, OPERATIONS, Table
from l2l_nas.space.architecture import Architecture


def raw_table() -> dict[str, dict[str, Any]]:
    """As the package stores it: a cell's digits, then its figures by seed."""
    keys = ("".join(digits) for digits in itertools.product("01234", repeat=6))
    return {key: {"val_acc": [80.0 + key.count("3") + noise for noise in (-0.25, 0.0, 0.25)]} for key in keys}


def small_table() -> Table:
    """As the bench reads it."""
    return {
        Architecture(tuple(OPERATIONS[int(digit)] for digit in key)): cell["val_acc"]
        for key, cell in raw_table().items()
    }


def write_tables(folder: Path) -> None:
    """One for each data set."""
    folder.mkdir()
    for dataset in DATASETS:
        (folder / f"{dataset}.pkl").write_bytes(pickle.dumps(raw_table()))
