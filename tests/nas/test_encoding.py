"""A study whose pool grows, shrinks and comes back: what the sampler sees, and what Optuna reads."""

from __future__ import annotations

import optuna
import pytest

from l2l_nas.errors import StorageError
from l2l_nas.nas.study.encoding import kept_name
from l2l_nas.nas.study.storage import Verdict
from tests.nas.problems import open_study, pool_of
from tests.nas.shares import join

VALUES = {"accuracy": 0.5, "parameters": 30.0}


def fill(study, count):
    told = []
    for _ in range(count):
        trial, architecture = study.ask()
        told.append(study.tell(trial, architecture, state="complete", values=VALUES))
    return told


def reread(folder):
    return optuna.load_study(study_name="search", storage=f"sqlite:///{folder / 'study.db'}")


def test_the_name_of_a_parameter_says_what_changed():
    assert kept_name("p", ["a", "b"], frozenset("ab")) == "p"
    assert kept_name("p", ["a", "b"], frozenset("acd")) == "p +c +d -b"
    long = kept_name("p", [], frozenset(f"candidate_{index}" for index in range(99)))
    assert len(long) < 250
    assert long != kept_name("p", [], frozenset(f"candidate_{index}" for index in range(98)))


@pytest.mark.parametrize("sampler", ["random", "tpe", "nsga2", "gp_hamming", "evolution", "local"])
def test_a_study_goes_on_with_candidates_added_and_removed(tmp_path, sampler):
    study = open_study(tmp_path, pool_of("tanh", "relu", "skip", depth=3), sampler=sampler, num_trials=40)
    first = fill(study, 12)
    study.close()
    pool = pool_of("tanh", "wide", "skip", depth=3)  # relu is gone, wide is new
    study = open_study(tmp_path, pool, sampler=sampler, num_trials=40, resume=True)
    assert [(r.number, r.architecture, r.values) for r in study.records] == [
        (r.number, r.architecture, r.values) for r in first
    ]
    for record in study.records:
        assert record.live == ("relu" not in record.architecture.choices)
    live = [r for r in study.records if r.live]
    assert 0 < len(live) < 12
    memory = study._memory.trials
    assert [tuple(t.params.values()) for t in memory] == [r.architecture.choices[1:4] for r in live]
    assert {t.distributions["p0"].choices for t in memory} == {("skip", "tanh", "wide")}
    second = fill(study, 20)
    assert [r.number for r in second] == list(range(12, 32))
    assert all(r.live for r in second)
    assert any("wide" in r.architecture.choices for r in second)
    study.close()
    saved = reread(tmp_path).trials
    assert [t.number for t in saved] == list(range(32))
    assert saved[0].params.keys() == {"p0", "p1", "p2"}
    assert saved[20].params.keys() == {"p0 +wide -relu", "p1 +wide -relu", "p2 +wide -relu"}
    choices = {}
    for trial in saved:  # one set of choices to a name, as Optuna wants it
        for name, one in trial.distributions.items():
            assert choices.setdefault(name, one) == one
    again = open_study(
        tmp_path, pool_of("tanh", "relu", "skip", "wide", depth=3), sampler=sampler, num_trials=40, resume=True
    )
    assert all(r.live for r in again.records)
    assert len(again._memory.trials) == 32
    assert fill(again, 1)[0].number == 32
    again.close()
    back = open_study(tmp_path, pool_of("relu", "skip", "tanh", depth=3), sampler=sampler, num_trials=40, resume=True)
    fill(back, 1)
    back.close()
    assert reread(tmp_path).trials[33].params.keys() == {"p0", "p1", "p2"}


def test_a_position_may_become_a_choice_and_be_none_again(tmp_path):
    study = open_study(tmp_path, pool_of("tanh"))
    fill(study, 2)
    study.close()
    study = open_study(tmp_path, pool_of("tanh", "relu"), resume=True)
    assert [t.params for t in study._memory.trials] == [{"p0": "tanh", "p1": "tanh"}] * 2
    fill(study, 5)
    study.close()
    study = open_study(tmp_path, pool_of("relu"), resume=True)
    assert all(t.params == {} for t in study._memory.trials)
    assert fill(study, 1)[0].architecture.choices == ("linear", "relu", "relu", "linear")
    study.close()
    assert [t.number for t in reread(tmp_path).trials] == list(range(8))


def test_a_candidate_that_keeps_its_name_must_keep_its_layout(tmp_path):
    study = open_study(tmp_path, pool_of("tanh", "relu"))
    study.close()
    before = (tmp_path / "study.db").read_bytes()
    with pytest.raises(StorageError, match=r"study\.db: this study knows another layer by the name .* another name"):
        open_study(tmp_path, pool_of("tanh", "relu", width=5), resume=True)
    assert (tmp_path / "study.db").read_bytes() == before
    open_study(tmp_path, pool_of("tanh", "wide"), resume=True).close()
    # what was there in between counts as well
    with pytest.raises(StorageError, match="another layer by the name"):
        open_study(tmp_path, pool_of("tanh", "wide", width=5), resume=True)


def test_processes_with_the_pool_of_before_and_after_share_a_study(tmp_path):
    url = f"sqlite:///{tmp_path / 'study.db'}"
    old = join(url, tmp_path / "old", pool_of("tanh", "relu", depth=3), trials=30)
    new = join(url, tmp_path / "new", pool_of("tanh", "relu", "wide", depth=3), trials=30)
    for study in (old, new, old, new, new, old, new, new):
        list(study.news())
        trial, architecture = study.ask()
        if study.lease(trial, architecture) is not Verdict.OURS:
            continue
        if "wide" in architecture.choices:  # what the others do not know counts there too
            list(old.news())
            assert architecture in old.elsewhere
        study.tell(trial, architecture, state="complete", values=VALUES)
    for study in (old, new):
        list(study.news())
        assert study.num_evaluated == len({r.architecture for r in study.records if not r.cached})
    assert {r.number for r in old.records} == {r.number for r in new.records}
    assert any(not r.live for r in old.records)
    assert all(r.live for r in new.records)
    for study in (old, new):
        study.close()
