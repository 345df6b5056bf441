"""A search whose study is in PostgreSQL: killed, resumed, without its database; other storages."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from l2l_nas.__main__ import main
from tests.cli.runs import TINY, environment, events, start
from tests.databases import Postgres, free_port

TRIALS = 14
WORDS = (
    "search",
    "space.pool=tiny.py:build",
    *TINY,
    f"search.trials={TRIALS}",
    "search.steps_per_trial=30",
    "search.trial_weights=fork",
    "sampler=random",
)


@pytest.fixture(scope="module")
def running_server():
    pytest.importorskip("psycopg")
    server = Postgres()
    yield server
    server.remove()


@pytest.fixture
def server(running_server):
    running_server.start()  # whatever the test before did to it
    return running_server


def read(path: Path):
    return json.loads(path.read_text())


@pytest.fixture
def study_of(server):
    """Looks at a study of the server."""
    url = server.url.replace("postgresql:", "postgresql+psycopg:")
    storage = optuna.storages.RDBStorage(url, engine_kwargs={"pool_pre_ping": True})  # the server comes and goes
    yield lambda name: optuna.load_study(study_name=name, storage=storage)
    storage.remove_session()
    storage.engine.dispose()


def attribute(trial, name: str):
    return trial.user_attrs.get(name)


def wait_for(test, *processes, seconds: float = 200):
    """Until it gives something; the processes are alive meanwhile."""
    deadline = time.monotonic() + seconds
    while not (found := test()):
        for process in processes:
            assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def check_study(study, folder: Path) -> None:
    """Every trial accounted for, none twice, nobody at work."""
    trials = study.trials
    assert [trial.number for trial in trials] == list(range(len(trials)))
    assert all(trial.state.is_finished() for trial in trials)
    fresh = [t for t in trials if t.state is TrialState.COMPLETE and not attribute(t, "cached")]
    assert len(fresh) == TRIALS
    assert max(Counter(attribute(trial, "digest") for trial in fresh).values()) == 1
    for event in events(folder):
        assert list(event["values"].values()) == (trials[event["number"]].values or [])
        assert event["architecture"] == attribute(trials[event["number"]], "architecture")
    assert study.user_attrs["driver"] is None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_study_in_a_database_has_one_driver_and_goes_on_after_a_kill(server, study_of, pool, tmp_path, refused):
    words = [*WORDS, f"search.storage={server.url}", "search.study=one", "search.steps_per_trial=400"]
    process = start(*words, "folder=run", cwd=tmp_path)
    wait_for(lambda: len(events(tmp_path / "run")) >= 2, process)
    study = study_of("one")
    assert study.user_attrs["driver"]["process"] == process.pid
    line = refused(*words, "folder=second")
    assert f"study 'one': process {process.pid} on {platform.node()} has been writing it since" in line
    assert server.PASSWORD not in line
    assert not (tmp_path / "second" / "config.yaml").exists()
    process.kill()
    process.communicate()
    study.set_user_attr("driver", {**study.user_attrs["driver"], "host": "another"})
    assert "on another has been writing it since" in refused(*words, "folder=second")
    study.set_user_attr("driver", None)  # as the line says
    assert main([*words, "folder=second", "search.trials=4"]) == 0  # another folder, perhaps another machine, goes on
    assert main([*words, "resume=run"]) == 0
    check_study(study, tmp_path / "run")
    assert (tmp_path / "run" / "best" / "manifest.json").exists()
    texts = [path.read_text(errors="ignore") for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not any(server.PASSWORD in text for text in texts)
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert f"storage: postgresql+psycopg://searcher@127.0.0.1:{server.port}/studies" in config


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_database_that_goes_down_is_waited_for_and_one_that_stays_down_is_a_clean_stop(
    server, study_of, pool, tmp_path
):
    words = [*WORDS, f"search.storage={server.public_url}", "search.study=down"]
    folder = tmp_path / "run"

    says = tmp_path / "says.txt"

    def run(*more: str) -> subprocess.Popen[str]:
        with says.open("w") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "l2l_nas", *words, "folder=run", *more],
                cwd=tmp_path,
                env={**environment(), "PGPASSWORD": server.PASSWORD, "PYTHONUNBUFFERED": "1"},
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
            )

    process = run("search.storage_retry_seconds=120")
    wait_for(lambda: len(events(folder)) >= 2, process)
    server.stop()
    wait_for(lambda: "the database does not answer, retrying" in says.read_text(), process)
    count = len(events(folder))
    server.start()
    wait_for(lambda: len(events(folder)) >= count + 2, process)  # it goes on by itself
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (130, ""), says.read_text() + err
    process = run("resume=run", "search.storage_retry_seconds=1")
    began = len(events(folder))
    wait_for(lambda: len(events(folder)) > began, process)
    server.stop()
    _, err = process.communicate(timeout=100)
    assert process.returncode == 2, says.read_text() + err
    assert err.count("\n") == 1
    assert re.match(rf"error: postgresql\+psycopg://searcher@127\.0\.0\.1:{server.port}/studies: ", err)
    again = "python -m l2l_nas search resume=run space.pool=tiny.py:build"
    assert f"what was finished stays; when the database is back, go on with: {again}" in err
    # while it is down, nothing can begin
    refused = run("resume=run")
    _, err = refused.communicate(timeout=100)
    assert refused.returncode == 2
    assert err.count("\n") == 1
    assert f"127.0.0.1:{server.port}" in err
    assert "cannot be opened" in err
    server.start()
    process = run("resume=run")
    _, err = process.communicate(timeout=280)
    assert (process.returncode, err) == (0, ""), says.read_text() + err
    check_study(study_of("down"), folder)


def proxy(backend: str, port: int) -> subprocess.Popen[bytes]:
    """Optuna's gRPC proxy, as a user starts it."""
    code = (
        "import warnings; warnings.simplefilter('ignore');"
        "from optuna.storages import get_storage, run_grpc_proxy_server;"
        f"run_grpc_proxy_server(get_storage({backend!r}), host='127.0.0.1', port={port})"
    )
    return subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["journal", "grpc"])
def test_a_study_in_a_journal_or_behind_a_grpc_proxy_goes_on(pool, tmp_path, kind):
    port = free_port()
    backend, url = f"sqlite:///{tmp_path / 'proxied.db'}", f"grpc://127.0.0.1:{port}"
    between = None
    if kind == "grpc":
        pytest.importorskip("grpc")
        between = proxy(backend, port)
    else:
        url = f"journal:///{tmp_path / 'study.log'}"
    try:
        words = [*WORDS, f"search.storage={url}", "search.study=both", "search.trial_weights=scratch"]
        words += ["search.steps_per_trial=4", "search.finalist_steps=8"]
        assert main([*words, "folder=run", "search.trials=5"]) == 0
        assert main([*words, "resume=run"]) == 0
    finally:
        if between is not None:
            between.kill()
            between.wait()
    if kind == "grpc":
        storage = optuna.storages.get_storage(backend)
    else:
        storage = optuna.storages.JournalStorage(
            optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.log"))
        )
    check_study(optuna.load_study(study_name="both", storage=storage), tmp_path / "run")


@pytest.mark.slow
def test_a_run_without_finalists_finishes_without_weights_and_says_so(refused, pool, tmp_path, capsys):
    words = [*WORDS, f"search.storage=sqlite:///{tmp_path / 's.db'}", "folder=run", "search.trials=3"]
    assert main([*words, "search.finalists=0", "export=true"]) == 0
    assert "no weights: search.finalists=0" in capsys.readouterr().out
    result = read(tmp_path / "run" / "result.json")
    assert result["best"]["trained"] is False
    assert {"accuracy", "parameters"} <= result["best"]["values"].keys()
    assert not (tmp_path / "run" / "export").exists()
    for command in ("evaluate", "export"):
        line = refused(command, "run=run", "space.pool=tiny.py:build")
        assert (
            "trained no finalists, so that it has no weights; go on with: "
            "python -m l2l_nas search resume=run space.pool=tiny.py:build search.finalists=1" in line
        )
    assert main([*words, "resume=run"]) == 0
    assert "trained" not in read(tmp_path / "run" / "result.json")["best"]
    assert main(["evaluate", "run=run", "space.pool=tiny.py:build"]) == 0


@pytest.mark.slow
def test_settings_that_make_no_sense_with_a_database_are_refused(refused, pool, tmp_path):
    words = [*WORDS, "folder=run", f"search.storage=sqlite:///{tmp_path / 's.db'}"]
    before = sorted(os.listdir(tmp_path))
    assert "search.storage_retry_seconds" in refused(*words, "search.storage_retry_seconds=-1")
    assert "search.study must name the study" in refused(*words, "search.study=''")
    assert "is no address" in refused(*words, "search.storage=nowhere")
    line = refused(*words, "search.storage=nothing://me:s3cret@h/x")
    assert "no storage 'nothing'" in line
    assert "s3cret" not in line
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.slow
def test_a_run_goes_on_only_where_its_study_is(refused, pool, tmp_path):
    words = [*WORDS, "search.trials=2"]
    url = f"search.storage=sqlite:///{tmp_path / 's.db'}"
    assert main([*words, "folder=own"]) == 0
    assert "this run has a study of its own" in refused(*words, url, "resume=own")
    assert main([*words, "folder=shared", url]) == 0
    assert main(["search", "space.pool=tiny.py:build", "resume=shared"]) == 0  # the folder knows where its study is
    assert "already holds a run" in refused(*words, url, "folder=shared")
    assert "the study of this run is in a database, and its last page is" in refused("report", "run=shared")
    assert (tmp_path / "shared" / "report.html").exists()
    assert "no such study any more" in refused(*words, url, "search.study=another", "resume=shared")
    line = refused(*words, url, "resume=shared", "search.steps_per_trial=3")
    assert "search.steps_per_trial=3: the run in shared has search.steps_per_trial=30 and must keep it" in line
    assert main(["search", "space.pool=tiny.py:build", "resume=shared", "search.trials=4"]) == 0
    assert read(tmp_path / "shared" / "result.json")["trials"]["complete"] == 4


@pytest.mark.slow
def test_a_study_goes_on_in_another_folder_unless_that_would_train_or_score_otherwise(refused, pool, tmp_path):
    words = [*WORDS, f"search.storage=sqlite:///{tmp_path / 's.db'}", "search.finalists=0"]
    assert main([*words, "search.trials=1", "folder=a"]) == 0
    shared = [*words, "search.study=weights", "search.trial_weights=shared", "search.trials=1"]
    assert main([*shared, "folder=w"]) == 0
    assert "its trials have trained weights that lie in another folder; go on there" in refused(*shared, "folder=v")
    assert main([*shared, "resume=w", "search.trials=2"]) == 0
    for said, differs in (
        ("optimizer.weight_decay=50", "optimizer.weight_decay: its default, not 50.0"),
        ("train.micro_batch=2", "train.micro_batch: its default, not 2"),
        ("relay.clip=0.1 relay.update=exact", "relay.clip: its default, not 0.1"),
        ("search.early_stop=halving", "search.early_stop: its default, not halving"),
    ):
        line = refused(*words, "folder=b", *said.split())
        assert f"this study's trials are scored with another {differs}; give the same value, or another " in line
    assert main([*words, "search.trials=2", "folder=c", "relay.slots=3"]) == 0


@pytest.mark.slow
def test_a_sweep_keeps_the_password_out_of_its_folder(server, pool, tmp_path, capsys):
    words = [*WORDS, f"search.storage={server.url}", "search.study=sweep${seed}", "search.trials=2", "folder=sweep"]
    assert main([*words, "-m", "seed=0,1"]) == 0
    texts = [path.read_text(errors="ignore") for path in (tmp_path / "sweep").rglob("*") if path.is_file()]
    assert any("searcher@127.0.0.1" in text for text in texts)
    assert not any(server.PASSWORD in text for text in (*texts, *capsys.readouterr()))
    assert "L2L_NAS_STORAGE_PASSWORD" not in os.environ
