"""Numbers, texts and tables that a file holds by name, each of the type and in the range that it must have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from l2l_nas.arguments import shown
from l2l_nas.errors import L2LError, StorageError

MOST_WHOLE = (1 << 63) - 1
_MOST_NUMBER = 1e300  # products of two numbers of a file should be numbers still
REQUIRED: Any = object()  # in place of a default


class Fields:
    """What a file holds by name, such as a JSON object or the metadata of a model.

    A field that is missing, or null, is its default; without a default it is refused.

    Args:
        content: what the file holds.
        where: the file, or the file and what of it, for errors.
        advice: what to do about an error.
        error: the class of errors.

    Raises:
        StorageError: `content` is no object with names.
    """

    def __init__(
        self, content: object, where: object, *, advice: str = "get it again", error: type[L2LError] = StorageError
    ) -> None:
        self.where, self._advice, self._error = where, advice, error
        if not isinstance(content, Mapping):
            raise error(f"{where}: holds {shown(content)}, expected fields by name; {advice}")
        self._content: Mapping[str, Any] = content

    def whole(self, name: str, *, least: int = 0, most: int = MOST_WHOLE, default: int | None = REQUIRED) -> Any:
        """A whole number from `least` to `most`."""

        def is_right(value: Any) -> bool:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return is_number and least <= value <= most and int(value) == value

        value = self._checked(name, default, is_right, f"a whole number from {least} to {most}")
        return value if value is default else int(value)

    def wholes(self, name: str) -> tuple[int, ...]:
        """None, one, or a list of whole numbers from 0."""
        value = self._content.get(name)
        found = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(one, int) and not isinstance(one, bool) and 0 <= one <= MOST_WHOLE for one in found):
            self.refuse(name, f"whole numbers from 0 to {MOST_WHOLE}")
        return tuple(found)

    def number(
        self, name: str, *, least: float = 0.0, most: float = _MOST_NUMBER, default: float | None = REQUIRED
    ) -> Any:
        """A finite number from `least` to `most`."""

        def is_right(value: Any) -> bool:
            return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most

        above = "" if least == -math.inf else f", at least {least:g}"
        below = f" and at most {most:g}" if most < _MOST_NUMBER else ""
        value = self._checked(name, default, is_right, f"a finite number{above}{below}")
        return value if value is default else float(value)

    def truth(self, name: str, *, default: bool | None = REQUIRED) -> Any:
        """True or false."""
        return self._checked(name, default, lambda value: isinstance(value, bool), "true or false")

    def text(self, name: str, *, default: str | None = REQUIRED) -> Any:
        """A text."""
        return self._checked(name, default, lambda value: isinstance(value, str), "a text")

    def table(self, name: str, *, default: Mapping[str, Any] | None = REQUIRED) -> Any:
        """Values by name."""

        def is_right(value: Any) -> bool:
            return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)

        return self._checked(name, default, is_right, "values by name")

    def refuse(self, name: str, expected: str) -> NoReturn:
        """Refuse what a field is.

        Raises:
            StorageError: always.
        """
        value = self._content.get(name)
        what = "is missing" if name not in self._content else f"is {shown(value)}"
        raise self._error(f"{self.where}: {name} {what}, expected {expected}; {self._advice}")

    def _checked(self, name: str, default: Any, is_right: Callable[[Any], bool], expected: str) -> Any:
        value = self._content.get(name)
        if value is None and default is not REQUIRED:
            return default
        if value is not default and not is_right(value):
            self.refuse(name, expected)
        return value
