"""What the other ranks do of a search or a training that rank 0 runs: see [Note: who leads] in `parallel/lead.py`."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from l2l_nas.compress.blockwise import STRATEGIES
from l2l_nas.nas.strategies.default import build_phases
from l2l_nas.runs.build import keep_in_files, see_folder
from l2l_nas.runs.numbers import budget_of
from l2l_nas.runs.parts import Parts, build_parts, evaluator_of
from l2l_nas.runs.progress import StopSignals
from l2l_nas.runs.ranks import RunRanks
from l2l_nas.runs.search_parts import full_budget
from l2l_nas.runs.settings import RetrainConf, SearchConf
from l2l_nas.runs.train import training_steps
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.problem import Problem
from l2l_nas.training.weights import SharedWeights

if TYPE_CHECKING:
    from l2l_nas.parallel.lead import Follower
    from l2l_nas.parallel.mesh import WorldMesh
    from l2l_nas.parallel.world import World

Result = TypeVar("Result")


def lead_or_follow(ranks: RunRanks, conf: SearchConf | RetrainConf, run: Callable[[], Result]) -> Result | Problem:
    """Have rank 0 run something, and this one follow if it is another.

    Args:
        conf: the settings that this rank was given.
        run: the whole of it; rank 0 calls it.

    Returns:
        What it gives, of rank 0; of another rank what it is of.

    Raises:
        SettingError: ranks were given different settings.
        BaseException: what ended it, on rank 0 or here.
    """
    ranks.be_patient(conf.parallel.patience_s)
    with ranks.agreed(replace(conf, folder="")):
        if ranks.is_first:
            return run()
        followed = FollowedRun(ranks, conf.objects)
        followed.follow()
        return followed.problem


class FollowedRun:
    """This rank's part of a run.

    Args:
        ranks: of the run, of which this one is not the first.
        objects: of this rank's own settings; see `RunConf`.
    """

    def __init__(self, ranks: RunRanks, objects: Mapping[str, Any]) -> None:
        self._ranks, self._objects = ranks, objects
        self._opened = contextlib.ExitStack()
        self._parts: Parts | None = None

    def follow(self) -> None:
        """Do what rank 0 does, until its run is over.

        Raises:
            BaseException: what ended it, on rank 0 or here.
        """
        actions: dict[str, Callable[..., Any]] = {
            "build": self._build,
            "begin": self._begin,
            "see a folder": see_folder,
            "keep states in files": self._keep_in_files,
        }
        with StopSignals() as signals, self._opened:
            self._ranks.follow(actions, asks=lambda: signals.is_asked)

    @property
    def problem(self) -> Problem:
        """What the run is of."""
        assert self._parts is not None
        return self._parts.problem

    @property
    def _follower(self) -> Follower:
        return self._ranks.lead  # type: ignore[return-value]

    def _build(self, conf: SearchConf | RetrainConf) -> Parts:
        self._parts = parts = build_parts(replace(conf, objects=self._objects), self._ranks)
        self._opened.callback(self.problem.data.close)
        if isinstance(parts.conf, SearchConf):  # what rank 0 measures a speed with, and whose work it may name
            build_phases(parts.conf.chosen("strategy"), STRATEGIES)
            self._follower.actions.update(evaluator_of(parts, budget_of(parts.conf), self._follower).actions())
        return parts

    def _begin(self, conf: SearchConf | RetrainConf, architecture: Architecture | None = None) -> None:
        """Know what rank 0 will ask for, when all numbers are decided."""
        assert self._parts is not None
        parts = self._parts = replace(self._parts, conf=replace(conf, objects=self._objects))
        follower = self._follower
        follower.actions.update(SharedWeights(parts.server, follower).actions())
        if isinstance(parts.conf, SearchConf):
            follower.actions.update(evaluator_of(parts, full_budget(parts.conf), follower).actions())
        else:
            assert architecture is not None
            follower.actions.update(training_steps(parts, architecture, follower).actions())

    def _keep_in_files(self, folder: Path) -> None:
        assert self._parts is not None
        keep_in_files(self._parts.server, folder, self._opened)


@contextlib.contextmanager
def joined(world: World) -> Iterator[RunRanks]:
    """The ranks of a command. Others than rank 0 show nothing meanwhile."""
    from l2l_nas.parallel.lead import Follower, Leader

    if torch.cuda.is_available():
        torch.cuda.set_device(world.local_rank % torch.cuda.device_count())

    def be_patient(seconds: float) -> None:
        world.watch.patience_s = seconds

    def mesh(tensor: int) -> WorldMesh:
        return world.mesh(tensor=tensor)

    if world.rank == 0:
        yield RunRanks(world.exchange, Leader(world), mesh, be_patient)
        return
    with _silence():
        yield RunRanks(world.exchange, Follower(world), mesh, be_patient)


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
