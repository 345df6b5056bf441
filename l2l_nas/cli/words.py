"""The words of a command line: read, checked before Hydra sees them, and what Hydra raises told in one line.

Hydra takes any name after a +, and raises errors of a dozen kinds, bare ValueErrors and TypeErrors among them: so
`is_of_hydra` asks where an error comes from, not of which kind it is.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import traceback
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import yaml
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from l2l_nas.cli.schema import is_own_choice, named_choices
from l2l_nas.errors import SettingError, did_you_mean, one_line
from l2l_nas.runs.command_line import as_one_value, as_text
from l2l_nas.runs.fields import settings
from l2l_nas.runs.groups import ABOUT, GROUPS, choices
from l2l_nas.runs.renamed import renamed, value_of_today
from l2l_nas.runs.settings import COMMANDS, OPEN

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
    if not is_sweep(args):
        args.overrides = [as_one_value(word) for word in args.overrides]
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


_HYDRAS = ("hydra", "omegaconf", "yaml", "antlr4")
# where in its tree an error of OmegaConf's was: the name of the setting is told already
_PLACE = re.compile(r"\s*(full_key|reference_type|object_type)\s*[:=].*")


def is_of_hydra(error: BaseException) -> bool:
    """Whether Hydra, OmegaConf or their parsers raised an error: neither we nor code of the user's."""
    if isinstance(error, HydraException | OmegaConfBaseException | yaml.YAMLError):
        return True
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        room = str(frame.f_globals.get("__name__", "")).split(".")[0]
        if room in _HYDRAS:
            return True
        if "site-packages" in frame.f_code.co_filename or room == "l2l_nas":
            return False
    return False


def explain_hydra(command: str, error: Exception, args: Namespace) -> str:
    """What was wrong with the words of a command line or with a config file, and what to write instead.

    Args:
        error: what Hydra raised, see `is_of_hydra`.
        args: see `read_words`.
    """
    if isinstance(error, OverrideParseException):
        return _unreadable_word(str(error.override), error)
    for word in args.overrides:
        if explained := _explain_word(word, error, args):
            return explained
    if isinstance(error, MissingConfigException) and (place := args.config_path):
        return f"--config-path {place}: that replaces the configs of the program; add your own by --config-dir {place}"
    if isinstance(error.__context__, OmegaConfBaseException) and "while composing config" in str(error):
        file = str(error).partition(":")[0]
        return f"{file}: {_explain_file(command, error.__context__)}"
    return explain_value(error, args.overrides)


def explain_value(error: Exception, overrides: Sequence[str] = ()) -> str:
    """What was wrong with a setting's value."""
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    text = _joined(str(cause))
    if not isinstance(cause, HydraException | OmegaConfBaseException):
        if "null byte" in text or "null character" in text:
            return f"folder: no folder can have this name ({text}); choose another"
        text = f"{type(cause).__name__}: {text}".rstrip(": ")
    name = str(getattr(cause, "full_key", None) or "")
    if name and name not in text:
        return f"{name}: {text}"
    odd = [word for word in overrides if "${" in word]
    if name or not (odd or not isinstance(cause, HydraException | OmegaConfBaseException)):
        return text
    about = odd or [word for word in overrides if word.lstrip("+~").startswith("hydra")] or overrides
    return f"{' '.join(about)}: {text}" if about else text


def _joined(text: str) -> str:
    """All lines of a text as one, but for those that tell where in a tree it was."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not _PLACE.fullmatch(line)]
    return one_line(" ".join(line if line[-1] in ".:;,!?" else f"{line};" for line in lines), most=600).rstrip(";")


def _explain_word(word: str, error: Exception, args: Namespace) -> str:
    """What was wrong with one word, where it shows that by itself; else nothing."""
    name, _, value = re.sub(r"^[+~]+", "", word).partition("=")
    try:
        override = OverridesParser.create().parse_override(word)
    except HydraException as unreadable:
        return _unreadable_word(word, unreadable)
    if override.is_sweep_override() and not is_sweep(args):
        return (
            f"'{word}' has several values: add -m to run each of them; if it is one value with commas, put it in quotes"
        )
    group, folders, is_missing = name.partition("@")[0], config_folders(args), isinstance(error, MissingConfigException)
    if (is_missing or not isinstance(error, HydraException)) and (offered := _offered(group, folders)):
        for one in named_choices(override):
            if not isinstance(one, str) or (is_missing and one not in offered and not is_own_choice(group, one)):
                return _no_choice(group, value if one is None else str(one), offered, folders)
    return ""


def _unreadable_word(word: str, error: HydraException) -> str:
    """What to tell of a word that Hydra cannot parse; what one of its functions refuses has a reason of its own."""
    _, is_call, reason = _joined(str(error)).partition("while evaluating ")
    if is_call:
        return f"'{word}': {reason.partition(' See https:')[0]}"
    return f"'{word}' cannot be read; a value with special characters needs quotes: NAME='\"VALUE\"'"


def _offered(group: str, folders: Sequence[Path]) -> list[str]:
    """What there is to choose from in a group, of the program, of Hydra or of folders of the user's; else nothing."""
    own = [path.stem for folder in folders for path in sorted((folder / group).glob("*.yaml"))] if group else []
    known = list(choices(group)) if group in ABOUT else []
    if group.startswith("hydra/"):
        with contextlib.suppress(OSError):
            known = sorted(entry.removesuffix(".yaml") for entry in ConfigStore.instance().list(group))
    return [*known, *own]


def _no_choice(group: str, choice: str, known: Sequence[str], folders: Sequence[Path]) -> str:
    own = f"; your own is {ABOUT[group][2]}" if group in ABOUT and ABOUT[group][2] else ""
    if group == "experiment" and not folders:
        own += ", with --config-dir DIR"
    hint = "; joblib and submitit come with: pip install 'l2l-nas[launchers]'" if "launcher" in group else ""
    return f"no {group} '{choice}'{did_you_mean(choice, known)}{own}{hint}"


def _explain_file(command: str, error: OmegaConfBaseException) -> str:
    """What was wrong with a config file."""
    name = str(error.full_key)
    if name.partition(".")[0] == "experiment":
        return "an experiment begins with the line '# @package _global_', and nothing in front of it"
    if isinstance(error, ConfigKeyError) and name:
        return str(no_setting(name, "...", [one for one, _, _ in settings(COMMANDS[command])]))
    return explain_value(error)
