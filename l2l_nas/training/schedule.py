"""Learning-rate schedules: functions of the step. A new one is one class and one entry of `SCHEDULES`.

A search trains many times, each for steps of its own: what it is given is a way to make a schedule of a peak and a
number of steps (`MakeSchedule`), as each class here is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

from l2l_nas.arguments import check_count, check_number
from l2l_nas.errors import L2LError, SettingError, did_you_mean, user_code
from l2l_nas.plugins import is_named, made, name_and_arguments
from l2l_nas.relay.interface import is_rate


@runtime_checkable
class Schedule(Protocol):
    """The learning rate of each step."""

    def at(self, step: int) -> float:
        """The learning rate of a step, from 0; past the end, the last one."""


_GROWTH = 2.0  # steps of a cycle over those of the one before
_MOST_CYCLES = 145  # beyond that, no number of steps has room for the first and the last

# of a peak, and how many steps there are
MakeSchedule = Callable[[float, int], Schedule]


@dataclass(frozen=True)
class Shape:
    """A linear rise to a peak, then what `_share` says; the base of those below.

    Args:
        peak: highest learning rate.
        steps: total number of steps.
        rise: share of the steps that the rise takes. The first step has a rate above 0 all the same.

    Raises:
        SettingError: a peak that is no rate, or shares that are none.
    """

    peak: float
    steps: int
    rise: float = 0.05

    def __post_init__(self) -> None:
        check_number("the learning rate's peak", self.peak, above=0)
        check_count("steps", self.steps)
        for name in ("rise", "floor", "fall"):
            check_number(f"schedule.{name}", getattr(self, name, 0.0), least=0, most=1)

    @property
    def rising(self) -> int:
        return max(1, round(self.rise * self.steps)) if self.rise else 0

    def share(self, done: float) -> float:
        """The learning rate over peak, once a share of the steps after the rise is done."""
        return self._share(check_number(f"{type(self).__name__}.share: done", done, least=0, most=1))

    def _share(self, done: float) -> float:
        raise NotImplementedError

    def at(self, step: int) -> float:
        check_count(f"{type(self).__name__}.at: step", step)
        if step < self.rising:
            return self.peak * (step + 1) / self.rising
        done = min(1.0, (step - self.rising) / max(1, self.steps - self.rising))
        return self.peak * self._share(done)


def _half_cosine(done: float, floor: float) -> float:
    return floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True)
class Cosine(Shape):
    """A linear rise over the first steps, then half a cosine down to `floor` x peak (arXiv 1608.03983, equation 5)."""

    floor: float = 0.02

    def _share(self, done: float) -> float:
        return _half_cosine(done, self.floor)


@dataclass(frozen=True)
class Linear(Shape):
    """A linear rise, then a straight line down to `floor` x peak; to zero by default (arXiv 2502.15938)."""

    floor: float = 0.0

    def _share(self, done: float) -> float:
        return 1 - (1 - self.floor) * done


@dataclass(frozen=True)
class Constant(Shape):
    """One rate, after a rise if there is one, before a straight fall if there is one (arXiv 2405.18392).

    Args:
        fall: share of the steps after the rise in which it falls to `floor` x peak.
    """

    rise: float = 0.0
    fall: float = 0.0
    floor: float = 0.0

    def _share(self, done: float) -> float:
        return 1 - (1 - self.floor) * max(0.0, done - (1 - self.fall)) / self.fall if self.fall else 1.0


@dataclass(frozen=True)
class InverseSqrt(Shape):
    """A linear rise, then one over the root of the step (arXiv 1706.03762, equation 3)."""

    def _share(self, done: float) -> float:
        rising = max(1, self.rising)
        return math.sqrt(rising / (rising + done * max(1, self.steps - rising)))


@dataclass(frozen=True)
class Restarts(Shape):
    """Half cosines, each from the peak down to `floor` x peak, and twice as long as the one before (arXiv 1608.03983).

    Args:
        cycles: how many.
    """

    rise: float = 0.0
    floor: float = 0.0
    cycles: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("schedule.cycles", self.cycles, least=1)
        if self.cycles > _MOST_CYCLES:
            raise SettingError(f"schedule.cycles={self.cycles} makes cycles of no steps; take {_MOST_CYCLES} at most")

    def _share(self, done: float) -> float:
        sizes = [_GROWTH**cycle for cycle in range(self.cycles)]
        place = done * sum(sizes)
        for size in sizes[:-1]:
            # a step may lie a rounding error before the end of a cycle
            if place < size * (1 - 1e-9):
                break
            place -= size
        else:
            size = sizes[-1]
        return _half_cosine(min(1.0, max(0.0, place / size)), self.floor)


SCHEDULES: Mapping[str, Callable[..., Schedule]] = {
    "cosine": Cosine,
    "linear": Linear,
    "constant": Constant,
    "inverse_sqrt": InverseSqrt,
    "restarts": Restarts,
}


@dataclass(frozen=True)
class _Own:
    name: str
    found: Any

    def at(self, step: int) -> float:
        with user_code(f"schedule {self.name}", L2LError):
            rate = self.found.at(step) if isinstance(self.found, Schedule) else self.found(step)
        if not is_rate(rate):
            raise SettingError(f"schedule {self.name} gave {rate!r} at step {step}; a rate is a number of at least 0")
        return float(rate)


def build_schedule(chosen: str | Mapping[str, Any] | MakeSchedule) -> MakeSchedule:
    """A way to make schedules, by name; a function is one already.

    Args:
        chosen: a key of `SCHEDULES`; or a function of the peak and the number of steps that gives a schedule, or a
            function of the step; or `FILE.py:NAME` or `MODULE:NAME` of one, or of a class. A dict has the name, as
            "name", and further arguments.

    Raises:
        SettingError: no such name, an argument that it does not take, or a value that makes no sense.
        L2LError: what is named raised something.
    """
    if isinstance(chosen, str | Mapping):
        name, arguments = name_and_arguments(chosen)
        if name in SCHEDULES:
            make: MakeSchedule = partial(SCHEDULES[name], **arguments)
        elif is_named(name):
            make = partial(_named, chosen)
        else:
            raise SettingError(f"no schedule '{name}'{did_you_mean(name, SCHEDULES)}")
    elif callable(chosen):
        make = partial(_given, chosen)
    else:
        raise SettingError(f"schedule: expected a name or a function of the peak and the steps, got {chosen!r}")
    make(1.0, 100).at(0)  # refuses now what it would refuse later
    return make


def _named(chosen: str | Mapping[str, Any], peak: float, steps: int) -> Schedule:
    offered = {"peak": peak, "steps": steps}
    found = made(chosen, setting="schedule", offered=offered, is_right=_is_schedule, kind=_KIND)
    return _Own(name_and_arguments(chosen)[0], found)


def _given(build: Callable[[float, int], object], peak: float, steps: int) -> Schedule:
    name = getattr(build, "__name__", type(build).__name__)
    with user_code(f"schedule {name}", L2LError):
        found = build(peak, steps)
    if not _is_schedule(found):
        raise SettingError(f"schedule {name} gave {type(found).__name__}; expected {_KIND}")
    return _Own(name, found)


_KIND = "a function of the step, or an object with at(step)"


def _is_schedule(found: object) -> bool:
    return callable(found) or isinstance(found, Schedule)
