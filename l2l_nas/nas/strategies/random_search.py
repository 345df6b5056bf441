"""Random search of as many training steps as a search took, to hold the search's result against.

Random networks of the space are trained from first weights as a finalist is that is trained to the end: as many steps,
numbered from 0, so that in a race all see the same mini-batches. The last one has the steps that are left. The best of
them on the validation part is shown. That this simple search is hard to beat, and so belongs beside every result, is
what Li and Talwalkar show (Random search and reproducibility for neural architecture search, 2019).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from l2l_nas.errors import one_line
from l2l_nas.nas.callback import Numbers
from l2l_nas.nas.evaluation.segment import Segment, SegmentExecutor, run_all
from l2l_nas.nas.evaluation.stage_score import StageScore
from l2l_nas.nas.objectives import Goal, comparison
from l2l_nas.nas.strategies.baseline import Baseline
from l2l_nas.nas.strategies.budget import Budget
from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.finalist_phase import Counted
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.score import Score

_SEED = 1_000_003  # far from those of other runs


class RandomSearch(Phase):
    """Trains random networks, if the budget asks for it."""

    is_saved = False

    def run(self, search: SearchContext) -> None:
        if search.budget.baseline == "none":
            return
        given = round(search.ledger.search_steps)
        segments = plan(search.budget, search.random_architectures(search.seed + _SEED), steps=given)
        total = sum(one.steps for one in segments)
        search.callback.phase("baseline", total=total, done=0)
        counted = Counted(search.callback, total)
        numbers = [Numbers(search.callback, f"baseline/network_{index + 1}") for index in range(len(segments))]

        def after_step(index: int, loss: float) -> None:
            counted.after_step(loss)
            numbers[index].loss(loss)

        found = play(search.executor, segments, search.goals[0], costs=search.figures, after_step=after_step)
        if found is not None:
            Numbers(search.callback, "baseline", done=found.steps).scores({}, found.scores)
        search.baseline = None if found is None else replace(found, search_steps=given)


def plan(budget: Budget, draws: Iterable[Architecture], *, steps: int) -> list[Segment]:
    """What random search trains: different networks, until the steps or the networks are used up.

    Args:
        steps: that the search took.
        draws: architectures that are allowed, as many as one cares to try; no more are taken than are wanted.
    """
    wanted = -(-steps // budget.finalist_steps)
    networks: dict[Architecture, None] = {}
    for architecture in draws if wanted else ():
        networks[architecture] = None
        if len(networks) == wanted:
            break
    return [
        Segment(
            f"network {index + 1} of random search",
            architecture,
            "scratch",
            0,
            min(budget.finalist_steps, steps - index * budget.finalist_steps),
            budget.finalist_learning_rate,
            keeps_weights=False,
        )
        for index, architecture in enumerate(networks)
    ]


def play(
    executor: SegmentExecutor,
    segments: Sequence[Segment],
    goal: Goal,
    *,
    costs: Callable[[Architecture], Mapping[str, float]],
    after_step: Callable[[int, float], None],
) -> Baseline | None:
    """Train them; None if none could be trained.

    Args:
        goal: a metric, by whose value on the validation part the best is chosen.
        after_step: see `run_all`.
    """
    best: tuple[tuple[float, ...], int] | None = None
    scores: Mapping[str, Score] = {}
    stage_score: StageScore | None = None
    failed: dict[int, str] = {}
    for index, result in run_all(executor, segments, after_step=after_step):
        if result.error is None:
            stage = result.stage_score
            values = result.metrics if stage is None else stage.values
            key = comparison(values, [goal], is_late=stage is not None)
            if best is None or (key, index) < best:  # workers end in any order
                best, scores, stage_score = (key, index), result.scores, stage
        else:
            failed[index] = one_line(str(result.error))
    if best is None:
        return None
    segment, total = segments[best[1]], sum(one.steps for one in segments)
    architecture = segment.architecture
    reasons = {segments[index].architecture: failed[index] for index in sorted(failed)}
    found = dict(costs(architecture))
    return Baseline(len(segments), total, segment.steps, architecture, scores, found, stage_score, reasons)
