"""A candidate that does not work: what the command says, leaves, and takes to go on."""

from __future__ import annotations

import json

import pytest

from l2l_nas.__main__ import main
from tests.cli.runs import POOL, TINY, events

ODD = """
class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
    def forward(self, x):
        if self.training and x.device.type != "meta":
            raise RuntimeError("no room")
        return self.linear(x)

def build(**kinds):
    whole = plain()
    layers = [*whole.pool.positions[1].candidates, Candidate("odd", Odd)]
    positions = [Position(p.name, layers) if len(p.candidates) > 1 else p for p in whole.pool.positions]
    return Problem(LayerPool(positions, inputs=whole.pool.inputs), whole.data)
"""


@pytest.mark.slow
def test_a_candidate_that_raises_is_told_and_recorded_and_the_command_that_is_said_goes_on(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd.py").write_text("from l2l_nas import *\n" + POOL.replace("def build", "def plain") + ODD)
    words = [
        "search",
        "space.pool=odd.py:build",
        *TINY,
        "search.trial_weights=shared",
        "search.warmup_steps=0",
        "folder=run",
    ]
    assert main([*words, "search.failures=1"]) == 2
    line = capsys.readouterr().err
    assert "no room" in line
    assert line.count("\n") == 1
    assert "go on with: " in line
    (failed,) = [event for event in events(tmp_path / "run", "trial") if event["state"] == "failed"]
    assert "no room" in failed["reason"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "no room" in page
    assert main(["search", "space.pool=odd.py:build", "resume=run", "search.failures=100"]) == 0
    capsys.readouterr()
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["trials"]["failed"] == len(result["failed"])
    assert (result["failed"][0]["trial"], result["failed"][0]["architecture"]) == (
        failed["number"],
        failed["architecture"],
    )
    assert all("no room" in one["reason"] for one in result["failed"])
    assert "odd" not in result["best"]["architecture"]
