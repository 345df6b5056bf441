"""The best finalist's weights in a run's folder, so that a search that goes on need not train them again."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from l2l_nas.cost.closed_form import path_states
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import StorageError
from l2l_nas.nas.strategies.finalists import Finalist, FinalistCache
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.groups import flat
from l2l_nas.runs.origin import identity
from l2l_nas.runs.settings import SearchConf
from l2l_nas.runs.terminal import warn
from l2l_nas.training.problem import Problem


def finalist_cache(
    conf: SearchConf, problem: Problem, server: ParamServer, folder: RunFolder, console: Console
) -> FinalistCache:
    """What finalists of an earlier session of a run are recognised by, and where their weights are.

    Args:
        server: the search's own, as `best/` is read into one like it.
        console: where it is told that the weights cannot be read.
    """
    checkpoint = Checkpoint(folder.best)

    def weights(finalist: Finalist) -> ParamServer | None:
        if not checkpoint.exists():
            return None
        read = ParamServer(problem.pool, optimizer=server.optimizer, seed=conf.seed)
        try:
            found = checkpoint.load(read, needs=path_states(problem.pool, finalist.record.architecture))
        except StorageError as error:
            warn(console, str(error))
            console.print("finalists are trained again")
            return None
        return read if found == _identity(finalist) else None

    def save(finalist: Finalist) -> None:
        if finalist.server is not None:
            checkpoint.save(finalist.server, extra=_identity(finalist))

    return FinalistCache(_settings(conf, problem, server), weights, save)


def _identity(finalist: Finalist) -> dict[str, Any]:
    return identity(finalist.record.architecture.choices, finalist.values)


def _settings(conf: SearchConf, problem: Problem, server: ParamServer) -> dict[str, Any]:
    """Settings that decide what comes of finalists, and are not in the budget."""
    train, relay = conf.train, conf.relay
    chosen = {
        name: value for name, value in flat(SearchConf, conf).items() if name.startswith(("optimizer", "schedule"))
    }
    return {
        "data": [problem.data.digest, problem.data.test_digest],
        "seed": conf.seed,
        "batch": [train.batch_size, train.micro_batch],
        **chosen,
        "relay": [relay.precision, relay.update, relay.clip, relay.clip_scope],
        "frozen": sorted(server.frozen),
    }
