"""What no setting may be, whatever it means: numbers that are none, or too large for any machine, and odd texts."""

from __future__ import annotations

import math
from typing import Any

from l2l_nas.errors import SettingError
from l2l_nas.runs.choice_settings import CHOICES
from l2l_nas.runs.fields import settings

_MOST = 2**31 - 1
# of settings that something is made for, one by one
_LIMITS = {
    "seed": 2**63 - 1,
    "threads": 4096,
    "workers": 4096,
    "slots": 4096,
    "keep": 4096,
    "population": 1_000_000,
    "latency_batch": 1_000_000,
    "devices": 1_000_000,
}
_LONGEST_TEXT = 4096


def check_bounds(conf: Any) -> None:
    """Refuse settings that nothing could be done with.

    Args:
        conf: a dataclass of `schema`.

    Raises:
        SettingError: with the setting's name.
    """
    for name, _, _ in settings(type(conf)):
        value: Any = conf
        for part in name.split("."):
            value = getattr(value, part)
        if name in CHOICES:
            for key, one in value.items():
                _check(f"{name}.{key}", one)
        for one in value if isinstance(value, list) else [value]:
            _check(name, one)


def _check(name: str, value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise SettingError(f"{name} must be a finite number, got {value}")
    if isinstance(value, int):
        most = _LIMITS.get(name.rpartition(".")[2], _MOST)
        if not -most <= value <= most:
            raise SettingError(f"{name} must be at most {most:,}, got {float(value):.3g}")
    if isinstance(value, str):
        if len(value) > _LONGEST_TEXT:
            raise SettingError(f"{name} has {len(value):,} characters; at most {_LONGEST_TEXT:,} are taken")
        if "\0" in value:
            raise SettingError(f"{name} holds a zero byte")
