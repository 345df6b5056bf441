"""The parameters of a trial: a choice of candidates for each position of a pool; see [Note: parameters]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, create_trial

from l2l_nas.space.pool import LayerPool


def as_choices(names: Mapping[str, Sequence[str]]) -> dict[str, CategoricalDistribution]:
    """A parameter for each position with a choice, from candidates by position."""
    return {name: CategoricalDistribution(some) for name, some in names.items() if len(some) > 1}


def choices_in(pool: LayerPool) -> dict[str, CategoricalDistribution]:
    """A parameter for each position of a pool with a choice."""
    return as_choices({position.name: sorted(c.name for c in position.candidates) for position in pool.free})


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
