"""A run's folder as Hydra knows it: its name is `hydra.run.dir`, and `.hydra/` in it has what the run was started with.

Hydra makes a folder before anything is checked, and writes `.hydra/` again whenever a run goes on, passwords in it. So
the folder that it made is removed while it is empty, and `.hydra/` is written here, once.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback as HydraCallback
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, read_write
from omegaconf.errors import OmegaConfBaseException

from l2l_nas.cli.names import two_folders
from l2l_nas.errors import StorageError, without_passwords_in
from l2l_nas.runs.folder import RunFolder, reserved
from l2l_nas.runs.settings import SearchConf


class MadeFolder(HydraCallback):
    """Knows which folders were not there before Hydra made them, and removes those that are empty.

    A folder that nobody named is called by the time. It is made at once and kept to the end of the command, so that
    another command of the same second takes another one.
    """

    made: ClassVar[list[Path]] = []
    reserved: ClassVar[contextlib.ExitStack] = contextlib.ExitStack()

    def on_run_start(self, config: DictConfig, **others: Any) -> None:
        """See Hydra's `Callback`."""
        # nothing is raised here: Hydra warns of what a callback raises, goes on, and says itself what is wrong
        with contextlib.suppress(OmegaConfBaseException, StorageError):
            folder = Path(config.hydra.run.dir)
            MadeFolder.made = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
            content: Any = OmegaConf.to_container(config, resolve=False)
            if content["folder"] == SearchConf.folder and content["hydra"]["run"]["dir"] == "${folder}":
                with read_write(config):
                    config.folder = str(MadeFolder.reserve(folder))

    @staticmethod
    def reserve(folder: Path) -> Path:
        """Make the folder of a command that names none.

        Raises:
            StorageError: it cannot be made.
        """
        MadeFolder.made = []
        return MadeFolder.reserved.enter_context(reserved(folder))

    @staticmethod
    def undo() -> None:
        """The program makes a folder that was named again, when all is checked."""
        made, MadeFolder.made = MadeFolder.made, []
        with contextlib.suppress(OSError, ValueError):  # the latter of a name that no folder can have
            for path in made:
                path.rmdir()


def placed(conf: Any, config: DictConfig) -> Any:
    """Settings with the folder that Hydra's words name, where `folder` does not.

    Args:
        conf: the settings.
        config: the same, as Hydra composed them.

    Raises:
        SettingError: both name one, and not the same.
    """
    about = HydraConfig.get()
    if about.mode == RunMode.MULTIRUN:
        folder = str(Path(about.sweep.dir) / str(about.sweep.subdir))
        # a run of a sweep that goes on is a new one, where none was begun
        goes_on = conf.resume and Path(conf.resume) == Path(about.sweep.dir) and RunFolder(Path(folder)).holds_run
        is_ours = conf.resume and Path(conf.resume) == Path(about.sweep.dir)
        return replace(conf, folder=folder, resume=(folder if goes_on else "") if is_ours else conf.resume)
    folder = str(about.run.dir)
    said = OmegaConf.to_container(config, resolve=False)["folder"] != type(conf).folder  # type: ignore[index,call-overload]
    if said and Path(folder) != Path(conf.folder):
        raise two_folders(conf.folder, "hydra.run.dir", folder)
    return replace(conf, folder=folder)


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
