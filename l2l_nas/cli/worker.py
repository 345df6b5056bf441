"""Worker processes of a search (`search.workers`): who starts them, and what each of them runs.

A worker builds the same run from the same settings, its pool of layers among them: the user's own file is imported
there too. Only its states are not its own: they are in memory that all of them share.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from omegaconf import OmegaConf
from rich.console import Console

from l2l_nas.cli.runs import set_threads
from l2l_nas.cli.schema import SearchConf
from l2l_nas.eps.layout import fingerprint
from l2l_nas.eps.range_locks import refuse_without_locks
from l2l_nas.eps.shared_storage import Place, SharedStorage, as_json
from l2l_nas.errors import SettingError
from l2l_nas.search.study import quiet_optuna
from l2l_nas.search.team import Message, Team
from l2l_nas.search.trials import Evaluator
from l2l_nas.search.worker import Inbox, Worker, describe
from l2l_nas.training.problem import Problem

if TYPE_CHECKING:
    from l2l_nas.cli.search import SearchRun


def check_workers(conf: SearchConf) -> None:
    """Refuse settings that do not go with several processes.

    Raises:
        SettingError: named.
    """
    if conf.search.workers < 1:
        raise SettingError(f"search.workers must be at least 1, got {conf.search.workers}")
    if conf.search.workers == 1:
        return
    refuse_without_locks()
    if conf.relay.storage == "file":
        raise SettingError(
            "relay.storage=file keeps frames of its files in one process's memory, where other workers would not see "
            "an update; use search.workers=1, or relay.storage=ram"
        )
    if conf.relay.trace:
        raise SettingError("relay.trace tells of one process's lanes; use search.workers=1, or relay.trace=false")


@contextlib.contextmanager
def hired(run: SearchRun) -> Iterator[Team | None]:
    """The workers of a run, whose states are in shared memory meanwhile; None where this process does it all."""
    conf = run.conf
    count = conf.search.workers
    if count == 1:
        yield None
        return
    server = run.relay.server
    storage = SharedStorage(server.pool, num_moments=server.optimizer.num_moments, seats=count + 1)
    server.storage = storage

    def hello(seat: int, process: int) -> Message:
        return {"op": "hello", "conf": dataclasses.asdict(conf), "place": as_json(storage.place(seat, process))}

    try:
        handles = (storage.place(0, 0).handle,)
        with Team(__name__, size=count, hello=hello, handles=handles, recover=storage.recover) as team:
            yield team
    finally:
        storage.close()


def identity(problem: Problem) -> Message:
    """What a worker's pool and data must have in common with those here."""
    return {"pool": fingerprint(problem.pool), "data set": problem.data.digest}


def main(handle: int) -> None:
    """What a worker process runs.

    Args:
        handle: the file descriptor of its connection.
    """
    inbox = Inbox(handle)
    try:
        worker, ready = _build(inbox)
    except Exception as error:
        inbox.answer(describe(error))
        inbox.next()  # until the other side hangs up
        return
    inbox.answer({"event": "ready", **ready})
    worker.serve()


def _build(inbox: Inbox) -> tuple[Worker, Message]:
    from l2l_nas.cli.search import SearchRun  # where this module is imported

    quiet_optuna()
    hello = inbox.next()
    conf: SearchConf = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(SearchConf), hello["conf"]))  # type: ignore[assignment]
    run = SearchRun(conf, Console(quiet=True), resume_by=conf.folder)
    set_threads(conf.relay.threads, run.relay, workers=conf.search.workers)
    server = run.relay.server
    place = Place(**hello["place"])
    server.storage = SharedStorage(server.pool, num_moments=server.optimizer.num_moments, place=place)
    evaluator = Evaluator(
        run.relay,
        run.trainer,
        validation=run.problem.data.validation,
        budget=run.budget,
        scorer=run.scorer,
    )
    return Worker(inbox, evaluator, run.relay), identity(run.problem)
