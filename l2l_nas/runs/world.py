"""This process as a rank of a run, whoever started it: a command line, or a program of the user's own."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from l2l_nas.runs.ranks import RunRanks
from l2l_nas.training.consensus import Consensus

if TYPE_CHECKING:
    from l2l_nas.parallel.world import World


@contextlib.contextmanager
def joined(world: World) -> Iterator[RunRanks]:
    """The ranks of a command. Others than rank 0 show nothing meanwhile."""
    from l2l_nas.parallel.lead import Follower, Leader

    if torch.cuda.is_available():
        torch.cuda.set_device(world.local_rank % torch.cuda.device_count())

    def be_patient(seconds: float) -> None:
        world.watch.patience_s = seconds

    consensus = Consensus(world.exchange, lambda size: world.mesh(tensor=size))
    if consensus.is_first:
        yield RunRanks(consensus, Leader(world), be_patient)
        return
    with _silence():
        yield RunRanks(consensus, Follower(world), be_patient)


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Nothing but an error is shown: rank 0 shows the same."""
    logger = logging.getLogger("l2l_nas")
    was_disabled = logger.disabled
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.disabled = True
        try:
            yield
        finally:
            logger.disabled = was_disabled
            sys.stdout.flush()
