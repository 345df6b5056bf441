"""How a search divides its training between warm-up, trials and finalists, where nobody says it.

[Note: first weights] Where trials train from first weights, they are the first steps of a race. A finalist in all
rounds is trained for 90 steps times the root of the steps of a pass over the training data: a step means little across
data sets, and so does a pass. A trial is a tenth of that, and there are 3 trials for each position that has a choice.
With 4,308 samples, batches of 64 and nine such positions, these are 740 steps, and 27 trials of 74.

[Note: passes] Where trials use shared weights, each candidate of the position that has most is trained by warm-up for
20 passes over the training data, each finalist for 38, and trials number 8 for each position that has a choice. With
1,077 samples and batches of 128, six candidates and eight positions, these are 1,000 steps, 64 trials and 320 steps.

[Note: trainings] Given so many whole trainings' worth of steps, a race has finalists in proportion to them, and trials
take what finalists leave. Between 4 and 25 trainings these are the proportions of the default search, which takes 5.8.
Below 4 a trial is a fifteenth of a whole training, more of them go on, and one network is trained to the end: so there
is still something to choose from. From 25 on, five rounds halve the finalists, which would otherwise train networks to
the end by the dozen; what that saves goes to trials (docs/benchmarks.md).

[Note: a time] Given a time, all steps get longer or shorter by one factor, trials by its root: what more trials find
gets less and less.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from l2l_nas.errors import SettingError
from l2l_nas.nas.strategies.budget import Division
from l2l_nas.nas.strategies.machine_speed import MachineSpeed
from l2l_nas.space.pool import LayerPool

_LONGEST, _TENTH = 90, 10  # of the root of a pass's steps; of these a trial's
_WARMUP_PASSES, _FINALIST_PASSES, _TRIAL_STEPS = 20, 38, 6
_RACED_TRIALS, _TRIALS = 3, 8  # for each position with a choice: from first weights, on shared ones
_PER_TRAINING = 8 / 5.784  # finalists of the default search, by the whole trainings that it takes
LEAST = {"warmup_steps": 20, "trials": 8, "steps_per_trial": 4, "finalist_steps": 20}
_MOST = {"warmup_steps": 20_000, "trials": 256, "steps_per_trial": 2_000, "finalist_steps": 10_000}
# of a factor that fits a division to a time
_RANGE = 2.0**20


@dataclass(frozen=True)
class _Rule:
    """How whole trainings are divided; see [Note: trainings].

    Args:
        below: trainings from which the next rule holds.
        part: of a whole training a trial has one in so many.
        finalists: for each training, at most.
        rounds: that halve them, at most.
        share: of all steps that finalists take, at most.
    """

    below: float
    part: int
    finalists: float
    rounds: int
    share: float


_RULES = (
    _Rule(below=4.0, part=15, finalists=8 / 3, rounds=4, share=0.7),
    _Rule(below=25.0, part=_TENTH, finalists=_PER_TRAINING, rounds=3, share=0.6),
    _Rule(below=math.inf, part=_TENTH, finalists=_PER_TRAINING, rounds=5, share=0.6),
)


def division(
    pool: LayerPool, *, samples: int, batch_size: int, trial_weights: str, explicit: Mapping[str, int]
) -> Division:
    """What suits a space and its data; see [Note: first weights] and [Note: passes].

    Args:
        trial_weights: what trials train.
        explicit: numbers that somebody named, by the name of their field; they stay. How many finalists, in how many
            rounds at most, and how many goals are among them.
    """
    passing = samples / min(batch_size, samples)
    choices = [len(position.candidates) for position in pool.free if len(position.candidates) > 1]
    if trial_weights == "scratch":
        longest = _LONGEST * math.sqrt(passing)
        wanted = {
            "warmup_steps": 0,
            "trials": _RACED_TRIALS * len(choices),
            "steps_per_trial": longest / _TENTH,
            "finalist_steps": longest,
        }
    else:
        wanted = {
            "warmup_steps": _WARMUP_PASSES * max(choices, default=1) * passing,
            "trials": _TRIALS * len(choices),
            "steps_per_trial": _TRIAL_STEPS,
            "finalist_steps": _FINALIST_PASSES * passing,
        }
    found = {name: _within(name, _rounded(value)) if value else 0 for name, value in wanted.items()}
    found["trials"] = max(1, min(found["trials"], pool.size))
    return _in_order(Division(**{**found, **explicit}, trial_weights=trial_weights), explicit)


def fitted(
    start: Division, seconds: float, pace: MachineSpeed, *, explicit: Collection[str], most_trials: int
) -> Division:
    """A division that takes about this long; see [Note: a time].

    Args:
        start: what it is fitted from.
        explicit: names of the numbers that stay.
        most_trials: as many architectures as there are.

    Raises:
        SettingError: the least takes longer.
    """
    free = [name for name in LEAST if name not in explicit and getattr(start, name)]

    def by(factor: float) -> Division:
        wanted = {name: getattr(start, name) * (math.sqrt(factor) if name == "trials" else factor) for name in free}
        rounded = {name: max(LEAST[name], _rounded(value)) for name, value in wanted.items()}
        if "trials" in rounded:
            rounded["trials"] = min(rounded["trials"], most_trials)
        return _in_order(replace(start, **rounded), explicit)  # type: ignore[arg-type]

    refuse_short(by(1 / _RANGE), seconds, pace)
    return by(_largest(lambda factor: pace.seconds(by(factor)) <= seconds))


def refuse_short(least: Division, seconds: float, pace: MachineSpeed) -> None:
    """Refuse a time in which the smallest division is not done. Raises SettingError."""
    needed = pace.seconds(least)
    if needed > seconds:
        fixed = f", and {pace.fixed:,.0f} s of what takes no steps" if least.block_steps is not None else ""
        raise SettingError(
            f"search.time is {seconds:,.0f} s, and the smallest search takes {needed:,.0f} s on this machine: "
            f"{_parts(least)}{fixed}; give it more time"
        )


def in_trainings(start: Division, trainings: float, *, explicit: Collection[str], most_trials: int) -> Division:
    """A race that takes as many steps as so many whole trainings, or a little less; see [Note: trainings].

    Args:
        start: what it is made of.
        explicit: names of the numbers that stay, "finalists" and "finalist_rounds" among them.
        most_trials: as many architectures as there are.

    Raises:
        SettingError: what was given takes more.
    """
    whole = start.finalist_steps
    steps = math.floor(trainings * whole)
    rule = next(one for one in _RULES if trainings < one.below)
    if "steps_per_trial" not in explicit:
        start = replace(start, steps_per_trial=max(1, min(_rounded(whole / rule.part), whole - 1)))
    if "finalist_rounds" not in explicit and start.finalist_rounds > 1:  # 1: there is one finalist
        start = replace(start, finalist_rounds=rule.rounds)
    most = max(1, min(round(rule.finalists * trainings), most_trials))
    for finalists in [start.finalists] if "finalists" in explicit else range(most, 0, -1):
        found = replace(start, finalists=finalists)
        left = steps - (found.steps - found.steps_before_finalists)
        trials = start.trials if "trials" in explicit else min(left // found.steps_per_trial, most_trials)
        is_much = "finalists" not in explicit and finalists > 1 and steps - left > rule.share * steps
        if trials >= finalists and trials * found.steps_per_trial <= left and not is_much:
            found = replace(found, trials=trials)
            if trials == most_trials and not {"trials", "finalists"} & {*explicit}:
                found = _with_more_finalists(found, steps)
            return replace(found, finalist_rounds=len(found.rounds))
    least = replace(start, finalists=start.finalists if "finalists" in explicit else 1, finalist_rounds=1)
    raise SettingError(
        f"search.trainings={trainings:g} are {_counted(steps, 'step')}, and these numbers take more: {_parts(least)}; "
        "say more trainings, or less of what was said"
    )


def _with_more_finalists(found: Division, steps: int) -> Division:
    """A space has no more networks to try: what is left of the steps trains more of them further."""
    while found.finalists < found.trials:
        more = replace(found, finalists=found.finalists + 1)
        if more.steps > steps:
            break
        found = more
    return found


def _in_order(found: Division, explicit: Collection[str]) -> Division:
    """In a race, what was not given follows what was: a finalist trains for twice a trial's steps at least."""
    if not found.is_raced:
        return found
    if "finalist_steps" not in explicit:
        return replace(found, finalist_steps=max(found.finalist_steps, 2 * found.steps_per_trial))
    if "steps_per_trial" not in explicit:
        return replace(found, steps_per_trial=min(found.steps_per_trial, max(1, found.finalist_steps // 2)))
    return found


def _largest(holds: Callable[[float], bool]) -> float:
    """The largest factor for which it holds, about; it holds for the smallest."""
    low, high = 1 / _RANGE, _RANGE
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _rounded(value: float) -> int:
    """To two digits: a number that one can say."""
    if value < 100:
        return round(value)
    unit = 10 ** (math.floor(math.log10(value)) - 1)
    return round(value / unit) * unit


def _within(name: str, value: int) -> int:
    return min(max(value, LEAST[name]), _MOST[name])


def _parts(division: Division) -> str:
    parts = [f"{division.warmup_steps:,} steps of warm-up"] if division.warmup_steps else []
    parts += [] if division.block_steps is None else [f"blocks of {_counted(division.block_steps, 'step')}"]
    parts += [f"{_counted(division.trials, 'trial')} of {_counted(division.steps_per_trial, 'step')}"]
    if division.finalists:
        rounds = len(division.rounds)
        ends = "of halving" if division.num_goals == 1 else "that keep the front"
        up_to = f" in {rounds} rounds {ends}, up to" if rounds > 1 else " up to" if division.is_raced else " of"
        steps = _counted(division.finalist_steps, "step")
        parts += [f"{_counted(division.finalists, 'finalist')}{up_to} {steps}"]
    return ", ".join(parts)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def described(division: Division) -> str:
    """In words, for a line."""
    return f"{_parts(division)}; {_counted(division.steps, 'step')} in all"


_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}


def parse_time(text: str) -> float:
    """Seconds of a time such as `90s`, `10m`, `1h30m` or `2h`.

    Raises:
        SettingError: it is none, or not above 0.
    """
    word = str(text).strip().lower()
    if re.fullmatch(r"(\d+(\.\d+)?[hms])+", word):
        seconds = sum(float(number) * _UNITS[unit] for number, _, unit in re.findall(r"(\d+(\.\d+)?)([hms])", word))
        if 0 < seconds < math.inf:
            return seconds
    raise SettingError(f"search.time must be a time such as 90s, 10m or 1h30m, got '{text}'")
