"""What a sweep varies: settings with a few values or a range of numbers, as plain data and as Optuna takes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from l2l_nas.errors import SettingError

# what one run of a sweep has for its settings, by name
Values = Mapping[str, str | int | float]


@dataclass(frozen=True)
class SettingChoice:
    """A setting with a few values.

    Args:
        name: of the setting.
        values: as the command line takes them; their order means nothing.

    Raises:
        SettingError: there are none.
    """

    name: str
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise SettingError(f"{self.name}: nothing to choose from")

    @property
    def count(self) -> int:
        """How many values there are."""
        return len(set(self.values))

    @property
    def is_listed(self) -> bool:
        """Whether samplers that go from value to value can sweep it."""
        return True

    def __str__(self) -> str:
        return f"choice({','.join(sorted(set(self.values)))})"

    def distribution(self) -> BaseDistribution:
        """In a fixed order: Optuna takes another order for another space."""
        return CategoricalDistribution(sorted(set(self.values)))


@dataclass(frozen=True)
class Between:
    """A setting that is a number between two, both included.

    Args:
        name: of the setting.
        low, high: its bounds.
        is_whole: whether it is a whole number.
        is_log: whether factors matter rather than differences.
        step: only low, low + step, ... up to high; 0 for every number.

    Raises:
        SettingError: no such range.
    """

    name: str
    low: float
    high: float
    is_whole: bool = False
    is_log: bool = False
    step: float = 0

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise SettingError(f"{self.name}: the range from {self.low:g} to {self.high:g} is empty")
        if self.is_log and self.low <= 0:
            raise SettingError(f"{self.name}: a range with tag(log, ...) begins above 0, not at {self.low:g}")
        if self.is_log and self.step > self.is_whole:
            raise SettingError(f"{self.name}: tag(log, ...) goes with an interval, not with steps of {self.step:g}")
        if self.is_whole and not all(float(bound).is_integer() for bound in (self.low, self.high, self.step)):
            raise SettingError(f"{self.name} takes whole numbers: no range from {self.low:g} to {self.high:g}")

    @property
    def count(self) -> int:
        """How many values there are; 0: any number between."""
        step = self.step or self.is_whole
        return round((self.high - self.low) / step) + 1 if step else 0

    @property
    def ends(self) -> tuple[int | float, int | float]:
        """The lowest and the highest value."""
        return (int(self.low), int(self.high)) if self.is_whole else (self.low, self.high)

    @property
    def is_listed(self) -> bool:
        """Whether samplers that go from value to value can sweep it."""
        return self.is_whole and not self.is_log

    def __str__(self) -> str:
        text = f"interval({self.low:.12g},{self.high:.12g})"
        if self.step:  # what ends a range is not part of it
            text = f"range({self.low:.12g},{self.high + self.step:.12g},{self.step:.12g})"
        return f"tag(log,{text})" if self.is_log else f"int({text})" if self.is_whole and not self.step else text

    def distribution(self) -> BaseDistribution:
        """See `BaseDistribution`."""
        if self.is_whole:
            return IntDistribution(int(self.low), int(self.high), log=self.is_log, step=int(self.step or 1))
        return FloatDistribution(self.low, self.high, log=self.is_log, step=self.step or None)


Setting = SettingChoice | Between


def values_of(distribution: BaseDistribution) -> list[str | int | float]:
    """All values of a distribution that has a finite number of them; none of another."""
    if isinstance(distribution, CategoricalDistribution):
        return [str(choice) for choice in distribution.choices]
    if isinstance(distribution, IntDistribution):
        return list(range(distribution.low, distribution.high + 1, distribution.step))
    if isinstance(distribution, FloatDistribution) and distribution.step:
        count = round((distribution.high - distribution.low) / distribution.step) + 1
        return [plain(distribution.low + index * distribution.step) for index in range(count)]
    return []


def plain(value: Any) -> Any:
    """The value without the rounding errors of adding steps: 0.3 rather than 0.30000000000000004."""
    return float(f"{value:.12g}") if isinstance(value, float) else value
