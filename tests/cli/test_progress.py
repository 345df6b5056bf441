from __future__ import annotations

import io

import pytest
from rich.console import Console

from l2l_nas.cli import progress
from l2l_nas.cli.progress import Meter


def lines_of(monkeypatch, done: float) -> list[str]:
    """What is shown while ten more are done, one a second."""
    now = 0.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    out = io.StringIO()
    with Meter(Console(file=out, width=100)) as meter:
        meter.go_on(done, done + 100)
        for _ in range(10):
            now += 1
            meter.advance(1, "text")
    return out.getvalue().splitlines()


@pytest.mark.parametrize(("done", "shares"), [(0, ["5%", "10%"]), (100, ["52%", "55%"])])
def test_the_time_left_is_reckoned_from_what_was_done_since_it_began(monkeypatch, done, shares):
    lines = lines_of(monkeypatch, done)
    assert [line.split() for line in lines] == [
        [shares[0], "ETA", "1:35", "text"],
        [shares[1], "ETA", "1:30", "text"],
    ]
