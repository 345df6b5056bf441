"""Starts the worker processes of a search (`search.workers`); what each of them runs is in `worker.py`."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from l2l_nas.eps.identity import fingerprint
from l2l_nas.eps.range_locks import refuse_without_locks
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.shared_storage import SharedStorage
from l2l_nas.errors import SettingError
from l2l_nas.nas.callback import Callback
from l2l_nas.nas.evaluation.worker_pool import Message, WorkerPool
from l2l_nas.plugins import is_own
from l2l_nas.runs.progress import Display
from l2l_nas.runs.settings import SearchConf
from l2l_nas.training.problem import Problem

# run by name in a process of its own, as it imports what imports this
_WORKER = "l2l_nas.runs.worker"


def check_workers(conf: SearchConf, *, is_named: bool = True) -> None:
    """Refuse settings that do not go with several processes.

    Args:
        is_named: whether the problem is one that another process can build by its name.

    Raises:
        SettingError: named.
    """
    if conf.search.workers == 1:
        return
    if not is_named:
        raise SettingError(
            f"search.workers={conf.search.workers}: worker processes build the problem by its name, with its "
            "costs, optimizer and schedule; name them instead of giving objects: "
            "search('FILE.py:FUNCTION', workers=...), or take workers=1"
        )
    refuse_without_locks()
    if conf.relay.storage != "ram":
        raise SettingError(
            f"relay.storage={conf.relay.storage} keeps states in one process's memory, where other workers would not "
            "see an update; use search.workers=1, or relay.storage=ram"
        )
    if conf.relay.trace:
        raise SettingError("relay.trace tells of one process's lanes; use search.workers=1, or relay.trace=false")


@contextlib.contextmanager
def worker_processes(conf: SearchConf, server: ParamServer) -> Iterator[WorkerPool | None]:
    """The workers of a run, whose states are in shared memory meanwhile; None where this process does it all."""
    count = conf.search.workers
    if count == 1:
        yield None
        return
    storage = SharedStorage(server.pool, optimizer=server.optimizer, workers=count + 1)
    server.move_to(storage)

    def hello(worker: int, process: int) -> Message:
        # it is divided already; a worker proposes nothing, and sees nothing go by
        section = dataclasses.replace(conf.search, time="")
        if is_own(section.early_stop):  # the rule decides here; a worker has to know the rungs alone
            section = dataclasses.replace(section, early_stop="halving", keep_fraction=0.5)
        sent = dataclasses.replace(
            conf, search=section, sampler={"name": "random"}, strategy={"name": "default"}, callbacks={}
        )
        return {
            "op": "hello",
            "conf": dataclasses.asdict(sent),
            "place": dataclasses.asdict(storage.place(worker, process)),
        }

    try:
        handles = (storage.place(0, 0).handle,)
        with WorkerPool(_WORKER, size=count, hello=hello, handles=handles, recover=storage.recover) as workers:
            yield workers
    finally:
        storage.close()


@dataclasses.dataclass(frozen=True)
class ShownWorkers:
    """What becomes of workers is shown; all that see the search may stop it."""

    display: Display
    seen: Callback

    def poll(self) -> None:
        """See `WorkerWatch`."""
        self.seen.poll()

    def lost(self, worker: int, *, ended: str, task: str, again: bool) -> None:
        """See `WorkerWatch`."""
        self.display.lost(worker, ended=ended, task=task, again=again)


def identity(problem: Problem) -> Message:
    """What a worker's pool and data must have in common with those here."""
    data = problem.data
    return {"pool": fingerprint(problem.pool), "data set": data.digest + data.test_digest}
