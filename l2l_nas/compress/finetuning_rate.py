"""The learning rate of finalists is tried before they are trained.

A rate that suits one model is ten times too high for another, and a whole training shows it too late. So the first
network that is chosen trains for a tenth of the steps with each of a few rates, on a copy of its weights. The one that
does best on the validation part is the rate of all finalists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from l2l_nas.errors import L2LError, SettingError
from l2l_nas.nas.evaluation.segment import ScoredOn, Segment, run_all
from l2l_nas.nas.objectives import TrialRecord
from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.finalist_phase import Counted, chosen_finalists
from l2l_nas.nas.strategies.machine_speed import MachineSpeed, SpeedContext
from l2l_nas.nas.strategies.phase import Phase

RATES = (1.0, 0.3, 0.1)
_SHARE = 0.1  # of a finalist's steps, for each rate
_LEAST = 2  # steps: fewer tell nothing


class TryRates(Phase):
    """See the module; nothing is tried where a tenth of the steps are too few.

    Args:
        shares: of `search.finalist_learning_rate`, each a rate to try.

    Raises:
        SettingError: a share that is none.
    """

    is_saved = False

    def __init__(self, shares: Sequence[float]) -> None:
        for share in shares:
            if not 0 < share < math.inf:
                raise SettingError(f"strategy.rates are shares above 0 of the finalists' learning rate, got {share:g}")
        self._shares = tuple(dict.fromkeys(map(float, shares)))
        self._found: dict[float, float | None] = {}  # by rate, the first metric; None where it is not finite

    def speed(self, speed: MachineSpeed, context: SpeedContext) -> MachineSpeed:
        """See `Phase`."""
        return replace(speed, tried=len(self._shares) * _SHARE) if len(self._shares) > 1 else speed

    def run(self, search: SearchContext) -> None:
        """See `Phase`.

        Raises:
            L2LError: no rate gives a finite metric.
        """
        budget = search.budget
        steps = int(_SHARE * budget.finalist_steps)
        if len(self._shares) < 2 or not budget.finalists or steps < _LEAST:
            return
        rates = [budget.finalist_learning_rate * share for share in self._shares]
        left = [rate for rate in rates if rate not in self._found]
        chosen = chosen_finalists(search) if left else []
        if chosen:
            self._try(search, chosen[0], left, steps)
            search.save()
        known = [(value, rate) for rate, value in self._found.items() if value is not None]
        if known:
            best = max if search.goals[0].maximize else min
            search.budget = replace(budget, finalist_learning_rate=best(known, key=lambda pair: pair[0])[1])
        elif self._found:
            listed = ", ".join(f"{rate:g}" for rate in rates)
            raise L2LError(
                f"none of the learning rates {listed} gives a finite {search.goals[0].name}; lower "
                "search.finalist_learning_rate"
            )

    def _try(self, search: SearchContext, record: TrialRecord, rates: Sequence[float], steps: int) -> None:
        whole = search.budget.finalist_segment(record.architecture, 0, spend=search.budget.rounds[0])
        segments = [_tried(whole, rate, steps) for rate in rates]
        total = steps * len(segments)
        search.callback.phase("rates", total=total, done=0)
        counted, name = Counted(search.callback, total), search.goals[0].name
        for index, result in run_all(search.executor, segments, after_step=lambda _, loss: counted.after_step(loss)):
            value = result.metrics.get(name)
            self._found[rates[index]] = value if value is not None and math.isfinite(value) else None

    def results(self, search: SearchContext) -> Mapping[str, Any]:
        """See `Phase`: the metric of each rate, and which rate finalists had."""
        if not self._found:
            return {}
        tried = [{"rate": rate, "value": value} for rate, value in sorted(self._found.items(), reverse=True)]
        chosen = search.budget.finalist_learning_rate
        return {"rates": {"metric": search.goals[0].name, "tried": tried, "chosen": chosen}}

    def state(self, search: SearchContext) -> Mapping[str, Any]:
        return {"finetuning_rates": [[rate, value] for rate, value in self._found.items()]}

    def restore(self, search: SearchContext, state: Mapping[str, Any]) -> None:
        found = {float(rate): value for rate, value in state.get("finetuning_rates", [])}
        self._found = {rate: None if value is None else float(value) for rate, value in found.items()}


def _tried(whole: Segment, rate: float, steps: int) -> Segment:
    """A tenth of a finalist's training, as if it was all of it."""
    return replace(
        whole,
        name=f"learning rate {rate:g}",
        learning_rate=rate,
        steps=steps,
        total=steps,
        scored_on=ScoredOn.ERRORS,
        keeps_weights=False,
    )
