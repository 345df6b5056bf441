"""`report`: write a run's page again, from its folder alone."""

from __future__ import annotations

import os
from pathlib import Path

from l2l_nas.errors import SettingError, StorageError
from l2l_nas.files import remove_leftovers, write_atomically
from l2l_nas.nas.study.study import quiet_optuna
from l2l_nas.report.html.view import is_page
from l2l_nas.runs.folder import RunFolder, is_locked
from l2l_nas.runs.folder_settings import read_settings
from l2l_nas.runs.page import page_of
from l2l_nas.runs.saved import SavedRun
from l2l_nas.runs.settings import ReportConf
from l2l_nas.runs.terminal import open_terminal


def main(conf: ReportConf) -> None:
    """Write the page and say where it is."""
    if not conf.run:
        raise SettingError("name the run's folder: run=runs/...")
    quiet_optuna()
    root = Path(conf.run)
    if not root.is_dir():
        raise StorageError(f"{root}: no such folder")
    SavedRun(RunFolder(root)).refuse_none()
    if RunFolder(root).config.exists():
        read_settings(RunFolder(root).config)  # first, as it knows a run of version 0.1.0
    page = page_of(root, is_running=is_locked(root))
    path = Path(conf.out) if conf.out else RunFolder(root).report
    if path.is_dir():
        raise SettingError(f"out={path}: a folder; name the file, such as {path / 'report.html'}")
    if conf.out and os.path.lexists(path) and not is_page(path):
        raise StorageError(f"{path} is there already, and is no report; choose another file, or move it")
    remove_leftovers(path.parent)
    write_atomically(path, page)
    open_terminal().print(f"  report   {path}", soft_wrap=True)
