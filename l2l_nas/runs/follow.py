"""What the other ranks do of a search or a training that rank 0 runs: see [Note: who leads] in `parallel/lead.py`."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from l2l_nas.eps.server import ParamServer
from l2l_nas.nas.strategies.machine_speed import MachineSpeed, measured
from l2l_nas.runs.build import keep_in_files, see_folder, set_threads
from l2l_nas.runs.components import full_budget, speed_context
from l2l_nas.runs.progress import StopSignals
from l2l_nas.runs.ranks import RunRanks
from l2l_nas.runs.settings import RetrainConf, SearchConf
from l2l_nas.runs.shared import Objects, TrainingComponents, build_shared
from l2l_nas.runs.train import training_steps
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.consensus import Consensus
from l2l_nas.training.problem import Problem
from l2l_nas.training.weights import SharedWeights

if TYPE_CHECKING:
    from l2l_nas.parallel.lead import Follower, Leader
    from l2l_nas.parallel.world import World

Result = TypeVar("Result")


def lead_or_follow(
    ranks: RunRanks, conf: SearchConf | RetrainConf, run: Callable[[], Result], *, objects: Objects | None = None
) -> Result | Problem:
    """Have rank 0 run something, and this one follow if it is another.

    Args:
        conf: the settings that this rank was given.
        run: the whole of it; rank 0 calls it.
        objects: in place of what settings name.

    Returns:
        What it gives, of rank 0; of another rank what it is of.

    Raises:
        SettingError: ranks were given different settings.
        BaseException: what ended it, on rank 0 or here.
    """
    ranks.agreed(replace(conf, folder=""))
    ranks.be_patient(conf.parallel.patience_s)
    if ranks.consensus.is_first:
        leader: Leader = ranks.lead  # type: ignore[assignment]
        with leader.leading():
            return run()
    followed = FollowedRun(ranks, objects)
    followed.follow()
    return followed.problem


class FollowedRun:
    """This rank's part of a run.

    Args:
        ranks: of the run, of which this one is not the first.
        objects: in place of what settings name.
    """

    def __init__(self, ranks: RunRanks, objects: Objects | None = None) -> None:
        self._ranks, self._objects = ranks, objects or Objects()
        self._opened = contextlib.ExitStack()
        self._parts: tuple[SearchConf | RetrainConf, TrainingComponents, ParamServer] | None = None

    def follow(self) -> None:
        """Do what rank 0 does, until its run is over.

        Raises:
            BaseException: what ended it, on rank 0 or here.
        """
        follower: Follower = self._ranks.lead  # type: ignore[assignment]
        follower.actions.update(
            {
                "build": self._build,
                "begin": self._begin,
                "measure speed": self._measure,
                "see a folder": see_folder,
                "keep states in files": self._keep_in_files,
            }
        )
        with StopSignals() as signals, self._opened:
            follower.asks = lambda: signals.is_asked
            follower.follow()

    @property
    def problem(self) -> Problem:
        """What the run is of."""
        assert self._parts is not None
        return self._parts[1].problem

    def _build(self, conf: Any) -> Any:
        self._parts = build_shared(conf, self._objects, self._ranks)
        self._opened.callback(self.problem.data.close)
        return self._parts

    def _begin(self, conf: SearchConf | RetrainConf, architecture: Architecture | None = None) -> None:
        """Know what rank 0 will ask for, when all numbers are decided."""
        assert self._parts is not None
        _, training, server = self._parts
        follower: Follower = self._ranks.lead  # type: ignore[assignment]
        follower.actions.update(SharedWeights(server, follower).actions())
        if isinstance(conf, SearchConf):
            follower.actions.update(training.evaluator(full_budget(conf, self._objects), follower).actions())
        else:
            assert architecture is not None
            follower.actions.update(training_steps(conf, training, architecture, follower).actions())

    def _measure(
        self, conf: SearchConf, path_at: Callable[[int], Architecture], clock: Callable[[], float]
    ) -> MachineSpeed:
        assert self._parts is not None
        training = self._parts[1]
        set_threads(conf.relay.threads, training.relay, workers=conf.search.workers)
        try:
            return measured(speed_context(conf, training, path_at, clock))
        finally:
            set_threads(conf.relay.threads, training.relay)

    def _keep_in_files(self, folder: Path) -> None:
        assert self._parts is not None
        keep_in_files(self._parts[2], folder, self._opened)


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
