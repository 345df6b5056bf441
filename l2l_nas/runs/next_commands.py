"""What a run's settings were, and the commands to go on with it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from l2l_nas.plugins import is_given
from l2l_nas.report.summary import Command, Setting
from l2l_nas.runs.command_line import command_line, resume_command, spell
from l2l_nas.runs.fields import settings
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.folder_settings import FolderSettings, typeable
from l2l_nas.runs.groups import deviating
from l2l_nas.runs.settings import PLACES, SearchConf

# decided when a run begins, where they are not given
_DECIDED = ("relay.budget", "relay.keep", "relay.slots")


def changed_settings(config: Mapping[str, Any]) -> tuple[Setting, ...]:
    """The settings of a search that differ from their defaults, but for its folder.

    Raises:
        KeyError, TypeError: a section is missing or something else.
    """
    meanings = {name: meaning for name, _, meaning in settings(SearchConf)}
    found = []
    for name, (value, default) in deviating(SearchConf, config).items():
        meaning = meanings[next(one for one in _sections(name) if one in meanings)]
        if name.startswith("space.args."):
            meaning = f"argument of {config['space']['pool']}"
        elif name in meanings and default is None:
            meaning = f"{meaning.partition(';')[0]} (decided by space and data, or given)"
        elif name in _DECIDED and config["relay"]["budget"] == "none":
            meaning += " (decided by budget=auto, or given)"
        if name not in PLACES:
            shown = "" if default is None else spell(default)
            found.append(Setting(name.removesuffix(".names"), spell(value), shown, meaning))  # objectives, as written
    return tuple(found)


def _sections(name: str) -> Iterator[str]:
    """A name, and those that it lies below."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def next_commands(folder: Path, saved: FolderSettings, *, is_finished: bool, has_result: bool) -> tuple[Command, ...]:
    """What one may want to do with a run.

    Args:
        saved: its settings.
        is_finished: whether all trials asked for are done.

    Raises:
        KeyError, TypeError, ValueError: the settings lack something.
    """
    run, files, own = str(folder), RunFolder(folder), typeable(saved.withheld)
    pool = own.get("space.pool", "")
    more = {"search.trials": 2 * int(saved.config["search"]["trials"])} if is_finished else {}
    name = "Go on, to twice as many trials" if is_finished else "Go on, to the trials asked for"
    again = resume_command("search", run, {**own, **more})
    named = {"run": run, **({"space.pool": pool} if pool else {})}
    commands = [
        Command(name, again, "Trials stay; the finalists are chosen and trained again."),
        Command(
            "Look at all trials in optuna-dashboard",
            shlex.join(["optuna-dashboard", str(files.study)]),
            "It comes with pip install 'l2l-nas[dashboard]'.",
        ),
        Command(
            "Make this page again",
            command_line("report", {"run": run}),
            "Also while a search runs, or after it was killed.",
        ),
    ]
    if not has_result:
        return tuple(commands)
    if is_given(pool):
        line = f"l2l_nas.SearchResult({run!r}, problem).network()"
        note = "The commands evaluate, export and train take what builds the problem: space.pool=FILE.py:FUNCTION."
        return (commands[0], Command("Load the best network, in Python", line, note), *commands[1:])
    found = [
        Command("Score the best network again", command_line("evaluate", named)),
        Command(
            "Export the best network as plain PyTorch",
            command_line("export", {**named, "out": "network"}),
            f"The search wrote it to {files.export} already." if files.export.is_dir() else "",
        ),
        Command("Train the best architecture by itself", command_line("train", named)),
    ]
    return (commands[0], *found, *commands[1:])
