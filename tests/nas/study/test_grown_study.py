"""A study whose pool grows, shrinks and comes back: what the sampler sees, and what Optuna reads."""

from __future__ import annotations

import optuna
import pytest
from optuna.distributions import CategoricalDistribution
from optuna.trial import create_trial

from l2l_nas import LayerPool, Position, TensorSpec
from l2l_nas.errors import StorageError
from l2l_nas.nas.objectives import State
from l2l_nas.nas.study.choices import as_choices, with_choices
from tests.nas.problems import open_study, pool_of
from tests.studies import saved_study

VALUES = {"accuracy": 0.5, "parameters": 30.0}


def fill(study, count):
    given = []
    for _ in range(count):
        given.append(study.tell(study.ask()[0], State.COMPLETE, VALUES))
    return given


def reread(folder):
    return saved_study(folder)


def test_a_trial_has_the_choices_that_are_asked_for_as_far_as_it_has_values_for_them():
    choices = as_choices({"first": ["a"], "p": ["a", "b"], "q": ["a", "b"], "r": ["a", "c"]})
    assert list(choices) == ["p", "q", "r"]
    trial = create_trial(
        value=1.0,
        params={"p": "a", "q": "b"},
        distributions={name: CategoricalDistribution(["a", "b", "c"]) for name in "pq"},
        user_attrs={"architecture": ["a", "b", "a", "b"]},
        intermediate_values={5: 0.5},
    )
    found = with_choices(trial, choices, positions=["first", "p", "q", "r"])
    assert found.params == {"p": "a", "q": "b"}  # as they were drawn; of r it has another candidate
    assert found.distributions == {name: CategoricalDistribution(["a", "b"]) for name in "pq"}
    assert (found.value, found.intermediate_values, found.user_attrs) == (1.0, {5: 0.5}, trial.user_attrs)
    assert with_choices(found, found.distributions, positions=["first", "p", "q", "r"]) is found


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["random", "tpe", "nsga2", "gp_hamming", "evolution"])
def test_a_study_goes_on_with_candidates_added_and_removed(tmp_path, sampler):
    study = open_study(tmp_path, pool_of("tanh", "relu", "skip", depth=3), sampler=sampler, num_trials=40)
    first = fill(study, 12)
    pool = pool_of("tanh", "wide", "skip", depth=3)  # relu is gone, wide is new
    study = open_study(tmp_path, pool, sampler=sampler, num_trials=40, resume=True)
    assert [(r.number, r.architecture, r.values) for r in study.records] == [
        (r.number, r.architecture, r.values) for r in first
    ]
    for record in study.records:
        assert record.in_space == ("relu" not in record.architecture.choices)
    live = [r for r in study.records if r.in_space]
    assert 0 < len(live) < 12
    memory = study._memory.trials
    assert [tuple(t.params.values()) for t in memory] == [r.architecture.choices[1:4] for r in live]
    assert {t.distributions["p0"].choices for t in memory} == {("skip", "tanh", "wide")}
    second = fill(study, 20)
    assert [r.number for r in second] == list(range(12, 32))
    assert all(r.in_space for r in second)
    assert any("wide" in r.architecture.choices for r in second)
    saved = reread(tmp_path).trials
    assert [t.number for t in saved] == list(range(32))
    then, ever = (
        CategoricalDistribution(names) for names in (["relu", "skip", "tanh"], ["relu", "skip", "tanh", "wide"])
    )
    for trial, record in zip(saved, [*first, *second], strict=True):
        assert trial.params == dict(zip(("p0", "p1", "p2"), record.architecture.choices[1:4], strict=True))
        assert trial.distributions == dict.fromkeys(("p0", "p1", "p2"), then if trial.number < 12 else ever)
    before = (tmp_path / "study.log").read_bytes()
    again = open_study(
        tmp_path, pool_of("tanh", "relu", "skip", "wide", depth=3), sampler=sampler, num_trials=40, resume=True
    )
    assert (tmp_path / "study.log").read_bytes() == before  # no candidate joined that was never there
    assert all(r.in_space for r in again.records)
    assert len(again._memory.trials) == 32
    assert fill(again, 1)[0].number == 32
    back = open_study(tmp_path, pool_of("relu", "skip", "tanh", depth=3), sampler=sampler, num_trials=40, resume=True)
    fill(back, 1)
    assert reread(tmp_path).trials[33].distributions["p0"] == ever


@pytest.mark.slow
def test_a_position_may_become_a_choice_and_be_none_again(tmp_path):
    study = open_study(tmp_path, pool_of("tanh"))
    fill(study, 2)
    study = open_study(tmp_path, pool_of("tanh", "relu"), resume=True)
    assert [t.params for t in study._memory.trials] == [{"p0": "tanh", "p1": "tanh"}] * 2
    fill(study, 5)
    study = open_study(tmp_path, pool_of("relu"), resume=True)
    assert all(t.params == {} for t in study._memory.trials)
    assert fill(study, 1)[0].architecture.choices == ("linear", "relu", "relu", "linear")
    saved = reread(tmp_path).trials
    assert [t.number for t in saved] == list(range(8))
    assert [t.params for t in saved[:2]] == [{}] * 2  # there was no choice
    assert saved[7].params == {"p0": "relu", "p1": "relu"}


def test_nothing_that_was_written_changes_when_candidates_join(tmp_path):
    study = open_study(tmp_path, pool_of("tanh", "relu"))
    fill(study, 3)
    for state, more in (("failed", {"reason": "NaN"}), ("pruned", {"reason": "too large"}), ("stopped", {"rungs": {}})):
        study.tell(study.ask()[0], State(state), **more)
    study.keep_finalists("a", [{"trial": 2}])
    before, trials = (tmp_path / "study.log").read_bytes(), reread(tmp_path).trials
    study = open_study(tmp_path, pool_of("tanh", "relu", "wide"), resume=True)
    assert fill(study, 1)[0].number == 6
    assert (tmp_path / "study.log").read_bytes().startswith(before)
    after = reread(tmp_path)
    assert after.trials[:6] == trials
    assert after.user_attrs["space"]["candidates"]["p0"] == ["relu", "tanh", "wide"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what another program warns of is no failure of ours
def test_optuna_s_own_functions_take_a_grown_study(tmp_path):
    study = open_study(tmp_path, pool_of("tanh", "relu"))
    fill(study, 4)
    study = open_study(tmp_path, pool_of("tanh", "wide"), resume=True)
    fill(study, 4)
    pytest.importorskip("matplotlib")
    read = reread(tmp_path)
    shown = optuna.visualization.matplotlib.plot_slice(read, target=lambda t: t.values[0])
    assert [axes.get_xlabel() for axes in shown] == ["p0", "p1"]


def test_a_candidate_that_keeps_its_name_must_keep_its_layout(tmp_path):
    open_study(tmp_path, pool_of("tanh", "relu"))
    before = (tmp_path / "study.log").read_bytes()
    with pytest.raises(StorageError, match=r"study\.log: this study knows another layer by the name .* another name"):
        open_study(tmp_path, pool_of("tanh", "relu", width=5), resume=True)
    assert (tmp_path / "study.log").read_bytes() == before
    open_study(tmp_path, pool_of("tanh", "wide"), resume=True)
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
    assert all(r.architecture.choices[1] == r.architecture.choices[2] for r in first)
    assert {tuple(trial.params) for trial in reread(tmp_path).trials} == {("p0",)}
    study = open_study(tmp_path, pool, num_trials=20, resume=True)
    assert len(study._memory.trials) == 9
