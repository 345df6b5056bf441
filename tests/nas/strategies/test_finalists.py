from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from l2l_nas import Data
from l2l_nas.errors import NonFiniteError
from l2l_nas.nas.evaluation.segment import SegmentResult
from l2l_nas.nas.objectives import Goal, State, TrialRecord, pareto_front
from l2l_nas.nas.strategies.finalists import Finalist, FinalistCache, choose, key_of, order
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.data import Split
from l2l_nas.training.fit import Trainer
from l2l_nas.training.score import Score
from tests.nas.problems import GOALS, budget, change_finalists, data, pool_of, search_on

ACCURACY = (GOALS[0],)


def records(*pairs: tuple[float, float]) -> list[TrialRecord]:
    """Trials of these accuracies and numbers of parameters."""
    return [
        TrialRecord(
            n, Architecture((f"c{n}",)), State.COMPLETE, {"accuracy": a, "parameters": p}, metrics={"loss": 1 - a}
        )
        for n, (a, p) in enumerate(pairs)
    ]


def numbers(found) -> list[int]:
    return [record.number for record in found]


# eleven on the front, 0 its cheap end and 10 its accurate one; 11 to 14 are beaten, but accurate
FRONT = [(0.5 + n / 100, 100.0 + n) for n in range(11)]
BEATEN = [(0.59, 500.0), (0.58, 500.0), (0.57, 500.0), (0.56, 500.0)]


def test_with_one_goal_the_best_are_trained():
    assert numbers(choose(records(*FRONT), ACCURACY, count=3)) == [10, 9, 8]


def test_of_two_that_would_come_to_the_same_one_is_enough():
    some = records((0.9, 1.0), (0.8, 1.0), (0.7, 1.0), (0.6, 1.0))
    draws = np.random.default_rng(0).normal(size=(3, 1, 500)) * 0.1
    twin = draws[0] - 0.01  # always behind the other
    of = [0.8 + draws[0], 0.8 + twin, 0.75 + draws[1]]
    posterior = {record.architecture: one for record, one in zip(some, of, strict=False)}
    assert numbers(choose(some, ACCURACY, count=1, posterior=posterior)) == [0]
    assert numbers(choose(some, ACCURACY, count=2, posterior=posterior)) == [0, 2]
    # of what nobody believes anything the score counts; where nothing is gained any more, the best come first
    assert numbers(choose(some, ACCURACY, count=3, posterior=posterior)) == [0, 1, 2]
    assert numbers(choose(some, ACCURACY, count=9, posterior=posterior)) == [0, 1, 2, 3]
    assert choose(some, ACCURACY, count=2, posterior=posterior)[0].values["accuracy"] == 0.9


def test_less_is_better_where_the_goal_says_so():
    some = [TrialRecord(n, Architecture((f"c{n}",)), State.COMPLETE, {"loss": 0.1 * n}) for n in range(3)]
    draws = np.random.default_rng(0).normal(size=(1, 500)) * 0.01
    posterior = {record.architecture: 0.3 - 0.1 * n + draws for n, record in enumerate(some)}
    assert numbers(choose(some, (Goal("loss", maximize=False),), count=2, posterior=posterior)) == [2, 1]


def test_a_front_is_that_of_what_is_believed():
    some = records((0.9, 5.0), (0.8, 4.0), (0.7, 3.0))
    posterior = {some[0].architecture: np.array([[0.6], [5.0]])}
    assert numbers(choose(some, GOALS, count=2, posterior=posterior)) == [1, 2]


@pytest.mark.parametrize(
    ("count", "chosen"),
    [(1, [10]), (2, [10, 0]), (3, [10, 5, 0]), (6, [10, 8, 6, 4, 2, 0]), (11, list(range(10, -1, -1)))],
)
def test_with_two_goals_finalists_are_spread_over_the_front_both_ends_among_them(count, chosen):
    assert numbers(choose(records(*FRONT, *BEATEN), GOALS, count=count)) == chosen


def test_a_front_that_is_smaller_is_filled_up_with_the_best_of_the_others():
    found = choose(records(*FRONT, *BEATEN), GOALS, count=13)
    assert sorted(numbers(found)) == [*range(11), 11, 12]
    assert numbers(found)[:3] == [10, 9, 11]  # best first
    assert numbers(choose(records((0.5, 1.0)), GOALS, count=6)) == [0]


@pytest.mark.parametrize("count", range(2, 30))
def test_every_finalist_is_another_trial_of_the_front_as_long_as_there_is_one(count):
    generator = torch.Generator().manual_seed(count)
    some = records(*(tuple(torch.rand(2, generator=generator).tolist()) for _ in range(60)))
    front = set(numbers(pareto_front(some, GOALS)))
    found = numbers(choose(some, GOALS, count=count))
    assert len(set(found)) == count
    assert len(set(found) & front) == min(count, len(front))


def trained(record: TrialRecord, accuracy: float, *, test: float = 0.0) -> Finalist:
    costs = {"parameters": record.values["parameters"]}
    return Finalist(record, costs, {"validation": Score({"accuracy": accuracy}), "test": Score({"accuracy": test})})


def test_the_best_are_those_after_training_on_the_validation_part():
    found = [
        trained(record, accuracy, test=1 - accuracy)
        for record, accuracy in zip(
            records((0.9, 9.0), (0.8, 5.0), (0.7, 6.0), (0.6, 1.0)), (0.6, 0.9, 0.8, 0.5), strict=True
        )
    ]
    assert [one.record.number for one in order(found, GOALS)] == [1, 2, 0, 3]
    assert order(found[::-1], GOALS) == order(found, GOALS)


def test_an_entry_keeps_trial_scores_and_trained_scores_apart():
    (record,) = records((0.7, 10.0))
    scores = {"validation": Score({"accuracy": 0.9}, {"accuracy": 0.01}), "test": Score({"accuracy": 0.8})}
    entry = Finalist(record, {"parameters": 10.0}, scores).entry()
    assert entry == {
        "architecture": ["c0"],
        "trial": 0,
        "trial_score": {"accuracy": 0.7, "loss": pytest.approx(0.3)},
        "validation": {"accuracy": 0.9},
        "test": {"accuracy": 0.8},
        "standard_error": {"validation": {"accuracy": 0.01}, "test": {}},
        "costs": {"parameters": 10.0},
        "steps": 0,
        "rungs": {},
        "values": {"accuracy": 0.9, "parameters": 10.0},
    }
    untrained = Finalist(record, {"parameters": 10.0}).entry()
    assert untrained["values"] == {**untrained["trial_score"], "parameters": 10.0}
    assert (untrained["validation"], untrained["test"], untrained["trained"]) == (None, None, False)
    assert Finalist.from_json(Finalist(record, {}, scores).to_json(), {0: record}) == Finalist(record, {}, scores)


def test_kept_finalists_are_those_of_the_same_trials_and_settings_alone():
    some = records(*FRONT)
    key = key_of(some[:3], {"steps": 5})
    assert key == key_of(some[:3], {"steps": 5})
    assert len({key, key_of(some[:2], {"steps": 5}), key_of(some[:3][::-1], {"steps": 5}), key_of(some[:3], {})}) == 4


def searched(folder, split: Data, seen=None):
    """A whole search; its study, finalists, the best one's weights."""
    folder.mkdir()
    spend = budget(trials=8, finalists=3, warmup_steps=20)
    search, _, study, observer = search_on(folder, pool_of("tanh", "relu", "skip", depth=3), spend=spend, split=split)
    best = search.run()
    weights = {key: {n: t.clone() for n, t in best.server.state(key).tensors().items()} for key in best.server.visited}
    given = [(r.number, r.architecture, r.state, r.values, r.metrics, r.weights) for r in study.records]
    return given, observer.finalists, best, weights


def poisoned(split: Data) -> Data:
    """The same data, the targets of its test part changed and its inputs others."""
    assert split.test is not None
    return replace(split, test=Split((split.test.inputs[0] * -3 + 1,), 1 - split.test.targets))


@pytest.mark.slow
def test_the_test_part_decides_nothing(tmp_path):
    ours, theirs = searched(tmp_path / "a", data()), searched(tmp_path / "b", poisoned(data()))
    assert ours[0] == theirs[0]
    for one, other in zip(ours[1], theirs[1], strict=True):
        assert one.record.architecture == other.record.architecture
        assert one.scores["validation"] == other.scores["validation"]
        assert one.scores["test"] != other.scores["test"]
    assert ours[2].record.number == theirs[2].record.number
    for key, tensors in ours[3].items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, theirs[3][key][name]), (key, name)


def test_the_test_part_is_looked_at_once_for_each_finalist_and_never_else(tmp_path, monkeypatch):
    split, seen = data(), []
    for method in ("score", "evaluate", "evaluate_population", "score_population"):
        real = getattr(Trainer, method)

        def noted(self, architecture, part, *, real=real, **options):
            seen.append("test" if part is split.test else "other")
            return real(self, architecture, part, **options)

        monkeypatch.setattr(Trainer, method, noted)
    _, finalists, _, _ = searched(tmp_path / "a", split)
    assert len(finalists) == 3
    assert seen.count("test") == 3
    assert "test" not in seen[: seen.index("test") - 1]
    assert seen[seen.index("test") :] == ["test", "other", "test", "other", "test"]


@pytest.mark.slow
def test_a_test_part_that_cannot_be_measured_is_told_and_refuses_nothing(tmp_path):
    split = data()
    split = replace(split, test=Split((split.test.inputs[0] * float("inf"),), split.test.targets))
    _, finalists, best, _ = searched(tmp_path / "a", split)
    assert len(finalists) == 3
    for one in finalists:
        assert one.entry()["test"] is None
        assert one.entry()["problems"]["test"].startswith("on the test data, loss is nan")
        assert one.entry()["validation"]["accuracy"] > 0
    assert best.server is not None


def resumed(folder, weights, **changes):
    """A finished search gone on with; the finalists that were trained this time, and those it has."""
    cache = FinalistCache({"batch": 16}, lambda finalist, _: weights(finalist))
    steps = []
    spend = budget(**{"trials": 6, "finalists": 2, **changes})
    pool = pool_of("tanh", "relu", "skip", depth=3)
    done = (folder / "study.log").exists()
    search, _, _, observer = search_on(folder, pool, spend=spend, resume=done, cache=cache)
    observer.advance = lambda done, *, detail="": steps.append(detail) if "loss" in detail else None
    best = search.run()
    assert observer.lost == search.context.abandoned
    return best, [name for name, *_ in observer.phases], observer.finalists, observer.lost


def test_finalists_that_are_kept_are_not_trained_again(tmp_path):
    best, phases, first, _ = resumed(tmp_path, lambda one: None)
    assert "finalists" in phases
    again, phases, held, _ = resumed(tmp_path, lambda one: best.server)
    assert "finalists" not in phases
    assert [one.entry() for one in held] == [one.entry() for one in first]
    assert again.entry() == best.entry()
    assert again.server is best.server


def test_a_finalist_that_could_not_be_trained_is_told_again_when_the_others_are_kept(tmp_path, monkeypatch):

    def changed(segment, result):
        is_refused = segment.name == "finalist 1"
        return SegmentResult(error=NonFiniteError("gradient", layer=None, step=1)) if is_refused else result

    change_finalists(monkeypatch, changed)
    best, _, first, lost = resumed(tmp_path, lambda one: None)
    assert len(first) == len(lost) == 1
    assert lost.keys() != {first[0].record.number}
    _, phases, _, told = resumed(tmp_path, lambda one: best.server)
    assert "finalists" not in phases
    assert told == lost


@pytest.mark.slow
@pytest.mark.parametrize("changes", [{"finalist_steps": 4}, {"finalists": 3}, {"trials": 7}, {"weights": None}])
def test_finalists_of_other_settings_or_without_their_weights_are_trained_again(tmp_path, changes):
    best, *_ = resumed(tmp_path, lambda one: None)
    gone = "weights" in changes
    changes = {name: value for name, value in changes.items() if name != "weights"}
    _, phases, *_ = resumed(tmp_path, (lambda one: None) if gone else (lambda one: best.server), **changes)
    assert "finalists" in phases


def test_goals_of_which_less_is_better_are_ranked_so():
    some = [trained(record, 0.5) for record in records((0.5, 3.0), (0.5, 1.0), (0.5, 2.0))]
    assert [one.record.number for one in order(some, (Goal("accuracy", True),))] == [1, 2, 0]
