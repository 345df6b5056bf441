"""Journals: what a kill, another program or an attacker may leave in one is read around, cut off or refused."""

from __future__ import annotations

import json
from functools import partial

import optuna
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState, create_trial

from l2l_nas.errors import StorageError
from l2l_nas.nas.study import journal
from l2l_nas.nas.study.journal import JournalFile
from l2l_nas.nas.study.reading import choices_of_trial, read_study
from tests.nas.problems import open_study, pool_of
from tests.nas.study.test_study import complete
from tests.studies import unchained

POOL = pool_of("tanh", "relu")


def add(storage, study_id, number=0):
    return storage.create_new_trial(study_id, create_trial(state=TrialState.COMPLETE, value=float(number)))


@pytest.fixture
def path(tmp_path):
    (tmp_path / "study.log").touch()
    return tmp_path / "study.log"


def test_optuna_s_own_backend_reads_what_ours_wrote_and_the_other_way_round(path):
    ours, theirs = (JournalStorage(backend) for backend in (JournalFile(path), JournalFileBackend(str(path))))
    study_id = ours.create_new_study([optuna.study.StudyDirection.MAXIMIZE], "search")
    for number, storage in enumerate((ours, theirs, ours)):
        add(storage, study_id, number)
    for storage in (ours, theirs, JournalStorage(JournalFile(path))):
        assert [trial.value for trial in storage.get_all_trials(study_id)] == [0.0, 1.0, 2.0]


def test_a_torn_last_line_is_left_out_and_cut_off_before_anything_is_appended(path):
    storage = JournalStorage(JournalFile(path))
    study_id = storage.create_new_study([optuna.study.StudyDirection.MAXIMIZE], "search")
    add(storage, study_id)
    other = JournalStorage(JournalFile(path))
    whole = path.read_bytes()
    for torn in (whole.splitlines()[-1][:40], b"x" * 200_000):
        path.write_bytes(path.read_bytes() + torn)
        before = path.read_bytes()
        count = other.get_n_trials(study_id)
        assert JournalStorage(JournalFile(path)).get_n_trials(study_id) == count
        assert path.read_bytes() == before  # reading changes nothing
        add(other, study_id, count)
        assert other.get_n_trials(study_id) == storage.get_n_trials(study_id) == count + 1
    path.write_bytes(b'{"half')
    JournalStorage(JournalFile(path)).create_new_study([optuna.study.StudyDirection.MAXIMIZE], "search")
    assert path.read_bytes().startswith(b'{"op_code":0')


def test_what_another_program_appends_while_we_do_stays(path, monkeypatch):
    ours = JournalStorage(JournalFile(path))
    study_id = ours.create_new_study([optuna.study.StudyDirection.MAXIMIZE], "search")
    theirs = JournalStorage(JournalFileBackend(str(path)))
    assert theirs.get_n_trials(study_id) == 0
    found_end = journal._go_behind_last_line

    def then_another(file):
        found_end(file)
        add(theirs, study_id, 1)

    monkeypatch.setattr(journal, "_go_behind_last_line", then_another)
    add(ours, study_id, 2)
    monkeypatch.undo()
    values = [trial.value for trial in JournalStorage(JournalFile(path)).get_all_trials(study_id)]
    assert values == [1.0, 2.0]


def changed(number, **values):
    """Change an event: the study's is 0, its directions' names 1, then space, goals and data, then trials."""

    def harm(lines):
        lines[number] = json.dumps({**json.loads(lines[number]), **values}).encode()

    return harm


def put(text, number=6):
    def harm(lines):
        lines[number] = text

    return harm


HARMS = {
    "no JSON": put(b"garbage"),
    "no text": put(b"\xff\xfe"),
    "no event": put(b"[1, 2]"),
    "no code": put(b"{}"),
    "a code that there is not": put(b'{"op_code": 99, "worker_id": "x"}'),
    "a code that is none": put(b'{"op_code": "4", "worker_id": "x"}'),
    "nested too deep": put(b"[" * 100_000 + b"]" * 100_000),
    "a number without end": put(b'{"op_code": 4, "value": ' + b"9" * 10_000 + b"}"),
    "a state that there is not": changed(6, state=77),
    "choices that are none": changed(6, distributions={"p0": "{}"}),
    "a class of the attacker's": changed(6, distributions={"p0": '{"name": "os.system", "attributes": {"x": "ls"}}'}),
    "no architecture": changed(6, user_attrs={}),
    "an architecture of numbers": changed(6, user_attrs={"architecture": [1, 2]}),
    "values of another number": changed(6, values=[1.0]),
    "a time that is none": changed(6, datetime_start="yesterday"),
    "other objectives": changed(0, directions=[2]),
    "goals that are none": changed(3, user_attr={"goals": 5}),
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
@pytest.mark.parametrize("read", ["report", "trial", "resume"])
def test_a_line_that_is_damaged_or_hostile_is_one_error_that_names_the_file(tmp_path, harm, read):
    study = open_study(tmp_path, POOL)
    for _ in range(3):
        complete(study)
    path = tmp_path / "study.log"
    lines = unchained(path.read_bytes()).splitlines()  # else the chain is what is wrong
    harm(lines)
    path.write_bytes(b"\n".join(lines) + b"\n")
    before = path.read_bytes()
    reads = {
        "report": partial(read_study, path),
        "trial": partial(choices_of_trial, path, 0),
        "resume": partial(open_study, tmp_path, POOL, resume=True),
    }
    if harm is HARMS["other objectives"] and read != "resume":
        return  # of three trials with two values each, Optuna says nothing
    with pytest.raises(StorageError) as caught:
        reads[read]()
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert path.read_bytes() == before


def test_a_line_without_end_is_not_read_into_memory(path, monkeypatch):
    monkeypatch.setattr(journal, "_MOST_LINE_BYTES", 1000)
    path.write_bytes(b'{"op_code": 0}\n' + b"x" * 5000)
    with pytest.raises(StorageError, match=r"study\.log: damaged, line 2 has no end"):
        list(JournalFile(path).read_logs(0))
