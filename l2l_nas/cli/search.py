"""`search`: find an architecture, write everything about it into a folder, go on after an interruption."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict

from rich.console import Console

from l2l_nas.runs.command_line import resume_command
from l2l_nas.runs.inherit import go_on
from l2l_nas.runs.saved_config import own_names
from l2l_nas.runs.search import SearchRun
from l2l_nas.runs.settings import SearchConf


def prepared(
    conf: SearchConf, *, given: Collection[str], files: Mapping[str, str], console: Console, again: str
) -> SearchRun:
    """The run, with the settings of its folder if it goes on.

    Args:
        conf: its settings.
        given: names of those that somebody gave.
        files: that Hydra would write, see `hydra_files`.
        console: the terminal.
        again: the command that goes on with it, if it is not that of one search.
    """
    again = again or resume_command("search", conf.resume or conf.folder, own_names(asdict(conf)))
    before = go_on("search", conf, given=given) if conf.resume else None
    # of a run that goes on they tell how it was started
    return SearchRun(before or conf, console, again=again, given=given, files=files if before is None else {})
