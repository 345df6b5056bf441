from __future__ import annotations

import shutil

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from torch import nn

from l2l_nas import Candidate, LayerPool, TensorSpec, skip
from l2l_nas.errors import StorageError, UserCodeError
from l2l_nas.nas.objectives import Goal, State
from l2l_nas.nas.study.reading import choices_of_trial
from tests.nas.problems import GOALS, budget, open_study, pool_of, search_on
from tests.studies import saved_study

VALUES = {"accuracy": 0.5, "parameters": 30.0}


def complete(study, **changes):
    return study.tell(study.ask()[0], **{"state": State.COMPLETE, "values": VALUES, **changes})


def reread(folder):
    return saved_study(folder)


def test_a_finished_trial_is_on_disk_before_tell_returns(tmp_path):
    study = open_study(tmp_path, pool_of("tanh", "relu", "skip"))
    for number in range(3):
        record = complete(study, metrics={"loss": 0.25}, seconds=1.5)
        copy = tmp_path / f"copy{number}"
        copy.mkdir()
        shutil.copy(tmp_path / "study.log", copy)  # what a reader would find after a crash at this moment
        saved = reread(copy).trials[-1]
        assert (record.number, saved.number) == (number, number)
        assert saved.values == [0.5, 30.0]
        assert saved.user_attrs["architecture"] == list(record.architecture.choices)
        assert saved.user_attrs["digest"] == record.architecture.digest
        assert saved.user_attrs["metric_loss"] == 0.25
        assert saved.state is optuna.trial.TrialState.COMPLETE
    assert reread(tmp_path).metric_names == [goal.name for goal in GOALS]


def test_with_one_goal_rungs_are_optuna_s_intermediate_values(tmp_path):
    pool, rungs = pool_of("tanh", "relu", "skip"), {"5/20": {"accuracy": 0.25}, "10/20": {"accuracy": 0.375}}
    study = open_study(tmp_path, pool, goals=GOALS[:1])
    complete(study, rungs=rungs)
    complete(study, state=State.STOPPED, values=None, reason="lags behind", rungs={"5/20": {"accuracy": 0.125}})
    first, second = reread(tmp_path).trials
    assert first.intermediate_values == {5: 0.25, 10: 0.375, 20: 0.5}
    assert (second.intermediate_values, second.state) == ({5: 0.125}, optuna.trial.TrialState.PRUNED)
    again = open_study(tmp_path, pool, goals=GOALS[:1], resume=True)
    assert [record.values for record in again.records] == [{"accuracy": 0.5}, {}]


def test_what_came_of_finalists_is_kept_under_its_key(tmp_path):
    pool = pool_of("tanh", "relu", "skip")
    study = open_study(tmp_path, pool)
    assert study.stored_finalists("a") is None
    study.keep_finalists("a", [{"trial": 3}])
    assert reread(tmp_path).user_attrs["finalists"] == {"key": "a", "finalists": [{"trial": 3}]}
    again = open_study(tmp_path, pool, resume=True)
    assert again.stored_finalists("a") == [{"trial": 3}]
    assert again.stored_finalists("b") is None


def test_a_resumed_study_has_the_same_records(tmp_path):
    pool = pool_of("tanh", "relu", "skip")
    study = open_study(tmp_path, pool)
    complete(study)
    complete(study, state=State.PRUNED, values=None, reason="too large", metrics={"parameters": 7.0})
    complete(study, state=State.FAILED, values=None, reason="NaN")
    complete(study, state=State.STOPPED, values=None, reason="lags behind", rungs={"5/20": {"accuracy": 0.25}})
    complete(study, cached=True)
    again = open_study(tmp_path, pool, resume=True)
    assert again.records == study.records
    assert [r.state for r in again.records] == ["complete", "pruned", "failed", "stopped", "complete"]
    assert again.records[1].metrics == {"parameters": 7.0}
    assert again.records[3].rungs == {"5/20": {"accuracy": 0.25}}
    assert reread(tmp_path).trials[3].state is optuna.trial.TrialState.PRUNED
    assert complete(again).number == 5
    assert [trial.number for trial in reread(tmp_path).trials] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("sampler", ["random", "tpe", "nsga2"])
def test_a_resumed_sampler_does_not_draw_its_first_proposals_again(tmp_path, sampler):
    pool = pool_of("tanh", "relu", "skip", "wide", depth=8)
    study = open_study(tmp_path, pool, sampler=sampler)
    first = [complete(study).architecture for _ in range(4)]
    again = open_study(tmp_path, pool, sampler=sampler, resume=True)
    second = [complete(again).architecture for _ in range(4)]
    assert not set(first) & set(second)


def test_another_space_or_other_goals_are_refused(tmp_path):
    pool = pool_of("tanh", "relu")
    open_study(tmp_path, pool)
    before = (tmp_path / "study.log").read_bytes()
    with pytest.raises(StorageError, match="searches another space") as caught:
        open_study(tmp_path, pool_of("tanh", "relu", depth=3), resume=True)
    assert str(caught.value).count("study.log") == 1
    assert "check that the folder" not in str(caught.value)
    for goals in ((GOALS[0],), (Goal("accuracy", False), GOALS[1]), (Goal("loss", False), GOALS[1])):
        with pytest.raises(StorageError, match="this study's objectives are accuracy up, parameters down"):
            open_study(tmp_path, pool, goals=goals, resume=True)
    assert (tmp_path / "study.log").read_bytes() == before


def test_a_study_of_another_program_is_refused(tmp_path):
    storage = JournalStorage(JournalFileBackend(str(tmp_path / "study.log")))
    optuna.create_study(study_name="mine", storage=storage)
    with pytest.raises(StorageError, match="holds no study named 'search'"):
        open_study(tmp_path, pool_of("tanh"), resume=True)
    with pytest.raises(StorageError, match="there is no study"):
        open_study(tmp_path / "nowhere", pool_of("tanh"), resume=True)
    assert not (tmp_path / "nowhere").exists()


def test_a_study_of_a_version_before_is_refused(tmp_path):
    (tmp_path / "study.db").write_bytes(b"SQLite format 3")
    with pytest.raises(StorageError, match=r"study\.db: written by a version before 0\.2\.0"):
        open_study(tmp_path, pool_of("tanh"), resume=True)


def test_nothing_but_a_whole_study_ever_has_the_name(tmp_path, monkeypatch):
    seen = []

    def watched(self, name, value, real=optuna.Study.set_user_attr):
        seen.append((name, (tmp_path / "study.log").exists()))
        real(self, name, value)

    monkeypatch.setattr(optuna.Study, "set_user_attr", watched)
    open_study(tmp_path, pool_of("tanh"))
    assert seen == [("space", False), ("goals", False), ("data", False)]
    assert [path.name for path in tmp_path.iterdir()] == ["study.log"]


def test_a_proposal_comes_next(tmp_path):
    pool = pool_of("tanh", "relu", "skip", depth=3)
    study = open_study(tmp_path, pool)
    wanted = pool.architecture(["linear", "skip", "relu", "tanh", "linear"])
    study.propose(wanted)
    assert study.ask()[1] == wanted


def test_proposals_are_canonical(tmp_path):
    pool = LayerPool.repeated([Candidate("a", lambda: nn.Linear(2, 2)), skip()], depth=4, inputs=TensorSpec((2,)))
    study = open_study(tmp_path, pool)
    for _ in range(10):
        trial, architecture = study.ask()
        assert architecture == pool.canonical(architecture)
        study.tell(trial, State.FAILED)


def test_a_study_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(StorageError, match=r"study\.log.*: no such file or folder"):
        open_study(tmp_path / "no" / "such", pool_of("tanh"))
    pool = pool_of("tanh", "relu")
    study = open_study(tmp_path, pool)
    (tmp_path / "study.log").unlink()
    with pytest.raises(StorageError, match=r"study\.log: no such file or folder"):
        complete(study)
    assert not list(tmp_path.iterdir())  # a study without its beginning would be worse


def test_the_architecture_of_any_trial_is_read_from_the_file_alone(tmp_path):
    study = open_study(tmp_path, pool_of("tanh", "relu", "skip"))
    records = [complete(study), complete(study, state=State.FAILED, values=None), complete(study)]
    for record in records:
        assert choices_of_trial(tmp_path / "study.log", record.number) == record.architecture.choices
    with pytest.raises(StorageError, match=r"study\.log: has no trial 3; it has 0 to 2"):
        choices_of_trial(tmp_path / "study.log", 3)
    with pytest.raises(StorageError, match=r"other\.log: there is no study"):
        choices_of_trial(tmp_path / "other.log", 0)


def test_trials_are_numbered_as_they_finish_and_say_which_worker_evaluated_them(tmp_path):
    pool = pool_of("tanh", "relu", "skip")
    study = open_study(tmp_path, pool)
    asked = [study.ask() for _ in range(3)]
    values = {"accuracy": 0.5, "parameters": 10.0}
    for number, (trial, architecture) in enumerate([asked[2], asked[0], asked[1]]):
        record = study.tell(trial, State.COMPLETE, values, worker=number)
        assert (record.number, record.worker, record.architecture) == (number, number, architecture)
        assert record.to_json().get("worker", 0) == number
    again = open_study(tmp_path, pool, resume=True)
    assert again.records == study.records


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("kind", ["grid", "brute force"])
def test_a_sampler_that_stops_the_study_is_asked_no_more_and_the_search_ends_well(tmp_path, kind):
    if kind == "grid":
        sampler = optuna.samplers.GridSampler({name: ["relu", "tanh"] for name in ("p0", "p1")}, seed=0)
    else:
        sampler = optuna.samplers.BruteForceSampler(seed=0)
    spend = budget(trials=20, warmup_steps=0, finalists=1)
    search, _, study, _ = search_on(tmp_path, pool_of("tanh", "relu"), spend=spend, sampler=sampler)
    assert search.run().is_trained
    assert study.num_evaluated == 4
    assert study.is_exhausted


def test_what_was_proposed_is_tried_though_the_sampler_has_stopped(tmp_path):
    class Enough(optuna.samplers.RandomSampler):
        def after_trial(self, study, trial, state, values):
            study.stop()

    pool = pool_of("tanh", "relu")
    search, _, study, _ = search_on(
        tmp_path, pool, spend=budget(trials=20, warmup_steps=0, finalists=0), sampler=Enough(seed=0)
    )
    wanted = [pool.architecture(["linear", *names, "linear"]) for names in (("tanh", "tanh"), ("relu", "relu"))]
    for one in wanted:
        study.propose(one)
    search.run()
    assert [record.architecture for record in study.records] == wanted


@pytest.mark.parametrize("where", ["sample_relative", "after_trial", "before_trial"])
def test_what_a_sampler_raises_names_it_and_no_trial_that_was_trained_is_lost(tmp_path, where):
    class Failing(optuna.samplers.RandomSampler):
        pass

    def fail(self, study, trial, *_):
        if trial.number == 1:
            raise ZeroDivisionError("nothing by nothing")
        return {}

    setattr(Failing, where, fail)
    spend = budget(trials=4, warmup_steps=0, finalists=0)
    search, _, study, _ = search_on(tmp_path, pool_of("tanh", "relu"), spend=spend, sampler=Failing(seed=1))
    with pytest.raises(UserCodeError, match="sampler Failing raised ZeroDivisionError: nothing by nothing") as raised:
        search.run()
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    trained = 2 if where == "after_trial" else 1
    assert len(study.records) == trained
    assert len(reread(tmp_path).trials) == trained


def test_a_study_that_is_deleted_while_it_is_written_is_one_error(tmp_path):
    study = open_study(tmp_path, pool_of("tanh", "relu"))
    complete(study)
    optuna.delete_study(study_name="search", storage=JournalStorage(JournalFileBackend(str(tmp_path / "study.log"))))
    with pytest.raises(StorageError, match=r"study\.log: does not read as a study of this program"):
        complete(study)
