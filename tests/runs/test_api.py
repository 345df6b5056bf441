"""The search as a Python call: what the command does, and what it returns."""

from __future__ import annotations

import importlib.util
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
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
from l2l_nas.nas.callback import Stopped
from l2l_nas.runs.call import content_of, parted
from l2l_nas.runs.fields import built, changed
from l2l_nas.runs.next_commands import next_commands
from l2l_nas.runs.settings import SearchConf
from l2l_nas.testing.problems import searched, small_data, small_pool
from l2l_nas.training.problem import Problem
from l2l_nas.training.samples import Split
from tests.cli.runs import TINY, contents, write_pool
from tests.studies import saved_study

SAID = {
    "objectives": ["accuracy", "parameters"], "trial_weights": "shared", "warmup_steps": 30, "trials": 12,
    "steps_per_trial": 2, "finalists": 1, "finalist_steps": 5, "export": False,
}  # fmt: skip
# what one run differs in from the next
_TIMES = ("seconds", "datetime_start", "datetime_complete")


@pytest.fixture
def problem(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("tiny_problem", write_pool(tmp_path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build()


def trials_of(folder):
    study = saved_study(folder)
    return [
        (t.number, t.state, t.params, t.values, {k: v for k, v in t.user_attrs.items() if k not in _TIMES})
        for t in study.trials
    ]


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
        del one["seconds"]
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
        ({"trials": True}, r"search\.trials must be of type int, got True"),
        ({"relay": 3}, r"relay must be a dict of settings, got 3"),
        ({"executor": ThreadPoolExecutor(1)}, r"say how many segments it runs at a time, such as search\.workers=4"),
        ({"executor": "rya"}, r"no executor 'rya'; did you mean 'ray'"),
        ({"executor": "ray", "workers": 2, "trial_weights": "shared"}, r"weights that trials share stay in one"),
        ({"objectives": [3]}, r"objectives must be of type list of str, got \[3\]"),
        ({"space": "x"}, r"a Problem has its own"),
        ({"space": {"args": {"width": 3}}}, r"a Problem has its own"),
        ({"data": {"source": "digits"}}, r"a Problem has its own"),
        ({"sampler": optuna.samplers.TPESampler}, r"sampler takes an object, got a class; write TPESampler\(\.\.\.\)"),
        ({"optimizer": l2l_nas.AdamW}, r"write AdamW\(\.\.\.\)"),
        ({"callbacks": [l2l_nas.Callback]}, r"callbacks takes an object, got a class; write Callback"),
        ({"limits": {"flops": object()}}, r"limits takes text, a number, a list or a dict, got <object"),
        ({"sampler": "tpee"}, r"did you mean 'tpe'"),
        ({"learning_rate": 0.1}, r"no setting 'learning_rate'; write train=\{\"learning_rate\": \.\.\.\}"),
        ({"momentum": 0.9}, r"write optimizer=\{\"name\": \"sgd\", \"momentum\": \.\.\.\}"),
        ({"n_trials": 3}, "write trials="),
        ({"pruner": None}, "write early_stop="),
        ({"direction": "minimize"}, "write objectives="),
        ({"costs": {"n": 5}}, r"costs: 'n' takes a function, got 5"),
        ({"costs": 5}, "costs takes a list of functions or names"),
        ({"sampler": {"name": "tpe", "n_startup": 3}}, r"sampler=tpe takes no 'n_startup'; did you mean"),
        ({"optimizer": {"name": "sgd", "momentum": "much"}}, r"optimizer\.momentum must be of type float, got 'much'"),
        ({"train": {"optimizer": "sgd"}}, r"no setting 'train\.optimizer'; write optimizer="),
        ({"sgd": {"momentum": 0.5}}, r"no setting 'sgd'; write optimizer="),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_written(problem, tmp_path, said, error):
    before = contents(tmp_path)
    with pytest.raises(SettingError, match=error):
        l2l_nas.search(problem, folder="other", progress=False, **said)
    assert contents(tmp_path) == before


def test_what_was_given_in_python_is_called_so_and_gone_on_with_in_python(problem):
    own, said = parted({"sampler": optuna.samplers.RandomSampler(), "costs": {"n": len}, "trials": 8})
    config = asdict(built(SearchConf, content_of(problem, said)))
    commands = next_commands(Path("runs/x"), config, is_finished=True, has_result=True)
    lines = [one.line for one in commands]
    assert lines[0] == "l2l_nas.search(problem, resume='runs/x', sampler=..., costs=..., trials=16)"
    assert "l2l_nas.SearchResult('runs/x', problem).network()" in lines
    assert not any("FILE.py" in line or "given in Python" in line for line in lines)
    assert [cost.__name__ for cost in own["costs"]] == ["n"]


def test_right_things_of_other_types_are_taken(problem):
    said = {"objectives": "loss", "relay": {"device": torch.device("cpu")}, "trials": np.int64(3), "limits": {"n": 1}}
    content = content_of(problem, said)
    assert content["objectives"] == {"names": ["loss"]}
    assert content["relay"] == {"device": "cpu"}
    assert content["search"] == {"trials": 3, "limits": {"n": 1}}


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


SAMPLER = """
import optuna

class Downwards(optuna.samplers.BaseSampler):
    \"\"\"Each position's last candidate, then at random.\"\"\"

    def __init__(self, seed):
        self.random, self.asked = optuna.samplers.RandomSampler(seed=seed), 0

    def infer_relative_search_space(self, study, trial):
        return {}

    def sample_relative(self, study, trial, search_space):
        return {}

    def sample_independent(self, study, trial, name, distribution):
        self.asked += 1
        return self.random.sample_independent(study, trial, name, distribution)

def nothing():
    return 3
"""


@pytest.mark.slow
def test_a_sampler_of_one_s_own_is_taken_by_object_and_by_name(problem, tmp_path, refused):
    (tmp_path / "mine.py").write_text(SAMPLER)
    spec = importlib.util.spec_from_file_location("mine", tmp_path / "mine.py")
    mine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mine)
    sampler = mine.Downwards(seed=0)
    result = l2l_nas.search(problem, folder="object", sampler=sampler, progress=False, **SAID)
    assert sampler.asked >= 12 * sum(len(p.candidates) > 1 for p in problem.pool.positions)
    assert len(result.study.trials) >= 12
    tpe = l2l_nas.search(problem, folder="tpe", sampler=optuna.samplers.TPESampler(seed=1), progress=False, **SAID)
    assert [t.params for t in tpe.study.trials] != [t.params for t in result.study.trials]
    words = ["search", "space.pool=tiny.py:build", *TINY, "folder=named", "sampler=mine.py:Downwards"]
    assert main(words) == 0
    # what stands in a folder is never imported
    line = refused("search", "space.pool=tiny.py:build", "resume=named", "search.trials=14")
    assert "that run's sampler is one of your own; name it again: sampler=mine.py:Downwards" in line
    again = ["search", "space.pool=tiny.py:build", "resume=named", "search.trials=14"]
    assert main([*again, "sampler=mine.py:Downwards"]) == 0
    assert "mine.py:nothing gave int; expected an optuna.samplers.BaseSampler" in refused(
        *words[:-2], "folder=other", "sampler=mine.py:nothing"
    )
    assert "no file 'yours.py'" in refused(*words[:-2], "folder=other", "sampler=yours.py:Sampler")
    with pytest.raises(SettingError, match=r"sampler was given in Python; give it to l2l_nas\.search again"):
        l2l_nas.search(problem, resume="object", trials=14, progress=False)


STRATEGY = """
from l2l_nas import Finalists, Phase, Trials, WarmUp
from l2l_nas.nas.evaluation.early_stopping import NeverStop

class First(Phase):
    def run(self, search):
        self.scores = [search.evaluator.score(a)["accuracy"] for a, _ in zip(search.random_architectures(5), range(3))]
        search.study.propose(search.pool.architecture([p.candidates[-1].name for p in search.pool.positions]))

def phases():
    return [WarmUp(), First(), Trials(), Finalists()]

class Third(NeverStop):
    asked = 0
    def stop_reason(self, architecture, rung, values):
        type(self).asked += 1
        return "every third" if self.asked % 3 == 0 else None

def nothing():
    return [3]
"""


@pytest.mark.slow
def test_a_strategy_and_a_rule_of_one_s_own_are_taken_by_object_and_by_name(problem, tmp_path, refused):
    (tmp_path / "mine.py").write_text(STRATEGY)
    spec = importlib.util.spec_from_file_location("mine", tmp_path / "mine.py")
    mine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mine)
    phases = mine.phases()
    result = l2l_nas.search(problem, folder="object", strategy=phases, progress=False, **SAID)
    assert len(phases[1].scores) == 3
    last = problem.pool.canonical(problem.pool.architecture([p.candidates[-1].name for p in problem.pool.positions]))
    assert result.study.trials[0].user_attrs["architecture"] == list(last.choices)
    words = ["search", "space.pool=tiny.py:build", *TINY]
    own = ["strategy=mine.py:phases", "search.early_stop=mine.py:Third"]
    fork = ["search.trial_weights=fork", "search.steps_per_trial=8", "search.finalist_steps=9"]
    assert main([*words, *own, *fork, "folder=named"]) == 0
    states = json.loads((tmp_path / "named" / "result.json").read_text())["trials"]
    assert states["stopped"] >= 3
    again = ["search", "space.pool=tiny.py:build", "resume=named", "search.trials=14"]
    assert "strategy is one of your own; name it again: strategy=mine.py:phases" in refused(*again)
    assert "early stop is one of your own; name it again: search.early_stop=mine.py:Third" in refused(*again, own[0])
    assert main([*again, *own]) == 0
    assert "must keep it: phases of another strategy" in refused(*again, own[1], "strategy=default")
    assert "mine.py:nothing gave list; expected a list of l2l_nas.Phase objects" in refused(
        *words, "folder=other", "strategy=mine.py:nothing"
    )
    assert "no strategy 'defalt'; did you mean 'default'?" in refused(*words, "folder=other", "strategy=defalt")
    with pytest.raises(SettingError, match=r"expected a list of l2l_nas.Phase objects"):
        l2l_nas.search(problem, folder="other", strategy=3, progress=False)
    with pytest.raises(SettingError, match=r"lacks stop_reason or learn"):
        l2l_nas.search(problem, folder="other", early_stop=3, progress=False)
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_a_rule_of_one_s_own_decides_in_the_search_s_own_process_where_workers_train(problem, tmp_path):
    class Second:
        def __init__(self):
            self.numbers = {}

        def stop_reason(self, architecture, rung, values):
            number = self.numbers.setdefault(architecture, len(self.numbers))
            return "every second" if number % 2 else None

        def learn(self, records):
            pass

    rule = Second()
    said = {**SAID, "trial_weights": "fork", "steps_per_trial": 8, "finalist_steps": 9}
    found = l2l_nas.search("tiny.py:build", folder="run", early_stop=rule, workers=2, progress=False, **said)
    assert len(rule.numbers) >= 6
    assert found.content["trials"]["stopped"] >= 3


CALLBACK = """
import json
from l2l_nas import Callback

class Written(Callback):
    def phase(self, name, *, total, done):
        self.note("phase", name)

    def trial(self, record, records):
        self.note("trial", record.number, len(records), record.values["accuracy"])

    def finalist(self, finalist):
        self.note("finalist", finalist.values["accuracy"])

    def note(self, *what):
        with open("seen.jsonl", "a") as file:
            print(json.dumps(what), file=file)

def nothing():
    return 3
"""


@pytest.mark.slow
def test_callbacks_see_a_search_go_by(problem, tmp_path, refused):
    (tmp_path / "mine.py").write_text(CALLBACK)
    words = ["search", "space.pool=tiny.py:build", *TINY]
    assert main([*words, "folder=run", "callbacks=[mine.py:Written]", "search.workers=2"]) == 0
    seen = [json.loads(line) for line in (tmp_path / "seen.jsonl").read_text().splitlines()]
    assert [one[1] for one in seen if one[0] == "phase"] == ["warm-up", "search", "finalists"]
    assert sorted(one[1] for one in seen if one[0] == "trial") == list(range(len([o for o in seen if o[0] == "trial"])))
    assert seen[-1] == [
        "finalist",
        json.loads((tmp_path / "run" / "result.json").read_text())["best"]["values"]["accuracy"],
    ]
    # what stands in a folder is not imported: a run that goes on without it is not seen
    assert main(["search", "space.pool=tiny.py:build", "resume=run", "search.trials=14"]) == 0
    assert len((tmp_path / "seen.jsonl").read_text().splitlines()) == len(seen)
    assert "mine.py:nothing gave int; expected a subclass of l2l_nas.Callback" in refused(
        *words, "folder=other", "callbacks=[mine.py:nothing]"
    )
    assert "no callbacks 'Written'; choose from none; your own is [FILE.py:NAME]" in refused(
        *words, "folder=other", "callbacks=[Written]"
    )
    assert not (tmp_path / "other").exists()


class _Third(l2l_nas.Callback):
    def __init__(self, error: BaseException) -> None:
        self.error, self.records = error, []

    def trial(self, record, records):
        self.records.append(record)
        if len(self.records) == 3:
            raise self.error


@pytest.mark.slow
def test_a_callback_stops_a_search_which_returns_what_it_has_and_goes_on(problem):
    seen = _Third(l2l_nas.Stopped())
    result = l2l_nas.search(problem, folder="run", callbacks=[seen], progress=False, **SAID)
    assert len(seen.records) == len(result.study.trials) == 3
    assert result.content["trials"]["complete"] == 3
    best = max(seen.records, key=lambda record: record.values["accuracy"])
    assert result.best.values["accuracy"] == best.values["accuracy"]
    assert not result.best.is_trained
    with pytest.raises(StorageError, match=r"before its finalists were trained.*resume='run'\)$"):
        result.network()
    before = result.content["seconds"]
    page = (result.folder / "report.html").read_text()
    assert "Callback _Third stopped the search" in page
    assert "run before it went on" not in page
    result = l2l_nas.search(problem, resume="run", progress=False)
    assert sum(not t.user_attrs["cached"] for t in result.study.trials) == 12
    assert result.best.is_trained
    assert result.content["seconds"] > before  # of both sessions


def test_a_callback_that_stops_a_search_before_its_first_trial_gets_no_network(problem):
    class Never(l2l_nas.Callback):
        def phase(self, name, *, total, done):
            raise l2l_nas.Stopped

    result = l2l_nas.search(problem, folder="run", callbacks=[Never()], progress=False, **SAID)
    assert len(result.study.trials) == 0
    with pytest.raises(StorageError, match=r"has not finished; go on with: .*resume='run'"):
        _ = result.best


@pytest.mark.slow
def test_a_search_that_is_stopped_from_outside_returns_nothing(problem, monkeypatch):
    def poll(self):
        raise Stopped

    monkeypatch.setattr("l2l_nas.runs.progress.StopSignals.poll", poll)
    with pytest.raises(KeyboardInterrupt):
        l2l_nas.search(problem, folder="run", progress=False, **SAID)
    assert not Path("run/result.json").exists()


def test_what_a_callback_raises_is_a_warning_and_the_search_has_its_result(problem, caplog, capsys):
    class Bad(l2l_nas.Callback):
        def trial(self, record, records):
            raise ConnectionError("no server")

    short = {**SAID, "trials": 3, "warmup_steps": 2}
    result = l2l_nas.search(
        problem, folder="run", callbacks=[Bad()], progress=False, warmup_paths="fair", keep_fraction=0.1, **short
    )
    assert result.content["trials"]["complete"] == 3
    said = [record.message for record in caplog.records if record.name == "l2l_nas"]
    (line,) = [line for line in said if "callback" in line]
    assert line.startswith("callback Bad.trial raised ConnectionError: no server (test_api.py, line")
    assert any("keep_fraction has no effect" in line for line in said)
    (event,) = [
        e for e in map(json.loads, (result.folder / "log.jsonl").read_text().splitlines()) if e["event"] == "callback"
    ]
    assert "Traceback" in event["traceback"]
    assert capsys.readouterr().out == ""


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


def test_callbacks_are_a_list(problem, tmp_path):
    with pytest.raises(SettingError, match="callbacks takes a list of callbacks"):
        l2l_nas.search(problem, callbacks=_Third(ValueError()), progress=False)
    assert not (tmp_path / "runs").exists()


def test_what_is_searched_is_a_problem_or_a_name(problem, tmp_path):
    for wrong in (problem.pool, None, 3):
        with pytest.raises(SettingError, match=r"takes a Problem or the name of a space, got .*Problem\(pool, data\)"):
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


def test_a_study_in_a_database_is_read_from_there(problem, tmp_path):
    storage = f"sqlite:///{tmp_path / 'shared.db'}"
    optuna.create_study(study_name="ours", storage=storage)
    conf = changed(SearchConf(), {"search.storage": storage, "search.study": "ours"})
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(asdict(conf)))
    assert l2l_nas.SearchResult(tmp_path, problem).study.study_name == "ours"
    conf = changed(conf, {"search.study": "theirs"})
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(asdict(conf)))
    with pytest.raises(StorageError, match="there is no study 'theirs'"):
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
