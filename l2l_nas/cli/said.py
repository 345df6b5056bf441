"""Which settings somebody asked for, as Hydra tells it."""

from __future__ import annotations

from typing import Any

from hydra.conf import HydraConf

from l2l_nas.runs.changes import PLACES
from l2l_nas.runs.groups import arguments
from l2l_nas.runs.inherit import given_names
from l2l_nas.runs.settings import CHOICES, settings, value_of


def said_names(conf: Any, about: HydraConf) -> frozenset[str]:
    """Names of the settings that somebody asked for: in overrides, or in a config file, where it is not the default."""
    changed: set[str] = set()
    for name, default, _ in settings(type(conf)):
        value = value_of(conf, name)
        if name in CHOICES:
            changed |= _said_of(name, value, default)
        elif isinstance(value, dict):
            changed |= {f"{name}.{key}" for key in value}
        elif name not in PLACES and value != default:
            changed.add(name)
    given = given_names(about.overrides.task)
    return given | changed | ({"folder"} if "hydra.run.dir" in given_names(about.overrides.hydra) else set())


def _said_of(group: str, value: dict[str, Any], default: dict[str, Any]) -> set[str]:
    """Of a choice: itself, where it is another one, and arguments that are not as they come."""
    name = value.get("name", default["name"])
    known = arguments(group, name) if name in CHOICES[group] else {}
    said = {f"{group}.{key}" for key, one in value.items() if key != "name" and one != known.get(key)}
    return said | ({group} if name != default["name"] else set())
