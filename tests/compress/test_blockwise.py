"""A network is taken apart: blocks are trained and scored one by one, and the best sums within limits become trials."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch import nn

import l2l_nas
from l2l_nas import (
    SGD,
    Callback,
    Candidate,
    Data,
    LayerPool,
    ParamServer,
    Position,
    Problem,
    Regression,
    Relay,
    TensorSpec,
    Tokens,
    skip,
)
from l2l_nas.compress.block_training import DistilBlocks
from l2l_nas.compress.blockwise import blockwise
from l2l_nas.compress.imitation import BlockSettings
from l2l_nas.cost.catalogue import parameters_cost
from l2l_nas.cost.closed_form import num_parameters
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.errors import DataError, SettingError, SpaceError
from l2l_nas.layers import Embedding, FeedForward
from l2l_nas.nas.evaluation.evaluator import Evaluator
from l2l_nas.training.export import build_network
from tests.compress.test_imitation import WIDTH, Mlp
from tests.nas.problems import budget, pool_of, search_on


def problem(shared=False):
    blocks = [Candidate("whole", partial(Mlp, 16)), Candidate("half", partial(Mlp, 8)), skip()]
    pool = LayerPool(
        [
            *(Position(f"block_{index}", blocks) for index in range(4)),
            Position("head", Candidate("linear", partial(nn.Linear, WIDTH, 3))),
        ],
        inputs=TensorSpec((WIDTH,)),
        shared=shared,
    )
    x = torch.randn(200, WIDTH, generator=torch.Generator().manual_seed(0))
    return Problem(pool, Data.from_arrays(x, x[:, :3].argmax(dim=1)))


def search(folder, **more):
    given = {
        "trials": 4, "trial_weights": "shared", "steps_per_trial": 0, "finalists": 1,
        "finalist_steps": 6, "strategy": {"name": "blockwise", "samples": 24, "steps": 5}, "objectives": ["loss"],
        "limits": {"parameters": 560}, "folder": folder, **more,
    }  # fmt: skip
    return l2l_nas.search(problem(), **given)


@pytest.mark.slow
def test_the_trials_are_the_best_sums_of_scores_within_the_limits(tmp_path):
    calls = []
    found = search(tmp_path / "run", callbacks=[Phases(calls)])
    assert [name for name in calls if isinstance(name, str)][:2] == ["blocks", "scores"]
    trials = [trial for trial in found.study.trials if trial.state.name == "COMPLETE"]
    assert len(trials) == 4
    pool = problem().pool
    sizes = {"whole": 16 * (2 * WIDTH + 1) + WIDTH, "half": 8 * (2 * WIDTH + 1) + WIDTH, "skip": 0}
    for trial in trials:
        assert sum(sizes[trial.params[f"block_{i}"]] for i in range(4)) + 3 * (WIDTH + 1) <= 560
    assert pool.architecture(found.best.architecture.choices)
    blocks = found.content["blocks"]
    assert list(blocks) == [f"{p.name}/{c.name}" for p in pool.positions for c in p.candidates]
    assert all(blocks[f"block_{i}/whole"] == {"score": 0, "error": 0} for i in range(4))
    assert all(blocks[f"block_{i}/skip"]["error"] > blocks[f"block_{i}/half"]["error"] > 0 for i in range(4))
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["search"]["warmup_steps"] == 0


@pytest.mark.slow
def test_a_search_that_goes_on_does_not_train_blocks_again(tmp_path):
    search(tmp_path / "run", trials=2)
    calls = []
    found = l2l_nas.search(problem(), resume=tmp_path / "run", trials=4, callbacks=[Phases(calls)])
    assert len([trial for trial in found.study.trials if trial.state.name == "COMPLETE"]) == 4
    assert ("blocks", 13) in calls
    assert ("scores", 9) in calls
    assert found.content["blocks"]["block_1/half"]["score"] != 0


@pytest.mark.slow
def test_architectures_that_the_user_names_are_tried_before_those_of_the_scores(tmp_path):
    named = [("half", "half", "skip", "skip", "linear"), ("skip", "skip", "whole", "half", "linear")]
    found = search(tmp_path / "run", enqueue=named)
    trials = found.study.trials
    assert [list(trial.params.values()) for trial in trials[:2]] == [list(one[:-1]) for one in named]
    assert [trial.user_attrs.get("enqueued", False) for trial in trials] == [True, True, False, False]


@pytest.mark.slow
def test_a_search_of_a_time_goes_on_by_what_it_was_begun_with(tmp_path):
    search(tmp_path / "run", trials=2, export=False)
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    again = {"resume": tmp_path / "run", "trials": 3, "strategy": {"name": "blockwise", "samples": 24}}
    other = {"name": "blockwise", "samples": 24, "steps": 6}
    with pytest.raises(SettingError, match=r"strategy.steps=6: the run in .* has strategy.steps=5 and must keep it"):
        l2l_nas.search(problem(), **{**again, "strategy": other})
    config["search"]["time"] = "1m"
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    found = l2l_nas.search(problem(), **again, time="1m")
    assert len(found.study.trials) == 3
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["strategy"]["steps"] == 5


class Phases(Callback):
    """Notes which phases begin, and how much of them was done."""

    def __init__(self, calls):
        self.calls = calls

    def phase(self, name, *, total, done):
        self.calls += [name, (name, done)] if done else [name]


def test_a_block_s_steps_count_by_their_samples_and_its_share_of_the_work(tmp_path):
    found, *_ = search_on(tmp_path, pool_of("tanh", "relu"), spend=budget(trial_weights="shared"))
    phase = DistilBlocks(24, BlockSettings(steps=5, batch_size=8))
    phase.run(found.context)
    # about a third of the network's work each, where a step of a training has 16 samples
    assert found.context.ledger.search_steps == pytest.approx(2 * 5 / 3 * 8 / 16, rel=0.05)


def test_trials_that_would_not_use_the_blocks_are_refused(tmp_path):
    with pytest.raises(SettingError, match=r"write search.trial_weights=shared or fork"):
        search(tmp_path / "run", trial_weights="scratch", steps_per_trial=2)
    assert not (tmp_path / "run").exists()


def test_settings_out_of_range_are_refused():
    with pytest.raises(SettingError, match="expected exchange, divergence, recall or error, got 'best'"):
        blockwise(scores="best")
    with pytest.raises(SettingError, match=r"strategy.samples must be at least 2"):
        blockwise(samples=1)
    with pytest.raises(SettingError, match=r"strategy.rounds must be at least 1, got 0"):
        blockwise(rounds=0)
    with pytest.raises(SettingError, match=r"strategy.rounds=2 score networks whole, and strategy.scores=error scores"):
        blockwise(scores="error", rounds=2)
    with pytest.raises(SpaceError, match="this pool shares them"):
        l2l_nas.search(problem(shared=True), trials=1, strategy="blockwise", trial_weights="shared")


@pytest.mark.slow
def test_finalists_learn_from_the_original(tmp_path):
    losses = []
    for number, given in enumerate(({"teacher": 0.0}, {"lora": 2}, {"teacher": 0.5}, {"teacher": 0.9})):
        strategy = {"name": "blockwise", "samples": 24, "steps": 0, "teacher": 0.9, **given}
        found = search(tmp_path / f"run{number}", trials=1, strategy=strategy)
        losses.append(found.best.values["loss"])
    assert len(set(losses)) == 4
    again = search(tmp_path / "again", trials=1, strategy=strategy)
    assert again.best.values["loss"] == losses[3]


@pytest.mark.slow
def test_trials_that_train_shared_weights_leave_their_teacher_as_it_is(tmp_path, monkeypatch):
    trainers, learn_from = [], Evaluator.learn_from

    def noted(evaluator, trainer):
        trainers.append(trainer)
        learn_from(evaluator, trainer)

    monkeypatch.setattr(Evaluator, "learn_from", noted)
    search(tmp_path / "run", steps_per_trial=4, export=False)
    pool = problem().pool
    relay = Relay(ParamServer(pool, optimizer=SGD(momentum=0.0), seed=0), device="cpu")
    inputs, (_, taught) = trainers[-1].batches.at(0)
    assert torch.equal(taught, relay.predict(pool.original, inputs, micro_batch=trainers[-1].micro_batch)[0])


@pytest.mark.slow
def test_finalists_train_pairs_and_what_is_returned_is_a_plain_network(tmp_path):
    found = {}
    for name, lora in (("pairs", 2), ("again", 2), ("all", 0)):
        strategy = {"name": "blockwise", "samples": 24, "steps": 5, "lora": lora}
        rounds = {"trials": 2, "finalists": 2, "finalist_rounds": 2, "trial_weights": "fork"}
        search(tmp_path / name, strategy=strategy, **rounds)
        files = (tmp_path / name / "best").rglob("*.safetensors")
        found[name] = {
            (path.name.rsplit("-", 1)[0], *entry): t for path in files for *entry, t in load_file(path).items()
        }
    assert not any("parametrizations" in name for _, name in found["pairs"])
    assert found["pairs"].keys() == found["again"].keys()
    assert all(tensor.equal(found["again"][key]) for key, tensor in found["pairs"].items())
    both = found["pairs"].keys() & found["all"].keys()
    assert any(not found["pairs"][key].equal(found["all"][key]) for key in both if key[1].startswith("weights"))


def test_pairs_that_nobody_could_train_are_refused(tmp_path):
    strategy = {"name": "blockwise", "samples": 24, "lora": 2}
    with pytest.raises(SettingError, match=r"search\.finalists=0 trains none"):
        search(tmp_path / "run", strategy=strategy, finalists=0)
    with pytest.raises(SettingError, match=r"search\.finalist_steps=0 trains none"):
        search(tmp_path / "run", strategy=strategy, finalist_steps=0)
    with pytest.raises(SettingError, match=r"search\.baseline=random networks from first weights"):
        search(tmp_path / "run", strategy=strategy, baseline="random")
    with pytest.raises(SettingError, match=r"strategy.lora must be at least 0, got -1"):
        blockwise(lora=-1)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_task_without_classes_has_no_teacher(tmp_path):
    x = torch.randn(50, WIDTH)
    given = Problem(problem().pool, Data.from_arrays(x, x[:, :3].clone()), task=Regression())
    settings = {
        "trials": 1,
        "trial_weights": "fork",
        "steps_per_trial": 0,
        "finalists": 1,
        "finalist_steps": 3,
        "objectives": ["loss"],
    }
    with pytest.raises(DataError, match="a teacher gives probabilities of classes, which Regression has not"):
        l2l_nas.search(given, folder=tmp_path / "a", strategy="blockwise", **settings)
    plain = {"name": "blockwise", "teacher": 0.0, "steps": 2}
    assert l2l_nas.search(given, folder=tmp_path / "b", strategy=plain, **settings).best


@pytest.mark.slow
def test_a_limit_is_met_where_head_and_embedding_share_weights(tmp_path):
    """Parameters are a sum over layers where what is shared is in every network; a limit of another kind is met too."""
    tied = Candidate("tied", partial(Embedding, 11, 8), {"token.weight": "token"})
    inner = [Candidate("wide", partial(FeedForward, 8, 32)), Candidate("narrow", partial(FeedForward, 8, 8)), skip()]
    pool = LayerPool(
        [
            Position("embedding", tied),
            *(Position(f"inner_{index}", inner) for index in range(3)),
            Position("head", Candidate("tied", partial(nn.Linear, 8, 11, bias=False), {"weight": "token"})),
        ],
        inputs={"tokens": TensorSpec((6,), torch.int64)},
    )
    cost = parameters_cost(pool)
    for architecture in pool.every():
        assert cost.of_layer is not None
        assert sum(map(cost.of_layer, pool.path(architecture))) == num_parameters(pool, architecture)
    tokens = torch.randint(11, (60, 6), generator=torch.Generator().manual_seed(0))
    problem = Problem(pool, Data.from_arrays(tokens, tokens), Tokens())
    limits = {"parameters": 1000, "device_bytes": 1e12}
    found = l2l_nas.search(
        problem,
        strategy={"name": "blockwise", "samples": 12, "steps": 1, "scores": "error"},
        trial_weights="fork",
        limits=limits,
        trials=4,
        steps_per_trial=0,
        finalists=0,
        folder=tmp_path / "run",
    )
    assert len(found.study.trials) == 4
    for trial in found.study.trials:
        choices = [trial.params.get(position.name, "tied") for position in pool.positions]
        assert num_parameters(pool, pool.architecture(choices)) <= 1000


@pytest.mark.slow
def test_scores_are_divergences_from_the_original(tmp_path):
    folder, strategy = tmp_path / "run", {"name": "blockwise", "samples": 24, "steps": 5, "scores": "divergence"}
    found = search(folder, strategy=strategy, trials=2, finalists=0)
    given = problem()
    server = ParamServer(given.pool, optimizer=SGD(), seed=0)
    Checkpoint(folder / "weights").load(server, weights_only=True)
    (inputs,), targets = given.data.validation.batch(torch.arange(len(given.data.validation)))
    networks = {
        key: build_network(server, given.pool.architecture(choices)).eval()
        for key, choices in (
            ("original", given.pool.original.choices),
            ("block_1/half", ("whole", "half", "whole", "whole", "linear")),
            ("block_2/skip", ("whole", "whole", "skip", "whole", "linear")),
        )
    }
    logs = {key: one(inputs).log_softmax(dim=-1) for key, one in networks.items()}
    whole = logs["original"]
    for key in ("block_1/half", "block_2/skip"):
        each = (whole.exp() * (whole - logs[key])).sum(dim=1)
        assert found.content["blocks"][key]["score"] == pytest.approx(float(each.detach().mean()), rel=1e-3)
    assert found.content["scored_by"] == found.content["prediction"]["metric"] == "divergence"
    loss = float(nn.functional.cross_entropy(networks["original"](inputs), targets).detach())
    assert found.content["original"]["values"] == {"loss": pytest.approx(loss, rel=1e-4)}
    again = l2l_nas.search(problem(), resume=folder, trials=4)
    assert again.content["blocks"] == found.content["blocks"]
    assert again.content["original"] == found.content["original"]


def test_divergences_of_a_task_without_classes_are_refused(tmp_path):
    given = problem()
    x = torch.randn(200, WIDTH)
    with pytest.raises(DataError, match="probabilities of classes, which Regression has not; use another"):
        l2l_nas.search(
            replace(given, data=Data.from_arrays(x, x[:, :3]), task=Regression()),
            strategy=blockwise(scores="divergence", teacher=0),
            objectives=["loss"],
            trial_weights="shared",
            folder=tmp_path / "run",
            callbacks=[Phases(calls := [])],
        )
    assert calls == []
