"""A study whose pool changes between two runs: how trials are written and read when choices come and go.

Optuna keeps one set of choices for a parameter for as long as a study lives. So a position whose choices are no longer
those that the study began with is kept under another parameter name, which says what changed: `layer_3 +conv7 -mlp`.
Nothing that was written is ever written anew: numbers stay, no moment of a change can be interrupted, and processes
with the pool of before and after may work on one study at a time. The sampler reads a study in memory whose parameters
are the positions themselves, with today's choices; trials with other candidates are left out of it, and of it alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, create_trial

from l2l_nas.space.pool import LayerPool

# Optuna's databases take names of 512 characters
_LONGEST = 200


class Encoding:
    """Parameters of trials: as the sampler has them, and as the study keeps them.

    Args:
        pool: with today's candidates.
        first: by position, the candidates that the study began with.
    """

    def __init__(self, pool: LayerPool, first: Mapping[str, Sequence[str]]) -> None:
        self._positions = [position.name for position in pool.positions]
        self._live = [frozenset(c.name for c in position.candidates) for position in pool.positions]
        self.distributions: dict[str, BaseDistribution] = {
            position.name: CategoricalDistribution(sorted(c.name for c in position.candidates))
            for position in pool.free
            if len(position.candidates) > 1
        }
        self._kept = {
            name: kept_name(name, first.get(name, ()), live)
            for name, live in zip(self._positions, self._live, strict=True)
            if name in self.distributions
        }
        self._is_plain = all(name == kept for name, kept in self._kept.items())

    def is_live(self, choices: Sequence[str]) -> bool:
        """Whether all candidates of an architecture are in the pool."""
        return len(choices) == len(self._live) and all(
            name in live for name, live in zip(choices, self._live, strict=True)
        )

    def outward(self, trial: FrozenTrial) -> FrozenTrial:
        """A trial as the study keeps it."""
        if self._is_plain:
            return trial
        return _renamed(
            trial,
            {self._kept[name]: value for name, value in trial.params.items()},
            {self._kept[name]: one for name, one in trial.distributions.items()},
            trial.system_attrs,
        )

    def inward(self, trial: FrozenTrial) -> FrozenTrial | None:
        """A trial as the sampler reads it; None if one of its candidates is not there any more."""
        if trial.distributions == self.distributions:
            return trial
        choices: Sequence[str] = trial.user_attrs["architecture"]
        drawn = {name.split(" ")[0]: value for name, value in trial.params.items()}
        # what was drawn may be another form of the same architecture: samplers see that form
        params = {
            name: drawn.get(name, choices[index])
            for index, name in enumerate(self._positions)
            if name in self.distributions
        }
        if not all(params[name] in one.choices for name, one in self.distributions.items()):  # type: ignore[attr-defined]
            return None
        if not self.is_live(choices):
            return None
        # genetic samplers breed from the generation before; of those, some may be left out, and so all begin anew
        marks = {name: 0 if name.endswith(":generation") else value for name, value in trial.system_attrs.items()}
        return _renamed(trial, params, self.distributions, marks)


def kept_name(position: str, first: Sequence[str], now: frozenset[str]) -> str:
    """The parameter's name: the position's own for the choices that the study began with."""
    added, removed = sorted(now - set(first)), sorted(set(first) - now)
    if not added and not removed:
        return position
    change = " ".join([*(f"+{name}" for name in added), *(f"-{name}" for name in removed)])
    if len(change) > _LONGEST:
        change = f"{change[:_LONGEST]}... {hashlib.sha256(change.encode()).hexdigest()[:8]}"
    return f"{position} {change}"


def _renamed(
    trial: FrozenTrial,
    params: Mapping[str, object],
    distributions: Mapping[str, BaseDistribution],
    marks: Mapping[str, Any],
) -> FrozenTrial:
    copy = create_trial(
        state=trial.state,
        values=trial.values,
        params=dict(params),
        distributions=dict(distributions),
        user_attrs=trial.user_attrs,
        system_attrs=dict(marks),
        intermediate_values=trial.intermediate_values,
    )
    copy.number = trial.number
    copy.datetime_start, copy.datetime_complete = trial.datetime_start, trial.datetime_complete
    return copy
