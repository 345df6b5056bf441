"""The settings that a folder holds: plain data, nothing in it is resolved or imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from l2l_nas.errors import StorageError
from l2l_nas.files import read_yaml
from l2l_nas.plugins import is_own
from l2l_nas.runs.fields import declared, value_of
from l2l_nas.runs.locate import is_builtin
from l2l_nas.runs.settings import SearchConf

# settings that may name something of the user's own, besides the pool: what stands in a folder is never imported
OWN = tuple(one.name for one in declared(SearchConf) if one.is_code)


def read_config(path: Path) -> dict[str, Any]:
    """The settings in a `config.yaml`, or a `multirun.yaml`.

    Raises:
        StorageError: missing or damaged, or of version 0.1.0, whose settings, data and results were others.
    """
    config = read_yaml(path)
    data = config.get("data")
    if isinstance(data, dict) and "test_fraction" not in data:
        raise StorageError(f"{path.parent}: made by l2l_nas 0.1.0, which this version does not read: take that version")
    search = config.get("search")
    if isinstance(search, dict) and "introduce" in search:  # its name before the release of 0.2.0
        search.setdefault("catch_up_fraction", search.pop("introduce"))
    return config


def name_in(config: Mapping[str, Any], name: str) -> Any:
    """What a setting names: its value, or, where that has arguments, the name in it."""
    found = value_of(config, name)
    return found.get("name") if isinstance(found, Mapping) else found


def own_pool(config: Mapping[str, Any]) -> str:
    """The pool of a run, if it is the user's own; empty if it is built in."""
    pool = value_of(config, "space.pool")
    return "" if pool is None or is_builtin(str(pool)) else str(pool)


def names_own(value: object) -> bool:
    """Whether a setting's value, or one in a list of them, is something of the user's own: named, or an object."""
    return any(map(is_own, value if isinstance(value, list) else [value]))


def own_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """What of a run is the user's own, and is named again when it goes on, by setting."""
    pool: dict[str, Any] = {"space.pool": own_pool(config)} if own_pool(config) else {}
    return pool | {name: value for name in OWN if names_own(value := name_in(config, name))}


def own_names_in(path: Path) -> dict[str, Any]:
    """The same, for hints: empty where the settings cannot be read, as whoever needs them will say."""
    try:
        return own_names(read_config(path))
    except StorageError:
        return {}
