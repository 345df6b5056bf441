"""A command on the ranks that torchrun started; see `runs/ranks.py`."""

from __future__ import annotations

import signal
from typing import NoReturn

from l2l_nas.cli.launch import launch
from l2l_nas.errors import SettingError
from l2l_nas.parallel.entry import run_ranked
from l2l_nas.parallel.world import World
from l2l_nas.runs.follow import joined
from l2l_nas.runs.ranks import COMMANDS


def launch_ranked(command: str, words: list[str]) -> NoReturn:
    """Join the other ranks, run a command with them, and end this process."""
    run_ranked(lambda world: _run(command, words, world))


def _run(command: str, words: list[str], world: World) -> int:
    """What `launch` returns.

    Raises:
        L2LError: what it would have printed.
    """
    if command not in COMMANDS:
        raise SettingError(f"{command} takes one process; start it without torchrun, as python -m l2l_nas {command}")
    with joined(world) as ranks:
        code = launch(command, words, is_program=True, ranks=ranks)
        if code:  # the others end as well, and the launcher ends whoever is later
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return code
