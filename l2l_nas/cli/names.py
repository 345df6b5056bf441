"""Checks the words of a command line before Hydra sees them, which takes any name after a + without a word."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import Path

from l2l_nas.errors import SettingError
from l2l_nas.runs.settings import COMMANDS, settings

# settings whose names below them no schema knows
OPEN = ("space.args.", "space.args=", "search.limits.", "search.limits=")
# what other commands call the same
_OTHER_WORDS = {"run": "resume", "resume": "run", "folder": "run"}
_CONFIG_FLAGS = ("--config-dir", "-cd", "--config-path", "-cp")
# these decide nothing here: a run is in its folder, and runs of a sweep in numbered ones below
_FOLDERS = ("hydra.run.dir", "hydra.sweep.subdir", "hydra.job.chdir")
_OF_SWEEPS = ("hydra/sweeper", "hydra.sweeper.", "hydra.sweep.", "hydra/launcher", "hydra.launcher.")


def check_words(command: str, flags: Sequence[str], overrides: Sequence[str]) -> None:
    """Refuse names that no setting has, and settings that would have no effect.

    Raises:
        SettingError: with the nearest right name.
    """
    known = [name for name, _, _ in settings(COMMANDS[command])]
    sections = {name.split(".")[0] for name in known if "." in name}
    places = {word.partition("=")[0] for word in overrides} & {"folder", "hydra.sweep.dir"}
    if len(places) == 2:
        raise SettingError("folder= and hydra.sweep.dir= name the same folder; leave one of them out")
    for override in overrides:
        prefix, name, equals, value = re.fullmatch(r"([+~]*)([^=]*)(=?)(.*)", override, re.DOTALL).groups()  # type: ignore[union-attr]
        if not equals and prefix != "~":
            raise SettingError(f"'{override}' is not a setting; write NAME=VALUE")
        if re.match("hydra[./]", name):
            _check_hydra(name, value, known, is_sweep=is_sweep(flags, overrides))
        elif f"{name}=".startswith(OPEN):
            continue
        elif name not in known and name not in sections and not _is_group(name.partition("@")[0], flags):
            raise SettingError(f"no setting '{name}'{nearest(name, known)}")
        elif prefix == "~":
            raise SettingError(f"{override}: a setting cannot be taken away; give it a value")


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


def no_effect(name: str, value: str) -> SettingError:
    """What to tell of a folder that is named in Hydra's words."""
    instead = f"folder={value}" if name == "hydra.run.dir" else "folder="
    return SettingError(
        f"{name} has no effect: a run is in its folder, those of a sweep in numbered ones below it: write {instead}"
    )


def _check_hydra(name: str, value: str, known: Collection[str], *, is_sweep: bool) -> None:
    if name in _FOLDERS:
        if "folder" not in known:
            raise SettingError(f"{name} has no effect: this command makes no run folder")
        raise no_effect(name, value)
    if name.startswith(_OF_SWEEPS) and not is_sweep:
        raise SettingError(f"{name} is for sweeps: add -m")


def _is_group(name: str, flags: Sequence[str]) -> bool:
    """Whether a folder of configs that the user named has such a group."""
    places = [place for flag, place in pairwise(flags) if flag in _CONFIG_FLAGS]
    places += [flag.partition("=")[2] for flag in flags if flag.startswith(tuple(f"{one}=" for one in _CONFIG_FLAGS))]
    return bool(name) and any((Path(place) / name).is_dir() for place in places)
