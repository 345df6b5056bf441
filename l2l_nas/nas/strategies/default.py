"""One search, in phases: warm-up, trials, finalists; or those of another strategy.

Paths, batches, random numbers and learning rates depend on (seed, step) alone, so that an interrupted warm-up goes on
as if nothing had been. A resumed search keeps its trials and goes on with a newly seeded sampler and the weights last
saved; finalists that were not written yet are trained again.

Trials train the shared weights, a copy of them, or first weights (`Budget.trial_weights`); the last two leave the
shared weights untouched, and have a learning rate that rises and falls within each trial, or is that of the finalists'
training (see [Note: a race]), so that trials are treated alike. Finalists always train a copy, or first weights where
trials do: shared weights that no trial was scored with say nothing of the trials' order.

[Note: steps] Training steps are numbered through the whole run: warm-up first, then `steps_per_trial` for each trial
evaluated, then each finalist's, then those of candidates that joined later; networks of random search begin at 0. A
step's number decides its batch, its random numbers and its learning rate.

[Note: a race] Where trials begin with first weights and finalists follow, all are one training, cut where networks are
compared: each network has steps 0, 1, ... of the same batches, and the learning rate that a training to the end would
have there. A trial whose learning rate falls by itself tells less of the end after as many steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from l2l_nas.errors import ConstraintError, SettingError, StorageError, described, did_you_mean, of_user
from l2l_nas.nas.callback import Stopped
from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.finalist_phase import Finalists
from l2l_nas.nas.strategies.finalists import Finalist
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.nas.strategies.random_search import RandomSearch
from l2l_nas.nas.strategies.trials import Trials
from l2l_nas.nas.strategies.warm_up import WarmUp
from l2l_nas.plugins import is_named, made, name_and_arguments


def default_phases() -> list[Phase]:
    """Warm-up, trials, finalists, and random search beside them where the budget asks for it."""
    return [WarmUp(), Trials(), Finalists(), RandomSearch()]


class Search:
    """Runs phases, one after the other.

    Attributes:
        phases: in order.
        phase: that runs.
    """

    def __init__(self, context: SearchContext, phases: Sequence[Phase] | None = None) -> None:
        self.context = context
        self.phases = tuple(default_phases() if phases is None else phases)
        self.context.phases = self.phases
        self.phase: Phase | None = None

    def restore(self) -> None:
        """Go on from the checkpoint; without one, from the start, if no trial was finished.

        Raises:
            StorageError: it is missing, damaged, or of another pool or optimizer.
        """
        search = self.context
        if not search.checkpoint.exists() and not search.study.records:
            return  # killed before the first save
        extra = search.weights.load(search.checkpoint)
        try:
            search.coverage.load(extra.get("coverage", {}))
            for phase in self.phases:
                phase.restore(search, extra)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise StorageError(
                f"{search.checkpoint.folder}: holds weights, but not of a search ({described(error)}); restore it "
                "from a copy, or start a new run"
            ) from None

    def refuse_uncounted(self) -> None:
        """Refuse random search beside a search whose steps are not all known. Raises SettingError."""
        search = self.context
        if search.budget.baseline != "none" and not search.ledger.is_complete:
            raise SettingError(
                f"{search.study.place}: this study was begun by a version that did not count steps, so random search "
                "cannot have as many; go on with search.baseline=none, or start a new run"
            )

    def run(self) -> Finalist:
        """All phases; returns what is returned.

        Raises:
            Stopped: the callback asked for it; everything is saved.
            ConstraintError: nothing was found.
            StorageError: something could not be saved.
        """
        search = self.context
        try:
            for phase in self.phases:
                self.phase = phase
                search.ledger.begin(type(phase).__name__)
                try:
                    with of_user(phase, "phase"):
                        phase.run(search)
                finally:
                    search.ledger.store()
                search.over.append(phase)
                if phase.is_saved:
                    search.save()
            self.phase = None
        except Stopped:
            search.save()
            raise
        if search.best is None:
            raise ConstraintError("the phases of the search chose nothing to return; let the last be Finalists()")
        return search.best


# the strategy whose trials are drawn at random, whatever the sampler: what other searches are compared with
RANDOM = "random_search"
STRATEGIES: dict[str, Callable[..., list[Phase]]] = {
    "default": default_phases,
    RANDOM: lambda: [Trials(), Finalists()],
}


def build_phases(
    strategy: str | Mapping[str, Any] | Sequence[Phase], known: Mapping[str, Callable[..., list[Phase]]] = STRATEGIES
) -> list[Phase]:
    """The phases of a strategy.

    Args:
        strategy: a key of `known`; or `FILE.py:NAME` or `MODULE:NAME` of a function that returns a list of phases;
            or that list. A dict has the name, as "name", and the arguments of the function.
        known: functions that return such a list, by name.

    Raises:
        SettingError: there is no such strategy, or it is no list of phases.
        L2LError: what is named raised something.
    """
    if not isinstance(strategy, str | Mapping):
        if not _are_phases(strategy):
            raise SettingError("strategy: expected a list of l2l_nas.Phase objects, or a name")
        return list(strategy)
    name, arguments = name_and_arguments(strategy)
    if name in known:
        return known[name](**arguments)
    if not is_named(name):
        raise SettingError(f"no strategy '{name}'{did_you_mean(name, known)}")
    found: Sequence[Phase] = made(
        strategy,
        setting="strategy",
        offered={},
        is_right=_are_phases,
        kind="a list of l2l_nas.Phase objects",
    )
    return list(found)


def _are_phases(found: object) -> bool:
    return isinstance(found, list | tuple) and bool(found) and all(isinstance(one, Phase) for one in found)
