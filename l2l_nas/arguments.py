"""What a caller gives, checked at the call: each error names the argument, and says what it takes and what it got."""

from __future__ import annotations

import contextlib
import math
import os
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from l2l_nas.errors import L2LError, SettingError, did_you_mean, one_line

T = TypeVar("T")
_LARGEST = (1 << 64) - 1
_LONGEST_NAME = 255  # bytes, in all file systems of use


def shown(value: object) -> str:
    """A value in a message: one short line, whatever it is."""
    try:
        return one_line(reprlib.repr(value), most=100)
    except Exception:  # the `__repr__` of a user's own class
        return f"an object of {type(value).__name__}"


@contextlib.contextmanager
def of_argument(name: str) -> Iterator[None]:
    """Has an error about what an argument holds begin with the argument's name."""
    try:
        yield
    except L2LError as error:
        error.args = (f"{name}: {error}",)
        raise


def check_kind(name: str, value: object, kinds: type[T] | tuple[type[Any], ...], *, wanted: str) -> Any:
    """The value, if it is of these classes.

    Args:
        name: of the argument.
        wanted: what it takes, such as "a LayerPool".

    Raises:
        SettingError: it is something else.
    """
    if not isinstance(value, kinds):
        is_class = isinstance(value, type) and _is_kind(value, kinds)
        hint = f"; write {value.__name__}(...)" if is_class and isinstance(value, type) else ""
        raise SettingError(f"{name} takes {wanted}, got {shown(value)} ({type(value).__name__}){hint}")
    return value


def _is_kind(value: type, kinds: type[Any] | tuple[type[Any], ...]) -> bool:
    try:
        return issubclass(value, kinds)
    except TypeError:  # protocols with attributes know objects alone
        return False


def check_count(name: str, value: object, *, least: int = 0, most: int | None = None) -> int:
    """A whole number of at most 64 bits, numpy's too, within bounds; True and 2.0 are none.

    Args:
        name: of the argument.
        least, most: bounds, inclusive.

    Raises:
        SettingError: it is none, or beyond the bounds.
    """
    number = check_whole(name, value)
    if number < least or (most is not None and number > most):
        raise SettingError(f"{name} {_bounds(least, most)}, got {shown(number)}")
    if number > _LARGEST:
        raise SettingError(f"{name} must be a number of 64 bits, got {shown(number)}")
    return number


def check_whole(name: str, value: object) -> int:
    """A whole number of any size.

    Raises:
        SettingError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise SettingError(f"{name} takes a whole number, got {shown(value)} ({type(value).__name__})")
    return int(value)


def check_seed(seed: object) -> int:
    """A whole number of 64 bits, with or without sign.

    Raises:
        SettingError: it is none.
    """
    return check_count("seed", seed, least=-(1 << 63), most=(1 << 64) - 1)


def check_number(
    name: str, value: object, *, least: float = -math.inf, most: float = math.inf, above: float | None = None
) -> float:
    """A finite number within bounds, numpy's too; True is none.

    Args:
        name: of the argument.
        least, most: bounds, inclusive.
        above: a lower bound that is itself excluded.

    Raises:
        SettingError: it is none, not finite, or beyond the bounds.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise SettingError(f"{name} takes a number, got {shown(value)} ({type(value).__name__})")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise SettingError(f"{name} must be finite, got {shown(value)}")
    if above is not None and number <= above:
        raise SettingError(f"{name} must be above {above:g}, got {shown(value)}")
    if not least <= number <= most:
        raise SettingError(f"{name} {_bounds(least, most)}, got {shown(value)}")
    return number


def check_list(name: str, value: object, *, of: type[T] | tuple[type[Any], ...], wanted: str) -> list[Any]:
    """The items of a list, tuple or other collection, each of these classes. A text, a mapping or one item is none.

    Args:
        name: of the argument.
        wanted: what each item is, in the plural, such as "Callbacks".

    Raises:
        SettingError: it is none, or holds something else.
    """
    items = listed(value)
    if items is None:
        raise SettingError(f"{name} takes a list of {wanted}, got {shown(value)} ({type(value).__name__})")
    for number, item in enumerate(items):
        if not isinstance(item, of):
            raise SettingError(f"{name}[{number}]: a list of {wanted} was expected, got {shown(item)}")
    return items


def listed(value: object) -> list[Any] | None:
    """The items of a collection; None where it is none, as a text, a mapping or a tensor without dimensions."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return None
    try:
        return list(value)
    except TypeError:  # such a tensor, an array
        return None


def check_sizes(name: str, value: object) -> tuple[int, ...]:
    """A shape: whole numbers of at least 0.

    Raises:
        SettingError: it is something else.
    """
    return tuple(check_count(name, size) for size in check_list(name, value, of=Integral, wanted="sizes"))


def check_flag(name: str, value: object) -> bool:
    """True or False, and nothing that is as good as one of them.

    Raises:
        SettingError: it is something else.
    """
    return bool(check_kind(name, value, bool, wanted="True or False"))


def check_word(name: str, value: object, known: Iterable[str]) -> str:
    """One of these words.

    Raises:
        SettingError: it is none.
    """
    words = tuple(known)
    if not isinstance(value, str) or value not in words:
        raise SettingError(f"{name}: no {shown(value)}{did_you_mean(str(value), words)}")
    return value


def check_names(name: str, value: object) -> tuple[str, ...]:
    """One text, or a list of texts.

    Raises:
        SettingError: it is something else.
    """
    return (value,) if isinstance(value, str) else tuple(check_list(name, value, of=str, wanted="texts"))


def check_function(name: str, value: object, *, wanted: str = "a function") -> Callable[..., Any]:
    """Something that can be called.

    Raises:
        SettingError: it is something else.
    """
    if not callable(value):
        raise SettingError(f"{name} takes {wanted}, got {shown(value)} ({type(value).__name__})")
    return value


def check_table(name: str, value: object, *, wanted: str) -> Mapping[str, Any]:
    """A dict by text.

    Args:
        name: of the argument.
        wanted: what it takes, such as "a dict of functions by name".

    Raises:
        SettingError: it is something else.
    """
    check_kind(name, value, Mapping, wanted=wanted)
    assert isinstance(value, Mapping)
    for key in value:
        check_kind(f"{name}: a key", key, str, wanted="text")
    return value


def check_methods(name: str, value: object, methods: Iterable[str], *, wanted: str) -> None:
    """An object, no class, with these methods.

    Raises:
        SettingError: it is something else.
    """
    for method in methods:
        if isinstance(value, type) or not callable(getattr(value, method, None)):
            raise SettingError(f"{name} takes {wanted}, got {shown(value)}, which has no method '{method}'")


def refuse_class(name: str, value: object) -> None:
    """Refuse a class in the place of an object of it, which has all of the methods and none of the rest.

    Raises:
        SettingError: it is a class.
    """
    if isinstance(value, type):
        raise SettingError(f"{name} takes an object, got a class; write {value.__name__}(...)")


def check_path(name: str, value: object) -> Path:
    """The path of a file or folder.

    Raises:
        SettingError: it is none.
    """
    if not isinstance(value, str | PathLike) or "\0" in str(value) or not _is_text(str(value)):
        raise SettingError(f"{name} takes a path, got {shown(value)} ({type(value).__name__})")
    path = Path(value)
    if longest := max((part for part in path.parts if len(os.fsencode(part)) > _LONGEST_NAME), default=""):
        raise SettingError(f"{name}: a name has at most {_LONGEST_NAME} bytes, got {shown(longest)}")
    return path


def _is_text(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:  # half of a letter
        return False
    return True


def check_weights(name: str, tensor: Tensor, *, is_trained: bool = True) -> None:
    """Weights without NaN; those that are trained without inf, too.

    Raises:
        SettingError: they hold some.
    """
    if tensor.is_meta or not tensor.numel() or not tensor.is_floating_point():
        return
    ends = torch.stack(torch.aminmax(tensor.detach()))  # each is NaN where any is
    if bool(ends.isnan().any()) or (is_trained and not bool(ends.isfinite().all())):
        raise SettingError(f"{name} holds NaN or inf; give weights that are finite")


def _bounds(least: float, most: float | None) -> str:
    if most is None or most == math.inf:
        return f"must be at least {least:,}"
    if least == -math.inf:
        return f"must be at most {most:,}"
    return f"must lie between {least:,} and {most:,}"
