"""optuna-dashboard (the extra `dashboard`) opens a run's study: its page, and the trials it asks for."""

from __future__ import annotations

import io
import json
from wsgiref.util import setup_testing_defaults

import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from l2l_nas.__main__ import main
from l2l_nas.nas.study.reading import read_study
from tests.cli.runs import TINY

dashboard = pytest.importorskip("optuna_dashboard")
pytestmark = pytest.mark.cluster


def fetch(app, path: str, query: str = "") -> bytes:
    """One request to the program itself, without a port."""
    environ = {"PATH_INFO": path, "QUERY_STRING": query, "wsgi.input": io.BytesIO()}
    setup_testing_defaults(environ)
    answers = []
    body = b"".join(app(environ, lambda status, headers, *_: answers.append(status)))
    assert answers[0].startswith("200"), answers
    return body


@pytest.mark.filterwarnings("ignore")  # what another program warns of is no failure of ours
@pytest.mark.parametrize("grows", [False, True])
def test_the_dashboard_shows_every_trial_of_a_run(finished, grows):
    if grows:
        pool = finished.parent / "tiny.py"
        pool.write_text(pool.read_text().replace('"relu": nn.ReLU', '"gelu": nn.GELU'))
        assert main(["search", "space.pool=tiny.py:build", *TINY, "search.trials=16", "resume=run"]) == 0
    app = dashboard.wsgi(JournalStorage(JournalFileBackend(str(finished / "study.log"))))
    assert b"Optuna Dashboard" in fetch(app, "/dashboard/")
    (study,) = json.loads(fetch(app, "/api/studies"))["study_summaries"]
    assert (study["study_name"], study["directions"]) == ("search", ["maximize", "minimize"])
    shown = json.loads(fetch(app, f"/api/studies/{study['study_id']}", "after=0"))["trials"]
    records = read_study(finished / "study.log").records
    assert [trial["number"] for trial in shown] == [record.number for record in records]
    for trial, record in zip(shown, records, strict=True):
        assert trial["values"] == list(record.values.values())
        chosen = {item["name"]: item["param_external_value"] for item in trial["params"]}
        assert chosen.keys() == {"layer0", "layer1", "layer2", "layer3"}
