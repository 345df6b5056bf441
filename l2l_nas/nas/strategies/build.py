"""Strategies by name: lists of phases. A new one is one entry here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from l2l_nas.errors import SettingError, did_you_mean
from l2l_nas.nas.strategies.blockwise import blockwise
from l2l_nas.nas.strategies.default import default_phases
from l2l_nas.nas.strategies.finalist_phase import Finalists
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.nas.strategies.trials import Trials
from l2l_nas.plugins import is_named, made, name_and_arguments

# the strategy whose trials are drawn at random, whatever the sampler: what other searches are compared with
RANDOM = "random_search"
STRATEGIES: dict[str, Callable[..., list[Phase]]] = {
    "default": default_phases,
    "blockwise": blockwise,
    RANDOM: lambda: [Trials(), Finalists()],
}


def build_phases(strategy: str | Mapping[str, Any] | Sequence[Phase]) -> list[Phase]:
    """The phases of a strategy.

    Args:
        strategy: a key of `STRATEGIES`; or `FILE.py:NAME` or `MODULE:NAME` of a function that returns a list of phases;
            or that list. A dict has the name, as "name", and the arguments of the function.

    Raises:
        SettingError: there is no such strategy, or it is no list of phases.
        L2LError: what is named raised something.
    """
    if not isinstance(strategy, str | Mapping):
        if not _are_phases(strategy):
            raise SettingError("strategy: expected a list of l2l_nas.Phase objects, or a name")
        return list(strategy)
    name, arguments = name_and_arguments(strategy)
    if name in STRATEGIES:
        return STRATEGIES[name](**arguments)
    if not is_named(name):
        raise SettingError(f"no strategy '{name}'{did_you_mean(name, STRATEGIES)}")
    found: Sequence[Phase] = made(
        strategy,
        setting="strategy",
        offered={},
        is_right=_are_phases,
        kind="a list of l2l_nas.Phase objects",
    )
    return list(found)


def _are_phases(found: object) -> bool:
    return isinstance(found, list | tuple) and bool(found) and all(isinstance(one, Phase) for one in found)
