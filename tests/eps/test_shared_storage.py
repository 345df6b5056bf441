"""States that several processes share: no torn read, no lost update, nothing half written by a killed process."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
import torch

from l2l_nas import AdamW, ParamServer
from l2l_nas.eps.shared_storage import SharedStorage
from l2l_nas.eps.state import LayerState, Part, first_state
from l2l_nas.errors import SpaceError, StorageError
from l2l_nas.nas.evaluation.evaluator import WeightProvenance
from tests.eps.hammer import KEYS, POOL, WORKERS, Hammer, checksum, checksums, server_on, step, trained_on, update
from tests.toys import dense_pool


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # for the server that processes are forked from


@pytest.fixture
def storage():
    made = SharedStorage(POOL, optimizer=AdamW(), workers=WORKERS)
    yield made
    made.close()


def copy_of(storage: SharedStorage, key: str) -> LayerState:
    with storage.reading(key, Part.ALL) as state:
        return state.clone()


@pytest.mark.slow
def test_many_processes_update_one_storage_and_no_read_is_torn_and_no_update_lost(storage):
    each = 200
    hammers = [Hammer("write", storage, each) for _ in range(3)]
    hammers.append(Hammer("read", storage, 3 * each))
    said = [hammer.report() for hammer in [hammer.go() for hammer in hammers]]
    seen = said.pop()
    made = {key: sum(one["made"][key] for one in said) for key in KEYS}
    assert sum(made.values()) == 3 * each
    known = checksums(max(made.values()))
    assert seen["torn"] == []
    assert [found for found in seen["seen"] if known[found[0], found[1]] != found[2]] == []
    assert len({visits for _, visits, _ in seen["seen"]}) > 10
    for key in KEYS:
        state = copy_of(storage, key)
        assert state.visits == made[key]
        assert state.steps.tolist() == [made[key]] * len(state.steps)
        assert checksum(state) == known[key, made[key]]


@pytest.mark.parametrize("part", ["BUFFERS", "ALL"])
@pytest.mark.parametrize("who", ["a reader", "a writer", "recover"])
def test_a_state_that_a_killed_process_was_changing_is_as_it_was_before(storage, part, who):
    server = server_on(storage)
    server.prepare(KEYS)
    update(server, KEYS[0])
    before = copy_of(storage, KEYS[0])
    Hammer("half", storage, part).go().killed()
    assert any(storage._mark)
    if who == "recover":
        storage.recover(3)  # another's
        assert any(storage._mark)
        storage.recover(1)
        assert not any(storage._mark)
    if who == "a writer":
        with storage.writing(KEYS[0]):
            pass
    after = copy_of(storage, KEYS[0])
    assert checksum(after) == checksum(before)
    assert torch.equal(after.buffers, before.buffers)
    assert (after.visits, after.version) == (before.visits, before.version)


@pytest.mark.parametrize("updates", [2, 3])
def test_a_held_step_that_is_killed_in_an_update_leaves_each_state_as_an_update_made_it(storage, updates):
    Hammer("half_step", storage, updates).go().killed()
    assert any(storage._mark)
    alone = trained_on(None)
    step(alone, ["a", "c"], 0)
    before = {key: alone.server.state(key).clone() for key in ("first/a", "last/c")}
    step(alone, ["a", "c"], 1)
    # the last layer is updated first; buffers are stored at the end of a step
    last = alone.server.state("last/c") if updates == 3 else before["last/c"]
    for key, expected in {"first/a": before["first/a"], "last/c": last}.items():
        state = copy_of(storage, key)
        assert checksum(state) == checksum(expected)
        assert state.visits == expected.visits
        assert torch.equal(state.buffers, before[key].buffers)
    step(trained_on(storage), ["a", "c"], 2)
    assert copy_of(storage, "first/a").visits == 2


def test_processes_that_take_held_steps_lose_no_update(storage):
    hammers = [Hammer("train", storage, 30).go() for _ in range(2)]
    said = [hammer.report() for hammer in hammers]
    assert [one["ops"] for one in said] == [["check", "tail", "update"]] * 2
    for key in KEYS:
        state, made = copy_of(storage, key), sum(one["made"][key] for one in said)
        assert state.visits == made
        assert state.steps.tolist() == [made] * len(state.steps)
        assert state.weights.view(torch.float32).isfinite().all()


def test_kills_at_random_moments_leave_whole_states(storage):
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    rng = random.Random(seed)
    server = server_on(storage)
    server.prepare(KEYS)
    hammers = [Hammer("forever", storage) for _ in range(4)]
    for hammer in hammers:
        assert hammer.go().talk.recv() == "begun"
    for hammer in hammers:
        time.sleep(rng.uniform(0.0, 0.1))
        hammer.killed()
    visits = {key: copy_of(storage, key).visits for key in KEYS}
    assert sum(visits.values()) > 0
    known = checksums(max(visits.values()))
    for key in KEYS:
        state = copy_of(storage, key)
        assert checksum(state) == known[key, state.visits]
        update(server, key)  # no lock is left behind
        assert copy_of(storage, key).visits == visits[key] + 1


def test_a_state_never_used_takes_no_memory_and_nothing_has_a_name():
    storage = SharedStorage(dense_pool(width=512, depth=8), optimizer=AdamW(), workers=3)
    about = os.stat(storage.address)
    assert about.st_size > 40 << 20
    assert about.st_blocks * 512 < 1 << 16
    assert not list(Path("/dev/shm").glob("*l2l*"))
    storage.close()


def test_training_on_it_equals_training_in_memory(storage):
    ram, shared = ParamServer(POOL, optimizer=AdamW(), seed=0), server_on(storage)
    for server in (ram, shared):
        server.prepare(KEYS)
        for _ in range(3):
            update(server, KEYS[1])
    assert checksum(ram.state(KEYS[1])) == checksum(shared.state(KEYS[1]))
    assert shared.state(KEYS[1]).visits == 3


def test_what_a_trial_is_scored_with_does_not_change_while_others_train(storage):
    server = server_on(storage)
    server.prepare(KEYS)
    path = POOL.architecture(["a", "c"])
    snapshot = server.snapshot(KEYS)
    ledger = WeightProvenance()
    before = ledger.entry("shared", snapshot, path)
    weights = snapshot.state("first/a").weights.clone()
    for _ in range(2):
        update(server, "first/a")
    assert ledger.entry("shared", snapshot, path) == before
    assert torch.equal(snapshot.state("first/a").weights, weights)
    after = ledger.entry("shared", server.snapshot(KEYS), path)
    assert after["visits"] == [2, 0]
    assert after["crc32"][:8] != before["crc32"][:8]
    assert after["crc32"][8:] == before["crc32"][8:]


def test_versions_of_different_processes_are_different(storage):
    server = server_on(storage)
    update_by = []
    server.prepare(KEYS)
    for _ in range(2):
        Hammer("write", storage, 40).go().report()
        update_by.append({copy_of(storage, key).version >> 40 for key in KEYS})
    assert update_by == [{1}, {2}]


def test_another_pool_is_refused(storage):
    with pytest.raises(SpaceError, match="build the same pool"):
        SharedStorage(dense_pool(), optimizer=AdamW(), workers=WORKERS, address=storage.address)


def test_a_storage_that_is_gone_is_refused_and_one_process_more_than_was_said(monkeypatch):
    monkeypatch.setattr("l2l_nas.eps.shared_storage._WAIT_S", 0.0)
    with pytest.raises(StorageError, match=r"the weights that trials share are gone .*: their search has ended"):
        SharedStorage(POOL, optimizer=AdamW(), workers=2, address="/proc/self/fd/9999")
    made = SharedStorage(POOL, optimizer=AdamW(), workers=1)
    with pytest.raises(StorageError, match="more than 0 processes want to share weights"):
        SharedStorage(POOL, optimizer=AdamW(), workers=1, address=made.address)
    made.close()


def test_a_first_state_is_put_once_and_all_agree_on_it(storage):
    one, other = server_on(storage), server_on(storage)
    one.prepare(KEYS)
    update(one, KEYS[0])
    storage.put_new(KEYS[0], first_state(POOL, KEYS[0], layout=one.whole_layout(KEYS[0]), seed=0))
    other.prepare(KEYS)
    assert copy_of(storage, KEYS[0]).visits == 1
