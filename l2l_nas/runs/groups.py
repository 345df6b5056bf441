"""What is chosen by name: the config groups of each command, the choices there are, and their arguments, checked.

Nothing heavy is imported here: `--help` lists groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from l2l_nas.errors import SettingError, did_you_mean
from l2l_nas.plugins import is_own
from l2l_nas.runs.choice_settings import CHOICES
from l2l_nas.runs.fields import check_value, declared, entries, fitting, settings, value_of

# what each is, its default, and what may be named besides the choices
ABOUT: Mapping[str, tuple[str, str, str]] = {
    "space": ("What is searched", "image_blocks", "FILE.py:FUNCTION"),
    "data": ("What is learned, unless the pool brings its own data", "cluttered_digits", "FILE.npz"),
    "objectives": ("What is optimised", "accuracy", "[accuracy,flops]"),
    "sampler": ("What proposes trials", "gp_hamming", "optuna.samplers.NAME or FILE.py:NAME"),
    "strategy": ("The phases of a search", "default", "FILE.py:NAME"),
    "optimizer": ("What updates weights", "adamw", "FILE.py:NAME"),
    "schedule": ("The learning rate of each step", "cosine", "FILE.py:NAME"),
    "executor": ("What runs trials", "inline", "FILE.py:NAME"),
    "relay": ("The device side", "default", ""),
    "parallel": ("Ranks that share each step, started by torchrun", "default", ""),
    "callbacks": ("Hooks called during a run", "none", "[FILE.py:NAME]"),
    "experiment": ("Settings for one purpose; your own with --config-dir DIR", "", "DIR/experiment/*.yaml"),
}
GROUPS: Mapping[str, tuple[str, ...]] = {
    "search": tuple(ABOUT),
    "train": ("space", "data", "optimizer", "schedule", "relay", "parallel", "callbacks"),
    "plan": ("space", "data", "optimizer", "relay"),
}
# the setting of a group that names something of the user's own
NAMES: Mapping[str, str] = {"space": "pool", "data": "source", **dict.fromkeys(CHOICES, "name")}

_PACKAGE = Path(__file__).resolve().parent.parent


def shipped(name: str) -> Path:
    """The folder `conf` or `search_spaces`: inside the package in a wheel, beside it in a checkout."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def choices(group: str) -> tuple[str, ...]:
    """Names of what comes with the program, the default first."""
    default = ABOUT[group][1]
    found = CHOICES.get(group, ()) or sorted(path.stem for path in (shipped("conf") / group).glob("*.yaml"))
    return tuple(name for name in dict.fromkeys((default, *found)) if name)


def arguments(group: str, name: str) -> dict[str, Any]:
    """Arguments of a choice, with their defaults."""
    return {key: default for key, default, _ in settings(CHOICES[group][name])}


def flat(schema: type, conf: Any) -> dict[str, Any]:
    """All settings by dotted name; of one that is a dict, each entry; of a choice its name, and each argument.

    Args:
        conf: settings, as a dataclass or as a file holds them. What it does not have is as by default: a version that
            did not know it worked so.
    """
    found: dict[str, Any] = {}
    for name, default, _ in settings(schema):
        value = value_of(conf, name)
        value = default if value is None else value
        if not isinstance(value, Mapping):
            found[name] = value
            continue
        if name in CHOICES:
            found[name] = chosen = value.get("name", next(iter(CHOICES[name])))
            known = arguments(name, chosen) if isinstance(chosen, str) and chosen in CHOICES[name] else {}
            value = {key: one for key, one in {**known, **value}.items() if key != "name"}
        found |= entries(value, f"{name}.")
    return found


def deviating(schema: type, conf: Any) -> dict[str, tuple[Any, Any]]:
    """Value and default of each setting that is not as it comes, by the names of `flat`; None: it has no default."""
    found = flat(schema, conf)
    default = flat(schema, {group: {"name": found[group]} for group in CHOICES if group in found})
    default |= {group: next(iter(known)) for group, known in CHOICES.items()}
    return {name: (value, default.get(name)) for name, value in found.items() if value != default.get(name)}


def completed(conf: Any) -> Any:
    """Settings in which every choice has all of its arguments.

    Args:
        conf: a dataclass of `settings.py`.

    Raises:
        SettingError: there is no such choice, it does not take an argument, or not such a value.
    """
    return replace(
        conf, **{group: _completed(group, getattr(conf, group)) for group in CHOICES if hasattr(conf, group)}
    )


def _completed(group: str, given: Mapping[str, Any]) -> dict[str, Any]:
    name = given.get("name", next(iter(CHOICES[group])))
    if is_own(name):
        return dict(given)  # its arguments are checked against what it takes
    if not isinstance(name, str) or name not in CHOICES[group]:
        raise SettingError(f"no {group} '{name}'{did_you_mean(str(name), CHOICES[group])}")
    found = {"name": name, **arguments(group, name)}
    declares = {one.name: one for one in declared(CHOICES[group][name], f"{group}.")}
    for key, value in given.items():
        if key == "name":
            continue
        if key not in found:
            hint = did_you_mean(key, [one for one in found if one != "name"]) if len(found) > 1 else ", and no other"
            raise SettingError(f"{group}={name} takes no '{key}'{hint}")
        one = declares[f"{group}.{key}"]
        found[key] = fitting(one, value)
        check_value(one, found[key])
    return found
