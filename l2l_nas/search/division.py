"""How a search divides its training between warm-up, trials and finalists, where nobody says it.

[Note: passes] What a network needs is told in passes over the training data, as a step means little across data sets:
each candidate of the position that has most is trained by warm-up for 20 passes, each finalist for 38. Trials number 8
for each position that has a choice. With 1,077 samples and batches of 128, six candidates and eight positions, these
are the 1,000 steps, 64 trials and 320 steps that were tried by hand first (docs/log.md).

[Note: a time] Given a time, warm-up and finalists get longer or shorter by one factor, trials by its root: what more
trials find gets less and less.
"""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from l2l_nas.errors import SettingError
from l2l_nas.relay.executor import Relay
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.sampling import PathSampler
from l2l_nas.training.data import Split
from l2l_nas.training.fit import Trainer
from l2l_nas.training.schedule import Cosine

_WARMUP_PASSES, _FINALIST_PASSES = 20, 38
_TRIALS = 8  # for each position with a choice
_LEAST = {"warmup_steps": 20, "trials": 8, "finalist_steps": 20}
_MOST = {"warmup_steps": 20_000, "trials": 256, "finalist_steps": 10_000}
# what a pace is measured with: steps, of which the first are slow, and scores
_SLOW, _STEPS, _SCORES = 4, 16, 3
_PROPOSAL = 0.05  # seconds that a sampler thinks of a trial, about
# of a factor that fits a division to a time
_RANGE = 2.0**20


@dataclass(frozen=True)
class Division:
    """What a search does, in numbers.

    Args:
        warmup_steps: of the shared weights, on random paths.
        trials: architectures to evaluate.
        finalist_steps: of each finalist.
        steps_per_trial: that a trial trains.
        finalists: how many.
    """

    warmup_steps: int
    trials: int
    finalist_steps: int
    steps_per_trial: int
    finalists: int

    @property
    def steps(self) -> int:
        """All of them."""
        return self.warmup_steps + self.trials * self.steps_per_trial + self.finalists * self.finalist_steps


@dataclass(frozen=True)
class Pace:
    """How fast a machine is.

    Args:
        step: seconds of a training step of a random path.
        score: seconds that a trial takes besides its steps.
        workers: processes that share trials and finalists.
    """

    step: float
    score: float
    workers: int = 1

    def seconds(self, division: Division) -> float:
        """What a search will take, about: without start, pictures and export."""
        rounds = -(-division.finalists // self.workers)
        trials = division.trials * (division.steps_per_trial * self.step + self.score) / self.workers
        finalists = rounds * division.finalist_steps * self.step + division.finalists * self.score / self.workers
        return division.warmup_steps * self.step + trials + finalists


def measured(trainer: Trainer, relay: Relay, paths: PathSampler, validation: Split, *, workers: int) -> Pace:
    """The pace of this machine, by a few steps and scores on a copy of the weights.

    Args:
        trainer: on the relay.
        paths: of warm-up.
        workers: processes that will share trials and finalists.
    """
    shared = relay.server
    times: list[float] = []
    try:
        relay.use(shared.fork(()))
        trainer.fit(
            paths.path_at,
            start=0,
            steps=_SLOW + _STEPS,
            schedule=Cosine(1e-4, _SLOW + _STEPS),
            after_step=lambda step, loss: times.append(time.perf_counter()),
        )
        begun = time.perf_counter()
        for number in range(_SCORES):
            trainer.recalibrate(paths.path_at(number))
            trainer.evaluate(paths.path_at(number), validation)
        score = (time.perf_counter() - begun) / _SCORES
    finally:
        relay.use(shared)
    steps = [later - earlier for earlier, later in zip(times[_SLOW - 1 :], times[_SLOW:], strict=False)]
    return Pace(statistics.fmean(steps), score + _PROPOSAL, workers)


def division(
    pool: LayerPool, *, samples: int, batch_size: int, steps_per_trial: int, finalists: int, said: Mapping[str, int]
) -> Division:
    """What suits a space and its data; see [Note: passes].

    Args:
        samples: of the training data.
        batch_size: samples a step.
        said: numbers that somebody named, by the name of their field; they stay.
    """
    passing = samples / min(batch_size, samples)
    choices = [len(position.candidates) for position in pool.positions if len(position.candidates) > 1]
    wanted = {
        "warmup_steps": _WARMUP_PASSES * max(choices, default=1) * passing,
        "trials": _TRIALS * len(choices),
        "finalist_steps": _FINALIST_PASSES * passing,
    }
    found = {name: _within(name, _rounded(value)) for name, value in wanted.items()}
    found["trials"] = min(found["trials"], pool.size)
    return Division(**{**found, **said}, steps_per_trial=steps_per_trial, finalists=finalists)


def fitted(start: Division, seconds: float, pace: Pace, *, said: Mapping[str, int], most_trials: int) -> Division:
    """A division that takes about this long; see [Note: a time].

    Args:
        start: what it is fitted from.
        said: numbers that stay.
        most_trials: as many architectures as there are.

    Raises:
        SettingError: the least takes longer.
    """

    def by(factor: float) -> Division:
        found = {
            "warmup_steps": start.warmup_steps * factor,
            "trials": start.trials * math.sqrt(factor),
            "finalist_steps": start.finalist_steps * factor,
        }
        rounded = {name: max(_LEAST[name], _rounded(value)) for name, value in found.items()}
        rounded["trials"] = min(rounded["trials"], most_trials)
        return replace(start, **{name: value for name, value in rounded.items() if name not in said})

    least = pace.seconds(by(1 / _RANGE))
    if least > seconds:
        raise SettingError(
            f"search.time is {seconds:,.0f} s, and the least that is a search takes {least:,.0f} s on this machine: "
            f"{_told(by(1 / _RANGE))}; give it more time"
        )
    return by(_largest(lambda factor: pace.seconds(by(factor)) <= seconds))


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
    return min(max(value, _LEAST[name]), _MOST[name])


def _told(division: Division) -> str:
    return (
        f"{division.warmup_steps:,} steps of warm-up, {_counted(division.trials, 'trial')} of "
        f"{division.steps_per_trial:,}, {_counted(division.finalists, 'finalist')} of {division.finalist_steps:,}"
    )


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def told(division: Division) -> str:
    """In words, for a line."""
    return f"{_told(division)}: {division.steps:,} steps"


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
