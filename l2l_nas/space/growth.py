"""A pool with candidates retired or frozen: the same pool otherwise, so that a study of it goes on.

Candidates are named `position/candidate`, or by patterns such as `*/conv5` and `layer_0[0-3]/*`.
"""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from torch import nn

from l2l_nas.errors import SettingError, did_you_mean
from l2l_nas.space.candidate import Candidate
from l2l_nas.space.pool import Layer, LayerPool, tied_key


def retired(pool: LayerPool, patterns: Sequence[str]) -> LayerPool:
    """The pool without some candidates: they are not proposed any more.

    Raises:
        SettingError: a pattern that names none, or a position that would have none left.
    """
    gone = _matching(pool, patterns, "search.retire")
    positions = []
    for position in pool.positions:
        left = [candidate for candidate in position.candidates if f"{position.name}/{candidate.name}" not in gone]
        if not left:
            raise SettingError(f"search.retire would leave position '{position.name}' without candidates; keep one")
        positions.append(position.with_candidates(left))
    return pool.like(positions) if gone else pool


def frozen(pool: LayerPool, patterns: Sequence[str]) -> tuple[LayerPool, frozenset[str]]:
    """The pool with the weights of some candidates fixed, and the keys of their states: they are used, and not trained.

    Tied parameters are not theirs alone, and stay as they are. In a shared pool a layer is frozen at every position.

    Raises:
        SettingError: a pattern that names none.
    """
    chosen = _matching(pool, patterns, "search.freeze")
    names: dict[str, frozenset[str]] = {}
    for layer in pool.layers:
        is_chosen = f"{pool.positions[layer.position].name}/{layer.candidate.name}" in chosen
        if is_chosen and not layer.candidate.is_skip and layer.key not in names:
            owner = pool.owner(layer.key)
            parameters = pool.build_module(owner, device="meta").named_parameters()
            names[layer.key] = frozenset(name for name, _ in parameters if name not in owner.candidate.tied)
    return with_frozen(pool, names), frozenset(names)


def with_frozen(pool: LayerPool, names: Mapping[str, frozenset[str]]) -> LayerPool:
    """The pool with parameters that are not trained; the pool itself, if there are none.

    Args:
        names: of the parameters, by the key of their state. Of a tied one the name does not matter.
    """
    if not names:
        return pool
    factories: dict[object, Callable[[], nn.Module]] = {}  # by kind, so that layers of one kind share templates

    def fixed(layer: Layer) -> Candidate:
        candidate = layer.candidate
        tied = frozenset(name for name, group in candidate.tied.items() if tied_key(group) in names)
        frozen = names.get(layer.key, frozenset()) | tied
        if not frozen or candidate.is_skip:
            return candidate
        kind = (candidate.kind, tuple(sorted(candidate.tied.items())), frozen)
        factory = factories.setdefault(kind, partial(_build_frozen, candidate.factory, frozen))
        return replace(candidate, factory=factory)

    candidates: dict[int, list[Candidate]] = {}
    for layer in pool.layers:
        candidates.setdefault(layer.position, []).append(fixed(layer))
    return pool.like(p.with_candidates(candidates[index]) for index, p in enumerate(pool.positions))


def _build_frozen(factory: Callable[[], nn.Module], names: frozenset[str]) -> nn.Module:
    module = factory()
    if isinstance(module, nn.Module):
        if not all(parameter.is_meta for parameter in module.parameters()):
            module = copy.deepcopy(module)  # it may be the user's own, which is never changed
        for name, parameter in module.named_parameters():
            if name in names:
                parameter.requires_grad_(False)
    return module


def _matching(pool: LayerPool, patterns: Sequence[str], setting: str) -> set[str]:
    names = [f"{position.name}/{candidate.name}" for position in pool.positions for candidate in position.candidates]
    chosen: set[str] = set()
    for pattern in patterns:
        matching = [name for name in names if fnmatch.fnmatchcase(name, pattern)]
        if not matching:
            hint = did_you_mean(pattern, names) if len(names) < 40 else "; write POSITION/CANDIDATE"
            raise SettingError(f"{setting}: no candidate '{pattern}'{hint}")
        chosen.update(matching)
    return chosen
