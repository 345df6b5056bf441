"""What a search leaves behind with other paths and other weights, from the command line."""

from __future__ import annotations

import json

import optuna
import pytest

from l2l_nas.__main__ import main
from tests.cli.runs import TINY, events

WORDS = ("search", "space.pool=tiny.py:build", *TINY)


def read(path):
    return json.loads(path.read_text())


def trials_of(folder):
    storage = f"sqlite:///{folder / 'study.db'}"
    return optuna.load_study(study_name="search", storage=storage).trials


@pytest.mark.parametrize("paths", ["uniform", "fair", "sandwich"])
def test_coverage_of_warm_up_is_in_the_result_the_log_and_a_picture(pool, tmp_path, paths):
    assert main([*WORDS, "folder=run", f"search.warmup_paths={paths}", "search.warmup_steps=40"]) == 0
    coverage = read(tmp_path / "run" / "result.json")["coverage"]
    for index in range(4):
        steps = coverage["warmup"][f"layer{index}"]
        assert sum(steps.values()) == 40
        if paths == "fair":
            assert set(steps.values()) == {10}
        assert sum(coverage["trials"][f"layer{index}"].values()) == 12 * 2
    logged = events(tmp_path / "run", "coverage")
    assert [event["warmup"] for event in logged] == [coverage["warmup"]]
    assert (tmp_path / "run" / "coverage.png").read_bytes().startswith(b"\x89PNG")


def test_under_trained_candidates_are_named_in_one_line_and_in_the_log(pool, tmp_path, capsys):
    few = [*WORDS, "search.warmup_steps=3", "search.trials=2"]
    assert main([*few, "folder=run"]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert len(said) == 1
    assert "candidates less than a third as often as the mean of its position: layer0/" in said[0]
    assert said[0].removeprefix("warning: ") == events(tmp_path / "run", "coverage")[0]["warning"]
    assert main([*WORDS, "search.warmup_paths=fair", "search.warmup_steps=8", "search.trials=2", "folder=fair"]) == 0
    assert "warning" not in capsys.readouterr().out
    assert events(tmp_path / "fair", "coverage")[0]["warning"] == ""


@pytest.mark.parametrize("kind", ["shared", "fork", "scratch"])
def test_every_trial_in_the_study_tells_with_which_weights_it_was_scored(pool, tmp_path, kind):
    words = [*WORDS, f"search.trial_weights={kind}", "folder=run"]
    assert main(words) == 0
    assert main([*words, "search.trials=14", "resume=run"]) == 0
    trials = trials_of(tmp_path / "run")
    assert sum(not trial.user_attrs["cached"] for trial in trials) == 14
    for trial in trials:
        weights = trial.user_attrs["weights"]
        assert weights["kind"] == kind
        assert len(weights["crc32"]) == 8 * len(weights["visits"])
        assert len(json.dumps(weights)) < 200
    assert len({trial.user_attrs["weights"]["crc32"] for trial in trials if not trial.user_attrs["cached"]}) == 14


def test_from_scratch_there_is_no_warm_up_and_no_coverage_and_it_says_so(pool, tmp_path, capsys):
    assert main([*WORDS, "search.trial_weights=scratch", "folder=run"]) == 0
    said = capsys.readouterr().out
    assert "no warm-up: with search.trial_weights=scratch nothing would use its weights" in said
    assert "coverage.png" not in said
    assert not (tmp_path / "run" / "coverage.png").exists()
    assert events(tmp_path / "run", "phase")[0]["total"] == 0
    assert read(tmp_path / "run" / "result.json")["trials"]["complete"] == 12


def test_a_forked_search_saves_the_weights_of_warm_up(pool, tmp_path):
    """Whatever the trials did: a run without a trial's training ends with the same shared weights."""
    saved = []
    for folder, words in (("fork", ["search.trial_weights=fork"]), ("none", ["search.steps_per_trial=0"])):
        schedule = ["search.warmup_steps=30", f"folder={folder}"]
        assert main([*WORDS, *words, *schedule]) == 0
        states = read(tmp_path / folder / "weights" / "manifest.json")
        saved.append({key: entry["sha256"] for key, entry in states["states"].items()})
    assert saved[0] == saved[1]
