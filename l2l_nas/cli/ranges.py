"""Reads from the command line what a sweep varies: choice(...), range(...), interval(...), tag(log, ...)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from omegaconf import Container

from l2l_nas.errors import SettingError
from l2l_nas.nas.sweeps.sweep_space import Between, Setting, SettingChoice, Values, plain
from l2l_nas.runs.settings import PLACES

# what a sampler seeks is one for all runs
_NOT_SAMPLED = (*PLACES, "objectives", "objectives.names")


@dataclass(frozen=True)
class Swept:
    """What the words of a command line say.

    Args:
        fixed: overrides that all runs share.
        settings: what is swept.
        keys: by setting, its name as overrides begin, such as `++space.args.depth`.
    """

    fixed: tuple[str, ...]
    settings: tuple[Setting, ...]
    keys: dict[str, str]

    def overrides(self, values: Values) -> tuple[str, ...]:
        """The overrides of a run."""
        return (*self.fixed, *(f"{self.keys[name]}={value}" for name, value in values.items()))

    def corners(self) -> tuple[Values, ...]:
        """Settings in which every choice, and both ends of every range, occur at least once."""
        lists = [one.values if isinstance(one, SettingChoice) else one.ends for one in self.settings]
        rows = range(max(map(len, lists)))
        names = [one.name for one in self.settings]
        return tuple(
            {name: values[row % len(values)] for name, values in zip(names, lists, strict=True)} for row in rows
        )


def read_swept(overrides: Sequence[Override], default: Callable[[str], object]) -> Swept:
    """Tell what is swept from what is fixed.

    Args:
        overrides: as Hydra parsed them.
        default: the value of a setting where it is not swept; None if it is not known.

    Raises:
        SettingError: something that cannot be swept, or not so.
    """
    fixed: dict[str, str] = {}
    settings: dict[str, Setting] = {}
    keys: dict[str, str] = {}
    for override in overrides:
        name = override.key_or_group
        fixed.pop(name, None)
        settings.pop(name, None)
        if not override.is_sweep_override():
            fixed[name] = str(override.input_line)
            continue
        if name in _NOT_SAMPLED:
            raise _swept(name)
        keys[name] = override.get_key_element()
        settings[name] = _setting(name, override, default(name))
    return Swept(tuple(fixed.values()), tuple(settings.values()), keys)


def refuse_places(overrides: Sequence[Override]) -> None:
    """Refuse a place of its own for each run of a sweep; they lie in numbered folders below one.

    Raises:
        SettingError: it is swept, or made of a setting that is.
    """
    swept = {override.key_or_group for override in overrides if override.is_sweep_override()}
    for override in overrides:
        name, line = override.key_or_group, str(override.input_line)
        if name in PLACES and name in swept:
            raise _swept(name)
        within = {word for part in re.findall(r"\$\{([^{}]*)\}", line) for word in re.findall(r"[\w./]+", part)}
        if name in PLACES and within & swept:
            raise SettingError(
                f"{line}: {min(within & swept)} is swept, and {name} is the same for all runs of a sweep"
            )


def _swept(name: str) -> SettingError:
    return SettingError(f"{name} cannot be swept: it is the same for all runs of a sweep")


def empty_sweep(override: Override) -> SettingError:
    """What to tell of a sweep over nothing."""
    name = override.key_or_group
    return SettingError(
        f"{override.input_line}: there is nothing to choose from; glob(...) is for groups such as space=glob(*), "
        f"of a setting name the values: {name}=choice(A,B)"
    )


def _setting(name: str, override: Override, default: object) -> Setting:
    value = override.value()
    if not isinstance(value, RangeSweep | IntervalSweep):
        choices = tuple(override.sweep_string_iterator())
        if not choices:
            raise empty_sweep(override)
        return SettingChoice(name, choices)
    unknown = set(value.tags) - {"log"}
    if unknown:
        raise SettingError(f"{name}: no tag '{min(unknown)}'; there is only log")
    if isinstance(default, bool | str | Container):
        raise SettingError(f"{name} is not a number: write {name}=choice(...)")
    is_log = "log" in value.tags
    if isinstance(value, RangeSweep):
        numbers = sorted(plain(float(number)) for number in override.sweep_string_iterator())
        if not numbers:
            raise SettingError(f"{name}: the range is empty")
        is_whole = all(isinstance(part, int) for part in (value.start, value.stop, value.step))
        return Between(name, numbers[0], numbers[-1], is_whole=is_whole, is_log=is_log, step=abs(float(value.step)))
    assert value.start is not None
    assert value.end is not None
    is_whole = isinstance(default, int) or isinstance(value.start, int)
    return Between(name, value.start, value.end, is_whole=is_whole, is_log=is_log)
