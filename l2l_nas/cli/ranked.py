"""A command on the ranks that torchrun started; see `runs/ranks.py`."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import torch

from l2l_nas.cli.launch import launch
from l2l_nas.errors import SettingError
from l2l_nas.parallel.entry import run_ranked
from l2l_nas.parallel.world import World
from l2l_nas.runs.rank_group import consensus_of
from l2l_nas.runs.ranks import COMMANDS, RunRanks


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
    if torch.cuda.is_available():
        torch.cuda.set_device(world.local_rank % torch.cuda.device_count())

    def be_patient(seconds: float) -> None:
        world.watch.patience_s = seconds

    consensus = consensus_of(world)
    with contextlib.ExitStack() as stack:
        scratch = None
        if not consensus.is_first:
            stack.enter_context(_silence())
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"l2l_nas-rank{world.rank}-")))
        code = launch(command, words, is_program=True, ranks=RunRanks(consensus, scratch, be_patient))
        if code:  # the others end as well, and the launcher ends whoever is later
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return code


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Nothing but an error is shown: rank 0 shows the same."""
    logger = logging.getLogger("l2l_nas")
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.disabled = True
        try:
            yield
        finally:
            logger.disabled = False
            sys.stdout.flush()
