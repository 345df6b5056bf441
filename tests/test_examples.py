"""Examples, run as their first lines say."""

from __future__ import annotations

import csv
import json
import runpy
from pathlib import Path

import optuna
import pytest
import torch
from optuna.storages import RDBStorage
from sqlalchemy.pool import NullPool

import l2l_nas
from l2l_nas.__main__ import main
from tests.cli.runs import ROOT, TINY, events, write_pool
from tests.postgres import Postgres
from tests.studies import saved_study

FOLDER = ROOT / "examples" / "extensions"
SPACE = f"space.pool={FOLDER}/space.py:build"
FEW = ["search.trials=6", "search.steps_per_trial=3", "search.finalist_steps=9", "search.finalists=2", "export=false"]


@pytest.mark.slow
def test_a_space_with_a_constraint_costs_and_a_callback(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [
        f"search.costs=[{FOLDER}/cost.py:Depth]",
        "search.limits.Depth=4",
        f"callbacks=[{FOLDER}/callback.py:Table]",
    ]
    assert main(["search", SPACE, *FEW, "folder=run", "objectives=[accuracy,activations,Depth]", *words]) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    for entry in result["finalists"]:
        assert "tanh" in entry["architecture"]
        assert entry["costs"]["activations"] == sum(name in ("relu", "tanh") for name in entry["architecture"])
        depth = sum(name != "skip" for name in entry["architecture"])
        assert entry["costs"]["Depth"] == entry["values"]["Depth"] == depth <= 4
    with open("trials.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert sum(row[1] == "complete" for row in rows) >= result["trials"]["complete"] == 6
    assert all(row[2].startswith("accuracy=") for row in rows if row[1] == "complete")


@pytest.mark.slow
def test_a_sampler(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["search", SPACE, *FEW, "folder=run", f"sampler={FOLDER}/sampler.py:Neighbours"]) == 0
    study = saved_study(tmp_path / "run")
    done = [t for t in study.trials if t.state == optuna.trial.TrialState.COMPLETE]
    assert len(done) >= 6
    for place in range(2, len(done)):
        best = max(done[:place], key=lambda one: one.value)
        drawn = done[place].params
        assert any(sum(drawn[name] != one.params[name] for name in drawn) <= 1 for one in (best, *done[:place]))


@pytest.mark.slow
def test_every_finished_trial_is_in_a_database_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _search_and_copy("sqlite:///studies.db")


@pytest.mark.slow
def test_every_finished_trial_is_in_postgresql_too(tmp_path, monkeypatch):
    pytest.importorskip("psycopg")
    monkeypatch.chdir(tmp_path)
    server = Postgres()
    try:
        monkeypatch.setenv("PGPASSWORD", server.PASSWORD)
        _search_and_copy(server.address)
        assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"s3cret" in path.read_bytes()]
    finally:
        server.remove()


def _search_and_copy(storage):
    words = [f"callbacks=[{FOLDER}/study_in_database.py:Copy]", "callbacks.Copy.log=run/study.log"]
    words += [
        f"callbacks.Copy.storage={storage}",
        "search.finalists=0",
        "space.pool=tiny.py:build",
        *TINY,
        "sampler=random",
    ]
    write_pool(Path.cwd())
    assert main(["search", *words, "search.trials=2", "folder=run"]) == 0
    storage = RDBStorage(storage, engine_kwargs={"poolclass": NullPool})
    before = _copied(storage)[:-1]  # as if the database had been away
    optuna.delete_study(study_name="search", storage=storage)
    copy = optuna.create_study(study_name="search", storage=storage, directions=["maximize", "minimize"])
    copy.add_trials(before)
    assert main(["search", *words, "search.trials=4", "resume=run"]) == 0
    ours = saved_study("run").trials
    assert len(ours) >= 4
    facts = [(one.number, one.state, one.values, one.params, one.user_attrs) for one in ours]
    assert [(one.number, one.state, one.values, one.params, one.user_attrs) for one in _copied(storage)] == facts


def _copied(storage):
    return optuna.load_study(study_name="search", storage=storage).trials


@pytest.mark.slow
def test_a_storage(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shared = ["search.trial_weights=shared", "search.warmup_steps=6"]
    for name, words in (("plain", []), ("packed", [f"relay.storage={FOLDER}/storage.py:Packed"])):
        assert main(["search", SPACE, *FEW, *shared, f"folder={name}", *words]) == 0
    ours, theirs = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("packed", "plain"))
    assert ours["best"] == theirs["best"]
    assert ours["finalists"] == theirs["finalists"]


@pytest.mark.slow
def test_optuna_chooses_settings_of_searches(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    search = l2l_nas.search
    small = {"trials": 1, "steps_per_trial": 1, "finalist_steps": 2, "export": False, "progress": False}
    small |= {"space": {"args": {"depth": 1, "channels": 4}}}
    monkeypatch.setattr(l2l_nas, "search", lambda space, **said: search(space, **said, **small))
    accuracy = runpy.run_path(str(ROOT / "examples" / "settings_by_optuna.py"))["accuracy"]
    study = optuna.create_study(direction="maximize")
    study.optimize(accuracy, n_trials=2)
    assert len({trial.params["learning_rate"] for trial in study.trials}) == 2
    assert sorted(path.name for path in (tmp_path / "runs" / "rates").iterdir()) == ["0", "1"]


@pytest.mark.slow
def test_a_notebook_runs_from_its_first_cell_to_its_last(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((ROOT / "examples" / "search.ipynb").read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells)
    names: dict = {}
    for cell in cells:
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert names["network"](torch.zeros(3, 2)).shape == (3, 2)
    assert len(names["result"].study.trials) >= 16
    assert "standard error" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.slow
def test_an_executor(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["search.trials=2", "search.steps_per_trial=3", "search.finalist_steps=6", "search.finalists=1"]
    words += ["export=false", "search.workers=2", f"executor={FOLDER}/executor.py:Command"]
    assert main(["search", SPACE, *words, "folder=run"]) == 0
    trials = [event for event in events(tmp_path / "run") if not event["cached"]]
    assert len({trial["worker"] for trial in trials}) == 2  # a process each
    assert all(trial["state"] == "complete" for trial in trials)
