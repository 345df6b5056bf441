"""What a sweep takes its runs for: when it begins, goes on and ends. Most runs here find something at once."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest

import l2l_nas
from l2l_nas.__main__ import main
from l2l_nas.errors import SettingError, TrialError
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.log import LogFile
from tests.cli.runs import TINY, contents
from tests.studies import change_result

FOUND = {"best": {"values": {"accuracy": 0.5}}, "objectives": [{"name": "accuracy"}], "seconds": 1.0}
REAL = ["search", "-m", "space.pool=tiny.py:build", *TINY, "search.warmup_steps=1", "search.finalists=0"]


class Quick:
    """A search as a sweep sees it: it writes what it was started with, then what it found."""

    def __init__(self, conf, console, *, files, **_):
        self._folder, self._files = RunFolder(Path(conf.resume or conf.folder)), files

    def go(self):
        self._folder.write_hydra(self._files)
        self._folder.config.write_text("seed: 0\n")
        with closing(LogFile(self._folder.log)) as log:
            log.write("result", content=FOUND)
        return 0.5


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """Searches are quick, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("l2l_nas.cli.search.prepared", Quick)
    return tmp_path


def labels(folder):
    """What the summary says of each run, by its folder."""
    return {
        row["folder"]: " ".join(row["overrides"]) for row in json.loads((folder / "summary.json").read_text())["runs"]
    }


def test_a_summary_that_cannot_be_written_is_an_error(quick, monkeypatch, capsys):
    def fail(run):
        Path("s/summary.json").mkdir(exist_ok=True)
        raise TrialError("not this one")

    monkeypatch.setattr(Quick, "go", fail)
    assert main(["search", "-m", "seed=0,1", "folder=s"]) == 2
    lines = ["s/0: not this one", "s/1: not this one", "s/summary.json: a folder, not a file"]
    assert capsys.readouterr().err.splitlines() == [f"error: {line}" for line in lines]


@pytest.mark.slow
def test_what_is_done_is_left_out_what_was_begun_goes_on_and_another_setting_is_refused(
    pool, tmp_path, capsys, refused
):
    words = [*REAL, "search.trials=2", "seed=0,1,2", "folder=s"]
    assert main(words) == 0
    before = contents(tmp_path / "s" / "0")
    assert "s/multirun.yaml is there already" in refused(*words)
    shutil.rmtree(tmp_path / "s" / "1")
    change_result(tmp_path / "s" / "2", lambda _: None)  # as if it was killed before
    assert main([*words, "skip_done=true"]) == 0
    assert contents(tmp_path / "s" / "0") == before
    found = [json.loads((tmp_path / "s" / name / "result.json").read_text())["trials"] for name in "012"]
    assert [trials["complete"] for trials in found] == [2, 2, 2]
    assert main([*words, "skip_done=true", "train.batch_size=8"]) == 2
    other = "the run there has train.batch_size=64, not 8; choose another folder"
    assert capsys.readouterr().err.splitlines() == [f"error: s/{number}: {other}" for number in range(3)]
    assert contents(tmp_path / "s" / "0").items() >= before.items()
    assert "skip_done is for sweeps: add -m" in refused("search", "space.pool=tiny.py:build", "skip_done=true")
    with pytest.raises(SettingError, match="skip_done is for sweeps"):
        l2l_nas.search("digits_conv", skip_done=True, progress=False)


@pytest.mark.slow
def test_seeds_beside_random_search_are_compared_with_an_interval(pool, tmp_path, capsys):
    words = ["search.finalists=2", "search.finalist_steps=3", "search.baseline=random", "search.trials=3"]
    assert main([*REAL, *words, "seed=0,1", "train.batch_size=16,32", "folder=s"]) == 0
    said = capsys.readouterr().out
    found = json.loads((tmp_path / "s" / "summary.json").read_text())["comparisons"]
    assert [one["overrides"] for one in found] == [["train.batch_size=16"], ["train.batch_size=32"]]
    for one, folders in zip(found, (("s/0", "s/2"), ("s/1", "s/3")), strict=True):
        results = [json.loads((tmp_path / folder / "result.json").read_text()) for folder in folders]
        sides = [[entry["test"]["accuracy"] for entry in (one["best"], one["baseline"])] for one in results]
        assert one["difference"]["mean"] == pytest.approx(sum(mine - other for mine, other in sides) / 2)
        same = l2l_nas.compare(folders)
        assert same.to_json().items() <= one.items()
        assert f"{one['overrides'][0]}: {same.sentence()}" in said
    with pytest.raises(SettingError, match="results: two searches at least need a figure of the test part"):
        l2l_nas.compare(["s/0"])


STOPS = """
from l2l_nas import Callback, Stopped

class Enough(Callback):
    def trial(self, record, records):
        raise Stopped
"""


@pytest.mark.slow
def test_a_run_that_its_callback_stopped_is_over_and_the_next_one_begins(pool, tmp_path, capsys):
    (tmp_path / "own.py").write_text(STOPS)
    words = [*REAL, "callbacks.enough=own.py:Enough", "seed=0,1", "folder=s"]
    assert main(words) == 0
    assert "stopped by callback Enough after 1 of 12 trials" in capsys.readouterr().out
    before = contents(tmp_path / "s")
    rows = json.loads((tmp_path / "s" / "summary.json").read_text())["runs"]
    assert ["accuracy" in row for row in rows] == [True, True]
    assert main([*words, "skip_done=true"]) == 0
    after = contents(tmp_path / "s")
    assert {name for name in after if before.get(name) != after[name]} <= {"multirun.yaml", "summary.json"}
