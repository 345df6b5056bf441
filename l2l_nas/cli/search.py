"""`search`: find an architecture, write everything about it into a folder, go on after an interruption."""

from __future__ import annotations

import sys
import traceback
from dataclasses import asdict
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from rich.console import Console

from l2l_nas.cli.jobs import take_interrupts
from l2l_nas.cli.launch import settings_of, told
from l2l_nas.cli.run_folder import HydraFiles, MadeFolder, hydra_files, placed
from l2l_nas.cli.said import said_names
from l2l_nas.errors import L2LError, what_raised, without_passwords
from l2l_nas.files import write_atomically
from l2l_nas.nas.callback import Stopped
from l2l_nas.runs.command_line import fill_in, resume_command
from l2l_nas.runs.explain import explain
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.groups import shipped
from l2l_nas.runs.inherit import go_on, resume_sweep
from l2l_nas.runs.saved_config import own_names
from l2l_nas.runs.search import Objects, SearchRun
from l2l_nas.runs.settings import SearchConf
from l2l_nas.runs.terminal import open_terminal


@hydra.main(version_base="1.3", config_path=str(shipped("conf")), config_name="search")
def main(config: DictConfig) -> float | None:
    """One run, with exit code 2 for bad input and 130 when it was stopped. In a sweep it raises what went wrong."""
    MadeFolder.undo()
    about = HydraConfig.get()
    conf: SearchConf = settings_of(config)
    with told():
        conf = placed(conf, config)
    try:
        if about.mode == RunMode.MULTIRUN:
            return _run_of_sweep(conf, config)
        line = resume_command("search", conf.resume or conf.folder, own_names(asdict(conf)))
        with told(line):
            return _prepared(conf, config, open_terminal(), again=line).go()
    except Stopped:
        sys.exit(130)


def _prepared(conf: SearchConf, config: DictConfig, console: Console, *, again: str) -> SearchRun:
    """The run, with the settings of its folder if it goes on."""
    given = said_names(conf, HydraConfig.get())
    if conf.resume:
        conf = go_on("search", conf, given=given) or conf
    files = HydraFiles(RunFolder(Path(conf.resume or conf.folder)), hydra_files(config))
    return SearchRun(conf, console, again=again, objects=Objects(callbacks=[files]), said=given)


def _run_of_sweep(conf: SearchConf, config: DictConfig) -> float:
    """A run in its folder below the sweep's. It raises plain errors: others do not cross from process to process."""
    about = HydraConfig.get()
    take_interrupts()
    # joblib's processes share one terminal
    console = open_terminal(quiet="joblib" in str(about.launcher._target_))
    try:
        again = resume_sweep("search", Path(about.sweep.dir))
        return _prepared(conf, config, console, again=again).go()
    except Stopped:
        raise
    except L2LError as error:
        if not any(Path(conf.folder).iterdir()):
            Path(conf.folder).rmdir()  # Hydra made it; nothing was written
        elif error.__cause__ is not None:
            raise L2LError(f"{error} (traceback in {_write_traceback(conf.folder)})") from None
        raise L2LError(fill_in(str(error), resume_sweep("search", Path(about.sweep.dir)))) from None
    except SystemExit as error:
        raise L2LError(f"your code {what_raised(error)}") from None
    except Exception as error:
        raise L2LError(f"{explain(error)} (traceback in {_write_traceback(conf.folder)})") from None


def _write_traceback(folder: str) -> Path:
    """Keep where the error that is handled now came from; its place."""
    path = Path(folder) / "error.txt"
    write_atomically(path, without_passwords(traceback.format_exc()))
    return path
