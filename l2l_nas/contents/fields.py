"""Numbers, texts and tables that a file holds by name, each of the type and in the range that it must have."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
        value = self._value(name, default)
        if value is default:
            return value
        right = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
        if not right or int(value) != value:
            self.refuse(name, f"a whole number from {least} to {most}")
        return int(value)

    def wholes(self, name: str, *, least: int = 0, most: int = MOST_WHOLE) -> tuple[int, ...]:
        """None, one, or a list of whole numbers from `least` to `most`."""
        value = self._content.get(name)
        found = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(one, int) and not isinstance(one, bool) and least <= one <= most for one in found):
            self.refuse(name, f"whole numbers from {least} to {most}")
        return tuple(found)

    def number(
        self, name: str, *, least: float = 0.0, most: float = _MOST_NUMBER, default: float | None = REQUIRED
    ) -> Any:
        """A finite number from `least` to `most`."""
        value = self._value(name, default)
        if value is default:
            return value
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
            above = "" if least == -math.inf else f", at least {least:g}"
            self.refuse(name, f"a finite number{above}" + (f" and at most {most:g}" if most < _MOST_NUMBER else ""))
        return float(value)

    def truth(self, name: str, *, default: bool | None = REQUIRED) -> Any:
        """True or false."""
        value = self._value(name, default)
        if value is not default and not isinstance(value, bool):
            self.refuse(name, "true or false")
        return value

    def text(self, name: str, *, default: str | None = REQUIRED) -> Any:
        """A text."""
        value = self._value(name, default)
        if value is not default and not isinstance(value, str):
            self.refuse(name, "a text")
        return value

    def table(self, name: str, *, default: Mapping[str, Any] | None = REQUIRED) -> Any:
        """Values by name."""
        value = self._value(name, default)
        if value is not default and not (isinstance(value, Mapping) and all(isinstance(key, str) for key in value)):
            self.refuse(name, "values by name")
        return value

    def refuse(self, name: str, expected: str) -> NoReturn:
        """Refuse what a field is.

        Raises:
            StorageError: always.
        """
        value = self._content.get(name)
        what = "is missing" if name not in self._content else f"is {shown(value)}"
        raise self._error(f"{self.where}: {name} {what}, expected {expected}; {self._advice}")

    def _value(self, name: str, default: Any) -> Any:
        value = self._content.get(name)
        if value is None and default is not REQUIRED:
            return default
        return value
