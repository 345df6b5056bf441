"""What a search leaves behind with other paths and other weights, from the command line."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from l2l_nas.__main__ import main
from l2l_nas.nas.callback import Stopped
from l2l_nas.nas.strategies import random_search
from tests.cli.runs import POOL, TINY, events

NUMBERS = ("warmup_steps", "trials", "steps_per_trial", "finalist_steps")
WORDS = ("search", "space.pool=tiny.py:build", *TINY)


def read(path):
    return json.loads(path.read_text())


@pytest.mark.slow
def test_under_trained_candidates_are_named_in_one_line_and_in_the_log(pool, tmp_path, capsys):
    few = [*WORDS, "search.warmup_steps=3", "search.trials=2"]
    assert main([*few, "folder=run"]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert len(said) == 1
    assert "candidates less than a third as often as the mean of its position: layer0/" in said[0]
    assert said[0].removeprefix("warning: ") == events(tmp_path / "run", "coverage")[0]["warning"]
    assert main([*WORDS, "search.warmup_paths=fair", "search.warmup_steps=8", "search.trials=2", "folder=fair"]) == 0
    assert "warning" not in capsys.readouterr().out
    (logged,) = events(tmp_path / "fair", "coverage")
    assert logged["warning"] == ""
    coverage = read(tmp_path / "fair" / "result.json")["coverage"]
    assert logged["warmup"] == coverage["warmup"]
    assert set(coverage["warmup"]["layer0"].values()) == {2}
    assert sum(coverage["trials"]["layer0"].values()) == 2 * 2


@pytest.mark.slow
def test_from_scratch_there_is_no_warm_up_and_it_says_so(pool, tmp_path, capsys):
    assert main([*WORDS, "search.trial_weights=scratch", "folder=run"]) == 0
    said = capsys.readouterr().out
    assert "no warm-up: search.trial_weights=scratch would not use its weights" in said
    assert events(tmp_path / "run", "phase")[0]["total"] == 0
    assert read(tmp_path / "run" / "result.json")["trials"]["complete"] == 12


@pytest.mark.slow
def test_the_result_tells_trial_scores_and_trained_scores_apart_and_the_front_is_trained(pool, tmp_path, capsys):
    assert main([*WORDS, "folder=run", "search.finalists=4"]) == 0
    said = capsys.readouterr().out
    result = read(tmp_path / "run" / "result.json")
    best, finalists = result["best"], result["finalists"]
    assert len(finalists) == 4
    assert best in finalists
    assert all(entry in finalists for entry in result["pareto"])
    assert all(entry["trained"] is False for entry in result["trial_front"])
    for entry in (*finalists, *result["trial_front"]):
        assert entry["trial_score"].keys() == {"accuracy", "loss"}
        scored = entry["trial_score"] if entry in result["trial_front"] else entry["validation"]
        assert entry["values"] == {**scored, **entry["costs"]}
    longest = max(entry["steps"] for entry in finalists)
    for entry in finalists:
        if entry["steps"] == longest:
            assert entry["test"].keys() == entry["standard_error"]["test"].keys() == {"accuracy", "loss"}
        else:  # stopped on its way: the test part is not for it
            assert entry["test"] is entry["standard_error"]["test"] is None
    assert all(entry["steps"] == longest for entry in (best, *result["pareto"]))
    error = best["standard_error"]["test"]["accuracy"]
    assert f"{best['test']['accuracy']:.4f} ± {error:.4f} test" in said
    assert result["data"]["samples"] == {"training": 96, "validation": 32, "test": 32}


@pytest.mark.slow
def test_what_nobody_says_follows_from_the_data_and_is_kept_and_said(pool, tmp_path, capsys):
    few = [word for word in WORDS if not word.startswith(("search.warmup_steps", "search.finalist_steps"))]
    assert main([*few, "train.batch_size=32", "folder=run"]) == 0
    # 96 samples are 3 steps a pass: 20 passes for each of 4 candidates, 38 for a finalist
    assert (
        "240 steps of warm-up, 12 trials of 2 steps, 1 finalist of 110 steps; 374 steps in all"
        in capsys.readouterr().out
    )
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["search"]
    assert (config["warmup_steps"], config["trials"], config["finalist_steps"]) == (240, 12, 110)
    assert sum(read(tmp_path / "run" / "result.json")["coverage"]["warmup"]["layer0"].values()) == 240
    assert main(["search", "resume=run", "space.pool=tiny.py:build", "search.trials=14"]) == 0
    assert "steps of warm-up" not in capsys.readouterr().out  # nothing is divided anew
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["search"]["warmup_steps"] == 240


@pytest.mark.slow
def test_a_time_is_divided_and_kept(pool, tmp_path, capsys, refused):
    words = ["search", "space.pool=tiny.py:build", "search.time=8s", "search.finalists=2", "export=false"]
    assert main([*words, "folder=run"]) == 0
    assert re.search(
        r"\d+ trials of \d+ steps, 2 finalists in 2 rounds of halving, up to [\d,]+ steps", capsys.readouterr().out
    )
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["search"]
    assert config["time"] == "8s"
    assert config["trials"] >= 8
    assert read(tmp_path / "run" / "result.json")["trials"]["complete"] == config["trials"]
    assert "search.time" in refused("search", "resume=run", "space.pool=tiny.py:build", "search.time=20s")
    line = refused(
        *words[:2], "search.time=1m", "folder=other", *[f"search.{name}={9 + n}" for n, name in enumerate(NUMBERS)]
    )
    assert "leave one of them out" in line
    said = ["search.finalists=0", "search.trials=9", "search.steps_per_trial=9"]
    assert "or without effect" in refused(*words[:3], "folder=other", *said)
    assert "measures a few steps in memory" in refused(*words[:3], "folder=other", "relay.storage=file")
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_a_run_without_finalists_may_go_on_with_some(pool, tmp_path):
    words = ["search", "space.pool=tiny.py:build", "search.warmup_steps=9", "search.trials=3", "export=false"]
    assert main([*words, "search.finalists=0", "folder=run"]) == 0
    assert main([*words, "search.finalists=1", "resume=run"]) == 0
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["search"]["finalist_steps"] == 110
    assert read(tmp_path / "run" / "result.json")["best"]["validation"]["accuracy"] > 0.5


@pytest.mark.slow
def test_random_search_of_as_many_steps_stands_beside_the_result(pool, tmp_path, capsys):
    words = [*WORDS, "search.finalist_steps=20", "search.trials=3", "folder=run"]
    assert main(words) == 0
    plain = read(tmp_path / "run" / "result.json")
    assert plain["baseline"] is None
    assert "Beside random search" not in (tmp_path / "run" / "report.html").read_text()
    capsys.readouterr()
    assert main([*words[:-1], "resume=run", "search.baseline=random"]) == 0  # finalists stay, and are not trained again
    result, said = read(tmp_path / "run" / "result.json"), capsys.readouterr().out
    assert result["best"] == plain["best"]
    beside = result["baseline"]
    assert (beside["networks"], beside["total_steps"]) == (3, 30 + 3 * 2 + 20)
    assert beside["total_steps"] == sum(one["steps"] for one in plain["spent"].values())
    assert set(beside["standard_error"]) == {"validation", "test"}
    assert f"(3 networks, 56 steps in all): accuracy {beside['validation']['accuracy']:.4f}" in said
    assert "On the test part the search's network has" in said
    (logged,) = events(tmp_path / "run", "baseline")
    assert {name: logged[name] for name in beside} == beside
    page = (tmp_path / "run" / "report.html").read_text()
    assert 'id="baseline"' in page
    assert "#baseline" in page
    assert f"{beside['test']['accuracy']:.4f}" in page
    assert "</html>" in page
    phases = [event["name"] for event in events(tmp_path / "run", "phase")]
    assert phases.count("baseline") == 1
    assert phases.count("finalists") == 1


@pytest.mark.slow
def test_a_search_that_is_stopped_in_its_baseline_keeps_its_finalists(pool, tmp_path, monkeypatch, capsys):
    words = [*WORDS, "search.finalist_steps=20", "search.trials=3", "search.baseline=random", "folder=run"]

    def stopped(*_, **__):
        raise Stopped

    with monkeypatch.context() as patched:
        patched.setattr(random_search, "play", stopped)
        assert main(words) == 130
    assert not (tmp_path / "run" / "result.json").exists()
    (trained,) = events(tmp_path / "run", "finalist")
    assert main([*words[:-1], "resume=run"]) == 0
    held = events(tmp_path / "run", "finalist")[1]
    assert {**held, "time": 0} == {**trained, "time": 0}
    phases = [event["name"] for event in events(tmp_path / "run", "phase")]
    assert phases.count("finalists") == 1
    assert phases.count("baseline") == 2
    assert read(tmp_path / "run" / "result.json")["baseline"]["networks"] == 3


LATE = """

class Late(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("count", torch.ones(()))

    def forward(self, x):  # not finite from the 14th step on
        if self.training:
            self.count.mul_(4.0)
        return self.linear(x) + (self.count * 1e30 - self.count * 1e30)

def late():
    head = Position("head", Candidate("head", lambda: nn.Linear(8, 2)))
    stem = Position("stem", Candidate("stem", lambda: nn.Linear(2, 8)))
    middle = Position("middle", [Candidate("late", Late), Candidate("linear", lambda: nn.Linear(8, 8))])
    return Problem(LayerPool([stem, middle, head], inputs=TensorSpec((2,))), Data.from_arrays(*data(160)))
"""


@pytest.mark.slow
def test_a_finalist_that_could_not_be_trained_is_told_on_the_terminal_in_the_result_and_on_the_page(
    pool, tmp_path, capsys
):
    (tmp_path / "tiny.py").write_text(POOL + LATE)
    words = [word for word in TINY if "trial" not in word and "finalist" not in word]
    few = ("search.trials=2", "search.steps_per_trial=2", "search.finalists=2", "search.finalist_steps=40")
    words += [*few, "search.warmup_steps=0", "train.micro_batch=32", "train.batch_size=32"]
    assert main(["search", "space.pool=tiny.py:late", "folder=run", *words]) == 0
    result = read(tmp_path / "run" / "result.json")
    (lost,) = result["given_up"]
    assert lost["trial"] not in {entry["trial"] for entry in result["finalists"]}
    says = f"trial {lost['trial']} could not be trained to the end: loss is not finite at step"
    assert f"warning: {says}" in capsys.readouterr().out
    assert [event["number"] for event in events(tmp_path / "run", "given_up")] == [lost["trial"]]
    assert says.capitalize() in (tmp_path / "run" / "report.html").read_text()


def test_whole_trainings_are_divided_and_kept(pool, tmp_path, capsys, refused):
    few = ["search", "space.pool=tiny.py:build", "objectives=[accuracy]", "export=false"]
    words = [*few, "search.finalist_steps=20", "search.trainings=3"]
    assert main([*words, "folder=run"]) == 0
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["search"]
    assert (config["trainings"], config["steps_per_trial"], config["finalist_steps"]) == (3, 1, 20)
    result = read(tmp_path / "run" / "result.json")
    assert result["trials"]["complete"] == config["trials"]
    assert len(result["finalists"]) == config["finalists"]
    assert config["trials"] + sum(one["steps"] - 1 for one in result["finalists"]) == 60
    # one that was killed before it had settings begins
    (tmp_path / "killed").mkdir()
    assert main([*words, "resume=killed"]) == 0
    begun = yaml.safe_load((tmp_path / "killed" / "config.yaml").read_text())["search"]
    assert begun == config
    capsys.readouterr()
    # a run that goes on divides nothing anew
    total = config["trials"] + 2
    assert main(["search", "resume=run", "space.pool=tiny.py:build", f"search.trials={total}"]) == 0
    assert read(tmp_path / "run" / "result.json")["trials"]["complete"] == total
    assert "search.trainings" in refused("search", "resume=run", "space.pool=tiny.py:build", "search.trainings=4")
    other = [*few, "search.trainings=6", "folder=other"]
    assert "each say how long a search takes" in refused(*other, "search.time=1m")
    assert "networks trained from first weights" in refused(*other, "search.trial_weights=shared")
    assert "search.finalists=0 trains none" in refused(*other, "search.finalists=0")
