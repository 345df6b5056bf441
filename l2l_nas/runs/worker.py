"""What a worker process of a search runs (`search.workers`).

It builds the same run from the same settings, its pool of layers among them: the user's own file is imported there too.
Only its states are not its own: they are in memory that all of them share.
"""

from __future__ import annotations

from l2l_nas.eps.shared_storage import Place, SharedStorage
from l2l_nas.nas.evaluation.evaluator import Evaluator
from l2l_nas.nas.evaluation.worker import Inbox, Worker, describe
from l2l_nas.nas.evaluation.worker_pool import Message
from l2l_nas.nas.study.study import quiet_optuna
from l2l_nas.runs.build import set_threads
from l2l_nas.runs.fields import built
from l2l_nas.runs.search import SearchRun
from l2l_nas.runs.settings import SearchConf
from l2l_nas.runs.terminal import open_terminal
from l2l_nas.runs.workers import identity


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
    quiet_optuna()
    hello = inbox.next()
    conf: SearchConf = built(SearchConf, hello["conf"])
    run = SearchRun(conf, open_terminal(quiet=True), again="")
    set_threads(conf.relay.threads, run.relay, workers=conf.search.workers)
    server = run.relay.server
    place = Place(**hello["place"])
    server.move_to(SharedStorage(server.pool, optimizer=server.optimizer, place=place))
    evaluator = Evaluator(
        run.relay,
        run.trainer,
        validation=run.problem.data.validation,
        test=run.problem.data.test,
        budget=run.budget,
        scorer=run.scorer,
    )
    return Worker(inbox, evaluator, run.relay), identity(run.problem)
