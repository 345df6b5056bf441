"""Objectives, limits and early stopping from the command line; metrics and costs of the user's own."""

from __future__ import annotations

import json

import optuna
import pytest

from l2l_nas.__main__ import main
from tests.cli.runs import POOL, TINY, contents, events
from tests.studies import saved_study

WORDS = ("search", "space.pool=tiny.py:build", *TINY)

OWN = (
    POOL.replace("import Candidate", "import Classification, Metric, Candidate")
    + """
def spread(outputs, targets):
    return outputs.std()

def own(task=None, metrics=None, costs=None):
    costs = costs if costs is not None else {"layers": lambda a: sum(name != "skip" for name in a.choices)}
    metrics = metrics if metrics is not None else {"spread": Metric(spread)}
    task = task or Classification()
    return Problem(pool(), Data.from_arrays(*data(160)), task=task, metrics=metrics, costs=costs)

class Odd(Classification):
    def __init__(self, given):
        self.given = given
    def measure(self, outputs, targets):
        return self.given

def misses(): return own(Odd({"accuracy": 1.0}))
def more(): return own(Odd({"accuracy": 1.0, "loss": 1.0, "f1": 1.0}))
def pair(): return own(Odd((0.5, 0.5)))
def tensor(): return own(metrics={"spread": Metric(lambda outputs, targets: outputs)})
def raises(): return own(metrics={"spread": Metric(lambda outputs, targets: outputs[0, 99])})
def nan(): return own(Odd({"accuracy": float("nan"), "loss": 1.0}))
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
    tables = said.split("Best trials")[1].split("  costs")[0].splitlines()
    assert max(len(line) for line in tables if not line.startswith("best")) <= 80
    assert (tmp_path / "run" / "pareto.png").exists()


@pytest.mark.slow
def test_limits_are_those_of_a_dict_too_and_stand_in_the_run_s_settings(pool, tmp_path):
    assert main([*WORDS, "folder=run", "search.limits={parameters: 200, flops: 400}", "search.trials=3"]) == 0
    assert result_of(tmp_path / "run")["best"]["values"]["parameters"] <= 200
    assert "  limits:\n    parameters: 200\n    flops: 400\n" in (tmp_path / "run" / "config.yaml").read_text()


@pytest.mark.slow
def test_trials_that_lag_behind_are_stopped_and_a_resumed_run_goes_on_with_what_it_knows(pool, tmp_path, capsys):
    words = [*WORDS, "search.early_stop=halving", "search.trial_weights=scratch", "search.steps_per_trial=8"]
    words += ["search.finalist_steps=12", "sampler=random"]  # which proposes some that lag
    assert main([*words, "folder=run", "search.trials=12"]) == 0
    capsys.readouterr()
    assert main([*words, "resume=run", "search.trials=20"]) == 0
    said = capsys.readouterr().out
    trials = result_of(tmp_path / "run")["trials"]
    assert trials["stopped"] > 0
    assert trials["complete"] + trials["stopped"] == 20
    assert f"{trials['stopped']} stopped early" in said
    reasons = [event["reason"] for event in events(tmp_path / "run") if event["state"] == "stopped"]
    assert all("of 8 steps: number" in reason for reason in reasons)
    late = [event for event in events(tmp_path / "run") if event["state"] == "stopped" and event["number"] >= 12]
    # who knew nothing of the first twelve could not speak of more than eight
    assert any(int(event["reason"].split(" of ")[2].split()[0]) > 8 for event in late)


@pytest.mark.slow
def test_a_run_that_goes_on_under_tighter_limits_shows_nothing_that_breaks_them(pool, tmp_path):
    assert main([*WORDS, "folder=run"]) == 0
    assert main([*WORDS, "resume=run", "search.limits.parameters=120", "search.trials=14"]) == 0
    result = result_of(tmp_path / "run")
    assert all(entry["values"]["parameters"] <= 120 for entry in (result["best"], *result["pareto"]))


@pytest.mark.slow
def test_metrics_and_costs_of_ones_own_are_objectives_and_limits(mine, tmp_path, capsys):
    words = [*mine(), "objectives=[spread,layers]", "search.limits.layers=4", "folder=run"]
    assert main(words) == 0
    result = result_of(tmp_path / "run")
    assert result["objectives"] == [{"name": "spread", "maximize": True}, {"name": "layers", "maximize": False}]
    assert all(2 <= entry["values"]["layers"] <= 4 for entry in result["pareto"])
    assert result["best"]["values"]["spread"] > 0
    capsys.readouterr()
    assert main(["evaluate", "run=run", "space.pool=mine.py:own"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "spread" in line)
    assert line.endswith("as reported")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("misses", "the task's measure misses loss; its metrics are accuracy, loss"),
        ("more", "the task's measure also has f1"),
        ("pair", "the task's measure gave a tuple of 2; expected a dict with a number for each of accuracy, loss"),
        ("tensor", "metric 'spread' gave a tensor of [32, 2]; expected one number"),
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


@pytest.mark.slow
def test_where_every_trial_gives_nan_the_run_ends_with_one_line_that_names_the_metric(mine, tmp_path, capsys):
    assert main([*mine("nan"), "search.trials=3", "folder=run"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(
        "error: no trial finished: 0 refused by constraints, 3 failed; the last reason: the accuracy"
    )
    assert {event["state"] for event in events(tmp_path / "run") if not event["cached"]} == {"failed"}
