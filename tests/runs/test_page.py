"""Pages of every kind of search; and of folders and programs that are broken."""

from __future__ import annotations

import json
import random
import shutil

import pytest

from l2l_nas.__main__ import main
from l2l_nas.errors import StorageError
from l2l_nas.runs import page
from tests.cli.runs import TINY, assert_pages_whole, contents, events
from tests.report.pages import Reader
from tests.studies import change_events, change_result, unchained

# a report that is made again by a process of its own has pictures too
pytestmark = pytest.mark.usefixtures("pictures")
WORDS = ("search", "space.pool=tiny.py:build", *TINY)


def text_of(run) -> str:
    reader = Reader((run / "report.html").read_text())
    reader.refuse_references()
    return reader.text


def assert_same_again(run) -> None:
    """`report run=` makes the page again from the folder alone."""
    before = text_of(run).split("Made by")[0]
    assert main(["report", f"run={run.name}"]) == 0
    assert [word for word in text_of(run).split("Made by")[0].split() if not word[0].isdigit()] == [
        word for word in before.split() if not word[0].isdigit()
    ]


@pytest.mark.slow
def test_trials_that_were_stopped_early_are_on_the_page(pool, tmp_path) -> None:
    words = [
        "search.early_stop=halving",
        "search.trial_weights=fork",
        "search.steps_per_trial=8",
        "search.trials=16",
        "sampler=random",
    ]
    assert main([*WORDS, "folder=run", *words]) == 0
    stopped = [event for event in events(tmp_path / "run") if event["state"] == "stopped" and not event["cached"]]
    assert stopped
    text = text_of(tmp_path / "run")
    assert f"{len(stopped)} stopped early" in text
    assert "stopped early after" in text or stopped[0]["reason"] in text
    assert_same_again(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objectives", "title"),
    [
        ("[accuracy]", "Accuracy against parameters"),
        ("[accuracy,flops]", "Accuracy against flops"),
        ("[accuracy,loss]", "Accuracy against loss"),
        ("[accuracy,loss,parameters]", "Accuracy against loss and parameters"),
        ("[accuracy,parameters,streamed_bytes]", "Accuracy against parameters and streamed_bytes"),
    ],
)
def test_one_to_three_objectives_are_drawn_as_such(pool, tmp_path, objectives, title) -> None:
    assert main([*WORDS, "folder=run", f"objectives={objectives}", "search.finalists=4"]) == 0
    text = text_of(tmp_path / "run")
    assert title in text
    for name in objectives[1:-1].split(",")[1:]:
        assert {"flops": "FLOPs of a forward pass (less", "loss": "loss, trial score (less"}.get(name, name[:6]) in text
    assert_same_again(tmp_path / "run")


@pytest.mark.slow
def test_trials_of_a_candidate_that_was_retired_are_shown_as_such(pool, tmp_path) -> None:
    assert main([*WORDS, "folder=run"]) == 0
    assert main([*WORDS, "resume=run", "search.trials=16", "search.retire=[*/tanh]"]) == 0
    old = [event["architecture"] for event in events(tmp_path / "run") if "tanh" in event["architecture"]]
    assert old
    text = text_of(tmp_path / "run")
    assert "no longer in the space: " in text
    assert "a trial with candidates that the space no longer has" in text
    assert "16 of 16" in text
    assert_same_again(tmp_path / "run")


@pytest.mark.slow
def test_a_data_set_without_a_test_part_has_no_figure_of_it_anywhere(pool, tmp_path, capsys) -> None:
    file = tmp_path / "tiny.py"
    file.write_text(file.read_text().replace("*data(samples))", "*data(samples), test_fraction=0)"))
    assert main([*WORDS, "folder=run", "search.finalists=3"]) == 0
    text = text_of(tmp_path / "run")
    assert "these data have no test part" in text
    assert "accuracy, test" not in text
    said = capsys.readouterr().out
    assert said.count("no test part: ") == 2  # before the search, and beside the result
    assert "test:" not in said
    best = json.loads((tmp_path / "run" / "result.json").read_text())["best"]
    assert (best["test"], best["standard_error"]["test"]) == (None, None)
    assert best["validation"]["accuracy"] > 0


@pytest.mark.slow
def test_without_finalists_the_page_says_that_its_score_is_a_trial_s(pool, tmp_path) -> None:
    assert main([*WORDS, "folder=run", "search.finalists=0"]) == 0
    text = text_of(tmp_path / "run")
    best = json.loads((tmp_path / "run" / "result.json").read_text())["best"]
    assert f"Best network: accuracy {best['values']['accuracy']:.4f} trial score, with" in text
    assert "No finalists were trained" in text


@pytest.mark.slow
def test_a_mistake_in_the_page_never_ends_a_search_and_is_told_everywhere(
    pool, tmp_path, monkeypatch, capsys, page_may_fail
) -> None:
    def broken(summary):
        raise KeyError("a state that no table knows")

    monkeypatch.setattr(page, "render_page", broken)
    assert main([*WORDS, "folder=run"]) == 0
    said = capsys.readouterr().out
    assert said.count("warning: no report.html: run: no page can be made of this folder (KeyError: ") == 1
    assert "  report " not in said
    pages = events(tmp_path / "run", "page")
    assert pages
    assert all("a state that no table knows" in event["problem"] for event in pages)
    assert all("Traceback" in event["traceback"] and "in broken" in event["traceback"] for event in pages)
    with pytest.raises(AssertionError, match="a state that no table knows"):
        assert_pages_whole(tmp_path)  # what every test of a search ends with
    assert main(["report", "run=run"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "no page can be made of this folder (KeyError: 'a state that no table knows', at test_page.py:" in said


def test_page_and_result_say_what_finalists_were_compared_by(finished):
    result = json.loads((finished / "result.json").read_text())
    best, text = result["best"], text_of(finished)
    assert best["compared_by"]["steps"] == [3, 4, 5]
    rungs = [best["rungs"][f"{step}/5"]["accuracy"] for step in (3, 4, 5)]
    assert best["compared_by"]["values"]["accuracy"] == pytest.approx(sum(rungs) / 3)
    assert best["validation"]["accuracy"] == best["values"]["accuracy"] == rungs[-1]  # what its weights have
    assert "The search chose by the mean of the last 3 validation scores" in text
    assert "accuracy, mean of the last validations" in text
    trials = result["resolved"]["trials"]
    assert f"leaves out 0): {trials['differ']} of {trials['others']}" in text


def test_a_run_without_a_test_part_has_a_page_that_says_so(finished) -> None:
    result = json.loads((finished / "result.json").read_text())
    best = {**result["best"], "test": None, "standard_error": {}}
    best["compared_by"] = {**best["compared_by"], "standard_error": {}}

    def untested(event):
        event.pop("data", None)
        if event["event"] == "finalist":
            event |= {"test": None, "standard_error": {}}
            event["compared_by"]["standard_error"] = {}
        return event

    change_events(finished, untested)
    change_result(finished, lambda content: {**content, "best": best, "finalists": [best], "pareto": []})
    assert main(["report", "run=run"]) == 0
    text = text_of(finished)
    shown = f"accuracy {best['values']['accuracy']:.4f} validation, with {best['values']['parameters']:,.0f} parameters"
    assert f"Best network: {shown}" in text
    assert "this run measured no test part" in text
    assert "accuracy, test" not in text
    assert "±" not in text
    assert "samples" not in text.split("Finalists")[0]


def harm(run, generator: random.Random) -> str:
    """Change one thing in one file, as no program of ours would."""
    name = generator.choice(["study.log", "config.yaml"])
    content = unchained((run / name).read_bytes()).decode()  # else the chain is what is wrong
    way = generator.choice(["cut", "swap", "value", "key"])
    at = generator.randrange(len(content))
    if way == "cut":
        content = content[:at]
    elif way == "swap":
        content = content[:at] + generator.choice('{}[]",:0x') + content[at + 1 :]
    elif way == "value":
        begin = content.find(": ", at)
        end = min(place for mark in ",}\n" if (place := content.find(mark, begin)) >= 0) if begin >= 0 else at
        new = generator.choice(["null", "[]", "{}", "-1", "1e999", '"x"', "[[]]", "NaN", "true", "1" * 400])
        content = content[: max(begin, 0) + 2] + new + content[end:]
    else:
        begin = content.find('"', at)
        content = content[: begin + 1] + "z" + content[begin + 1 :]
    (run / name).write_text(content)
    return f"{way} {name} at {at}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_folder_that_is_harmed_anywhere_gives_a_page_or_one_line(finished, capsys, seed, page_may_fail) -> None:
    generator = random.Random(seed)
    whole = finished.parent / "whole"
    shutil.copytree(finished, whole)
    refused = []
    for _ in range(40):
        shutil.rmtree(finished)
        shutil.copytree(whole, finished)
        what = harm(finished, generator)
        before = contents(finished)
        try:
            Reader(page.page_of(finished, is_running=False)).refuse_references()
        except StorageError as error:
            refused.append(f"{what}: {error}")
        assert contents(finished) == before, what
    assert refused
    for line in refused:
        assert "\n" not in line
        assert "mistake of this program" not in line, repr(line)
    code = main(["report", "run=run", "out=page.html"])  # of the last one
    said = capsys.readouterr()
    assert code in (0, 2), what
    assert said.err.count("\n") == (1 if code else 0), (what, said.err)
