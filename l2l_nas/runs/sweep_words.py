"""What a sweep's folder tells of its start: the words that it takes over, and those that must be said again."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

from l2l_nas.errors import StorageError
from l2l_nas.runs.choice_settings import CHOICES
from l2l_nas.runs.command_line import command_line, given_names
from l2l_nas.runs.fields import settings, value_of
from l2l_nas.runs.groups import GROUPS, choices
from l2l_nas.runs.locate import is_builtin
from l2l_nas.runs.saved import OWN, read_config
from l2l_nas.runs.settings import COMMANDS, OPEN, PLACES, SweeperConf

# the file that Hydra's sweepers write
SWEEP_CONFIG = "multirun.yaml"
# settings whose values are imported where they name something of the user's own
_IMPORTED = tuple(f"{name}.name" if name in CHOICES else name for name in OWN)
# what a sweep says itself when it goes on
_OF_THE_SWEEP = {*PLACES, "hydra.mode", "hydra.sweep.dir", "hydra.sweep.subdir", "hydra.callbacks.sweep.numbers"}
# names of what comes with this program; what names a file or a module, or interpolates, has other characters
_OURS = re.compile(r"[\w,() ]*")


def sweep_words(command: str, root: Path) -> tuple[list[str], list[str]]:
    """The overrides that a sweep of a command was started with.

    Returns:
        Those that may be taken over, and those that must be said again: a pool of the user's own, launchers, and
        whatever else is not a setting of this program.

    Raises:
        StorageError: the sweep's settings are damaged.
    """
    path = root / SWEEP_CONFIG
    overrides = value_of(read_config(path), "hydra.overrides")
    if not isinstance(overrides, dict) or not all(isinstance(part, list) for part in overrides.values()):
        raise StorageError(f"{path}: damaged, not the settings of a sweep; restore it")
    sampled = {f"hydra.sweeper.{name}" for name, _, _ in settings(SweeperConf)} - {"hydra.sweeper.params"}
    known = {name for name, _, _ in settings(COMMANDS[command])} | sampled
    taken: list[str] = []
    left: list[str] = []
    for word in (str(word) for part in ("hydra", "task") for word in overrides.get(part, [])):
        (name,) = given_names([word])
        if name not in _OF_THE_SWEEP and word != "hydra/sweeper=combinations":  # that is Hydra's basic one today
            (taken if _may_be_taken(word, name, known) else left).append(word)
    return taken, left


def _may_be_taken(word: str, name: str, known: Collection[str]) -> bool:
    left, _, value = word.partition("=")
    values = [one.strip() for one in re.sub(r"^choice\((.*)\)$", r"\1", value).split(",")]
    if "@" in left:  # a group's choice, which may be a file anywhere
        return False
    if name == "hydra/sweeper":
        return value in ("l2l", "basic")
    if name == "space.pool":
        return all(map(is_builtin, values))
    if name.partition(".")[0] == "callbacks" or (name in _IMPORTED and not _OURS.fullmatch(value)):
        return False  # it would be imported
    if name in GROUPS["search"]:
        if (name == "objectives" and value.startswith("[")) or re.fullmatch(r"glob\([\w*?,]*\)", value):
            return True
        known_files = (".npz",) if name == "data" else ()  # plain arrays: nothing in them is imported
        return all(one in choices(name) or one.endswith(known_files) for one in values)
    return name in known or any(name.startswith(f"{one}.") for one in OPEN if one in known)


def is_choice(word: str) -> bool:
    """Whether a word of a sweep chooses what its runs are made of: a group, the user's own too, or what is imported.

    Callbacks are left out, as they only observe, and so is what is Hydra's.
    """
    (name,) = given_names([word])
    is_group = "." not in name and not name.startswith("hydra/")
    return (is_group or name in {*OWN, *_IMPORTED}) and name != "callbacks"


def resume_sweep(command: str, root: Path) -> str:
    """The command that goes on with a sweep: what it was started with and does not take over itself, and `resume=`."""
    try:
        words = [*sweep_flags(root), *sweep_words(command, root)[1]]
    except StorageError:
        words = []  # damaged, as resuming will say
    return command_line(command, {"resume": str(root)}, words=("-m", *words))


def refuse_sweep(command: str, root: Path) -> None:
    """Refuse to go on with a sweep as with one run.

    Raises:
        StorageError: the folder is a sweep's; with the command that goes on with it.
    """
    if (root / SWEEP_CONFIG).exists():
        raise StorageError(f"{root} holds a sweep; go on with it by: {resume_sweep(command, root)}")


def sweep_flags(root: Path) -> list[str]:
    """The flags that a sweep found its configs by.

    Raises:
        StorageError: the sweep's settings are damaged.
    """
    about = value_of(read_config(root / SWEEP_CONFIG), "hydra")
    sources = value_of(about, "runtime.config_sources") if isinstance(about, dict) else None
    flags: list[str] = []
    for source in sources if isinstance(sources, list) else []:
        if isinstance(source, dict) and source.get("provider") == "command-line":
            path = str(source.get("path"))
            within = os.path.relpath(path)
            flags += ["--config-dir", path if within.startswith("..") else within]
    name = value_of(about, "job.config_name") if flags else None
    return [*flags, *(["--config-name", name] if isinstance(name, str) and name not in COMMANDS else [])]
