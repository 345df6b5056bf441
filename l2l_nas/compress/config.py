"""The fields of a published model's `config.json`, each checked before it is used; rotary positions old and new."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
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
        self._read: set[str] = set()  # names of fields that somebody asked for

    def get(self, name: str, default: Any = None) -> Any:
        """A field as it is."""
        self._read.add(name)
        return self._content.get(name, default)

    def _checked(self, name: str, default: Any, is_right: Callable[[Any], bool], expected: str) -> Any:
        self._read.add(name)
        return super()._checked(name, default, is_right, expected)

    def refuse_unread(self, only: Mapping[str, Any], harmless: Collection[str]) -> None:
        """Refuse fields that nobody has asked for: they may say that the model is another one than these layers.

        Args:
            only: fields that may be there with this one value.
            harmless: fields that may have any value.
        """
        unread = {name for name, value in self._content.items() if value is not None} - self._read
        self.only({name: only[name] for name in sorted(unread & only.keys())})
        for name in sorted(unread - only.keys() - set(harmless)):
            raise SpaceError(
                f"config: '{name}' is {shown(self.get(name))}, which is not known here; where the model computes the "
                "same without it, remove it from config.json"
            )

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
            has_choice = rule == "each" or (rule == "late" and self.get("use_sliding_window"))
            names = (FULL, SLIDING) if has_choice else (SLIDING if rule == "all" else FULL,)
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


_NOW, _OF_OLD = "rope_parameters", "rope_scaling"
# what such a table may have; a stretch that does not read one of them does not in `transformers` either
_ROPE = {
    *("rope_theta", "rope_type", "type", "partial_rotary_factor", "factor", "original_max_position_embeddings"),
    *("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim"),
    *("truncate", "finetuned"),
}


def _rope_table(config: Config) -> tuple[str, Mapping[str, Any]]:
    """What a config says of rotary positions, and the name of the field; both fields may only say the same."""
    new, old = (config.table(name, default={}) for name in (_NOW, _OF_OLD))
    if new and old and new != old:
        raise SpaceError(
            f"config: '{_OF_OLD}' is {shown(old)} beside '{_NOW}'; versions of transformers read one or the other: "
            "remove the one that the model was not trained with"
        )
    return (_OF_OLD, old) if old and not new else (_NOW, new)


def rotary_of(config: Config, fields: RopeFields, kind: str) -> Rotary:
    """Rotary positions of the layers of a kind, `FULL` or `SLIDING`.

    Raises:
        SpaceError: a stretch that is not known, or a number that makes no sense.
    """
    name, content = _rope_table(config)
    is_by_kind, is_nested = len(fields.base) > 1, FULL in content or SLIDING in content
    if not is_by_kind and any(isinstance(value, Mapping) for value in content.values()):
        config.refuse(name, "the same of all layers")
    if is_by_kind and is_nested:
        content = _fields(content, name).table(kind, default={})
    elif is_by_kind and content and name == _NOW:
        config.refuse(name, f"a table of its own for {FULL} and {SLIDING}")
    elif is_by_kind and kind != FULL:
        content = {}
    for key in sorted(content.keys() - _ROPE):
        raise SpaceError(f"config: {name} has '{key}', which rotary positions have not here")
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
