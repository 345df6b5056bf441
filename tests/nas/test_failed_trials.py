"""Candidates that fail: trials that have failed with a reason, an end after so many in a row, and who else goes on."""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch
from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec
from l2l_nas.cost.catalogue import parameters_cost
from l2l_nas.cost.table import Cost, Costs, Limit
from l2l_nas.errors import MetricError, TrialError, UserCodeError
from l2l_nas.nas.evaluation.segment import SegmentResult
from l2l_nas.nas.objectives import Goal, counts
from l2l_nas.training.task import Classification
from tests.nas.problems import Act, budget, change_finalists, pool_of, search_on


class Breaking(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("broken in backward")


class Bad(nn.Linear):
    """Raises in its forward, in its backward, or runs out of memory: while it is trained, or while it is scored."""

    def __init__(self, how: str, *, training: bool = True) -> None:
        super().__init__(4, 4)
        self.how, self.when = how, training

    def forward(self, x):
        if x.is_meta or self.training != self.when:
            return super().forward(x)
        if self.how == "memory":
            raise torch.OutOfMemoryError("no room")
        if self.how == "forward":
            raise RuntimeError("broken in forward")
        return Breaking.apply(super().forward(x))


def pool_with(bad: nn.Module, *, depth: int = 2, only: bool = False) -> LayerPool:
    odd = Candidate("bad", bad)
    layers = [odd] if only else [Candidate("tanh", partial(Act, 4, nn.Tanh)), odd]
    return LayerPool(
        [
            Position("stem", Candidate("linear", partial(nn.Linear, 2, 4))),
            *(Position(f"p{index}", layers) for index in range(depth)),
            Position("head", Candidate("linear", partial(nn.Linear, 4, 2))),
        ],
        inputs=TensorSpec((2,)),
    )


@pytest.mark.parametrize("weights", ["shared", "fork", "scratch"])
@pytest.mark.parametrize("how", ["forward", "backward", "memory"])
def test_a_candidate_that_raises_fails_its_trials_with_the_reason_and_the_search_goes_on(tmp_path, how, weights):
    spend = budget(trials=4, warmup_steps=0, trial_weights=weights)
    search, relay, study, _ = search_on(tmp_path, pool_with(partial(Bad, how)), spend=spend)
    best = search.run()
    assert "bad" not in best.record.architecture.choices
    assert (counts(study.records)["complete"], counts(study.records)["failed"]) == (1, 3)
    for record in study.records:
        assert (record.state == "failed") == ("bad" in record.architecture.choices)
        assert ("broken" in record.reason or "memory" in record.reason) == (record.state == "failed")
    assert relay.server is search.context.server


def trial(evaluator, architecture, ordinal):
    return evaluator.run(budget(warmup_steps=0).trial_segment(architecture, ordinal))


@pytest.mark.parametrize("how", ["forward", "memory"])
def test_a_failed_trial_leaves_the_shared_weights_as_its_finished_steps_did(tmp_path, how):
    pool = pool_with(partial(Bad, how))
    search, relay, _, _ = search_on(tmp_path, pool, spend=budget(warmup_steps=0))
    evaluator, server = search.context.evaluator, search.context.server
    good, bad = (pool.architecture(["linear", name, "tanh", "linear"]) for name in ("tanh", "bad"))
    assert trial(evaluator, good, 0).error is None
    relay.drain()
    before = {key: server.state(key).weights.clone() for key in server.visited}
    failed = trial(evaluator, bad, 1)
    assert failed.error is not None
    assert failed.steps == 0
    for key, weights in before.items():
        assert torch.equal(server.state(key).weights, weights), key
    assert trial(evaluator, good, 2).error is None
    relay.drain()
    assert not torch.equal(server.state("stem/linear").weights, before["stem/linear"])


def test_in_a_population_the_candidate_that_raises_fails_alone(tmp_path):
    pool = pool_with(partial(Bad, "forward", training=False))
    spend = budget(trials=4, warmup_steps=2, steps_per_trial=0, finalists=0)
    search, _, study, _ = search_on(tmp_path, pool, spend=spend)
    search.run()
    assert {("bad" in r.architecture.choices, r.state.value) for r in study.records} == {
        (True, "failed"), (False, "complete"),
    }  # fmt: skip


def test_so_many_failed_trials_in_a_row_end_the_search_with_the_last_reason(tmp_path):
    pool = pool_with(partial(Bad, "memory"), depth=5)
    middles = (("tanh",) * 5, ("bad",) * 5, ("tanh",) * 4 + ("bad",))
    only = [pool.architecture(["linear", *names, "linear"]) for names in middles]
    search, _, study, _ = search_on(tmp_path, pool, spend=budget(trials=20, warmup_steps=0, failures=2))
    for one in only:
        study.propose(one)
    with pytest.raises(
        TrialError, match=r"failed trials in a row: 2, .*last reason: .*memory.*go on with: resume=FOLDER$"
    ):
        search.run()
    assert counts(study.records)["failed"] == 2


def test_where_the_last_trials_of_all_fail_the_search_goes_on_to_its_finalists(tmp_path):
    pool = pool_with(partial(Bad, "memory"))
    search, _, study, _ = search_on(tmp_path, pool, spend=budget(trials=3, warmup_steps=0, failures=2))
    for names in (("tanh", "tanh"), ("bad", "tanh"), ("tanh", "bad")):
        study.propose(pool.architecture(["linear", *names, "linear"]))
    assert search.run().is_trained
    assert [record.state.value for record in study.records] == ["complete", "failed", "failed"]


@pytest.mark.parametrize(("depth", "pattern"), [(1, "p0/bad"), (2, "*/bad")])
def test_a_layer_that_raises_in_warm_up_ends_the_search_with_the_way_to_leave_it_out(tmp_path, depth, pattern):
    search, *_ = search_on(tmp_path, pool_with(partial(Bad, "forward"), depth=depth), spend=budget(warmup_steps=40))
    with pytest.raises(
        TrialError, match=rf"broken in forward.*resume=FOLDER 'search\.retire=\[{re.escape(pattern)}\]'$"
    ):
        search.run()


def test_a_task_that_raises_ends_the_search(tmp_path):
    class Broken(Classification):
        def loss(self, outputs, targets):
            raise ZeroDivisionError("no loss")

    search, _, study, _ = search_on(
        tmp_path, pool_of("tanh"), spend=budget(warmup_steps=0), task=Broken(), goals=(Goal("loss", False),)
    )
    with pytest.raises(UserCodeError, match="no loss"):
        search.run()
    assert not study.records


def test_where_all_chosen_finalists_fail_others_are_chosen(tmp_path, monkeypatch):
    spend = budget(trials=4, warmup_steps=0, finalists=1)
    search, _, _, observer = search_on(tmp_path, pool_of("tanh", "relu"), spend=spend)
    asked = []

    def changed(segment, result):
        asked.append(segment.architecture)
        return SegmentResult(error=MetricError("the accuracy", layer=None, step=1)) if len(asked) == 1 else result

    change_finalists(monkeypatch, changed)
    best = search.run()
    assert best.is_trained
    assert best.record.architecture == asked[1] != asked[0]
    assert len(search.context.abandoned) == 1
    assert observer.lost == search.context.abandoned


@pytest.mark.parametrize("use", ["goal", "limit"])
def test_what_cannot_be_measured_is_a_failed_trial(tmp_path, use):
    pool = pool_of("tanh", "relu", depth=1)

    def measure(architecture):
        if "relu" in architecture.choices:
            raise TrialError("its layer raised")
        return 1.0

    costs = Costs([parameters_cost(pool), Cost("latency_ms", measure, is_measured=True)])
    goals = (Goal("accuracy", True), *([Goal("latency_ms", False)] if use == "goal" else []))
    limits = [Limit(costs, "latency_ms", 2.0)] if use == "limit" else []
    spend = budget(trials=2, warmup_steps=0)
    search, _, study, _ = search_on(tmp_path, pool, spend=spend, goals=goals, costs=costs, constraints=limits)
    assert "tanh" in search.run().record.architecture.choices
    assert next((r.state.value, r.reason) for r in study.records if "relu" in r.architecture.choices) == (
        "failed",
        "its layer raised",
    )
