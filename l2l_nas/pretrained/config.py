"""The fields of a published model's `config.json`, each checked before it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from l2l_nas.arguments import shown
from l2l_nas.contents.fields import REQUIRED, Fields
from l2l_nas.errors import SpaceError

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
LARGEST, _MOST_LAYERS = 1 << 24, 10_000
_LONGEST_WINDOW = (1 << 63) - 1
FULL, SLIDING = "full_attention", "sliding_attention"
ADVICE = "is it the config of a whole model?"


class Config(Fields):
    """Fields of a configuration; what is missing or unusual is refused by name.

    Args:
        fields: as `config.json` holds them, with defaults for what it does not say.
    """

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__(fields, "config", advice=ADVICE, error=SpaceError)

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
        value: int = self.whole(name, least=1, most=LARGEST, default=default)
        return value

    def layers(self, name: str) -> int:
        """How many blocks there are."""
        count = self.count(name)
        if count > _MOST_LAYERS:
            raise SpaceError(f"config: '{name}' is {count}; expected at most {_MOST_LAYERS}")
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

        Args:
            rule: which layers have the window where the config does not name the kind of each: "none", "all", "late"
                ones, or all but "each" so many.
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
