"""What a setting is, and what can be done with any dataclass of settings: list, read, change and check them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from l2l_nas.errors import SettingError


def setting(default: Any, text: str, **more: Any) -> Any:
    """A setting with its help text; more: `least` of a number."""
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata={"help": text, **more})
    return field(default=default, metadata={"help": text, **more})


def settings(schema: type, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Dotted name, default and help text of every setting."""
    for entry in dataclasses.fields(schema):
        section = _section(entry)
        if section:
            yield from settings(section, f"{prefix}{entry.name}.")
            continue
        default = entry.default_factory() if callable(entry.default_factory) else entry.default
        yield prefix + entry.name, default, entry.metadata["help"]


def built(schema: type, content: Mapping[str, Any]) -> Any:
    """Settings of what `dataclasses.asdict` made of them; what is missing has its default."""
    made = {}
    for entry in dataclasses.fields(schema):
        if entry.name in content:
            section = _section(entry)
            made[entry.name] = built(section, content[entry.name]) if section else content[entry.name]
    return schema(**made)


def typed(schema: type, content: Mapping[str, Any]) -> Any:
    """`built`, of what a file holds: every value must be of its setting's type.

    Raises:
        SettingError: one is of another type.
    """
    defaults = {name: default for name, default, _ in settings(schema)}
    return built(schema, {name: fitting(name, content[name], defaults[name]) for name in defaults if name in content})


def _section(entry: dataclasses.Field[Any]) -> Any:
    """The dataclass of a section; None of a setting."""
    return entry.default_factory if dataclasses.is_dataclass(entry.default_factory) else None


def fitting(name: str, value: Any, default: Any) -> Any:
    """A value of the type of a setting's default.

    Raises:
        SettingError: it is of another type.
    """
    if isinstance(default, float) and type(value) is int:
        return float(value)
    kind = int if default is None else type(default)
    is_right = type(value) is kind or (value is None and default is None)
    of: type | tuple[type, ...] = str if isinstance(default, list) and default else (str, int, float)
    if isinstance(default, list) and is_right:
        is_right = all(isinstance(one, of) for one in value)
    if not is_right:
        words = " of str" if of is str else ""
        raise SettingError(f"{name} must be of type {kind.__name__}{words}, got {value!r}")
    return value


def value_of(conf: Any, name: str) -> Any:
    """A setting by its dotted name."""
    for part in name.split("."):
        conf = getattr(conf, part)
    return conf


def titles(schema: type) -> Iterator[tuple[str, str]]:
    """Name and meaning of every section."""
    for entry in dataclasses.fields(schema):
        section = _section(entry)
        if section:
            yield entry.name, (section.__doc__ or "").rstrip(".")


def changed(conf: Any, values: Mapping[str, Any]) -> Any:
    """Settings with other values, by dotted name."""
    here = {name: value for name, value in values.items() if "." not in name}
    below: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        section, dot, leaf = name.partition(".")
        if dot:
            below.setdefault(section, {})[leaf] = value
    sections = {section: changed(getattr(conf, section), leaves) for section, leaves in below.items()}
    return dataclasses.replace(conf, **here, **sections)
