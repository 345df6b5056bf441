"""One study, several processes: here several views of it in one process, on each kind of storage."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import optuna
import pytest
from optuna.trial import TrialState
from sqlalchemy.exc import OperationalError

from l2l_nas.eps.identity import space_of
from l2l_nas.errors import StorageError
from l2l_nas.nas.distributed.heartbeat import EVERY
from l2l_nas.nas.distributed.leases import Leases
from l2l_nas.nas.distributed.outbox import Outbox
from l2l_nas.nas.distributed.shared_study import worker_of
from l2l_nas.nas.objectives import State
from l2l_nas.nas.study.database import close_storage, open_storage, parse_address
from l2l_nas.nas.study.storage import LeaseAnswer, refuse_other
from tests.databases import free_port
from tests.nas.problems import GOALS, pool_of
from tests.nas.shares import VALUES, begin, complete, join, store_of

POOL = pool_of("tanh", "relu", "skip")
A = POOL.architecture(["linear", "tanh", "relu", "linear"])
B = POOL.architecture(["linear", "relu", "skip", "linear"])


@pytest.fixture(params=["sqlite", "journal", "grpc"])
def url(request, tmp_path):
    """Of a storage of each kind."""
    if request.param != "grpc":
        yield f"{request.param}:///{tmp_path / 'study.db'}"
        return
    pytest.importorskip("grpc")
    from optuna.storages._grpc.server import make_server  # the public function never returns

    backend = open_storage(parse_address(f"sqlite:///{tmp_path / 'study.db'}"))
    port = free_port()
    server = make_server(backend, "127.0.0.1", port, ThreadPoolExecutor(4))
    server.start()
    yield f"grpc://127.0.0.1:{port}"
    server.stop(None).wait()
    close_storage(backend)


def trials_of(url):
    storage = open_storage(parse_address(url))
    found = storage.get_all_trials(storage.get_study_id_from_name("search"))
    close_storage(storage)
    return found


def metric_names(url):
    storage = open_storage(parse_address(url))
    found = optuna.load_study(study_name="search", storage=storage).metric_names
    close_storage(storage)
    return found


def hear(study):
    return list(study.news())


@pytest.mark.slow
def test_processes_see_each_other_s_trials_and_evaluate_none_twice(url, tmp_path):
    one, two = (join(url, tmp_path / name, POOL) for name in ("one", "two"))
    trial, verdict = begin(one, A)
    assert verdict is LeaseAnswer.OURS
    assert begin(two, A)[1] is LeaseAnswer.TAKEN
    assert hear(two)[0].reason == "evaluated as trial 0"  # the lease that was withdrawn
    assert two.elsewhere == {A}
    record = one.tell(trial, A, state="complete", values=VALUES, seconds=1.5, attributes={"loss": 0.25})
    assert (record.number, record.state, record.elsewhere) == (0, "complete", False)
    last_beats = hear(two)
    assert [(r.number, r.architecture, r.values, r.seconds, r.elsewhere) for r in last_beats] == [
        (0, A, VALUES, 1.5, True)
    ]
    assert not two.elsewhere
    assert (one.num_evaluated, two.num_evaluated) == (1, 1)
    assert complete(two, B).number == 2
    assert [r.number for r in hear(one)] == [1, 2]
    assert hear(one) == []
    assert one.by_number == two.by_number or {r.number for r in one.records} == {r.number for r in two.records}
    for study in (one, two):
        study.close()
    saved = trials_of(url)
    assert [t.state for t in saved] == [TrialState.COMPLETE, TrialState.PRUNED, TrialState.COMPLETE]
    assert saved[0].values == [0.5, 30.0]
    assert saved[0].user_attrs["metric_loss"] == 0.25
    assert saved[0].user_attrs["seconds"] == 1.5
    assert metric_names(url) == [goal.name for goal in GOALS]
    assert saved[0].user_attrs["result"] == "COMPLETE"
    assert saved[1].user_attrs["withdrawn"]
    assert saved[1].user_attrs["reason"] == "evaluated as trial 0"
    later = join(url, tmp_path / "three", POOL)
    assert [(r.number, r.state, r.cached) for r in later.records] == [
        (0, "complete", False), (1, "pruned", True), (2, "complete", False),
    ]  # fmt: skip
    later.close()


def test_leases_taken_at_the_same_moment_are_one_each(url, tmp_path):
    studies = [join(url, tmp_path / str(number), POOL) for number in range(3)]
    barrier = threading.Barrier(3)

    def race(study):
        barrier.wait()
        return begin(study, A)[1]

    with ThreadPoolExecutor(3) as threads:
        verdicts = list(threads.map(race, studies))
    assert sorted(v.name for v in verdicts) == ["OURS", "TAKEN", "TAKEN"]
    for study in studies:
        study.close()


def test_the_total_asked_for_is_never_exceeded(url, tmp_path):
    one, two = (join(url, tmp_path / name, POOL, trials=1) for name in ("one", "two"))
    trial, verdict = begin(one, A)
    assert verdict is LeaseAnswer.OURS
    assert begin(two, B)[1] is LeaseAnswer.FULL
    one.tell(trial, A, state="failed", reason="NaN")
    assert begin(two, B)[1] is LeaseAnswer.FULL
    assert hear(two)[0].reason == "NaN"
    for study in (one, two):
        study.close()


def silence(store, number):
    """What the heartbeat would find after a while."""
    store._heartbeat._last_beats = {number: (None, 1e9, 60.0)}


@pytest.mark.slow
def test_the_trial_of_a_dead_process_is_lost_once_and_evaluated_again_once(url, tmp_path):
    dead = store_of(url, tmp_path / "dead")
    dying = join(url, tmp_path / "dead", POOL, store=dead)
    trial, _ = begin(dying, A)
    stores = [store_of(url, tmp_path / name) for name in ("one", "two")]
    one, two = (join(url, tmp_path / "x", POOL, store=store) for store in stores)
    for store in stores:
        silence(store, 0)
    assert [(r.number, r.state) for r in hear(one)] == [(0, "lost")]
    silence(stores[1], 0)  # the other noticed as well
    assert [(r.number, r.state) for r in hear(two)] == [(0, "lost")]
    assert one.to_retry() == two.to_retry() == [A]
    again, verdict = begin(one, A)
    assert verdict is LeaseAnswer.OURS
    assert begin(two, A)[1] is LeaseAnswer.TAKEN
    hear(two)
    assert two.to_retry() == []
    # the dead one was only slow
    late = dying.tell(trial, A, state="complete", values={"accuracy": 0.9, "parameters": 1.0})
    assert (late.number, late.state, late.values) == (0, "lost", {})
    assert one.tell(again, A, state="complete", values=VALUES).number == 1
    hear(dying)
    for study in (one, two, dying):
        hear(study)
        assert [r.state for r in study.by_number if not r.cached] == ["lost", "complete"]
        assert study.num_evaluated == 1
        study.close()
    saved = trials_of(url)
    assert [t.user_attrs.get("retry_of") for t in saved] == [None, 0, 0]
    assert saved[0].user_attrs["lost"] == "its process gave no sign of life for 60 s"
    assert [t.values for t in saved if t.state is TrialState.COMPLETE] == [[0.5, 30.0]]


def test_a_retry_is_not_forgotten_if_whoever_noticed_the_loss_dies_too(tmp_path):
    url = f"sqlite:///{tmp_path / 'study.db'}"
    dying = join(url, tmp_path / "dead", POOL)
    begin(dying, A)
    noticing = store_of(url, tmp_path / "noticing")
    study = join(url, tmp_path / "noticing", POOL, store=noticing)
    silence(noticing, 0)
    hear(study)  # and no more of it
    fresh = join(url, tmp_path / "fresh", POOL)
    assert fresh.to_retry() == [A]


def test_an_architecture_that_kills_three_processes_is_given_up(tmp_path):
    url = f"sqlite:///{tmp_path / 'study.db'}"
    for number in range(3):
        study = join(url, tmp_path / "same", POOL)  # a restart of the same run frees its trial at once
        assert study.given_up(A) is False
        assert [r.state for r in study.records] == ["lost"] * number
        assert begin(study, A)[1] is LeaseAnswer.OURS
        study._store._heartbeat.close()
    study = join(url, tmp_path / "same", POOL)
    assert study.given_up(A)
    assert study.to_retry() == []
    assert study.records[-1].reason == "its process was started again"
    assert begin(study, A)[1] is LeaseAnswer.TAKEN
    assert study.num_evaluated == 0
    study.close()


def test_a_process_that_is_stopped_frees_its_trials_at_once(url, tmp_path):
    one, two = (join(url, tmp_path / name, POOL) for name in ("one", "two"))
    begin(one, A)
    hear(two)
    one.close()
    assert [(r.state, r.reason) for r in hear(two)] == [("lost", "its process was stopped")]
    assert two.to_retry() == [A]
    assert not two.elsewhere
    two.close()


class Away:
    """A storage whose database is away for so many calls of some methods."""

    def __init__(self, storage, times, methods, *, after=False) -> None:
        self._storage, self.times, self._methods, self._after = storage, times, methods, after

    def __getattr__(self, name):
        real = getattr(self._storage, name)
        if name not in self._methods:
            return real

        def call(*words, **options):
            if self.times <= 0:
                return real(*words, **options)
            self.times -= 1
            if self._after:
                real(*words, **options)  # it came through; the answer did not
            raise OperationalError("x", {}, Exception("server closed the connection"))

        return call


WRITES = ("create_new_trial", "set_trial_user_attr", "set_trial_state_values", "get_all_trials")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("method", WRITES)
def test_a_database_that_goes_away_at_any_call_loses_and_doubles_nothing(tmp_path, method, after):
    url = f"sqlite:///{tmp_path / 'study.db'}"
    store = store_of(url, tmp_path / "one")
    study = join(url, tmp_path / "one", POOL, store=store)
    store._storage = Away(store._storage, 1, (method,), after=after)
    trial, verdict = begin(study, A)
    assert verdict is LeaseAnswer.OURS
    store._storage.times = 1
    record = study.tell(trial, A, state="complete", values=VALUES)
    assert record.state == "complete"
    store._storage.times = 1
    hear(study)
    assert not (tmp_path / "one" / "pending.jsonl").exists()
    refused, _ = study.ask()
    store._storage.times = 1
    study.tell(refused, B, state="pruned", reason="too large")
    hear(study)
    study.close()
    finished = [t for t in trials_of(url) if "withdrawn" not in t.user_attrs]
    assert [t.state for t in finished if t.state is TrialState.COMPLETE] == [TrialState.COMPLETE]
    assert all(t.state.is_finished() for t in finished)
    assert study.num_evaluated == 1


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("method", ["create_new_trial", "get_all_trials", "get_trial_id_from_study_id_trial_number"])
def test_a_lease_has_its_heartbeat_whichever_answer_was_lost(tmp_path, method, after):
    url = f"sqlite:///{tmp_path / 'study.db'}"
    store = store_of(url, tmp_path / "one")
    study = join(url, tmp_path / "one", POOL, store=store)
    store._storage = Away(store._storage, 1, (method,), after=after)
    trial, verdict = begin(study, A)
    assert verdict is LeaseAnswer.OURS
    assert 0 in store._heartbeat._ours
    assert trials_of(url)[0].system_attrs[EVERY] == store._heartbeat.interval
    store._storage.times = 0
    study.tell(trial, A, state="complete", values=VALUES)
    assert not store._heartbeat._ours
    study.close()


def test_a_result_that_cannot_be_delivered_waits_in_the_folder_and_is_delivered_on_resume(url, tmp_path):
    store = store_of(url, tmp_path / "one", retry_seconds=0.2)
    study = join(url, tmp_path / "one", POOL, store=store)
    trial, _ = begin(study, A)
    store._storage = Away(store._storage, 10**9, WRITES)
    said = []
    store.patience.waiting = said.append
    study.tell(trial, A, state="complete", values=VALUES, weights={"kind": "fork"})
    assert json.loads((tmp_path / "one" / "pending.jsonl").read_text())["values"] == [0.5, 30.0]
    with pytest.raises(StorageError, match=r"server closed the connection.* what was finished stays.*resume="):
        hear(study)
    assert said
    study.close()
    assert trials_of(url)[0].state is TrialState.RUNNING
    again = join(url, tmp_path / "one", POOL, is_known=True)
    assert [(r.number, r.state, r.values, r.weights) for r in again.records] == [
        (0, "complete", VALUES, {"kind": "fork"})
    ]
    assert not (tmp_path / "one" / "pending.jsonl").exists()
    again.close()


@pytest.mark.parametrize("is_retried", [False, True])
def test_a_result_that_comes_after_its_trial_was_lost_counts_if_nobody_has_begun_again(tmp_path, is_retried):
    url = f"sqlite:///{tmp_path / 'study.db'}"
    store = store_of(url, tmp_path / "one", retry_seconds=0.0)
    study = join(url, tmp_path / "one", POOL, store=store)
    trial, _ = begin(study, A)
    store._storage = Away(store._storage, 10**9, WRITES)
    study.tell(trial, A, state="complete", values=VALUES)
    store._heartbeat.close()
    other_store = store_of(url, tmp_path / "two")
    other = join(url, tmp_path / "two", POOL, store=other_store)
    silence(other_store, 0)
    hear(other)
    if is_retried:
        assert begin(other, A)[1] is LeaseAnswer.OURS
    again = join(url, tmp_path / "one", POOL, is_known=True)
    states = [(r.number, r.state) for r in again.records]
    assert states == [(0, "lost")] if is_retried else [(0, "lost"), (1, "complete")]
    assert not (tmp_path / "one" / "pending.jsonl").exists()
    assert [r.number for r in hear(other)] == ([] if is_retried else [1])
    for one in (other, again):
        one.close()


def test_another_search_is_refused_and_a_lost_study_is_named(url, tmp_path):
    first = join(url, tmp_path / "one", POOL)
    found = first._store._storage.get_study_user_attrs(first._store._study_id)
    first.close()
    with pytest.raises(StorageError, match=r"study 'search': this study searches another space"):
        join(url, tmp_path / "two", pool_of("tanh", depth=6))
    with pytest.raises(StorageError, match="there is no such study any more"):
        join(url, tmp_path / "three", POOL, name="other", is_known=True)
    store = store_of(url, tmp_path / "four")
    with pytest.raises(
        StorageError, match=r"with another seed: 0, not 1; give the same value, or another search\.study"
    ):
        store.open({**found, "scoring": {"seed": 1}}, first._memory.directions)


@pytest.mark.slow
def test_a_copy_of_a_run_s_folder_is_another_run_and_takes_no_trial_of_the_first(tmp_path):
    url = f"sqlite:///{tmp_path / 'study.db'}"
    one = join(url, tmp_path / "one", POOL)
    begin(one, A)
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    copy = join(url, tmp_path / "copy", POOL)
    assert [t.state for t in trials_of(url)] == [TrialState.RUNNING]
    copy.close()
    one._store._heartbeat.close()  # killed
    again = join(url, tmp_path / "one", POOL)
    assert [t.state for t in trials_of(url)] == [TrialState.FAIL]
    again.close()


def test_a_run_of_before_keeps_its_name(tmp_path):
    (tmp_path / "worker").write_text("0123456789abcdef" * 2 + "\n")
    assert [worker_of(tmp_path) for _ in range(2)] == ["0123456789abcdef" * 2] * 2


@pytest.mark.parametrize("scheme", ["sqlite", "journal"])
def test_a_run_that_goes_on_from_another_folder_is_told_so_and_makes_no_file_there(tmp_path, monkeypatch, scheme):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StorageError) as caught:
        join(f"{scheme}:///study.db", tmp_path / "run", POOL, is_known=True)
    assert str(caught.value) == (
        f"{scheme}:///study.db: {tmp_path / 'study.db'} is not there; restore it, or say search.storage= again; "
        "the address counts from the current folder, so you may have begun in another"
    )
    assert not (tmp_path / "study.db").exists()
    with pytest.raises(StorageError, match=r"is not there; restore it, or say search\.storage= again$"):
        join(f"{scheme}:///{tmp_path}/study.db", tmp_path / "run", POOL, is_known=True)


@pytest.mark.parametrize(
    ("others", "ours", "said"),
    [
        ({"relay.clip": "1.0"}, {}, "relay.clip: 1.0, not its default"),
        ({}, {"relay.clip": "1.0"}, "relay.clip: its default, not 1.0"),
        ({"relay.clip": "1.0"}, {"relay.clip": "1.0"}, ""),
        (None, {"relay.clip": "1.0"}, ""),  # a study of before does not tell
    ],
)
def test_what_is_not_as_it_comes_is_compared_where_the_study_tells_of_it(others, ours, said):
    same = {"space": space_of(POOL), "data": "data", "goals": []}
    found = {**same, "scoring": {"seed": 0} if others is None else {"seed": 0, "others": others}}
    identity = {**same, "scoring": {"seed": 0, "others": ours}}
    with pytest.raises(StorageError, match=said) if said else contextlib.nullcontext():
        refuse_other("here", found, identity)


@pytest.mark.slow
def test_a_study_of_another_program_is_refused(url, tmp_path):
    storage = open_storage(parse_address(url))
    study_id = storage.create_new_study([optuna.study.StudyDirection.MAXIMIZE] * 2, "search")
    storage.create_new_trial(study_id)
    with pytest.raises(StorageError, match=r"made by another program; choose another name by search\.study"):
        join(url, tmp_path / "one", POOL)
    close_storage(storage)


def test_a_study_whose_maker_was_killed_before_it_was_whole_is_made_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("l2l_nas.nas.distributed.shared_study._MAKING_SECONDS", 0.2)
    url = f"journal:///{tmp_path / 'study.log'}"
    storage = open_storage(parse_address(url))
    storage.create_new_study([optuna.study.StudyDirection.MAXIMIZE, optuna.study.StudyDirection.MINIMIZE], "search")
    study = join(url, tmp_path / "one", POOL)
    assert complete(study, A).number == 0
    study.close()
    join(url, tmp_path / "two", POOL).close()


def test_trials_that_others_have_put_into_the_queue_are_left_alone(tmp_path):
    url = f"sqlite:///{tmp_path / 'study.db'}"
    study = join(url, tmp_path / "one", POOL)
    optuna.load_study(study_name="search", storage=url).enqueue_trial({"p0": "tanh", "p1": "relu"})
    assert hear(study) == []
    assert complete(study, A).number == 1
    study.close()


@pytest.mark.parametrize("sampler", ["random", "tpe", "nsga2", "gp_hamming", "evolution", "local"])
def test_samplers_learn_from_others_and_do_not_propose_the_same(tmp_path, sampler):
    pool = pool_of("tanh", "relu", "skip", "wide", depth=8)
    url = f"journal:///{tmp_path / 'study.log'}"
    one, two = (join(url, tmp_path / name, pool, sampler=sampler, trials=60) for name in ("one", "two"))
    seen = []
    for number in range(30):
        study = (one, two)[number % 2]
        hear(study)
        trial, architecture = study.ask()
        seen.append(architecture)
        verdict = study.lease(trial, architecture)
        if verdict is LeaseAnswer.OURS:
            score = architecture.choices.count("wide") / 10
            study.tell(trial, architecture, state="complete", values={"accuracy": score, "parameters": 1.0})
    assert seen[:10:2] != seen[1:10:2]
    hear(one)
    hear(two)
    known = [{t.values[0]: t.params for t in s._memory.trials if t.values} for s in (one, two)]
    assert known[0] == known[1]
    for study in (one, two):
        study.close()


def test_the_name_of_a_run_stays_with_its_folder(tmp_path):
    url = f"sqlite:///{tmp_path / 'study.db'}"
    first, again, other = (store_of(url, tmp_path / name) for name in ("one", "one", "two"))
    assert first.seed_offset == again.seed_offset != other.seed_offset
    (tmp_path / "one" / "worker").write_text("../../etc")
    assert store_of(url, tmp_path / "one").seed_offset not in (first.seed_offset, other.seed_offset)


@pytest.mark.timeout(60)
def test_a_pipe_in_place_of_a_run_s_own_files_is_refused(tmp_path):
    for name, read in (("worker", lambda path: worker_of(path.parent)), ("pending.jsonl", Outbox)):
        os.mkfifo(tmp_path / name)
        with pytest.raises(StorageError, match=name):
            read(tmp_path / name)


def test_a_running_trial_of_another_stays_known_whoever_withdraws_a_second_lease_on_it(tmp_path):
    url = f"journal:///{tmp_path / 'study.log'}"
    one, two, three = (join(url, tmp_path / name, POOL) for name in ("one", "two", "three"))
    begin(one, A)
    hear(three)
    verdict = Leases.verdict
    # the third one reads while the second one's lease is there and not withdrawn yet
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Leases, "verdict", lambda *args, **kwargs: (hear(three), verdict(*args, **kwargs))[1])
        assert begin(two, A)[1] is LeaseAnswer.TAKEN
    hear(three)
    assert list(three.elsewhere) == [A]
    for study in (one, two, three):
        study.close()


def test_a_sampler_knows_the_same_of_another_s_trial_whenever_it_was_heard_of(tmp_path):
    url = f"journal:///{tmp_path / 'study.log'}"
    one, early, late = (join(url, tmp_path / name, POOL) for name in ("one", "early", "late"))
    ends = {"stopped": "stopped early", "failed": "loss is not finite", "complete": ""}
    paths = [
        POOL.architecture(["linear", *names, "linear"])
        for names in (("tanh", "relu"), ("relu", "relu"), ("skip", "relu"))
    ]
    for architecture, (state, reason) in zip(paths, ends.items(), strict=True):
        trial, _ = begin(one, architecture)
        hear(early)
        one.tell(
            trial, architecture, state=State.of(state), reason=reason, values=VALUES if state == "complete" else None
        )
    hear(early)
    hear(late)
    names = ("stopped", "reason", "cached")
    seen = [
        [{name: trial.user_attrs.get(name) for name in names} for trial in study._memory.trials]
        for study in (early, late)
    ]
    assert seen[0] == seen[1]
    assert [attributes["reason"] for attributes in seen[0]] == ["stopped early", "loss is not finite", None]
    for study in (one, early, late):
        study.close()


def test_a_trial_that_was_finished_while_another_took_it_for_lost_is_complete(tmp_path):
    url = f"journal:///{tmp_path / 'study.log'}"
    one = join(url, tmp_path / "one", POOL)
    trial, _ = begin(one, A)
    storage = open_storage(parse_address(url))
    study_id = storage.get_study_id_from_name("search")
    storage.set_trial_user_attr(storage.get_trial_id_from_study_id_trial_number(study_id, 0), "lost", "silent")
    one.tell(trial, A, state=State.COMPLETE, values=VALUES)
    one.close()
    close_storage(storage)
    later = join(url, tmp_path / "two", POOL)
    assert [(r.state, r.reason) for r in later.records] == [("complete", "")]
    later.close()
