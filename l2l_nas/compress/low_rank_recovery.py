"""Finalists train low-rank pairs in place of all their weights."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from l2l_nas.compress.block_training import relays_like
from l2l_nas.compress.low_rank import merge, paired_server, with_pairs
from l2l_nas.cost.closed_form import path_states
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import SettingError
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
        search.executor = _PairExecutor(search, self._rank)


class _PairExecutor:
    """Runs segments of finalists, one after the other; the last one of a network gives plain weights."""

    size = 1

    def __init__(self, search: SearchContext, rank: int) -> None:
        self._server, self._poll = search.server, search.callback.poll
        self._pool = with_pairs(search.server.pool, rank)
        relay = relays_like(search.relay, keeps=True)(paired_server(search.server, self._pool, ()))
        self._evaluator = search.evaluator.on(relay)
        self._waiting: deque[tuple[Segment, AfterStep | None]] = deque()

    def submit(self, segment: Segment, *, after_step: AfterStep | None = None) -> None:
        """See `SegmentExecutor`."""
        self._waiting.append((segment, after_step))

    def finished(self) -> list[tuple[Segment, SegmentResult]]:
        """See `SegmentExecutor`: the first that waits."""
        if not self._waiting:
            return []
        segment, after_step = self._waiting.popleft()
        paired = replace(segment, server=self._paired(segment))
        result = self._evaluator.run(paired, after_step=after_step, poll=self._poll)
        if result.server is not None and segment.scored_on is ScoredOn.TEST:
            keys = path_states(self._server.pool, segment.architecture)
            result = replace(result, server=merge(result.server, self._server.fork(keys), keys))
        return [(segment, result)]

    def _paired(self, segment: Segment) -> ParamServer:
        server, architecture = segment.server, segment.architecture
        if server is not None and server.pool is self._pool:
            return server
        server = server or START_WEIGHTS[segment.weights](self._server, architecture)
        return paired_server(server, self._pool, path_states(self._server.pool, architecture))
