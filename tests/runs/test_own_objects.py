"""A sampler, a strategy and a rule of the user's own, given to a search by object and by name."""

from __future__ import annotations

import importlib.util
import json

import pytest

import l2l_nas
from l2l_nas.__main__ import main
from l2l_nas.errors import SettingError
from tests.cli.runs import TINY
from tests.runs.calls import SAID

MINE = """
import optuna
from l2l_nas import Finalists, Phase, Trials, WarmUp
from l2l_nas.nas.evaluation.early_stopping import NeverStop

class Downwards(optuna.samplers.BaseSampler):
    def __init__(self, seed):
        self.random, self.asked = optuna.samplers.RandomSampler(seed=seed), 0

    def infer_relative_search_space(self, study, trial):
        return {}

    def sample_relative(self, study, trial, search_space):
        return {}

    def sample_independent(self, study, trial, name, distribution):
        self.asked += 1
        return self.random.sample_independent(study, trial, name, distribution)

class First(Phase):
    def run(self, search):
        self.scores = [search.evaluator.score(a)["accuracy"] for a, _ in zip(search.random_architectures(5), range(3))]
        search.study.propose(search.pool.architecture([p.candidates[-1].name for p in search.pool.positions]))

def phases():
    return [WarmUp(), First(), Trials(), Finalists()]

class Third(NeverStop):
    asked = 0
    def stop_reason(self, architecture, rung, values):
        type(self).asked += 1
        return "every third" if self.asked % 3 == 0 else None

def nothing():
    return [3]
"""


@pytest.fixture
def mine(problem, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    spec = importlib.util.spec_from_file_location("mine", tmp_path / "mine.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_a_sampler_and_a_strategy_of_one_s_own_are_taken_by_object(problem, mine):
    sampler, phases = mine.Downwards(seed=0), mine.phases()
    result = l2l_nas.search(problem, folder="object", sampler=sampler, strategy=phases, progress=False, **SAID)
    assert len(result.study.trials) >= 12
    assert sampler.asked >= 11 * sum(len(p.candidates) > 1 for p in problem.pool.positions)
    assert len(phases[1].scores) == 3
    last = problem.pool.canonical(problem.pool.architecture([p.candidates[-1].name for p in problem.pool.positions]))
    assert result.study.trials[0].user_attrs["architecture"] == list(last.choices)
    with pytest.raises(SettingError, match=r"sampler.* was given in Python: give it to l2l_nas\.search again"):
        l2l_nas.search(problem, resume="object", trials=14, progress=False)


@pytest.mark.slow
def test_a_sampler_a_strategy_and_a_rule_of_one_s_own_are_taken_by_name(mine, tmp_path, refused):
    words = ["search", "space.pool=tiny.py:build", *TINY]
    own = ["sampler=mine.py:Downwards", "strategy=mine.py:phases", "search.early_stop=mine.py:Third"]
    fork = ["search.trial_weights=fork", "search.steps_per_trial=8", "search.finalist_steps=9"]
    assert main([*words, *own, *fork, "folder=named"]) == 0
    states = json.loads((tmp_path / "named" / "result.json").read_text())["trials"]
    assert states["stopped"] >= 3
    # what stands in a folder is never imported
    again = ["search", "space.pool=tiny.py:build", "resume=named", "search.trials=14"]
    line = refused(*again)
    assert "never taken from a folder" in line
    assert all(word in line for word in own)
    assert "name it again: search.early_stop=mine.py:Third" in refused(*again, *own[:2])
    assert main([*again, *own]) == 0
    assert "must keep it: phases of another strategy" in refused(*again, own[0], own[2], "strategy=default")


def test_what_is_no_sampler_strategy_or_rule_is_refused(problem, mine, tmp_path, refused):
    words = ["search", "space.pool=tiny.py:build", *TINY, "folder=other"]
    for word, says in (
        ("sampler=mine.py:nothing", "mine.py:nothing gave list; expected an optuna.samplers.BaseSampler"),
        ("sampler=yours.py:Sampler", "no file 'yours.py'"),
        ("strategy=mine.py:nothing", "mine.py:nothing gave list; expected a list of l2l_nas.Phase objects"),
        ("strategy=defalt", "no strategy 'defalt'; did you mean 'default'?"),
    ):
        assert says in refused(*words, word)
    for more in ({"strategy": 3}, {"early_stop": 3}):
        with pytest.raises(SettingError, match=r"l2l_nas.Phase objects|lacks stop_reason or learn"):
            l2l_nas.search(problem, folder="other", progress=False, **more)
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_a_rule_of_one_s_own_decides_in_the_search_s_own_process_where_workers_train(problem, tmp_path):
    class Second:
        def __init__(self):
            self.numbers = {}

        def stop_reason(self, architecture, rung, values):
            number = self.numbers.setdefault(architecture, len(self.numbers))
            return "every second" if number % 2 else None

        def learn(self, records):
            pass

    rule = Second()
    said = {**SAID, "trial_weights": "fork", "steps_per_trial": 8, "finalist_steps": 9}
    found = l2l_nas.search("tiny.py:build", folder="run", early_stop=rule, workers=2, progress=False, **said)
    assert len(rule.numbers) >= 6
    assert found.content["trials"]["stopped"] >= 3
