"""What a caller of `l2l_nas.search` says: settings by their names, and objects in the place of some."""

from __future__ import annotations

import datetime
import numbers
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any

import torch

from l2l_nas.arguments import check_list, check_path, refuse_class, shown
from l2l_nas.cost.own import named_costs
from l2l_nas.errors import SettingError, did_you_mean
from l2l_nas.plugins import GIVEN, GIVEN_PROBLEM
from l2l_nas.runs.choice_settings import CHOICES
from l2l_nas.runs.fields import changed, entries, fitting, settings, titles
from l2l_nas.runs.renamed import renamed
from l2l_nas.runs.saved import OWN
from l2l_nas.runs.settings import PLACES, SearchConf
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.problem import Problem

# settings that may be given as objects
_OBJECTS = tuple(name.removeprefix("search.") for name in OWN if name not in ("relay.storage", "space.pool"))
# what users of Optuna and of trainers look for
_ELSEWHERE = {
    "n_trials": "trials=", "timeout": 'time="10m"', "n_jobs": "workers=", "pruner": 'early_stop="halving"',
    "study_name": "study=", "load_if_exists": "resume=FOLDER", "show_progress_bar": "progress=",
    "direction": 'objectives=["accuracy"]', "directions": 'objectives=["accuracy", "parameters"]',
    "metric": 'objectives=["accuracy"]', "device": 'relay={"device": "cuda"}', "verbose": "progress=",
    "constraints": "Problem(pool, data, constraints=[...]), or limits={...}",
    "metrics": "Problem(pool, data, metrics={...})",
    "epochs": "finalist_steps=", "max_epochs": "finalist_steps=", "output_dir": "folder=", "random_state": "seed=",
}  # fmt: skip


def parted(named: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is given as objects, and all settings with a mark in the place of each.

    Raises:
        SettingError: costs that are no list.
    """
    if isinstance(named.get("costs"), Mapping):
        named = {**named, "costs": named_costs(named["costs"])}
    own = {name: named[name] for name in _OBJECTS if not isinstance(named.get(name), str | Mapping | NoneType)}
    for name, given in own.items():
        if name != "schedule":  # a class makes one of a peak and the steps
            refuse_class(name, given)
    marks: dict[str, Any] = dict.fromkeys(own, GIVEN)
    if "costs" in own:
        own["costs"] = check_list("search.costs", own["costs"], of=object, wanted="functions or names")
        marks["costs"] = [one if isinstance(one, str) else GIVEN for one in own["costs"]]
    relay = named.get("relay")
    if isinstance(relay, Mapping) and not isinstance(relay.get("storage", ""), str):
        own["storage"], marks["relay"] = relay["storage"], {**relay, "storage": GIVEN}
    return own, {**named, **marks}


def conf_of(problem: Problem | str, named: Mapping[str, Any]) -> tuple[SearchConf, frozenset[str]]:
    """The settings that a call names, all of the right name and type; and the dotted names of those that it gives.

    Raises:
        SettingError: one is not, or it does not go with the problem.
    """
    if isinstance(problem, Problem):
        for name in ("data", "space"):
            if named.get(name):
                raise SettingError(f"search() takes {name}= with the name of a space; a Problem has its own")
    known = {name: default for name, default, _ in settings(SearchConf)}
    sections = {name for name, _ in titles(SearchConf)} - {"search", "objectives"}
    values: dict[str, Any] = {}
    for name, value in named.items():
        if name in sections:
            if not isinstance(value, Mapping):
                raise SettingError(f"{name} must be a dict of settings, got {value!r}")
            values |= {f"{name}.{leaf}": one for leaf, one in value.items()}
        elif name == "objectives":
            values["objectives.names"] = [value] if isinstance(value, str) else value
        elif name in CHOICES:
            values[name] = {"name": value} if isinstance(value, str) else value
        elif name in PLACES:
            values[name] = "" if value is None or value == "" else str(check_path(name, value))
        elif name == "enqueue":
            found = check_list("search.enqueue", value, of=object, wanted="architectures")
            values["search.enqueue"] = [_spelled(one) for one in found]
        elif name in known and "." not in name and name != "callbacks":
            values[name] = value
        elif f"search.{name}" in known:
            values[f"search.{name}"] = value
        else:
            raise SettingError(f"search() has no setting '{name}'{_hint(name, known)}")
    if "space.pool" in values:
        raise SettingError("search() takes the name of a space first, and space= for its args")
    values = {name: _fitting(name, value, known) for name, value in values.items()}
    given = entries(values).keys() - ({"folder"} if not values.get("folder") else set())
    values["folder"] = values.get("folder") or f"runs/{datetime.datetime.now():%Y-%m-%d_%H-%M-%S.%f}"
    values["space.pool"] = problem if isinstance(problem, str) else GIVEN_PROBLEM
    return changed(SearchConf(), values), frozenset({*given, "space.pool"})


def _spelled(architecture: object) -> str:
    return architecture if isinstance(architecture, str) else str(Architecture.from_choices(architecture))


def _hint(name: str, known: Mapping[str, Any]) -> str:
    """Where a setting that is none of search's own is found."""
    today = renamed(name) or renamed(f"search.{name}")
    if today:
        return f"; write {today}="
    if name in _ELSEWHERE:
        return f"; write {_ELSEWHERE[name]}"
    within = [section for section, dot, leaf in (one.rpartition(".") for one in known) if dot and leaf == name]
    if within:
        return "; write " + " or ".join(f'{section}={{"{name}": ...}}' for section in within)
    for group, kinds in CHOICES.items():
        for kind, schema in kinds.items():
            if name in {one for one, _, _ in settings(schema)}:
                return f'; write {group}={{"name": "{kind}", "{name}": ...}}'
    return did_you_mean(name, sorted({one.removeprefix("search.").partition(".")[0] for one in known}))


def _fitting(name: str, value: Any, known: Mapping[str, Any]) -> Any:
    """A value of the setting's type, of plain Python.

    Raises:
        SettingError: there is no such setting, or it is of another type.
    """
    if name not in known:
        hint = f"; write {renamed(name)}=" if renamed(name) else did_you_mean(name, known)
        raise SettingError(f"search() has no setting '{name}'{hint}")
    default, name = known[name], name.removesuffix(".names")  # objectives, as they are written
    return fitting(name, _plain(name, value), default)


def _plain(setting: str, value: Any) -> Any:
    """Numbers of numpy and the like as Python's, tuples as lists, paths and devices as text; the rest as it is."""
    if isinstance(value, Mapping):
        return {str(name): _plain(setting, one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(setting, one) for one in value]
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Path | torch.device):
        return str(value)
    raise SettingError(f"{setting} takes text, a number, a list or a dict, got {shown(value)}")
