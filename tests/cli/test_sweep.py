"""What a sweep takes its runs for: when it begins, goes on and ends. Most runs here find something at once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from l2l_nas.__main__ import main
from l2l_nas.errors import TrialError
from l2l_nas.files import read_yaml, write_json, write_yaml
from l2l_nas.runs.folder import RunFolder
from tests.cli.runs import TINY, contents

FOUND = {"best": {"values": {"accuracy": 0.5}}, "objectives": [{"name": "accuracy"}], "seconds": 1.0}
REAL = ["search", "-m", "space.pool=tiny.py:build", *TINY, "search.warmup_steps=1", "search.finalists=0"]


class Quick:
    """A search as a sweep sees it: it writes what it was started with, then what it found."""

    def __init__(self, conf, *, files, **_):
        self._folder, self._files = RunFolder(Path(conf.resume or conf.folder)), files

    def go(self):
        self._folder.write_hydra(self._files)
        self._folder.config.write_text("seed: 0\n")
        write_json(self._folder.result, FOUND)
        return 0.5


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """Searches are quick, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("l2l_nas.cli.search.prepared", Quick)
    return tmp_path


def labels(folder):
    """What the summary says of each run, by its folder."""
    return {row["folder"]: " ".join(row["overrides"]) for row in json.loads((folder / "summary.json").read_text())}


def test_a_summary_that_cannot_be_written_is_an_error(quick, monkeypatch, capsys):
    def fail(run):
        Path("s/summary.json").mkdir(exist_ok=True)
        raise TrialError("not this one")

    monkeypatch.setattr(Quick, "go", fail)
    assert main(["search", "-m", "seed=0,1", "folder=s"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == "error: s/0, s/1: not this one"
    assert second == "error: s/summary.json: a folder, not a file"


def test_what_was_left_to_the_program_cannot_be_given_when_a_sweep_goes_on(quick, refused):
    assert main(["search", "-m", "seed=0,1", "folder=s"]) == 0
    before = contents(quick)
    line = refused("search", "-m", "resume=s", "search.steps_per_trial=1")
    assert "this sweep has search.steps_per_trial null, not 1" in line
    assert contents(quick) == before


def test_no_run_gets_the_label_of_another_where_what_a_sweep_chooses_from_has_changed(quick, refused):
    sizes = quick / "conf" / "size"
    sizes.mkdir(parents=True)
    for name in ("a", "c"):
        (sizes / f"{name}.yaml").write_text("# @package _global_\nsearch:\n  steps_per_trial: 1\n")
    words = ["search", "-m", "--config-dir", "conf", "+size=glob(*)"]
    assert main([*words, "folder=s"]) == 0
    assert labels(quick / "s") == {"s/0": "+size=a", "s/1": "+size=c"}
    before = contents(quick / "s")
    (sizes / "b.yaml").write_text((sizes / "a.yaml").read_text())
    assert "s/1: the run there is +size=c, and run 1 of this sweep is now +size=b" in refused(*words, "resume=s")
    assert contents(quick / "s") == before
    (sizes / "b.yaml").rename(sizes / "d.yaml")  # behind the others: a run more
    assert main([*words, "resume=s"]) == 0
    assert labels(quick / "s") == {"s/0": "+size=a", "s/1": "+size=c", "s/2": "+size=d"}


@pytest.fixture
def swept(quick):
    """A group that sweeps a setting."""
    (quick / "conf" / "swept").mkdir(parents=True)
    text = "# @package _global_\nhydra:\n  sweeper:\n    params: {seed: '1,2'}\n"
    (quick / "conf" / "swept" / "it.yaml").write_text(text)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["seed=0,1", "++seed=2,3"], "seed is given twice, by seed=0,1 and by ++seed=2,3"),
        (["++seed=2", "seed=0,1"], "seed is given twice, by ++seed=2 and by seed=0,1"),
        (["--config-dir", "conf", "+swept=it", "++seed=3"], "seed is given twice, by seed=1,2 and by ++seed=3"),
    ],
)
def test_a_swept_setting_has_one_word(quick, swept, refused, words, says):
    assert says in refused("search", "-m", *words, "folder=s")
    assert contents(quick).keys() == {"conf/swept/it.yaml"}


@pytest.mark.parametrize("words", [["seed=3,4"], ["seed=0,1", "seed=3,4"], ["seed=5", "seed=3,4"]])
def test_the_last_of_words_that_are_written_alike_counts_also_before_one_of_a_config_file(quick, swept, words):
    assert main(["search", "-m", "--config-dir", "conf", "+swept=it", *words, "folder=s"]) == 0
    assert labels(quick / "s") == {"s/0": "seed=3 +swept=it", "s/1": "seed=4 +swept=it"}


@pytest.mark.slow
def test_a_run_that_was_resumed_by_itself_for_more_trials_keeps_them(pool, tmp_path):
    assert main([*REAL, "search.trials=2", "seed=0,1", "folder=s"]) == 0
    assert main(["search", "resume=s/0", "search.trials=4", "space.pool=tiny.py:build"]) == 0
    shutil.rmtree(tmp_path / "s" / "1")
    before = contents(tmp_path / "s" / "0")
    assert main(["search", "-m", "resume=s", "space.pool=tiny.py:build"]) == 0
    assert contents(tmp_path / "s" / "0") == before
    found = [json.loads((tmp_path / "s" / name / "result.json").read_text())["trials"] for name in "01"]
    assert [trials["complete"] for trials in found] == [4, 2]


STOPS = """
from l2l_nas import Callback, Stopped

class Enough(Callback):
    def trial(self, record, records):
        raise Stopped
"""


@pytest.mark.slow
def test_a_run_that_its_callback_stopped_is_over_and_the_next_one_begins(pool, tmp_path, capsys):
    (tmp_path / "own.py").write_text(STOPS)
    again = ["search", "-m", "space.pool=tiny.py:build", "callbacks.enough=own.py:Enough"]
    assert main([*REAL, again[-1], "seed=0,1", "folder=s"]) == 0
    assert "stopped by callback Enough after 1 of 12 trials" in capsys.readouterr().out
    before = contents(tmp_path / "s")
    rows = json.loads((tmp_path / "s" / "summary.json").read_text())
    assert ["accuracy" in row for row in rows] == [True, True]
    assert main([*again, "resume=s"]) == 0
    after = contents(tmp_path / "s")
    assert {name for name in after if before.get(name) != after[name]} <= {"multirun.yaml", "summary.json"}


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda content: content["hydra"]["sweeper"].update(params=["seed"]), "hydra.sweeper.params is ['seed']"),
        (lambda content: content["hydra"]["job"].update(config_name=["a"]), "hydra.job.config_name is ['a']"),
        (lambda content: content["hydra"]["overrides"].update(task="seed"), "hydra.overrides.task is 'seed'"),
        (lambda content: content["hydra"]["overrides"].update(task=["seed=["]), ""),
        (lambda content: content["hydra"].pop("overrides"), ""),
        (lambda content: content.update(hydra=None), "hydra is None"),
        (lambda content: content.update(search=[1]), "search is [1]"),
        (lambda content: content.update(data=None), "data is None"),
    ],
)
def test_settings_of_a_sweep_that_are_damaged_are_one_line(quick, refused, damage, says):
    assert main(["search", "-m", "--config-dir", ".", "seed=0,1", "folder=s"]) == 0
    path = quick / "s" / "multirun.yaml"
    content = read_yaml(path)
    damage(content)
    write_yaml(path, content)
    before = contents(quick)
    line = refused("search", "-m", "--config-dir", ".", "resume=s")
    assert line.startswith("error: s/multirun.yaml: damaged, not the settings of a sweep (")
    assert says in line
    assert contents(quick) == before


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["hydra.sweeper.max_batch_size=0"], "hydra.sweeper.max_batch_size must be at least 1, or null, got 0"),
        (["resume="], "resume= names no folder"),
        (["resume=''"], "resume= names no folder"),
    ],
)
def test_what_no_sweep_can_begin_with_is_one_line_and_leaves_nothing(pool, tmp_path, refused, words, says):
    (tmp_path / "own.py").write_text('def Broken():\n    raise ValueError("not today")\n')
    assert says in refused("search", "-m", "space.pool=tiny.py:build", "seed=0,1", "folder=s", *words)
    assert contents(tmp_path).keys() == {"own.py", "tiny.py"}
