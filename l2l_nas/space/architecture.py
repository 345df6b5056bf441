"""An architecture: one candidate name per position. Data, never a module."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from itertools import groupby

from l2l_nas.arguments import check_list, listed, of_argument, shown
from l2l_nas.errors import SpaceError

_MAX_TERMS = 24
_TERMS_AT_END = 6


@dataclass(frozen=True)
class Architecture:
    """The chosen candidate of every position, in order. Hashable and JSON both ways.

    Args:
        choices: candidate names, one for each position of the pool.

    Raises:
        SpaceError: they are something else.
    """

    choices: tuple[str, ...]

    def __post_init__(self) -> None:
        choices = listed(self.choices)
        if choices is None or not all(isinstance(name, str) for name in choices):
            raise SpaceError(f"an architecture's choices are a list of candidate names, got {shown(self.choices)}")
        object.__setattr__(self, "choices", tuple(choices))

    @property
    def digest(self) -> str:
        """A hash that is the same in every process and on every machine: 16 hexadecimal digits."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """The architecture as one JSON object."""
        return json.dumps({"choices": list(self.choices)})

    @classmethod
    def from_json(cls, text: str) -> Architecture:
        """Read what `to_json` wrote.

        Raises:
            SpaceError: the text is not such an object.
        """
        try:
            choices = json.loads(text)["choices"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise SpaceError(f'text is no architecture: expected {{"choices": [...]}}, got {shown(text)}') from None
        return cls.from_choices(choices)

    @classmethod
    def from_choices(cls, choices: object) -> Architecture:
        """Build from a list of names, such as one of parsed JSON; an architecture is taken as it is.

        Raises:
            SpaceError: it is something else.
        """
        return choices if isinstance(choices, cls) else cls(choices)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return " > ".join(self.choices)


def format_choices(architecture: Architecture, *, is_whole: bool = False) -> str:
    """An architecture on a few lines of a terminal: `stem, 3*conv3, mlp, head`.

    Equal neighbours are folded (no candidate's name can hold a `*`). Of more than 24 terms the middle is left out and
    counted, unless it is to be whole.
    """
    runs = [(name, len(list(group))) for name, group in groupby(architecture.choices)]
    terms = [f"{length}*{name}" if length > 1 else name for name, length in runs]
    if len(terms) > _MAX_TERMS and not is_whole:
        head = _MAX_TERMS - _TERMS_AT_END
        hidden = sum(length for _, length in runs[head:-_TERMS_AT_END])
        terms = [*terms[:head], f"({hidden} more)", *terms[-_TERMS_AT_END:]]
    return ", ".join(terms)


def check_architectures(name: str, value: object) -> list[Architecture]:
    """Architectures, or lists of names, as architectures.

    Args:
        name: of the argument.

    Raises:
        SettingError, SpaceError: it is no list of them.
    """
    found = []
    for number, one in enumerate(check_list(name, value, of=object, wanted="architectures")):
        with of_argument(f"{name}[{number}]"):
            found.append(Architecture.from_choices(one))
    return found
