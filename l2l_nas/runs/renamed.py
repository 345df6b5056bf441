"""Names that settings had before: who writes one is told what it is called now; in a folder it is read as that."""

from __future__ import annotations

import re
from typing import Any

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
    "search.introduce": "search.catch_up_fraction",
    "relay.compile": "relay.layers",
}


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


def with_names_of_today(config: dict[str, Any]) -> dict[str, Any]:
    """Settings in a folder of this version, one of which had another name before its release."""
    search = config.get("search")
    if isinstance(search, dict) and "introduce" in search:
        search.setdefault("catch_up_fraction", search.pop("introduce"))
    return config
