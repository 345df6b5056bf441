"""Going on with a run that was finished, and other things that users do with folders."""

from __future__ import annotations

import json

import pytest

from l2l_nas.__main__ import main
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.saved import SavedRun
from tests.cli.runs import TINY, events
from tests.studies import change_result, saved_study

WORDS = ("search", "space.pool=tiny.py:build", *TINY)


def read(path):
    return json.loads(path.read_text())


@pytest.mark.parametrize("pictures", [[], ["pareto.png"]])
def test_what_draws_pictures_is_called_missing_where_none_was_drawn(finished, capsys, monkeypatch, pictures):
    monkeypatch.setattr("l2l_nas.runs.output.Output._draw_front", lambda *_: [("picture", name) for name in pictures])
    change_result(finished, lambda _: None)
    assert main([*WORDS, "resume=run"]) == 0
    said = capsys.readouterr().out
    assert ("matplotlib" in said) == (not pictures)
    assert all(name in said for name in pictures)


@pytest.mark.slow
def test_a_finished_run_resumed_to_a_larger_total_keeps_its_trials_and_adds_to_them(finished):
    before = events(finished)
    assert main([*WORDS, "search.trials=16", "resume=run"]) == 0
    assert events(finished)[: len(before)] == before
    assert read(finished / "result.json")["trials"]["complete"] == 16
    study = saved_study(finished)
    assert [trial.number for trial in study.trials] == list(range(len(study.trials)))
    assert len(study.trials) == len(events(finished))
    given = {event["number"]: event["values"] for event in events(finished)}
    for trial in study.trials:
        assert trial.values == list(given[trial.number].values())


@pytest.mark.slow
def test_the_same_command_twice_gives_the_same_search(finished, finished_once):
    assert main([*WORDS, "folder=again"]) == 0
    ours, other = read(finished / "result.json"), read(finished.parent / "again" / "result.json")
    assert (ours["best"], ours["pareto"], ours["trials"]) == (other["best"], other["pareto"], other["trials"])


def test_a_folder_s_files_say_the_same(finished):
    result, architecture = read(finished / "result.json"), read(finished / "architecture.json")
    assert architecture["choices"] == result["best"]["architecture"]
    assert architecture["positions"][0] == "stem"
    costs = {"parameters", "file_bytes", "flops", "streamed_bytes", "device_bytes"}
    assert {"accuracy", "loss", *costs} == result["best"]["values"].keys()
    assert result["pareto"]
    assert result["seconds"] > 0
    assert {"torch", "optuna", "python", "l2l_nas"} <= result["versions"].keys()
    assert "pool: tiny.py:build" in (finished / "config.yaml").read_text()
    first = next(event for event in SavedRun(RunFolder(finished)).events if event["event"] != "trial")
    assert first["event"] == "start"
    assert events(finished, "done")[0]["best"] == result["best"]["trial"]
    assert (finished / "pareto.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_space_smaller_than_the_trials_asked_for_is_searched_whole_and_says_so(pool, tmp_path, capsys):
    words = [*WORDS, "space.args.depth=1", "search.trials=50", "folder=run"]
    assert main(words) == 0
    assert "fewer than the 50 trials asked for: the space has no other allowed architectures" in capsys.readouterr().out
    assert read(tmp_path / "run" / "result.json")["trials"]["complete"] == 4
    assert main([*words, "resume=run"]) == 0
    assert read(tmp_path / "run" / "result.json")["trials"]["complete"] == 4


@pytest.mark.slow
def test_plain_output_has_no_escape_codes_and_a_line_for_each_phase(pool, capsys):
    assert main([*WORDS, "folder=run"]) == 0
    said = capsys.readouterr()
    assert "\x1b" not in said.out
    assert not said.err
    for word in ("warm-up", "search", "finalists", "best", "Finalists", "run/result.json"):
        assert word in said.out
