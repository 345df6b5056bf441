"""A study whose pool grows, shrinks and comes back: what the sampler sees, and what Optuna reads."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sqlite3
import subprocess
import sys

import optuna
import pytest
from optuna.distributions import CategoricalDistribution
from optuna.trial import create_trial

from l2l_nas import LayerPool, Position, TensorSpec
from l2l_nas.errors import StorageError
from l2l_nas.nas.study.encoding import all_choices, expressed
from l2l_nas.nas.study.sqlite_file import count_trials
from tests.cli.runs import ROOT, environment
from tests.nas.problems import open_study, pool_of

VALUES = {"accuracy": 0.5, "parameters": 30.0}


def fill(study, count):
    given = []
    for _ in range(count):
        trial, architecture = study.ask()
        given.append(study.tell(trial, architecture, state="complete", values=VALUES))
    return given


def reread(folder):
    return optuna.load_study(study_name="search", storage=f"sqlite:///{folder / 'study.db'}")


def all_of(trial):
    """What a trial holds but for its parameters' choices."""
    return {
        name: getattr(trial, name)
        for name in (
            *("number", "state", "values", "params", "user_attrs", "system_attrs"),
            *("datetime_start", "datetime_complete"),
        )
    }


def test_what_is_not_among_the_choices_is_a_parameter_of_its_own():
    choices = {"first": ["a"], "p 0": ["a", "b"], "p 1": ["a", "b"], "q": ["a", "b"]}
    trial = create_trial(
        value=1.0,
        params={"p 0": "a", "p 1 +c": "c", "q +b": "b"},
        distributions={name: CategoricalDistribution(["a", "b", "c"]) for name in ("p 0", "p 1 +c", "q +b")},
        user_attrs={"architecture": ["a", "b", "c", "a"]},
    )
    found = expressed(trial, choices)
    assert found.params == {"p 0": "a", "p 1 c": "c", "q": "b"}  # as it was drawn
    assert found.distributions["p 1 c"] == CategoricalDistribution(["c"])
    assert found.distributions["q"] == CategoricalDistribution(["a", "b"])
    assert expressed(found, choices) is found
    whole = all_choices(choices, {"q": ["d"]}, [trial])
    assert whole == {"first": ["a"], "p 0": ["a", "b"], "p 1": ["a", "b", "c"], "q": ["a", "b", "d"]}
    assert expressed(trial, whole).params == {"p 0": "a", "p 1": "c", "q": "b"}


@pytest.mark.slow
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
    ever = CategoricalDistribution(["relu", "skip", "tanh", "wide"])
    for trial, record in zip(saved, [*first, *second], strict=True):
        assert trial.params == dict(zip(("p0", "p1", "p2"), record.architecture.choices[1:4], strict=True))
        assert trial.distributions == dict.fromkeys(("p0", "p1", "p2"), ever)
    before = (tmp_path / "study.db").read_bytes()
    again = open_study(
        tmp_path, pool_of("tanh", "relu", "skip", "wide", depth=3), sampler=sampler, num_trials=40, resume=True
    )
    assert (tmp_path / "study.db").read_bytes() == before  # no candidate joined that was never there
    assert all(r.live for r in again.records)
    assert len(again._memory.trials) == 32
    assert fill(again, 1)[0].number == 32
    again.close()
    back = open_study(tmp_path, pool_of("relu", "skip", "tanh", depth=3), sampler=sampler, num_trials=40, resume=True)
    fill(back, 1)
    back.close()
    assert reread(tmp_path).trials[33].distributions["p0"] == ever


@pytest.mark.slow
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
    saved = reread(tmp_path).trials
    assert [t.number for t in saved] == list(range(8))
    assert [t.params for t in saved[:2]] == [{"p0": "tanh", "p1": "tanh"}] * 2
    assert saved[7].params == {"p0": "relu", "p1": "relu"}


@pytest.mark.slow
def test_nothing_of_a_trial_or_of_the_file_but_the_choices_changes(tmp_path):
    study = open_study(tmp_path, pool_of("tanh", "relu"))
    fill(study, 3)
    for state, more in (("failed", {"reason": "NaN"}), ("pruned", {"reason": "too large"}), ("stopped", {"rungs": {}})):
        trial, architecture = study.ask()
        study.tell(trial, architecture, state=state, **more)
    study.keep_finalists("a", [{"trial": 2}])
    study.close()
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    optuna.create_study(study_name="mine", storage=storage)
    saved = reread(tmp_path)
    notes = optuna.storages.RDBStorage(storage)
    notes.set_study_system_attr(notes.get_study_id_from_name("search"), "dashboard:note_str", "a note")
    before, attributes = [all_of(t) for t in saved.trials], saved.user_attrs
    pool = pool_of("tanh", "relu", "wide")
    open_study(tmp_path, pool, resume=True).close()
    after = reread(tmp_path)
    assert [all_of(t) for t in after.trials] == before
    assert after.trials[0].distributions["p0"].choices == ("relu", "tanh", "wide")
    assert after.user_attrs == {**attributes, "space": after.user_attrs["space"]}
    assert after.metric_names == saved.metric_names
    notes = optuna.storages.RDBStorage(storage)
    assert notes.get_study_system_attrs(notes.get_study_id_from_name("search"))["dashboard:note_str"] == "a note"
    assert optuna.get_all_study_names(storage) == ["search", "mine"]
    assert [path.name for path in tmp_path.iterdir()] == ["study.db"]


def test_a_study_of_before_whose_parameters_were_renamed_is_clean_when_it_goes_on(tmp_path):
    study = open_study(tmp_path, pool_of("tanh", "relu"))
    fill(study, 4)
    study.close()
    saved = reread(tmp_path)
    (like,) = saved.get_trials()[:1]
    names, choices = ("p0 +wide -relu", "p1 +wide -relu"), CategoricalDistribution(["tanh", "wide"])
    saved.add_trial(
        create_trial(
            values=like.values,
            params=dict(zip(names, ("wide", "tanh"), strict=True)),
            distributions=dict.fromkeys(names, choices),
            user_attrs={**like.user_attrs, "architecture": ["linear", "wide", "tanh", "linear"]},
        )
    )
    open_study(tmp_path, pool_of("tanh", "wide"), resume=True).close()
    after = reread(tmp_path).trials
    assert after[4].params == {"p0": "wide", "p1": "tanh"}
    assert {t.distributions["p1"].choices for t in after} == {("relu", "tanh", "wide")}
    assert [t.number for t in after] == list(range(5))


@pytest.mark.slow
@pytest.mark.parametrize("dies", ["in the journal", "in the file", "in memory"])
def test_a_kill_while_a_study_is_written_anew_leaves_the_one_before(tmp_path, dies):
    """The kernel ends the process at a byte of what SQLite writes."""
    pool = pool_of("tanh", "relu", depth=4)
    study = open_study(tmp_path, pool, num_trials=40)
    fill(study, 40)
    study.close()
    path = tmp_path / "study.db"
    before, size = [all_of(t) for t in reread(tmp_path).trials], path.stat().st_size
    limit = {"in the journal": size // 2, "in the file": size + 512}.get(dies, 2**30)
    process = subprocess.run([sys.executable, "-c", DYING, str(tmp_path), str(limit)], env=environment(), cwd=ROOT)
    assert process.returncode == -(signal.SIGKILL if dies == "in memory" else signal.SIGXFSZ)
    assert (path.with_name("study.db-journal").exists()) == (dies != "in memory")
    held = shutil.copytree(tmp_path, tmp_path / "held")
    assert count_trials(held / "study.db") == 40
    assert [all_of(t) for t in reread(held).trials] == before
    open_study(tmp_path, pool_of("tanh", "relu", "normed", depth=4), resume=True).close()
    after = reread(tmp_path).trials
    assert [all_of(t) for t in after] == before
    assert {len(t.distributions["p0"].choices) for t in after} == {3}


DYING = """
import os, resource, signal, sys
from pathlib import Path
import optuna
from tests.nas.problems import open_study, pool_of

limit = int(sys.argv[2])
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
if limit == 2**30:
    done, real = [], optuna.storages.RDBStorage.create_new_trial
    def counted(*args, **others):
        done.append(1)
        if len(done) > 20:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **others)
    optuna.storages.RDBStorage.create_new_trial = counted
open_study(Path(sys.argv[1]), pool_of("tanh", "relu", "normed", depth=4), resume=True)
"""


@pytest.mark.slow
def test_a_study_that_cannot_be_written_anew_is_as_it_was(tmp_path):
    study = open_study(tmp_path, pool_of("tanh", "relu"))
    fill(study, 3)
    study.close()
    before = (tmp_path / "study.db").read_bytes()
    with contextlib.closing(sqlite3.connect(tmp_path / "study.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError, match=r"study\.db: database is locked; another program is at work in it"):
            open_study(tmp_path, pool_of("tanh", "relu", "wide"), resume=True)
    assert (tmp_path / "study.db").read_bytes() == before


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what another program warns of is no failure of ours
def test_optuna_s_own_functions_take_a_grown_study(tmp_path):
    study = open_study(tmp_path, pool_of("tanh", "relu"))
    fill(study, 4)
    study.close()
    study = open_study(tmp_path, pool_of("tanh", "wide"), resume=True)
    fill(study, 4)
    study.close()
    pytest.importorskip("matplotlib")
    read = reread(tmp_path)
    importances = optuna.importance.get_param_importances(read, target=lambda t: t.values[0] + t.number)
    assert importances.keys() == {"p0", "p1"}
    shown = optuna.visualization.matplotlib.plot_slice(read, target=lambda t: t.values[0])
    assert [axes.get_xlabel() for axes in shown] == ["p0", "p1"]


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


@pytest.mark.slow
def test_a_position_that_follows_another_has_no_parameter(tmp_path):
    layers = pool_of("tanh", "relu", "skip", depth=2).positions
    last = Position("p1", layers[2].candidates, follows="p0")
    pool = LayerPool([*layers[:2], last, *layers[3:]], inputs=TensorSpec((2,)))
    study = open_study(tmp_path, pool, num_trials=20)
    first = fill(study, 9)
    study.close()
    assert all(r.architecture.choices[1] == r.architecture.choices[2] for r in first)
    assert {tuple(trial.params) for trial in reread(tmp_path).trials} == {("p0",)}
    study = open_study(tmp_path, pool, num_trials=20, resume=True)
    assert len(study._memory.trials) == 9
    study.close()
