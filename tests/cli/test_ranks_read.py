"""What several ranks make of a run that is done: the values, texts and files of one process."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from l2l_nas.__main__ import main
from l2l_nas.errors import SettingError
from l2l_nas.runs import ranks
from tests.cli.runs import contents
from tests.cli.test_ranks import alone, apart, together
from tests.runs.test_language import POOL as LANGUAGE

NORMED = """
import torch
from torch import nn
from l2l_nas import Candidate, Data, LayerPool, Position, Problem, TensorSpec

def build():
    def block():
        return nn.Sequential(nn.Linear(200, 200), nn.BatchNorm1d(200), nn.Tanh())
    positions = [
        Position("stem", Candidate("linear", lambda: nn.Linear(2, 200))),
        Position("block", Candidate("normed", block)),
        Position("head", Candidate("linear", lambda: nn.Linear(200, 2))),
    ]
    x = torch.rand(160, 2, generator=torch.Generator().manual_seed(0)) * 4 - 2
    data = Data.from_arrays(x, (x[:, 0] > x[:, 1]).long())
    return Problem(LayerPool(positions, inputs=TensorSpec((2,))), data)
"""
TRAIN = ("train.micro_batch=16", "relay.threads=1", "export=false", "architecture=original")
# a model that one process could not hold
LARGE = """
import sys
from l2l_nas.__main__ import main
from l2l_nas.errors import SettingError
from l2l_nas.text import language
if __name__ == "__main__":
    language._SHARE = 0
    sys.exit(main())
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with two runs and their pools."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "normed.py").write_text(NORMED)
    wide = LANGUAGE.replace('"hidden_size": 16', '"hidden_size": 96')  # states that ranks have parts of
    assert wide != LANGUAGE
    (folder / "small.py").write_text(wide)
    (folder / "large.py").write_text(LARGE)
    (folder / "text.txt").write_text("the value of the name is an object of that type, and so on; " * 20)
    for name, more in (("normed", ()), ("small", ("train.batch_size=16",))):
        pool = f"space.pool={folder / name}.py:build"
        assert main(["train", pool, *TRAIN, *more, "train.steps=12", f"folder={folder / name}"]) == 0
    return folder


@pytest.fixture(autouse=True)
def _here(place, monkeypatch):
    monkeypatch.chdir(place)


def without_places(text: str) -> str:
    return re.sub(r"out_\w+", "OUT", text)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_two_ranks_evaluate_and_export_what_one_process_does():
    evaluate = ("evaluate", "run=normed", "space.pool=normed.py:build", "recalibrate=3", "split=test")
    expected = alone(*evaluate)
    assert expected.count("test accuracy") == 2
    assert together(*evaluate) == expected
    export = ("export", "run=normed", "space.pool=normed.py:build", "formats=[state_dict,program]")
    printed = alone(*export, "out=out_one")
    assert without_places(together(*export, "out=out_two")) == without_places(printed)
    one, two = (contents(Path(name)) for name in ("out_one", "out_two"))
    assert set(one) == set(two)
    assert any(name.endswith(".safetensors") for name in one)
    assert [name for name in one if one[name] != two[name]] == []


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("program", [("large.py",), pytest.param(("-m", "l2l_nas"), marks=pytest.mark.long)])
def test_two_ranks_write_on_as_one_process_does(program):
    words = ("run=small", "space.pool=small.py:build", "tokenizer=bytes")
    generate = ("generate", *words, "prompt=the value", "tokens=8", "temperature=0")
    expected = alone(*generate)
    assert len(expected) > 12
    assert together(*generate, program=program) == expected


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_two_ranks_measure_a_text_as_one_process_does():
    evaluate = ("evaluate", "run=small", "space.pool=small.py:build", "tokenizer=bytes", "task=text", "file=text.txt")
    assert together(*evaluate) == alone(*evaluate)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_ranks_that_read_other_things_are_told_in_what():
    words = ["evaluate", "run=small", "space.pool=small.py:build", "tokenizer=bytes", "task=text"]
    Path("other.txt").write_text("another text")
    codes, lines = apart([[*words, "file=text.txt"], [*words, "file=other.txt"]])
    assert codes == [2, 2]
    assert ["file is 'other.txt' on rank 1, and 'text.txt' on rank 0" in line for line in lines] == [True], lines
    pool = "space.pool=normed.py:build"
    codes, lines = apart([["evaluate", "run=normed", pool], ["evaluate", "run=gone", pool]])
    assert codes == [2, 2]
    assert ["run is 'gone' on rank 1, and 'normed' on rank 0" in line for line in lines] == [True], lines
    codes, lines = apart([["plan", pool]] * 2)
    assert codes == [2, 2]
    assert ["plan takes one process" in line for line in lines] == [True], lines


def test_ranks_with_other_content_in_a_file_of_one_name_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "text.txt"
    path.write_text("one")

    def every(exchange, own):
        return [own, json.dumps(dict.fromkeys(json.loads(own), "another")).encode()]

    monkeypatch.setattr(ranks, "all_gather_bytes", every)
    with pytest.raises(
        SettingError, match=rf"the SHA-256 of {path} is 'another' on rank 1, and '7692c3ad.*' on rank 0"
    ):
        ranks.compare_files(ranks.RunRanks(SimpleNamespace(size=2, rank=0)), path)
