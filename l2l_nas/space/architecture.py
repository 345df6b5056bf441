"""An architecture: one candidate name per position. Data, never a module."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from l2l_nas.errors import SpaceError


@dataclass(frozen=True)
class Architecture:
    """The chosen candidate of every position, in order. Hashable and JSON both ways.

    Args:
        choices: candidate names, one for each position of the pool.
    """

    choices: tuple[str, ...]

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
        except (ValueError, KeyError, TypeError):
            raise SpaceError(f'not an architecture: expected {{"choices": [...]}}, got {text[:80]!r}') from None
        return cls.from_choices(choices)

    @classmethod
    def from_choices(cls, choices: object) -> Architecture:
        """Build from a parsed JSON list.

        Raises:
            SpaceError: it is not a list of names.
        """
        if not isinstance(choices, list | tuple) or not all(isinstance(name, str) for name in choices):
            raise SpaceError(f"an architecture is a list of candidate names, got {str(choices)[:80]!r}")
        return cls(tuple(choices))

    def __str__(self) -> str:
        return " > ".join(self.choices)
