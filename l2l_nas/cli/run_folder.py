"""A run's folder as Hydra knows it: it is `hydra.run.dir`, and `.hydra/` in it has what the run was started with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from l2l_nas.cli.names import two_folders
from l2l_nas.errors import StorageError, without_passwords_in
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.settings import SearchConf


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
    """Settings of a run of a sweep, in its folder; it is a new one where none was begun there."""
    root = Path(about.sweep.dir)
    folder = root / str(about.sweep.subdir)
    if not conf.resume or Path(conf.resume) != root:
        return replace(conf, folder=str(folder))
    return replace(conf, folder=str(folder), resume=str(folder) if RunFolder(folder).holds_run else "")


def hydra_files(config: DictConfig) -> dict[str, str]:
    """What Hydra writes into `.hydra/`, by name, without passwords."""
    about: Any = HydraConfig.instance().cfg
    contents = {
        "config.yaml": config,
        "hydra.yaml": OmegaConf.masked_copy(about, "hydra"),
        "overrides.yaml": about.hydra.overrides.task,
    }
    plain = {name: without_passwords_in(OmegaConf.to_container(one, resolve=False)) for name, one in contents.items()}
    return {name: OmegaConf.to_yaml(OmegaConf.create(one)) for name, one in plain.items()}
