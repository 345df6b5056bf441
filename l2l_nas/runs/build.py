"""A run's folder: what lies in it, how it is written, and how the best network is read back."""

from __future__ import annotations

import contextlib
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from l2l_nas import __version__
from l2l_nas.cost.closed_form import path_states
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.file_storage import FileStorage
from l2l_nas.eps.optimizers.rules import SGD
from l2l_nas.eps.scale import Clip
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import SettingError, StorageError
from l2l_nas.files import read_json, remove_if_empty, write_atomically, write_json
from l2l_nas.relay.calls import refuse_modes
from l2l_nas.relay.config import Budget
from l2l_nas.relay.device import Device, name_of
from l2l_nas.relay.interface import cut_sizes
from l2l_nas.relay.relay import Relay
from l2l_nas.relay.trace import Trace, regime
from l2l_nas.report.charts.timeline import timeline_sheet
from l2l_nas.report.png import is_matplotlib_installed, png_of
from l2l_nas.runs.command_line import name_again, resume_command
from l2l_nas.runs.fields import typed
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.locate import is_builtin, load_problem
from l2l_nas.runs.saved_config import own_names_in, read_config, value_in
from l2l_nas.runs.section_settings import DataConf, RelayConf
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool
from l2l_nas.training.data import Data, other_data
from l2l_nas.training.fit import Trainer
from l2l_nas.training.problem import Problem


def build_relay(
    server: ParamServer,
    conf: RelayConf,
    *,
    seed: int,
    trace: Trace | None = None,
    sharers: int = 1,
    device: Device | None = None,
) -> Relay:
    """The relay of the settings.

    Args:
        sharers: processes that take their device budget from the same memory, if it is "auto".
        device: another one than the settings name.

    Raises:
        SettingError: a setting that makes no sense, named.
    """
    try:
        relay = Relay(
            server,
            slots=conf.slots,
            update=conf.update,
            clip=Clip(conf.clip, conf.clip_scope) if conf.clip else None,  # type: ignore[arg-type]
            precision=conf.precision,
            stash=conf.stash,
            keep=conf.keep,
            device_budget=parse_budget(conf.budget),
            resident=parse_budget(conf.resident, name="resident"),
            pinned=None if conf.pinned == "none" else conf.pinned,  # type: ignore[arg-type]
            # the files come after the relay (`pool_in_files`), which would see that they make lanes wait
            lanes="threads" if conf.lanes == "auto" and conf.storage == "file" else conf.lanes,
            layers=conf.layers,
            device=device or conf.device,
            seed=seed,
            trace=trace,
            sharers=sharers,
        )
        refuse_modes(relay.device)  # before anything is written
    except SettingError as error:
        named = re.split("[ :=]", str(error))[0] in {entry.name for entry in fields(conf)}
        raise SettingError(f"relay.{error}" if named else str(error)) from None
    return relay


_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def parse_budget(text: str, *, name: str = "budget") -> Budget:
    """Bytes of memory: 4GiB, 800MB, 123456, all, auto, none.

    Args:
        name: of the setting, for messages.

    Raises:
        SettingError: it reads otherwise.
    """
    if text in ("all", "auto", "none"):
        return None if text == "none" else text  # type: ignore[return-value]
    size = parse_bytes(text)
    if size is None:
        raise SettingError(f"relay.{name} must be like 4GiB, or one of all, auto, none; got '{text}'")
    return size


def parse_bytes(text: str) -> int | None:
    """Bytes of a size such as 4GiB, 800MB, 123456; None if it reads otherwise."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?i?B?)", text)
    return int(float(match[1]) * _UNITS[match[2]]) if match is not None and match[2] in _UNITS else None


def decide_memory(relay: Relay, conf: RelayConf, *, samples: int, micro_batch: int) -> RelayConf:
    """Decide what stays on the device; what half of the free memory holds is decided once for a run.

    Sums of repeated layers depend on it, so the settings returned are those to go on with after an interruption.

    Raises:
        SettingError: the device budget is too small.
    """
    memory = relay.memory_plan(cut_sizes(samples, micro_batch))
    if conf.budget == "auto":
        return replace(conf, budget="none", keep=memory.keep, slots=memory.slots)
    return conf


def build_scorer(trainer: Trainer, conf: RelayConf, *, seed: int) -> Trainer:
    """What measures the metrics that are reported: in fp32, as the exported network computes."""
    if conf.precision == "fp32":
        return trainer
    plain = RelayConf(device=conf.device)  # it streams: slots for all that training holds would be there twice
    return replace(trainer, executor=build_relay(trainer.executor.server, plain, seed=seed))


@contextlib.contextmanager
def pool_in_files(server: ParamServer, folder: Path, conf: RelayConf) -> Iterator[None]:
    """Keep a server's states in scratch files of a run's folder meanwhile, if that is asked for."""
    if conf.storage != "file":
        yield
        return
    storage = FileStorage(RunFolder(folder).pool)
    server.move_to(storage)
    try:
        yield
    finally:
        storage.close()
        remove_if_empty(RunFolder(folder).pool)


def write_architecture(folder: RunFolder, pool: LayerPool, architecture: Architecture) -> None:
    """Write the architecture alone, with the names of the positions that it is for.

    Raises:
        StorageError: it could not be written.
    """
    write_json(
        folder.architecture,
        {
            "choices": list(architecture.choices),
            "positions": [position.name for position in pool.positions],
            "digest": architecture.digest,
        },
    )


def write_trace(folder: RunFolder, trace: Trace, console: Console) -> None:
    """What each lane did at the end of a run, for chrome://tracing and as a picture of the last steps."""
    trace.write_chrome(folder.trace)
    console.print(f"trace {folder.trace}: {regime(trace.spans)}", soft_wrap=True)
    if is_matplotlib_installed():
        write_atomically(folder.timeline, png_of(timeline_sheet(trace.spans, last_steps=4)))


def versions() -> dict[str, str]:
    """What the run ran on."""
    packages = {name: version(name) for name in ("torch", "optuna", "hydra-core", "numpy", "scikit-learn")}
    return {"l2l_nas": __version__, "python": platform.python_version(), **packages}


def hardware(device: torch.device) -> str:
    """The device that the run is on, and the system: "cpu (8 cores), Linux x86_64"."""
    name = f"{os.cpu_count()} cores" if device.type == "cpu" else name_of(device)
    return f"{device.type} ({name}), {platform.system()} {platform.machine()}"


# what is said where a user's own data have two parts
NO_TEST = "no test part: no samples were held out, so no figure is of data that the choice did not depend on"


def sizes(data: Data) -> str:
    """How many samples each part has: "1,077 training, 360 validation, 360 test"."""
    test = f", {len(data.test):,} test" if data.test is not None else ""
    return f"{len(data.train):,} training, {len(data.validation):,} validation{test}"


def described(data: Data) -> dict[str, Any]:
    """Which data a result is of: samples of each part, and digests."""
    parts = {"training": data.train, "validation": data.validation, "test": data.test}
    return {
        "samples": {name: len(part) for name, part in parts.items() if part is not None},
        "digest": data.digest,
        "test_digest": data.test_digest,
    }


def identity(choices: Sequence[str], values: Mapping[str, float]) -> dict[str, Any]:
    """What the weights of the best network keep, so that another result file is not taken for theirs."""
    return {"architecture": list(choices), "values": dict(values)}


# Below this, threads cost more than they bring: with a second process on two cores, a step of the default run took
# 32 ms on one thread and 23 to 166 ms on two. One thread also gives the same sums on every machine.
_SMALL_LAYER_BYTES = 256 * 1024
_TORCH_THREADS = torch.get_num_threads()


def num_threads(threads: int, relay: Relay, *, workers: int = 1) -> int:
    """Torch's threads; 0 chooses one for small layers, and for others a worker's share of torch's own choice."""
    is_small = relay.bank.weights_bytes <= _SMALL_LAYER_BYTES
    return threads or (1 if is_small else max(1, _TORCH_THREADS // workers))


def set_threads(threads: int, relay: Relay, *, workers: int = 1) -> None:
    """Set them."""
    torch.set_num_threads(num_threads(threads, relay, workers=workers))


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
    """Which command made it."""
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
        was_stopped = bool(value_in(config, "search.finalists"))  # a callback did, before there was a trained one
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
