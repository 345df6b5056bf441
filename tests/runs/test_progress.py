from __future__ import annotations

import io
from contextlib import closing
from types import SimpleNamespace

import pytest
from rich.console import Console

from l2l_nas.errors import StorageError
from l2l_nas.nas.objectives import Goal
from l2l_nas.nas.strategies.budget import Budget
from l2l_nas.report.history import read_events
from l2l_nas.runs import progress
from l2l_nas.runs.log import LogFile
from l2l_nas.runs.progress import Display
from tests.nas.problems import budget


@pytest.mark.parametrize("before", [0, 100])
def test_the_time_left_is_reckoned_from_what_was_done_since_it_began(tmp_path, monkeypatch, before):
    """Of a training, one step a second: a line when it begins, and one every five seconds."""
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    out = io.StringIO()
    with closing(LogFile(tmp_path / "log.jsonl")) as log, Display(Console(file=out, width=100), log) as display:
        display.phase("training", total=before + 100, done=before)
        for step in range(25):
            now += 1
            display.advance(before + step + 1, detail="loss 1")
    shown = [(5, "-:--"), (10, "-:--"), (15, "-:--"), (20, "1:20"), (25, "1:15")]
    lines = [f"training  step {before + done}/{before + 100}  loss 1  ETA {left}" for done, left in shown]
    assert out.getvalue().splitlines() == [f"training  step {before}/{before + 100}  ETA -:--", *lines]


@pytest.mark.parametrize(
    ("trial_weights", "warmup_steps", "phases", "spent", "left"),
    [
        # a trial of 9 steps and a score a second: 0.1 s a step of 4 x 21 of finalists and of all 174 of the baseline
        ("scratch", 0, [("search", 10, 4)], 36, 6 + 8.4 + 17.4),
        ("scratch", 0, [("search", 10, 10), ("finalists", 84, 42)], 132, 42 + 174),
        # after a resume, random search has the finalists of an earlier session, too
        ("scratch", 0, [("search", 10, 10), ("finalists", 84, 42)], 84 + 132, 42 + 84 + 174),
        # steps of warm-up tell how long others take, where trials have none
        ("shared", 40, [("warm-up", 40, 20)], 20, 20 + (10 * 10 + 120 + 250)),
        ("shared", 40, [("warm-up", 40, 40), ("search", 10, 4)], 76, 6 + 0.1 * (120 + 250)),
    ],
)
def test_the_time_left_has_the_phases_to_come(tmp_path, monkeypatch, trial_weights, warmup_steps, phases, spent, left):
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    spend = Budget(
        warmup_steps=warmup_steps, trials=10, steps_per_trial=9, finalists=4, finalist_steps=30, learning_rate=1.0,
        finalist_learning_rate=1.0, trial_weights=trial_weights, baseline="random",
    )  # fmt: skip
    goals = (Goal("accuracy", maximize=True),)
    with closing(LogFile(tmp_path / "log.jsonl")) as log:
        ledger = SimpleNamespace(search_steps=spent)
        shown = Display(Console(file=io.StringIO()), log, goals=goals, budget=spend, ledger=ledger)
        for name, total, done in phases:
            shown.phase(name, total=total, done=0)
            now += done
            shown.advance(done)
        assert shown._seconds_left() == pytest.approx(left)


@pytest.mark.parametrize(
    ("phase", "done", "told"),
    [("blocks", 37, "37 of 153 blocks"), ("warm-up", 40, "40 of 153 steps of warm-up"), ("finalists", 9, "")],
)
def test_what_is_done_before_the_trials_is_told_in_its_own_words(tmp_path, phase, done, told):
    with closing(LogFile(tmp_path / "log.jsonl")) as log:
        display = Display(Console(file=io.StringIO()), log)
        display.phase(phase, total=153, done=0)
        display.advance(done)
        assert display.how_far_before_trials == told


@pytest.mark.parametrize("gone", ["deleted", "moved", "another"])
def test_a_log_that_is_not_there_any_more_ends_the_run(tmp_path, gone):
    """What is written from there on would be lost."""
    log = LogFile(tmp_path / "log.jsonl")
    log.write("start")
    log.write("trial", number=0)
    (tmp_path / "log.jsonl").unlink() if gone == "deleted" else (tmp_path / "log.jsonl").rename(tmp_path / "other")
    if gone == "another":
        (tmp_path / "log.jsonl").write_text("")
    with pytest.raises(StorageError, match=r"log\.jsonl: it was deleted or moved"):
        log.write("trial", number=1)
    log.close()


def test_a_phase_without_work_is_not_shown(tmp_path):
    console = Console(file=io.StringIO())
    with closing(LogFile(tmp_path / "log.jsonl")) as log:
        display = Display(console, log, goals=(), budget=budget())
        display.phase("warm-up", total=0, done=0)
        assert console.file.getvalue() == ""
        display.phase("search", total=3, done=0)
    assert "trial 0/3" in console.file.getvalue()


@pytest.mark.parametrize("content", ["", "\n", '{"event": "sta'])
def test_a_log_line_that_a_kill_cut_off_does_not_hurt_the_next(tmp_path, content):
    path = tmp_path / "log.jsonl"
    path.write_text(content)
    with closing(LogFile(path)) as log:
        log.write("start")
    assert [event["event"] for event in read_events(path.read_text())] == ["start"]
