"""What `search.learn_from` names is read, mapped to the space by names, and refused or left out where it is no use."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import l2l_nas
from l2l_nas.__main__ import main
from l2l_nas.errors import SettingError, StorageError
from l2l_nas.nas.memory import EarlierTask, Memory, Remembered
from l2l_nas.nas.objectives import Goal
from l2l_nas.runs.folder import locked
from l2l_nas.runs.learn_from import SHIPPED_FILE
from l2l_nas.runs.locate import load_problem
from tests.runs.learned import SEARCH, learned, learner

# of a run on the data of the search that learns from it
OWN_DATA = "{}: its scores are of this search's own data"
NETWORK = {"layer0": "tanh", "layer1": "relu", "layer2": "skip", "layer3": "linear"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Runs on two sets of data, `a` and `b` on the same, a sweep's folder and an unfinished run among them."""
    from tests.cli.runs import write_pool

    place = tmp_path_factory.mktemp("runs")
    write_pool(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr("l2l_nas.runs.output.is_matplotlib_installed", lambda: False)
        for name, words in {"a": (), "b": ("seed=1",), "c": ("space.args.samples=100",)}.items():
            assert main([*SEARCH, *words, f"folder=runs/{name}"]) == 0
    return place


@pytest.fixture
def runs(made, problem, tmp_path):
    """A copy of them in `runs`."""
    shutil.copytree(made / "runs", tmp_path / "runs")
    return Path("runs")


def write(path: str, *tasks: EarlierTask) -> str:
    Path(path).write_text(json.dumps(Memory(tasks).to_json()))
    return path


def task(*networks: Remembered, name: str = "other", data: str = "0" * 32) -> EarlierTask:
    return EarlierTask(name, data, networks)


def remembered(accuracy: float = 0.5, **params: str) -> Remembered:
    return Remembered({**NETWORK, **params}, 1.0, {"accuracy": accuracy})


def test_runs_on_the_same_data_are_one_task(runs, problem):
    found = learned(problem, "runs/a,runs/b,runs/c")
    assert [one.name for one in found.memory.tasks] == ["runs/a, runs/b", "runs/c"]
    assert found.notes[1:] == (OWN_DATA.format("runs/a, runs/b"),)
    shares = {one.share for one in found.memory.tasks[0].networks}
    assert {1 / 3, 1.0} <= shares
    assert max(shares) == 1.0
    alone = [learned(problem, f"runs/{name}").memory.tasks[0].networks for name in "ab"]
    assert found.memory.tasks[0].networks == (*alone[0], *alone[1])
    assert found.memory.tasks[0].data == problem.data.digest


def test_an_earlier_run_that_chose_by_test_samples_of_the_search_is_told(runs, problem):
    """Run c has other data, of which some samples are those of this search's test part."""
    result = Path("runs/c/result.json")
    (note,) = learned(problem, "runs/c").notes
    assert note.startswith("warning: runs/c chose by 4 of the 32 test samples")
    assert learned(problem, "runs/a").notes == (OWN_DATA.format("runs/a"),)
    for damaged in ('{"data": {"digest": "0"}}', "{", None):  # of an earlier version; damaged; not finished
        result.unlink() if damaged is None else result.write_text(damaged)
        assert "does not tell by which samples" in learned(problem, "runs/c").notes[0]
    untested = replace(problem, data=replace(problem.data, test=None))
    assert learned(untested, "runs/c").notes == ()


def test_a_task_without_a_name_is_called_by_its_file(problem):
    found = learned(problem, write("m.json", task(remembered(), name=" \n"))).memory.tasks
    assert [one.name for one in found] == ["m.json"]  # a page has a name for each


def test_what_two_of_them_tell_counts_once(runs, problem):
    assert main([*SEARCH, "search.learn_from=runs/a", "folder=new"]) == 0
    shutil.copytree("runs/a", "runs/copy")
    (alone,) = learned(problem, "runs/a").memory.tasks
    for text in ("runs/a,runs/copy", "runs/a,new/memory.json", "new/memory.json,./new/memory.json"):
        (both,) = learned(problem, text).memory.tasks
        assert both.networks == alone.networks
    twice = task(remembered(), remembered())  # trained twice, to the same score
    assert learned(problem, write("m.json", twice)).memory.tasks[0].networks == twice.networks


def test_of_runs_on_the_same_data_shares_are_of_the_longest_training(runs, problem):
    assert main([*SEARCH, "search.finalist_steps=18", "folder=runs/long"]) == 0
    found = learned(problem, "runs/a,runs/long").memory.tasks[0]
    assert {1.0, 9 / 18, 3 / 18} <= {one.share for one in found.networks}
    assert not any(one.share == 1 / 3 for one in found.networks)


def test_auto_takes_finished_runs_of_the_same_space_beside_the_new_one_and_says_what_it_leaves_out(
    runs, problem, capsys
):
    deeper = "space.args.depth=5"
    assert main([*SEARCH, deeper, "folder=runs/deep"]) == 0
    words = ("objectives=[loss]", "search.trials=2", "folder=runs/loss")
    assert main([*SEARCH, *words]) == 0
    log = runs / "b" / "log.jsonl"
    log.write_text("".join(line for line in log.read_text().splitlines(True) if '"done"' not in line))
    (runs / "c" / "study.log").write_text("garbage\n")
    for name in ("notes", "sweep"):
        (runs / name).mkdir()
    (runs / "sweep" / "multirun.yaml").touch()
    shutil.copytree(runs / "a", runs / "sweep" / "0")
    found = learned(problem, "auto", folder="runs/new")
    assert [one.name for one in found.memory.tasks] == ["runs/a"]
    note, own = found.notes
    assert own == OWN_DATA.format("runs/a")
    assert note.startswith("auto leaves out b (unfinished), c (unreadable), deep (of another space), loss (")
    assert note.endswith(", sweep (a sweep)")
    assert learned(problem, "runs/b").memory.tasks  # one that is named need not be finished
    assert learned(problem, "auto,runs/a", folder="runs/new").memory == found.memory


def test_auto_where_there_is_nothing_says_so(problem):
    found = learned(problem, "auto", folder="somewhere/new")
    assert found.memory.tasks == ()
    assert found.notes == ("no finished run of this space lies in somewhere",)
    assert next(iter(found.lines())) == "memory: no earlier task, as in a search without memory"


def test_a_run_that_is_at_work_is_refused_where_it_is_named_and_left_out_of_auto(runs, problem):
    with locked(runs / "a"):
        with pytest.raises(SettingError, match=r"search\.learn_from=runs/a: still at work"):
            learned(problem, "runs/a")
        assert "a (still at work)" in learned(problem, "auto", folder="runs/new").notes[1]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("runs/none", "search.learn_from=runs/none: no such folder"),
        ("runs", "runs: a folder of runs; name them, such as runs/a, or start the new run in it with .*=auto"),
        ("empty", "search.learn_from=empty: no run"),
        ("runs/killed", "search.learn_from=runs/killed: without a study"),
        ("none.json", "none.json: no such file"),
        ("runs/a,", "a name is empty"),
        ("runs/new,runs/a", "search.learn_from=runs/new: this is the folder of the run itself"),
    ],
)
def test_what_is_named_and_is_no_use_is_refused(runs, problem, text, says):
    Path("empty").mkdir()
    shutil.copytree("runs/a", "runs/killed", ignore=shutil.ignore_patterns("study.log"))
    with pytest.raises((SettingError, StorageError), match=says):
        learned(problem, text, folder="runs/new")


def test_another_goal_or_direction_is_refused(runs, problem):
    with pytest.raises(SettingError, match="runs/a: searched for accuracy, not loss"):
        learned(problem, "runs/a", goal=Goal("loss", maximize=False))
    with pytest.raises(SettingError, match="runs/a: accuracy the other way round"):
        learned(problem, "runs/a", goal=Goal("accuracy", maximize=False))
    write("m.json", task(remembered()))
    with pytest.raises(SettingError, match=r"m\.json: no network has loss"):
        learned(problem, "m.json", goal=Goal("loss", maximize=False))


def test_a_file_knows_whether_more_of_a_metric_is_better(runs, problem):
    assert main([*SEARCH, "search.learn_from=runs/c", "folder=runs/new"]) == 0
    with pytest.raises(SettingError, match=r"memory\.json: accuracy the other way round"):
        learned(problem, "runs/new/memory.json", goal=Goal("accuracy", maximize=False))
    # of trials and finalists all metrics were measured, whatever was searched for
    assert learned(problem, "runs/new/memory.json", goal=Goal("loss", maximize=False)).memory.tasks
    write("m.json", task(remembered()))  # one that does not say so is believed
    assert learned(problem, "m.json", goal=Goal("accuracy", maximize=False)).memory.tasks
    Path("m.json").write_text('{"tasks": [], "metrics": {"accuracy": "yes"}}')
    with pytest.raises(StorageError, match=r"m\.json: metrics: accuracy is 'yes', expected true or false"):
        learned(problem, "m.json")
    Path("m.json").write_text('{"tasks": [], "metrics": 3}')
    with pytest.raises(StorageError, match=r"m\.json: metrics is 3"):
        learned(problem, "m.json")


def test_a_run_of_another_space_is_mapped_by_names_and_the_rest_is_said(runs, problem):
    assert main([*SEARCH, "space.args.depth=6", "search.trials=20", "search.retire=[layer1/relu]", "folder=deep"]) == 0
    found = learned(problem, "deep")
    assert found.notes == ("deep: ignored 2 positions that this space lacks (layer4, layer5)", OWN_DATA.format("deep"))
    assert {tuple(one.params) for one in found.memory.tasks[0].networks} == {tuple(NETWORK)}
    assert not any(one.params["layer1"] == "relu" for one in found.memory.tasks[0].networks)
    deep = load_problem("tiny.py:build", {"depth": 6}, **_data())
    found = learned(deep, "runs/a")
    assert found.notes == ("runs/a: 2 positions here unknown to it (layer4, layer5)", OWN_DATA.format("runs/a"))


def _data():
    from dataclasses import asdict

    from l2l_nas.runs.section_settings import DataConf

    return asdict(DataConf())


def test_networks_with_candidates_that_the_space_lacks_are_left_out(problem):
    write("m.json", task(remembered(), remembered(layer0="conv9", layer1="tanh"), remembered(stem="linear")))
    found = learned(problem, "m.json")
    assert [dict(one.params) for one in found.memory.tasks[0].networks] == [NETWORK, NETWORK]
    assert found.notes == ("m.json, other: left out networks with candidates that it lacks (layer0/conv9)",)


def test_a_space_that_has_nothing_in_common_is_refused(problem):
    write("m.json", task(Remembered({"block": "conv"}, 1.0, {"accuracy": 0.5})))
    with pytest.raises(SettingError, match=r"m\.json: another space"):
        learned(problem, "m.json")
    with pytest.raises(SettingError, match="shipped: another space"):
        learned(problem, "shipped")
    few = ("data.source=digits", "search.trials=2", "search.steps_per_trial=1", "search.finalists=1", "export=false")
    assert main(["search", "space=small_conv", *few, "search.finalist_steps=2", "folder=conv"]) == 0
    with pytest.raises(SettingError, match="conv: another space: no position has a candidate of the same name") as told:
        learned(default_problem(), "conv")
    assert "\n" not in str(told.value)


def test_the_memory_of_a_run_is_a_file_like_any_other(runs, problem):
    assert main([*SEARCH, "search.learn_from=auto", "folder=runs/new"]) == 0
    found = learned(problem, "runs/new/memory.json")
    assert found.memory == learned(problem, "runs/a,runs/b,runs/c").memory
    both = learned(problem, "runs/new/memory.json,runs/new", folder="other").memory
    assert [one.name for one in both.tasks] == ["runs/new, runs/a, runs/b", "runs/c"]


@pytest.mark.parametrize("content", ["", "[]", '{"tasks": 3}', '{"tasks": [{"name": "a", "data": "b"}]}', "\0"])
def test_a_damaged_file_is_refused_by_its_name(problem, content):
    Path("m.json").write_text(content)
    with pytest.raises(StorageError, match=r"m\.json"):
        learned(problem, "m.json")


SHIPPED = ("cluttered_digits", "cifar10_5k", "fashion_mnist_6k")


def default_problem(source="digits", **parts):
    return load_problem("image_blocks", {}, **{**_data(), "source": source, **parts})


def test_what_is_shipped_tells_of_every_position_of_the_default_space():
    problem = default_problem()
    found = learned(problem, "shipped", source="digits")
    assert found.notes == ()
    assert [one.name for one in found.memory.tasks] == list(SHIPPED)
    for one in found.memory.tasks:
        ends = [network for network in one.networks if network.share == 1.0]
        assert len({tuple(network.params.values()) for network in ends}) == 100
        assert len(ends) == 200
        assert {network.share for network in one.networks} == {0.1, 1.0}
        assert all(set(network.params) == set(learner(problem).candidates) for network in one.networks)


@pytest.mark.parametrize("parts", [{}, {"validation_fraction": 0.25, "test_fraction": 0.25}, {"test_fraction": 0.1}])
def test_what_is_shipped_leaves_out_its_own_task_however_its_data_are_divided(parts):
    found = learned(default_problem("cluttered_digits", **parts), "shipped", source="cluttered_digits")
    assert [one.name for one in found.memory.tasks] == list(SHIPPED[1:])
    assert found.notes == ("shipped leaves out cluttered_digits: this search has the same data",)


def test_what_is_shipped_knows_its_own_task_by_the_samples_alone():
    found = learned(default_problem("cluttered_digits"), "shipped")
    assert [one.name for one in found.memory.tasks] == list(SHIPPED[1:])
    assert len(json.loads(SHIPPED_FILE.read_text())["same_data"]) == 3


def test_auto_does_not_leave_out_what_is_named(runs, problem):
    log = Path("runs/b/log.jsonl")
    log.write_text(log.read_text().replace('"event": "done"', '"event": "stopped"'))
    found = learned(problem, "auto,runs/b", folder="runs/new")
    assert [task.name for task in found.memory.tasks] == ["runs/b, runs/a", "runs/c"]
    assert not any("leaves out" in note for note in found.notes)


def test_names_of_a_file_are_printable_lines(problem):
    bad = "\x1b[31mred\nline"
    path = write("bad.json", task(remembered(**{bad: "skip"}), name=bad))
    found = learned(problem, path)
    assert found.memory.tasks[0].name == "?[31mred line"
    assert all(line.isprintable() for line in found.lines())


def test_a_folder_with_a_comma_in_its_name_is_refused(runs, problem):
    Path("runs/a").rename("runs/a,b")
    with pytest.raises(SettingError, match="runs/a,b: it has a comma in its name"):
        learned(problem, "runs/a,b")


def test_a_python_call_takes_texts_paths_and_results(runs, problem):
    said = {"trials": 4, "steps_per_trial": 3, "finalists": 1, "finalist_steps": 9, "export": False, "progress": False}
    first = l2l_nas.search(problem, folder="first", **said)
    one = l2l_nas.search(problem, folder="one", learn_from=first, **said)
    several = l2l_nas.search(problem, folder="several", learn_from=["runs/a", Path("runs/c"), first], **said)
    assert [task["name"] for task in one.content["memory"]["tasks"]] == ["first"]
    assert [task["name"] for task in several.content["memory"]["tasks"]] == ["runs/a, first", "runs/c"]
    with pytest.raises(SettingError, match="learn_from takes a list of runs, got 3"):
        l2l_nas.search(problem, learn_from=3, **said)
    with pytest.raises(SettingError, match="has a comma in its name"):
        l2l_nas.search(problem, learn_from=Path("a,b"), **said)
