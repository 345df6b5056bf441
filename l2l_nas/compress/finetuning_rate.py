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

from l2l_nas.errors import SettingError
from l2l_nas.nas.evaluation.segment import ScoredOn, run_all
from l2l_nas.nas.objectives import TrialRecord
from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.finalist_phase import Counted, chosen_finalists, finalist_settings
from l2l_nas.nas.strategies.finalists import key_of
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
        self._key = ""  # of the networks and settings that they are of

    def speed(self, speed: MachineSpeed, context: SpeedContext) -> MachineSpeed:
        """See `Phase`."""
        count = len(self._shares)
        if count < 2:
            return speed
        return replace(speed, tried=-(-count // speed.workers) * _SHARE, fixed=speed.fixed + count * speed.score)

    def run(self, search: SearchContext) -> None:
        """See `Phase`. Where no rate gives a finite metric, the rate stays: finalists say what is wrong."""
        budget = search.budget
        steps = int(_SHARE * budget.finalist_steps)
        chosen: list[TrialRecord] = []
        if len(self._shares) > 1 and budget.finalists and steps >= _LEAST:
            allowed = [record for record in search.allowed(search.study.records) if record.in_space]
            chosen = chosen_finalists(search, allowed)
        if not chosen:
            self._found = {}
            return
        rates = [budget.finalist_learning_rate * share for share in self._shares]
        key = key_of(chosen, {**finalist_settings(search), "rates": rates})
        if key != self._key:
            self._found = next((found for one in chosen if (found := self._tried(search, one, rates, steps))), {})
            self._key = key
            search.save()
        known = [(value, rate) for rate, value in self._found.items() if value is not None]
        if known:
            best = max if search.goals[0].maximize else min
            search.budget = replace(budget, finalist_learning_rate=best(known, key=lambda pair: pair[0])[1])

    def _tried(
        self, search: SearchContext, record: TrialRecord, rates: Sequence[float], steps: int
    ) -> dict[float, float | None]:
        """The first metric by rate; nothing where none is finite, as of a network that cannot be trained."""
        whole = search.budget.finalist_segment(record.architecture, 0, spend=search.budget.rounds[0])
        some = {"steps": steps, "total": steps, "scored_on": ScoredOn.VALIDATION, "keeps_weights": False}
        segments = [
            replace(whole, name=f"learning rate {number}", learning_rate=rate, **some)  # type: ignore[arg-type]
            for number, rate in enumerate(rates, 1)
        ]
        total = steps * len(segments)
        search.callback.phase("rates", total=total, done=0)
        counted, name = Counted(search.callback, total), search.goals[0].name
        found: dict[float, float | None] = dict.fromkeys(rates)
        for index, result in run_all(search.executor, segments, after_step=lambda _, loss: counted.after_step(loss)):
            value = result.metrics.get(name)
            found[rates[index]] = value if value is not None and math.isfinite(value) else None
        return found if any(value is not None for value in found.values()) else {}

    def results(self, search: SearchContext) -> Mapping[str, Any]:
        """See `Phase`: the metric of each rate, and which rate finalists had."""
        if not self._found:
            return {}
        tried = [{"rate": rate, "value": value} for rate, value in sorted(self._found.items(), reverse=True)]
        chosen = search.budget.finalist_learning_rate
        return {"rates": {"metric": search.goals[0].name, "tried": tried, "chosen": chosen}}

    def state(self, search: SearchContext) -> Mapping[str, Any]:
        return {"finetuning_rates": {"key": self._key, "found": [[rate, value] for rate, value in self._found.items()]}}

    def restore(self, search: SearchContext, state: Mapping[str, Any]) -> None:
        stored = state.get("finetuning_rates", {"key": "", "found": []})
        self._key = str(stored["key"])
        self._found = {float(rate): None if value is None else float(value) for rate, value in stored["found"]}
