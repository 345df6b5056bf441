"""Limits of the settings: `search.limits.flops=2e6`, `search.limits.device_bytes=4MiB`."""

from __future__ import annotations

import math
from collections.abc import Mapping

from l2l_nas.cost.table import Costs, Limit
from l2l_nas.errors import SettingError, did_you_mean
from l2l_nas.runs.build import parse_bytes


def parse_limits(section: Mapping[str, object], costs: Costs) -> list[Limit]:
    """The limits of a run, in the order of its costs.

    Args:
        section: the most of each cost, by name: a number, or, for bytes, a size.

    Raises:
        SettingError: no such cost, or a value that is no limit.
    """
    for name in section:
        if name not in costs:
            raise SettingError(f"search.limits: no cost '{name}'{did_you_mean(name, costs)}")
    return [Limit(costs, name, _most(name, section[name])) for name in costs if section.get(name) is not None]


def _most(name: str, value: object) -> float:
    if isinstance(value, str) and name.endswith("_bytes"):
        size = parse_bytes(value)
        value = value if size is None else size
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        example = ", or a size such as 4MiB" if name.endswith("_bytes") else ""
        raise SettingError(f"search.limits.{name} must be a number above 0{example}; got {value!r}")
    return float(value)
