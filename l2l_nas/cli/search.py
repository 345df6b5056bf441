"""`search`: find an architecture, write everything about it into a folder, go on after an interruption."""

from __future__ import annotations

import sys
from dataclasses import asdict

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig
from rich.console import Console

from l2l_nas.cli.launch import reporting_errors, settings_of
from l2l_nas.cli.run_folder import MadeFolder, hydra_files, placed
from l2l_nas.cli.said import said_names
from l2l_nas.cli.sweep import run_of_sweep
from l2l_nas.nas.callback import Stopped
from l2l_nas.runs.command_line import resume_command
from l2l_nas.runs.groups import shipped
from l2l_nas.runs.inherit import go_on
from l2l_nas.runs.saved_config import own_names
from l2l_nas.runs.search import SearchRun
from l2l_nas.runs.settings import SearchConf
from l2l_nas.runs.terminal import open_terminal


@hydra.main(version_base="1.3", config_path=str(shipped("conf")), config_name="search")
def main(config: DictConfig) -> float | None:
    """One run, with exit code 2 for bad input and 130 when it was stopped; of a run of a sweep that fails, NaN."""
    MadeFolder.undo()
    about = HydraConfig.get()
    try:
        if about.mode == RunMode.MULTIRUN:
            return run_of_sweep(
                "search",
                about,
                lambda console, again: _prepared(
                    placed(settings_of(config), config), config, console, again=again
                ).go(),
            )
        conf: SearchConf = settings_of(config)
        with reporting_errors():
            conf = placed(conf, config)
        line = resume_command("search", conf.resume or conf.folder, own_names(asdict(conf)))
        with reporting_errors(line):
            return _prepared(conf, config, open_terminal(), again=line).go()
    except Stopped:
        sys.exit(130)


def _prepared(conf: SearchConf, config: DictConfig, console: Console, *, again: str) -> SearchRun:
    """The run, with the settings of its folder if it goes on."""
    given = said_names(conf, HydraConfig.get())
    before = go_on("search", conf, given=given) if conf.resume else None
    conf = before or conf
    # of a run that goes on they tell how it was started
    files = hydra_files(config) if before is None else {}
    return SearchRun(conf, console, again=again, said=given, files=files)
