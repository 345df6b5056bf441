"""Finalists: which trials are trained further, what came of each, and which of them is the best.

The validation part chooses: which trials become finalists, and which finalist is the best. What the test part says is
reported beside it, and nothing depends on it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from l2l_nas.eps.server import ParamServer
from l2l_nas.nas.evaluation.stage_score import StageScore, compared_by, stage_score
from l2l_nas.nas.front import best_front
from l2l_nas.nas.objectives import Goal, TrialRecord, comparison, pareto_front, ranked
from l2l_nas.nas.samplers.base import Floats
from l2l_nas.nas.samplers.gaussian_process import DRAWS
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.score import Score, by_part


@dataclass(frozen=True)
class Finalist:
    """An architecture that was trained further, with its own weights; or a trial as it is, where none are.

    Args:
        record: of its trial.
        costs: by name.
        scores: by part of the data ("validation", and "test" where there is one), after its own training; empty where
            finalists are not trained.
        server: its weights; None where finalists are not trained, and for all but the best.
        steps: of its own training.
        rungs: metrics of the validation part after each part of its training; see `TrialRecord`.
    """

    record: TrialRecord
    costs: Mapping[str, float]
    scores: Mapping[str, Score] = field(default_factory=dict)
    server: ParamServer | None = None
    steps: int = 0
    rungs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def architecture(self) -> Architecture:
        """That of its trial."""
        return self.record.architecture

    @property
    def is_trained(self) -> bool:
        """Whether it was trained further."""
        return bool(self.scores)

    @property
    def trial_score(self) -> dict[str, float]:
        """Metrics of the validation part with the weights that its trial had."""
        found = {**self.record.metrics, **self.record.values}
        return {name: value for name, value in found.items() if name not in self.costs}

    @property
    def values(self) -> dict[str, float]:
        """Metrics of the validation part, and costs: after its own training, if it was trained."""
        score = self.scores.get("validation")
        return {**(self.trial_score if score is None else score.values), **self.costs}

    @property
    def stage_score(self) -> StageScore | None:
        """What it is compared by, after the later part of its training; None where that are its `values`."""
        return stage_score(self.rungs, self.scores["validation"]) if self.is_trained else None

    @property
    def compared_values(self) -> dict[str, float]:
        """What it is compared by: metrics of the validation part, and costs."""
        stage = self.stage_score
        return self.values if stage is None else {**stage.values, **self.costs}

    @property
    def compared_errors(self) -> Mapping[str, float]:
        """Standard errors of metrics that it is compared by, where they are known."""
        stage = self.stage_score
        return stage.errors if stage is not None else self.scores["validation"].errors if self.is_trained else {}

    def figures(self) -> dict[str, Any]:
        """What is known of it, as log and result hold it: trial score and trained score side by side."""
        return {
            "architecture": list(self.record.architecture.choices),
            "trial_score": self.trial_score,
            **by_part(self.scores),
            **compared_by(self.stage_score),
            "costs": dict(self.costs),
            "steps": self.steps,
            "rungs": {name: dict(metrics) for name, metrics in self.rungs.items()},
        }

    def entry(self) -> dict[str, Any]:
        trained = {} if self.is_trained else {"trained": False}
        return {**self.figures(), "trial": self.record.number, "values": self.values, **trained}

    def to_json(self) -> dict[str, Any]:
        """As the study keeps it."""
        return {
            "trial": self.record.number,
            "costs": dict(self.costs),
            "scores": {part: score.to_json() for part, score in self.scores.items()},
            "steps": self.steps,
            "rungs": {name: dict(metrics) for name, metrics in self.rungs.items()},
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any], records: Mapping[int, TrialRecord]) -> Finalist:
        """The other way round, with the study's records by number.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        scores = {str(part): Score.from_json(score) for part, score in content["scores"].items()}
        steps = int(content.get("steps", 0))  # 0: of a version that trained all alike
        rungs = {str(name): dict(metrics) for name, metrics in content.get("rungs", {}).items()}
        return cls(records[int(content["trial"])], dict(content["costs"]), scores, steps=steps, rungs=rungs)


@dataclass(frozen=True)
class FinalistCache:
    """What it takes to recognise finalists that an earlier session of a run has trained.

    Args:
        settings: that decide what comes of their training and are not in the budget, as JSON.
        weights: the weights that were saved of a finalist, as the best ("") or as that of a size, by its name;
            None if they are not there.
        save: saves those of the best, where more follows that may be interrupted.
    """

    settings: Mapping[str, Any]
    weights: Callable[[Finalist, str], ParamServer | None]
    save: Callable[[Finalist], None] = lambda finalist: None


def choose(
    records: Sequence[TrialRecord],
    goals: Sequence[Goal],
    *,
    count: int,
    posterior: Mapping[Architecture, Floats] | None = None,
) -> list[TrialRecord]:
    """The trials to train further, best first by the first goal.

    With one goal, one after the other that which raises most what the best of them is expected to come to (the greedy
    choice for a submodular function: Nemhauser, Wolsey and Fisher, 1978): of two that would come to the same, one is
    enough. Where there is no posterior, these are the best. With more goals, those that make the best front together
    (see `best_front`). Where there is no posterior, or nothing is left that adds to that front, trials spread over the
    Pareto front, both of its ends among them; all of the front if it is no larger than `count`, and the best of the
    others behind it.

    Args:
        count: how many there are to be, at least 1.
        posterior: what architectures may come to, of shape (goals, draws), each draw for all architectures at once; of
            one that is not there, its score.
    """
    posterior = posterior or {}
    shown = [_with_posterior_mean(record, goals, posterior) if record.state.has_score else record for record in records]
    own = {record.number: record for record in records}
    return [own[record.number] for record in _chosen(shown, goals, count, posterior)]


def choose_each(groups: Sequence[Sequence[TrialRecord]], goals: Sequence[Goal], *, count: int) -> list[TrialRecord]:
    """The best trials of each group by the first goal, as many of each; where one has fewer, others have more.

    Args:
        groups: of which no trial is in two.
        count: how many there are to be in all.
    """
    queues = [ranked(group, goals) for group in groups]
    turns = [record for turn in itertools.zip_longest(*queues) for record in turn if record is not None]
    return ranked(turns[:count], goals)


def _with_posterior_mean(
    record: TrialRecord, goals: Sequence[Goal], posterior: Mapping[Architecture, Floats]
) -> TrialRecord:
    draws = posterior.get(record.architecture)
    if draws is None:
        return record
    means = dict(zip((goal.name for goal in goals), draws.mean(axis=1).tolist(), strict=True))
    return replace(record, values={**record.values, **means})


def _chosen(
    records: Sequence[TrialRecord], goals: Sequence[Goal], count: int, posterior: Mapping[Architecture, Floats]
) -> list[TrialRecord]:
    best = ranked(records, goals)
    if len(goals) == 1 and posterior:
        return _promising(best, goals[0], count, posterior)
    if len(goals) == 1:
        return best[:count]
    if posterior:
        return _of_the_best_front(best, goals, count, posterior)
    front = pareto_front(records, goals)
    if len(front) > count:
        last = len(front) - 1
        places = [round(index * last / (count - 1)) for index in range(count)] if count > 1 else [0]
        return [front[place] for place in places]
    on_front = {record.number for record in front}
    others = [record for record in best if record.number not in on_front]
    chosen = {record.number for record in (*front, *others[: count - len(front)])}
    return [record for record in best if record.number in chosen]


def _of_the_best_front(
    best: Sequence[TrialRecord], goals: Sequence[Goal], count: int, posterior: Mapping[Architecture, Floats]
) -> list[TrialRecord]:
    """See `choose`.

    Args:
        best: trials, that of the best mean by the first goal first.
    """
    width = next(iter(posterior.values())).shape[1]
    on_front = {record.number for record in pareto_front(best, goals)}
    some = [record for record in best if record.architecture in posterior or record.number in on_front]
    draws = [
        posterior.get(one.architecture, np.tile([[one.values[goal.name]] for goal in goals], width)) for one in some
    ]
    chosen = {some[index].number for index in best_front(np.array(draws), [goal.maximize for goal in goals], count)}
    left = [record for record in best if record.number not in chosen]
    if left and len(chosen) < count:
        chosen |= {record.number for record in _chosen(left, goals, count - len(chosen), {})}
    return [record for record in best if record.number in chosen]


def _promising(
    best: Sequence[TrialRecord], goal: Goal, count: int, posterior: Mapping[Architecture, Floats]
) -> list[TrialRecord]:
    """See `choose`.

    Args:
        best: trials, that of the best mean first.
    """
    width = next(iter(posterior.values())).shape[1]
    sign = 1 if goal.maximize else -1
    draws = {
        record.number: sign * posterior.get(record.architecture, np.full((1, width), record.values[goal.name]))[0]
        for record in best
    }
    chosen: set[int] = set()
    highest = np.full(width, -np.inf)
    for _ in range(min(count, len(best))):
        left = (number for number in draws if number not in chosen)  # in the order of `best`: of equals the first
        chosen.add(max(left, key=lambda number: float(np.maximum(highest, draws[number]).mean())))
        highest = np.max([draws[number] for number in chosen], axis=0)
    return [record for record in best if record.number in chosen]


def going_on(trained: Sequence[Finalist], goals: Sequence[Goal], most: int) -> list[Finalist]:
    """Who goes on after a round, best first by the first goal.

    With one goal, the best. With more, those that make the best front within the errors of their scores.

    Args:
        trained: those of the round, in order; see `order`.
        most: as many as they are at most.
    """
    if len(goals) == 1 or not trained:
        return list(trained[:most])
    draws = []
    for one in trained:
        # of its own, whoever else is there
        normal = np.random.default_rng(one.record.number).standard_normal((len(goals), DRAWS))
        values = np.array([[one.compared_values[goal.name]] for goal in goals])
        errors = np.array([[one.compared_errors.get(goal.name, 0.0)] for goal in goals])
        draws.append(values + errors * normal)
    chosen = sorted(best_front(np.array(draws), [goal.maximize for goal in goals], most))
    return [trained[index] for index in chosen]


def order(finalists: Sequence[Finalist], goals: Sequence[Goal]) -> list[Finalist]:
    """Those trained longest first; best first by the first goal on the validation part, ties by the others, by loss.

    What is equal in all of these is ordered by size. From 40 % of a training on, a score is the mean of several: see
    `stage_score`.
    Finalists dropped in earlier rounds rank below those trained longer; their scores cannot be compared.
    The order in which they were trained does not matter: workers finish in any order.
    """
    places = {record.number: place for place, record in enumerate(ranked([one.record for one in finalists], goals))}

    def key(one: Finalist) -> tuple[float, ...]:
        values, is_late = one.compared_values, one.stage_score is not None
        parameters = values.get("parameters", 0.0)
        return (-one.steps, *comparison(values, goals, is_late=is_late), parameters, places[one.record.number])

    return sorted(finalists, key=key)


def key_of(records: Sequence[TrialRecord], settings: Mapping[str, Any]) -> str:
    """What distinguishes stored finalists from those of other trials or other settings.

    Args:
        settings: everything else that decides what comes of it, as JSON.
    """
    content = [[record.number, list(record.architecture.choices)] for record in records]
    text = json.dumps([content, settings], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
