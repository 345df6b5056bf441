"""What a sweep's folder tells of its start: the words that it takes over, and those that must be said again."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

from l2l_nas.errors import StorageError
from l2l_nas.files import parsing
from l2l_nas.runs.choice_settings import CHOICES
from l2l_nas.runs.command_line import command_line, given_names
from l2l_nas.runs.fields import FromFolder, declared, settings, value_of
from l2l_nas.runs.folder import SWEEP_CONFIG
from l2l_nas.runs.folder_settings import as_it_stands
from l2l_nas.runs.groups import GROUPS
from l2l_nas.runs.locate import is_builtin
from l2l_nas.runs.settings import COMMANDS, OPEN, PLACES

# what is read of what Hydra writes there
_KINDS = {
    **dict.fromkeys(("hydra", "hydra.overrides", "hydra.sweeper"), dict),
    **dict.fromkeys(("hydra.overrides.hydra", "hydra.overrides.task"), list),
    "hydra.sweeper.params": dict | None,
    "hydra.job.config_name": str | None,
}
_ABSENT = object()
# settings whose values are imported where they name something of the user's own
_OWN = {one.name for conf in COMMANDS.values() for one in declared(conf) if one.is_code}
_IMPORTED = {*_OWN, *(f"{name}.name" for name in _OWN if name in CHOICES)}
# what a sweep says itself when it goes on
_OF_THE_SWEEP = {*PLACES, "hydra.mode", "hydra.sweep.dir"}
# names of what comes with this program; what names a file or a module, or interpolates, has other characters
_OURS = re.compile(r"[\w.,()*? +-]*")


def reading_sweep(root: Path) -> contextlib.AbstractContextManager[None]:
    """Around reading the settings of a sweep: see `parsing`."""
    return parsing(root / SWEEP_CONFIG, "the settings of a sweep", advice="restore it")


def read_sweep(command: str, root: Path) -> dict[str, Any]:
    """The settings that a sweep of a command was started with, and those of Hydra.

    Raises:
        StorageError: a part of them is missing, or not what it should be.
    """
    content = as_it_stands(root / SWEEP_CONFIG)
    sections = {name.rpartition(".")[0] for name, _, _ in settings(COMMANDS[command])} - {""}
    kinds: dict[str, Any] = {**dict.fromkeys(sorted(sections), dict), **_KINDS}
    with reading_sweep(root):
        for name, kind in kinds.items():
            found = value_of(content, name, _ABSENT)
            if found is not _ABSENT and not isinstance(found, kind):
                raise ValueError(f"{name} is {found!r}")
    return content


def sweep_words(command: str, root: Path) -> tuple[list[str], list[str]]:
    """The words that a sweep of a command was started with.

    Returns:
        Those that may be taken over, and those that must be said again: flags that name configs, what would be
        imported, launchers, and whatever else is not a setting of this program.

    Raises:
        StorageError: the sweep's settings are damaged.
    """
    with reading_sweep(root):
        about = read_sweep(command, root)["hydra"]
        words = [str(word) for part in ("hydra", "task") for word in [*about["overrides"][part]]]
        sources = about.get("runtime", {}).get("config_sources", [])
        folders = [str(one["path"]) for one in sources if one["provider"] == "command-line"]
        name = about.get("job", {}).get("config_name")
    words = [word for word in words if not given_names([word]) & _OF_THE_SWEEP]
    taken = [word for word in words if _is_data(command, word)]
    flags = [f"--config-dir={folder}" for folder in folders]
    flags += [f"--config-name={name}"] if folders and name not in COMMANDS else []
    return taken, [*flags, *(word for word in words if word not in taken)]


def _is_data(command: str, word: str) -> bool:
    """Whether a word says nothing that is imported, or read from some other file than the program's own."""
    key, _, value = word.partition("=")
    name = key.lstrip("+~")
    known = {one.name for one in declared(COMMANDS[command]) if one.from_folder is not FromFolder.NEVER}
    if "@" in key or name.partition(".")[0] == "callbacks":
        return False
    if name == "space.pool":
        return all(map(is_builtin, re.sub(r"^choice\((.*)\)$", r"\1", value).split(",")))
    if name.partition(".")[0] == "executor":
        return False
    if name in _IMPORTED or name in GROUPS[command] or name == "hydra/sweeper":
        return bool(_OURS.fullmatch(value))
    return name in {*known, "hydra.sweeper.max_batch_size"} or any(
        name.startswith(f"{one}.") for one in OPEN if one in known
    )


def is_choice(word: str) -> bool:
    """Whether a word decides what the runs of a sweep are, and not only where they run and who observes them."""
    (name,) = given_names([word])
    return name.startswith(("hydra.sweeper", "hydra/sweeper")) or not name.startswith(("hydra", "callbacks"))


def resume_sweep(command: str, root: Path) -> str:
    """The command that goes on with a sweep: what it was started with and does not take over itself, and `resume=`."""
    try:
        words = sweep_words(command, root)[1]
    except StorageError:
        words = []  # damaged, as resuming will say
    return command_line(command, {"resume": str(root)}, words=("-m", *words))


def refuse_sweep(command: str, root: Path) -> None:
    """Refuse a folder that holds a sweep for something else.

    Raises:
        StorageError: with the command that goes on with the sweep.
    """
    if (root / SWEEP_CONFIG).exists():
        again = resume_sweep(command, root)
        raise StorageError(f"{root} holds a sweep ({SWEEP_CONFIG}); go on with it by: {again}; or take another folder")
