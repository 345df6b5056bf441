"""Taking a network apart: blocks imitate the original's, are scored one by one, and the best sums become trials.

    l2l_nas.search(problem, strategy=blockwise(samples=64, steps=100), trial_weights="fork", limits={"parameters": 1e6})
    python -m l2l_nas search strategy=blockwise search.trial_weights=fork search.limits.parameters=1e6

The original is the first candidate of each position.
"""

from __future__ import annotations

from l2l_nas.errors import SettingError
from l2l_nas.nas.strategies.block_scores import ScoreBlocks
from l2l_nas.nas.strategies.block_training import DistilBlocks, Teach
from l2l_nas.nas.strategies.finalist_phase import Finalists
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.nas.strategies.random_search import RandomSearch
from l2l_nas.nas.strategies.trials import Trials
from l2l_nas.training.blockwise import BlockSettings

SCORES = ("exchange", "error")


def blockwise(
    samples: int = 64,
    steps: int = 100,
    learning_rate: float = 1e-3,
    scores: str = "exchange",
    teacher: float = 0.5,
) -> list[Phase]:
    """The phases of a blockwise search.

    Args:
        samples: of the training part, whose values in the original the candidates imitate.
        steps: of each candidate.
        learning_rate: peak, of these.
        scores: what a block's score is: "exchange", by how much the original's first metric is worse on the validation
            part with this block in place of its own; "error", how well it imitates.
        teacher: share of the original's outputs in the loss of trials and finalists; 0 for tasks without classes.

    Raises:
        SettingError: a setting out of range.
    """
    if scores not in SCORES:
        raise SettingError(f"strategy.scores: expected {' or '.join(SCORES)}, got '{scores}'")
    if samples < 2:
        raise SettingError(f"strategy.samples must be at least 2, got {samples}")
    settings = BlockSettings(steps=steps, learning_rate=learning_rate)
    taught = [Teach(teacher)] if teacher else []
    return [*taught, DistilBlocks(samples, settings), ScoreBlocks(scores), Trials(), Finalists(), RandomSearch()]
