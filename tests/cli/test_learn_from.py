"""Searches that learn from earlier runs: what they say, keep and refuse; and those that do not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from l2l_nas.__main__ import main
from l2l_nas.cli.words import read_words
from tests.cli.runs import contents, events, start, without_times
from tests.runs.calls import trials_of
from tests.runs.learned import SEARCH, memory_in


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two finished runs, and one that learned from them and has 4 of its trials."""
    from tests.cli.runs import write_pool

    place = tmp_path_factory.mktemp("learned")
    write_pool(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr("l2l_nas.runs.output.is_matplotlib_installed", lambda: False)
        assert main([*SEARCH, "folder=runs/a"]) == 0
        assert main([*SEARCH, "space.args.samples=100", "folder=runs/c"]) == 0
        assert main([*SEARCH, "search.learn_from=runs/a,runs/c", "folder=new"]) == 0
    return place


@pytest.fixture
def place(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(path):
    return json.loads(Path(path).read_text())


def page(folder) -> str:
    return Path(folder, "report.html").read_text()


def test_what_was_taken_is_said_at_the_start_and_how_far_it_agreed_at_the_end(place, capsys):
    assert main([*SEARCH, "search.learn_from=runs/a,runs/c", "folder=again"]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("memory: ")]
    assert said[0] == "memory: 12 networks of 2 earlier tasks: runs/a, runs/c"
    assert said[1].startswith("memory: warning: runs/c chose by 4 of the 32 test samples")
    assert said[2] == "memory: runs/a: its scores are of this search's own data"
    assert "the scores of 6 trials" in said[3]
    assert said[4].startswith("memory: of the same trials, ")
    found = read("again/result.json")["memory"]
    assert [task["name"] for task in found["tasks"]] == ["runs/a", "runs/c"]
    assert found["trials"] == 6
    assert found["finalists"] == 2
    assert all(task["weight"] >= 0 for task in found["tasks"])
    assert trials_of("again") == trials_of("new")


def test_the_page_tells_of_memory_and_is_written_anew_from_the_folder_alone(place):
    shutil.rmtree("runs")
    for text in (page("new"), _again("new")):
        assert "The search knew 12 networks of 2 earlier tasks when it began: runs/a, runs/c." in text


def _again(folder) -> str:
    assert main(["report", f"run={folder}"]) == 0
    return page(folder)


def test_a_search_that_learns_from_nothing_keeps_nothing_of_it(place):
    assert not (place / "runs" / "a" / "memory.json").exists()
    assert "memory" not in read("runs/a/result.json")
    assert not events(place / "runs" / "a", "memory")
    assert "The search knew" not in page("runs/a")


def test_with_an_empty_memory_a_search_is_that_without(place, capsys):
    assert main([*SEARCH, "search.learn_from=auto", "folder=alone/a"]) == 0
    assert "memory: no earlier task, as in a search without memory" in capsys.readouterr().out
    assert trials_of("alone/a") == trials_of("runs/a")
    found, before = read("alone/a/result.json"), read("runs/a/result.json")
    assert memory_in("alone/a").tasks == ()
    assert found["memory"]["tasks"] == []
    for name in ("best", "finalists", "trials", "pareto"):
        assert without_times(found[name]) == without_times(before[name])
    assert "no earlier task" in page("alone/a")


def test_memory_changes_what_is_tried(place):
    assert trials_of("new") != trials_of("runs/a")


def test_a_run_goes_on_with_what_it_learned_though_the_runs_are_gone(place):
    for name in ("here", "gone", "empty"):
        shutil.copytree("new", name)
    again = ("search.trials=14", "export=false")
    assert main([*SEARCH, *again, "resume=here"]) == 0
    shutil.rmtree("runs")
    assert main([*SEARCH, *again, "search.learn_from=runs/a,runs/c", "resume=gone"]) == 0
    assert trials_of("gone") == trials_of("here")
    assert len(trials_of("gone")) >= 14
    assert trials_of("gone")[:6] == trials_of("new")[:6]
    assert memory_in("gone") == memory_in("new")
    Path("empty/memory.json").write_text(json.dumps({"tasks": [], "notes": []}))
    assert main([*SEARCH, *again, "resume=empty"]) == 0
    assert trials_of("empty") != trials_of("here")  # it is read, and counts


def test_what_a_run_learns_from_stays(place, refused):
    before = contents(place / "new")
    said = refused(*SEARCH, "resume=new", "search.learn_from=auto")
    assert said.startswith("error: search.learn_from=auto: the run in new has search.learn_from=")
    assert "must keep it: earlier runs are read when a run begins" in said
    said = refused(*SEARCH, "resume=runs/a", "search.learn_from=runs/c")
    assert 'the run in runs/a has search.learn_from="" and must keep it' in said
    assert contents(place / "new") == before


@pytest.mark.parametrize(
    "content",
    [None, "", "{", "[]", '{"tasks": [3]}', '{"tasks": [{"name": 1}]}', '{"tasks": []}', '{"tasks": [], "notes": [3]}'],
)
def test_a_damaged_memory_is_refused_in_one_line_and_left(place, refused, content):
    path = place / "new" / "memory.json"
    path.unlink() if content is None else path.write_text(content)
    before = contents(place / "new")
    said = refused(*SEARCH, "search.trials=9", "resume=new")
    how = "missing" if content is None else "damaged"
    assert f"new/memory.json: {how}, and this run began with a memory" in said
    assert "restore it from a copy, or start a new run in another folder" in said
    assert contents(place / "new") == before


def test_a_run_that_was_killed_before_its_first_trial_begins_with_what_it_has(place):
    for path in (place / "new").iterdir():
        if path.name not in ("config.yaml", "memory.json", ".hydra"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = trials_of(place / "again") if (place / "again").exists() else None
    shutil.rmtree("runs")
    assert main([*SEARCH, "resume=new"]) == 0
    assert before is None
    assert len(trials_of("new")) >= 6


def test_a_candidate_that_has_left_since_is_no_more_in_what_a_run_knows(place):
    assert main([*SEARCH, "search.trials=9", "search.retire=[layer0/tanh]", "resume=new"]) == 0
    assert any(one.params["layer0"] == "tanh" for task in memory_in("new").tasks for one in task.networks)
    assert all(trial[2]["layer0"] != "tanh" for trial in trials_of("new")[6:])


def test_a_run_goes_on_without_memory_where_none_of_its_networks_is_left(place, capsys):
    content = read("new/memory.json")
    for task in content["tasks"]:
        task["networks"] = [one for one in task["networks"] if one["params"]["layer0"] == "tanh"]
    Path("new/memory.json").write_text(json.dumps(content))
    assert main([*SEARCH, "search.trials=9", "search.retire=[layer0/tanh]", "resume=new"]) == 0
    assert "memory: no earlier task, as in a search without memory" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["search.learn_from=none"], "search.learn_from=none: no such folder"),
        (["search.learn_from=runs/a,none"], "search.learn_from=none: no such folder"),
        (["search.learn_from=runs/a", "sampler=tpe"], "sampler=tpe has no use for earlier runs"),
        (["search.learn_from=runs/a", "sampler=evolution"], "sampler=evolution has no use for earlier runs"),
        (["search.learn_from=runs/a", "strategy=random_search"], "no effect with strategy=random_search"),
        (["search.learn_from=run"], "search.learn_from=run: this is the folder of the run itself"),
        (["search.learn_from=shipped"], "search.learn_from=shipped: another space"),
        (["search.learn_from=runs/a", "objectives=[loss]"], "runs/a: searched for accuracy, not loss"),
        (["search.learn_from=,"], "a name is empty"),
        (["search.learn_from=new/result.json"], "new/result.json: tasks is missing"),
    ],
)
def test_what_is_no_use_is_refused_before_anything_is_written(place, refused, words, says):
    assert says in refused(*SEARCH, *words, "folder=run")
    assert not (place / "run").exists()


def test_what_was_left_out_is_said_again_when_a_run_goes_on(place, capsys):
    assert main([*SEARCH, "search.learn_from=auto", "space.args.depth=3", "folder=runs/flat"]) == 0
    note = "memory: auto leaves out a and c (of another space)"
    assert note in capsys.readouterr().out
    assert main([*SEARCH, "search.trials=8", "space.args.depth=3", "resume=runs/flat"]) == 0
    assert note in capsys.readouterr().out
    assert "auto leaves out a and c (of another space)." in page("runs/flat")


def test_a_space_that_differs_is_learned_from_as_far_as_it_has_the_same_names(place, capsys):
    assert main([*SEARCH, "search.learn_from=runs/a", "space.args.depth=3", "folder=flat"]) == 0
    said = capsys.readouterr().out
    assert "memory: 6 networks of 1 earlier task: runs/a" in said
    assert "memory: runs/a: ignored 1 position that this space lacks (layer3)" in said
    (task,) = read("flat/result.json")["memory"]["tasks"]
    assert "ignored" not in task
    assert task["networks"] == 6


def test_a_sweep_s_runs_learn_from_those_before(place, capsys):
    assert main([*SEARCH, "-m", "seed=0,1", "search.learn_from=auto", "folder=sweep"]) == 0
    assert memory_in("sweep/0").tasks == ()
    assert [task.name for task in memory_in("sweep/1").tasks] == ["sweep/0"]
    words = ("seed=0,1", "search.learn_from='runs/a,runs/c'", "folder=other")
    assert main([*SEARCH, "-m", *words]) == 0
    for number in (0, 1):
        assert [task.name for task in memory_in(f"other/{number}").tasks] == ["runs/a", "runs/c"]


@pytest.mark.slow
def test_workers_search_with_memory(place):
    assert main([*SEARCH, "search.workers=2", "search.learn_from=[runs/a,runs/c]", "folder=run"]) == 0
    assert memory_in("run") == memory_in("new")
    assert read("run/result.json")["memory"]["trials"] == 6


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_with_its_trials_and_its_memory(place):
    words = (*SEARCH, "search.trials=40", "search.learn_from=runs/a,runs/c")
    process = start(*words, "folder=killed", cwd=place)
    while len(events(place / "killed")) < 5:
        assert process.poll() is None, process.communicate()
    process.kill()
    process.communicate()
    shutil.copytree("killed", "copy")
    before = trials_of("killed")
    memory = (place / "killed" / "memory.json").read_bytes()
    for name in ("killed", "copy"):
        assert main([*words, f"resume={name}"]) == 0
        shutil.rmtree("runs", ignore_errors=True)
        assert trials_of(name)[: len(before)] == before
        assert (place / name / "memory.json").read_bytes() == memory
    assert trials_of("killed") == trials_of("copy")


@pytest.mark.parametrize(
    ("word", "read"),
    [
        ("search.learn_from=a,b/c", 'search.learn_from="a,b/c"'),
        ("+search.learn_from=[a,b]", '+search.learn_from="a,b"'),
        ("search.learn_from='a,b'", "search.learn_from='a,b'"),
        ("search.learn_from=auto", "search.learn_from=auto"),
        ("search.enqueue=[a,b]", "search.enqueue=[a,b]"),
    ],
)
def test_names_with_commas_are_one_value_but_in_a_sweep(word, read):
    assert read_words([word]).overrides == [read]
    assert read_words([word, "-m"]).overrides == [word]
