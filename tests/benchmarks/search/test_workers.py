from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.benches import run_bench
from benchmarks.relay.work import StackSizes
from benchmarks.search import workers
from benchmarks.settings import Settings, Unwatched
from l2l_nas.errors import SettingError, WorkerError

SETTINGS = Settings(work=StackSizes(device="cpu"), trials=4, steps=1, rounds=2, trial_weights="shared")


def test_speed_and_quality_are_compared_round_by_round(tmp_path, monkeypatch):
    asked = []

    def search(settings, *, workers, seed):
        asked.append((workers, seed))
        faster = 0.9 * workers if workers > 1 else 1
        seconds = {"seconds": _FOUND.seconds / faster, "trial_seconds": _FOUND.trial_seconds / faster}
        return replace(_FOUND, **seconds, best=0.9 + seed / 100)

    monkeypatch.setattr(workers, "_search", search)
    result = run_bench("workers", replace(SETTINGS, scratch=tmp_path), Unwatched())
    assert asked == [(1, 0), (2, 0), (1, 0), (2, 1), (1, 1), (1, 1)]
    one, two, control = result["rows"]
    assert [row["side"] for row in result["rows"]] == ["one process", "2 workers", "control"]
    assert one["trials_a_second"] == 2.0
    assert two["over"]["one process"]["median"] == pytest.approx(1.8)
    assert two["once_started_over"]["one process"]["median"] == pytest.approx(1.8)
    assert control["over"]["one process"]["median"] == 1.0
    assert two["best"]["values"] == [0.9, 0.91]
    assert two["best_minus_one"]["mean"] == 0.0


_FOUND = workers.WorkersRun(seconds=2.0, trial_seconds=0.5, best=0.9, mean=0.8, workers_seen=1)


@pytest.mark.long
@pytest.mark.slow
def test_a_search_is_run_and_read(tmp_path, monkeypatch):
    monkeypatch.setitem(workers._WEIGHTS["shared"], "search.warmup_steps", 2)
    found = workers._search(replace(SETTINGS, scratch=tmp_path), workers=2, seed=0)
    assert found.seconds > 0
    assert 0 < found.mean <= 1
    assert found.workers_seen in (1, 2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_search_that_fails_says_why(tmp_path):
    with pytest.raises(WorkerError, match="seed must be at least 0, got -1"):
        workers._search(replace(SETTINGS, scratch=tmp_path), workers=1, seed=-1)


def test_one_worker_compares_nothing():
    with pytest.raises(SettingError, match="one process with at least 2 workers, got 1"):
        run_bench("workers", replace(SETTINGS, workers=1), Unwatched())


def test_what_a_run_tells_of_itself(tmp_path):
    trial = {"event": "trial", "cached": False, "state": "complete", "values": {"accuracy": 0.5}, "worker": 1}
    events = [
        {"event": "phase", "name": "search", "time": 10.0},
        {**trial, "time": 12.0},
        {**trial, "values": {"accuracy": 0.7}, "worker": 2, "time": 12.5},
        {**trial, "cached": True, "values": {"accuracy": 0.1}, "time": 12.5},
        {**trial, "state": "failed", "values": {}, "time": 12.75},
        {**trial, "values": {"accuracy": 0.6}, "time": 13.0},
        {"event": "phase", "name": "finalists", "time": 13.5},
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (tmp_path / "result.json").write_text(json.dumps({"best": {"values": {"accuracy": 0.75}}}))
    found = workers._read(tmp_path, 2)
    mean = pytest.approx(0.6)
    assert found == workers.WorkersRun(seconds=3.0, trial_seconds=0.25, best=0.75, mean=mean, workers_seen=2)
