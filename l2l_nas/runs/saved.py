"""What the folder of a run tells: its settings, its result, its best network. Nothing in it is resolved or imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from l2l_nas.cost.closed_form import path_states
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.optimizers.rules import SGD
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import SettingError, StorageError
from l2l_nas.files import read_json, read_yaml
from l2l_nas.plugins import is_own
from l2l_nas.runs.command_line import name_again, resume_command
from l2l_nas.runs.fields import declared, typed, value_of
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.locate import is_builtin, load_problem
from l2l_nas.runs.origin import identity
from l2l_nas.runs.renamed import with_names_of_today
from l2l_nas.runs.section_settings import DataConf, RelayConf
from l2l_nas.runs.settings import SearchConf
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.data import Data, other_data
from l2l_nas.training.problem import Problem

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
    return with_names_of_today(config)


def name_in(config: Any, name: str) -> Any:
    """What a setting names: its value, or, where that has arguments, the name in it."""
    found = value_of(config, name)
    return found.get("name") if isinstance(found, Mapping) else found


def own_pool(config: Any) -> str:
    """The pool of a run, if it is the user's own; empty if it is built in."""
    pool = value_of(config, "space.pool")
    return "" if pool is None or is_builtin(str(pool)) else str(pool)


def names_own(value: object) -> bool:
    """Whether a setting's value, or one in a list of them, is something of the user's own: named, or an object."""
    return any(map(is_own, value if isinstance(value, list) else [value]))


def own_names(config: Any) -> dict[str, Any]:
    """What of a run is the user's own, and is named again when it goes on, by setting.

    Args:
        config: its settings, or what its folder holds of them.
    """
    pool: dict[str, Any] = {"space.pool": own_pool(config)} if own_pool(config) else {}
    return pool | {name: value for name in OWN if names_own(value := name_in(config, name))}


@dataclass(frozen=True)
class SavedRun:
    """A search or a training, by its folder."""

    folder: RunFolder

    @cached_property
    def config(self) -> dict[str, Any]:
        """Its settings; see `read_config`."""
        return read_config(self.folder.config)

    @property
    def command(self) -> str:
        """What made it: search or train."""
        if self.folder.config.exists():
            return "search" if isinstance(self.config.get("search"), dict) else "train"
        return "search" if self.folder.study.exists() or not self.folder.architecture.exists() else "train"

    @property
    def noun(self) -> str:
        """The same in a sentence."""
        return {"search": "search", "train": "training"}[self.command]

    def again(self, named: Mapping[str, Any] | None = None) -> str:
        """The command that goes on with it, with these settings said anew."""
        own = own_names(self.config) if self.folder.config.exists() else {}
        return resume_command(self.command, self.folder.root, {**own, **(named or {})})

    def result(self) -> Any:
        """What is in its `result.json`.

        Raises:
            StorageError: it is damaged, or missing, as the run has not finished.
        """
        path = self.folder.result
        if not path.exists():
            raise StorageError(f"{path}: missing, the {self.noun} has not finished; go on with: {self.again()}")
        return read_json(path)


@dataclass(frozen=True)
class LoadedRun:
    """The best network of a run, read back."""

    problem: Problem
    architecture: Architecture
    server: ParamServer
    result: Mapping[str, Any]
    batch_size: int
    micro_batch: int
    relay: RelayConf


def data_warning(data: Data, result: object, run: Path) -> str:
    """What to tell where data are not those that a run was made with, as far as its result tells; else nothing."""
    recorded = result.get("data") if isinstance(result, dict) else None
    if not isinstance(recorded, dict):
        return ""
    other = other_data(recorded.get("digest"), data.digest)
    parts = [other] * bool(other) + ["test"] * (recorded.get("test_digest") != data.test_digest)
    if not parts:
        return ""
    return f"the {' and '.join(parts)} data are others than those of {run}; figures cannot be compared with its own"


def load_found(run: str, *, pool: str = "", problem: Problem | None = None) -> LoadedRun:
    """Read the best network of a run.

    Args:
        run: the run's folder.
        pool: the pool again if it is the user's own: what stands in a folder is never imported.
        problem: what was searched, instead of its name.

    Raises:
        SettingError: no run given, or the pool must be named.
        StorageError: something is missing or damaged.
    """
    if not run:
        raise SettingError("name the run's folder: run=runs/...")
    folder = RunFolder(Path(run))
    if not folder.root.is_dir():
        raise StorageError(f"{run}: no such folder")
    saved = SavedRun(folder)
    result, config = saved.result(), saved.config
    entry = result.get("best") if isinstance(result, dict) else None
    if isinstance(entry, dict) and entry.get("trained") is False:
        was_stopped = bool(value_of(config, "search.finalists"))  # a callback did, before there was a trained one
        why = "stopped before its finalists were trained" if was_stopped else "this run trained no finalists"
        line = saved.again({} if was_stopped else {"search.finalists": 1})
        raise StorageError(f"{run}: {why}, so that it has no weights; go on with: {line}")
    try:
        space, data, train = config["space"], config["data"], config["train"]
        chosen = pool or str(space["pool"])
        args = dict(space["args"])
        samples = typed(DataConf, data)
        seed = int(config["seed"])
        batch_size, micro_batch = int(train["batch_size"]), int(train["micro_batch"])
        about = config["relay"]
        relay = RelayConf(device=str(about["device"]), slots=int(about["slots"]), threads=int(about["threads"]))
        best = result["best"]
        choices, values = Architecture.from_choices(best["architecture"]).choices, dict(best["values"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, SettingError) as error:
        raise StorageError(f"{folder.config} or {folder.result.name}: damaged ({error}); restore it") from None
    if problem is None and not pool and not is_builtin(chosen):
        raise SettingError(f"{run}: {name_again('pool', 'space.pool', chosen)}")
    problem = problem or load_problem(chosen, args, **asdict(samples))
    # nothing is trained: what the run's optimizer stored is left, and an optimizer of the user's own is not imported
    server = ParamServer(problem.pool, optimizer=SGD(momentum=0.0), seed=seed)
    architecture = problem.pool.architecture(choices)
    needs = path_states(problem.pool, architecture)
    if Checkpoint(folder.best).load(server, needs=needs, weights_only=True) != identity(choices, values):
        raise StorageError(
            f"{folder.best}: not the weights that {folder.result.name} tells of: a {saved.noun} was cut off "
            f"while it wrote them; let it finish with: {saved.again()}"
        )
    return LoadedRun(problem, architecture, server, result, batch_size, micro_batch, relay)
