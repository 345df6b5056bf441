"""A run's folder that version 0.1.0 wrote: `run_0_1_0.json` holds its files, but for weights/ and pictures.

Made with that version's sources, in a folder with `plain.py` and `whole.npz` as below, by
`search space.pool=plain.py:build data.source=whole.npz folder=whole search.warmup_steps=6 search.trials=3
search.steps_per_trial=1 search.finalists=1 search.finalist_steps=2 export=false`.
"""

from __future__ import annotations

import base64
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from l2l_nas.__main__ import main
from l2l_nas.errors import StorageError
from l2l_nas.plugins import GIVEN, GIVEN_PROBLEM
from l2l_nas.runs.old import as_read, refuse_old_trials
from tests.cli.runs import contents, write_pool

PLAIN = """\
from tiny import pool

def build(width=4, depth=2):
    return pool(width, depth)
"""
OWN = """\
import numpy as np
import torch
from l2l_nas import Data, Problem
from tiny import pool

def build(width=4, depth=2, test_fraction=0.2):
    with np.load("whole.npz") as file:
        x, y = torch.from_numpy(file["x"]), torch.from_numpy(file["y"])
    return Problem(pool(width, depth), Data.from_arrays(x, y, test_fraction=test_fraction))
"""


def test_what_0_2_0_wrote_for_objects_of_python_stands_for_them_today(tmp_path):
    before = {"space": {"pool": "FILE.py:NAME"}, "sampler": {"name": "FILE.py:NAME"}, "search": {"costs": ["a.py:B"]}}
    today = as_read({**before, "data": {"test_fraction": 0.2}}, tmp_path)
    assert (today["space"]["pool"], today["sampler"]["name"]) == (GIVEN_PROBLEM, GIVEN)
    assert today["search"]["costs"] == ["a.py:B"]


def test_trials_that_were_trainings_of_their_own_are_not_gone_on_with(tmp_path):
    path = tmp_path / "config.yaml"
    settings = "data: {{source: digits}}\nsearch: {{trial_weights: {}, finalist_steps: {}}}\n"
    for weights, steps in (("shared", 5), ("scratch", 0)):
        path.write_text(settings.format(weights, steps))
        refuse_old_trials(path)
    path.write_text(settings.format("scratch", 5))
    with pytest.raises(StorageError, match=r"trained each for itself.*read it with l2l_nas 0\.1\.0"):
        refuse_old_trials(path)
    path.write_text(path.read_text().replace("digits", "digits, test_fraction: 0.2"))
    refuse_old_trials(path)


@pytest.fixture
def old(tmp_path, monkeypatch) -> Path:
    """The folder, with its pool and its data beside it."""
    monkeypatch.chdir(tmp_path)
    write_pool(tmp_path)
    (tmp_path / "plain.py").write_text(PLAIN)
    (tmp_path / "own.py").write_text(OWN)
    generator = np.random.default_rng(0)
    x = generator.random((80, 2), dtype=np.float32)
    y = (x[:, 0] > x[:, 1]).astype(int)
    np.savez("whole.npz", x=x, y=y)
    folder = tmp_path / "whole"
    for name, content in json.loads((Path(__file__).parent / "run_0_1_0.json").read_text()).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if "sql" in content:
            with closing(sqlite3.connect(path)) as connection:
                connection.executescript(content["sql"])
        else:
            path.write_bytes(content["text"].encode() if "text" in content else base64.b64decode(content["base64"]))
    return folder


@pytest.mark.slow
def test_it_is_evaluated_to_what_it_reported_exported_and_shown(old, capsys):
    assert main(["evaluate", "run=whole", "space.pool=plain.py:build"]) == 0
    assert capsys.readouterr().out.count("as reported") == 2
    assert main(["export", "run=whole", "space.pool=plain.py:build", "formats=[state_dict]"]) == 0
    assert "as reported" in capsys.readouterr().out
    assert main(["report", "run=whole"]) == 0
    assert "<title>" in (old / "report.html").read_text()


@pytest.mark.parametrize(("was", "is_now"), [(True, "compile"), (False, "eager")])
def test_compiled_layers_are_a_choice_of_three_today(was, is_now):
    config = as_read({"relay": {"compile": was, "slots": 3}}, Path("run"))
    assert config["relay"] == {"layers": is_now, "slots": 3}


@pytest.mark.parametrize("was", ["ahead", "serial"])
def test_updates_of_before_that_went_by_the_whole_gradient_are_exact_today(was):
    assert as_read({"relay": {"update": was}}, Path("run")) == {"relay": {"update": "exact"}}


def test_it_has_no_test_part_and_says_so(old, refused):
    said = refused("evaluate", "run=whole", "space.pool=plain.py:build", "split=test")
    assert "the data of this run have no test part" in said


@pytest.mark.slow
def test_a_training_takes_its_data_over_as_they_were(old, capsys):
    words = ["space.pool=plain.py:build", "folder=out", "train.steps=1", "export=false"]
    assert main(["train", "run=whole", *words]) == 0
    assert "64 training, 16 validation samples" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_one_that_selected_on_a_test_part_is_refused_in_one_line(old, tmp_path, refused):
    with np.load("whole.npz") as file:
        x, y = file["x"], file["y"]
    np.savez("parts.npz", x_train=x[:60], y_train=y[:60], x_test=x[60:], y_test=y[60:])
    config = old / "config.yaml"
    config.write_text(config.read_text().replace("whole.npz", "parts.npz"))
    before = contents(old)
    for words in (
        ["evaluate", "run=whole", "space.pool=plain.py:build"],
        ["export", "run=whole", "space.pool=plain.py:build"],
        ["report", "run=whole"],
        ["train", "run=whole", "space.pool=plain.py:build", "folder=out"],
    ):
        assert "this run selected on x_test of parts.npz, which is held out now: it is too old" in refused(*words)
        assert "read it with l2l_nas 0.1.0" in refused(*words)
    assert contents(old) == before
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_one_whose_pool_brings_data_that_are_cut_in_three_now_is_refused(old, tmp_path, refused, capsys):
    said = refused("evaluate", "run=whole", "space.pool=own.py:build")
    assert "the pool's validation data are not those of this run: it is too old for this version" in said
    own = tmp_path / "own.py"
    own.write_text(own.read_text().replace("test_fraction=0.2)", "test_fraction=0)"))
    assert main(["evaluate", "run=whole", "space.pool=own.py:build"]) == 0
    assert capsys.readouterr().out.count("as reported") == 2
