"""Objectives, limits and early stopping from the command line; metrics and costs of the user's own."""

from __future__ import annotations

import json

import optuna
import pytest

from l2l_nas.__main__ import main
from tests.cli.runs import POOL, TINY, contents
from tests.studies import saved_study

WORDS = ("search", "space.pool=tiny.py:build", *TINY)

OWN = (
    POOL.replace("import Candidate", "import Metric, Candidate")
    + """
def spread(outputs, targets):
    return outputs.std()

def own(metrics=None, costs=None):
    costs = costs if costs is not None else {"layers": lambda a: sum(name != "skip" for name in a.choices)}
    metrics = metrics if metrics is not None else {"spread": Metric(spread)}
    return Problem(pool(), Data.from_arrays(*data(160)), metrics=metrics, costs=costs)

def raises(): return own(metrics={"spread": Metric(lambda outputs, targets: outputs[0, 99])})
def no_number(): return own(costs={"layers": lambda a: None})
def clash(): return own(metrics={"layers": Metric(spread)})
"""
)


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A pool with metrics and costs of its own, in the working directory."""
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return lambda name="own": ("search", f"space.pool=mine.py:{name}", *TINY)


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


@pytest.mark.slow
def test_three_objectives_and_limits_end_up_in_the_result_the_study_and_the_tables(pool, tmp_path, capsys, pictures):
    limits = ["search.limits.flops=400", "search.limits.latency_ms=50", "search.limits.device_bytes=1MiB"]
    assert main([*WORDS, "folder=run", "objectives=[accuracy,flops,latency_ms]", *limits]) == 0
    said = capsys.readouterr().out
    result = result_of(tmp_path / "run")
    assert [goal["name"] for goal in result["objectives"]] == ["accuracy", "flops", "latency_ms"]
    names = {"accuracy", "loss", "parameters", "file_bytes", "flops", "streamed_bytes", "device_bytes", "latency_ms"}
    for entry in (result["best"], *result["pareto"]):
        assert entry["values"].keys() == names
        assert entry["values"]["flops"] <= 400
        assert entry["values"]["device_bytes"] <= 1 << 20
        assert 0 < entry["values"]["latency_ms"] <= 50
    assert result["trials"]["pruned"] > 0
    assert f"{result['trials']['pruned']} refused by constraints" in said
    study = saved_study(tmp_path / "run")
    for trial in study.trials:
        assert trial.user_attrs["metric_parameters"] > 0
        if trial.state is optuna.trial.TrialState.PRUNED:
            assert trial.user_attrs["metric_flops"] > 400
            assert "FLOPs, allowed 400" in trial.user_attrs["reason"]
    assert (tmp_path / "run" / "pareto.png").exists()


@pytest.mark.slow
def test_metrics_and_costs_of_ones_own_are_objectives_and_limits(mine, tmp_path, capsys):
    words = [*mine(), "objectives=[spread,layers]", "search.limits={layers: 4, flops: 900}", "folder=run"]
    assert main(words) == 0
    result = result_of(tmp_path / "run")
    assert result["objectives"] == [{"name": "spread", "maximize": True}, {"name": "layers", "maximize": False}]
    assert all(2 <= entry["values"]["layers"] <= 4 for entry in result["pareto"])
    assert "  limits:\n    layers: 4\n    flops: 900\n" in (tmp_path / "run" / "config.yaml").read_text()
    assert result["best"]["values"]["spread"] > 0
    capsys.readouterr()
    assert main(["evaluate", "run=run", "space.pool=mine.py:own"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "spread" in line)
    assert line.endswith("as reported")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", "metric 'spread' raised IndexError"),
        ("no_number", "cost 'layers' gave None, expected a finite number"),
        ("clash", "'layers' is a metric of the task and a cost; rename the metric"),
    ],
)
def test_an_objective_that_gives_no_number_or_a_wrong_count_is_told_before_anything_is_written(
    refused, mine, tmp_path, name, says
):
    before = contents(tmp_path)
    assert says in refused(*mine(name), "folder=run")
    assert {path: text for path, text in contents(tmp_path).items() if "__pycache__" not in path} == before
