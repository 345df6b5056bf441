"""The workers of an executor of the user's end when the search is killed, also before they have done anything."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from tests.cli.runs import TINY, events, start
from tests.cli.test_workers import is_gone, wait_for

MAKERS = {
    "loky": "from loky import ProcessPoolExecutor\ndef make(workers):\n    return ProcessPoolExecutor(workers)\n",
    "spawn": """\
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
def make(workers):
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
""",
}


def children_of(pid: int) -> set[int]:
    """Processes that descend from one."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):  # gone meanwhile
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


@pytest.mark.slow
@pytest.mark.parametrize(("maker", "trials"), [("loky", 0), ("loky", 2), ("spawn", 0), ("spawn", 2)])
def test_workers_of_an_own_executor_end_with_a_driver_that_is_killed(pool, tmp_path, maker, trials):
    Path("own.py").write_text(MAKERS[maker])
    words = [TINY[0], "search.trial_weights=scratch", "search.trials=500", "export=false", "folder=run"]
    words += ["search.steps_per_trial=4", "search.finalists=1", "search.finalist_steps=8"]
    process = start("search", f"space.pool={pool}", "executor=own.py:make", "search.workers=2", *words, cwd=tmp_path)
    children: set[int] = set()
    try:
        wait_for(lambda: len(children_of(process.pid)) >= 2, process)  # a server or a tracker is one of them
        wait_for(lambda: not trials or (Path("run/study.log").exists() and len(events(Path("run"))) >= trials), process)
        time.sleep(0.3 if trials else 1.0)  # the second one begins
        children = children_of(process.pid)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        assert children
        wait_for(lambda: all(map(is_gone, children)))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        for pipe in (process.stdout, process.stderr):  # which a worker that is left would hold open
            pipe.close()
        process.wait(30)
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
