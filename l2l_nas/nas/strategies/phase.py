"""A phase of a search; a strategy is a list of them.

Derive from `Phase` and write `run`. A phase uses what `SearchContext` holds: it may train the shared weights with
`evaluator.train`, score architectures with `evaluator.score`, make trials of architectures with `study.propose`, and
leaves what it found there for the phases behind it. The phase that chooses what is returned sets `best`. It runs on one
process; what takes the weights is done by all that share them, and goes through `evaluator`.

    l2l_nas.search(problem, strategy=[WarmUp(), Mine(), Trials(), Finalists(), RandomSearch()])
    python -m l2l_nas search strategy=mine.py:phases            # a function that returns such a list
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from l2l_nas.eps.server import ParamServer
    from l2l_nas.nas.evaluation.evaluator import Evaluator
    from l2l_nas.nas.strategies.budget import Budget
    from l2l_nas.nas.strategies.context import SearchContext
    from l2l_nas.nas.strategies.machine_speed import MachineSpeed, SpeedContext


class Phase:
    """A part of a search.

    Attributes:
        is_saved: whether the shared weights are saved behind it.
    """

    is_saved = True

    def check(self, server: ParamServer, budget: Budget) -> None:
        """Refuse what this phase cannot do, before anything is written.

        Args:
            server: of the pool; no state of it exists yet.
            budget: numbers that nobody said are small ones.

        Raises:
            L2LError: it cannot be done.
        """

    def teach(self, evaluator: Evaluator) -> None:
        """Change what networks learn behind this phase; asked where a speed is measured, which it may change."""

    def speed(self, speed: MachineSpeed, context: SpeedContext) -> MachineSpeed:
        """How fast this machine is at a search with this phase; asked where a time is divided.

        Args:
            speed: without it.
            context: to measure with, before anything is written; weights stay as they are.
        """
        return speed

    def run(self, search: SearchContext) -> None:
        """Do it. A search that was interrupted and goes on runs all its phases: what is done must not be done again.

        Raises:
            Stopped: the callback asked for it.
            L2LError: it cannot be done.
        """
        raise NotImplementedError

    def results(self, search: SearchContext) -> Mapping[str, Any]:
        """What it found beside trials and finalists, as JSON: keys of `result.json` that nothing else uses."""
        return {}

    def state(self, search: SearchContext) -> Mapping[str, Any]:
        """How far it is, as JSON, stored beside the shared weights.

        No two phases may use one name, and none "coverage".
        """
        return {}

    def restore(self, search: SearchContext, state: Mapping[str, Any]) -> None:
        """Take over what `state` of all phases gave.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: it is damaged; so it is reported.
        """
