"""Reads a study that a loop of the user's own has filled, with `suggest`."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from l2l_nas.arguments import check_kind
from l2l_nas.errors import SettingError, SpaceError
from l2l_nas.nas.objectives import Goal, State, TrialRecord
from l2l_nas.space.pool import LayerPool

_STATES = {TrialState.COMPLETE: State.COMPLETE, TrialState.PRUNED: State.STOPPED, TrialState.FAIL: State.FAILED}


def read_own_study(study: optuna.Study, pool: LayerPool) -> tuple[tuple[Goal, ...], tuple[TrialRecord, ...]]:
    """Goals and finished trials. Numbers among a trial's user attributes are its metrics.

    Args:
        study: of one to three objectives.
        pool: that `suggest` was given.

    Raises:
        SettingError: it is no study, of more objectives, or of another pool.
    """
    check_kind("study", study, optuna.Study, wanted="an optuna.Study")
    goals = _goals(study)
    finished = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
    return goals, tuple(_record(trial, pool, goals) for trial in finished)


def _goals(study: optuna.Study) -> tuple[Goal, ...]:
    count = len(study.directions)
    if count > 3 or StudyDirection.NOT_SET in study.directions:
        raise SettingError(
            f"write_page: study has {count} objectives; a page shows one to three, each with a direction"
        )
    names = study.metric_names or (["value"] if count == 1 else [f"value_{number}" for number in range(count)])
    return tuple(
        Goal(name, direction is StudyDirection.MAXIMIZE)
        for name, direction in zip(names, study.directions, strict=True)
    )


def _record(trial: FrozenTrial, pool: LayerPool, goals: Sequence[Goal]) -> TrialRecord:
    chosen = (trial.params.get(position.name, position.candidates[0].name) for position in pool.positions)
    try:
        architecture = pool.architecture(map(str, chosen))
    except SpaceError as error:
        raise SettingError(f"trial {trial.number} of the study is not of this pool: {error}") from None
    values = trial.values if trial.state is TrialState.COMPLETE else None
    numbers = {name: float(one) for name, one in trial.user_attrs.items() if _is_number(one)}
    return TrialRecord(
        number=trial.number,
        architecture=architecture,
        state=_STATES[trial.state],
        values={} if values is None else {goal.name: value for goal, value in zip(goals, values, strict=True)},
        reason="" if values is not None else "pruned" if trial.state is TrialState.PRUNED else "failed",
        seconds=trial.duration.total_seconds() if trial.duration is not None else 0.0,
        metrics=numbers,
        rungs=_rungs(trial, goals[0].name),
    )


def _rungs(trial: FrozenTrial, goal: str) -> dict[str, dict[str, float]]:
    last = max(trial.intermediate_values, default=0)
    return {f"{step}/{last}": {goal: value} for step, value in sorted(trial.intermediate_values.items())}


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
