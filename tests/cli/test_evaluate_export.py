"""A small run on the default space: its network, exported, gives the reported accuracy without this library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from l2l_nas.__main__ import main
from l2l_nas.eps.manifest import digest_of
from l2l_nas.report.text import with_error
from tests.cli.runs import contents, environment
from tests.studies import change_result

WORDS = (
    "search",
    "space=digits_conv",
    "data.source=digits",
    "objectives=[accuracy,parameters]",
    "search.trial_weights=shared",
    "space.args.channels=4",
    "space.args.depth=4",
    "search.warmup_steps=60",
    "search.trials=4",
    "search.steps_per_trial=2",
    "search.finalists=1",
    "search.finalist_steps=30",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("digits")
    assert main([*WORDS, f"folder={place / 'run'}"]) == 0
    return place / "run"


@pytest.mark.slow
def test_the_exported_network_gives_the_reported_accuracy_without_this_library(run, tmp_path):
    code = (
        "import sys; sys.modules['l2l_nas'] = None\n"
        "import torch\n"
        "from sklearn.datasets import load_digits\n"
        "from sklearn.model_selection import train_test_split\n"
        "torch.set_num_threads(1)\n"
        "bunch = load_digits()\n"
        "y = bunch.target\n"
        "rest, test = train_test_split(range(1797), test_size=360, random_state=0, stratify=y)\n"
        "_, chosen = train_test_split(rest, test_size=360, random_state=0, stratify=y[rest])\n"
        "images = torch.from_numpy(bunch.images).float().div(16).unsqueeze(1)\n"
        "network = torch.export.load(sys.argv[1]).module()\n"
        "with torch.no_grad():\n"
        "    assert network(images[:7]).shape == (7, 10)\n"
        "    for part in (chosen, test):\n"
        "        guesses = network(images[part]).argmax(dim=-1)\n"
        "        print(int((guesses == torch.from_numpy(y[part])).sum()) / len(part))\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, str(run / "export" / "model.pt2")],
        cwd=tmp_path,
        env={name: value for name, value in environment().items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    best = json.loads((run / "result.json").read_text())["best"]
    assert [float(line) for line in done.stdout.split()] == [best[part]["accuracy"] for part in ("validation", "test")]


@pytest.mark.slow
def test_evaluate_gives_what_was_reported(run, capsys):
    before = contents(run)
    assert main(["evaluate", f"run={run}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    result = json.loads((run / "result.json").read_text())["best"]
    assert lines[0] == " > ".join(result["architecture"])
    for name, line in zip(("accuracy", "loss"), lines[1:], strict=True):
        error = result["standard_error"]["validation"][name]
        shown = with_error(name, result["values"][name], error)
        assert line.split() == ["validation", name, *shown.split(), "as", "reported"]
    assert main(["evaluate", f"run={run}", "split=test"]) == 0
    for name, line in zip(("accuracy", "loss"), capsys.readouterr().out.splitlines()[1:], strict=True):
        error = result["standard_error"]["test"][name]
        shown = with_error(name, result["test"][name], error)
        assert line.split() == ["test", name, *shown.split(), "as", "reported"]
    assert main(["evaluate", f"run={run}", "split=train"]) == 0
    assert "as reported" not in capsys.readouterr().out
    assert contents(run) == before


@pytest.mark.slow
def test_export_writes_the_same_network_elsewhere(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["export", f"run={run}", "out=network"]) == 0
    assert sorted(os.listdir("network")) == ["export.json", "model.pt2", "state_dict.safetensors"]
    own = (run / "export" / "state_dict.safetensors").read_bytes()
    assert (tmp_path / "network" / "state_dict.safetensors").read_bytes() == own
    said = capsys.readouterr().out
    assert 'torch.export.load("network/model.pt2").module()' in said
    assert said.count("as reported") == 6  # accuracy and loss through the module, the state dict and the program


def test_a_metric_that_is_not_the_reported_one_is_a_warning_that_names_both(run, tmp_path, capsys):
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    true = json.loads((copy / "result.json").read_text())["best"]["values"]["accuracy"]

    def other(result):
        result["best"]["values"]["accuracy"] = 0.125
        return result

    change_result(copy, other)
    manifest = copy / "best" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["extra"]["values"]["accuracy"] = 0.125
    manifest.write_text(json.dumps({**content, "sha256": digest_of(content)}))
    assert main(["export", f"run={copy}", "formats=[state_dict]"]) == 0
    said = capsys.readouterr().out
    assert f"warning: state_dict: accuracy {true!r} on the validation data, reported 0.125" in said
    assert f"accuracy {true:.4f} differs by" in said
    assert not (copy / "export" / "model.pt2").exists()  # of the export before, which this one replaces
    assert json.loads((copy / "export" / "export.json").read_text())["reported"]["accuracy"] == 0.125


def test_a_run_with_a_pool_of_ones_own_is_evaluated_when_the_pool_is_named(finished, capsys):
    assert main(["evaluate", "run=run", "space.pool=tiny.py:build"]) == 0
    assert capsys.readouterr().out.count("as reported") == 2
    assert main(["export", "run=run", "space.pool=tiny.py:build"]) == 0
    assert (finished / "export" / "model.pt2").exists()


def test_other_data_than_those_of_the_run_are_told(finished, capsys):
    own = finished.parent / "tiny.py"
    own.write_text(own.read_text().replace("manual_seed(0)", "manual_seed(1)"))
    assert main(["evaluate", "run=run", "space.pool=tiny.py:build"]) == 0
    said = capsys.readouterr().out
    assert "warning: the validation and test data are others than those of run;" in said
    assert "as reported" not in said
    assert main(["export", "run=run", "space.pool=tiny.py:build", "formats=[state_dict]"]) == 0
    said = capsys.readouterr().out
    assert "warning: the validation and test data are others than those of run;" in said
    assert said.count("warning") == 1


@pytest.mark.slow
def test_a_network_that_cannot_be_traced_costs_a_warning_not_the_run(pool, tmp_path, monkeypatch, capsys):
    (tmp_path / "odd.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "from l2l_nas import Candidate, Data, LayerPool, Position, Problem, TensorSpec\n"
        "class Odd(nn.Linear):\n"
        "    def forward(self, x):\n"
        "        y = super().forward(x)\n"
        "        return y * 2 if x.device.type != 'meta' and float(x.sum()) > 0 else y\n"
        "def build():\n"
        "    pool = LayerPool([Position('a', [Candidate('odd', lambda: Odd(2, 2)),"
        " Candidate('other', lambda: Odd(2, 2))])], inputs=TensorSpec((2,)))\n"
        "    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))\n"
        "    return Problem(pool, Data.from_arrays(x, (x[:, 0] > 0).long()))\n"
    )
    words = ["search", "space.pool=odd.py:build", "folder=odd", "search.warmup_steps=2", "search.trials=1"]
    assert main([*words, "search.finalists=1", "search.finalist_steps=2"]) == 0
    said = capsys.readouterr()
    assert "warning: torch.export cannot trace this network" in said.out
    assert not said.err
    assert json.loads((tmp_path / "odd" / "result.json").read_text())["trials"]["complete"] == 1
    assert sorted(os.listdir(tmp_path / "odd" / "export")) == ["export.json", "state_dict.safetensors"]
    assert main(["export", "run=odd", "space.pool=odd.py:build", "out=again"]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: program was not written: torch.export cannot trace this network")
    assert said.err.count("\n") == 1
    assert sorted(os.listdir("again")) == ["export.json", "state_dict.safetensors"]


def test_weights_that_are_missing_do_not_start_from_their_seeds(finished, refused):
    manifest = finished / "best" / "manifest.json"
    content = json.loads(manifest.read_text())
    del content["states"]["head/linear"]
    manifest.write_text(json.dumps({**content, "sha256": digest_of(content)}))
    line = refused("evaluate", "run=run", "space.pool=tiny.py:build")
    assert "manifest.json: has no weights of 'head/linear'; restore it" in line


@pytest.mark.parametrize("best", [7, None, [], "best"])
def test_a_result_whose_best_is_none_is_one_line(finished, refused, best):
    change_result(finished, lambda result: {**result, "best": best})
    assert "damaged" in refused("evaluate", "run=run", "space.pool=tiny.py:build")
