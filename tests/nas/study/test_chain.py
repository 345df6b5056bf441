"""The chain of a study's lines names what was lost, doubled, moved or changed; see [Note: chain] in `journal.py`."""

from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import optuna
import pytest
from optuna.distributions import IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState, create_trial

from l2l_nas.errors import StorageError
from l2l_nas.nas.study import journal
from l2l_nas.nas.study.journal import JournalFile, storage_of
from l2l_nas.nas.study.reading import read_study
from tests.nas.problems import open_study, pool_of
from tests.nas.study.test_study import complete
from tests.studies import saved_study, unchained

POOL = pool_of("tanh", "relu")


@pytest.fixture
def path(tmp_path):
    study = open_study(tmp_path, POOL)
    for _ in range(4):
        complete(study)
    return tmp_path / "study.log"


def put(path, lines):
    path.write_bytes(b"".join(lines))


def removed(lines, at):
    del lines[at : at + 1]


def removed_two(lines, at):
    del lines[at : at + 2]


def doubled(lines, at):
    lines.insert(at, lines[at])


def swapped(lines, at):
    lines[at : at + 2] = lines[at + 1], lines[at]


def moved_to_the_end(lines, at):
    lines.append(lines.pop(at))


def changed(lines, at):
    lines[at] = lines[at].replace(b'"worker_id":"', b'"worker_id":"0')


# what is said of the line at `at`, and how many lines behind it the line is that is named
HARMS = {
    removed: ("event {0} of the chain: lost", 0),
    removed_two: ("events {0} to {1} of the chain: lost", 0),
    doubled: ("event {0} of the chain is there twice", 1),
    swapped: ("event {0} of the chain stands behind event {1}", 0),
    moved_to_the_end: ("event {0} of the chain stands behind event {1}", 0),
    changed: ("it was changed", 0),
}


@pytest.mark.parametrize("at", [1, 3, 6])
@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("read", [read_study, lambda path: open_study(path.parent, POOL, resume=True)])
def test_a_line_that_was_lost_doubled_moved_or_changed_is_named(path, harm, at, read):
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) > 8
    harm(lines, at)
    put(path, lines)
    before = path.read_bytes()
    says, behind = HARMS[harm]
    with pytest.raises(StorageError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: damaged in line {at + 1 + behind}: {says.format(at + 1, at + 2)};")
    assert path.read_bytes() == before


def test_a_chain_that_was_changed_is_named(path):
    lines = path.read_bytes().splitlines(keepends=True)
    lines[-1] = lines[-1].replace(b'"chain":"', b'"chain":"x')
    put(path, lines)
    with pytest.raises(StorageError, match=f"line {len(lines)}: it was changed"):
        read_study(path)


@pytest.mark.parametrize("num_bytes", [1, 40])
@pytest.mark.parametrize("num_lines", [1, 2])
def test_a_tail_that_was_cut_reads_and_the_chain_goes_on_behind_it(path, num_bytes, num_lines):
    lines = path.read_bytes().splitlines(keepends=True)
    put(path, [*lines[:-num_lines], lines[-num_lines][:-num_bytes]])
    study = open_study(path.parent, POOL, resume=True)
    assert len(study.records) == 4 - num_lines
    complete(study)
    assert len(read_study(path).records) == 5 - num_lines
    after = path.read_bytes().splitlines(keepends=True)
    assert after[: len(lines) - num_lines] == lines[:-num_lines]
    assert all(b'"chain":' in line for line in after)


def test_a_file_that_is_cut_while_it_is_written_is_left_as_it_is(path):
    study = open_study(path.parent, POOL, resume=True)
    put(path, path.read_bytes().splitlines(keepends=True)[:-2])
    before = path.read_bytes()
    with pytest.raises(StorageError, match=r"study\.log: cut by another program"):
        complete(study)
    assert path.read_bytes() == before
    assert len(read_study(path).records) == 2


def test_a_journal_without_a_chain_reads_and_what_is_added_covers_it(path):
    path.write_bytes(unchained(path.read_bytes()))
    assert len(read_study(path).records) == 4
    old = path.read_bytes()
    for _ in range(2):
        complete(open_study(path.parent, POOL, resume=True))
    assert path.read_bytes().startswith(old)
    assert len(read_study(path).records) == 6
    for harm in (removed, doubled, swapped, changed):
        lines = path.read_bytes().splitlines(keepends=True)
        harm(lines, 5)
        (path.parent / "harmed").mkdir(exist_ok=True)
        put(path.parent / "harmed" / "study.log", lines)
        with pytest.raises(StorageError, match=r"it, or a line before it, was changed, lost or moved"):
            read_study(path.parent / "harmed" / "study.log")


def test_lines_of_another_program_are_read_and_break_no_chain(path):
    ours, theirs = storage_of(path), JournalStorage(JournalFileBackend(str(path)))
    (study,) = ours.get_all_studies()
    for number, storage in enumerate((theirs, ours, theirs, ours)):
        storage.set_study_user_attr(study._study_id, f"number {number}", number)
    assert [f"number {number}" in saved_study(path.parent).user_attrs for number in range(5)] == [True] * 4 + [False]
    assert len(read_study(path).records) == 4
    assert path.read_bytes().count(b'"chain":') == path.read_bytes().count(b"\n") - 2


def every_kind(storage):
    """Write an event of each kind; trials and attributes as they are then."""
    gone = storage.create_new_study([optuna.study.StudyDirection.MINIMIZE], "gone")
    storage.delete_study(gone)
    number = storage.create_new_study([optuna.study.StudyDirection.MAXIMIZE], "search")
    storage.set_study_user_attr(number, "a", {"chain": "of the user's"})
    storage.set_study_system_attr(number, "b", [1])
    storage.create_new_trial(number, create_trial(state=TrialState.COMPLETE, value=1.0))
    trial = storage.create_new_trial(number)
    storage.set_trial_param(trial, "x", 2, IntDistribution(0, 3))
    storage.set_trial_intermediate_value(trial, 1, 0.5)
    storage.set_trial_user_attr(trial, "chain", "of the user's")
    storage.set_trial_system_attr(trial, "d", None)
    storage.set_trial_state_values(trial, TrialState.COMPLETE, [2.0])


def test_optuna_ignores_the_chain_in_events_of_every_kind(tmp_path):
    path = tmp_path / "study.log"
    path.touch()
    every_kind(storage_of(path))
    codes = {json.loads(line)["op_code"] for line in path.read_bytes().splitlines()}
    assert codes == {
        one.value for one in optuna.storages.journal._storage.JournalOperation if one.name != "DISCARD_TRIALS"
    }
    assert path.read_bytes().count(b',"chain":"') == path.read_bytes().count(b"\n")
    found = []
    for content in (path.read_bytes(), unchained(path.read_bytes())):
        path.write_bytes(content)
        for storage in (JournalStorage(JournalFileBackend(str(path))), storage_of(path)):
            study = optuna.load_study(study_name="search", storage=storage)
            found.append((study.trials, study.user_attrs))
    assert len(found[0][0]) == 2
    assert all(one == found[0] for one in found)


def test_each_line_is_read_once_however_long_the_journal(path, monkeypatch):
    storage = storage_of(path)
    (study,) = storage.get_all_studies()
    loads, parsed = json.loads, []
    monkeypatch.setattr(journal.json, "loads", lambda line: parsed.append(line) or loads(line))
    for number in range(20):
        storage.set_study_user_attr(study._study_id, "number", number)
    assert len(parsed) == 20


def add(path, number):
    storage = storage_of(path)
    storage.set_study_user_attr(storage.get_all_studies()[0]._study_id, f"number {number}", number)


@pytest.mark.slow
def test_processes_that_take_turns_write_one_chain(path):
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as one, ProcessPoolExecutor(1, mp_context=context) as other:
        for number in range(4):
            (one, other)[number % 2].submit(partial(add, path, number)).result()
    found = saved_study(path.parent).user_attrs
    assert [found[f"number {number}"] for number in range(4)] == [0, 1, 2, 3]
    assert len(list(JournalFile(path).read_logs(0))) == path.read_bytes().count(b',"chain":"')
