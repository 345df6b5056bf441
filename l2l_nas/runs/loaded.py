"""The best network of a run, read back from its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from l2l_nas.cost.closed_form import path_states
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.optimizers.rules import SGD
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import SettingError, StorageError
from l2l_nas.files import read_json
from l2l_nas.runs.command_line import name_again, resume_command
from l2l_nas.runs.fields import typed, value_of
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.locate import is_builtin, load_problem
from l2l_nas.runs.origin import identity
from l2l_nas.runs.saved_config import own_names_in, read_config
from l2l_nas.runs.section_settings import DataConf, RelayConf
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.data import Data, other_data
from l2l_nas.training.problem import Problem


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


_NOUNS = {"search": "search", "train": "training"}


def _command_of(folder: RunFolder) -> str:
    if folder.config.exists():
        return "search" if "search" in read_config(folder.config) else "train"
    return "search" if folder.study.exists() or not folder.architecture.exists() else "train"


def read_result(folder: RunFolder) -> Any:
    """What is in a run's `result.json`.

    Raises:
        StorageError: it is damaged, or missing, as the run has not finished.
    """
    if not folder.result.exists():
        command = _command_of(folder)
        line = resume_command(command, folder.root, own_names_in(folder.config))
        raise StorageError(f"{folder.result}: missing, the {_NOUNS[command]} has not finished; go on with: {line}")
    return read_json(folder.result)


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
    command, own = _command_of(folder), own_names_in(folder.config)
    result, config = read_result(folder), read_config(folder.config)
    entry = result.get("best") if isinstance(result, dict) else None
    if isinstance(entry, dict) and entry.get("trained") is False:
        was_stopped = bool(value_of(config, "search.finalists"))  # a callback did, before there was a trained one
        why = "stopped before its finalists were trained" if was_stopped else "this run trained no finalists"
        line = resume_command(command, run, own if was_stopped else {**own, "search.finalists": 1})
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
            f"{folder.best}: not the weights that {folder.result.name} tells of: a {_NOUNS[command]} was cut off "
            f"while it wrote them; let it finish with: {resume_command(command, run, own)}"
        )
    return LoadedRun(problem, architecture, server, result, batch_size, micro_batch, relay)
