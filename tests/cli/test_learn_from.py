"""Searches that learn from earlier runs: what they say, keep and refuse; and those that do not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from l2l_nas.__main__ import main
from tests.cli.runs import contents, events, start
from tests.runs.calls import trials_of
from tests.runs.learned import SEARCH, tasks_in

LEARN = "search.learn_from=[runs/a,runs/c]"


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
        assert main([*SEARCH, LEARN, "folder=new"]) == 0
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


def test_what_was_taken_is_said_by_terminal_page_and_result(place, capsys):
    assert main([*SEARCH, LEARN, "folder=again"]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "learn" in line]
    assert said[0] == "learns from 12 networks of 2 earlier tasks: runs/a, runs/c"
    assert said[1].startswith("search.learn_from: warning: runs/c chose by 4 of the 32 test samples")
    assert said[2] == "search.learn_from: runs/a: its scores are of this search's own data"
    found = read("again/result.json")["learned_from"]
    assert (found["tasks"], found["networks"], found["is_default"]) == (["runs/a", "runs/c"], 12, False)
    assert trials_of("again") == trials_of("new")
    shutil.rmtree("runs")
    main(["report", "run=new"])  # from the folder alone
    for name in ("again", "new"):
        assert "The search learns from 12 networks of 2 earlier tasks: runs/a, runs/c." in page(name)


def test_a_search_that_learns_from_nothing_keeps_nothing_of_it(place):
    assert trials_of("new") != trials_of("runs/a")
    assert not (place / "runs" / "a" / "earlier_tasks.json").exists()
    assert "learned_from" not in read("runs/a/result.json")
    assert not events(place / "runs" / "a", "learned_from")
    assert "learns from" not in page("runs/a")


DEFAULT = (
    "search", "data.source=digits", "search.trials=3", "search.steps_per_trial=1", "search.finalists=1",
    "search.finalist_steps=2", "export=false",
)  # fmt: skip


@pytest.mark.slow
def test_where_runs_come_with_a_space_a_search_learns_from_them_and_says_how_not_to(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for folder, more in {
        "plain": (),
        "asked": ("search.learn_from=[shipped]",),
        "off": ("search.learn_from=[]",),
    }.items():
        assert main([*DEFAULT, *more, f"folder={folder}"]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("learns from")]
    tasks = ": cifar10_5k, cluttered_digits, fashion_mnist_6k"
    assert said == [
        "learns from 300 networks of 3 earlier tasks that come with the space (search.learn_from=[] leaves them out)"
        + tasks,
        "learns from 300 networks of 3 earlier tasks" + tasks,
    ]
    assert "search.learn_from=[] leaves them out" in page("plain")
    assert trials_of("plain") == trials_of("asked") != trials_of("off")
    assert main([*DEFAULT, "search.trials=5", "resume=plain"]) == 0
    assert "search.learn_from=[] leaves them out" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["sampler=tpe"], ["strategy=random_search"], ["objectives=[loss]"], ["space=small_conv"]], ids=str
)
def test_what_comes_with_a_space_is_left_where_it_is_of_no_use(tmp_path, monkeypatch, capsys, refused, words):
    monkeypatch.chdir(tmp_path)
    assert main([*DEFAULT, *words, "folder=run"]) == 0
    assert "learns from" not in capsys.readouterr().out
    assert main([*DEFAULT, *words, "search.trials=4", "resume=run"]) == 0
    assert "search.learn_from" in refused(*DEFAULT, *words, "search.learn_from=[shipped]", "folder=other")


def test_a_run_goes_on_with_what_it_learned_though_the_runs_are_gone(place):
    for name in ("here", "gone", "empty"):
        shutil.copytree("new", name)
    again = ("search.trials=14", "export=false")
    assert main([*SEARCH, *again, "resume=here"]) == 0
    shutil.rmtree("runs")
    assert main([*SEARCH, *again, LEARN, "resume=gone"]) == 0
    assert trials_of("gone") == trials_of("here")
    assert len(trials_of("gone")) >= 14
    assert trials_of("gone")[:6] == trials_of("new")[:6]
    assert tasks_in("gone") == tasks_in("new")
    Path("empty/earlier_tasks.json").write_text(json.dumps({"tasks": [], "notes": [], "is_default": False}))
    assert main([*SEARCH, *again, "resume=empty"]) == 0
    assert trials_of("empty") != trials_of("here")  # it is read, and counts


def test_what_a_run_learns_from_stays(place, refused):
    before = contents(place / "new")
    said = refused(*SEARCH, "resume=new", "search.learn_from=[runs/a]")
    assert "must keep it: earlier runs are read when a run begins" in said
    assert "must keep it" in refused(*SEARCH, "resume=runs/a", "search.learn_from=[runs/c]")
    assert contents(place / "new") == before


def test_a_run_of_0_2_0_goes_on_that_learned_from_nothing(place):
    config = place / "runs" / "a" / "config.yaml"
    config.write_text(config.read_text().replace("learn_from: []", "learn_from: ''"))
    assert main([*SEARCH, "search.trials=7", "resume=runs/a"]) == 0
    assert len(trials_of("runs/a")) == 7


@pytest.mark.parametrize(
    "content",
    [None, "{", "[]", '{"tasks": [3]}', '{"tasks": []}', '{"tasks": [], "notes": [3], "is_default": false}'],
)
def test_damaged_earlier_tasks_are_refused_in_one_line_and_left(place, refused, content):
    path = place / "new" / "earlier_tasks.json"
    path.unlink() if content is None else path.write_text(content)
    before = contents(place / "new")
    said = refused(*SEARCH, "search.trials=9", "resume=new")
    how = "missing" if content is None else "damaged"
    assert f"new/earlier_tasks.json: {how}, and this run began with what earlier runs found" in said
    assert contents(place / "new") == before


def test_a_run_that_was_killed_before_its_first_trial_begins_with_what_it_has(place):
    for path in (place / "new").iterdir():
        if path.name not in ("config.yaml", "earlier_tasks.json", ".hydra"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.rmtree("runs")
    assert main([*SEARCH, "resume=new"]) == 0
    assert len(trials_of("new")) >= 6


def test_a_candidate_that_has_left_since_is_no_more_in_what_a_run_knows(place, capsys):
    shutil.copytree("new", "none")
    assert main([*SEARCH, "search.trials=9", "search.retire=[layer0/tanh]", "resume=new"]) == 0
    assert any(one["params"]["layer0"] == "tanh" for task in tasks_in("new") for one in task["scores"])
    assert all(trial[2]["layer0"] != "tanh" for trial in trials_of("new")[6:])
    content = read("none/earlier_tasks.json")
    for task in content["tasks"]:
        task["scores"] = [one for one in task["scores"] if one["params"]["layer0"] == "tanh"]
    Path("none/earlier_tasks.json").write_text(json.dumps(content))
    assert main([*SEARCH, "search.trials=9", "search.retire=[layer0/tanh]", "resume=none"]) == 0
    assert "learns from no earlier task" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["search.learn_from=[runs/a,none]"], "search.learn_from=none: no such folder"),
        (["search.learn_from=runs/a"], "search.learn_from=[A,B]"),
        (["search.learn_from=[runs/a]", "sampler=tpe"], "sampler=tpe has no use for earlier runs"),
        (["search.learn_from=[runs/a]", "strategy=random_search"], "no effect with strategy=random_search"),
        (["search.learn_from=[new/result.json]"], "search.learn_from=new/result.json: no such folder"),
    ],
)
def test_what_is_no_use_is_refused_before_anything_is_written(place, refused, words, says):
    assert says in refused(*SEARCH, *words, "folder=run")
    assert not (place / "run").exists()


@pytest.mark.slow
def test_a_sweep_s_runs_learn_alike(place):
    assert main([*SEARCH, "-m", "seed=0,1", LEARN, "folder=sweep"]) == 0
    for number in (0, 1):
        assert [task["name"] for task in tasks_in(f"sweep/{number}")] == ["runs/a", "runs/c"]


@pytest.mark.slow
def test_workers_search_with_earlier_tasks(place):
    assert main([*SEARCH, "search.workers=2", LEARN, "folder=run"]) == 0
    assert tasks_in("run") == tasks_in("new")


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_with_its_trials_and_what_it_learned(place):
    words = (*SEARCH, "search.trials=40", LEARN)
    process = start(*words, "folder=killed", cwd=place)
    while len(events(place / "killed")) < 5:
        assert process.poll() is None, process.communicate()
    process.kill()
    process.communicate()
    shutil.copytree("killed", "copy")
    before = trials_of("killed")
    known = tasks_in("killed")
    for name in ("killed", "copy"):
        assert main([*words, f"resume={name}"]) == 0
        shutil.rmtree("runs", ignore_errors=True)
        assert trials_of(name)[: len(before)] == before
        assert tasks_in(name) == known
    assert trials_of("killed") == trials_of("copy")
