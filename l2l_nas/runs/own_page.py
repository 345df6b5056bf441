"""The page of a study that a loop of the user's own has filled, with `l2l_nas.suggest`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from l2l_nas.arguments import check_kind, check_path
from l2l_nas.errors import StorageError
from l2l_nas.files import make_folder, write_atomically
from l2l_nas.nas.study.reading import read_own_study
from l2l_nas.report.card import card_of
from l2l_nas.report.history import TRIALS, RunHistory
from l2l_nas.report.html.view import is_page, render_page
from l2l_nas.report.results import only_finite
from l2l_nas.report.summary import Summary
from l2l_nas.runs.origin import versions
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.shapes import check_shapes

if TYPE_CHECKING:
    import optuna


def write_page(study: optuna.Study, pool: LayerPool, path: Path | str = "report.html") -> Path:
    """Write the page of a study whose trials chose their architectures with `suggest`.

    It shows what the page of a run shows, as far as a study tells: trials, fronts, effects of candidates, and the best
    architectures. Numbers among a trial's user attributes are shown as its metrics, intermediate values as its curve.

    Args:
        study: of one to three objectives.
        pool: that `suggest` was given.
        path: of the page.

    Returns:
        The path.

    Raises:
        SettingError: an argument of another type, a study of more objectives, or of another pool.
        StorageError: the file cannot be written, or is something else than a page.

    Example:
        >>> study.optimize(lambda trial: train_and_score(l2l_nas.suggest(trial, pool)), n_trials=64)
        >>> l2l_nas.write_page(study, pool, "report.html")
    """
    check_kind("write_page: pool", pool, LayerPool, wanted="a LayerPool")
    path = check_path("write_page: path", path)
    goals, found = read_own_study(study, pool)
    records = only_finite(found, goals)
    spent = {TRIALS: sum(one.seconds for one in records)}
    history = RunHistory(card_of(pool, check_shapes(pool)), "finished", spent, versions())
    summary = Summary(
        study.study_name, str(path.parent), time.time(), "", history, goals, tuple(records), len(records), None,
        settings=(), resume="", seed="",
    )  # fmt: skip
    if os.path.lexists(path) and not is_page(path):
        raise StorageError(f"{path} is there already, and is no page; choose another file, or move it")
    make_folder(path.parent)
    write_atomically(path, render_page(summary))
    return path
