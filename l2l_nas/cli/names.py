"""Checks the words of a command line before Hydra sees them, which takes any name after a + without a word."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path

from l2l_nas.errors import SettingError
from l2l_nas.runs.fields import settings
from l2l_nas.runs.groups import GROUPS
from l2l_nas.runs.renamed import renamed, value_of_today
from l2l_nas.runs.settings import COMMANDS, HYDRA, OPEN

# what other commands call the same
_OTHER_WORDS = {"run": "resume", "resume": "run", "folder": "run"}
CONFIG_PATH = ("--config-path", "-cp")
_CONFIG_FLAGS = ("--config-dir", "-cd", *CONFIG_PATH)
# these decide nothing here: a run is in its folder, with `.hydra` in it, and runs of a sweep in numbered ones below
_FOLDERS = ("hydra.sweep.subdir", "hydra.job.chdir", "hydra.output_subdir")
_OF_SWEEPS = ("hydra/sweeper", "hydra.sweeper.", "hydra.sweep.", "hydra/launcher", "hydra.launcher.")


def check_words(command: str, flags: Sequence[str], overrides: Sequence[str]) -> None:
    """Refuse names that no setting has, and settings that would have no effect.

    Raises:
        SettingError: with the nearest right name.
    """
    known = [name for name, _, _ in settings(COMMANDS[command])]
    groups = GROUPS.get(command, ())
    sections = {name.split(".")[0] for name in known if "." in name} | set(groups)
    given = dict(word.lstrip("+").split("=", 1) for word in overrides if "=" in word)
    place = "hydra.sweep.dir" if is_sweep(flags, overrides) else "hydra.run.dir"
    if {"folder", place} <= given.keys() and given["folder"] != given[place]:
        raise two_folders(given["folder"], place, given[place])
    for name in ("folder", place):
        if name in given and not given[name].strip(" '\""):
            raise SettingError(f"{name} is empty; name one, or leave it out")
    for override in overrides:
        prefix, name, equals, value = re.fullmatch(r"([+~]*)([^=]*)(=?)(.*)", override, re.DOTALL).groups()  # type: ignore[union-attr]
        if not equals and prefix != "~":
            raise SettingError(f"'{override}' is not a setting; write NAME=VALUE")
        if name in groups and value == "null" and name != "experiment":
            raise SettingError(f"{name}=null: choose one; --help lists them")
        if name == "hydra/sweeper" and value == "l2l" and command not in HYDRA:
            raise SettingError(f"hydra/sweeper=l2l leads searches alone; {command} -m takes every combination")
        if re.match("hydra[./]", name):
            _check_hydra(name, makes_runs=bool(groups), is_sweep=is_sweep(flags, overrides))
        elif name.startswith(tuple(f"{one}." for one in OPEN if one in known)):
            continue
        elif name not in known and name not in sections and not _is_group(name.partition("@")[0], flags):
            wrong = no_setting(name, value, [*known, *groups])
            is_own_group = prefix and "." not in name and not config_folders(flags)
            raise SettingError(f"{wrong} A config group of your own needs --config-dir DIR") if is_own_group else wrong
        elif prefix == "~":
            raise SettingError(f"{override}: a setting cannot be taken away; give it a value")


def no_setting(name: str, value: str, known: Sequence[str]) -> SettingError:
    """What to tell of a name that no setting has, or none has any more."""
    now, kind = renamed(name), name.partition(".")[0]
    if now and name not in known:
        value = value_of_today(name, value)
        words = f"optimizer={kind} {now}={value}" if kind in ("adamw", "sgd") else f"{now}={value}"
        return SettingError(f"no setting '{name}' any more: write {words}")
    return SettingError(f"no setting '{name}'{nearest(name, known)}")


def is_sweep(flags: Collection[str], overrides: Collection[str]) -> bool:
    """Whether these words ask for many runs."""
    return bool({"-m", "--multirun"} & set(flags)) or any(
        word.lstrip("+").startswith("hydra.mode=MULTIRUN") for word in overrides
    )


def nearest(name: str, known: Sequence[str]) -> str:
    """The end of a message about a setting that does not exist."""
    leaves = {full.split(".")[-1]: full for full in known}
    close = [_OTHER_WORDS[name]] if _OTHER_WORDS.get(name) in known else []
    close = close or difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if not close:
        close = [leaves[leaf] for leaf in difflib.get_close_matches(name.split(".")[-1], leaves, n=1, cutoff=0.6)]
    return f"; did you mean '{close[0]}'?" if close else "; --help lists them all"


def two_folders(folder: str, name: str, other: str) -> SettingError:
    """What to tell where the folder is named twice."""
    return SettingError(f"folder={folder} and {name}={other} name two folders; leave one of them out")


def no_effect(name: str) -> SettingError:
    """What to tell of a folder that is named in Hydra's words."""
    return SettingError(
        f"{name} has no effect: a run is in its folder, those of a sweep in numbered ones below it: write folder="
    )


def config_folders(flags: Sequence[str], named_by: Sequence[str] = _CONFIG_FLAGS) -> list[Path]:
    """Folders of configs that the user named by one of these flags."""
    places = [place for flag, place in pairwise(flags) if flag in named_by]
    places += [flag.partition("=")[2] for flag in flags if flag.startswith(tuple(f"{one}=" for one in named_by))]
    return list(map(Path, places))


def _check_hydra(name: str, *, makes_runs: bool, is_sweep: bool) -> None:
    if not makes_runs and name in (*_FOLDERS, "hydra.run.dir"):
        raise SettingError(f"{name} has no effect: this command makes no run folder")
    if name in _FOLDERS:
        raise no_effect(name)
    if name.startswith(_OF_SWEEPS) and not is_sweep:
        raise SettingError(f"{name} is for sweeps: add -m")
    if name == "hydra.run.dir" and is_sweep:
        raise SettingError(f"{name} is for one run: a sweep is in hydra.sweep.dir, or folder")


def _is_group(name: str, flags: Sequence[str]) -> bool:
    """Whether a folder of configs that the user named has such a group."""
    return bool(name) and any((place / name).is_dir() for place in config_folders(flags))
