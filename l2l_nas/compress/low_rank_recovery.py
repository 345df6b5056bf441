"""Finalists train low-rank pairs in place of all their weights."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from l2l_nas.compress.block_training import relay_beside
from l2l_nas.compress.low_rank import merge, paired_server, with_pairs
from l2l_nas.cost.closed_form import path_states
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import SettingError
from l2l_nas.nas.evaluation.evaluator import Evaluator
from l2l_nas.nas.evaluation.inline import InlineExecutor
from l2l_nas.nas.evaluation.segment import START_WEIGHTS, AfterStep, ScoredOn, Segment, SegmentResult
from l2l_nas.nas.strategies.budget import Budget
from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.phase import Phase


class TrainPairs(Phase):
    """From here on networks train pairs, which are merged into the weights in the end; see `compress/low_rank.py`.

    Args:
        rank: of pairs.
    """

    is_saved = False

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def check(self, server: ParamServer, budget: Budget) -> None:
        """See `Phase`.

        Raises:
            SettingError: there is nothing to train pairs beside, or nothing that trains them.
        """
        with_pairs(server.pool, self._rank)
        for name in ("finalists", "finalist_steps"):
            if not getattr(budget, name):
                raise SettingError(f"strategy.lora is how finalists are trained, and search.{name}=0 trains none")
        if budget.baseline != "none":
            raise SettingError(
                f"strategy.lora trains pairs from here on, and search.baseline={budget.baseline} networks from first "
                "weights; leave one out"
            )

    def run(self, search: SearchContext) -> None:
        """See `Phase`.

        Raises:
            SettingError: there are worker processes.
        """
        if not isinstance(search.executor, InlineExecutor):
            raise SettingError("strategy.lora: worker processes train all weights; use search.workers=1, or lora=0")
        search.evaluator.do(partial(_train_pairs, rank=self._rank))


def _train_pairs(evaluator: Evaluator, rank: int) -> None:
    evaluator.run_with(_PairRuns(evaluator, rank))


class _PairRuns:
    """Runs segments of finalists; the last one of a network gives plain weights."""

    def __init__(self, evaluator: Evaluator, rank: int) -> None:
        self._server = evaluator.server
        self._pool = with_pairs(self._server.pool, rank)
        relay = relay_beside(evaluator.relay, paired_server(self._server, self._pool, ()), keeps=True)
        self._evaluator = evaluator.on(relay)

    def __call__(self, segment: Segment, after_step: AfterStep, start: ParamServer | None) -> SegmentResult:
        """See `Evaluator.run_here`."""
        assert start is None  # workers give one, and have no pairs
        paired = replace(segment, server=self._paired(segment))
        result = self._evaluator.run_here(paired, after_step)
        if result.server is not None and segment.scored_on is ScoredOn.TEST:
            keys = path_states(self._server.pool, segment.architecture)
            result = replace(result, server=merge(result.server, self._server.fork(keys), keys))
        return result

    def _paired(self, segment: Segment) -> ParamServer:
        server, architecture = segment.server, segment.architecture
        if server is not None and server.pool is self._pool:
            return server
        server = server or START_WEIGHTS[segment.weights](self._server, architecture)
        return paired_server(server, self._pool, path_states(self._server.pool, architecture))
