"""What every callback must do."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from l2l_nas.nas.callback import Callback
from l2l_nas.report.history import read_events
from l2l_nas.runs.api import SearchResult
from l2l_nas.testing.problems import searched


def check_callback(build: Callable[[], Callback]) -> None:
    """A search that it sees is the search that nobody sees, also when it goes on.

    Args:
        build: a new callback each time.

    Raises:
        AssertionError: it is not, or the callback raised something.
    """
    with tempfile.TemporaryDirectory() as scratch:
        alone = searched(Path(scratch) / "alone")
        folder = Path(scratch) / "seen"
        seen = searched(folder, callbacks=[build()])
        events = read_events((folder / "log.jsonl").read_text(encoding="utf-8"))
        problems = [event["problem"] for event in events if event["event"] == "callback"]
        assert not problems, problems[0]
        assert _outcome(seen) == _outcome(alone), "with the callback, the search found something else than without"
        more = searched(folder, callbacks=[build()], resume=str(folder), trials=8)
        assert len(more.study.trials) > len(alone.study.trials), "with the callback, a search did not go on"


def _outcome(result: SearchResult) -> list[object]:
    return [result.best.values, [(one.params, one.values) for one in result.study.trials]]
