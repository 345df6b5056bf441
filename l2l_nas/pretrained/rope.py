"""Rotary positions, as the configs of published models describe them, old and new."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from l2l_nas.contents.fields import REQUIRED, Fields
from l2l_nas.errors import SpaceError
from l2l_nas.layers import Rotary
from l2l_nas.pretrained.config import ADVICE, FULL, LARGEST, SLIDING

_KINDS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class RopeFields:
    """What a family's config calls things, and what they are where it does not say.

    Args:
        base: by kind of layer, the field of old configs and the base; of one kind alone: of all layers.
        share: the field of the share of a head that turns, and that share; None: all of it does.
        kinds: of stretches that the family has.
    """

    base: Mapping[str, tuple[str, float]]
    share: tuple[str, float] | None = None
    kinds: tuple[str, ...] = _KINDS


def rotary_of(config: Mapping[str, Any], fields: RopeFields, kind: str) -> Rotary:
    """Rotary positions of the layers of a kind.

    Args:
        config: of the model.
        kind: `FULL` or `SLIDING`.

    Raises:
        SpaceError: a stretch that is not known, or a number that makes no sense.
    """
    top = _fields(config, "config")
    name = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    table: Mapping[str, Any] = top.table(name, default={})
    if len(fields.base) > 1:
        nested = FULL in table or SLIDING in table
        table = _fields(table, f"config: {name}").table(kind, default={}) if nested else table if kind == FULL else {}
    elif any(isinstance(value, Mapping) for value in table.values()):
        top.refuse(name, "the same of all layers")
    table_fields = _fields(table, f"config: {name}")
    field, base = fields.base[kind if len(fields.base) > 1 else FULL]
    is_said = table.get("rope_theta") is not None
    base = table_fields.number("rope_theta") if is_said else top.number(field, default=base)
    if not base:
        (table_fields if is_said else top).refuse("rope_theta" if is_said else field, "a number above 0")
    share = table_fields.number("partial_rotary_factor", most=1.0, default=None)
    if share is None:
        field, default = fields.share or ("partial_rotary_factor", 1.0)
        share = top.number(field, most=1.0, default=default)
    if share != 1 and fields.share is None:
        raise SpaceError(f"config: 'partial_rotary_factor' is {share}, of which only 1 is known here for this family")
    stretch = table.get("rope_type", table.get("type", "default"))
    if not isinstance(stretch, str) or stretch not in fields.kinds:
        raise SpaceError(f"config: rotary positions of type {stretch!r}; known are {', '.join(fields.kinds)}")
    return _STRETCHED[stretch](Rotary(base, share, stretch), table_fields, top)


def _fields(content: Mapping[str, Any], where: str) -> Fields:
    return Fields(content, where, advice=ADVICE, error=SpaceError)


def _linear(rotary: Rotary, fields: Fields, top: Fields) -> Rotary:
    return replace(rotary, factor=fields.number("factor", least=1.0))


def _llama3(rotary: Rotary, fields: Fields, top: Fields) -> Rotary:
    low, high = _ordered(fields, ("low_freq_factor", REQUIRED), ("high_freq_factor", REQUIRED))
    return replace(_linear(rotary, fields, top), original=_original(fields, top), low=low, high=high)


def _yarn(rotary: Rotary, fields: Fields, top: Fields) -> Rotary:
    original = _original(fields, top)
    low, high = _ordered(fields, ("beta_slow", 1.0), ("beta_fast", 32.0))
    factor = fields.number("factor", least=1.0, default=_longest(top) / original)
    if rotary.base <= 1:
        fields.refuse("rope_theta", "more than 1")
    scale = fields.number("attention_factor", default=None)
    if scale is None:  # arXiv 2309.00071, equation 22
        one, other = (fields.number(name, default=0.0) for name in ("mscale", "mscale_all_dim"))
        weight = 0.1 * math.log(max(factor, 1.0))
        scale = (weight * one + 1) / (weight * other + 1) if one and other else weight + 1
    is_whole = fields.truth("truncate", default=True)
    return replace(rotary, factor=factor, original=original, low=low, high=high, scale=scale, is_whole=is_whole)


_STRETCHED = {"default": lambda rotary, fields, top: rotary, "linear": _linear, "llama3": _llama3, "yarn": _yarn}


def _longest(top: Fields) -> int:
    length: int = top.whole("max_position_embeddings", least=1, most=LARGEST)
    return length


def _original(fields: Fields, top: Fields) -> int:
    """The longest text before the stretch; some families say it beside the table, which counts more."""
    name = "original_max_position_embeddings"
    inner = fields.whole(name, least=1, most=LARGEST, default=_longest(top))
    length: int = top.whole(name, least=1, most=LARGEST, default=inner)
    return length


def _ordered(fields: Fields, low: tuple[str, float], high: tuple[str, float]) -> tuple[float, float]:
    less, more = (fields.number(name, default=default) for name, default in (low, high))
    if not 0 < less < more:
        fields.refuse(high[0], f"more than {low[0]}, which is more than 0")
    return less, more
