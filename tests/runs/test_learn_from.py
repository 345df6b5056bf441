"""What `search.learn_from` names is read, mapped to the space by names, and refused or left out where it is no use."""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import l2l_nas
from l2l_nas.__main__ import main
from l2l_nas.errors import SettingError, StorageError
from l2l_nas.nas.earlier_task import EarlierTask, NetworkScore
from l2l_nas.nas.memory import Learned
from l2l_nas.nas.objectives import Goal
from l2l_nas.runs.earlier_runs import shipped_runs, stored_tasks, write_tasks
from l2l_nas.runs.folder import RunFolder, locked
from l2l_nas.runs.locate import load_problem
from l2l_nas.runs.section_settings import DataConf
from l2l_nas.space.growth import retired
from tests.runs.learned import SEARCH, learned, learner
from tests.studies import change_result

# of a run on the data of the search that learns from it
OWN_DATA = "{}: its scores are of this search's own data"
CHOICES = ("layer0", "layer1", "layer2", "layer3")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Runs on two sets of data, `a` and `b` on the same."""
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


def shares(task):
    return {one.steps / task.whole_steps for one in task.scores}


def test_runs_on_the_same_data_are_one_task(runs, problem):
    found = learned(problem, "runs/a", "runs/b", "runs/c", "runs/a")
    assert [one.name for one in found.tasks] == ["runs/a, runs/b", "runs/c"]
    assert found.notes[1:] == (OWN_DATA.format("runs/a, runs/b"),)
    assert {1 / 3, 1.0} <= shares(found.tasks[0])
    assert max(shares(found.tasks[0])) == 1.0
    alone = [learned(problem, f"runs/{name}").tasks[0].scores for name in "ab"]
    assert found.tasks[0].scores == (*alone[0], *alone[1])
    assert found.tasks[0].data == problem.data.digest


def test_an_earlier_run_that_chose_by_test_samples_of_the_search_is_told(runs, problem):
    """Run c has other data, of which some samples are those of this search's test part."""
    (note,) = learned(problem, "runs/c").notes
    assert note.startswith("warning: runs/c chose by 4 of the 32 test samples")
    assert learned(problem, "runs/a").notes == (OWN_DATA.format("runs/a"),)
    for damaged in ({"data": {"digest": "0"}}, [], None):  # it tells nothing; damaged; not finished
        change_result("runs/c", lambda _, damaged=damaged: damaged)
        assert "does not tell by which samples" in learned(problem, "runs/c").notes[0]
    untested = replace(problem, data=replace(problem.data, test=None))
    assert learned(untested, "runs/c").notes == ()


def test_of_runs_on_the_same_data_shares_are_of_the_longest_training(runs, problem):
    assert main([*SEARCH, "search.finalist_steps=18", "folder=runs/long"]) == 0
    found = shares(learned(problem, "runs/a", "runs/long").tasks[0])
    assert {1.0, 9 / 18, 3 / 18} <= found
    assert 1 / 3 not in found


def test_a_run_that_is_at_work_is_refused(runs, problem):
    with locked(runs / "a"), pytest.raises(SettingError, match=r"search\.learn_from=runs/a: still at work"):
        learned(problem, "runs/a")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("runs/none", "search.learn_from=runs/none: no such folder"),
        ("runs", "runs: a folder of runs; name them, such as runs/a"),
        ("empty", "search.learn_from=empty: no run"),
        ("runs/killed", "search.learn_from=runs/killed: without a study"),
        ("runs/damaged", "search.learn_from=runs/damaged: .*study.log"),
        ("", "search.learn_from"),
        ("runs/new", "search.learn_from=runs/new: this is the folder of the run itself"),
        ("shipped", "search.learn_from=shipped: no runs come with this space"),
    ],
)
def test_what_is_named_and_is_no_use_is_refused(runs, problem, name, says):
    Path("empty").mkdir()
    for copy in ("killed", "damaged"):
        shutil.copytree("runs/a", f"runs/{copy}", ignore=shutil.ignore_patterns("study.log"))
    Path("runs/damaged/study.log").write_text("garbage\n")
    with pytest.raises((SettingError, StorageError), match=says):
        learned(problem, "runs/a", name, folder="runs/new")


def test_another_goal_or_direction_is_refused(runs, problem):
    with pytest.raises(SettingError, match="runs/a: searched for accuracy, not loss"):
        learned(problem, "runs/a", goal=Goal("loss", maximize=False))
    with pytest.raises(SettingError, match="runs/a: accuracy the other way round"):
        learned(problem, "runs/a", goal=Goal("accuracy", maximize=False))


def test_a_run_of_another_space_is_mapped_by_names_and_the_rest_is_said(runs, problem):
    assert main([*SEARCH, "space.args.depth=6", "search.trials=20", "search.retire=[layer1/relu]", "folder=deep"]) == 0
    found = learned(problem, "deep")
    assert found.notes == ("deep: ignored 2 positions that this space lacks (layer4, layer5)", OWN_DATA.format("deep"))
    assert {tuple(one.params) for one in found.tasks[0].scores} == {CHOICES}
    assert not any(one.params["layer1"] == "relu" for one in found.tasks[0].scores)
    deep = load_problem("tiny.py:build", {"depth": 6}, **asdict(DataConf()))
    found = learned(deep, "runs/a")
    assert found.notes == ("runs/a: 2 positions here unknown to it (layer4, layer5)", OWN_DATA.format("runs/a"))


def test_networks_with_candidates_that_the_space_lacks_are_left_out(runs, problem):
    less = replace(problem, pool=retired(problem.pool, ["layer0/tanh"]))
    before, after = (learned(one, "runs/c") for one in (problem, less))
    kept = [one for one in before.tasks[0].scores if one.params["layer0"] != "tanh"]
    assert 0 < len(kept) < len(before.tasks[0].scores)
    assert list(after.tasks[0].scores) == kept
    assert after.notes[-1] == "runs/c: left out networks with candidates that it lacks (layer0/tanh)"


def test_a_space_that_has_nothing_in_common_is_refused(problem):
    few = ("data.source=digits", "search.trials=2", "search.steps_per_trial=1", "search.finalists=1", "export=false")
    assert main(["search", "space=small_conv", *few, "search.finalist_steps=2", "folder=conv"]) == 0
    with pytest.raises(SettingError, match="conv: another space: no position has a candidate of the same name") as told:
        learned(default_problem(), "conv")
    assert "\n" not in str(told.value)


SHIPPED = ("cifar10_5k", "cluttered_digits", "fashion_mnist_6k")


def default_problem(source="digits", **parts):
    return load_problem("image_blocks", {}, **{**asdict(DataConf()), "source": source, **parts})


def of_space(problem, source=""):
    return learned(problem, "shipped", shipped=shipped_runs("image_blocks"), source=source)


def test_what_comes_with_the_default_space_tells_of_every_position():
    problem = default_problem()
    found = of_space(problem)
    assert found.notes == ()
    assert [one.name for one in found.tasks] == list(SHIPPED)
    for one in found.tasks:
        ends = [score for score in one.scores if score.steps == one.whole_steps]
        assert len({tuple(score.params.values()) for score in ends}) == one.num_networks == 100
        assert len(ends) == 200
        assert shares(one) == {0.1, 1.0}
        assert all(set(score.params) == set(learner(problem).candidates) for score in one.scores)
    assert shipped_runs("small_conv") == shipped_runs("mine.py:build") == ()


@pytest.mark.parametrize("parts", [{}, {"validation_fraction": 0.25, "test_fraction": 0.25}, {"test_fraction": 0.1}])
def test_what_comes_with_a_space_leaves_out_the_search_s_own_task_however_its_data_are_divided(parts):
    found = of_space(default_problem("cluttered_digits", **parts), "cluttered_digits")
    assert [one.name for one in found.tasks] == ["cifar10_5k", "fashion_mnist_6k"]
    assert found.notes == ("cluttered_digits is left out, as this search has the same data",)


def test_it_knows_the_search_s_own_task_by_its_samples_too():
    assert [one.name for one in of_space(default_problem("cluttered_digits")).tasks] == [
        "cifar10_5k",
        "fashion_mnist_6k",
    ]


def test_names_in_a_run_s_own_folder_are_printable_lines(problem):
    score = NetworkScore(dict.fromkeys(CHOICES, "skip"), 1, {"accuracy": 0.5})
    folder = RunFolder(Path("run"))
    folder.root.mkdir()
    bad = "\x1b[31mred\nline"
    write_tasks(folder, Learned((EarlierTask(bad, "0", 1, (score,)),), (bad,)))
    found = stored_tasks(folder, learner(problem))
    assert found.tasks[0].scores == (score,)
    assert found.tasks[0].name == "?[31mred line"
    assert all(line.isprintable() for line in found.lines())


def test_a_python_call_takes_texts_paths_and_results(runs, problem):
    said = {"trials": 4, "steps_per_trial": 3, "finalists": 1, "finalist_steps": 9, "export": False, "progress": False}
    first = l2l_nas.search(problem, folder="first", **said)
    one = l2l_nas.search(problem, folder="one", learn_from=first, **said)
    several = l2l_nas.search(problem, folder="several", learn_from=["runs/a", Path("runs/c"), first], **said)
    assert one.content["learned_from"]["tasks"] == ["first"]
    assert several.content["learned_from"]["tasks"] == ["runs/a, first", "runs/c"]
    with pytest.raises(SettingError, match="learn_from takes a list of runs, got 3"):
        l2l_nas.search(problem, learn_from=3, **said)
