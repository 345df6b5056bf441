"""Reads from the command line what a sweep varies: choice(...), range(...), interval(...), tag(log, ...)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from omegaconf import Container

from l2l_nas.errors import SettingError
from l2l_nas.nas.sweep_study import between, listed, plain
from l2l_nas.runs.settings import PLACES

# what a sampler seeks is one for all runs
_NOT_SAMPLED = (*PLACES, "objectives", "objectives.names")


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


def distribution_of(override: Override, default: object) -> Any:
    """What a sampler draws a swept setting from, as Optuna takes it.

    Args:
        override: as Hydra parsed it.
        default: the setting's value where it is not swept; None if it is not known.

    Raises:
        SettingError: something that cannot be swept, or not so.
    """
    name, value = override.key_or_group, override.value()
    if name in _NOT_SAMPLED:
        raise _swept(name)
    if not isinstance(value, RangeSweep | IntervalSweep):
        choices = tuple(override.sweep_string_iterator())
        if not choices:
            raise empty_sweep(override)
        return listed(choices)
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
        return between(name, numbers[0], numbers[-1], is_whole=is_whole, is_log=is_log, step=abs(float(value.step)))
    assert value.start is not None
    assert value.end is not None
    is_whole = isinstance(default, int) or isinstance(value.start, int)
    return between(name, value.start, value.end, is_whole=is_whole, is_log=is_log)
