"""Imports what a user names in a command or a call: `FILE.py:NAME`, `MODULE:NAME`, or a class by `MODULE.Name`.

Nothing that is read back from a run's folder comes here.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from l2l_nas.errors import (
    L2LError,
    SettingError,
    SpaceError,
    described,
    did_you_mean,
    is_of_code,
    one_line,
    user_code,
    what_raised,
)


def imported(name: str, *, setting: str) -> Callable[..., object]:
    """A function or a class of the user's own.

    Args:
        name: `FILE.py:NAME`, `MODULE:NAME` or `MODULE.Name`.
        setting: that names it, for messages.

    Raises:
        SettingError: there is no such file, module or name.
        SpaceError: importing it raised something.
    """
    place, _, function = name.rpartition(":" if ":" in name else ".")
    module = _import_file(Path(place), setting) if place.endswith(".py") else _import_module(place, setting)
    found = getattr(module, function, None)
    if not callable(found):
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        hint = did_you_mean(function, names) if names else ", and nothing else that can be called"
        raise SettingError(f"{setting}: {place} has no '{function}'{hint}")
    return found  # type: ignore[no-any-return]


def optional(name: str, what: str, *, extra: str) -> Any:
    """A module of a package that not everybody has.

    Args:
        name: of the module.
        what: needs it, such as "GGUF files need", for messages.
        extra: of this package, that has it.

    Raises:
        SettingError: it is not installed, or its import fails, as that of a package for another version of torch.
    """
    package, install = name.partition(".")[0], f"'l2l-nas[{extra}]'"
    try:
        return importlib.import_module(name)
    except BaseException as error:
        if not is_of_code(error):
            raise
        if isinstance(error, ModuleNotFoundError) and error.name == package:
            raise SettingError(f"{what} the package {package}: pip install {install}") from None
        raise SettingError(
            f"{what} the package {package}, whose import fails ({one_line(described(error), most=200)}); install "
            f"it anew: pip install --force-reinstall {install}"
        ) from error


# a class by its module: its capital letter tells it from a file
_CLASS = re.compile(r"\w+(\.\w+)*\.[A-Z]\w*")

# what stands in a run's settings for something that was given in Python, as an object
GIVEN, GIVEN_PROBLEM = "given in Python", "a problem given in Python"


def is_given(value: object) -> bool:
    """Whether a setting's value stands for an object that was given in Python."""
    return value in (GIVEN, GIVEN_PROBLEM)


def is_named(value: object) -> bool:
    """Whether a setting's value names something of the user's own: `FILE.py:NAME`, `MODULE:NAME`, `MODULE.Name`."""
    return isinstance(value, str) and (":" in value or _CLASS.fullmatch(value) is not None)


def is_own(value: object) -> bool:
    """Whether a setting's value is something of the user's own, by name or as an object."""
    return is_named(value) or is_given(value)


def name_and_arguments(value: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Of what is given by a name, or by a dict of `name` and the arguments."""
    if isinstance(value, str):
        return value, {}
    return str(value.get("name", "")), {key: one for key, one in value.items() if key != "name"}


def made(
    value: str | Mapping[str, Any],
    *,
    setting: str,
    offered: Mapping[str, Any],
    is_right: Callable[[object], bool],
    kind: str,
) -> Any:
    """What a class or function of the user's own gives.

    Args:
        value: its name, see `imported`; or a dict of `name` and the arguments that it is called with.
        setting: that names it.
        offered: further arguments, each if it takes one of that name.
        is_right: whether that is what is expected.
        kind: what is expected, in words.

    Raises:
        SettingError: there is no such thing, it does not take an argument, or it gives something else.
        L2LError: it raised something.
    """
    name, arguments = name_and_arguments(value)
    build = imported(name, setting=setting)
    try:
        takes = inspect.signature(build).parameters
    except ValueError:  # of some that are written in C
        takes = {}  # type: ignore[assignment]
    if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in takes.values()):
        for unknown in [key for key in arguments if key not in takes]:
            raise SettingError(f"{setting}={name} takes no '{unknown}'{did_you_mean(unknown, list(takes))}")
    with user_code(f"{setting}: {name}", L2LError):
        found = build(**{key: one for key, one in offered.items() if key in takes} | arguments)
    if not is_right(found):
        raise SettingError(f"{setting}: {name} gave {type(found).__name__}; expected {kind}")
    return found


def _import_file(path: Path, setting: str) -> object:
    if not path.is_file():
        raise SettingError(f"{setting}: no file '{path}'; check the path (it is relative to {Path.cwd()})")
    # files of one name in two folders are two modules
    name = f"_l2l_own_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # registered, as dataclasses and pickling workers find classes by module
    sys.modules[name] = module
    # what lies beside it is what it imports, before all else; and behind all else whenever its functions are called
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        if not is_of_code(error):
            raise
        del sys.modules[name]
        raise SpaceError(f"{setting}: {path} {what_raised(error)}") from error
    finally:
        sys.path.remove(folder)
    return module


def _import_module(name: str, setting: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise SettingError(f"{setting}: no module '{name}'; a file is named FILE.py:FUNCTION") from None
        raise SpaceError(f"{setting}: importing {name} raised ModuleNotFoundError: {error}") from error
    except BaseException as error:
        if not is_of_code(error):
            raise
        raise SpaceError(f"{setting}: importing {name} {what_raised(error)}") from error
