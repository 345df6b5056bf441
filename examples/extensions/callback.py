"""A callback of your own: `callbacks=[examples/extensions/callback.py:Table]`.

Those for TensorBoard, Weights & Biases and MLflow are in `l2l_nas/report/loggers.py`.
"""

import csv
from collections.abc import Sequence
from typing import Any

from l2l_nas import Callback


class Table(Callback):
    """Writes every trial as a line of `trials.csv`: number, state, metrics, architecture."""

    def __init__(self, path: str = "trials.csv") -> None:
        self.path = path

    def trial(self, record: Any, records: Sequence[Any]) -> None:
        with open(self.path, "a", newline="") as file:
            metrics = " ".join(f"{name}={value:.6g}" for name, value in record.metrics.items())
            csv.writer(file).writerow([record.number, record.state, metrics, *record.architecture.choices])
