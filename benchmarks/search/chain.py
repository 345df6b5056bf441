"""Where a search loses points, from the best network of a space to the one that it returns.

A random sample of a space is trained alone from first weights, as long as a finalist that is in all rounds, with
several seeds, and measured on the test part: the truth. Then every network of the sample goes through the stages of a
search. With `trial_weights=scratch` these are points of each seed's own trainings: the first is the trial, the others
those at which finalists are halved. With `shared` supernets are trained by warm-up paths, and each network has its
trial on one of them and its training as a finalist from its weights. With this, searches are played: each draws some of
the sample as its trials, takes those of the highest scores as its finalists, halves them as a search does, and passes
out the one that is best on the validation part. A stage loses what the best network that is left after it lacks of the
best that was there before.

Beside them, random search of as many training steps: so many networks alone, the best on the validation part. What
samplers add to random trials is not seen here; the bench `nas201` tells, and `python -m benchmarks search_quality`.

[Note: the best of a few] The highest of some measured figures is higher than what was measured, by luck. So the best
network is chosen by all seeds but one, and its figure is that one's, each seed one after the other.

[Note: what the intervals say] Of stages: 95 % of the searches that were played, whatever they drew. Of correlations:
over architectures, as in `ranking.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.search.agreement import Truth
from benchmarks.search.correlation import Values
from benchmarks.search.ranking import FIRST_SEED, check_truth, trained_alone
from benchmarks.search.standalone import Recipe, interim_name, sampled_architectures, validation_name
from benchmarks.settings import BenchWatch, Settings
from l2l_nas.cost.closed_form import num_parameters
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import SettingError, did_you_mean
from l2l_nas.nas.evaluation.evaluator import Evaluator
from l2l_nas.nas.evaluation.segment import Segment
from l2l_nas.nas.strategies.budget import Budget
from l2l_nas.nas.strategies.division import division
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.constraint import NonEmpty
from l2l_nas.space.sampling import UniformPaths
from l2l_nas.training.schedule import Cosine

# as a search has them that is given nothing
BATCH, LEARNING_RATE = 64, 0.008
COUNTS = {"finalists": 8, "finalist_rounds": 3}
WEIGHTS = ("scratch", "shared")
_PLAYED = 2000  # searches, of each supernet or seed


def check(settings: Settings) -> None:
    """Refuse what cannot be measured.

    Raises:
        SettingError: with what to do.
        SpaceError: layers that do not fit each other.
        DataError: data that does not fit the space.
        StorageError: the table named is another's.
    """
    if settings.trial_weights not in WEIGHTS:
        hint = did_you_mean(settings.trial_weights, WEIGHTS)
        raise SettingError(f"trial_weights: no such weights as '{settings.trial_weights}'{hint}")
    if settings.trial_weights == "scratch" and settings.warmup_steps:
        raise SettingError("warmup_steps: with trial_weights=scratch there is no warm-up; add trial_weights=shared")
    problem = settings.asked_problem
    sampled_architectures(problem, settings.architectures, seed=settings.work.seed)
    check_truth(settings, _recipe(settings))


def search_chain(settings: Settings, watch: BenchWatch) -> dict[str, Any]:
    """The truth, the stages of each supernet or seed, and what is lost between them."""
    problem, recipe, budget = settings.asked_problem, _recipe(settings), _budget(settings)
    architectures = sampled_architectures(problem, settings.architectures, seed=settings.work.seed)
    is_raced = budget.is_raced
    runs = 0 if is_raced else settings.runs
    of_one = budget.warmup_steps + len(architectures) * (budget.steps_per_trial + budget.finalist_steps)
    table = trained_alone(settings, recipe, architectures, watch, then=runs * of_one)
    metric, is_more_better = next(iter(problem.task.metrics.items()))

    def column(name: str) -> list[list[float]]:
        return [[metrics[name] for metrics in table.rows[one][: settings.seeds]] for one in architectures]

    alone = {"validation": column(validation_name(metric)), "test": column(metric)}
    if is_raced:
        trial, *interim = recipe.interim
        names = {"trial": interim_name(trial, metric)} | {
            f"after {interim_step}": interim_name(interim_step, metric) for interim_step in interim
        }
        stages = {name: _turned(column(of)) for name, of in names.items()}
        stages |= {part: _turned(rows) for part, rows in alone.items()}
    else:
        stages = {}
        for run in range(runs):
            for name, values in _stages(settings, architectures, run, metric, watch).items():
                stages.setdefault(name, []).append(values)
    parameters = [num_parameters(problem.pool, one) for one in architectures]
    networks = min(max(1, round(budget.steps / recipe.steps)), len(architectures))
    sign = 1.0 if is_more_better else -1.0  # whatever is played: more is better
    truth = Truth(_signed(alone["test"], sign), parameters)
    signed = {name: _signed(runs_of, sign) for name, runs_of in stages.items()}
    played = Played(
        {part: np.asarray(_signed(values, sign)) for part, values in alone.items()},
        {name: np.asarray(runs_of) for name, runs_of in signed.items()},
        budget=budget,
        networks=networks,
        seed=settings.work.seed,
    )
    last = {} if is_raced else {"finalist": signed["validation"]}
    scores = {"trial score": signed["trial"], **{n: signed[n] for n in signed if n.startswith("after ")}, **last}
    return {
        "metric": metric,
        "is_more_better": is_more_better,
        "trial_weights": budget.trial_weights,
        "table": {"file": table.path.name, **table.made_of, "cpu_seconds": round(table.seconds, 1)},
        "samples": {name: len(split) for name, split in problem.data.parts.items()},
        "steps": {"search": budget.steps, "random_search": networks * recipe.steps, "networks": networks},
        "spread": truth.spread(),
        "controls": truth.controls(),
        "chain": played.rows(sign),
        "ahead": played.ahead(),
        "rows": truth.rows(scores),
        "architectures": [" ".join(one.choices) for one in architectures],
        "parameters": parameters,
        "alone": alone,
        "stages": stages,
    }


def _budget(settings: Settings) -> Budget:
    """As of a search that is given no more than what is given here."""
    problem, weights = settings.asked_problem, settings.trial_weights
    counts = {
        "warmup_steps": settings.warmup_steps,
        "trials": settings.trials,
        "steps_per_trial": settings.steps,
        "finalist_steps": settings.training_steps,
    }
    given = {name: number for name, number in counts.items() if number} | COUNTS
    found = division(
        problem.pool, samples=len(problem.data.train), batch_size=BATCH, trial_weights=weights, given=given
    )
    return Budget(**asdict(found), learning_rate=LEARNING_RATE, finalist_learning_rate=LEARNING_RATE)


def _recipe(settings: Settings) -> Recipe:
    budget = _budget(settings)
    recipe = Recipe(budget.finalist_steps, batch=BATCH, learning_rate=LEARNING_RATE)
    if not budget.is_raced:
        return recipe
    return replace(recipe, interim=(budget.steps_per_trial, *_interim(budget)))


def _interim(budget: Budget) -> list[int]:
    """Steps of a finalist after each round but the last."""
    return list(itertools.accumulate((one.steps for one in budget.rounds), initial=budget.begun))[1:-1]


def _stages(
    settings: Settings, architectures: Sequence[Architecture], run: int, metric: str, watch: BenchWatch
) -> dict[str, list[float]]:
    """What each architecture of the sample gets at each stage of a search on shared weights."""
    problem, recipe = settings.asked_problem, _recipe(settings)
    seed = FIRST_SEED + settings.work.seed + run
    budget = replace(_budget(settings), trials=len(architectures))
    label = f"supernet {run + 1} of {settings.runs}"
    relay = Relay(
        ParamServer(problem.pool, optimizer=recipe.optimizer, seed=seed),
        device=settings.work.device,
        device_budget="all",
        seed=seed,
    )
    found: dict[str, list[float]] = {}
    try:
        trainer = recipe.trainer(problem, relay, seed=seed)
        paths = UniformPaths(problem.pool, seed=seed, constraints=(NonEmpty(problem.pool), *problem.constraints))
        trainer.fit(
            paths.path_at,
            start=0,
            steps=budget.warmup_steps,
            schedule=Cosine(budget.learning_rate, budget.shared_steps),
            after_step=lambda step, loss: watch.advance(1, f"{label}, warm-up"),
        )
        evaluator = Evaluator(relay, trainer, validation=problem.data.validation, budget=budget, test=problem.data.test)
        for ordinal, architecture in enumerate(architectures):
            trial = evaluator.run(Segment.of_trial(architecture, ordinal, budget, done=0, server=None))
            assert trial.error is None, trial.error
            found.setdefault("trial", []).append(trial.metrics[metric])
            watch.advance(budget.steps_per_trial, f"{label}, trials")
        for index, architecture in enumerate(architectures):
            for name, value in _finalist(evaluator, budget, architecture, index, metric).items():
                found.setdefault(name, []).append(value)
            watch.advance(budget.finalist_steps, f"{label}, finalists")
    finally:
        relay.close()
    return found


def _finalist(
    evaluator: Evaluator, budget: Budget, architecture: Architecture, index: int, metric: str
) -> dict[str, float]:
    """Scores of a finalist that is in all rounds: on its way, and at its end on both parts."""
    found: dict[str, float] = {}
    server, done = None, 0
    for spend in budget.rounds:
        segment = replace(Segment.of_finalist(architecture, index, budget, spend=spend, done=done), server=server)
        result = evaluator.run(segment)
        assert result.error is None, result.error
        server = result.server
        done += spend.steps
        if not spend.is_last:
            found[f"after {done}"] = result.metrics[metric]
    return found | {part: result.scores[part].values[metric] for part in ("validation", "test")}


class Played:
    """Searches and random searches that are played with the figures of a sample.

    Args:
        alone: figures of networks alone, by part of the data [architectures, seeds]; more is better.
        stages: figures of networks in a search, by stage [supernets or seeds, architectures]: "trial", "after" the
            steps of each round but the last, "validation" and "test" at the end.
        budget: of each search.
        networks: of each random search.
        seed: of what is drawn.
    """

    def __init__(
        self, alone: Mapping[str, Values], stages: Mapping[str, Values], *, budget: Budget, networks: int, seed: int
    ) -> None:
        self._test = alone["test"]
        self._budget = budget
        self._stages = stages
        # by seed, what all others say
        self._others = [np.delete(self._test, one, axis=1).mean(axis=1) for one in range(self._test.shape[1])]
        self._trials = min(budget.trials, len(self._test))
        self._names = [
            f"the best of all {len(self._test)}",
            f"the best of {self._trials} trials",
            f"the best of {budget.finalists} by trial score",
        ]
        if not budget.is_raced:
            self._names.append("the same, trained from shared weights")
        self._halts = [
            (f"after {interim_step}", one.going_on)
            for interim_step, one in zip(_interim(budget), budget.rounds, strict=False)
        ]
        self._names += [f"the best of {count} {name} steps" for name, count in self._halts]
        self._names.append("chosen by validation")
        generator = np.random.default_rng([seed, len(self._test)])
        runs = len(stages["trial"])
        self._values = np.array([self._search(generator, run) for run in range(runs) for _ in range(_PLAYED)])
        self._of_run = np.repeat(np.arange(runs), _PLAYED)
        self._random = np.array([self._random_search(generator, alone, networks) for _ in range(_PLAYED)])
        self._random_name = f"random search, the best of {networks}"

    def _search(self, generator: np.random.Generator, run: int) -> list[float]:
        stages = {name: values[run] for name, values in self._stages.items()}
        drawn = generator.choice(len(self._test), size=self._trials, replace=False)
        chosen = _highest(drawn, stages["trial"], self._budget.finalists)
        found = [self._true(self._best(some)) for some in (np.arange(len(self._test)), drawn, chosen)]
        if not self._budget.is_raced:
            found.append(float(stages["test"][self._best(chosen)].mean()))
        for name, count in self._halts:
            chosen = _highest(chosen, stages[name], count)
            best = self._best(chosen)
            found.append(self._true(best) if self._budget.is_raced else float(stages["test"][best].mean()))
        return [*found, float(stages["test"][_highest(chosen, stages["validation"], 1)[0]])]

    def _best(self, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
        """By seed, the best of some networks as the other seeds say; see [Note: the best of a few]."""
        return np.array([chosen[np.argmax(others[chosen])] for others in self._others])

    def _true(self, best: NDArray[np.int64]) -> float:
        return float(self._test[best, np.arange(len(best))].mean())

    def _random_search(self, generator: np.random.Generator, alone: Mapping[str, Values], networks: int) -> float:
        drawn = generator.choice(len(self._test), size=networks, replace=False)
        seeds = generator.integers(self._test.shape[1], size=networks)
        place = int(np.argmax(alone["validation"][drawn, seeds]))
        return float(self._test[drawn[place], seeds[place]])

    def rows(self, sign: float) -> list[dict[str, Any]]:
        """Stages in order, each with what it loses, and random search.

        Args:
            sign: -1 where less is better: figures are reported as measured, losses as points of what is better.
        """
        rows = []
        for index, name in enumerate(self._names):
            row = {"stage": name, **_interval(sign * self._values[:, index])}
            if index:
                row["lost"] = _interval(self._values[:, index - 1] - self._values[:, index])
            rows.append(row)
        return [*rows, {"stage": self._random_name, **_interval(sign * self._random)}]

    def ahead(self) -> dict[str, Any]:
        """What is returned minus random search: the mean, and the mean of each supernet."""
        each = [float(self._values[self._of_run == run, -1].mean() - self._random.mean()) for run in set(self._of_run)]
        return {"value": round(float(np.mean(each)), 5), "each": [round(one, 5) for one in each]}


def _highest(some: NDArray[np.int64], scores: Values, count: int) -> NDArray[np.int64]:
    """Of some networks those of the highest scores, best first."""
    return some[np.argsort(-scores[some], kind="stable")[:count]]


def _turned(rows: Sequence[Sequence[float]]) -> list[list[float]]:
    return [list(row) for row in zip(*rows, strict=True)]


def _interval(values: Values) -> dict[str, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return {"value": round(float(values.mean()), 5), "low": round(float(low), 5), "high": round(float(high), 5)}


def _signed(rows: Sequence[Sequence[float]], sign: float) -> list[list[float]]:
    return [[sign * value for value in row] for row in rows]
