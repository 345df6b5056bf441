"""Steps are counted where they are done; a resume has them all, and random search is given as many."""

from __future__ import annotations

import shutil
from itertools import count

import optuna
import pytest

import l2l_nas
from l2l_nas import Classification, Finalists, Phase, Problem, RandomSearch, Relay, Stopped, Trials, WarmUp
from l2l_nas.compress.blockwise import blockwise
from l2l_nas.errors import SettingError, StorageError
from l2l_nas.nas.study import ledger as module
from l2l_nas.nas.study.journal import storage_of
from l2l_nas.nas.study.ledger import LEDGER
from l2l_nas.nas.study.reading import read_study
from tests.nas.problems import data, open_study, pool_of
from tests.studies import unchained

NAMES = ("tanh", "relu", "skip", "wide")
COMMON = {
    "export": False, "progress": False, "sampler": "random", "baseline": "random", "finalists": 3,
    "train": {"batch_size": 16, "micro_batch": 16},
}  # fmt: skip


def searched(folder, pool=None, **settings):
    problem = Problem(pool=pool or pool_of(*NAMES, depth=3), data=data(), task=Classification())
    if folder.exists():
        return l2l_nas.search(problem, resume=folder, **settings)
    return l2l_nas.search(problem, folder=folder, **COMMON, **settings)


class Steps:
    """Counts training steps that are done: of the search, of random search, and of blocks, whose pools are others."""

    def __init__(self, monkeypatch, pool_size=5):
        self.search = self.random = self.blocks = 0
        self.at = {}  # what to do at a step, by its number
        real, run = Relay.train_step, RandomSearch.run
        self.is_random = False

        def train_step(relay, *args, **kwargs):
            result = real(relay, *args, **kwargs)
            if len(relay.pool.positions) != pool_size:
                self.blocks += 1
            elif self.is_random:
                self.random += 1
            else:
                self.search += 1
            return result

        def random_search(phase, search):
            self.is_random = True
            try:
                run(phase, search)
            finally:
                self.is_random = False

        monkeypatch.setattr(Relay, "train_step", train_step)
        monkeypatch.setattr(RandomSearch, "run", random_search)


@pytest.fixture
def steps(monkeypatch):
    return Steps(monkeypatch)


def given(result):
    return result.content["baseline"]["total_steps"]


RACE = {"trial_weights": "scratch", "steps_per_trial": 2, "finalist_steps": 9, "trials": 4}
SHARED = {"trial_weights": "shared", "warmup_steps": 7, "steps_per_trial": 1, "finalist_steps": 5, "trials": 3}


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [RACE, SHARED, {**SHARED, "trial_weights": "fork"}, {**RACE, "steps_per_trial": 8, "early_stop": "halving"}],
    ids=["race", "shared", "forks", "stopped early"],
)
def test_random_search_is_given_the_steps_of_all_sessions(tmp_path, steps, settings):
    searched(tmp_path / "run", **settings)
    first = steps.search
    assert steps.random == first
    result = searched(tmp_path / "run", trials=settings["trials"] + 5)
    assert steps.search > first
    assert given(result) == steps.search == steps.random - first
    spent = result.content["spent"]
    assert spent["RandomSearch"]["steps"] == steps.random
    assert sum(one["steps"] for name, one in spent.items() if name != "RandomSearch") == steps.search
    assert all(one["seconds"] > 0 for one in spent.values())
    assert read_study(tmp_path / "run" / "study.log").steps == {name: one["steps"] for name, one in spent.items()}


class StopAt(l2l_nas.Callback):
    def __init__(self, poll):
        self.polls, self.stop_at = count(), poll

    def poll(self):
        if next(self.polls) == self.stop_at:
            raise Stopped


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "poll"),
    [(RACE, 9), (RACE, 30), (SHARED, 5), (SHARED, 41)],
    ids=["trial", "finalist", "warm-up", "end"],
)
def test_a_search_that_was_stopped_has_its_steps_when_it_goes_on(tmp_path, steps, settings, poll):
    searched(tmp_path / "run", **settings, callbacks=[StopAt(poll)])
    before = steps.random
    result = searched(tmp_path / "run")
    assert given(result) == steps.search
    assert steps.random - before in (given(result), 0)  # 0: nothing was left to do


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "at"), [(RACE, 3), (RACE, 13), (SHARED, 9)], ids=["trial", "finalist", "shared trial"]
)
def test_a_search_that_was_killed_has_what_was_stored(tmp_path, steps, monkeypatch, settings, at):
    """The folder as a kill would leave it, copied between two steps, where each step is stored."""
    monkeypatch.setattr(module, "_STORE_SECONDS", 0.0)

    class Killed(l2l_nas.Callback):
        def poll(self):
            if steps.search == at and not (tmp_path / "killed").exists():
                shutil.copytree(tmp_path / "run", tmp_path / "killed")

    searched(tmp_path / "run", **settings, callbacks=[Killed()])
    steps.search = at
    assert given(searched(tmp_path / "killed")) == steps.search


@pytest.mark.slow
def test_what_phases_of_the_users_own_train_and_score_counts(tmp_path, steps):
    class Mine(Phase):
        def run(self, search):
            path = search.paths.path_at(0)
            search.evaluator.train(lambda step: path, start=100, steps=6, learning_rate=0.01, total=6)
            for _ in range(8):
                search.evaluator.score(path)

    result = searched(tmp_path / "run", strategy=[WarmUp(), Mine(), Trials(), Finalists(), RandomSearch()], **SHARED)
    scores = 8 * 12 / 16 / 3  # of 12 samples, where a mini-batch has 16 and a score is a third of a step
    assert result.content["spent"]["Mine"]["steps"] == 6 + scores
    assert given(result) == steps.search + scores == steps.random


@pytest.mark.slow
@pytest.mark.parametrize("teacher", [0.0, 0.5])
def test_blocks_and_their_scores_count_as_shares_of_steps(tmp_path, monkeypatch, teacher):
    pool = pool_of("tanh", "relu", "wide", depth=2)
    steps = Steps(monkeypatch, pool_size=4)
    phases = blockwise(samples=24, steps=4, scores="exchange", rounds=1, teacher=teacher, rates=())
    settings = {
        "trial_weights": "fork",
        "trials": 2,
        "steps_per_trial": 0,
        "finalist_steps": 20,
        "limits": {"parameters": 10**6},
    }
    result = searched(tmp_path / "run", pool, strategy=phases, **settings)
    spent = {name: one["steps"] for name, one in result.content["spent"].items()}
    # operations, and one for each layer: of the ends 17, of tanh and relu 33, of wide 1025, of the original 100
    assert steps.blocks == 2 * 2 * 4
    assert spent["DistilBlocks"] == pytest.approx(2 * 4 * (33 + 1025) / 100 * 8 / 16)
    # five networks in one pass, in which nothing is computed twice
    in_one_pass = 17 + 2 * (33 + 33 + 1025) + 2 * 33 + 5 * 17
    mean = (3 * 100 + 2 * (100 + 1025 - 33)) / 5
    assert spent["ScoreBlocks"] == pytest.approx(in_one_pass / mean * 12 / 16 / 3, abs=0.01)
    assert spent["Finalists"] == steps.search
    stored = read_study(tmp_path / "run" / "study.log").steps  # not rounded
    assert given(result) == round(sum(stored.values()) - stored["RandomSearch"]) == steps.random


@pytest.mark.slow
def test_workers_tell_their_steps(tmp_path, steps):
    result = searched(tmp_path / "run", **RACE, workers=2)
    finalists = result.content["finalists"]
    assert given(result) == 4 * 2 + sum(one["steps"] - 2 for one in finalists)
    assert steps.search == steps.random == 0  # none of them here


def test_a_study_stores_what_was_counted_with_each_trial_and_gives_it_again(tmp_path):
    pool = pool_of("tanh", "relu")
    study = open_study(tmp_path, pool)
    study.ledger.begin("Trials")
    study.ledger.add(2.5)
    trial, _ = study.ask()
    study.tell(trial, l2l_nas.nas.objectives.State.FAILED)
    study.ledger.begin("Finalists")
    study.ledger.add(4)  # which is not stored
    again = open_study(tmp_path, pool, resume=True)
    assert (again.ledger.steps, again.ledger.is_complete) == ({"Trials": 2.5}, True)
    again.ledger.begin("RandomSearch")
    again.ledger.add(3)
    again.ledger.begin("Trials")
    again.ledger.add(1)
    assert again.ledger.search_steps == 3.5


def test_a_study_with_trials_and_no_ledger_has_no_random_search(tmp_path):
    settings = {**RACE, "baseline": "none"}
    problem = Problem(pool=pool_of(*NAMES, depth=3), data=data(), task=Classification())
    run = {**COMMON, **settings, "folder": tmp_path / "run"}
    l2l_nas.search(problem, **run)
    path = tmp_path / "run" / "study.log"
    lines = unchained(path.read_bytes()).splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in lines if f'"{LEDGER}"'.encode() not in line))
    with pytest.raises(SettingError, match=r"version that did not count steps.*search\.baseline=none"):
        searched(tmp_path / "run", trials=6, baseline="random")
    result = searched(tmp_path / "run", trials=6)
    assert result.content["spent"] is None
    assert read_study(path).steps == {}


@pytest.mark.parametrize(
    "content", [[], {"phases": {}}, {"complete": True, "phases": {"A": {"steps": -1, "seconds": 0}}}]
)
def test_what_is_no_ledger_is_refused(tmp_path, content):
    pool = pool_of("tanh", "relu")
    open_study(tmp_path, pool)
    optuna.load_study(study_name="search", storage=storage_of(tmp_path / "study.log")).set_user_attr(LEDGER, content)
    with pytest.raises(StorageError, match=r"study\.log: does not read as a study"):
        open_study(tmp_path, pool, resume=True)
