"""What Hydra and OmegaConf raise, told in one line: which setting, file or flag it was, why, and what to write.

They raise errors of a dozen kinds, bare ValueErrors and TypeErrors among them. So `is_of_hydra` asks where an error
comes from, not of which kind it is. `explain_hydra` tells causes that the words themselves show, and else what Hydra
says.
"""

from __future__ import annotations

import contextlib
import re
import traceback
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from l2l_nas.cli.names import config_folders, is_sweep, nearest, no_setting
from l2l_nas.cli.schema import is_own_choice, named_choices
from l2l_nas.errors import did_you_mean, one_line
from l2l_nas.runs.fields import settings
from l2l_nas.runs.groups import ABOUT, choices
from l2l_nas.runs.settings import COMMANDS, SweeperConf

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
        return f"'{word}' has several values: add -m to run each of them; one value with commas stands in quotes"
    group, folders, is_missing = name.partition("@")[0], config_folders(args), isinstance(error, MissingConfigException)
    if (is_missing or not isinstance(error, HydraException)) and (offered := _offered(group, folders)):
        for one in named_choices(override):
            if not isinstance(one, str) or (is_missing and one not in offered and not is_own_choice(group, one)):
                return _no_choice(group, value if one is None else str(one), offered, folders)
    if name.startswith("hydra.sweeper."):
        sampled = {known for known, _, _ in settings(SweeperConf, "hydra.sweeper.")}
        if not any(one.startswith("hydra/sweeper=") for one in args.overrides):
            if name in sampled - {"hydra.sweeper.params"}:
                return f"{name} is a setting of sampled sweeps: add hydra/sweeper=l2l"
        elif "hydra/sweeper=l2l" in args.overrides and re.sub(r"(\.params)\..*", r"\1", name) not in sampled:
            return f"no setting '{name}'{nearest(name, sorted(sampled))}"
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
