"""The callbacks for TensorBoard, W&B and MLflow: what they send, to the real libraries and to stand-ins for them."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from l2l_nas.errors import SettingError
from l2l_nas.report.loggers import MLflow, TensorBoard, WandB
from l2l_nas.testing.problems import searched

CLASSES = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
SHORT = {"trials": 3, "warmup_steps": 4, "steps_per_trial": 2, "finalists": 1, "finalist_steps": 3}


class Sent(dict):
    """Figures by (trial, name), each as [(step, value)]; None: of the run as a whole."""

    def add(self, trial, name, step, value):
        self.setdefault((trial, name), []).append((step, value))


def stand_in_for_tensorboard(sent, folder):
    """`SummaryWriter`, as far as its documentation is relied on."""
    folders = {str(folder): None}

    class SummaryWriter:
        is_open = 0

        def __init__(self, log_dir):
            SummaryWriter.is_open += 1
            assert SummaryWriter.is_open <= 2
            self.trial = folders[log_dir] if log_dir in folders else int(log_dir.removeprefix(f"{folder}/trial_"))

        def add_scalar(self, tag, scalar_value, global_step):
            sent.add(self.trial, tag, global_step, scalar_value)

        def close(self):
            SummaryWriter.is_open -= 1

    return {
        "tensorboard": {},
        "torch.utils.tensorboard": {"SummaryWriter": SummaryWriter},
    }, lambda: SummaryWriter.is_open == 0


def stand_in_for_wandb(sent, folder):
    """`init`, `run`, and of a run `define_metric`, `log` and `finish`."""
    module = {"run": None}

    class Run:
        is_over = False

        def define_metric(self, name, step_metric=None, hidden=None):
            pass

        def log(self, data):
            (name,) = data.keys() - {"step"}
            first, _, last = name.rpartition("/trial_")
            sent.add(int(last) if first else None, first or name, data["step"], data[name])

        def finish(self):
            self.is_over = True

    run = Run()
    return {"wandb": {**module, "init": lambda **settings: run}}, lambda: run.is_over


def stand_in_for_mlflow(sent, folder):
    """`start_run`, `active_run`, `end_run`, and of a client `create_run`, `log_metric` and `set_terminated`."""
    trials, ended = {"main": None}, set()

    class MlflowClient:
        def create_run(self, experiment_id, run_name, tags):
            assert (experiment_id, tags) == ("0", {"mlflow.parentRunId": "main"})
            trials[f"of {run_name}"] = int(run_name.removeprefix("trial "))
            return run(f"of {run_name}")

        def log_metric(self, run_id, key, value, step):
            assert run_id not in ended
            sent.add(trials[run_id], key, step, value)

        def set_terminated(self, run_id):
            ended.add(run_id)

    def run(name):
        return SimpleNamespace(info=SimpleNamespace(run_id=name, experiment_id="0"))

    names = {
        "active_run": lambda: None,
        "start_run": lambda **settings: run("main"),
        "end_run": lambda: ended.add("main"),
        "MlflowClient": MlflowClient,
    }
    return {"mlflow": names}, lambda: ended == set(trials)


STAND_INS = {
    "tensorboard": stand_in_for_tensorboard,
    "wandb": stand_in_for_wandb,
    "mlflow": stand_in_for_mlflow,
}


def given(monkeypatch, modules):
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)


def check(sent, result):
    """That it is what the run found: the curves of shared steps, of each trial and of the finalist."""
    trials = result.study.trials
    assert [step for step, _ in sent[None, "warm-up/train/loss"]] == [1, 2, 3, 4]
    assert sorted(step for step, _ in sent[None, "trials/accuracy"]) == [one.number for one in trials]
    best = result.best.trial
    assert [step for step, _ in sent[best, "search/train/loss"]] == [1, 2]
    ((step, value),) = sent[best, "search/validation/accuracy"]
    assert (step, value) == (2, pytest.approx(result.best.trial_score["accuracy"]))
    assert [step for step, _ in sent[best, "finalists/train/loss"]] == [1, 2, 3]
    assert dict(sent[best, "finalists/validation/accuracy"])[3] == pytest.approx(result.best.validation["accuracy"])
    assert dict(sent[best, "finalists/test/accuracy"]) == {3: pytest.approx(result.test["accuracy"])}
    assert dict(sent[None, "trials/parameters"])[best] == result.best.costs["parameters"]


@pytest.mark.parametrize("name", CLASSES)
def test_each_sends_all_figures_of_a_search_and_is_closed_behind_it(name, tmp_path, monkeypatch):
    sent = Sent()
    modules, is_closed = STAND_INS[name](sent, tmp_path / "to")
    given(monkeypatch, modules)
    logger = TensorBoard(str(tmp_path / "to")) if name == "tensorboard" else CLASSES[name]()
    check(sent, searched(tmp_path / "run", callbacks=[logger], **SHORT))
    assert is_closed()


def test_a_run_that_the_user_has_begun_stays_open(monkeypatch):
    sent = Sent()
    modules, is_closed = stand_in_for_wandb(sent, None)
    modules["wandb"]["run"] = modules["wandb"].pop("init")()
    given(monkeypatch, modules)
    logger = WandB()
    logger.phase("training", total=3, done=0)
    logger.number("training/train/loss", 0.5, step=1)
    logger.end()
    assert sent == {(None, "training/train/loss"): [(1, 0.5)]}
    assert not is_closed()


def test_where_a_library_cannot_be_reached_one_line_says_so_and_the_search_goes_on(tmp_path, monkeypatch, caplog):
    def init(**settings):
        raise ConnectionError("no network")

    given(monkeypatch, {"wandb": {"run": None, "init": init}})
    result = searched(tmp_path / "run", callbacks=[WandB()], **SHORT)
    assert result.best.is_trained
    lines = [one.message for one in caplog.records if "callback" in one.message]
    assert [line.partition(" raised")[0] for line in lines] == ["callback WandB.phase"]
    assert "no network" in lines[0]


@pytest.mark.parametrize("name", CLASSES)
def test_a_library_that_is_missing_is_named_with_what_installs_it(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SettingError, match=rf"{CLASSES[name].__name__} needs the package {name}.*l2l-nas\[loggers\]"):
        CLASSES[name]()


@pytest.mark.cluster
def test_tensorboard_itself_reads_what_was_written(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = searched(tmp_path / "run", callbacks=[TensorBoard(str(tmp_path / "to"))], **SHORT)
    sent = Sent()
    for folder in (tmp_path / "to", *(tmp_path / "to").glob("trial_*")):
        read = EventAccumulator(str(folder))
        read.Reload()
        trial = int(folder.name.removeprefix("trial_")) if folder.name != "to" else None
        for tag in read.Tags()["scalars"]:
            for event in read.Scalars(tag):
                sent.add(trial, tag, event.step, event.value)
    check(sent, result)


@pytest.mark.cluster
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of SQLAlchemy, about MLflow
def test_mlflow_itself_reads_what_was_written(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    result = searched(tmp_path / "run", callbacks=[MLflow(run_name="one")], **SHORT)
    assert mlflow.active_run() is None
    client, sent = mlflow.MlflowClient(), Sent()
    runs = client.search_runs(["0"])
    (main,) = (run.info.run_id for run in runs if run.info.run_name == "one")
    for run in runs:
        assert run.info.status == "FINISHED"
        assert run.info.run_id == main or run.data.tags["mlflow.parentRunId"] == main
        trial = None if run.info.run_id == main else int(run.info.run_name.removeprefix("trial "))
        for name in run.data.metrics:
            for metric in client.get_metric_history(run.info.run_id, name):
                sent.add(trial, name, metric.step, metric.value)
    check(sent, result)


@pytest.mark.cluster
def test_wandb_itself_has_a_run_that_is_over_with_the_last_figures(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    found = {}

    class Read(WandB):
        def finish(self):
            found.update(self._run.summary)  # which is gone with the run
            super().finish()

    logger = Read(project="tests", mode="offline", dir=str(tmp_path))
    result = searched(tmp_path / "run", callbacks=[logger], **SHORT)
    assert wandb.run is None
    name = f"finalists/test/accuracy/trial_{result.best.trial}"
    assert found[name] == pytest.approx(result.test["accuracy"])
    assert list((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
