"""Random search of as many steps as the search took, beside it; see `baseline.py`."""

from __future__ import annotations

from l2l_nas.nas.strategies import baseline
from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.nas.strategies.rounds import Counted

_SEED = 1_000_003  # far from those of other runs


class RandomSearch(Phase):
    """Trains random networks, if the budget asks for it."""

    is_saved = False

    def run(self, search: SearchContext) -> None:
        """See `Phase`."""
        if search.budget.baseline == "none":
            return
        total = search.steps_taken
        search.callback.phase("baseline", total=total, done=0)
        draws = search.random_architectures(search.seed + _SEED)
        segments = baseline.plan(search.budget, draws, steps=total)
        steps = Counted(search.callback, total)
        search.baseline = baseline.play(
            search.executor, segments, search.goals[0], costs=search.figures, after_step=steps.after_step
        )
