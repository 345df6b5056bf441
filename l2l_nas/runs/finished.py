"""Tells a search that has nothing left to do: a resume would train its finalists again for the same answer."""

from __future__ import annotations

from dataclasses import asdict

from l2l_nas.errors import StorageError
from l2l_nas.files import read_bytes, read_json
from l2l_nas.report.history import read_events
from l2l_nas.runs.command_line import resume_command
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.inherit import changes
from l2l_nas.runs.saved_config import own_names, read_config
from l2l_nas.runs.settings import SearchConf, rule_of

_ENDS = ("start", "done", "stopped", "failed")
_EVALUATED = ("complete", "stopped", "failed")


def finished(folder: RunFolder, conf: SearchConf, *, goal: str, evaluated: int) -> tuple[float, str] | None:
    """The best value of a search with nothing left to do, and what to say; None of another.

    Its result is written, and was asked for with the very same settings.

    Args:
        folder: the run's.
        conf: its settings now, as its folder would keep them.
        goal: the first objective.
        evaluated: how many of the trials asked for its study has.

    Raises:
        StorageError: its settings or its log cannot be read.
    """
    if not folder.config.exists() or not folder.log.exists():
        return None
    log = read_bytes(folder.log).decode("utf-8", "replace")
    ends = [event["event"] for event in read_events(log) if event["event"] in _ENDS]
    if not ends or ends[-1] != "done":
        return None  # the result, if any, is from before it was gone on with
    if any(not rule_of(name).is_free for name in changes(read_config(folder.config), conf)):
        return None
    try:
        result = read_json(folder.result)
        value = float(result["best"]["values"][goal])
        if sum(result["trials"][state] for state in _EVALUATED) != evaluated:
            return None
    except (StorageError, KeyError, TypeError, ValueError):
        return None  # lost or damaged: it is made again
    total = conf.search.trials
    assert total is not None  # decided before
    more = resume_command("search", folder.root, {**own_names(asdict(conf)), "search.trials": 2 * total})
    line = (
        f"finished: {evaluated} of {total} trials are evaluated and the result is written, nothing to do; for more: "
        + more
    )
    return value, line
