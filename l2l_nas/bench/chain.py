"""Where a search loses points, from the best network of a space to the one that it hands out.

A random sample of a space is trained alone, as a finalist is but from first weights, with several seeds, and measured
on the test part: the truth. Then supernets are trained by warm-up paths, and every network of the sample goes through
the stages of a search: its trial, scored on the validation part, and its training as a finalist from the shared
weights. With this, searches are played: each draws some of the sample as its trials, takes the six of the highest
scores as its finalists, and hands out the one that is best on the validation part. A stage loses what the best network
that is left after it lacks of the best that was there before.

Beside them, random search of as many training steps: so many networks alone, the best on the validation part. What
samplers add to random trials is not seen here; the bench `nas201` tells.

[Note: the best of a few] The highest of some measured figures is higher than what was measured, by luck. So the best
network is chosen by all seeds but one, and its figure is that one's, each seed in turn.

[Note: what the intervals say] Of stages: 95 % of the searches that were played, whatever they drew. Of correlations:
over architectures, as in `ranking.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from l2l_nas.bench.agreement import FINALISTS, Truth
from l2l_nas.bench.correlation import Values
from l2l_nas.bench.ranking import FIRST_SEED, check_truth, trained_alone
from l2l_nas.bench.settings import Settings, Watch
from l2l_nas.bench.standalone import Recipe, sampled_architectures, validation_name
from l2l_nas.cost.closed_form import num_parameters
from l2l_nas.eps.server import ParamServer
from l2l_nas.relay.executor import Relay
from l2l_nas.search.budget import Budget
from l2l_nas.search.trials import Evaluator, Training
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.constraint import NonEmpty
from l2l_nas.space.sampling import UniformPaths
from l2l_nas.training.schedule import Cosine

# as a search has them that is told nothing
BATCH, LEARNING_RATE, FINALIST_LEARNING_RATE = 128, 0.004, 0.008
FINALIST_STEPS = 320
_PLAYED = 2000  # searches, of each supernet


def check(settings: Settings) -> None:
    """Refuse what cannot be measured.

    Raises:
        SettingError: with what to do.
        SpaceError: layers that do not fit each other.
        DataError: data that does not fit the space.
        StorageError: the table named is another's.
    """
    problem = settings.asked_problem
    sampled_architectures(problem, settings.architectures, seed=settings.work.seed)
    check_truth(settings, _recipe(settings))


def search_chain(settings: Settings, watch: Watch) -> dict[str, Any]:
    """The truth, the stages of each supernet, and what is lost between them."""
    problem, recipe = settings.asked_problem, _recipe(settings)
    architectures = sampled_architectures(problem, settings.architectures, seed=settings.work.seed)
    of_one = settings.warmup_steps + len(architectures) * (settings.steps + recipe.steps)
    table = trained_alone(settings, recipe, architectures, watch, then=settings.runs * of_one)
    metric, is_more_better = next(iter(problem.task.metrics.items()))
    stages: dict[str, list[list[float]]] = {"trial": [], "validation": [], "test": []}
    for run in range(settings.runs):
        found = _stages(settings, architectures, run, metric, watch)
        for name, values in found.items():
            stages[name].append(values)
    alone = {
        part: [[metrics[name] for metrics in table.rows[one][: settings.seeds]] for one in architectures]
        for part, name in (("validation", validation_name(metric)), ("test", metric))
    }
    parameters = [num_parameters(problem.pool, one) for one in architectures]
    in_all = settings.warmup_steps + settings.trials * settings.steps + FINALISTS * recipe.steps
    networks = max(1, round(in_all / recipe.steps))
    sign = 1.0 if is_more_better else -1.0  # whatever is played: more is better
    truth = Truth(_signed(alone["test"], sign), parameters)
    signed = {name: _signed(runs, sign) for name, runs in stages.items()}
    played = Played(
        {part: np.asarray(_signed(values, sign)) for part, values in alone.items()},
        {name: np.asarray(runs) for name, runs in signed.items()},
        trials=min(settings.trials, len(architectures)),
        networks=min(networks, len(architectures)),
        seed=settings.work.seed,
    )
    return {
        "metric": metric,
        "is_more_better": is_more_better,
        "table": {"file": table.path.name, **table.made_of, "cpu_seconds": round(table.seconds, 1)},
        "samples": {name: len(split) for name, split in problem.data.parts.items()},
        "steps": {"search": in_all, "random_search": networks * recipe.steps, "networks": networks},
        "spread": truth.spread(),
        "controls": truth.controls(),
        "chain": played.rows(sign),
        "ahead": played.ahead(),
        "rows": truth.rows({"trial score": signed["trial"], "finalist": signed["validation"]}),
        "architectures": [" ".join(one.choices) for one in architectures],
        "parameters": parameters,
        "alone": alone,
        "stages": stages,
    }


def _recipe(settings: Settings) -> Recipe:
    steps = settings.training_steps or FINALIST_STEPS
    return Recipe(steps, batch=BATCH, learning_rate=FINALIST_LEARNING_RATE)


def _stages(
    settings: Settings, architectures: Sequence[Architecture], run: int, metric: str, watch: Watch
) -> dict[str, list[float]]:
    """What each architecture of the sample gets at each stage of a search."""
    problem, recipe = settings.asked_problem, _recipe(settings)
    seed = FIRST_SEED + settings.work.seed + run
    budget = Budget(
        warmup_steps=settings.warmup_steps,
        trials=len(architectures),
        steps_per_trial=settings.steps,
        finalists=len(architectures),
        finalist_steps=recipe.steps,
        learning_rate=LEARNING_RATE,
        finalist_learning_rate=FINALIST_LEARNING_RATE,
    )
    said = f"supernet {run + 1} of {settings.runs}"
    relay = Relay(
        ParamServer(problem.pool, optimizer=recipe.optimizer, seed=seed),
        device=settings.work.device,
        device_budget="all",
        seed=seed,
    )
    try:
        trainer = recipe.trainer(problem, relay, seed=seed)
        paths = UniformPaths(problem.pool, seed=seed, constraints=(NonEmpty(problem.pool), *problem.constraints))
        trainer.fit(
            paths.path_at,
            start=0,
            steps=budget.warmup_steps,
            schedule=Cosine(budget.learning_rate, budget.shared_steps),
            after_step=lambda step, loss: watch.advance(1, f"{said}, warm-up"),
        )
        evaluator = Evaluator(relay, trainer, validation=problem.data.validation, budget=budget, test=problem.data.test)
        found: dict[str, list[float]] = {"trial": [], "validation": [], "test": []}
        for ordinal, architecture in enumerate(architectures):
            outcome = evaluator.evaluate(architecture, ordinal, poll=lambda: None)
            assert outcome.metrics is not None, outcome.reason
            found["trial"].append(outcome.metrics[metric])
            watch.advance(settings.steps, f"{said}, trials")
        for index, architecture in enumerate(architectures):
            training = Training.of_finalist(architecture, index, budget)
            scores, server = evaluator.train_alone(training, after_step=lambda step, loss: None)
            del server  # a copy of weights and moments
            for part in ("validation", "test"):
                found[part].append(scores[part].values[metric])
            watch.advance(recipe.steps, f"{said}, finalists")
    finally:
        relay.close()
    return found


class Played:
    """Searches and random searches that are played with the figures of a sample.

    Args:
        alone: figures of networks alone, by part of the data [architectures, seeds]; more is better.
        stages: figures of networks in a search, by stage [supernets, architectures].
        trials: of each search.
        networks: of each random search.
        seed: of what is drawn.
    """

    def __init__(
        self, alone: Mapping[str, Values], stages: Mapping[str, Values], *, trials: int, networks: int, seed: int
    ) -> None:
        self._test = alone["test"]
        seeds = range(self._test.shape[1])
        # by seed, what all others say
        self._others = [np.delete(self._test, one, axis=1).mean(axis=1) for one in seeds]
        self._names = (
            f"the best of all {len(self._test)}",
            f"the best of {trials} trials",
            f"the best of {FINALISTS} by trial score",
            "the same, trained from shared weights",
            "chosen by validation",
        )
        generator = np.random.default_rng([seed, len(self._test)])
        runs = len(stages["trial"])
        self._values = np.array(
            [self._search(generator, stages, run, trials) for run in range(runs) for _ in range(_PLAYED)]
        )
        self._of_run = np.repeat(np.arange(runs), _PLAYED)
        self._random = np.array([self._random_search(generator, alone, networks) for _ in range(_PLAYED)])
        self._random_name = f"random search, the best of {networks}"

    def _search(
        self, generator: np.random.Generator, stages: Mapping[str, Values], run: int, trials: int
    ) -> list[float]:
        drawn = generator.choice(len(self._test), size=trials, replace=False)
        scores = stages["trial"][run][drawn]
        six = drawn[np.argsort(-scores, kind="stable")[:FINALISTS]]
        of_all, of_drawn, of_six = (self._best(chosen) for chosen in (np.arange(len(self._test)), drawn, six))
        test, validation = stages["test"][run], stages["validation"][run]
        return [
            self._true(of_all),
            self._true(of_drawn),
            self._true(of_six),
            float(test[of_six].mean()),
            float(test[six[np.argmax(validation[six])]]),
        ]

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
            sign: -1 where less is better: figures are told as they were measured, losses as points of what is better.
        """
        rows = []
        for index, name in enumerate(self._names):
            row = {"stage": name, **_interval(sign * self._values[:, index])}
            if index:
                row["lost"] = _interval(self._values[:, index - 1] - self._values[:, index])
            rows.append(row)
        return [*rows, {"stage": self._random_name, **_interval(sign * self._random)}]

    def ahead(self) -> dict[str, Any]:
        """What is handed out minus random search: the mean, and the mean of each supernet."""
        each = [float(self._values[self._of_run == run, -1].mean() - self._random.mean()) for run in set(self._of_run)]
        return {"value": round(float(np.mean(each)), 5), "each": [round(one, 5) for one in each]}


def _interval(values: Values) -> dict[str, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return {"value": round(float(values.mean()), 5), "low": round(float(low), 5), "high": round(float(high), 5)}


def _signed(rows: Sequence[Sequence[float]], sign: float) -> list[list[float]]:
    return [[sign * value for value in row] for row in rows]
