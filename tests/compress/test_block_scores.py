"""Rounds of scores find what sums of scores do not: blocks that cost little alone and much together."""

from __future__ import annotations

import contextlib
import json
import math
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import l2l_nas
from l2l_nas import Callback, Candidate, Data, LayerPool, Position, Problem, Regression, TensorSpec, skip
from l2l_nas.compress.block_scores import BlockValues, ScoreBlocks
from l2l_nas.compress.block_training import DistilBlocks
from l2l_nas.compress.imitation import BlockSettings
from l2l_nas.cost.catalogue import parameters_cost
from l2l_nas.cost.table import Costs, Limit
from l2l_nas.errors import L2LError
from l2l_nas.nas.objectives import Goal
from l2l_nas.training import fit

DEPTH = 12
HALF = DEPTH // 2 * 6  # parameters


def pool_of():
    blocks = [Candidate("whole", lambda: nn.Linear(2, 2)), skip()]
    return LayerPool([Position(f"block_{i}", blocks) for i in range(DEPTH)], inputs=TensorSpec((2,)))


def loss_of(network):
    """Blocks are in pairs, of which one can be spared for little; the first pairs are the cheapest."""
    gone = [name == "skip" for name in network.choices]
    alone = sum(0.01 * (1 + index // 2) for index in range(DEPTH) if gone[index])
    return 2.0 + alone + sum(gone[index] and gone[index + 1] for index in range(0, DEPTH, 2))


BEST = 2.0 + sum(0.01 * (1 + index) for index in range(DEPTH // 2))


class Known(SimpleNamespace):
    """What the phase asks of a search, with losses by a formula."""

    def __init__(self, loss=loss_of, trials=4, maximize=False, stop_after=None):
        pool = pool_of()
        costs = Costs([parameters_cost(pool)])
        super().__init__(
            pool=pool,
            costs=costs,
            constraints=[Limit(costs, "parameters", HALF)],
            goals=[Goal("accuracy" if maximize else "loss", maximize)],
            budget=SimpleNamespace(trials=trials, population=4),
            study=SimpleNamespace(num_evaluated=0, records=[], propose=lambda one: self.proposed.append(one)),
            evaluator=SimpleNamespace(score_all=self.score_all),
            callback=Callback(),
            enqueued=(),
            phases=[],
            proposed=[],
            scored=[],
            stop_after=stop_after,
            loss=loss,
        )
        self.callback.poll = self.poll

    def score_all(self, networks):
        self.scored += networks
        name, sign = self.goals[0].name, -1 if self.goals[0].maximize else 1
        return [{name: sign * self.loss(network)} for network in networks]

    def poll(self):
        if self.stop_after is not None and len(self.scored) >= self.stop_after:
            raise KeyboardInterrupt

    def figures(self, network):
        return self.costs.figures(network)

    def is_allowed(self, network):
        return not any(one.violation(network) for one in self.constraints)

    def save_when_due(self):
        pass


@pytest.mark.parametrize("maximize", [False, True])
def test_rounds_find_the_network_that_sums_of_scores_do_not(maximize):
    plain, search = Known(maximize=maximize), Known(maximize=maximize)
    ScoreBlocks("exchange", rounds=1).run(plain)
    assert loss_of(plain.proposed[0]) > 4.9  # the three cheapest pairs are gone
    assert len(plain.scored) == 1 + DEPTH
    phase = ScoreBlocks("exchange", rounds=3, pairs=32)
    phase.run(search)
    losses = [loss_of(network) for network in search.proposed]
    assert losses[1:] == pytest.approx([BEST] * 3)
    assert losses[0] == min(map(loss_of, set(search.scored) & set(filter(search.is_allowed, search.scored))))
    assert len(search.scored) == len(set(search.scored)) < 1 + DEPTH + 2 * (8 + 32)
    assert len(search.proposed) == len(set(search.proposed)) == 4


def test_where_scores_add_up_no_pair_is_measured_and_the_trials_are_those_of_the_sums():
    def loss(network):
        return 2.0 + sum(0.01 * (1 + index) for index, name in enumerate(network.choices) if name == "skip")

    plain, search = Known(loss), Known(loss)
    ScoreBlocks("exchange", rounds=1).run(plain)
    ScoreBlocks("exchange", rounds=3, pairs=32).run(search)
    assert [loss(one) for one in search.proposed] == pytest.approx([loss(one) for one in plain.proposed])
    assert len(search.scored) == 1 + DEPTH + 8  # the second round has nothing new


@pytest.mark.slow
@pytest.mark.parametrize("stop_after", range(1, 60, 3))
def test_a_search_that_was_stopped_anywhere_proposes_the_same_networks(stop_after):
    whole = Known()
    ScoreBlocks("exchange", rounds=3, pairs=8).run(whole)
    stopped, phase = Known(stop_after=stop_after), ScoreBlocks("exchange", rounds=3, pairs=8)
    with contextlib.suppress(KeyboardInterrupt):
        phase.run(stopped)
    again, later = Known(), ScoreBlocks("exchange", rounds=3, pairs=8)
    later.restore(again, json.loads(json.dumps(phase.state(stopped))))
    if not stopped.proposed:
        later.run(again)
        assert again.proposed == whole.proposed
        assert stopped.scored + again.scored == whole.scored


@pytest.mark.parametrize("sizes", [(), (0.3, 0.6)])
@pytest.mark.parametrize("done", range(7))
def test_a_search_that_was_stopped_between_trials_goes_on_with_those_that_it_would_have_had(done, sizes):
    def phase():
        return ScoreBlocks("exchange", rounds=2, pairs=8, sizes=sizes)

    whole, first = Known(trials=8), phase()
    whole.constraints = whole.constraints[: not sizes]
    first.run(whole)
    again, later = Known(trials=8), phase()
    again.constraints = whole.constraints
    again.study.records = [SimpleNamespace(architecture=one) for one in whole.proposed[:done]]
    again.study.num_evaluated = done
    later.restore(again, json.loads(json.dumps(first.state(whole))))
    later.run(again)
    assert again.proposed == whole.proposed[done:]
    assert again.scored == []


def test_what_is_told_of_a_prediction():
    search, phase = Known(), ScoreBlocks("exchange", rounds=3, pairs=32)
    phase.run(search)
    search.phases = [DistilBlocks(8, BlockSettings())]
    found = phase.results(search)["prediction"]
    assert found["metric"] == "loss"
    assert found["pairs"]["block_0/skip block_1/skip"] == pytest.approx(1)
    assert found["pairs"]["block_1/skip block_2/skip"] == pytest.approx(0)
    first, *others = found["networks"]
    losses = [loss_of(search.pool.architecture(one["architecture"])) for one in others]
    assert (first["round"], first["predicted"], first["measured"]) == (1, pytest.approx(2.12), pytest.approx(5.12))
    assert [one["measured"] for one in others] == pytest.approx(losses)
    assert found["error"] == pytest.approx(0, abs=1e-9)  # pairs are all that there is to know


class Gate(nn.Module):
    """Writes the first number into the second one; of two in a row either is enough."""

    def forward(self, x):
        return torch.stack([x[:, 0], x[:, 0], *x[:, 2:].T], dim=1)


class Plus(nn.Module):
    """Adds a little to the third number."""

    def __init__(self, share):
        super().__init__()
        self.weight = nn.Parameter(torch.full((9,), share / 3))

    def forward(self, x):
        return x + torch.eye(3)[2] * self.weight.norm()


def redundant():
    """Four blocks, of which the first two do the same, so that sums of scores take both for spare."""

    def position(index, factory):
        return Position(f"block_{index}", [Candidate("own", factory), skip()])

    class Gated(Gate):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(9))

    factories = [Gated, Gated, partial(Plus, 0.5), partial(Plus, 0.6)]
    pool = LayerPool([position(index, one) for index, one in enumerate(factories)], inputs=TensorSpec((3,)))
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([3.0, 0.0, 1.0])
    y = torch.stack([x[:, 0], x[:, 0], x[:, 2] + 1.1], dim=1)
    return Problem(pool, Data.from_arrays(x, y), task=Regression())


def taken_apart(folder, rounds):
    return l2l_nas.search(
        redundant(),
        folder=folder,
        strategy={"name": "blockwise", "samples": 8, "steps": 0, "teacher": 0.0, "rounds": rounds},
        limits={"parameters": 18},
        trials=1,
        trial_weights="fork",
        steps_per_trial=0,
        finalists=0,
        objectives=["loss"],
    )


@pytest.mark.slow
def test_a_search_that_scores_networks_whole_finds_the_better_one_and_scores_none_twice(tmp_path, monkeypatch):
    plain = taken_apart(tmp_path / "plain", 1)
    assert plain.best.architecture.choices == ("skip", "skip", "own", "own")
    scored, real = [], fit.score_population

    def score_population(executor, networks, split, **options):
        scored.extend(networks)
        return real(executor, networks, split, **options)

    monkeypatch.setattr(fit, "score_population", score_population)
    found = taken_apart(tmp_path / "whole", 3)
    assert set(found.best.architecture.choices[:2]) == {"own", "skip"}
    assert found.best.values["loss"] < plain.best.values["loss"] / 2
    assert len(scored) == len(set(scored))
    told = found.content["prediction"]
    assert told["pairs"]["block_0/skip block_1/skip"] > 1
    assert told["networks"][0]["architecture"] == ["skip", "skip", "own", "own"]
    assert told["networks"][0]["measured"] == plain.best.values["loss"]
    again = l2l_nas.search(redundant(), resume=tmp_path / "whole", trials=3)
    assert again.content["prediction"] == told


def known(maximize=False, **losses):
    """Values of networks by the blocks that are gone; `own` is the original."""
    found = {() if name == "own" else tuple((int(i), "skip") for i in name[1:]): v for name, v in losses.items()}
    return BlockValues(maximize, found)


def test_of_a_block_whose_score_is_not_known_neither_pairs_nor_networks_tell_anything():
    values = known(own=2.0, _0=None, _1=2.1, _2=2.2, _3=2.3, _01=2.2, _12=2.5, _23=None, _012=2.4, _123=2.7)
    found = values.prediction(pool_of())
    assert found.singles[0, "skip"] > 1
    one, two, three = ((index, "skip") for index in (1, 2, 3))
    assert found.pairs == {(one, two): pytest.approx(0.2), (two, three): found.singles[0, "skip"]}
    assert values.networks() == {(one, two, three): pytest.approx(0.7)}


def test_what_blocks_of_unknown_score_do_together_asks_for_no_pairs():
    def loss(network):
        return math.nan if network.choices.count("skip") == 1 and network.choices[0] == "skip" else 2.0

    search, phase = Known(loss), ScoreBlocks("exchange", rounds=3, pairs=32)
    search.constraints = [Limit(search.costs, "parameters", 6)]  # nearly all are gone, the first among them
    phase.run(search)
    assert not [one for one in search.scored if one.choices.count("skip") == 2]


def test_an_original_that_cannot_be_scored_is_told_and_nothing_is_proposed():
    search, phase = Known(lambda network: 2.0 if "skip" in network.choices else math.nan), ScoreBlocks("exchange")
    with pytest.raises(L2LError, match="compares networks with the original, whose loss on the validation part is not"):
        phase.run(search)
    assert search.proposed == []
    assert phase.results(search) == {}


@pytest.mark.parametrize("error", [math.nan, math.inf])
def test_a_block_whose_imitation_is_not_finite_is_taken_last(error):
    search = Known()
    errors = DistilBlocks(8, BlockSettings())
    errors.errors = {f"block_{i}/{name}": 0.1 * (name == "skip") for i in range(DEPTH) for name in ("whole", "skip")}
    errors.errors["block_3/skip"] = error
    search.phases = [errors]
    ScoreBlocks("error").run(search)
    assert [network.choices[3] for network in search.proposed] == ["whole"] * 4


def test_the_error_that_is_told_is_that_of_the_prediction_that_is_used():
    search, phase = Known(), ScoreBlocks("exchange", rounds=2)
    search.constraints = [Limit(search.costs, "parameters", (DEPTH - 2) * 6)]  # networks of two changes come first
    phase.run(search)
    search.phases = [DistilBlocks(8, BlockSettings())]
    values = BlockValues(False, phase._found)
    predicted = values.prediction(search.pool)
    errors = [predicted.left_out(values.networks())[one] - worse for one, worse in values.networks().items()]
    assert any(len(one) == 2 for this in phase._rounds for one in this.networks)
    told = phase.results(search)["prediction"]["error"]
    assert told == (pytest.approx(math.sqrt(sum(e**2 for e in errors) / len(errors))) if errors else None)
