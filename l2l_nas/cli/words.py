"""The words of a command line: read, checked before Hydra sees them; and what Hydra says, in one line.

Hydra takes any name after a +, and raises errors of a dozen kinds, bare ValueErrors and TypeErrors among them: so
`is_of_hydra` asks where an error comes from, not of which kind it is.
"""

from __future__ import annotations

import difflib
import re
import traceback
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import yaml
from hydra._internal.utils import get_args_parser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from l2l_nas.errors import SettingError, did_you_mean, one_line
from l2l_nas.runs.command_line import as_text
from l2l_nas.runs.fields import settings
from l2l_nas.runs.groups import GROUPS
from l2l_nas.runs.settings import COMMANDS, OPEN

# a pickle; configs in place of the program's; a completion that knows no commands
_REFUSED = ("experimental_rerun", "config_path", "shell_completion")
_HYDRAS = ("hydra", "omegaconf", "yaml", "antlr4")
# lines that tell where in a tree an error was, and where Hydra looked
_PLACE = re.compile(
    r"\s*(full_key|reference_type|object_type|provider)\s*[:=].*|(Config search|See https|Error pars).*|\s*\^"
)


def read_words(words: Sequence[str]) -> Namespace:
    """The words of a command line, flags and overrides in any order, as Hydra's own parser has them.

    Raises:
        SettingError: no such flag, or not such a value of it.
    """
    parser = get_args_parser()
    parser.error = _refuse  # type: ignore[method-assign] # it would print usage lines and exit
    args, unknown = parser.parse_known_intermixed_args(words)
    unknown += [f"--{name.replace('_', '-')}" for name in _REFUSED if getattr(args, name)]
    if unknown:
        raise SettingError(f"no flag '{unknown[0]}'; settings are written NAME=VALUE, --help lists them")
    args.overrides = [as_text(word) for word in args.overrides]
    return args


def _refuse(message: str) -> NoReturn:
    raise SettingError(f"{message}; --hydra-help tells of flags")


def is_sweep(args: Namespace) -> bool:
    """Whether these words ask for many runs."""
    return args.multirun or any(word.lstrip("+").startswith("hydra.mode=MULTIRUN") for word in args.overrides)


def check_words(command: str, args: Namespace) -> None:
    """Refuse names that no setting has.

    Raises:
        SettingError: with the nearest right name.
    """
    known = _names(command)
    sections = {name.split(".")[0] for name in known if "." in name}
    own = Path(args.config_dir) if args.config_dir else None
    for word in args.overrides:
        found = re.fullmatch(r"\+{0,2}([^+~=][^=]*)=.*", word, re.DOTALL)
        if found is None:
            raise SettingError(f"'{word}' is not a setting; write NAME=VALUE")
        name, group = found[1], found[1].partition("@")[0]
        is_open = name.startswith(("hydra.", "hydra/", *(f"{one}." for one in OPEN if one in known)))
        is_own = own is not None and (own / group).is_dir()
        if not (is_open or is_own or name in known or name in sections):
            raise no_setting(name, known)


def no_setting(name: str, known: Sequence[str]) -> SettingError:
    """What to tell of a name that no setting has."""
    leaves, leaf = {full.split(".")[-1]: full for full in known}, name.split(".")[-1]
    close = [leaf] if leaf in leaves else difflib.get_close_matches(name, known, n=1)
    close = [leaves.get(one, one) for one in close or difflib.get_close_matches(leaf, leaves, n=1)]
    return SettingError(f"no setting '{name}'" + (f"; did you mean '{close[0]}'?" if close else "; --help lists them"))


def _names(command: str) -> list[str]:
    return [*(name for name, _, _ in settings(COMMANDS[command])), *GROUPS.get(command, ())]


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


def hydra_line(command: str, error: Exception, words: Sequence[str]) -> str:
    """What Hydra raised, in one line that names the setting or the words it is about.

    Args:
        error: see `is_of_hydra`.
        words: the overrides of the command line.
    """
    causes = (error, error.__cause__, error.__context__)
    cause = next((one for one in causes if isinstance(one, OmegaConfBaseException)), error)
    name, text = str(getattr(cause, "full_key", None) or ""), _joined(str(cause))
    file = str(error).partition(":")[0] + ": " if str(error).startswith("In '") else ""
    if isinstance(error, MissingConfigException) and error.options:
        group, _, choice = str(error.missing_cfg_file).rpartition("/")
        return f"no {group} '{choice}'{did_you_mean(choice, error.options)}"
    if isinstance(error, OverrideParseException):
        return f"'{error.override}': {text}; a value with special characters needs quotes"
    if name.partition(".")[0] == "experiment":
        return f"{file}an experiment begins with the line '# @package _global_', and nothing in front of it"
    if isinstance(cause, ConfigKeyError | ConfigAttributeError) and name and not name.startswith("hydra"):
        return f"{file}{no_setting(name, _names(command))}"
    if isinstance(cause, OmegaConfBaseException) and name:
        return f"{file}{name}: {text}" + (f"; write {name}=[A,B]" if "ListConfig" in text else "")
    if isinstance(error, HydraException | yaml.YAMLError):
        return text
    return f"{' '.join([word for word in words if '${' in word] or words)}: {type(cause).__name__}: {text}"


def _joined(text: str) -> str:
    """All lines of a text as one, but for those that tell where in a tree it was."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not _PLACE.fullmatch(line)]
    return one_line(" ".join(line if line[-1] in ".:;,!?" else f"{line};" for line in lines), most=600).rstrip(";")
