"""Reads which architecture to train, and where its first weights are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l2l_nas.errors import SettingError, SpaceError, StorageError, did_you_mean
from l2l_nas.files import read_json
from l2l_nas.runs.folder import RunFolder
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool

SCRATCH = "scratch"
ORIGINAL = "original"  # as an architecture: the first candidate of each position
_OF_A_RUN = {"pool": "weights", "best": "best"}  # sources by name, and their folders in the run


@dataclass(frozen=True)
class ChosenArchitecture:
    """An architecture as it was read.

    Args:
        source: the file it is from.
        choices: candidate names; None: those that the pool names first.
        positions: names of the positions they are for; None where the file does not say.
    """

    source: Path
    choices: tuple[str, ...] | None
    positions: tuple[str, ...] | None = None

    def of(self, pool: LayerPool) -> Architecture:
        """The architecture in a pool.

        Raises:
            SettingError: it is not one of this pool, or runs no layer.
        """
        names = tuple(position.name for position in pool.positions)
        if self.positions is not None and self.positions != names:
            differing = [f"'{a}' is '{b}'" for a, b in zip(self.positions, names, strict=False) if a != b][:1]
            why = differing or [f"{len(self.positions)} positions, there are {len(names)}"]
            raise SettingError(f"{self.source}: made for another search space ({why[0]} here); {_ADVICE}")
        try:
            architecture = pool.original if self.choices is None else pool.architecture(self.choices)
        except SpaceError as error:
            raise SettingError(f"{self.source}: not an architecture of this search space: {error}; {_ADVICE}") from None
        if not pool.path(architecture):
            raise SettingError(f"{self.source}: the architecture has no layers: every position is skipped")
        return architecture


def read_enqueued(named: Sequence[str], pool: LayerPool, *, is_given: bool) -> list[Architecture]:
    """The architectures of `search.enqueue`.

    Args:
        named: each a file as `read_choice` takes it, "original", or the candidates as `str(architecture)` gives them.
        pool: whose they are.
        is_given: whether it was given explicitly now. Of those that a run's folder tells, some may have left the pool.

    Raises:
        SettingError, StorageError: one is said that is none of this pool.
    """
    found = []
    for one in named:
        try:
            found.append(_enqueued(one).of(pool))
        except (SettingError, StorageError):
            if is_given:
                raise
    return found


def _enqueued(named: str) -> ChosenArchitecture:
    if named == ORIGINAL or named.endswith(".json"):
        return read_choice("", named, trial=-1)
    return ChosenArchitecture(Path("search.enqueue"), tuple(name.strip() for name in named.split(">")))


_ADVICE = "name the space it is from by space.pool= and space.args."


def read_choice(run: str, architecture: str, *, trial: int) -> ChosenArchitecture:
    """Read an architecture.

    Args:
        run: a run's folder, whose best it is where nothing else is said; or empty.
        architecture: an `architecture.json` or `result.json`; "original", the first candidate of each position; or
            empty.
        trial: number of a trial of the run; -1, its best.

    Raises:
        SettingError: nothing is named, or two things, or a trial without a run.
        StorageError: a file is missing, damaged, or something else; there is no such trial.
    """
    if trial < -1:
        raise SettingError(f"trial must be at least -1, the best, got {trial}")
    if not run and not architecture:
        raise SettingError(
            "name what to train: run=runs/..., its best; architecture=FILE.json; or architecture=original, the first "
            "candidate of each position"
        )
    if architecture == ORIGINAL and not run and trial < 0:
        return ChosenArchitecture(Path(ORIGINAL), None)
    if architecture and Path(architecture).is_dir():
        raise SettingError(f"architecture={architecture} is a folder; the best of a run is named run={architecture}")
    folder = RunFolder(Path(run))
    if trial >= 0:
        from l2l_nas.nas.study.reading import choices_of_trial  # with all of Optuna: only where it is needed

        if architecture or not run:
            raise SettingError(f"trial={trial} is one of a search: name that by run=, and no architecture")
        return ChosenArchitecture(folder.study, choices_of_trial(folder.study, trial))
    if run and not folder.root.is_dir():
        raise StorageError(f"run={run}: no such folder")
    if architecture:
        return _read(Path(architecture))
    path = folder.architecture if folder.architecture.exists() else folder.result
    if not path.exists():
        raise StorageError(f"{run}: holds no architecture.json; a search writes it when it has finished")
    return _read(path)


def run_of(path: Path) -> RunFolder | None:
    """The run that a file or folder is in, if any: it is the run's own folder, or lies right in it."""
    for root in (path, path.parent):
        folder = RunFolder(root)
        if folder.config.is_file() and any(part.exists() for part in (folder.study, folder.weights, folder.result)):
            return folder
    return None


def is_architecture(path: Path) -> bool:
    """Whether a file is one that `write_architecture` wrote."""
    try:
        return _read(path).positions is not None
    except StorageError:
        return False


def _read(path: Path) -> ChosenArchitecture:
    content: Any = read_json(path)
    positions = None
    try:
        if "best" in content:
            choices = content["best"]["architecture"]
        else:
            choices = content["choices"]
            positions = content.get("positions")
        architecture = Architecture.from_choices(choices)
        if positions is not None:
            positions = Architecture.from_choices(positions).choices
    except (KeyError, TypeError, SpaceError, AttributeError):
        raise StorageError(
            f'{path}: not an architecture; expected {{"choices": [...]}} as in architecture.json, or a result.json'
        ) from None
    return ChosenArchitecture(path, architecture.choices, positions)


def weights_folder(given: str, *, run: RunFolder | None) -> Path | None:
    """The folder of the weights to begin with; None to begin from the seed.

    Args:
        given: what `weights` says.
        run: the run that the architecture is from.

    Raises:
        SettingError: no such source.
        StorageError: there are no weights.
    """
    if given == SCRATCH:
        return None
    if given in _OF_A_RUN:
        if run is None:
            raise SettingError(f"weights={given}: of which run? Name it by run=, or name the weights' folder")
        folder = run.root / _OF_A_RUN[given]
    else:
        folder = Path(given)
        if not folder.exists() and folder.name == given:
            raise SettingError(
                f"weights: no '{given}'{did_you_mean(given, (SCRATCH, *_OF_A_RUN))}, or name a folder of weights"
            )
    if not (folder / "manifest.json").is_file():
        raise StorageError(f"{folder}: holds no weights; in a run they are in weights/ and best/")
    return folder
