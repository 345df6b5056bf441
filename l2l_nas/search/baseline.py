"""Random search of as many training steps as a search, to hold the search's result against.

Random networks of the space are trained from first weights, each about as long as a finalist, and the best of them on
the validation part is told. That this simple search is hard to beat, and so belongs beside every result, is what Li and
Talwalkar show (Random search and reproducibility for neural architecture search, 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from l2l_nas.search.budget import Budget
from l2l_nas.search.records import Goal
from l2l_nas.search.trials import Crew, Training
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.sampling import PathSampler
from l2l_nas.training.score import Score, by_part

# draws for each network that is wanted, until so many different ones are found
_DRAWS = 20


@dataclass(frozen=True)
class Baseline:
    """The best of a random search.

    Args:
        networks: how many were trained.
        steps: of each.
        architecture: of the best on the validation part.
        scores: its, by part of the data.
        costs: its, by name.
    """

    networks: int
    steps: int
    architecture: Architecture
    scores: Mapping[str, Score]
    costs: Mapping[str, float]

    def entry(self) -> dict[str, Any]:
        """As `result.json` and the log hold it."""
        return {
            "kind": "random",
            "networks": self.networks,
            "steps": self.steps,
            "architecture": list(self.architecture.choices),
            **by_part(self.scores),
            "costs": dict(self.costs),
        }


def plan(budget: Budget, draws: PathSampler) -> list[Training]:
    """What random search trains: different networks, the steps of the whole search between them.

    Args:
        draws: architectures that are allowed, from step 0 on.
    """
    wanted = max(1, round(budget.steps / budget.finalist_steps))
    found = list(dict.fromkeys(draws.path_at(step) for step in range(_DRAWS * wanted)))[:wanted]
    steps = budget.steps // len(found)
    return [
        Training(
            f"network {index + 1} of random search",
            architecture,
            "scratch",
            index * steps,
            steps,
            budget.finalist_learning_rate,
        )
        for index, architecture in enumerate(found)
    ]


def play(
    crew: Crew,
    trainings: Sequence[Training],
    goal: Goal,
    *,
    costs: Callable[[Architecture], Mapping[str, float]],
    after_step: Callable[[float], None],
) -> Baseline | None:
    """Train them; None if none could be trained.

    Args:
        goal: a metric, by whose value on the validation part the best is chosen.
        costs: of an architecture.
        after_step: called with the loss of each step that is done.
    """
    best: tuple[float, int] | None = None
    scores: Mapping[str, Score] = {}
    for one in crew.train_alone(trainings, after_step=after_step):
        if one.scores is None:
            continue
        value = one.scores["validation"].values[goal.name] * (-1 if goal.maximize else 1)
        if best is None or (value, one.index) < best:  # workers end in any order
            best, scores = (value, one.index), one.scores
    if best is None:
        return None
    architecture = trainings[best[1]].architecture
    return Baseline(len(trainings), trainings[0].steps, architecture, scores, dict(costs(architecture)))
