"""What samplers of our own share: finished trials as plain tuples, and Optuna's interface around one function.

Such a sampler is a function of the study's trials and of random numbers: it keeps no population of its own, so a
resumed study, whose trials are read back, goes on with the population it had.
"""

from __future__ import annotations

import abc
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.search_space import IntersectionSearchSpace
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from l2l_nas.nas.earlier_task import EarlierTask
from l2l_nas.nas.objectives import Goal

Floats = npt.NDArray[np.float64]
Genotype = tuple[Any, ...]
Params = Mapping[str, Any]
Space = Mapping[str, Sequence[Any]]
# what is known of a genotype: values, more is better; or, where it has none, the share of others that are no better
Result = tuple[float, ...] | float

# random draws in the search for a genotype that no trial has
_DRAWS = 100
# what a trial that was stopped early is taken for: as good as this share of those that have a score
_STOPPED = 0.25


@dataclass(frozen=True)
class Scored:
    """A genotype and what a trial found of it.

    Args:
        genotype: one value for each parameter, in the order of the space.
        values: one for each goal, more is better.
    """

    genotype: Genotype
    values: tuple[float, ...]


@dataclass(frozen=True)
class History:
    """What the trials of a study tell a sampler.

    Args:
        scored: of the complete trials the first of each genotype, oldest first; not those served from the cache. One
            that failed has the worst values so far, one that was stopped early those that a quarter are no better than.
        seen: all genotypes that were proposed, those that run, failed or were refused as well.
        is_allowed: whether a genotype would be evaluated, as far as that is known without measuring. It may ask code
            of the user's, so it is asked only of what may be proposed next.
        known: by place of a goal, its value of any genotype, more is better; of goals that are costs and not measured.
        size: how large the architecture of a genotype is; None where nobody told.
    """

    scored: Sequence[Scored]
    seen: frozenset[Genotype] | set[Genotype]
    is_allowed: Callable[[Genotype], bool] = lambda genotype: True
    known: Mapping[int, Callable[[Genotype], float]] = field(default_factory=dict)
    size: Callable[[Genotype], float] | None = None

    def is_new(self, genotype: Genotype) -> bool:
        """Whether a genotype may be proposed: no trial has it, and it is allowed."""
        return genotype not in self.seen and self.is_allowed(genotype)


def front(scored: Sequence[Scored]) -> list[Scored]:
    """Those that no other dominates, in order; with one goal the best, and all that equal it."""
    nondominated: list[tuple[float, ...]] = []
    for values in sorted({one.values for one in scored}, reverse=True):
        # whoever dominates comes earlier in this order; and if it is dominated itself, then by one that is here
        if not any(all(a >= b for a, b in zip(other, values, strict=True)) for other in nondominated):
            nondominated.append(values)
    best = set(nondominated)
    return [one for one in scored if one.values in best]


def first_allowed(genotypes: Iterable[Genotype], history: History) -> Genotype | None:
    """The first that is allowed of those that no trial has."""
    return next((one for one in genotypes if history.is_new(one)), None)


def random_unseen(space: Space, history: History, rng: random.Random, *, draws: int = _DRAWS) -> Genotype:
    """A random genotype that is new; after so many draws any, as the search has its own way out of a spent space."""
    genotype: Genotype = ()
    for _ in range(draws):
        genotype = tuple(rng.choice(values) for values in space.values())
        if history.is_new(genotype):
            break
    return genotype


def neighbours(space: Space, genotype: Genotype) -> Iterator[Genotype]:
    """All genotypes that differ in one position."""
    for index, values in enumerate(space.values()):
        for value in values:
            if value != genotype[index]:
                yield (*genotype[:index], value, *genotype[index + 1 :])


class GenotypeSampler(optuna.samplers.BaseSampler, abc.ABC):
    """Optuna's interface for samplers of finite spaces; a subclass says which genotype comes next.

    The first trials are random, as Optuna tells a sampler the space with the first trial it has finished.

    Attributes:
        uses_earlier_tasks: whether it has a use for what earlier tasks tell; of its class.
        is_raced: whether the best trials will be trained further, and compared then.
        earlier_tasks: what earlier runs of the space found.
        goals: of the search, as far as they were told.
    """

    uses_earlier_tasks = False

    def __init__(self, *, seed: int) -> None:
        self._rng = random.Random(seed)
        self._random = optuna.samplers.RandomSampler(seed=seed)
        self._intersection = IntersectionSearchSpace(include_pruned=True)
        # what is known of the first trials, all finished, so that nobody reads 1,000 of them at every proposal
        self._of: tuple[optuna.Study | None, tuple[str, ...]] = (None, ())
        self._signs: list[int] = []  # by goal: 1 where more is better
        self._num_taken = 0
        self._results: dict[Genotype, Result] = {}
        self._seen: set[Genotype] = set()
        self._is_allowed: Callable[[Params], bool] | None = None
        self._allowed: dict[Genotype, bool] = {}
        self._costs: Mapping[int, Callable[[Params], float]] = {}
        self._size: Callable[[Params], float] | None = None
        self.is_raced = False
        self.earlier_tasks: tuple[EarlierTask, ...] = ()
        self.goals: tuple[Goal, ...] = ()
        self._choices: Mapping[str, BaseDistribution] = {}
        self._cost: dict[tuple[int, Genotype], float] = {}

    def inform(
        self,
        is_allowed: Callable[[Params], bool],
        costs: Mapping[int, Callable[[Params], float]] | None = None,
        *,
        size: Callable[[Params], float] | None = None,
        is_raced: bool = False,
        earlier_tasks: tuple[EarlierTask, ...] = (),
        goals: Sequence[Goal] = (),
        choices: Mapping[str, BaseDistribution] | None = None,
    ) -> None:
        """Tell what is known without a trial. What may be asked is asked often, so it measures nothing.

        Args:
            is_allowed: whether parameters, by name, would be evaluated; nothing else is proposed.
            costs: by place of a goal, its value of any parameters.
            size: how large the architecture of any parameters is; it says which candidates are small and which large.
            is_raced: whether the best will be trained further, and compared then.
            earlier_tasks: what earlier runs found; a sampler with `uses_earlier_tasks` begins with it.
            goals: of this search, in the order of a trial's values; earlier scores have these by name.
            choices: the parameters of each trial; earlier tasks serve the first one too, when Optuna knows of none.
        """
        self.is_raced = is_raced
        self.earlier_tasks, self.goals, self._choices = tuple(earlier_tasks), tuple(goals), dict(choices or {})
        self._is_allowed, self._costs, self._size = is_allowed, dict(costs or {}), size
        self._allowed, self._cost = {}, {}

    @abc.abstractmethod
    def propose(self, space: Space, history: History, rng: random.Random) -> Genotype:
        """The genotype of the next trial.

        Args:
            space: the values of each parameter; none is empty.
            history: what was found so far.
        """

    def draws(self, space: Space, history: History) -> Mapping[Genotype, Floats]:
        """What all that is scored may come to if it is trained further: equally likely values, more is better.

        Returns:
            By genotype, of shape (goals, draws); column by column they belong together. Empty without a model, and
            without those that a model does not take in.
        """
        return {}

    def posterior(self, study: optuna.Study) -> Iterator[tuple[Params, Floats]]:
        """Parameters of all that trials scored, and `draws` as the study's goals count; nothing without a model."""
        space = self._space_of(study)
        if not space:
            return
        found = self.draws(space, self._history(study, space))
        signs = np.array(self._signs)[:, None]
        for genotype, values in found.items():
            yield dict(zip(space, genotype, strict=True)), signs * values

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial | None = None
    ) -> dict[str, BaseDistribution]:
        # earlier tasks have something to say before the first trial is finished
        found = self._choices if self.earlier_tasks and self._choices else self._intersection.calculate(study)
        return {name: one for name, one in found.items() if not one.single() and _values(one)}

    def _space_of(self, study: optuna.Study) -> Space:
        return {name: _values(one) for name, one in self.infer_relative_search_space(study).items()}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if not search_space:
            return {}
        space = {name: _values(one) for name, one in search_space.items()}
        genotype = self.propose(space, self._history(study, space), self._rng)
        return dict(zip(space, genotype, strict=True))

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._random.sample_independent(study, trial, param_name, param_distribution)

    def _history(self, study: optuna.Study, space: Space) -> History:
        names = tuple(space)
        trials = study.get_trials(deepcopy=False)
        if self._of != (study, names) or len(trials) < self._num_taken:
            self._of, self._num_taken = (study, names), 0
            self._results, self._seen, self._allowed, self._cost = {}, set(), {}, {}
            self._signs = [1 if direction is StudyDirection.MAXIMIZE else -1 for direction in study.directions]
        signs = self._signs
        while self._num_taken < len(trials) and trials[self._num_taken].state.is_finished():
            _take(trials[self._num_taken], names, signs, self._results, self._seen)
            self._num_taken += 1
        results, seen = dict(self._results), set(self._seen)
        for trial in trials[self._num_taken :]:
            _take(trial, names, signs, results, seen)

        def is_allowed(genotype: Genotype) -> bool:
            if self._is_allowed is None:
                return True
            if genotype not in self._allowed:
                self._allowed[genotype] = self._is_allowed(dict(zip(names, genotype, strict=True)))
            return self._allowed[genotype]

        def cost(place: int, genotype: Genotype) -> float:
            if (place, genotype) not in self._cost:
                found = self._costs[place](dict(zip(names, genotype, strict=True)))
                self._cost[place, genotype] = signs[place] * found
            return self._cost[place, genotype]

        def size(genotype: Genotype) -> float:
            assert self._size is not None
            return self._size(dict(zip(names, genotype, strict=True)))

        known = {place: partial(cost, place) for place in self._costs}
        return History(_scored(results), seen, is_allowed, known, size if self._size else None)


def _take(
    trial: FrozenTrial,
    names: Sequence[str],
    signs: Sequence[int],
    results: dict[Genotype, Result],
    seen: set[Genotype],
) -> None:
    """Take in what a trial tells: nothing, if it is being asked for, or of a space that has grown since."""
    params = trial.params
    if not all(name in params for name in names):
        return
    genotype = tuple(params[name] for name in names)
    seen.add(genotype)
    attributes = trial.user_attrs
    if attributes.get("cached"):
        return
    if trial.state is TrialState.COMPLETE:
        results.setdefault(genotype, tuple(sign * value for sign, value in zip(signs, trial.values, strict=True)))
    elif "stopped" in attributes:
        results.setdefault(genotype, _STOPPED)
    elif trial.state is TrialState.FAIL and "reason" in attributes:  # what was lost, or is another's, has none
        results.setdefault(genotype, 0.0)


def _scored(results: Mapping[Genotype, Result]) -> tuple[Scored, ...]:
    """All with values, once there are any: a share becomes the values that so many of the complete do not exceed."""
    complete = np.array([values for values in results.values() if isinstance(values, tuple)], dtype=np.float64)
    if not len(complete):
        return ()
    shares = {share: tuple(np.quantile(complete, share, axis=0).tolist()) for share in (0.0, _STOPPED)}
    return tuple(
        Scored(genotype, values if isinstance(values, tuple) else shares[values])
        for genotype, values in results.items()
    )


def _values(distribution: BaseDistribution) -> Sequence[Any]:
    """All values of a finite distribution; none of another."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    if isinstance(distribution, IntDistribution) and not distribution.log:
        return range(distribution.low, distribution.high + 1, distribution.step)
    return ()
