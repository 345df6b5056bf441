"""`report.html`: written by every search, updated while it runs, and made again from the folder alone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from functools import partial

import pytest
import yaml

from l2l_nas.__main__ import main
from l2l_nas.runs import page
from l2l_nas.runs.folder import locked
from tests.cli.runs import TINY, contents, environment, events, start
from tests.report.pages import HOSTILE, Reader
from tests.studies import add_event, change_events, change_result, unchained

PARTS = ("validation", "test")
OWN = "space.pool=tiny.py:build"
WORDS = ("search", OWN, *TINY)


def read(path) -> Reader:
    reader = Reader(path.read_text())
    reader.refuse_references()
    return reader


def cut_off(run, *, after: str) -> None:
    """As if the search had been killed after the last event of this name."""
    path = run / "study.log"
    lines = path.read_bytes().splitlines(keepends=True)
    entries = [json.loads(line) for line in lines]
    told = [next(iter(one.get("system_attr", {"": one}).values())) for one in entries]
    names = [one.get("name", one.get("event", "trial" if "trial_id" in one or "distributions" in one else None))
             if isinstance(one, dict) else None for one in told]  # fmt: skip
    path.write_bytes(b"".join(lines[: len(names) - names[::-1].index(after)]))
    (run / "result.json").unlink()


@pytest.mark.slow
def test_networks_that_memory_is_too_small_for_are_not_measured(pool, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("l2l_nas.runs.output.free_memory_bytes", lambda: 100)
    assert main([*WORDS, "folder=run"]) == 0
    (latency,) = events(tmp_path / "run", "latency")
    assert latency["latency_ms"] == {}
    assert "not measured" in latency["problem"]
    assert "measured" not in json.loads((tmp_path / "run" / "result.json").read_text())


@pytest.mark.slow
def test_a_search_writes_the_page_and_names_it(pool, tmp_path, capsys) -> None:
    assert main([*WORDS, "folder=run", "search.finalists=3"]) == 0
    said = capsys.readouterr().out
    assert "  report   run/report.html\n" in said
    text = read(tmp_path / "run" / "report.html").text
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    best = result["best"]
    shown = [f"{best[part]['accuracy']:.4f} ± {best['standard_error'][part]['accuracy']:.4f} {part}" for part in PARTS]
    assert f"Best network: accuracy {', '.join(shown)}, with " in text
    assert " finished " in text
    assert "python -m l2l_nas search resume=run space.pool=tiny.py:build search.trials=24" in text
    (latency,) = events(tmp_path / "run", "latency")
    assert latency["latency_ms"].keys() == {str(entry["trial"]) for entry in result["finalists"]}
    assert f"latency {latency['latency_ms'][str(best['trial'])]:.4g} ms" in text
    given = {event.pop("number"): event for event in events(tmp_path / "run", "finalist")}
    assert len(result["finalists"]) == len(given) == 3
    for entry in result["finalists"]:
        event = given[entry["trial"]]
        own = event.keys() - {"event", "time", "at_trial"}
        assert {name: entry[name] for name in own}.items() <= event.items()
        shown = f"{entry['validation']['accuracy']:.4f} ± {entry['standard_error']['validation']['accuracy']:.4f}"
        assert shown in text


def test_the_command_makes_the_same_page_from_the_folder_alone(finished, capsys) -> None:
    written = read(finished / "report.html").text
    (finished / "report.html").unlink()
    (finished.parent / "tiny.py").unlink()  # the user's code is not needed
    before = contents(finished)
    assert main(["report", "run=run"]) == 0
    assert capsys.readouterr().out == "  report   run/report.html\n"
    after = contents(finished)
    assert after.pop("report.html")
    assert after == before
    made = re.compile(r"Made by l2l_nas on [\d :-]+|\d+ms|\d+\.?\d* s|\d+\.?\d*%")  # times, its own among them
    assert made.sub("", read(finished / "report.html").text) == made.sub("", written)


@pytest.mark.slow
def test_the_page_can_be_written_elsewhere(finished, refused) -> None:
    before = contents(finished)
    assert main(["report", "run=run", "out=page.html"]) == 0
    assert (finished.parent / "page.html").exists()
    assert contents(finished) == before
    assert "out=run: a folder; name the file, such as run/report.html" in refused("report", "run=run", "out=run")
    assert "no such file or folder" in refused("report", "run=run", "out=nowhere/page.html")


@pytest.mark.slow
@pytest.mark.parametrize("after", ["space", "warm-up", "trial", "finalist", "report"])
def test_a_run_that_was_killed_has_a_page(finished, after) -> None:
    cut_off(finished, after=after)
    assert main(["report", "run=run"]) == 0
    text = read(finished / "report.html").text
    assert " cut off " in text
    assert "To go on with the search" in text
    assert "Export the best" not in text
    with locked(finished):
        assert main(["report", "run=run"]) == 0
    assert " running " in read(finished / "report.html").text


@pytest.mark.slow
def test_the_page_is_written_anew_while_the_search_runs(pool, tmp_path, monkeypatch) -> None:
    assert main([*WORDS, "folder=seldom"]) == 0
    assert len(events(tmp_path / "seldom", "page")) == 2  # at the beginning and the end of a short run
    monkeypatch.setattr(page, "_REFRESH_SECONDS", 0.0)
    monkeypatch.setattr(page, "_MAX_SHARE", 1e9)
    assert main([*WORDS, "folder=often"]) == 0
    assert len(events(tmp_path / "often", "page")) > 30 + 12
    assert [e["values"] for e in events(tmp_path / "often")] == [e["values"] for e in events(tmp_path / "seldom")]


@pytest.mark.slow
def test_a_page_that_cannot_be_written_costs_a_warning_not_the_search(pool, tmp_path, capsys, page_may_fail) -> None:
    assert main([*WORDS, "folder=run"]) == 0
    (tmp_path / "run" / "report.html").unlink()
    (tmp_path / "run" / "report.html" / "mine").mkdir(parents=True)
    capsys.readouterr()
    assert main(["search", OWN, "search.trials=14", "resume=run"]) == 0
    said = capsys.readouterr().out
    assert "warning: no report.html: run/report.html: " in said
    assert "  report " not in said
    assert (tmp_path / "run" / "result.json").exists()
    assert (tmp_path / "run" / "report.html" / "mine").exists()
    assert not list((tmp_path / "run").glob(".report*"))


@pytest.mark.long
@pytest.mark.slow
def test_a_page_needs_no_matplotlib(finished) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None; from l2l_nas.__main__ import main; sys.exit(main(sys.argv[1:]))"
    )
    (finished / "report.html").unlink()
    done = subprocess.run(
        [sys.executable, "-c", code, "report", "run=run"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Best network" in read(finished / "report.html").text


def cut(name: str, size: int = 50):
    def harm(run):
        (run / name).write_bytes((run / name).read_bytes()[:size])

    return harm


def garbage(name: str):
    def harm(run):
        (run / name).write_bytes(b"\xff\x00garbage" * 3000)

    return harm


def missing(name: str):
    def harm(run):
        (run / name).unlink()

    return harm


def changed(name: str, old: str, new: str):
    def harm(run):
        text = (run / name).read_text()
        assert old in text
        (run / name).write_text(text.replace(old, new))

    return harm


def no_events(run):
    change_events(run, lambda event: None)


def of_space(name):
    def renamed(event):
        return json.loads(json.dumps(event).replace("tanh", name)) if event["event"] == "space" else event

    return lambda run: change_events(run, renamed)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (missing("study.log"), "study.log: there is no study; check the folder"),
        (cut("study.log", 300), "study.log: does not read as a study"),
        (changed("study.log", '{"op_code":0', '{"op_code":"0"'), "study.log: damaged"),
        (no_events, "run: the search was cut off before it began; go on with: python -m l2l_nas search resume=run"),
        (of_space("tnah"), "study.log: damaged (an architecture of another space)"),
        (missing("config.yaml"), "config.yaml: no such file"),
        (garbage("config.yaml"), "config.yaml: damaged"),
        (changed("config.yaml", "trials: 12", "trials: many"), "config.yaml: damaged"),
        (changed("config.yaml", "pool: ", "!!python/object/apply:os.mkdir "), "config.yaml: damaged"),
        (partial(change_result, change=lambda content: {}), "study.log: damaged (no 'best')"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_damaged_folder_is_one_line_and_left_as_it_is(refused, finished, harm, says) -> None:
    harm(finished)
    before = contents(finished)
    assert says in refused("report", "run=run")
    assert contents(finished) == before


def test_a_folder_that_is_none_is_one_line(refused, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "name the run's folder: run=runs/..." in refused("report")
    assert "nowhere: no such folder" in refused("report", "run=nowhere")
    assert "no setting 'folder'" in refused("report", "folder=x")
    (tmp_path / "empty").mkdir()
    for command in ("report", "evaluate", "export"):
        assert refused(command, "run=empty").strip() == "error: empty holds no run"
    assert contents(tmp_path) == {}
    (tmp_path / "empty" / "multirun.yaml").touch()
    for command in ("report", "evaluate", "export"):
        assert "empty holds a sweep (multirun.yaml); name one of its runs, such as run=empty/0" in refused(
            command, "run=empty"
        )


def test_nothing_in_a_folder_is_run_and_its_words_are_only_words(finished) -> None:
    """Names as no pool allows them, in every file that a page is made from."""
    (finished.parent / "evil.py").write_text("open('ran', 'w')\ndef build():\n    open('ran', 'w')\n")
    config = yaml.safe_load((finished / "config.yaml").read_text())
    config["space"] = {"pool": "evil.py:build", "args": {HOSTILE: HOSTILE}}
    config["sampler"] = {"name": HOSTILE}
    (finished / "config.yaml").write_text(yaml.safe_dump(config))

    def hostile(line):
        if line["event"] == "start":
            line["versions"] = {HOSTILE: HOSTILE}
        if line["event"] == "space":
            for position in line["positions"]:
                line["sizes"] |= {f"{position['name']}{HOSTILE}/{name}": 1 for name in position["candidates"]}
                position["name"] += HOSTILE
                position["output"] = HOSTILE
        return line

    change_events(finished, hostile)
    add_event(finished, "phase", name=HOSTILE)
    shutil.copy(finished / "report.html", finished.parent / "normal.html")
    assert main(["report", "run=run"]) == 0
    reader = read(finished / "report.html")
    assert not (finished.parent / "ran").exists()
    assert reader.tags.count("script") == 1
    assert set(reader.tags) <= set(read(finished.parent / "normal.html").tags)
    assert sum(HOSTILE in word for word in reader.words) > 5


@pytest.mark.slow
def test_what_optuna_logs_of_a_damaged_study_does_not_stand_beside_the_line(finished) -> None:
    (finished / "study.log").write_bytes(unchained((finished / "study.log").read_bytes()))
    changed("study.log", '"params":{"layer0":', '"params":{"layer0":9')(finished)
    process = start("report", "run=run", cwd=finished.parent)  # Optuna's log goes to the stderr that it began with
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (2, "")
    assert errors.count("\n") == 1
    assert errors.startswith("error: run/study.log: does not read as a study of this program")
