"""Callbacks of the user's own: what they see of a search, and how they stop it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import l2l_nas
from l2l_nas.__main__ import main
from l2l_nas.errors import SettingError, StorageError
from l2l_nas.nas.callback import Stopped
from tests.cli.runs import TINY, events
from tests.runs.calls import SAID

CALLBACK = """
import json
from pathlib import Path
from l2l_nas import Callback

class Written(Callback):
    def phase(self, name, *, total, done):
        self.note("phase", name)

    def trial(self, record, records):
        self.note("trial", record.number, len(records), record.values["accuracy"])

    def finalist(self, finalist):
        self.note("finalist", finalist.values["accuracy"])

    def note(self, *what):
        with open("seen.jsonl", "a") as file:
            print(json.dumps(what), file=file)

def nothing():
    return 3
"""


@pytest.mark.slow
def test_callbacks_see_a_search_go_by(problem, tmp_path, refused):
    (tmp_path / "mine.py").write_text(CALLBACK)
    words = ["search", "space.pool=tiny.py:build", *TINY, "search.trial_weights=fork"]
    assert main([*words, "folder=run", "callbacks=[mine.py:Written]", "search.workers=2"]) == 0
    seen = [json.loads(line) for line in (tmp_path / "seen.jsonl").read_text().splitlines()]
    assert [one[1] for one in seen if one[0] == "phase"] == ["warm-up", "search", "finalists"]
    assert sorted(one[1] for one in seen if one[0] == "trial") == list(range(len([o for o in seen if o[0] == "trial"])))
    assert seen[-1] == [
        "finalist",
        json.loads((tmp_path / "run" / "result.json").read_text())["best"]["values"]["accuracy"],
    ]
    # what stands in a folder is not imported: a run that goes on without it is not seen
    assert main(["search", "space.pool=tiny.py:build", "resume=run", "search.trials=14", "search.workers=2"]) == 0
    assert len((tmp_path / "seen.jsonl").read_text().splitlines()) == len(seen)
    assert "mine.py:nothing gave int; expected a subclass of l2l_nas.Callback" in refused(
        *words, "folder=other", "callbacks=[mine.py:nothing]"
    )
    assert "callbacks/Written" in refused(*words, "folder=other", "callbacks=[Written]")
    assert not (tmp_path / "other").exists()


class _Third(l2l_nas.Callback):
    def __init__(self, error: BaseException) -> None:
        self.error, self.records = error, []

    def trial(self, record, records):
        self.records.append(record)
        if len(self.records) == 3:
            raise self.error


@pytest.mark.slow
def test_a_callback_stops_a_search_which_returns_what_it_has_and_goes_on(problem):
    seen = _Third(l2l_nas.Stopped())
    result = l2l_nas.search(problem, folder="run", callbacks=[seen], progress=False, **SAID)
    assert len(seen.records) == len(result.study.trials) == 3
    assert result.content["trials"]["complete"] == 3
    best = max(seen.records, key=lambda record: record.values["accuracy"])
    assert result.best.values["accuracy"] == best.values["accuracy"]
    assert not result.best.is_trained
    with pytest.raises(StorageError, match=r"before its finalists were trained.*resume='run'\)$"):
        result.network()
    before = result.content["seconds"]
    page = (result.folder / "report.html").read_text()
    assert "Callback _Third stopped the search" in page
    assert "run before it went on" not in page
    result = l2l_nas.search(problem, resume="run", progress=False)
    assert sum(not t.user_attrs["cached"] for t in result.study.trials) == 12
    assert result.best.is_trained
    assert result.content["seconds"] > before  # of both sessions


def test_a_callback_that_stops_a_search_before_its_first_trial_gets_no_network(problem):
    class Never(l2l_nas.Callback):
        def phase(self, name, *, total, done):
            raise l2l_nas.Stopped

    result = l2l_nas.search(problem, folder="run", callbacks=[Never()], progress=False, **SAID)
    assert len(result.study.trials) == 0
    with pytest.raises(StorageError, match=r"has not finished; go on with: .*resume='run'"):
        _ = result.best


@pytest.mark.slow
def test_a_search_that_is_stopped_from_outside_returns_nothing(problem, monkeypatch):
    def poll(self):
        raise Stopped

    monkeypatch.setattr("l2l_nas.runs.progress.Display.poll", poll)
    with pytest.raises(KeyboardInterrupt):
        l2l_nas.search(problem, folder="run", progress=False, **SAID)
    assert not Path("run/result.json").exists()


def test_what_a_callback_raises_is_a_warning_and_the_search_has_its_result(problem, caplog, capsys):
    class Bad(l2l_nas.Callback):
        def trial(self, record, records):
            raise ConnectionError("no server")

    short = {**SAID, "trials": 3, "warmup_steps": 2}
    result = l2l_nas.search(
        problem,
        folder="run",
        callbacks=[Bad()],
        progress=False,
        warmup_paths="fair",
        relay={"clip_scope": "layer"},
        **short,
    )
    assert result.content["trials"]["complete"] == 3
    said = [record.message for record in caplog.records if record.name == "l2l_nas"]
    (line,) = [line for line in said if "callback" in line]
    assert line.startswith("callback Bad.trial raised ConnectionError: no server (test_callbacks.py, line")
    assert any("relay.clip_scope has no effect" in line for line in said)
    (event,) = events(result.folder, "callback")
    assert "Traceback" in event["traceback"]
    assert capsys.readouterr().out == ""


def test_callbacks_are_a_list(problem, tmp_path):
    with pytest.raises(SettingError, match="callbacks takes a list of callbacks"):
        l2l_nas.search(problem, callbacks=_Third(ValueError()), progress=False)
    assert not (tmp_path / "runs").exists()
