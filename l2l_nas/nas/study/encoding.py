"""Parameters of trials where the pool changes between two runs: as the sampler has them, and as the study keeps them.

Both have one parameter for each position with a choice. Its name is the position's, its value a candidate's name. The
sampler reads a study in memory with today's choices; trials with other candidates are left out of it, and of it alone.
What is saved has the choices of all that ever were candidates, as far as was known then: a journal keeps older
trials with the choices that they had, a database has one set of them for a study (see [Note: growth]).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optuna.distributions import CategoricalDistribution
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
        free = [position.name for position in pool.free]
        self.distributions = distributions_of({name: self._today[name] for name in free})
        self._stored = distributions_of({name: stored.get(name, ()) for name in free})

    def is_in_space(self, choices: Sequence[str]) -> bool:
        """Whether all candidates of an architecture are in the pool."""
        return len(choices) == len(self._today) and all(
            name in names for name, names in zip(choices, self._today.values(), strict=True)
        )

    def outward(self, trial: FrozenTrial) -> FrozenTrial:
        """A trial as the study keeps it."""
        return with_choices(trial, self._stored, positions=list(self._today))

    def inward(self, trial: FrozenTrial) -> FrozenTrial | None:
        """A trial as the sampler reads it; None if one of its candidates is not there any more."""
        if trial.distributions == self.distributions:
            return trial
        if not self.is_in_space(trial.user_attrs["architecture"]):
            return None
        found = with_choices(trial, self.distributions, positions=list(self._today))
        if found.distributions != self.distributions:
            return None
        # genetic samplers breed from the generation before; of those, some may be left out, and so all begin anew
        found.system_attrs = {
            name: 0 if name.endswith(":generation") else value for name, value in found.system_attrs.items()
        }
        return found


def distributions_of(choices: Choices) -> dict[str, CategoricalDistribution]:
    """A parameter for each position with a choice."""
    return {name: CategoricalDistribution(names) for name, names in choices.items() if len(names) > 1}


def with_choices(
    trial: FrozenTrial, distributions: Mapping[str, CategoricalDistribution], *, positions: Sequence[str]
) -> FrozenTrial:
    """A trial with these parameters, as far as it has values that they take; itself where it has them already.

    What was drawn may be another form of the same architecture: samplers see that form.

    Args:
        positions: names of all, in order.
    """
    if trial.distributions == distributions:
        return trial
    drawn = {**dict(zip(positions, trial.user_attrs["architecture"], strict=True)), **trial.params}
    params = {name: drawn[name] for name, one in distributions.items() if drawn[name] in one.choices}
    copy = create_trial(
        state=trial.state,
        values=trial.values,
        params=params,
        distributions={name: distributions[name] for name in params},
        user_attrs=trial.user_attrs,
        system_attrs=trial.system_attrs,
        intermediate_values=trial.intermediate_values,
    )
    copy.number = trial.number
    copy.datetime_start, copy.datetime_complete = trial.datetime_start, trial.datetime_complete
    return copy


def choices_of(params: Mapping[str, Any], pool: LayerPool) -> tuple[str, ...]:
    """The candidate of each position, by a trial's parameters; where there is no choice, the only one."""
    return tuple(str(params.get(position.name, position.candidates[0].name)) for position in pool.positions)
