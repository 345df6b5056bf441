"""Which run of a sweep is in which folder: a run is known by its overrides, never by its place in the command.

A sweep that goes on may have its values in another order, fewer of them, or more: each run is found where it was begun,
and a new combination takes the next number. `.hydra/overrides.yaml` in a run's folder, written before all else there,
tells what it was begun with.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, open_dict, read_write

from l2l_nas.errors import SettingError, StorageError
from l2l_nas.files import read_yaml_list
from l2l_nas.runs.fields import value_of
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.saved import read_config
from l2l_nas.runs.settings import PLACES, rule_of
from l2l_nas.runs.sweep_words import SWEEP_CONFIG

# what Hydra composes each run with, where numbers of runs and of folders differ
_NUMBERS = "hydra.callbacks.sweep.numbers"

Values = Mapping[str, Any]


def begun_runs(root: Path) -> dict[int, list[str]]:
    """The overrides of each run that was begun below a sweep's folder, by its number.

    Raises:
        StorageError: those of one are damaged, or missing beside its settings.
    """
    numbers = sorted(int(path.name) for path in root.glob("[0-9]*") if path.name.isdecimal() and path.is_dir())
    found: dict[int, list[str]] = {}
    for number in numbers:
        folder = RunFolder(root / str(number))
        path = folder.hydra / "overrides.yaml"
        if path.exists():
            found[number] = [str(word) for word in read_yaml_list(path)]
            _values_of(found[number], path)
        elif folder.config.exists() and folder.is_begun:
            raise StorageError(
                f"{path}: missing, and it tells which run of the sweep this is; restore it, or move {folder.root}"
            )
    return found


def folders_of(root: Path, runs: Sequence[Sequence[str]], swept: Collection[str]) -> list[int]:
    """The number of each run's folder: where it was begun, or a number that no other run has.

    Args:
        root: the sweep's folder.
        runs: the overrides of each run.
        swept: names of what they vary.

    Raises:
        SettingError: a run was begun with a setting that these do not name, or without one that these vary.
        StorageError: see `begun_runs`.
    """
    begun = {number: _values_of(words, root) for number, words in begun_runs(root).items()}
    wanted = [_values_of(words, root) for words in runs]
    names = {*swept, *_swept_before(root), *_differing(list(begun.values()))}
    for number, values in begun.items():
        for name in sorted(names):
            for these, those in ((values, "began with"), (wanted[0], "began without")):
                if name in these and not (name in values and name in wanted[0]):
                    raise SettingError(
                        f"{root / str(number)} {those} '{name}': a sweep goes on over the same settings, with other or "
                        "more values if you like; or choose another folder"
                    )
    free = (number for number in itertools.count() if number not in begun and _is_free(root / str(number)))
    numbers: list[int] = []
    for values in wanted:
        same = [number for number, one in begun.items() if all(one[name] == values[name] for name in names)]
        left = [number for number in same if number not in numbers]  # one that was asked for twice is two runs
        numbers.append(left[0] if left else next(free))
    return numbers


def place(config: DictConfig, numbers: Sequence[int]) -> None:
    """Have Hydra compose each run with the number of its folder.

    Args:
        config: of the sweep.
        numbers: of the folders, in the order of the runs.
    """
    if list(numbers) == list(range(len(numbers))):
        return
    words = [
        f"+{_NUMBERS}=[{','.join(map(str, numbers))}]",
        f"hydra.sweep.subdir='${{oc.select:{_NUMBERS}.${{hydra.job.num}}}}'",  # a key must be a text, and is one there
    ]
    with read_write(config), open_dict(config):
        config.hydra.overrides.hydra.extend(words)


def _values_of(words: Sequence[str], where: Path) -> dict[str, Any]:
    try:
        overrides = OverridesParser.create().parse_overrides(list(words))
        return {override.key_or_group: override.value() for override in overrides}
    except HydraException as error:
        raise StorageError(f"{where}: damaged, not the overrides of a run ({error}); restore it") from None


def _swept_before(root: Path) -> set[str]:
    """Names of what the sweep varied when it went on last, as far as its settings tell."""
    if not (root / SWEEP_CONFIG).is_file():
        return set()
    words = value_of(read_config(root / SWEEP_CONFIG), "hydra.overrides.task")
    try:
        overrides = OverridesParser.create().parse_overrides([str(word) for word in words or ()])
    except (HydraException, TypeError):
        return set()  # damaged, as taking its words over tells
    return {override.key_or_group for override in overrides if override.is_sweep_override()} - PLACES


def _differing(runs: Sequence[Values]) -> set[str]:
    """Names that not all runs have one value for; what may differ within a sweep is left out."""
    absent = object()
    names = {name for values in runs for name in values}
    return {name for name in names if len({repr(one.get(name, absent)) for one in runs}) > 1 and _counts(name)}


def _counts(name: str) -> bool:
    if name == "relay":  # a group, whose choices may differ in anything of it
        return True
    try:
        rule = rule_of(name.replace("/", "."))
    except KeyError:
        return True
    return rule.stays or not (rule.is_free or name.startswith(("search.", "train.")))


def _is_free(folder: Path) -> bool:
    """Whether a run may begin there: what a killed one left, and files of the user's, are in nobody's way."""
    return not RunFolder(folder).is_begun or not RunFolder(folder).holds_run
