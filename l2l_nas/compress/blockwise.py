"""Taking a network apart: blocks imitate the original's, are scored one by one, and the best sums become trials.

    l2l_nas.search(problem, strategy=blockwise(samples=64, steps=100), trial_weights="fork", limits={"parameters": 1e6})
    python -m l2l_nas search strategy=blockwise search.trial_weights=fork search.limits.parameters=1e6

The original is the first candidate of each position.
"""

from __future__ import annotations

from collections.abc import Sequence

from l2l_nas.compress.block_division import MOST_BLOCK_STEPS
from l2l_nas.compress.block_scores import ScoreBlocks
from l2l_nas.compress.block_training import FROM_ORIGINAL, AskForClasses, DistilBlocks, Teach
from l2l_nas.compress.finetuning_rate import RATES, TryRates
from l2l_nas.compress.imitation import BlockSettings
from l2l_nas.compress.low_rank_recovery import TrainPairs
from l2l_nas.errors import SettingError
from l2l_nas.nas.strategies.default import STRATEGIES as SEARCHES
from l2l_nas.nas.strategies.finalist_phase import Finalists
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.nas.strategies.random_search import RandomSearch
from l2l_nas.nas.strategies.trials import Trials

SCORES = ("exchange", *FROM_ORIGINAL, "error")
_ROUNDS = 3


def blockwise(
    samples: int = 64,
    steps: int | None = None,
    learning_rate: float = 1e-3,
    scores: str = "exchange",
    rounds: int | None = None,
    pairs: int = 32,
    sizes: Sequence[float] = (),
    teacher: float = 0.5,
    lora: int = 0,
    rates: Sequence[float] = RATES,
) -> list[Phase]:
    """The phases of a blockwise search.

    Args:
        samples: of the training part, whose values in the original the candidates imitate.
        steps: of each candidate. None: 100; where the strategy is named and a time given, see `block_division.py`.
        learning_rate: peak, of these.
        scores: what a block's score is: "exchange", by how much the original's first metric is worse on the validation
            part with this block in place of its own; "divergence", how far the network's probabilities are from the
            original's then, see `Divergence`; "recall", the sum of that and of the same where tokens stand again that
            were read once, see `repeated_passages`; "error", how well it imitates.
        rounds: of scores: before trials are proposed, so many less one score the best predicted networks whole, and
            pairs of blocks where the prediction was wrong. None: 3; with "error" there is one.
        pairs: that a round measures at most.
        sizes: shares of the original's parameters, where there is a choice, each of which a network is found without.
        teacher: share of the original's outputs in the loss of trials and finalists; 0 for tasks without classes.
        lora: rank of pairs that finalists train in place of all their weights; 0: all weights.
        rates: shares of `search.finalist_learning_rate` that are tried, each for a tenth of a finalist's steps; the one
            that does best on the validation part is that of all finalists. Fewer than two: nothing is tried.

    Raises:
        SettingError: a setting out of range.
    """
    if scores not in SCORES:
        raise SettingError(f"strategy.scores: expected {', '.join(SCORES[:-1])} or {SCORES[-1]}, got '{scores}'")
    if samples < 2:
        raise SettingError(f"strategy.samples must be at least 2, got {samples}")
    if scores == "error" and (rounds or 1) > 1:
        raise SettingError(f"strategy.rounds={rounds} score networks whole, and strategy.scores=error scores none")
    rounds = (1 if scores == "error" else _ROUNDS) if rounds is None else rounds
    for name, value, least in (("rounds", rounds, 1), ("pairs", pairs, 0), ("lora", lora, 0)):
        if value < least:
            raise SettingError(f"strategy.{name} must be at least {least}, got {value}")
    settings = BlockSettings(steps=MOST_BLOCK_STEPS if steps is None else steps, learning_rate=learning_rate)
    asked = [AskForClasses(scores)] if scores in FROM_ORIGINAL else []
    taught = [Teach(teacher)] if teacher else []
    scored = ScoreBlocks(scores, rounds=rounds, pairs=pairs, sizes=sizes)
    recovery = [TrainPairs(lora)] if lora else []
    blocks = [DistilBlocks(samples, settings), scored]
    return [*asked, *taught, *blocks, Trials(), *recovery, TryRates(rates), Finalists(), RandomSearch()]


BLOCKWISE = "blockwise"
STRATEGIES = {**SEARCHES, BLOCKWISE: blockwise}
