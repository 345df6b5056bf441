"""Costs and storages of the user's own: by object and by name, in runs that go on, with workers, and refused."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

import l2l_nas
from l2l_nas.__main__ import main
from l2l_nas.eps.storage import RamStorage
from l2l_nas.errors import SettingError
from tests.cli.runs import TINY
from tests.runs.calls import SAID, trials_of

MINE = """
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from l2l_nas.eps.storage import RamStorage

class Tanhs:
    def __init__(self, pool):
        self.places = len(pool)
    def __call__(self, architecture):
        assert len(architecture.choices) == self.places
        return float(architecture.choices.count("tanh"))

class Layers(RamStorage):
    def __init__(self, optimizer):
        super().__init__()
        self.optimizer = optimizer
    def put(self, key, state):
        assert len(state.moments) == len(self.optimizer.state((1,)))
        super().put(key, state)
        Path("put").write_text(key)

def number():
    return 3
"""
COST = "search.costs=[mine.py:Tanhs]"
STORAGE = "relay.storage=mine.py:Layers"
WORDS = ("search", "space.pool=tiny.py:build", *TINY)


def tanhs(architecture) -> float:
    return float(architecture.choices.count("tanh"))


@pytest.fixture
def place(problem, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def figures(folder, name):
    trials = json.loads((folder / "result.json").read_text())["finalists"]
    return [(trial["costs"][name], float(trial["architecture"].count("tanh"))) for trial in trials]


@pytest.mark.slow
def test_a_cost_is_an_objective_and_has_a_limit_by_object_and_by_name(problem, place, refused):
    said = {**SAID, "objectives": ["accuracy", "tanhs"], "limits": {"tanhs": 2}}
    found = l2l_nas.search(problem, folder="object", costs=[tanhs], progress=False, **said)
    assert all(got == counted <= 2 for got, counted in figures(place / "object", "tanhs"))
    assert all(t.user_attrs["metric_tanhs"] == t.values[1] for t in found.study.trials if t.values)
    words = [*WORDS, COST, "objectives=[accuracy,Tanhs]", "search.limits.Tanhs=2"]
    assert main([*words, "folder=named"]) == 0
    assert all(got == counted <= 2 for got, counted in figures(place / "named", "Tanhs"))
    assert [t[2] for t in trials_of(place / "named")] == [t[2] for t in trials_of(place / "object")]
    # what stands in a folder is never imported
    again = ["search", "space.pool=tiny.py:build", "resume=named", "search.trials=14"]
    assert "name it again: " in (line := refused(*again))
    assert COST in line
    with pytest.raises(SettingError, match=r"search\.costs was given in Python"):
        l2l_nas.search(problem, resume="object", trials=14, progress=False)
    assert main([*again, COST]) == 0
    assert l2l_nas.search(problem, resume="object", trials=14, costs=[tanhs], progress=False).content["trials"]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        (
            "search.costs=[mine.py:number]",
            "search.costs: mine.py:number gave int; expected a function of an architecture",
        ),
        ("search.costs=[Tanhs]", "search.costs: 'Tanhs' is no FILE.py:NAME and no MODULE:NAME"),
        ("search.costs=[mine.py:Tanhs,mine.py:Tanhs]", "search.costs: two costs are called 'Tanhs'"),
        ("relay.storage=mine.py:number", "relay.storage: mine.py:number gave int; expected a storage"),
        (
            f"{STORAGE} search.trial_weights=fork search.workers=2",
            "relay.storage=mine.py:Layers keeps states where other workers do not see them",
        ),
        (f"{STORAGE} search.time=1m", "search.time measures a few steps in memory"),
    ],
)
def test_what_is_none_is_refused_in_one_line(place, refused, word, says):
    assert says in refused(*WORDS, "folder=out", *word.split(" "))
    assert not (place / "out").exists()


def test_objects_that_are_none_are_refused(problem, place):
    full = RamStorage()
    full.put("a", None)
    for more, says in (
        ({"costs": tanhs}, r"search\.costs takes a list of functions or names"),
        ({"costs": [3]}, r"search\.costs: 3 is no function"),
        ({"costs": [tanhs, tanhs]}, r"two costs are called 'tanhs'"),
        ({"costs": [lambda architecture: 1.0]}, r"its name may hold only letters"),
        ({"relay": {"storage": 3}}, r"relay\.storage: 3 is no name, nor a storage"),
        ({"relay": {"storage": full}}, r"relay\.storage: it holds states already"),
    ):
        with pytest.raises(SettingError, match=says):
            l2l_nas.search(problem, folder="out", progress=False, **{**SAID, **more})
    assert not (place / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["processes", "own"])
def test_workers_know_what_was_given_as_objects(problem, place, executor):
    """Costs that are a function of this file, an optimizer, a problem: whatever executor runs the trials."""
    found = {}
    for name in ("inline", executor):
        more = {"workers": 2} if name != "inline" else {}
        more |= {"executor": ThreadPoolExecutor(1), "workers": 1 + 1} if name == "own" else {}
        said = {**SAID, "trials": 6, "trial_weights": "scratch", "sampler": "random", **more}
        run = l2l_nas.search(problem, folder=name, costs=[tanhs], optimizer=l2l_nas.SGD(), progress=False, **said)
        found[name] = {str(trial.params): trial.values for trial in run.study.trials}
    both = found["inline"].keys() & found[executor].keys()  # two at a time are drawn before the first has a value
    assert both
    assert {key: found["inline"][key] for key in both} == {key: found[executor][key] for key in both}


@pytest.mark.slow
def test_a_storage_holds_the_pool_by_object_and_by_name_and_a_run_goes_on_with_another(problem, place, refused):
    storage = RamStorage()
    l2l_nas.search(problem, folder="object", relay={"storage": storage}, progress=False, **SAID)
    assert "layer0/tanh" in storage.keys
    assert main([*WORDS, "folder=plain"]) == 0
    assert not (place / "put").exists()
    assert main([*WORDS, STORAGE, "folder=named"]) == 0
    assert (place / "put").exists()
    assert trials_of(place / "named") == trials_of(place / "object") == trials_of(place / "plain")
    again = ["search", "space.pool=tiny.py:build", "resume=named", "search.trials=14"]
    assert f"name it again: {STORAGE}" in refused(*again)
    assert f"name it again: {STORAGE}" in refused(
        *("train", "run=named", "space.pool=tiny.py:build", "folder=out", "train.steps=2")
    )
    assert main([*again, STORAGE]) == 0
    assert main(["search", "space.pool=tiny.py:build", "resume=plain", "search.trials=14"]) == 0
    assert trials_of(place / "named") == trials_of(place / "plain")
    train = ["train", "run=named", "space.pool=tiny.py:build", "train.steps=2", "export=false"]
    assert main([*train, STORAGE, "folder=mine"]) == 0
    assert main([*train, "relay.storage=ram", "folder=ours"]) == 0
    first, second = (json.loads((place / name / "result.json").read_text())["best"] for name in ("mine", "ours"))
    assert first == second


@pytest.mark.slow
def test_worker_processes_know_the_costs_that_are_named(place):
    words = [*WORDS, COST, "objectives=[accuracy,Tanhs]", "search.trial_weights=fork", "search.workers=2"]
    assert main([*words, "folder=run"]) == 0
    assert all(got == counted for got, counted in figures(place / "run", "Tanhs"))
