"""Strategies by name: lists of phases. A new one is one entry here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from l2l_nas.errors import SettingError, did_you_mean
from l2l_nas.nas.strategies.default import default_phases
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.plugins import is_named, made

STRATEGIES: dict[str, Callable[[], list[Phase]]] = {"default": default_phases}


def build_phases(strategy: str | Sequence[Phase]) -> list[Phase]:
    """The phases of a strategy.

    Args:
        strategy: a key of `STRATEGIES`; or `FILE.py:NAME` or `MODULE:NAME` of a function that returns a list of phases;
            or that list.

    Raises:
        SettingError: there is no such strategy, or it is no list of phases.
        L2LError: what is named raised something.
    """
    if not isinstance(strategy, str):
        if not _are_phases(strategy):
            raise SettingError("search.strategy: expected a list of l2l_nas.Phase objects, or a name")
        return list(strategy)
    if strategy in STRATEGIES:
        return STRATEGIES[strategy]()
    if not is_named(strategy):
        raise SettingError(f"search.strategy: no strategy '{strategy}'{did_you_mean(strategy, STRATEGIES)}")
    found: Sequence[Phase] = made(
        strategy,
        setting="search.strategy",
        offered={},
        is_right=_are_phases,
        kind="a list of l2l_nas.Phase objects",
    )
    return list(found)


def _are_phases(found: object) -> bool:
    return isinstance(found, list | tuple) and bool(found) and all(isinstance(one, Phase) for one in found)
