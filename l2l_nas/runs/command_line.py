"""Commands as they are typed: values quoted for Hydra, lines quoted for the shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from typing import Any

from l2l_nas.plugins import is_given
from l2l_nas.runs.settings import TEXTS

# Hydra reads these as they stand; everything else needs quotes
_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./:+-]*")
_SPECIAL, _ESCAPED = r"([\\()\[\]{}:=, \t])", r"\\\1"
_WORDS = {"true", "false", "null", "nan", "inf"}


def spell(value: Any) -> str:
    """A setting's value as Hydra reads it on the command line."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(spell, value))}]"
    if isinstance(value, Mapping):
        # a key cannot stand in quotes
        pairs = (f"{re.sub(_SPECIAL, _ESCAPED, str(key))}:{spell(item)}" for key, item in value.items())
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, int | float):
        return str(value)
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    # a backslash is one before a quote and at the end alone, and a $ begins an interpolation
    quoted = re.sub(r"(\\+)(?=\"|$)", r"\1\1", text).replace('"', '\\"').replace("${", "\\${")
    return f'"{quoted}"'


def explicit_names(overrides: Collection[str]) -> frozenset[str]:
    """Names of the settings in overrides as Hydra takes them: `train.steps=5`, `++space.args.depth=6`, `space=x`."""
    return frozenset(re.sub(r"^[+~]+", "", override).partition("=")[0].partition("@")[0] for override in overrides)


def as_text(word: str) -> str:
    """A word of a command line whose value, if it is a text, is quoted for Hydra as it stands."""
    name, equals, value = word.partition("=")
    return f"{name}={spell(value)}" if equals and name in TEXTS else word


def command_line(command: str, settings: Mapping[str, Any]) -> str:
    """A whole command."""
    spelled = [f"{name}={spell(value)}" for name, value in settings.items()]
    return shlex.join(["python", "-m", "l2l_nas", command, *spelled])


def resume_command(command: str, folder: object, named: Mapping[str, Any]) -> str:
    """The command that goes on with a run; the call, where an object was given in Python.

    Args:
        named: settings to name again, or anew; see `own_settings`.
    """
    if any(map(is_object, named.values())):
        return f"l2l_nas.search(..., resume={str(folder)!r})"
    return command_line(command, {"resume": str(folder), **named})


def is_object(value: object) -> bool:
    """Whether a setting's value, or one in a list of them, was given in Python."""
    return any(map(is_given, value)) if isinstance(value, list) else is_given(value)
