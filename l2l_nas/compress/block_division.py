"""How a search that takes a network apart is divided, where nobody says it.

[Note: a time for blocks] The best predicted networks become the trials: eight for each size, or as many as there are
finalists, scored as they are. Given a time, what takes no steps is taken off first, as it cannot be divided: the
measurement, what blocks take besides their steps, all scores, trials. Of what is left, a fifth is for steps of blocks,
100 for each at most: `experiment=smaller` has these proportions on SmolLM2. Finalists have the rest. They are smaller
than the original, with which their steps are measured, so that a search ends a little early rather than late.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from l2l_nas.nas.strategies.budget import Division
from l2l_nas.nas.strategies.division import LEAST, refuse_short
from l2l_nas.nas.strategies.machine_speed import MachineSpeed

MOST_BLOCK_STEPS = 100
_SHARE = 0.2  # of what is left, of blocks' steps
_TRIALS = 8
_MOST_STEPS = 2**31 - 1  # as of any setting


def apart(start: Division, *, networks: int, explicit: Collection[str], most_trials: int) -> Division:
    """What suits a network that is taken apart; see [Note: a time for blocks].

    Args:
        start: what was given, and what suits other searches; with the steps of blocks.
        networks: how many are looked for, one for each size.
        explicit: names of the numbers that stay.
        most_trials: as many architectures as there are.
    """
    trials = min(most_trials, max(_TRIALS * networks, start.finalists))
    return replace(
        start,
        trials=start.trials if "trials" in explicit else trials,
        steps_per_trial=start.steps_per_trial if "steps_per_trial" in explicit else 0,
    )


def fitted_apart(
    start: Division, seconds: float, speed: MachineSpeed, *, divides_blocks: bool, explicit: Collection[str]
) -> Division:
    """A division that takes about this long; see [Note: a time for blocks].

    Args:
        start: made by `apart`.
        divides_blocks: whether steps of blocks are divided, too.
        explicit: names of the numbers that stay.

    Raises:
        SettingError: the least takes longer.
    """
    recovers = start.finalists > 0 and "finalist_steps" not in explicit
    found = replace(start, finalist_steps=LEAST["finalist_steps"]) if recovers else start
    found = replace(found, block_steps=0) if divides_blocks else found
    refuse_short(found, seconds, speed)
    if divides_blocks:
        left = seconds - speed.seconds(found)
        part = _SHARE * left if recovers else left
        fitting = part / speed.block_step if speed.block_step else MOST_BLOCK_STEPS
        found = replace(found, block_steps=int(min(MOST_BLOCK_STEPS, fitting)))
    return _recovering(found, seconds, speed) if recovers else found


def _recovering(start: Division, seconds: float, speed: MachineSpeed) -> Division:
    """The same with as many steps of finalists as there is time for."""
    low, high = start.finalist_steps, _MOST_STEPS
    while low < high:
        middle = (low + high + 1) // 2
        if speed.seconds(replace(start, finalist_steps=middle)) <= seconds:
            low = middle
        else:
            high = middle - 1
    return replace(start, finalist_steps=low)
