"""The score of a stage of a network's training: after which steps it is measured, and the mean that stages compare by.

[Note: three scores] One validation near the middle of a training says as much of the learning rate's last mini-batches
as of the network. From 40 % of the steps on, a stage's score is the mean of its last three validations, a fifteenth of
the training apart or less: that orders networks better. Earlier a network still learns too fast between two of them,
and the last one alone is better. A network's weights stay those at the end, and so do the metrics that
are reported of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from l2l_nas.training.score import Score

_FROM = 0.4  # share of a training from which a stage has several scores
_SCORES = 3
_APART = 1 / 15  # of a whole training, at most


def score_steps(done: int, steps: int, total: int) -> tuple[int, ...]:
    """After how many steps of a network's training a stage is scored; the last is its end.

    Args:
        done: steps that the network had before.
        steps: of the stage.
        total: of the whole training.
    """
    end = done + steps
    first = max(done + 1, math.ceil(_FROM * total))
    apart = min(max(1, round(_APART * total)), (end - first) // (_SCORES - 1))
    return tuple(end - apart * behind for behind in reversed(range(_SCORES))) if apart > 0 else (end,)


@dataclass(frozen=True)
class StageScore:
    """What a network is compared by after a stage.

    Args:
        values: the mean of each metric over the last validations.
        errors: the standard error of each mean, where it is known: of the samples, and of the spread of validations.
        steps: after which these validations were.
    """

    values: Mapping[str, float]
    errors: Mapping[str, float]
    steps: tuple[int, ...]


def compared_by(score: StageScore | None) -> dict[str, Any]:
    """A stage's score as results and logs hold it, beside the metrics at the end; nothing where there is none."""
    if score is None:
        return {}
    found = {"values": dict(score.values), "standard_error": dict(score.errors), "steps": list(score.steps)}
    return {"compared_by": found}


def stage_score(rungs: Mapping[str, Mapping[str, float]], last: Score) -> StageScore | None:
    """The mean of the last three validations from 40 % of the steps on; None where there is none yet.

    Args:
        rungs: metrics of the validation part by so many of so many steps ("620/740"), in order.
        last: the score at the end, with the errors that are due to the samples.
    """
    names = [name for name in rungs if _is_late(name)][-_SCORES:]
    if not names:
        return None
    found = [rungs[name] for name in names]
    columns = {metric: [one[metric] for one in found] for metric in found[-1] if all(metric in one for one in found)}
    errors = {}
    for metric, error in last.errors.items():
        values = columns.get(metric, [])
        spread = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        errors[metric] = math.hypot(error, spread)
    means = {metric: statistics.fmean(values) for metric, values in columns.items()}
    return StageScore(means, errors, tuple(int(name.partition("/")[0]) for name in names))


def by_stage(rungs: Mapping[int, Mapping[str, float]], total: int) -> dict[int, Mapping[str, float]]:
    """One score for each stage: the mean of validations that are no further apart than those of a stage.

    Args:
        rungs: metrics of the validation part by steps, in order.
        total: of the whole training.

    Returns:
        By the steps of the last of them.
    """
    apart, stages = max(1, round(_APART * total)), list[list[int]]()
    for steps in rungs:
        if stages and _FROM * total <= stages[-1][-1] and steps - stages[-1][-1] <= apart:
            stages[-1].append(steps)
        else:
            stages.append([steps])
    means: dict[int, Mapping[str, float]] = {}
    for stage in stages:
        found = [rungs[steps] for steps in stage]
        names = [name for name in found[-1] if all(name in one for one in found)]
        means[stage[-1]] = {name: statistics.fmean(one[name] for one in found) for name in names}
    return means


def _is_late(rung: str) -> bool:
    done, _, total = rung.partition("/")
    return int(done) >= _FROM * int(total)
