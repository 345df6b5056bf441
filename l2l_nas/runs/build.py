"""Builds the relay of the settings: its memory, and what that holds, its threads, and where its states lie."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import torch

from l2l_nas.eps.file_storage import FileStorage
from l2l_nas.eps.scale import Clip
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import SettingError, StorageError
from l2l_nas.files import remove_if_empty
from l2l_nas.relay.calls import refuse_modes
from l2l_nas.relay.config import Budget
from l2l_nas.relay.device import Device
from l2l_nas.relay.interface import cut_sizes
from l2l_nas.relay.relay import Relay
from l2l_nas.relay.trace import Trace
from l2l_nas.runs.folder import RunFolder, locked, tidy
from l2l_nas.runs.section_settings import RelayConf
from l2l_nas.training.fit import Trainer
from l2l_nas.training.lead import Lead, Solo


def build_relay(
    server: ParamServer,
    conf: RelayConf,
    *,
    seed: int,
    trace: Trace | None = None,
    sharers: int = 1,
    device: Device | None = None,
    chunks: int | None = None,
) -> Relay:
    """The relay of the settings.

    Args:
        sharers: processes that take their device budget from the same memory, if it is "auto".
        device: another one than the settings name.
        chunks: see `ParallelConfig`.

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
            resident=None if conf.resident == "none" else conf.resident,  # type: ignore[arg-type]
            # the files come after the relay (`at_work`), which would see that they make lanes wait
            lanes="threads" if conf.lanes == "auto" and conf.storage == "file" else conf.lanes,
            layers=conf.layers,
            device=device or conf.device,
            seed=seed,
            trace=trace,
            sharers=sharers,
            chunks=chunks,
        )
        refuse_modes(relay.device)  # before anything is written
    except SettingError as error:
        if re.search(r"^chunks |^\d+ chunks ", str(error)):
            colon = "" if str(error).startswith("chunks") else "chunks: "
            raise SettingError(f"parallel.{colon}{error}") from None
        named = re.split("[ :=]", str(error))[0] in {entry.name for entry in fields(conf)}
        raise SettingError(f"relay.{error}" if named else str(error)) from None
    return relay


_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "KB": 10**3, "MB": 10**6, "GB": 10**9}


def parse_budget(text: str) -> Budget:
    """Bytes of memory: 4GiB, 800MB, 123456, all, auto, none.

    Raises:
        SettingError: it reads otherwise.
    """
    if text in ("all", "auto", "none"):
        return None if text == "none" else text  # type: ignore[return-value]
    size = parse_bytes(text)
    if size is None:
        raise SettingError(f"relay.budget must be like 4GiB, or one of all, auto, none; got '{text}'")
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
    memory = relay.settle_memory(cut_sizes(samples, micro_batch))
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
def at_work(folder: RunFolder, server: ParamServer, conf: RelayConf, *, lead: Lead | None = None) -> Iterator[None]:
    """Alone in a run's folder, rid of what killed processes left there; with a server's states in files, if asked for.

    A folder that nothing was written into is removed before others may have it: whoever is refused removes none.

    Args:
        lead: who does the work.

    Raises:
        StorageError: another process is at work there, or one that shares the work does not see the folder.
    """
    lead = lead or Solo()
    with locked(folder.root), contextlib.ExitStack() as left:
        left.callback(remove_if_empty, folder.root)
        folder = RunFolder(folder.root)
        folder.refuse_links()
        tidy(folder)
        lead.do("see a folder", (folder.root.absolute(),), see_folder)
        if conf.storage == "file":
            lead.do("keep states in files", (folder.pool.absolute(),), lambda pool: keep_in_files(server, pool, left))
        yield


def see_folder(folder: Path) -> None:
    """Refuse a folder that is not there for this process. Raises StorageError."""
    if not folder.is_dir():
        raise StorageError(
            f"does not see {folder}: weights are read there; choose a folder on a file system that all ranks share"
        )


def keep_in_files(server: ParamServer, folder: Path, left: contextlib.ExitStack) -> None:
    """Keep a server's states in files of a folder, until this is left."""
    left.callback(remove_if_empty, folder)
    storage = FileStorage(folder, sharers=server.world.size)
    server.move_to(left.enter_context(contextlib.closing(storage)))


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
