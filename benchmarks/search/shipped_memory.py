"""Writes the memory that comes with the program: what networks of the default space scored on three tasks.

    python -m benchmarks shipped_memory FOLDER

FOLDER has `fashion_mnist_6k.npz` and `cifar10_5k.npz`, made by `python -m benchmarks images`; the third task,
`cluttered_digits`, comes with the program. The scores are those that the bench `search_chain` measured: 100 random
networks, each trained from two first weights, scored on the validation part after a tenth of the steps and at the end.
The samples themselves are needed to tell later which runs have the same: digests of a default run's parts, and of those
that were measured; and hashes of the validation samples.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import RESULTS
from l2l_nas.errors import DataError, StorageError
from l2l_nas.files import read_json, write_atomically
from l2l_nas.nas.memory import EarlierTask, Memory, Remembered
from l2l_nas.runs.learn_from import SHIPPED_FILE
from l2l_nas.runs.locate import load_problem
from l2l_nas.runs.section_settings import DataConf, SpaceConf
from l2l_nas.training.overlap import RowHashes
from l2l_nas.training.problem import Problem

TASKS = ("cluttered_digits", "cifar10_5k", "fashion_mnist_6k")
_MEASURED = 0.25  # shares of validation and test of the bench
_MOST_ROWS = 256  # hashes of each task: a twentieth of what its scores take


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("images", type=Path, help="folder of the .npz files")
    parser.add_argument("--out", type=Path, default=SHIPPED_FILE, help="file to write; by default that of the package")


def main(options: argparse.Namespace) -> None:
    """Write it."""
    tasks, same, rows = [], {}, {}
    for name in TASKS:
        source = str(options.images / f"{name}.npz") if name != TASKS[0] else name
        task, same[name], chosen_by = task_of(name, source, read_json(RESULTS / f"search_chain_{name}.json"))
        tasks.append(task)
        rows[name] = chosen_by.to_json()
    content = {**Memory(tuple(tasks)).to_json(), "same_data": same, "validation_rows": rows}
    write_atomically(options.out, json.dumps(content, separators=(",", ":")) + "\n")
    print(f"{options.out}: {', '.join(f'{one.name} {len(one.networks)} scores' for one in tasks)}")


def task_of(name: str, source: str, result: Any) -> tuple[EarlierTask, list[str], RowHashes]:
    """An earlier task, digests of runs on the same data, and hashes of the samples that its scores are of.

    Raises:
        DataError: these are not the data that were measured.
        StorageError: the result is of another space.
    """
    problem, default = _problem(source), _problem(source).data
    measured = _problem(source, _MEASURED).data
    if result["table"]["data"] != measured.digest + measured.test_digest:
        raise DataError(f"{source}: not the data that {name} was measured on; make it anew by `images`")
    positions = [position.name for position in problem.pool.positions]
    metric, steps = result["metric"], result["table"]["recipe"]["steps"]
    ends = {result["table"]["recipe"]["looks"][0] / steps: "trial", 1.0: "validation"}
    networks = []
    for index, choices in enumerate(result["architectures"]):
        names = choices.split()
        if len(names) != len(positions):
            raise StorageError(f"search_chain_{name}.json: networks of another space; measure it again")
        params = dict(zip(positions, names, strict=True))
        for share, stage in ends.items():
            networks += [Remembered(params, round(share, 4), {metric: run[index]}) for run in result["stages"][stage]]
    same = {digest for data in (default, measured) for digest in (data.digest, data.test_digest)}
    rows = RowHashes.of(measured.validation, most=_MOST_ROWS)
    return EarlierTask(name, default.digest, tuple(networks)), sorted(same), rows


def _problem(source: str, fraction: float = DataConf().validation_fraction) -> Problem:
    conf = DataConf(source=source, validation_fraction=fraction, test_fraction=fraction)
    return load_problem(SpaceConf().pool, {}, **asdict(conf))
