"""The settings in a folder: what of them may be taken over, and what must be named again.

[Note: folders of others] A run's folder may be anybody's. What it may give is said where each setting is declared
(`FromFolder`): the space, the data, how networks train, the numbers of a search. Everything else is the word of whoever
starts the command: code, executors with their arguments, devices, callbacks. `read_settings` is the
only reader: who asks it for `config` cannot see what a folder may not give. A path may be given where it is read as
data; it is never written to. Nothing is resolved or imported.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l2l_nas.compress.pool import is_published
from l2l_nas.errors import StorageError
from l2l_nas.files import read_yaml
from l2l_nas.plugins import is_given, is_own
from l2l_nas.runs.choice_settings import CHOICES
from l2l_nas.runs.command_line import is_object, spell
from l2l_nas.runs.fields import Declared, FromFolder, content, declared, value_of
from l2l_nas.runs.groups import deviating, flat
from l2l_nas.runs.settings import PLACES, RetrainConf, SearchConf, rule_of

_ABSENT = object()
_WORD = re.compile(r"[\w+-]*")
_CODE = re.compile(r"[\w./ +-]+:\w+|\w+(\.\w+)+")
_CALLBACK = re.compile(r"callbacks\.\w+\.name")
_ADDRESS = re.compile(r"^//|^\\\\|://")  # also of a Windows share
# what Hydra refuses until another value is in its place
_TO_FILL_IN = "???"


@dataclass(frozen=True)
class FolderSettings:
    """What a folder's `config.yaml` says; see [Note: folders of others].

    Args:
        config: what it may give.
        withheld: all else that is not as by default, by the names of `flat`.
        whole: everything as it stands, to be shown and compared, and for nothing else.
    """

    config: dict[str, Any]
    withheld: dict[str, Any]
    whole: dict[str, Any]


def read_settings(path: Path) -> FolderSettings:
    """Read a run's `config.yaml`; arguments of choices that this version does not have are left out, as settings are.

    Raises:
        StorageError: missing or damaged, or of version 0.1.0, whose settings, data and results were others.
    """
    whole = as_it_stands(path)
    for group in CHOICES:
        chosen = whole.get(group, {})
        if not isinstance(chosen, Mapping) or not isinstance(chosen.get("name", ""), str):
            raise StorageError(f"{path}: damaged ({group} is {chosen!r}); restore it")
        kind = CHOICES[group].get(chosen.get("name", next(iter(CHOICES[group]))))
        if group in whole and kind is not None:
            known = {"name", *(one.name for one in declared(kind))}
            whole[group] = {key: value for key, value in chosen.items() if key in known}
    return settings_in(whole)


def settings_in(whole: dict[str, Any]) -> FolderSettings:
    """The settings of a search or a training, parted into what a folder may give and what not."""
    schema = SearchConf if isinstance(whole.get("search"), dict) else RetrainConf
    config = _given(schema, whole)
    return FolderSettings(config, _withheld(schema, whole, config), whole)


def as_it_stands(path: Path) -> dict[str, Any]:
    """All that a `config.yaml`, or a `multirun.yaml`, says: `FolderSettings.whole`. Raises StorageError: as there."""
    config = read_yaml(path)
    data = config.get("data")
    if isinstance(data, dict) and "test_fraction" not in data:
        raise StorageError(f"{path.parent}: made by l2l_nas 0.1.0, which this version does not read: take that version")
    search = config.get("search")
    if isinstance(search, dict) and isinstance(search.get("learn_from"), str):  # of 0.2.0
        search["learn_from"] = [name for name in search["learn_from"].split(",") if name]
    return config


def own_settings(conf: Any) -> dict[str, Any]:
    """What a folder of a run with these settings could not give, so that it is named again when the run goes on.

    Args:
        conf: a dataclass of `settings.py`: the words of whoever started it.
    """
    whole = content(conf)
    return _withheld(type(conf), whole, _given(type(conf), whole))


def _given(schema: type, whole: Mapping[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for one in declared(schema):
        value = _allowed(one, value_of(whole, one.name, _ABSENT))
        if value is not _ABSENT:
            *sections, leaf = one.name.split(".")
            within = config
            for section in sections:
                within = within.setdefault(section, {})
            within[leaf] = value
    return config


def _withheld(schema: type, whole: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    taken = flat(schema, config)
    found = {name: value for name, (value, _) in deviating(schema, whole).items() if name not in PLACES}
    # by `in`: what is no number is the same as itself
    return {name: value for name, value in found.items() if value not in [taken.get(name, _ABSENT)]}


def _allowed(one: Declared, value: Any) -> Any:
    """What of a setting's value a folder may give."""
    if value is _ABSENT or one.from_folder is FromFolder.NEVER:
        return _ABSENT
    if not isinstance(value, Mapping):
        return value if may_give(one, value) else _ABSENT
    if one.name not in CHOICES:
        return {key: entry for key, entry in value.items() if may_give(one, {key: entry})}
    kinds = CHOICES[one.name]
    name = value.get("name", next(iter(kinds)))
    if not isinstance(name, str) or name not in kinds:
        return _ABSENT
    arguments = {argument.name: argument for argument in declared(kinds[name])}
    rest = {key: entry for key, entry in value.items() if key in arguments and may_give(arguments[key], entry)}
    return {"name": name, **rest}


def may_give(one: Declared, value: Any) -> bool:
    """Whether a folder may give a setting this value; that it is of another type is refused by who uses it."""
    if isinstance(value, Mapping):
        return all(_is_word(key) and may_give(one, entry) for key, entry in value.items())
    if isinstance(value, list):
        return all(may_give(one, entry) for entry in value)
    if one.from_folder is FromFolder.NEVER:
        return False
    if not isinstance(value, str) or _is_word(value):
        return True
    if one.is_code:
        is_model = one.from_folder is FromFolder.PATH and is_published(value)
        return is_model and _is_plain_path(value.partition(":")[2])
    if one.from_folder is FromFolder.PATH:
        return _is_plain_path(value)
    return one.from_folder is FromFolder.TEXT


def _is_word(value: object) -> bool:
    return isinstance(value, str) and _WORD.fullmatch(value) is not None


def _is_plain_path(text: str) -> bool:
    """Whether a text names a file or a folder, or nothing that there is: no address, device or pipe."""
    is_there = os.path.lexists(text) if "\0" not in text else False
    return not _ADDRESS.search(text) and (not is_there or os.path.isfile(text) or os.path.isdir(text))


def must_be_named(withheld: Mapping[str, Any], *, explicit: Collection[str], schema: type) -> dict[str, Any]:
    """What of a run's settings a command with settings of another folder needs and was not given.

    What changes no result but in its last bits, such as the device, is the command's own.

    Args:
        explicit: names of settings, or of sections, that count for the command.
        schema: its settings.
    """
    return {name: value for name, value, is_needed in _not_named(withheld, explicit, schema) if is_needed}


def left_out(withheld: Mapping[str, Any], *, explicit: Collection[str], schema: type) -> str:
    """What to tell of settings that a run had, and has no more when it goes on; they change no result.

    Args:
        given, schema: see `must_be_named`.
    """
    found = {name: value for name, value, is_needed in _not_named(withheld, explicit, schema) if not is_needed}
    words = words_again(found)
    return f"the run also had what is never taken from a folder; to have it again, name it: {words}" if found else ""


def _not_named(withheld: Mapping[str, Any], explicit: Collection[str], schema: type) -> Iterator[tuple[str, Any, bool]]:
    """Settings, their values, and whether a result depends on them."""
    known = {one.name: one for one in declared(schema)}
    for name, value in withheld.items():
        places = list(above(name))
        one = next((known[place] for place in places if place in known), None)
        is_named = any(place in explicit or f"{place}.name" in explicit for place in places)
        if one is not None and not is_named:
            yield name, value, one.is_code or not rule_of(one.name).is_free


def above(name: str) -> Iterator[str]:
    """A name, and those that it lies below."""
    while name:
        yield name
        name = name.rpartition(".")[0]


_CODE_NAMES = frozenset(one.name for schema in (SearchConf, RetrainConf) for one in declared(schema) if one.is_code)


def typeable(withheld: Mapping[str, Any]) -> dict[str, Any]:
    """The same, to be printed in a command: what is more than a word, a number or a name of code is left to fill in.

    Who copies a command has not read it: an address or a shell line of somebody else's does not stand in it.
    """
    return {name: value if _may_be_typed(name, value) else _TO_FILL_IN for name, value in withheld.items()}


def _may_be_typed(name: str, value: Any) -> bool:
    if isinstance(value, list):
        return all(_may_be_typed(name, entry) for entry in value)
    if isinstance(value, Mapping):
        return all(_is_word(key) and _may_be_typed(name, entry) for key, entry in value.items())
    if not isinstance(value, str) or _is_word(value) or is_given(value):
        return True
    is_code = name in _CODE_NAMES or _CALLBACK.fullmatch(name) is not None
    return is_code and is_own(value) and _CODE.fullmatch(value) is not None


def words_again(withheld: Mapping[str, Any]) -> str:
    """The words that name settings again, as a shell takes them."""
    shown = {name: _placeholder(value) for name, value in typeable(withheld).items()}
    return shlex.join(f"{name}={spell(value)}" for name, value in shown.items())


def _placeholder(value: Any) -> Any:
    """In the place of what was given in Python, a name of it."""
    if isinstance(value, list):
        return [_placeholder(entry) for entry in value]
    return "FILE.py:NAME" if is_given(value) else value


def name_again(withheld: Mapping[str, Any]) -> str:
    """What to tell of settings that a folder says and that are not taken from it."""
    names = [*withheld]
    one = len(names) == 1
    who = names[0] if one else f"{', '.join(names[:-1])} and {names[-1]}"
    objects = [name for name, value in withheld.items() if is_object(value)]
    about = (
        [f"{', '.join(objects)} was given in Python: give it to l2l_nas.search again, or name it"] if objects else []
    )
    filled = typeable(withheld)
    odd = [f"{name}={spell(value)}" for name, value in withheld.items() if filled[name] == _TO_FILL_IN]
    about += [f"there it is {'; '.join(odd)}: read that before you use it"] if odd else []
    beside = f" ({'; '.join(about)})" if about else ""
    is_never, them = ("is never", "it") if one else ("are never", "them")
    return f"{who} {is_never} taken from a folder{beside}; name {them} again: {words_again(withheld)}"
