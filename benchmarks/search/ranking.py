"""Whether supernets rank architectures as training each alone does.

Every architecture of a small space is trained alone with several seeds and measured on the test part, once; the table
is stored (`standalone.py`). Then supernets are trained by warm-up paths as a search trains them, through the relay, and
score every architecture with the shared weights on the validation part, as a search does, BatchNorm measured anew for
each. Reported is how far the scores' order is that of the mean test accuracy alone, beside two controls: the number of
parameters, which costs nothing, and one seed against the mean of the others, above which nobody can be expected to get.
The two parts differ, so that a score gains nothing from samples that happen to be easy for a network. The seeds of the
controls share their samples.

[Note: what the intervals say] They are over architectures: how far a figure would move with other architectures of such
a space (`correlation.py`). The luck of training is the standard deviation between supernets, each with other weights,
batches and paths than all trainings alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.search.agreement import Truth
from benchmarks.search.standalone import (
    MetricsTable,
    Recipe,
    all_architectures,
    default_steps,
    identity,
    sampled_architectures,
)
from benchmarks.settings import BenchWatch, Settings
from l2l_nas.cost.closed_form import num_parameters
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import SettingError, StorageError, did_you_mean
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.constraint import NonEmpty
from l2l_nas.space.sampling import PATH_SAMPLERS, build_paths
from l2l_nas.space.shapes import check_shapes
from l2l_nas.training.problem import Problem
from l2l_nas.training.schedule import Cosine

TABLE = "trained_alone.json"
# supernets share no weights and no batches with the trainings alone, whose seeds begin at 0
FIRST_SEED = 1000
# of activations that wait while all architectures are scored, as in a search
_POPULATION_BYTES = 1 << 28


def check(settings: Settings) -> None:
    """Refuse path samplers that there are not, spaces too large, data that does not fit, and a foreign table.

    Raises:
        SettingError: with what to do.
        SpaceError: layers that do not fit each other.
        DataError: data that does not fit the space.
        StorageError: the table named is another's.
    """
    for name in settings.samplers:
        if name not in PATH_SAMPLERS:
            raise SettingError(f"samplers: no path sampling '{name}'{did_you_mean(name, PATH_SAMPLERS)}")
    _architectures(settings)
    check_truth(settings, _recipe(settings))


def check_truth(settings: Settings, recipe: Recipe) -> None:
    """Refuse data without a test part or that do not fit, too few seeds, and a foreign table.

    Raises:
        SettingError: with what to do.
        SpaceError: layers that do not fit each other.
        DataError: data that does not fit the space.
        StorageError: the table named is another's.
    """
    if settings.seeds < 2:
        raise SettingError(f"seeds must be at least 2, as one is compared with another, got {settings.seeds}")
    problem = settings.asked_problem
    if problem.data.test is None:
        raise SettingError("networks are measured on a test part, and the data have none: data.test_fraction=0.25")
    problem.check(check_shapes(problem.pool))
    _own_table(settings, identity(problem, recipe))


def ranking(settings: Settings, watch: BenchWatch) -> dict[str, Any]:
    """The table, the controls, and supernets of every path sampler."""
    problem, recipe = settings.asked_problem, _recipe(settings)
    architectures = _architectures(settings)
    supernets = len(settings.samplers) * settings.runs
    then = supernets * (settings.warmup_steps + len(architectures))
    table = trained_alone(settings, recipe, architectures, watch, then=then)
    metric, is_more_better = next(iter(problem.task.metrics.items()))
    sign = 1 if is_more_better else -1  # whatever is ranked: more is better
    parameters = [num_parameters(problem.pool, one) for one in architectures]
    alone = [[sign * metrics[metric] for metrics in table.rows[one][: settings.seeds]] for one in architectures]
    truth = Truth(alone, parameters)
    scores = {name: _supernets(settings, architectures, name, watch, metric) for name in settings.samplers}
    signed = {name: [[sign * score for score in run] for run in runs] for name, runs in scores.items()}
    return {
        "metric": metric,
        "table": {"file": table.path.name, **table.made_of, "cpu_seconds": round(table.seconds, 1)},
        "samples": {name: len(split) for name, split in problem.data.parts.items()},
        "spread": truth.spread(),
        "controls": truth.controls(),
        "rows": truth.rows(signed),
        "architectures": [" ".join(one.choices) for one in architectures],
        "parameters": parameters,
        "alone": [[metrics[metric] for metrics in table.rows[one][: settings.seeds]] for one in architectures],
        "scores": scores,
    }


def _supernets(
    settings: Settings, architectures: Sequence[Architecture], sampler: str, watch: BenchWatch, metric: str
) -> list[list[float]]:
    """Scores of every architecture by each supernet of a path sampler."""
    scores = []
    for run in range(settings.runs):
        said = f"{sampler} paths, supernet {run + 1} of {settings.runs}"
        found = score_supernet(
            settings.asked_problem,
            _recipe(settings),
            architectures,
            sampler=sampler,
            steps=settings.warmup_steps,
            seed=FIRST_SEED + settings.work.seed + run,
            device=settings.work.device,
            tick=functools.partial(watch.advance, text=said),
        )
        scores.append([metrics[metric] for metrics in found])
    return scores


def score_supernet(
    problem: Problem,
    recipe: Recipe,
    architectures: Sequence[Architecture],
    *,
    sampler: str,
    steps: int,
    seed: int,
    device: str = "cpu",
    tick: Callable[[float], None] = lambda done: None,
) -> list[dict[str, float]]:
    """Train a supernet by warm-up paths, and score architectures with the shared weights.

    Args:
        recipe: all of it counts, but for the number of steps.
        sampler: of the paths.
        steps: of the supernet.
        seed: of weights, batches and paths.
        tick: called with each step, and of the scores as if each were one.
    """
    server = ParamServer(problem.pool, optimizer=recipe.optimizer, seed=seed)
    relay = Relay(server, device=device, device_budget="all", seed=seed)
    try:
        trainer = recipe.trainer(problem, relay, seed=seed)
        paths = build_paths(
            sampler, problem.pool, seed=seed, constraints=(NonEmpty(problem.pool), *problem.constraints)
        )
        trainer.fit(
            paths.path_at,
            start=0,
            steps=steps,
            schedule=Cosine(recipe.learning_rate, steps),
            after_step=lambda step, loss: tick(1),
        )
        validation = problem.data.validation
        if any(server.layout(key).buffers for key in problem.pool.states):
            scores = []
            for architecture in architectures:
                trainer.recalibrate(architecture)
                scores.append(trainer.evaluate(architecture, validation))
        else:
            scores = trainer.evaluate_population(architectures, validation, max_bytes=_POPULATION_BYTES)
    finally:
        relay.close()
    tick(len(architectures))
    return scores


def trained_alone(
    settings: Settings, recipe: Recipe, architectures: tuple[Architecture, ...], watch: BenchWatch, *, then: float
) -> MetricsTable:
    """The table of these architectures, whole: what it lacks is trained.

    Args:
        watch: started here.
        then: steps of all that comes after.
    """
    problem = settings.asked_problem
    table = find_table(settings, identity(problem, recipe), architectures, watch)
    missing = len(table.missing(architectures, settings.seeds))
    watch.start(missing * recipe.steps + then)
    trained = iter(range(1, missing + 1))
    table.fill(
        problem,
        recipe,
        architectures=architectures,
        seeds=settings.seeds,
        tick=lambda: watch.advance(recipe.steps, f"alone, {next(trained)} of {missing}"),
    )
    return table


def find_table(
    settings: Settings, made_of: dict[str, Any], architectures: tuple[Architecture, ...], watch: BenchWatch
) -> MetricsTable:
    """The table named, or the folder's own, or a stored one that matches; where there is none, a new one.

    A stored one is not added to: where it has too few seeds, a copy in the folder is.

    Raises:
        StorageError: the table named, or the folder's own, is damaged or another's.
    """
    own = _own_table(settings, made_of)
    if own is not None and own.rows:
        return own
    path = own.path if own is not None else settings.scratch / TABLE
    why_not = []
    for stored in settings.stored:
        try:
            table = MetricsTable.read(stored)
        except StorageError:
            why_not.append(f"{stored.name}: damaged")
            continue
        unlike = table.unlike(made_of)
        if unlike:
            why_not.append(f"{stored.name}: other {unlike}")
        elif settings.table is None:
            is_whole = not table.missing(architectures, settings.seeds)
            return table if is_whole else MetricsTable(path, made_of, table.rows, seconds=table.seconds)
    trainings = len(architectures) * settings.seeds
    watch.note(f"no stored table fits ({'; '.join(why_not) or 'there is none'}): {trainings} trainings into {path}")
    return MetricsTable(path, made_of)


def _own_table(settings: Settings, made_of: dict[str, Any]) -> MetricsTable | None:
    """The table that settings name, there already or not; or the folder's, if it is there."""
    path = settings.table or settings.scratch / TABLE
    if not path.exists():
        return MetricsTable(path, made_of) if settings.table is not None else None
    table = MetricsTable.read(path)
    unlike = table.unlike(made_of)
    if unlike:
        raise StorageError(f"{path}: a table of other {unlike}; name another file or folder")
    return table


def _architectures(settings: Settings) -> tuple[Architecture, ...]:
    problem, count = settings.asked_problem, settings.architectures
    if 0 < count < problem.pool.size:
        return sampled_architectures(problem, count, seed=settings.work.seed)
    return all_architectures(problem)


def _recipe(settings: Settings) -> Recipe:
    return Recipe(settings.training_steps or default_steps(settings.asked_problem))
