"""Every architecture of a small space trained alone, with several seeds: the truth that rankings are held against.

Training is plain PyTorch's, on one CPU thread or as many as torch is given; the relay would give the same numbers. The
table is one JSON file, written anew after every training, so that an interrupted one goes on where it was. It knows
what it was made of: the space, the data and the recipe.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from l2l_nas.eps.identity import fingerprint
from l2l_nas.eps.optimizers.rules import AdamW
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import SettingError, StorageError
from l2l_nas.files import read_json, write_atomically
from l2l_nas.relay.interface import Executor
from l2l_nas.relay.reference import ReferenceTrainer
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.constraint import NonEmpty, first_violation
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.sampling import UniformPaths
from l2l_nas.training.data import Batches
from l2l_nas.training.fit import Trainer
from l2l_nas.training.problem import Problem
from l2l_nas.training.schedule import Cosine

Metrics = Mapping[str, float]

# the most architectures that are trained one by one
_MOST = 4096
# passes over the training data, but not fewer steps than this
_PASSES, _LEAST_STEPS = 6, 300
_ABOUT = "metrics of architectures trained alone, by seed, of the test and the validation part; made by benchmarks"


@dataclass(frozen=True)
class Recipe:
    """How networks are trained, all the same way: AdamW, a short rise of the learning rate and half a cosine.

    Args:
        steps: how many.
        batch: samples a step, in one micro-batch.
        learning_rate: its peak.
        weight_decay: decoupled.
        interim: steps of the training after which the validation part is scored on the way.

    Raises:
        SettingError: fewer than 1 step.
    """

    steps: int
    batch: int = 64
    learning_rate: float = 0.008
    weight_decay: float = 0.05
    interim: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise SettingError(f"steps must be at least 1, got {self.steps}")

    @property
    def optimizer(self) -> AdamW:
        """The update rule."""
        return AdamW(betas=(0.9, 0.98), weight_decay=self.weight_decay)

    def trainer(self, problem: Problem, executor: Executor, *, seed: int) -> Trainer:
        """A trainer on that executor; the seed decides the batches."""
        batches = Batches(problem.data.train, batch_size=self.batch, seed=seed)
        return Trainer(executor, problem.task, batches, self.batch)


def default_steps(problem: Problem) -> int:
    """Six passes over the training data, but at least 300 steps."""
    return max(_LEAST_STEPS, round(_PASSES * len(problem.data.train) / Recipe(1).batch))


def train_alone(problem: Problem, architecture: Architecture, recipe: Recipe, *, seed: int) -> dict[str, float]:
    """All metrics of an architecture after a training of its own.

    Those of the test part have their own names, those of the validation part the ones that `validation_name` gives,
    those on the way the ones of `interim_name`.

    Args:
        problem: with a test part.
        seed: of weights, batches and dropout.
    """
    assert problem.data.test is not None  # `ranking.check` sees to it
    server = ParamServer(problem.pool, optimizer=recipe.optimizer, seed=seed)
    trainer = recipe.trainer(problem, ReferenceTrainer(server, device="cpu", seed=seed), seed=seed)
    found: dict[str, float] = {}
    for start, end in itertools.pairwise((0, *recipe.interim, recipe.steps)):
        trainer.fit(
            lambda step: architecture,
            start=start,
            steps=end - start,
            schedule=Cosine(recipe.learning_rate, recipe.steps),
        )
        trainer.recalibrate(architecture)
        called = validation_name if end == recipe.steps else partial(interim_name, end)
        scores = trainer.evaluate(architecture, problem.data.validation)
        found |= {called(name): value for name, value in scores.items()}
    return {**trainer.evaluate(architecture, problem.data.test), **found}


def validation_name(metric: str) -> str:
    """What a metric of the validation part is called in a table."""
    return f"validation {metric}"


def interim_name(steps: int, metric: str) -> str:
    """The same on the way."""
    return f"{metric} after {steps}"


def all_architectures(problem: Problem) -> tuple[Architecture, ...]:
    """Every architecture that is allowed, each once.

    Raises:
        SettingError: there are too many to train them all, or too few to rank.
    """
    pool = problem.pool
    if pool.size > _MOST:
        raise SettingError(
            f"this bench trains every architecture alone, and the space has {pool.size:,}; at most {_MOST:,}: "
            "take a sample (architectures=40), or fewer positions or candidates"
        )
    constraints = (NonEmpty(pool), *problem.constraints)
    distinct = dict.fromkeys(pool.every())
    found = tuple(one for one in distinct if first_violation(one, constraints) is None)
    if len(found) < 3:
        raise SettingError(f"a ranking needs at least 3 architectures, the space allows {len(found)}")
    return found


def sampled_architectures(problem: Problem, count: int, *, seed: int) -> tuple[Architecture, ...]:
    """Different architectures that are allowed, drawn uniformly; all that there are where those are fewer.

    Raises:
        SettingError: there are fewer than 3.
    """
    draws = UniformPaths(problem.pool, seed=seed, constraints=(NonEmpty(problem.pool), *problem.constraints))
    found = tuple(dict.fromkeys(draws.path_at(step) for step in range(20 * count)))[:count]
    if len(found) < 3:
        raise SettingError(f"a sample needs at least 3 architectures, {len(found)} were found")
    return found


def identity(problem: Problem, recipe: Recipe) -> dict[str, Any]:
    """What decides the numbers of a table, apart from the machine: the space, the data and the recipe."""
    settings = asdict(recipe)
    settings["looks"] = list(settings.pop("interim"))  # as a file has them
    if not recipe.interim:  # tables of before do not know them
        del settings["looks"]
    return {
        "space": _space_digest(problem.pool),
        "data": problem.data.digest + problem.data.test_digest,
        "recipe": {**settings, "optimizer": repr(recipe.optimizer)},
    }


def _space_digest(pool: LayerPool) -> str:
    """A hash of names and shapes, and of what each layer prints as: kernels, strides, activations."""
    layers = {layer.key: repr(pool.build_module(layer, device="meta")) for layer in pool.layers}
    return hashlib.sha256(f"{fingerprint(pool)} {json.dumps(layers, sort_keys=True)}".encode()).hexdigest()[:16]


class MetricsTable:
    """Metrics of architectures by seed, in a file.

    Args:
        path: the file.
        made_of: see `identity`.
        rows: metrics by architecture, seed 0 first.
        seconds: of training, in all.
    """

    def __init__(
        self,
        path: Path,
        made_of: Mapping[str, Any],
        rows: Mapping[Architecture, list[Metrics]] | None = None,
        *,
        seconds: float = 0.0,
    ) -> None:
        self.path = path
        self.made_of = dict(made_of)
        self.rows = {architecture: list(metrics) for architecture, metrics in (rows or {}).items()}
        self.seconds = seconds

    @classmethod
    def read(cls, path: Path) -> MetricsTable:
        """Read a table.

        Raises:
            StorageError: missing, damaged, or not a table.
        """
        content = read_json(path)
        try:
            rows: dict[Architecture, list[Metrics]] = {
                Architecture(tuple(key.split())): [dict(zip(content["metrics"], v, strict=True)) for v in values]
                for key, values in content["rows"].items()
            }
            made_of = {name: content["made_of"][name] for name in ("space", "data", "recipe")}
            numbers = [value for row in rows.values() for metrics in row for value in metrics.values()]
            if not all(isinstance(value, int | float) for value in numbers):
                raise ValueError("values that are not numbers")
            return cls(path, made_of, rows, seconds=float(content["seconds"]))
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise StorageError(f"{path}: not a table of stand-alone accuracies ({error}); name another file") from None

    def write(self) -> None:
        """Write it whole, a line for each architecture.

        Raises:
            StorageError: it could not be written; what was there before is whole.
        """
        names = list(next(iter(self.rows.values()))[0])
        head = {
            "about": _ABOUT,
            "made_of": self.made_of,
            "seconds": round(self.seconds, 1),
            "metrics": names,
        }
        rows = ",\n".join(
            f"    {json.dumps(' '.join(architecture.choices))}: "
            f"{json.dumps([[one[name] for name in names] for one in metrics])}"
            for architecture, metrics in self.rows.items()
        )
        text = json.dumps(head, indent=2).removesuffix("\n}")
        write_atomically(self.path, f'{text},\n  "rows": {{\n{rows}\n  }}\n}}\n')

    def unlike(self, made_of: Mapping[str, Any]) -> str:
        """What differs from that, in words, or nothing. More validations than asked for are no difference."""
        wanted = {**made_of, "recipe": dict(made_of["recipe"])}
        if set(wanted["recipe"].get("looks", ())) < set(self._interim):
            wanted["recipe"]["looks"] = self._interim
        return " and ".join(name for name, value in wanted.items() if self.made_of[name] != value)

    @property
    def _interim(self) -> list[int]:
        return list(self.made_of["recipe"].get("looks", ()))

    def missing(self, architectures: tuple[Architecture, ...], seeds: int) -> list[tuple[Architecture, int]]:
        """What is to be trained: all of one seed before any of the next."""
        return [(one, seed) for seed in range(seeds) for one in architectures if len(self.rows.get(one, ())) <= seed]

    def fill(
        self,
        problem: Problem,
        recipe: Recipe,
        *,
        architectures: tuple[Architecture, ...],
        seeds: int,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        """Train what is missing; each training is in the file before the next one begins.

        Args:
            tick: called after each.

        Raises:
            StorageError: the file could not be written.
            NonFiniteError: an architecture cannot be trained with this recipe.
        """
        recipe = replace(recipe, interim=tuple(self._interim))
        for architecture, seed in self.missing(architectures, seeds):
            started = time.process_time()
            metrics = train_alone(problem, architecture, recipe, seed=seed)
            self.seconds += time.process_time() - started
            # as the file says it, so that a table read gives what a table made gave
            self.rows.setdefault(architecture, []).append({name: round(v, 6) for name, v in metrics.items()})
            self.write()
            tick()
