"""Reads the words of a command line, and checks them before Hydra does, which takes any name after a +."""

from __future__ import annotations

import difflib
import re
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from hydra._internal.utils import get_args_parser

from l2l_nas.errors import SettingError
from l2l_nas.runs.command_line import as_text
from l2l_nas.runs.fields import settings
from l2l_nas.runs.groups import GROUPS
from l2l_nas.runs.renamed import renamed, value_of_today
from l2l_nas.runs.settings import COMMANDS, HYDRA, OPEN

# what other commands call the same
_OTHER_WORDS = {"run": "resume", "resume": "run", "folder": "run"}
# these decide nothing here: a run is in its folder, with `.hydra` in it, and runs of a sweep in numbered ones below
_FOLDERS = ("hydra.sweep.subdir", "hydra.job.chdir", "hydra.output_subdir")
_OF_SWEEPS = ("hydra/sweeper", "hydra.sweeper.", "hydra.sweep.", "hydra/launcher", "hydra.launcher.")


def read_words(words: Sequence[str]) -> Namespace:
    """The words of a command line, flags and overrides in any order, as Hydra's own parser has them.

    Raises:
        SettingError: no such flag, or not such a value of it.
    """
    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign] # it would print usage lines and exit
    args, unknown = parser.parse_known_intermixed_args(words)
    if args.shell_completion:
        raise SettingError('completion is that of the program: eval "$(l2l-nas --completion)"')
    if unknown or args.experimental_rerun is not None:  # the latter loads a pickle
        name = next(iter(unknown), "--experimental-rerun")
        raise SettingError(f"no flag '{name}'; settings are written NAME=VALUE, --help lists them")
    args.overrides = [as_text(word) for word in args.overrides]
    return args


def _refuse(message: str) -> NoReturn:
    raise SettingError(f"{message}; --hydra-help tells of flags")


def check_words(command: str, args: Namespace) -> None:
    """Refuse names that no setting has, and settings that would have no effect.

    Raises:
        SettingError: with the nearest right name.
    """
    overrides = args.overrides
    known = [name for name, _, _ in settings(COMMANDS[command])]
    groups = GROUPS.get(command, ())
    sections = {name.split(".")[0] for name in known if "." in name} | set(groups)
    given = dict(word.lstrip("+").split("=", 1) for word in overrides if "=" in word)
    place = "hydra.sweep.dir" if is_sweep(args) else "hydra.run.dir"
    if {"folder", place} <= given.keys() and given["folder"] != given[place]:
        raise two_folders(given["folder"], place, given[place])
    for name in ("folder", place):
        if name in given and not given[name].strip(" '\""):
            raise SettingError(f"{name} is empty; name one, or leave it out")
    for override in overrides:
        prefix, name, equals, value = re.fullmatch(r"([+~]*)([^=]*)(=?)(.*)", override, re.DOTALL).groups()  # type: ignore[union-attr]
        if not name or (not equals and prefix != "~"):
            raise SettingError(f"'{override}' is not a setting; write NAME=VALUE")
        if name in groups and value == "null" and name != "experiment":
            raise SettingError(f"{name}=null: choose one; --help lists them")
        if name == "hydra/sweeper" and value == "l2l" and command not in HYDRA:
            raise SettingError(f"hydra/sweeper=l2l leads searches alone; {command} -m takes every combination")
        if re.match("hydra[./]", name):
            _check_hydra(name, makes_runs=bool(groups), is_sweep=is_sweep(args))
        elif name.startswith(tuple(f"{one}." for one in OPEN if one in known)):
            continue
        elif name not in known and name not in sections and not _is_group(name.partition("@")[0], args):
            wrong = no_setting(name, value, [*known, *groups])
            is_own_group = prefix and "." not in name and not config_folders(args)
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


def is_sweep(args: Namespace) -> bool:
    """Whether these words ask for many runs."""
    return args.multirun or any(word.lstrip("+").startswith("hydra.mode=MULTIRUN") for word in args.overrides)


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


def config_folders(args: Namespace) -> list[Path]:
    """Folders of configs that the user named by a flag."""
    return [Path(place) for place in (args.config_dir, args.config_path) if place is not None]


def _check_hydra(name: str, *, makes_runs: bool, is_sweep: bool) -> None:
    if not makes_runs and name in (*_FOLDERS, "hydra.run.dir"):
        raise SettingError(f"{name} has no effect: this command makes no run folder")
    if name in _FOLDERS:
        raise no_effect(name)
    if name.startswith(_OF_SWEEPS) and not is_sweep:
        raise SettingError(f"{name} is for sweeps: add -m")
    if name == "hydra.run.dir" and is_sweep:
        raise SettingError(f"{name} is for one run: a sweep is in hydra.sweep.dir, or folder")


def _is_group(name: str, args: Namespace) -> bool:
    """Whether a folder of configs that the user named has such a group."""
    return bool(name) and any((place / name).is_dir() for place in config_folders(args))
