"""The search as a Python call: what the command does, and what it returns."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import optuna
import pytest
import torch
import yaml
from torch import nn

import l2l_nas
from l2l_nas import Candidate, Data, LayerPool, Position, TensorSpec
from l2l_nas.__main__ import main
from l2l_nas.errors import SettingError, SpaceError, StorageError
from l2l_nas.runs.api import conf_of, parted
from l2l_nas.runs.command_line import resume_command
from l2l_nas.runs.fields import content
from l2l_nas.runs.folder_settings import settings_in, typeable
from l2l_nas.testing.problems import searched, small_data, small_pool
from l2l_nas.training.problem import Problem
from l2l_nas.training.samples import Split
from tests.cli.runs import TINY, contents
from tests.runs.calls import SAID, trials_of


@pytest.mark.slow
@pytest.mark.parametrize("race", [False, True])
def test_a_call_is_what_the_command_is_trial_by_trial(problem, tmp_path, race):
    words = [*TINY, *(["search.trial_weights=scratch", "search.warmup_steps=0"] if race else [])]
    assert main(["search", "space.pool=tiny.py:build", *words, "folder=command", "seed=3"]) == 0
    more = {"trial_weights": "scratch", "warmup_steps": 0} if race else {}
    result = l2l_nas.search(problem, folder="call", seed=3, progress=False, **{**SAID, **more})
    assert trials_of(tmp_path / "call") == trials_of(tmp_path / "command")
    ours, theirs = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("call", "command"))
    for one in (ours, theirs):
        del one["seconds"], one["measured"]
        for spent in one["spent"].values():
            del spent["seconds"]
    assert ours == theirs
    of_hydra = {".hydra/config.yaml", ".hydra/hydra.yaml", ".hydra/overrides.yaml"}
    assert set(contents(tmp_path / "call")) | of_hydra == set(contents(tmp_path / "command"))
    assert result.best.values == theirs["best"]["values"]


@pytest.mark.slow
def test_the_result_has_what_was_found(problem, tmp_path, capsys):
    more = {**SAID, "finalists": 2, "baseline": "random"}
    result = l2l_nas.search(problem, folder=tmp_path / "run", progress=False, **more)
    assert capsys.readouterr().out == ""
    assert isinstance(result.study, optuna.Study)
    assert len(result.study.trials) >= 12
    assert result.best.architecture in [one.architecture for one in result.finalists]
    assert {one.architecture for one in result.pareto} <= {one.architecture for one in result.finalists}
    assert result.test == result.best.test
    assert result.test["accuracy"] > 0
    assert result.baseline.test["accuracy"] > 0
    assert result.best.costs["parameters"] == l2l_nas.num_parameters(problem.pool, result.best.architecture)
    network, test = result.network(), problem.data.test
    assert not network.training
    with torch.no_grad():
        right = (network(*test.inputs).argmax(1) == test.targets).float().mean().item()
    assert right == pytest.approx(result.test["accuracy"], abs=1e-6)


@pytest.mark.slow
def test_a_run_of_the_command_goes_on_by_a_call_and_the_other_way_round(problem, tmp_path):
    assert main(["search", "space.pool=tiny.py:build", *TINY, "folder=run"]) == 0
    result = l2l_nas.search(problem, resume="run", trials=14, progress=False)
    assert len([t for t in result.study.trials if not t.user_attrs["cached"]]) == 14
    assert main(["search", "space.pool=tiny.py:build", "resume=run", "search.trials=15"]) == 0
    assert sum(not attributes["cached"] for *_, attributes in trials_of(tmp_path / "run")) == 15
    with pytest.raises(SettingError, match=r"train\.batch_size=8: the run in run has train\.batch_size=64"):
        l2l_nas.search(problem, resume="run", train={"batch_size": 8}, progress=False)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"trails": 3}, r"no setting 'trails'; did you mean 'trials'"),
        ({"train": {"batchsize": 3}}, r"no setting 'train\.batchsize'; did you mean 'train\.batch_size'"),
        ({"trials": "many"}, r"search\.trials must be of type int, got 'many'"),
        ({"trials": 10**400}, r"search\.trials must be at most 2,147,483,647, got a number of more than 300 digits"),
        ({"trainings": 10**400}, r"search\.trainings must be a number that a float can hold"),
        ({"executor": ThreadPoolExecutor(1)}, r"say how many segments it runs at a time, such as search\.workers=4"),
        ({"executor": "ray", "workers": 2, "trial_weights": "shared"}, r"shared weights stay in one process"),
        ({"objectives": [3]}, r"objectives\[0\] must be of type str, got 3"),
        ({"space": {"args": {"width": 3}}}, r"a Problem has its own"),
        ({"data": {"source": "digits"}}, r"a Problem has its own"),
        ({"sampler": optuna.samplers.TPESampler}, r"sampler takes an object, got a class; write TPESampler\(\.\.\.\)"),
        ({"learning_rate": 0.1}, r"no setting 'learning_rate'; write train=\{\"learning_rate\": \.\.\.\}"),
        ({"n_trials": 3}, "write trials="),
        ({"direction": "minimize"}, "write objectives="),
        ({"costs": {"n": 5}}, r"costs: 'n' takes a function, got 5"),
        ({"sampler": {"name": "tpe", "n_startup": 3}}, r"sampler=tpe takes no 'n_startup'; did you mean"),
        ({"optimizer": {"name": "sgd", "momentum": "much"}}, r"optimizer\.momentum must be of type float, got 'much'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(problem, tmp_path, said, error):
    before = contents(tmp_path)
    with pytest.raises(SettingError, match=error):
        l2l_nas.search(problem, folder="other", progress=False, **said)
    assert contents(tmp_path) == before


def test_a_result_is_shown_by_its_folder_and_not_by_its_data(problem):
    assert repr(l2l_nas.SearchResult(Path("runs/x"), problem)) == f"SearchResult(folder={Path('runs/x')!r})"


def test_what_was_given_in_python_is_called_so_and_gone_on_with_in_python(problem):
    own, said = parted({"sampler": optuna.samplers.RandomSampler(), "costs": {"n": len}, "trials": 8})
    conf = conf_of(problem, said)
    named = typeable(settings_in(content(conf)).withheld)
    assert resume_command("search", "runs/x", named) == "l2l_nas.search(..., resume='runs/x')"
    assert [cost.__name__ for cost in own["search.costs"]] == ["n"]


def test_right_things_of_other_types_are_taken(problem):
    said = {"objectives": "loss", "relay": {"device": torch.device("cpu")}, "trials": np.int64(3), "limits": {"n": 1}}
    conf = conf_of(problem, said)
    assert (conf.objectives.names, conf.relay.device) == (["loss"], "cpu")
    assert (conf.search.trials, conf.search.limits) == (3, {"n": 1})
    assert conf.explicit == {"objectives.names", "relay.device", "search.trials", "search.limits.n", "space.pool"}


@pytest.mark.slow
def test_known_architectures_are_tried_first_and_a_run_that_goes_on_remembers_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    named = [["linear", "skip", "tanh", "linear"], "linear > relu > skip > linear", "original"]
    problem = Problem(small_pool(depth=2), small_data())
    result = searched(tmp_path / "run", problem, trials=4, finalists=0, warmup_steps=0, enqueue=named)
    trials = result.study.trials
    chosen = [" > ".join(trial.user_attrs["architecture"]) for trial in trials[:3]]
    assert chosen == [" > ".join(named[0]), named[1], "linear > tanh > tanh > linear"]
    assert [trial.user_attrs.get("enqueued", False) for trial in trials[:4]] == [True, True, True, False]
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["search"]["enqueue"] == chosen
    for wrong, says in (
        (["linear > no > skip > linear"], "search.enqueue: not an architecture"),
        (5, "enqueue takes a"),
    ):
        with pytest.raises(SettingError, match=says):
            searched(tmp_path / "other", enqueue=wrong, problem=result.problem)


def test_a_converted_model_itself_is_tried_first_and_named_on_the_page(tmp_path):
    model = nn.Sequential(nn.Linear(6, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 2))
    pool = l2l_nas.convert(model, torch.randn(2, 6), blocks="1", candidates={"skip": l2l_nas.skip()})
    x = torch.randn(60, 6)
    problem = Problem(pool, l2l_nas.Data.from_arrays(x, (x[:, 0] > 0).long()))
    said = {"trials": 2, "finalists": 0, "warmup_steps": 0, "steps_per_trial": 1, "progress": False}
    result = l2l_nas.search(problem, folder=tmp_path / "run", **said)
    first, other = result.study.trials
    assert tuple(first.user_attrs["architecture"]) == pool.original.choices
    assert (first.user_attrs["enqueued"], other.user_attrs.get("enqueued", False)) == (True, False)
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count("the model itself") == 1
    result = l2l_nas.search(problem, folder=tmp_path / "none", enqueue=[], **said)
    assert not any(trial.user_attrs.get("enqueued", False) for trial in result.study.trials)


@pytest.mark.slow
def test_a_test_part_that_cannot_be_measured_is_told(problem, tmp_path, capsys):
    width = problem.pool.inputs[0].shape[0]
    x = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=np.float32, shape=(2000, width))
    x[:] = np.random.default_rng(0).random(x.shape, dtype=np.float32)
    data = l2l_nas.Data.from_arrays(x, np.arange(2000) % 2)
    (unseen,), _ = data.test.batch(torch.tensor([2]))  # of a part in a file, not every sample is looked at before
    x[np.flatnonzero((x == unseen.numpy()).all(1))] = np.nan
    result = l2l_nas.search(replace(problem, data=data), **SAID)
    assert result.test is None
    assert "warning: on the test data, loss is nan" in " ".join(capsys.readouterr().out.split())


def test_a_search_within_autocast_is_refused_before_anything_is_written(problem, tmp_path):
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(SettingError, match="cache_enabled=False"):
        l2l_nas.search(problem, progress=False)
    assert not (tmp_path / "runs").exists()


def test_what_is_searched_is_a_problem_or_a_name(problem, tmp_path):
    for wrong in (problem.pool, None, 3):
        with pytest.raises(
            SettingError, match=r"problem takes a Problem or the name of a space, got .*Problem\(pool, data\)"
        ):
            l2l_nas.search(wrong, progress=False)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_numbers_of_numpy_threads_and_limits_of_before(problem, tmp_path):
    torch.set_num_threads(2)
    optuna.logging.set_verbosity(optuna.logging.INFO)
    found = []

    def call(**said):
        found.append(l2l_nas.search(problem, progress=False, **said))

    more = {"trials": np.int64(4), "limits": {"parameters": np.float64(1e6), "flops": 10**7}, "resume": None}
    thread = threading.Thread(target=call, kwargs={**SAID, **more, "folder": tmp_path / "run"})
    thread.start()
    thread.join()
    call(resume="run", limits={"flops": 10**8}, trials=5)
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["search"]["limits"] == {
        "parameters": 1e6,
        "flops": 10**8,
    }
    assert len(found) == 2
    assert torch.get_num_threads() == 2
    assert optuna.logging.get_verbosity() == optuna.logging.INFO
    torch.set_num_threads(1)


def test_a_folder_without_a_study_says_so(problem, tmp_path):
    with pytest.raises(StorageError, match="there is no study"):
        l2l_nas.SearchResult(tmp_path, problem).study  # noqa: B018


def test_suggest_serves_a_loop_of_one_s_own(problem):
    pool = problem.pool
    study = optuna.create_study(direction="minimize", sampler=optuna.samplers.TPESampler(seed=0))
    found = []

    def objective(trial):
        found.append(l2l_nas.suggest(trial, pool))
        return l2l_nas.num_parameters(pool, found[-1])

    study.optimize(objective, n_trials=30)
    assert study.best_value == min(l2l_nas.num_parameters(pool, one) for one in found)
    assert set(study.best_params) == {p.name for p in pool.positions if len(p.candidates) > 1}
    assert all(pool.canonical(one) == one for one in found)
    fixed = optuna.trial.FixedTrial(study.best_params)
    assert l2l_nas.num_parameters(pool, l2l_nas.suggest(fixed, pool)) == study.best_value


class Whole(Split):
    """What does not fill a mini-batch is one of its own."""

    drops_last = False


@pytest.mark.parametrize("race", [False, True])
def test_a_candidate_that_cannot_train_on_a_rest_of_one_sample_is_refused_before_anything_is_written(tmp_path, race):
    def some(count):
        return Whole((torch.randn(count, 4),), torch.arange(count) % 2)

    normed = Candidate("normed", lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    pool = LayerPool(
        [
            Position("first", [Candidate("linear", partial(nn.Linear, 4, 4)), normed]),
            Position("head", Candidate("linear", partial(nn.Linear, 4, 2))),
        ],
        inputs=TensorSpec((4,)),
    )
    data = Data(some(33), some(8), some(8))
    said = {"trials": 4, "steps_per_trial": 4, "warmup_steps": 0, "finalists": 1, "finalist_steps": 12}
    with pytest.raises(SpaceError, match="cannot train on one sample alone") as refused:
        l2l_nas.search(
            l2l_nas.Problem(pool, data),
            folder=tmp_path / "run",
            progress=False,
            train={"batch_size": 4, "micro_batch": 4},
            trial_weights="scratch" if race else "shared",
            **said,
        )
    assert (refused.value.position, refused.value.candidate) == ("first", "normed")
    assert not (tmp_path / "run").exists()
