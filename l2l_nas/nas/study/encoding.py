"""A study whose pool changes between two runs: its trials as the sampler reads them, and as the study keeps them.

Both have one parameter for each position with a choice. Its name is the position's, its value a candidate's name. The
sampler reads a study in memory with today's choices; trials with other candidates are left out of it, and of it alone.
The saved study has the choices that its space names (`candidates`). A run's own file is written anew, with all that
ever were candidates, when some join (see `StudyFile`). A study in a database cannot be, and Optuna keeps one set
of choices for a parameter for as long as a study lives: there a candidate that joined later is a parameter of its own,
`layer_3 conv7`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, create_trial

from l2l_nas.space.pool import LayerPool

# candidates by position, in the order of positions
Choices = Mapping[str, Sequence[str]]


class Encoding:
    """Parameters of trials: as the sampler has them, and as the study keeps them.

    Args:
        pool: with today's candidates.
        stored: the choices of the saved study.
    """

    def __init__(self, pool: LayerPool, stored: Choices) -> None:
        self._today = {position.name: sorted(c.name for c in position.candidates) for position in pool.positions}
        self._free = frozenset(position.name for position in pool.free)
        self._stored = {name: stored.get(name, ()) for name in self._today}
        self.distributions: dict[str, BaseDistribution] = {
            position.name: CategoricalDistribution(self._today[position.name])
            for position in pool.free
            if len(position.candidates) > 1
        }

    def is_live(self, choices: Sequence[str]) -> bool:
        """Whether all candidates of an architecture are in the pool."""
        return len(choices) == len(self._today) and all(
            name in names for name, names in zip(choices, self._today.values(), strict=True)
        )

    def outward(self, trial: FrozenTrial) -> FrozenTrial:
        """A trial as the study keeps it."""
        return expressed(trial, self._stored, free=self._free)

    def inward(self, trial: FrozenTrial) -> FrozenTrial | None:
        """A trial as the sampler reads it; None if one of its candidates is not there any more."""
        if trial.distributions == self.distributions:
            return trial
        found = expressed(trial, self._today, free=self._free)
        if found.distributions != self.distributions or not self.is_live(trial.user_attrs["architecture"]):
            return None
        # genetic samplers breed from the generation before; of those, some may be left out, and so all begin anew
        marks = {name: 0 if name.endswith(":generation") else value for name, value in trial.system_attrs.items()}
        return _changed(trial, found.params, found.distributions, marks)


def expressed(trial: FrozenTrial, choices: Choices, *, free: Collection[str] | None = None) -> FrozenTrial:
    """A trial with a parameter for each position with a choice; itself where it has those already.

    What is not among the choices becomes a parameter of its own. What was drawn may be another form of the same
    architecture: samplers see that form.

    Args:
        free: positions that follow no other, which alone have one; None for all.
    """
    others = {name: value for name, value in trial.params.items() if name not in choices}
    params: dict[str, Any] = {}
    distributions: dict[str, BaseDistribution] = {}
    for (position, names), canonical in zip(choices.items(), trial.user_attrs["architecture"], strict=True):
        own = (value for name, value in others.items() if name.startswith(f"{position} "))
        value = trial.params[position] if position in trial.params else next(own, canonical)
        known = value in names
        if not known or (len(names) > 1 and (free is None or position in free)):
            name = position if known else f"{position} {value}"
            params[name], distributions[name] = value, CategoricalDistribution(names if known else (value,))
    if distributions == trial.distributions:
        return trial
    return _changed(trial, params, distributions, trial.system_attrs)


def all_choices(now: Choices, before: Choices, trials: Sequence[FrozenTrial]) -> dict[str, list[str]]:
    """All that ever were candidates: of two pools, and of trials, by position."""
    found = {position: {*names, *before.get(position, ())} for position, names in now.items()}
    for trial in trials:
        drawn = expressed(trial, dict.fromkeys(now, ())).params.values()
        for position, *names in zip(now, drawn, trial.user_attrs["architecture"], strict=True):
            found[position].update(names)
    return {position: sorted(names) for position, names in found.items()}


def _changed(
    trial: FrozenTrial,
    params: Mapping[str, Any],
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
