"""Workers that are groups of ranks: what workers alone find, and what becomes of a group that loses a rank."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from l2l_nas.__main__ import main
from tests.cli.runs import events, start
from tests.cli.test_workers import PATIENCE_S, is_gone, wait_for

WORDS = (
    "search", "space.pool=tiny.py:build", "space.args.width=200", "search.trial_weights=fork", "search.warmup_steps=8",
    "search.trials=6", "search.steps_per_trial=6", "search.finalists=2", "search.finalist_steps=12", "sampler=random",
    "train.micro_batch=16", "export=false", "executor=processes",
)  # fmt: skip


def others() -> list[int]:
    """Processes of groups, but for their first ones."""
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"runs.rank_group" in command.read_bytes():
                found.append(int(command.parent.name))
        except OSError:
            continue  # gone meanwhile
    return found


def found_in(folder: Path) -> tuple[object, dict[str, bytes]]:
    finalists = json.loads((folder / "result.json").read_text())["finalists"]
    for finalist in finalists:
        finalist.pop("seconds", None)
    return finalists, {path.name: path.read_bytes() for path in (folder / "best").glob("*.safetensors")}


@pytest.mark.long
@pytest.mark.slow
def test_a_group_finds_what_a_worker_alone_does_and_a_lost_rank_costs_no_trial(pool, tmp_path):
    assert main([*WORDS, "parallel.chunks=2", "folder=alone"]) == 0
    before = others()
    process = start(*WORDS, "parallel.data=2", "folder=run", cwd=tmp_path)
    wait_for(lambda: events(tmp_path / "run"), process)
    started = [one for one in others() if one not in before]
    os.kill(started[0], signal.SIGKILL)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, ""), out
    assert "1 worker of 2 ranks, which train each trial together, 1 thread each" in out
    assert [event["again"] for event in events(tmp_path / "run", "worker_lost")] == [True]
    finalists, weights = found_in(tmp_path / "run")
    assert (finalists, weights) == found_in(tmp_path / "alone")
    assert len(weights) >= 2
    wait_for(lambda: all(map(is_gone, started)))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["search.trial_weights=shared"],
            "search.trial_weights=shared: shared weights stay in one process, or on the ranks of torchrun; leave out",
        ),
        (
            ["executor=own.py:threads", "search.workers=2"],
            "parallel.data=2: a group of ranks needs a worker process; take executor=process",
        ),
        (["parallel.data=3"], "parallel.data=3: ranks add their sums in pairs, so take a power of two, such as 2 or 4"),
        (["parallel.chunks=1"], "parallel.chunks=1: 2 ranks cannot divide it; take 2 or a multiple"),
        (["parallel.tensor=2"], "parallel.tensor=2: a group shares steps, not layers; leave it out"),
        (
            ["executor=inline", "search.workers=1"],
            "parallel.data=2: there is 1 process; leave it out, or start 2 with t",
        ),
    ],
)
def test_settings_that_do_not_go_with_groups_are_refused(pool, tmp_path, refused, words, said):
    (tmp_path / "own.py").write_text(
        "import concurrent.futures\ndef threads(workers): return concurrent.futures.ThreadPoolExecutor(workers)\n"
    )
    assert said in refused(*WORDS, "parallel.data=2", *words)
