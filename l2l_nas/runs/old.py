"""Folders of earlier versions: names that settings had, and data of two parts, one of which 0.1.0 selected on."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from l2l_nas.errors import StorageError
from l2l_nas.files import read_yaml
from l2l_nas.plugins import GIVEN, GIVEN_PROBLEM

# settings and sections by their names of before
_RENAMED = {
    "search.sampler": "sampler",
    "search.strategy": "strategy",
    "search.objectives": "objectives",
    "search.callbacks": "callbacks",
    "train.optimizer": "optimizer",
    "adamw": "optimizer",
    "sgd": "optimizer",
    "train.look_steps": "train.validation_steps",
    "relay.compile": "relay.layers",
}
_GIVEN_BEFORE = "FILE.py:NAME"
_ADVICE = "it is too old for this version; read it with l2l_nas 0.1.0"


def renamed(name: str) -> str:
    """What a setting of before is called now; empty for others."""
    section, dot, leaf = name.rpartition(".")
    if name in _RENAMED:
        return _RENAMED[name]
    return _RENAMED.get(section, "") and f"{_RENAMED[section]}{dot}{leaf}"


def value_of_today(name: str, value: str) -> str:
    """What stands behind `=` of a setting of before, as its setting of today takes it."""
    if name == "search.sampler":
        return re.sub(r"\bauto\b", "gp_hamming", value)
    if name == "relay.compile":
        return re.sub(
            r"\w+", lambda word: "compile" if word[0].lower() in ("true", "yes", "on", "1") else "eager", value
        )
    return value


def _with_marks_of_today(value: Any, name: str = "") -> Any:
    """Version 0.2.0 wrote the same in the place of every object that was given in Python."""
    if isinstance(value, dict):
        return {name: _with_marks_of_today(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [_with_marks_of_today(one) for one in value]
    if value != _GIVEN_BEFORE:
        return value
    return GIVEN_PROBLEM if name == "pool" else GIVEN


def _with_names_of_today(config: Mapping[str, Any]) -> dict[str, Any]:
    config = {name: _with_marks_of_today(section) for name, section in config.items()}
    found = {name: dict(section) if isinstance(section, dict) else section for name, section in config.items()}
    search, train, relay = (found.get(name) for name in ("search", "train", "relay"))
    if isinstance(relay, dict) and "compile" in relay:
        relay.setdefault("layers", "compile" if relay.pop("compile") else "eager")
    if isinstance(relay, dict) and relay.get("update") in ("ahead", "serial"):
        relay["update"] = "exact"  # which has their results
    if isinstance(search, dict):
        for name in ("sampler", "strategy"):
            if name in search:
                chosen = search.pop(name)
                found.setdefault(name, {"name": "gp_hamming" if chosen == "auto" else chosen})
        if "objectives" in search:
            found.setdefault("objectives", {"names": search.pop("objectives")})
        search.pop("callbacks", None)  # they are named again
    if isinstance(train, dict) and "look_steps" in train:
        train.setdefault("validation_steps", train.pop("look_steps"))
    if isinstance(train, dict) and "optimizer" in train:
        name = train.pop("optimizer")
        arguments = found.get(name) if name in ("adamw", "sgd") else {}
        found.setdefault("optimizer", {"name": name, **arguments} if isinstance(arguments, dict) else arguments)
    return {name: section for name, section in found.items() if name not in _RENAMED}


def as_read(config: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """The settings of a run by their names of today; those that 0.1.0 did not have as it worked, with no test part.

    Args:
        config: what stands in `config.yaml`.
        root: the run's folder, for the message.

    Raises:
        StorageError: the run selected on what is a test part now.
    """
    config = _with_names_of_today(config)
    data = config.get("data")
    if not isinstance(data, dict) or "test_fraction" in data:
        return config
    source = str(data.get("source", ""))
    if source.endswith(".npz") and _has_test_part(Path(source)):
        raise StorageError(f"{root}: this run selected on x_test of {source}, which is held out now: {_ADVICE}")
    search = config.get("search")
    more = {"search": {**search, "finalist_rounds": 1}} if isinstance(search, dict) else {}
    return {**config, "data": {**data, "test_fraction": 0.0}, **more}


def refuse_old_trials(path: Path) -> None:
    """Refuse to go on with trials of version 0.1.0 from first weights: today's are the first steps of finalists.

    Args:
        path: of the run's settings.

    Raises:
        StorageError: they are; or the settings cannot be read.
    """
    config = read_yaml(path)
    data, search = config.get("data"), config.get("search")
    if not isinstance(data, dict) or "test_fraction" in data or not isinstance(search, dict):
        return
    if search.get("trial_weights") == "scratch" and search.get("finalist_steps"):
        raise StorageError(
            f"{path.parent}: this run's trials were trained each for itself, and new ones would be the first steps of "
            f"finalists: {_ADVICE}"
        )


def refuse_other_data(root: Path, other: str) -> None:
    """Refuse a run of version 0.1.0 whose pool brings data that are cut differently now.

    Args:
        root: the run's folder.
        other: what differs, as `other_data` tells; empty for nothing.

    Raises:
        StorageError: something does.
    """
    if other:
        raise StorageError(
            f"{root}: the pool's {other} data are not those of this run: {_ADVICE}, or give Data.from_arrays "
            "test_fraction=0, as it was then"
        )


def _has_test_part(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return "x_test.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False  # whoever needs the data says so
