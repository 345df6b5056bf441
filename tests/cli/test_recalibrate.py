"""What a training found is recalibrated and exported, and measures what plain PyTorch measures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from l2l_nas import Classification, plain_module
from l2l_nas.__main__ import main
from l2l_nas.runs.locate import load_problem
from tests.cli.runs import contents
from tests.cli.test_train import read
from tests.training.test_retrain import plainly_recalibrated

NORMED = """\
import torch
from torch import nn
from l2l_nas import Candidate, Data, LayerPool, Position, Problem, TensorSpec

def build():
    kinds = {"tanh": nn.Tanh, "relu": nn.ReLU}
    def layer(act):
        return lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), act())
    pool = LayerPool(
        [
            Position("stem", Candidate("linear", lambda: nn.Linear(2, 8))),
            *(Position(f"layer{i}", [Candidate(name, layer(act)) for name, act in kinds.items()]) for i in range(2)),
            Position("head", Candidate("linear", lambda: nn.Linear(8, 2))),
        ],
        inputs=TensorSpec((2,)),
    )
    x = torch.rand(300, 2, generator=torch.Generator().manual_seed(0)) * 4 - 2
    return Problem(pool, Data.from_arrays(x, (torch.sin(2 * x[:, 0]) > x[:, 1]).long()))
"""


@pytest.mark.slow
def test_batch_norm_is_measured_anew_as_plain_pytorch_would(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("normed.py").write_text(NORMED)
    own = "space.pool=normed.py:build"
    Path("mine.json").write_text(json.dumps({"choices": ["linear", "tanh", "relu", "linear"]}))
    words = ["train", own, "architecture=mine.json", "folder=out", "train.steps=25", "train.batch_size=16"]
    assert main([*words, "train.micro_batch=16", "train.recalibrate=2", "train.validation_steps=10"]) == 0
    before = contents(tmp_path)
    capsys.readouterr()
    assert main(["evaluate", "run=out", "space.pool=normed.py:build", "recalibrate=9"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert contents(tmp_path) == before
    assert [line.split()[-2:] for line in said[1:3]] == [["as", "reported"]] * 2
    assert said[3].startswith("BatchNorm measured anew on 9 training batches")

    problem = load_problem("normed.py:build", {}, source="digits", validation_fraction=0.2)
    network = torch.export.load("out/export/model.pt2").module()
    architecture = problem.pool.architecture(["linear", "tanh", "relu", "linear"])
    plain = plain_module(problem.pool, architecture)
    plain.load_state_dict(network.state_dict())
    order = np.random.default_rng([0, 0]).permutation(len(problem.data.train))
    batches = [problem.data.train.inputs[0][order[16 * i : 16 * i + 16]] for i in range(9)]
    plainly_recalibrated(plain, batches)
    with torch.no_grad():
        outputs = torch.cat([plain(part) for part in problem.data.validation.inputs[0].split(16)])
    expected = Classification().measure((outputs,), problem.data.validation.targets)
    printed = {line.split()[1]: line.split()[2] for line in said[4:6]}
    assert printed == {name: f"{value:.4f}" for name, value in expected.items()}
    reported = read("out")["best"]["values"]
    assert f"{reported['loss']:.4f}" != printed["loss"]

    # the same, held: no steps from the best weights
    again = ["train", own, "run=out", "weights=best", "train.steps=0", "train.recalibrate=9", "folder=held"]
    assert main(again) == 0
    held = read("held")["best"]["values"]
    assert {name: held[name] for name in expected} == expected
    assert read("held", "export/export.json")["values"] == expected


def test_recalibration_of_a_network_without_statistics_says_so(finished, capsys, refused):
    assert main(["evaluate", "run=run", "space.pool=tiny.py:build", "recalibrate=3"]) == 0
    assert "there is nothing to recalibrate" in capsys.readouterr().out
    assert "recalibrate must be at least 0" in refused("evaluate", "run=run", "recalibrate=-1")


@pytest.mark.slow
def test_export_says_what_is_missing_and_names_the_extra(finished, refused, monkeypatch):
    assert "formats: no format 'onyx'; did you mean 'onnx'?" in refused("export", "run=run", "formats=[onyx]")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    line = refused("export", "run=run", "formats=[onnx]")
    assert line.endswith("not installed: pip install 'l2l-nas[onnx]'")
