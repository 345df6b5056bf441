"""Rotary positions, as the configs of published models describe them, old and new."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from l2l_nas.contents.fields import REQUIRED, Fields
from l2l_nas.errors import SpaceError
from l2l_nas.layers import Rotary
from l2l_nas.pretrained.config import ADVICE, FULL, LARGEST, SLIDING, Config

_KINDS = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class RopeFields:
    """Fields of a family's config, each with its default."""

    base: Mapping[str, tuple[str, float]]  # by kind of layer, in old configs; of one kind alone: of all layers
    share: tuple[str, float] | None = None  # of a head that turns; None: all of it does
    kinds: tuple[str, ...] = _KINDS  # of stretches that the family has


def rotary_of(config: Config, fields: RopeFields, kind: str) -> Rotary:
    """Rotary positions of the layers of a kind, `FULL` or `SLIDING`.

    Raises:
        SpaceError: a stretch that is not known, or a number that makes no sense.
    """
    name = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    content: Mapping[str, Any] = config.table(name, default={})
    is_by_kind = len(fields.base) > 1
    if not is_by_kind and any(isinstance(value, Mapping) for value in content.values()):
        config.refuse(name, "the same of all layers")
    if is_by_kind and (FULL in content or SLIDING in content):
        content = _fields(content, name).table(kind, default={})
    elif is_by_kind and kind != FULL:
        content = {}
    table = _fields(content, name)
    field, base = fields.base[kind if is_by_kind else FULL]
    holder, field = (table, "rope_theta") if content.get("rope_theta") is not None else (config, field)
    base = holder.number(field, default=base)
    if not base:
        holder.refuse(field, "a number above 0")
    share = table.number("partial_rotary_factor", most=1.0, default=None)
    if share is None:
        field, default = fields.share or ("partial_rotary_factor", 1.0)
        share = config.number(field, most=1.0, default=default)
    if share != 1 and fields.share is None:
        raise SpaceError(f"config: 'partial_rotary_factor' is {share}, of which only 1 is known here for this family")
    stretch = content.get("rope_type", content.get("type", "default"))
    if not isinstance(stretch, str) or stretch not in fields.kinds:
        raise SpaceError(f"config: rotary positions of type {stretch!r}; known are {', '.join(fields.kinds)}")
    return _STRETCHED[stretch](Rotary(base, share, stretch), table, config)


def _fields(content: Mapping[str, Any], name: str) -> Fields:
    return Fields(content, f"config: {name}", advice=ADVICE, error=SpaceError)


def _linear(rotary: Rotary, table: Fields, config: Config) -> Rotary:
    return replace(rotary, factor=table.number("factor", least=1.0))


def _llama3(rotary: Rotary, table: Fields, config: Config) -> Rotary:
    low, high = _ordered(table, ("low_freq_factor", REQUIRED), ("high_freq_factor", REQUIRED))
    return replace(_linear(rotary, table, config), original=_original(table, config), low=low, high=high)


def _yarn(rotary: Rotary, table: Fields, config: Config) -> Rotary:
    original = _original(table, config)
    low, high = _ordered(table, ("beta_slow", 1.0), ("beta_fast", 32.0))
    factor = table.number("factor", least=1.0, default=config.count("max_position_embeddings") / original)
    if rotary.base <= 1:
        table.refuse("rope_theta", "more than 1")
    scale = table.number("attention_factor", default=None)
    if scale is None:  # arXiv 2309.00071, equation 22
        share, share_all = (table.number(name, default=0.0) for name in ("mscale", "mscale_all_dim"))
        weight = 0.1 * math.log(max(factor, 1.0))
        scale = (weight * share + 1) / (weight * share_all + 1) if share and share_all else weight + 1
    is_whole = table.truth("truncate", default=True)
    return replace(rotary, factor=factor, original=original, low=low, high=high, scale=scale, is_whole=is_whole)


_STRETCHED = {"default": lambda rotary, table, config: rotary, "linear": _linear, "llama3": _llama3, "yarn": _yarn}


def _original(table: Fields, config: Config) -> int:
    """The longest text before the stretch; some families say it beside the table, which counts more."""
    name = "original_max_position_embeddings"
    inner = table.whole(name, least=1, most=LARGEST, default=config.count("max_position_embeddings"))
    return config.count(name, inner)


def _ordered(table: Fields, low: tuple[str, float], high: tuple[str, float]) -> tuple[float, float]:
    less, more = (table.number(name, default=default) for name, default in (low, high))
    if not 0 < less < more:
        table.refuse(high[0], f"more than {low[0]}, which is more than 0")
    return less, more
