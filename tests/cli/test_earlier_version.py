"""A run's folder that version 0.1.0 wrote is refused in one line by every command, and left as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from l2l_nas.errors import StorageError
from l2l_nas.runs.saved import load_found
from tests.cli.runs import contents

# what that version wrote, but for sections that are the same today
CONFIG = """\
seed: 0
space:
  pool: digits_conv
  args: {}
data:
  source: digits
  validation_fraction: 0.2
search:
  objectives: [accuracy, parameters]
  sampler: auto
  trials: 3
train:
  batch_size: 128
  micro_batch: 128
  optimizer: adamw
relay:
  compile: false
"""
LINE = "old: made by l2l_nas 0.1.0, which this version does not read: take that version"


@pytest.fixture
def old(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "result.json").write_text(
        '{"best": {"architecture": ["linear"], "values": {"accuracy": 0.5}, "trial": 1}}'
    )
    (folder / "log.jsonl").write_text('{"event": "start", "time": 1795316214.356}\n')
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ["search", "resume=old"],
        ["train", "resume=old"],
        ["train", "run=old", "folder=out"],
        ["evaluate", "run=old"],
        ["generate", "run=old", "prompt=a"],
        ["export", "run=old"],
        ["report", "run=old"],
    ],
)
def test_every_command_refuses_it(old, tmp_path, refused, words):
    before = contents(tmp_path)
    assert refused(*words) == f"error: {LINE}"
    assert contents(tmp_path) == before


def test_python_refuses_it_too(old):
    with pytest.raises(StorageError, match=r"made by l2l_nas 0\.1\.0"):
        load_found("old")
