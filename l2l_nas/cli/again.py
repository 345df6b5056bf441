"""What a run's settings were, and the exact words to go on with it: commands quoted for the shell and for Hydra."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from l2l_nas.cli.locate import is_builtin
from l2l_nas.cli.run_folder import RunFolder
from l2l_nas.cli.schema import COMMANDS, SearchConf, settings
from l2l_nas.report.summary import Command, Setting
from l2l_nas.search.sqlite_file import address_of

_PLACES = ("folder", "resume")
# what a resumed search takes from its folder by itself, see `l2l_nas.cli.runs.kept_residency`
_KEPT = ("relay.budget", "relay.keep", "relay.slots")
# Hydra reads these as they stand; everything else needs quotes
_PLAIN = re.compile(r"[A-Za-z_./][A-Za-z0-9_./:+-]*")
_SPECIAL, _ESCAPED = r"([\\()\[\]{}:=, \t])", r"\\\1"
_WORDS = {"true", "false", "null", "nan", "inf"}


def changed_settings(config: Mapping[str, Any]) -> tuple[Setting, ...]:
    """The settings of a search that differ from their defaults, but for its folder.

    Args:
        config: what stands in `config.yaml`.

    Raises:
        KeyError, TypeError: a section is missing or something else.
    """
    return tuple(
        Setting(name, spell(value), "" if default is None else spell(default), meaning)
        for name, value, default, meaning in _changed(config)
    )


def next_commands(
    folder: Path, config: Mapping[str, Any], *, is_finished: bool, has_result: bool
) -> tuple[Command, ...]:
    """What one may want to do with a run.

    Args:
        folder: the run's.
        config: what stands in its `config.yaml`.
        is_finished: whether all trials asked for are done.
        has_result: whether there is a network to work with.

    Raises:
        KeyError, TypeError, ValueError: the settings lack something.
    """
    run, files = str(folder), RunFolder(folder)
    trials = int(config["search"]["trials"])
    pool = str(config["space"]["pool"])
    own = {} if is_builtin(pool) else {"pool": pool}
    name = "Go on, to twice as many trials" if is_finished else "Go on, to the trials asked for"
    words = {key: value for key, value, _, _ in _changed(config)}
    if words.get("relay.budget") == "none":
        words = {key: value for key, value in words.items() if key not in _KEPT}
    words |= {"search.trials": 2 * trials if is_finished else trials, "resume": run}
    commands = [
        Command(name, _line("search", words), "Trials are kept; the finalists are chosen and trained again."),
        Command(
            "Look at all trials in optuna-dashboard",
            shlex.join(["optuna-dashboard", address_of(files.study)]),
            "It comes with pip install 'l2l-nas[dashboard]'.",
        ),
        Command(
            "Make this page again", _line("report", {"run": run}), "Also while a search runs, or after it was killed."
        ),
    ]
    if not has_result:
        return tuple(commands)
    found = [
        Command("Score the best network again", _line("evaluate", {"run": run, **own})),
        Command(
            "Export the best network as plain PyTorch",
            _line("export", {"run": run, **own, "out": "network"}),
            f"The search wrote it to {files.export} already." if files.export.is_dir() else "",
        ),
    ]
    if "train" in COMMANDS:
        named = {"architecture": str(files.architecture), **({"space.pool": pool} if own else {})}
        found.append(Command("Train the best architecture from scratch", _line("train", named)))
    return (commands[0], *found, *commands[1:])


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


def _line(command: str, words: Mapping[str, Any]) -> str:
    return shlex.join(
        ["python", "-m", "l2l_nas", command, *(f"{name}={spell(value)}" for name, value in words.items())]
    )


def _changed(config: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any, str]]:
    for name, default, meaning in settings(SearchConf):
        value: Any = config
        for part in name.split("."):
            value = value[part]
        if name in _PLACES or value == default:
            continue
        if isinstance(default, dict):
            for key, item in value.items():
                yield f"{name}.{key}", item, None, f"argument of {config['space']['pool']}"
        else:
            is_decided = name in _KEPT and config["relay"]["budget"] == "none"
            yield name, value, default, f"{meaning} (decided by budget=auto, or given)" if is_decided else meaning
