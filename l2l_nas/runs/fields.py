"""What a setting is, and what can be done with any dataclass of settings: list, read, change and check them."""

from __future__ import annotations

import copy
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

from l2l_nas.errors import SettingError

_MOST = 2**31 - 1
_LONGEST_TEXT = 4096
# which OmegaConf leaves out, too
_NO_SETTING = "omegaconf_ignore"


@dataclass(frozen=True)
class OnResume:
    """What happens to another value of a setting when a run goes on: it is refused, or counts from then on.

    Args:
        why: it is refused, since one study would hold two kinds of scores; empty where it may change.
        is_free: it changes a result in the last bits at most; runs of one sweep may differ in it.
        unless: tells of a run's settings why the value must stay nevertheless; "" where it may change.
    """

    why: str = ""
    is_free: bool = False
    unless: Callable[[Mapping[str, Any]], str] | None = None

    @property
    def stays(self) -> bool:
        """Whether it is refused, whatever the run's settings are."""
        return bool(self.why)

    def refusal(self, config: Mapping[str, Any]) -> str:
        """Why the setting must stay what it was in a run with these settings; empty if it may change."""
        return self.why or (self.unless(config) if self.unless is not None else "")


MAY_CHANGE, FREE = OnResume(), OnResume(is_free=True)


def stays(why: str) -> OnResume:
    """Another value is refused."""
    return OnResume(why)


@dataclass(frozen=True)
class UsedIf:
    """When a setting changes anything.

    Args:
        setting: another one, which decides it.
        is_there: tells it of all settings.
    """

    setting: str
    is_there: Callable[[Any], bool]


class FromFolder(Enum):
    """What a run's folder may say of a setting; see [Note: folders of others] in `folder_settings.py`.

    A setting is `NEVER` taken from a folder unless it says so: what is run, where, and by whom.
    """

    NEVER = "never"
    PLAIN = "plain"  # numbers, truth values and words, also in lists and dicts
    TEXT = "text"  # any text: it is compared or parsed, and names nothing that is opened
    PATH = "path"  # a plain file or folder, which is read as data alone


NEVER, PLAIN, TEXT, PATH = FromFolder


@dataclass(frozen=True)
class Declared:
    """All that a setting declares.

    Args:
        name: dotted.
        kind: its type, as it is annotated.
        default, help: as `--help` shows them.
        from_folder: what a run's folder may say of it.
        least, most: bounds of a number, both included.
        resume: what holds for another value when a run goes on; by default what its section says.
        effect: when it changes anything; None: always.
        read_by: the name of the phase that reads it; empty for all others.
        is_code: it may name something of the user's own, which is imported.
        is_inherited: whether `train` takes it over from the run that it is given.
    """

    name: str
    kind: Any
    default: Any
    help: str
    from_folder: FromFolder = FromFolder.NEVER
    least: float | None = None
    most: float | None = None
    resume: OnResume | None = None
    effect: UsedIf | None = None
    read_by: str = ""
    is_code: bool = False
    is_inherited: bool = True


def setting(default: Any, text: str, from_folder: FromFolder = NEVER, **more: Any) -> Any:
    """A setting with its help text; from_folder and more: see `Declared`."""
    metadata = {"help": text, "from_folder": from_folder, **more}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def beside(make: Callable[[], Any]) -> Any:
    """A field of a dataclass of settings that is none itself: nothing reads or writes it as one."""
    return field(default_factory=make, metadata={_NO_SETTING: True})


def section(schema: type, *, resume: OnResume | None = None) -> Any:
    """A section, and what its settings share."""
    return field(default_factory=schema, metadata={"resume": resume})


def declared(schema: type, prefix: str = "", resume: OnResume | None = None) -> Iterator[Declared]:
    """What every setting declares."""
    kinds = get_type_hints(schema)
    for entry in _entries(schema):
        inner, more = _section(entry), {"resume": resume, **entry.metadata}
        if inner:
            yield from declared(inner, f"{prefix}{entry.name}.", more["resume"])
            continue
        default = entry.default_factory() if callable(entry.default_factory) else entry.default
        yield Declared(prefix + entry.name, kinds[entry.name], default, **more)


def _entries(schema: Any) -> list[dataclasses.Field[Any]]:
    return [entry for entry in dataclasses.fields(schema) if _NO_SETTING not in entry.metadata]


def content(conf: Any) -> dict[str, Any]:
    """All settings as a file holds them, sections as dicts."""
    return {
        entry.name: content(value) if dataclasses.is_dataclass(value) else copy.deepcopy(value)
        for entry in _entries(conf)
        for value in [getattr(conf, entry.name)]
    }


def settings(schema: type, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """Dotted name, default and help text of every setting."""
    yield from ((one.name, one.default, one.help) for one in declared(schema, prefix))


def check_bounds(conf: Any, prefix: str = "") -> None:
    """Refuse numbers that are out of their bounds, or too large for any machine, and odd texts.

    Raises:
        SettingError: with the setting's name.
    """
    for one in declared(type(conf), prefix):
        value = value_of(conf, one.name.removeprefix(prefix))
        if isinstance(value, Mapping) and "name" in value:
            for key, argument in value.items():
                check_value(Declared(f"{one.name}.{key}", Any, None, ""), argument)
        check_value(one, value)


def check_value(one: Declared, value: Any) -> None:
    """The same of one value; of a list, of each item."""
    if isinstance(value, list):
        for place, item in enumerate(value):
            check_value(replace(one, name=f"{one.name}[{place}]"), item)
    if isinstance(value, float) and not math.isfinite(value):
        raise SettingError(f"{one.name} must be a finite number, got {value}")
    if isinstance(value, int | float) and one.least is not None and value < one.least:
        raise SettingError(f"{one.name} must be at least {one.least}, got {value}")
    if isinstance(value, int) or (isinstance(value, float) and one.most is not None):
        most = _MOST if one.most is None else one.most
        if not -most <= value <= most:
            found = f"{float(value):.3g}" if abs(value) < sys.float_info.max else "a number of more than 300 digits"
            raise SettingError(f"{one.name} must be at most {most:,}, got {found}")
    if isinstance(value, str):
        if len(value) > _LONGEST_TEXT:
            raise SettingError(f"{one.name} has {len(value):,} characters; at most {_LONGEST_TEXT:,} are taken")
        if "\0" in value:
            raise SettingError(f"{one.name} holds a zero byte")


def typed(schema: type, content: Mapping[str, Any]) -> Any:
    """Settings of one section as a file holds them; what is missing has its default.

    Raises:
        SettingError: a value is of another type than its setting.
    """
    return schema(**{one.name: fitting(one, content[one.name]) for one in declared(schema) if one.name in content})


def _section(entry: dataclasses.Field[Any]) -> Any:
    """The dataclass of a section; None of a setting."""
    return entry.default_factory if dataclasses.is_dataclass(entry.default_factory) else None


def fitting(one: Declared, value: Any) -> Any:
    """A value of the setting's type; each item of a list, too.

    Raises:
        SettingError: it is of another type.
    """
    return _fitting(one.name, value, one.kind)


def _fitting(name: str, value: Any, kind: Any) -> Any:
    of = get_args(kind)
    if get_origin(kind) is Union:
        return None if value is None else _fitting(name, value, of[0])
    if kind is float and type(value) is int:
        if abs(value) > sys.float_info.max:
            raise SettingError(f"{name} must be a number that a float can hold, got one of more than 300 digits")
        return float(value)
    if kind is Any:
        return value
    wanted = get_origin(kind) or kind
    if type(value) is not wanted:
        from l2l_nas.arguments import shown  # with torch, which `--help` does without

        words = f" of {of[0].__name__}" if wanted is list else ""
        raise SettingError(f"{name} must be of type {wanted.__name__}{words}, got {shown(value)}")
    return [_fitting(f"{name}[{place}]", item, of[0]) for place, item in enumerate(value)] if wanted is list else value


def value_of(conf: Any, name: str, missing: Any = None) -> Any:
    """A setting by its dotted name, of a dataclass or of what a file holds; `missing` where it is not."""
    for part in name.split("."):
        conf = conf.get(part, missing) if isinstance(conf, Mapping) else getattr(conf, part, missing)
    return conf


def entries(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """What nested dicts hold, by dotted name; an empty one holds nothing."""
    found: dict[str, Any] = {}
    for name, value in content.items():
        found |= entries(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def titles(schema: type) -> Iterator[tuple[str, str]]:
    """Name and meaning of every section."""
    for entry in _entries(schema):
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
    return replace(conf, **here, **sections)
