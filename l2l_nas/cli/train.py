"""`train`: one architecture by itself, from scratch or from a run's weights, with an exact resume."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rich.console import Console

from l2l_nas.runs.settings import RetrainConf
from l2l_nas.runs.train import TrainRun


def prepared(
    conf: RetrainConf, *, given: Collection[str], files: Mapping[str, str], console: Console, again: str
) -> TrainRun:
    """The training; see `TrainRun`."""
    return TrainRun(conf, given=given, files=files, console=console, again=again)
