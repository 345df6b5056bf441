"""Finalists in rounds: which go on, with which weights, and what is reported of the others."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
import torch

from l2l_nas.errors import L2LError, NonFiniteError
from l2l_nas.nas.evaluation.segment import SegmentResult
from l2l_nas.nas.objectives import Goal
from l2l_nas.nas.strategies.finalists import Finalist, order
from l2l_nas.nas.study.study import Study
from l2l_nas.training.fit import Trainer
from l2l_nas.training.schedule import Cosine
from l2l_nas.training.score import Score
from tests.nas.problems import budget, change_finalists, pool_of, search_on
from tests.nas.strategies.test_finalists import records, trained

ACCURACY = (Goal("accuracy", True),)
SPEND = {"warmup_steps": 10, "trials": 8, "finalists": 4, "finalist_steps": 21, "finalist_rounds": 3}


def searched(folder, **changes):
    search, relay, study, observer = search_on(
        folder, pool_of("tanh", "relu", "skip", depth=3), spend=budget(**{**SPEND, **changes}), goals=ACCURACY
    )
    return search, relay, study, observer


@pytest.mark.parametrize(
    ("finalists", "steps", "rounds", "expected"),
    [
        (8, 750, 4, [(8, 50), (4, 100), (2, 200), (1, 400)]),
        (6, 300, 4, [(6, 25), (3, 50), (2, 75), (1, 150)]),
        (8, 750, 9, [(8, 50), (4, 100), (2, 200), (1, 400)]),  # one cannot be halved
        (8, 300, 2, [(8, 100), (4, 200)]),
        (5, 7, 1, [(5, 7)]),
        (1, 7, 4, [(1, 7)]),
        (8, 0, 4, [(8, 0)]),  # scored as they are
        (8, 4, 4, [(8, 1), (4, 1), (2, 1), (1, 1)]),
        (8, 2, 4, [(8, 1), (4, 1)]),  # a round has a step at least
    ],
)
def test_every_round_has_about_as_many_steps_and_half_the_finalists(finalists, steps, rounds, expected):
    spend = budget(finalists=finalists, finalist_steps=steps, finalist_rounds=rounds)
    assert [(one.finalists, one.steps) for one in spend.rounds] == expected
    assert spend.finalist_steps == sum(steps for _, steps in expected)
    assert spend.steps == spend.steps_before_finalists + sum(count * steps for count, steps in expected)
    starts = [spend.steps_before_finalists]
    for count, each in expected:
        starts.append(starts[-1] + count * each)
    assert [one.start for one in spend.rounds] == starts[:-1]
    assert [one.going_on for one in spend.rounds] == [*(count for count, _ in expected[1:]), 1]
    assert [one.is_last for one in spend.rounds] == [False] * (len(expected) - 1) + [True]


def test_the_better_half_of_each_round_goes_on_with_the_weights_that_it_has(tmp_path):
    search, _, _, observer = searched(tmp_path)
    best = search.run()
    first, second, third = search.context.budget.rounds
    assert [(r.finalists, r.steps) for r in (first, second, third)] == [(4, 3), (2, 6), (1, 12)]
    assert sorted(one.steps for one in search.context.finalists) == [3, 3, 9, 21]
    assert sorted(map(tuple, (one.rungs for one in search.context.finalists)), key=len) == [
        ("3/21",), ("3/21",), ("3/21", "9/21"), ("3/21", "9/21", "19/21", "20/21", "21/21"),
    ]  # fmt: skip
    assert all(list(one.rungs.values())[-1] == one.scores["validation"].values for one in search.context.finalists)
    assert best.steps == search.context.budget.finalist_steps == 21
    assert sorted(one.record.number for one in observer.finalists) == sorted(
        one.record.number for one in search.context.finalists
    )
    # the same manually, one network after the other
    evaluator = search.context.evaluator
    chosen = [one.record for one in search.context.finalists]
    going = list(range(4))
    servers, done = {}, [0, 0, 0, 0]
    for spend in (first, second, third):
        scores, rungs = {}, {}
        for place, index in enumerate(going):
            one = chosen[index].architecture
            segment = replace(
                search.context.budget.finalist_segment(one, place, spend=spend, done=done[index]),
                server=servers.get(index),
            )
            assert segment.start == spend.start + place * spend.steps
            assert segment.total == 21
            result = evaluator.run(segment)
            servers[index] = result.server
            scores[index], rungs[index] = result.metrics, result.rungs
            done[index] += spend.steps
        given = [
            replace(
                search.context.finalists[index],
                scores={"validation": Score(scores[index])},
                rungs=rungs[index],
                steps=0,
            )
            for index in going
        ]
        ordered = order(given, ACCURACY)
        numbers = [record.number for record in chosen]
        going = [numbers.index(one.record.number) for one in ordered[: spend.going_on]]
    assert chosen[going[0]] == best.record
    assert best.scores["validation"].values == scores[going[0]]
    for key in best.server.visited:
        for name, tensor in best.server.state(key).tensors().items():
            assert torch.equal(servers[going[0]].state(key).tensors()[name], tensor), (key, name)


def test_the_test_part_is_measured_for_those_alone_that_are_trained_to_the_end(tmp_path):
    search, _, _, _ = searched(tmp_path)
    search.run()
    assert [one.steps for one in search.context.finalists if "test" in one.scores] == [
        search.context.budget.finalist_steps
    ]
    assert all("validation" in one.scores for one in search.context.finalists)


def test_a_finalist_that_is_refused_on_its_way_leaves_its_place_to_nobody(tmp_path, monkeypatch):
    search, _, _, observer = searched(tmp_path)
    rounds = []

    def changed(segment, result):
        rounds.append(segment.done)
        is_refused = segment.done == 3 and segment.name == "finalist 1"
        return SegmentResult(error=NonFiniteError("gradient", layer=None, step=1)) if is_refused else result

    change_finalists(monkeypatch, changed)
    best = search.run()
    assert [rounds.count(done) for done in dict.fromkeys(rounds)] == [4, 2, 1]
    assert best.steps == search.context.budget.finalist_steps
    assert sorted(one.steps for one in search.context.finalists) == [3, 3, 3, 21]  # what it came to before it failed
    ((number, reason),) = search.context.abandoned.items()
    assert number in {one.record.number for one in search.context.finalists if one.steps == 3}
    assert reason.startswith("gradient is not finite at step 1;")
    assert observer.lost == search.context.abandoned
    assert sorted(one.record.number for one in observer.finalists) == sorted(
        one.record.number for one in search.context.finalists
    )


def test_where_nobody_is_left_the_error_says_how_to_go_on(tmp_path, monkeypatch):
    search, _, _, _ = searched(tmp_path)

    def changed(segment, result):
        is_last = segment.done + segment.steps == segment.total
        return SegmentResult(error=NonFiniteError("gradient", layer=None, step=1)) if is_last else result

    change_finalists(monkeypatch, changed)
    with pytest.raises(L2LError, match=r"none could be trained further: .*resume with search\.finalist_rounds=1"):
        search.run()


@pytest.mark.slow
def test_no_more_weights_are_kept_than_go_on(tmp_path, monkeypatch):
    search, _, _, _ = searched(tmp_path)
    alive, most = weakref.WeakSet(), []

    def changed(segment, result):
        gc.collect()
        most.append(len(alive))
        alive.add(result.server)
        return result

    change_finalists(monkeypatch, changed)
    search.run()
    # four, of which two are held; then these, of which one is; then that one
    assert most == [0, 1, 2, 2, 2, 2, 1]


def test_who_was_trained_longer_comes_first_whatever_the_score():
    some = records((0.9, 5.0), (0.8, 4.0), (0.7, 3.0))
    found = [
        replace(trained(record, accuracy), steps=steps)
        for record, accuracy, steps in zip(some, (0.95, 0.80, 0.90), (10, 30, 30), strict=True)
    ]
    assert [one.record.number for one in order(found, ACCURACY)] == [2, 1, 0]
    held = replace(found[0], rungs={"10/30": {"accuracy": 0.5}}).to_json()
    assert Finalist.from_json(held, {0: some[0]}).steps == 10
    assert Finalist.from_json(held, {0: some[0]}).rungs == {"10/30": {"accuracy": 0.5}}
    assert Finalist.from_json({name: value for name, value in held.items() if name != "steps"}, {0: some[0]}).steps == 0


def late(record, *values, total=100):
    """A finalist at the end of its training with these accuracies and losses on its last steps."""
    rungs = {
        f"{total - len(values) + place}/{total}": {"accuracy": accuracy, "loss": loss}
        for place, (accuracy, loss) in enumerate(values, 1)
    }
    last = {"accuracy": values[-1][0], "loss": values[-1][1]}
    return Finalist(record, {}, {"validation": Score(last)}, steps=total, rungs=rungs)


def test_late_in_a_training_the_mean_of_three_scores_decides_and_of_equals_the_loss():
    some = records((0.9, 5.0), (0.8, 4.0), (0.7, 3.0))
    lucky = late(some[0], (0.6, 1.0), (0.6, 1.0), (0.9, 0.1))
    steady = late(some[1], (0.75, 1.0), (0.75, 1.0), (0.75, 1.0))
    surer = late(some[2], (0.75, 0.9), (0.75, 0.9), (0.75, 0.9))
    found = order([lucky, steady, surer], ACCURACY)
    assert [one.record.number for one in found] == [2, 1, 0]
    assert found[2].entry()["compared_by"] == {
        "values": {"accuracy": pytest.approx(0.7), "loss": pytest.approx(0.7)},
        "standard_error": {},
        "steps": [98, 99, 100],
    }
    # what its weights have, which are those at the end
    assert found[2].values == found[2].entry()["validation"] == {"accuracy": 0.9, "loss": 0.1}


def test_early_in_a_training_the_last_score_alone_decides_and_no_loss():
    some = records((0.9, 5.0), (0.8, 5.0))
    unsure, sure = (
        replace(trained(record, 0.75), steps=30, rungs={"20/100": {"accuracy": before}, "30/100": {"accuracy": 0.75}})
        for record, before in zip(some, (0.1, 0.9), strict=True)
    )
    unsure, sure = (
        replace(one, scores={"validation": Score({"accuracy": 0.75, "loss": loss})})
        for one, loss in ((unsure, 2.0), (sure, 1.0))
    )
    assert [one.record.number for one in order([sure, unsure], ACCURACY)] == [0, 1]  # the better trial
    assert "compared_by" not in unsure.entry()


def test_finalists_that_were_scored_otherwise_are_trained_again(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(Study, "keep_finalists", lambda self, key, content: kept.append(key))
    for steps in (None, lambda done, steps, total: (done + steps,)):  # of a version that scored once
        if steps is not None:
            monkeypatch.setattr("l2l_nas.nas.strategies.budget.score_steps", steps)
        folder = tmp_path / str(len(kept))
        folder.mkdir()
        searched(folder)[0].run()
    assert len(set(kept)) == 2


def test_the_learning_rate_rises_and_falls_once_over_all_rounds(tmp_path, monkeypatch):
    rates = []
    real = Trainer.fit

    def fit(self, path_at, *, start, steps, schedule, offset=0, after_step=lambda step, loss: None):
        rates.append([schedule.at(step - offset) for step in range(start, start + steps)])
        real(self, path_at, start=start, steps=steps, schedule=schedule, offset=offset, after_step=after_step)

    search, _, _, _ = searched(tmp_path)
    monkeypatch.setattr(Trainer, "fit", fit)
    search.run()
    *_, a, b, c, d, e, f, g, h, i = rates  # four, two, one in three parts
    whole = [Cosine(0.01, 21).at(step) for step in range(21)]
    assert a == b == c == d == whole[:3]
    assert e == f == whole[3:9]
    assert (len(h), len(i)) == (1, 1)  # between its last validations
    assert g + h + i == whole[9:]
