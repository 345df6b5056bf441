"""The fields of a published model's `config.json`, each checked before it is used; rotary positions old and new."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from l2l_nas.arguments import shown
from l2l_nas.contents.fields import REQUIRED, Fields
from l2l_nas.errors import SpaceError
from l2l_nas.layers import Rotary

# activations as configurations name them, and as our layers do
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
# damaged configs name more
_LARGEST, MOST_LAYERS, MOST_EXPERTS = 1 << 24, 10_000, 1024
MOST_PARAMETERS = 1 << 18  # by name, of all layers
_LONGEST_WINDOW = (1 << 63) - 1
FULL, SLIDING = "full_attention", "sliding_attention"
_ADVICE = "is it the config of a whole model?"


class Config(Fields):
    """Fields of a configuration, with defaults for what it does not say; what is unusual is refused by name."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__(fields, "config", advice=_ADVICE, error=SpaceError)

    def get(self, name: str, default: Any = None) -> Any:
        """A field as it is."""
        return self._content.get(name, default)

    def above(self, name: str) -> float | None:
        """A number above 0; None where there is none."""
        value: float | None = self.number(name, default=None)
        if value == 0:
            self.refuse(name, "a number above 0")
        return value

    def count(self, name: str, default: int = REQUIRED) -> int:
        """A whole number above 0."""
        value: int = self.whole(name, least=1, most=_LARGEST, default=default)
        return value

    def layers(self, name: str) -> int:
        """How many blocks there are."""
        count = self.count(name)
        if count > MOST_LAYERS:
            raise SpaceError(f"config: '{name}' is {count}; expected at most {MOST_LAYERS}")
        return count

    def is_true(self, name: str) -> bool:
        """A field that is true or false; one that is missing or null is false."""
        return bool(self.truth(name, default=None))

    def only(self, wanted: Mapping[str, Any]) -> None:
        """Refuse other values of these fields than the one that our layers do; what is missing or null is right."""
        for name, value in wanted.items():
            if self.get(name) not in (None, value):
                raise SpaceError(f"config: '{name}' is {self.get(name)!r}, of which only {value!r} is known here")

    def activation(self, name: str, named_otherwise: Mapping[str, str]) -> str:
        """An activation, as our layers name it."""
        value = self.get(name)
        activations = {**_ACTIVATIONS, **named_otherwise}
        if not isinstance(value, str) or value not in activations:
            raise SpaceError(f"config: '{name}' is {value!r}; known are {', '.join(activations)}")
        return activations[value]

    def kinds(self, layers: int, rule: str) -> list[str]:
        """By layer, `SLIDING` where it sees only a window, or `FULL`.

        Where the config does not name the kind of each, the `rule` is: "none", "all", "late" ones, or all but "each" so
        many have the window.
        """
        kinds = self.get("layer_types")
        if kinds is not None:
            names = (FULL, SLIDING)
            if not isinstance(kinds, list) or len(kinds) != layers or not all(str(kind) in names for kind in kinds):
                raise SpaceError(
                    f"config: 'layer_types' are {shown(kinds)}; known are {', '.join(names)}, for each layer"
                )
            return kinds
        if rule == "each":
            each = self.count("sliding_window_pattern")
            return [SLIDING if (index + 1) % each else FULL for index in range(layers)]
        first = {"none": layers, "all": 0}.get(rule)  # that has it
        if first is None:
            first = int(self.number("max_window_layers")) if self.get("use_sliding_window") else layers
        return [SLIDING if index >= first else FULL for index in range(layers)]

    @property
    def window(self) -> int | None:
        """How many tokens a layer of kind `SLIDING` sees; None: all."""
        window: int | None = self.whole("sliding_window", least=1, most=_LONGEST_WINDOW, default=None)
        return window


@dataclass(frozen=True)
class RopeFields:
    """Fields of a family's config, each with its default."""

    base: Mapping[str, tuple[str, float]]  # by kind of layer, in old configs; of one kind alone: of all layers
    share: tuple[str, float] | None = None  # of a head that turns; None: all of it does
    kinds: tuple[str, ...] = ("default", "linear", "llama3", "yarn")  # of stretches that the family has


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
    return Fields(content, f"config: {name}", advice=_ADVICE, error=SpaceError)


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
    inner = table.whole(name, least=1, most=_LARGEST, default=config.count("max_position_embeddings"))
    return config.count(name, inner)


def _ordered(table: Fields, low: tuple[str, float], high: tuple[str, float]) -> tuple[float, float]:
    less, more = (table.number(name, default=default) for name, default in (low, high))
    if not 0 < less < more:
        table.refuse(high[0], f"more than {low[0]}, which is more than 0")
    return less, more
