"""A command's settings, composed as Hydra composes them, and the command's work with them.

A single run is composed by Hydra's `compose_config`, and nothing is made or written before all is checked. Hydra itself
runs sweeps (see `sweep.py`), and shows settings (`--cfg`, `--info`).
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import os
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hydra import version
from hydra._internal.callbacks import Callbacks
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, configure_log, env_override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from rich.console import Console

from l2l_nas.errors import SettingError, StorageError
from l2l_nas.runs.command_line import resume_command
from l2l_nas.runs.fields import check_bounds
from l2l_nas.runs.folder_settings import own_settings
from l2l_nas.runs.follow import lead_or_follow
from l2l_nas.runs.groups import shipped
from l2l_nas.runs.ranks import RunRanks
from l2l_nas.runs.resume import explicit_settings
from l2l_nas.runs.settings import SearchConf
from l2l_nas.runs.terminal import open_terminal

_VERSION = "1.3"  # of Hydra, whose behaviour is wanted


@contextlib.contextmanager
def hydra_of(command: str, args: Namespace) -> Iterator[Hydra]:
    """Hydra, with the configs of the program and of a folder that the user named.

    Raises:
        SettingError: there is no such folder.
    """
    version.setbase(_VERSION)
    places = create_config_search_path(str(shipped("conf")))
    if args.config_dir is not None:
        if not Path(args.config_dir).is_dir():
            raise SettingError(f"--config-dir {args.config_dir}: no such folder")
        places.prepend("command-line", f"file://{Path(args.config_dir).absolute()}", SearchPathQuery(provider="schema"))
    before = HydraConfig.instance().cfg
    GlobalHydra.instance().clear()
    try:
        yield Hydra.create_main_hydra2(command, places)
    finally:
        GlobalHydra.instance().clear()
        HydraConfig.instance().cfg = before


def show(hydra: Hydra, command: str, args: Namespace) -> bool:
    """Print what flags ask Hydra for; returns whether they do."""
    name = args.config_name or command
    if args.hydra_help:
        hydra.hydra_help(config_name=name, args_parser=get_args_parser(), args=args)
    elif args.cfg:
        hydra.show_cfg(name, args.overrides, cfg_type=args.cfg, package=args.package, resolve=args.resolve)
    elif args.info:
        hydra.show_info(args.info, config_name=name, overrides=args.overrides)
    return bool(args.hydra_help or args.cfg or args.info)


def run(hydra: Hydra, command: str, args: Namespace, ranks: RunRanks | None = None) -> bool:
    """Do what the words ask for, with what Hydra promises around it: its callbacks, logging and environment.

    Args:
        ranks: see `launch`.

    Returns:
        False where a config file asks for a sweep: nothing was done.
    """
    config = hydra.compose_config(args.config_name or command, args.overrides, run_mode=RunMode.RUN)
    if config.hydra.mode == RunMode.MULTIRUN:
        return False
    HydraConfig.instance().set_config(config)  # what is written as ${hydra:...} is looked up there
    settle_folder(config, "run")
    with read_write(config.hydra), open_dict(config.hydra):
        config.hydra.mode = RunMode.RUN
        config.hydra.runtime.output_dir = os.path.abspath(config.hydra.run.dir)
    HydraConfig.instance().set_config(config)
    callbacks, task = Callbacks(config), partial(work, command, ranks=ranks)
    callbacks.on_run_start(config=config, config_name=config.hydra.job.config_name)
    content = without_hydra(config)
    configure_log(config.hydra.job_logging, config.hydra.verbose)
    done = JobReturn(overrides=list(config.hydra.overrides.task), cfg=content, hydra_cfg=config, task_name=command)
    with env_override(config.hydra.job.env_set):
        callbacks.on_job_start(config=config, task_function=task)
        try:
            done.return_value, done.status = task(content), JobStatus.COMPLETED
        except Exception as error:
            done.return_value, done.status = error, JobStatus.FAILED
            raise
        finally:
            callbacks.on_job_end(config=config, job_return=done)
            callbacks.on_run_end(config=config, config_name=config.hydra.job.config_name, job_return=done)
    return True


def without_hydra(config: DictConfig) -> DictConfig:
    """A copy without Hydra's own settings."""
    content = copy.deepcopy(config)
    with read_write(content), open_dict(content):
        del content["hydra"]
    return content


def work(command: str, config: DictConfig, *, ranks: RunRanks | None = None) -> float | None:
    """What a command does with its settings; of a search or a training, the best value."""
    module = importlib.import_module(f"l2l_nas.cli.{command}")
    conf: Any = OmegaConf.to_object(config)
    if not hasattr(module, "prepared"):
        check_bounds(conf)
        if ranks is None:
            module.main(conf)
            return None
        with ranks.agreed(conf):
            module.main(conf, ranks)
        return None
    if ranks is None:
        return prepared(command, conf, config, open_terminal()).go()  # type: ignore[no-any-return]
    lead_or_follow(ranks, conf, lambda: prepared(command, conf, config, open_terminal(), ranks=ranks).go())
    return None


def prepared(command: str, conf: Any, config: DictConfig, console: Console, **ranks: RunRanks) -> Any:
    """A search or a training that is ready to go: what can be refused was refused.

    Args:
        conf: its settings.
        config: the same, as Hydra composed them.
        ranks: see `launch`.
    """
    about = HydraConfig.get()
    conf = replace(conf, explicit=explicit_settings(conf, about.overrides.task, about.overrides.hydra))
    line = resume_command(command, conf.resume or conf.folder, own_settings(conf))
    kind = importlib.import_module(f"l2l_nas.cli.{command}").prepared
    return kind(conf, console, files=_hydra_files(config), resume_command=line, **ranks)


def settle_folder(config: DictConfig, mode: str) -> None:
    """Have `folder` and `hydra.run.dir`, or `hydra.sweep.dir`, name one folder: the one that was named, or one of now.

    Args:
        mode: "run" or "sweep".

    Raises:
        SettingError: both name one, and not the same; the name is empty; or one of Hydra's would have no effect.
        StorageError: the folder of a run that goes on is not there.
    """
    content: Any = OmegaConf.to_container(config, resolve=False)
    if "resume" not in content:
        return  # a command that makes no run
    about = content["hydra"]
    for name, value, fixed in (
        ("sweep.subdir", about["sweep"]["subdir"], "${hydra.job.num}"),
        ("job.chdir", about["job"]["chdir"], None),
        ("output_subdir", about["output_subdir"], None),
    ):
        if value != fixed:
            raise SettingError(f"hydra.{name} has no effect: a run is in its folder, one of a sweep in a numbered one")
    is_named, folder = content["folder"] != SearchConf.folder, str(config.folder)  # with the time of now
    if about[mode]["dir"] != "${folder}":
        folder = str(config.hydra[mode].dir)
        if is_named and Path(folder) != Path(config.folder):
            raise SettingError(f"folder={config.folder} and hydra.{mode}.dir={folder} name two folders; leave one out")
    elif not is_named and config.resume:  # a run goes on in its own folder
        if not Path(config.resume).is_dir():
            raise StorageError(f"resume={config.resume}: no such folder")
        folder = config.resume
    if not folder.strip():
        raise SettingError("folder is empty; name one, or leave it out")
    with read_write(config), open_dict(config):
        config.folder = folder


def _hydra_files(config: DictConfig) -> dict[str, str]:
    """What Hydra writes into `.hydra/`, by name."""
    about: Any = HydraConfig.instance().cfg
    contents = {
        "config.yaml": config,
        "hydra.yaml": OmegaConf.masked_copy(about, "hydra"),
        "overrides.yaml": about.hydra.overrides.task,
    }
    return {name: OmegaConf.to_yaml(content) for name, content in contents.items()}
