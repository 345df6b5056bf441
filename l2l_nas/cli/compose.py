"""A command's settings, composed as Hydra composes them, and the command's work with them.

A single run is composed by Hydra's compose API: nothing is made or written before all is checked, and errors come as
they are raised. Hydra's own `main` is for sweeps (`-m`) and for what prints settings (`--cfg`, `--info`).
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra import compose, version
from hydra._internal.callbacks import Callbacks
from hydra._internal.hydra import Hydra
from hydra._internal.utils import _run_hydra, create_config_search_path, get_args_parser
from hydra.conf import HydraConf
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, configure_log, env_override
from hydra.errors import SearchPathException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from rich.console import Console

from l2l_nas.cli.words import config_folders, two_folders
from l2l_nas.errors import SettingError, StorageError
from l2l_nas.nas.callback import Stopped
from l2l_nas.runs.command_line import resume_command
from l2l_nas.runs.fields import check_bounds
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.folder_settings import own_settings
from l2l_nas.runs.groups import shipped
from l2l_nas.runs.ranks import RunRanks
from l2l_nas.runs.resume import given_settings
from l2l_nas.runs.settings import SearchConf
from l2l_nas.runs.terminal import open_terminal

_VERSION = "1.3"  # of Hydra, whose behaviour is wanted


def run(command: str, args: Namespace, ranks: RunRanks | None = None) -> None:
    """Do what the words of a command line ask for, where that is one run.

    Args:
        ranks: see `launch`.
    """
    with _composed(command, args) as config:
        if config.hydra.mode != RunMode.MULTIRUN:  # which a config file may say
            return _run(command, config, ranks)
        if ranks is not None:
            raise SettingError("several ranks do one run: start a sweep without torchrun")
    from l2l_nas.cli.sweep import sweeping

    with sweeping(command, args.overrides):
        return run_by_hydra(command, args)


def is_for_hydra(args: Namespace) -> bool:
    """Whether flags ask for what Hydra's `main` does: print settings, or take configs from somewhere else."""
    return bool(args.cfg or args.info or args.hydra_help or args.resolve or args.config_path)


def run_by_hydra(command: str, args: Namespace) -> None:
    """The same as Hydra's `main` does it."""
    # Hydra would print a traceback and exit with 1; this way its errors come to the caller
    os.environ["HYDRA_FULL_ERROR"] = "1"
    version.setbase(_VERSION)
    _run_hydra(
        args=args,
        args_parser=get_args_parser(),
        task_function=_task(command),
        config_path=str(shipped("conf")),
        config_name=command,
    )


def _task(command: str) -> Callable[[DictConfig], Any]:
    def task(config: DictConfig) -> Any:
        return work(command, config)

    task.__module__ = f"l2l_nas.cli.{command}"  # Hydra names jobs by it
    return task


@contextlib.contextmanager
def _composed(command: str, args: Namespace) -> Iterator[DictConfig]:
    """The settings, those of Hydra's own with them.

    Raises:
        HydraException: they cannot be composed.
    """
    version.setbase(_VERSION)
    places = create_config_search_path(str(shipped("conf")))
    for folder in config_folders(args):
        if not folder.is_dir():
            raise SearchPathException(f"Additional config directory '{folder.absolute()}' not found")
        places.prepend("command-line", f"file://{folder.absolute()}", SearchPathQuery(provider="schema"))
    before = HydraConfig.instance().cfg
    GlobalHydra.instance().clear()
    Hydra.create_main_hydra2(command, places)
    try:
        yield compose(args.config_name or command, args.overrides, return_hydra_config=True)
    finally:
        GlobalHydra.instance().clear()
        HydraConfig.instance().cfg = before


def _run(command: str, config: DictConfig, ranks: RunRanks | None) -> None:
    """The work, with what Hydra promises around it: its callbacks, logging and environment."""
    HydraConfig.instance().set_config(config)  # what is written as ${hydra:...} is looked up there
    with read_write(config), read_write(config.hydra), open_dict(config):
        config.hydra.mode = RunMode.RUN
        settle_folder(config)
        config.hydra.runtime.output_dir = os.path.abspath(config.hydra.run.dir)
    HydraConfig.instance().set_config(config)
    callbacks = Callbacks(config)
    callbacks.on_run_start(config=config, config_name=config.hydra.job.config_name)
    content = copy.deepcopy(config)
    with read_write(content), open_dict(content):
        del content["hydra"]
    configure_log(config.hydra.job_logging, config.hydra.verbose)
    done = JobReturn(overrides=list(config.hydra.overrides.task), cfg=content, hydra_cfg=config, task_name=command)
    with env_override(config.hydra.job.env_set):
        callbacks.on_job_start(config=config, task_function=_task(command))
        try:
            done.return_value, done.status = work(command, content, ranks), JobStatus.COMPLETED
        except Exception as error:
            done.return_value, done.status = error, JobStatus.FAILED
            raise
        finally:
            callbacks.on_job_end(config=config, job_return=done)
            callbacks.on_run_end(config=config, config_name=config.hydra.job.config_name, job_return=done)


def work(command: str, config: DictConfig, ranks: RunRanks | None = None) -> float | None:
    """What a command does with its settings. Of a run of a sweep that fails it returns NaN.

    Exits with 2 for bad input, and with 130 where it was stopped.

    Args:
        ranks: see `launch`.
    """
    from l2l_nas.cli.launch import reporting_errors

    module = importlib.import_module(f"l2l_nas.cli.{command}")
    about = HydraConfig.get()
    if not hasattr(module, "prepared"):
        conf: Any = OmegaConf.to_object(config)
        with reporting_errors(ranks=ranks):
            check_bounds(conf)
            if ranks is None:
                module.main(conf)
            else:
                module.main(conf, ranks.agreed(conf))
        return None

    def go(conf: Any, console: Console, again: str) -> float:
        given = given_settings(conf, about.overrides.task, about.overrides.hydra)
        about_ranks: dict[str, Any] = {}
        if ranks is not None:
            conf, settled = ranks.settled(conf)
            about_ranks = {"ranks": settled}
        with ranks.consensus.working("the preparation") if ranks is not None else contextlib.nullcontext():
            made = module.prepared(
                conf, given=given, files=hydra_files(config), console=console, again=again, **about_ranks
            )
        result: float = made.go()
        return result

    try:
        if about.mode == RunMode.MULTIRUN:
            from l2l_nas.cli.sweep import run_of_sweep

            conf = in_sweep(OmegaConf.to_object(config), about)
            again = resume_command(command, conf.folder, own_settings(conf))
            return run_of_sweep(conf, about, lambda console: go(conf, console, again))
        conf = OmegaConf.to_object(config)
        again = resume_command(command, conf.resume or conf.folder, own_settings(conf))
        with reporting_errors(again, ranks=ranks):
            return go(conf, open_terminal(quiet=ranks is not None and not ranks.consensus.is_first), again)
    except Stopped:
        sys.exit(130)


def settle_folder(config: DictConfig) -> None:
    """Have `folder` and `hydra.run.dir` name one folder: the one that was named, or one of this time.

    Raises:
        SettingError: both name one, and not the same.
        StorageError: the folder of a run that goes on is not there.
    """
    content: Any = OmegaConf.to_container(config, resolve=False)
    if "resume" not in content:
        return  # a command that makes no run
    is_named = content["folder"] != SearchConf.folder
    if content["hydra"]["run"]["dir"] != "${folder}":
        folder = str(config.hydra.run.dir)
        if is_named and Path(folder) != Path(config.folder):
            raise two_folders(config.folder, "hydra.run.dir", folder)
        config.folder = folder
    elif not is_named and config.resume:  # a run goes on in its own folder
        if not Path(config.resume).is_dir():
            raise StorageError(f"resume={config.resume}: no such folder")
        config.folder = config.resume
    elif not is_named:
        config.folder = str(config.folder)  # with the time of now


def in_sweep(conf: Any, about: HydraConf) -> Any:
    """Settings of a run of a sweep, in its folder, in which it goes on where one was begun there."""
    folder = Path(about.sweep.dir) / str(about.sweep.subdir)
    goes_on = conf.skip_done and RunFolder(folder).config.exists()
    return replace(conf, folder=str(folder), resume=str(folder) if goes_on else "", skip_done=False)


def hydra_files(config: DictConfig) -> dict[str, str]:
    """What Hydra writes into `.hydra/`, by name."""
    about: Any = HydraConfig.instance().cfg
    contents = {
        "config.yaml": config,
        "hydra.yaml": OmegaConf.masked_copy(about, "hydra"),
        "overrides.yaml": about.hydra.overrides.task,
    }
    return {name: OmegaConf.to_yaml(content) for name, content in contents.items()}
