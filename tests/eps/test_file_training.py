"""Training with states in files equals training with states in memory, bit for bit."""

from __future__ import annotations

import contextlib
import signal
import threading
from pathlib import Path

import pytest
import torch

from l2l_nas import SGD, AdamW, LayerPool, ParamServer, Relay, UniformPaths
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.file_storage import FileStorage
from l2l_nas.eps.frames import Frame
from l2l_nas.eps.scale import Clip
from l2l_nas.eps.state import Part
from l2l_nas.eps.storage import RamStorage
from l2l_nas.errors import L2LError, StorageError
from tests.eps.disks import make_rough
from tests.nursery import Nursery
from tests.products import every_pair
from tests.relay.stress import ORDERS, Stress, relay_under
from tests.toys import NextToken, SquaredError, dense_pool, language_pool, random_data, repeated_pool

POOLS = {"dense": dense_pool, "tied": language_pool, "repeated": repeated_pool}


def train(pool: LayerPool, storage, *, steps: int = 8, optimizer=None, between=None, **options):
    """Losses and all states at the end; another random architecture each step."""
    server = ParamServer(pool, optimizer=optimizer or AdamW(), seed=1, storage=storage)
    relay = relay_under(server, device="cpu", seed=2, **options)
    objective = NextToken() if pool.inputs[0].dtype == torch.int64 else SquaredError()
    paths, losses = UniformPaths(pool, seed=3), []
    path = [paths.path_at(step) for step in range(steps + 1)]
    for step in range(steps):
        inputs, targets = random_data(pool, 5, seed=step)
        result = relay.train_step(
            path[step],
            inputs,
            targets,
            objective=objective,
            micro_batch=2,
            lr=0.05,
            step=step,
            upcoming=path[step + 1] if step % 3 else None,
        )
        losses.append(result.loss)
        if between is not None:
            losses += between(relay, step, path[step]) or []
    relay.close()
    states = {key: {n: t.clone() for n, t in server.state(key).tensors().items()} for key in server.visited}
    return losses, states


def assert_equal(one, other):
    assert one[0] == other[0]
    assert one[1].keys() == other[1].keys()
    for key, tensors in one[1].items():
        for name, tensor in tensors.items():
            bits = [t.reshape(-1).view(torch.uint8) for t in (tensor, other[1][key][name])]
            assert torch.equal(*bits), f"{key} {name}"


@every_pair(name=[*POOLS], update=ORDERS, frames=[1, 2, 4])
def test_every_policy_and_pool_in_threads_under_stress_on_a_rough_disk(tmp_path, monkeypatch, name, update, frames):
    pool = POOLS[name]()
    clip = Clip(1.0) if update == "exact" else None
    options = {"update": update, "clip": clip, "lanes": "threads"}
    expected = train(pool, RamStorage(), **options)
    make_rough(monkeypatch, seed=frames)
    storage = FileStorage(tmp_path, frames=frames)
    found = train(pool, storage, stress=Stress(seed=frames), **options)
    assert_equal(found, expected)
    assert all(frame.is_idle for frame in storage._table)
    storage.close()


@pytest.mark.parametrize("optimizer", [SGD(), SGD(momentum=0.0)], ids=["momentum", "plain"])
@pytest.mark.parametrize("lanes", ["inline", "threads"])
def test_other_optimizers(tmp_path, optimizer, lanes):
    pool = dense_pool()
    expected = train(pool, RamStorage(), optimizer=optimizer, lanes=lanes)
    assert_equal(train(pool, FileStorage(tmp_path), optimizer=optimizer, lanes=lanes), expected)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("name", ["dense", "tied"])
def test_other_precisions(tmp_path, name, precision):
    pool = POOLS[name]()
    options = {"precision": precision, "update": "exact", "lanes": "threads"}
    expected = train(pool, RamStorage(), **options)
    assert_equal(train(pool, FileStorage(tmp_path), stress=Stress(), **options), expected)


@pytest.mark.parametrize("options", [{"slots": 4, "keep": 3}, {"stash": "host"}, {"device_budget": "all"}], ids=str)
def test_other_ways_to_use_the_device(tmp_path, options):
    pool = dense_pool()
    expected = train(pool, RamStorage(), lanes="threads", **options)
    assert_equal(train(pool, FileStorage(tmp_path), lanes="threads", stress=Stress(), **options), expected)


@pytest.mark.parametrize("update", ["eager", "exact"])
def test_evaluation_recalibration_and_forks_in_between(tmp_path, update):
    pool = dense_pool()

    def between(relay, step, architecture):
        if step not in (2, 5):
            return []
        inputs, _ = random_data(pool, 5, seed=100)
        server, keys = relay.server, pool.architecture(["normed"] * 4 + ["mlp"])
        before = relay.predict(architecture, inputs, micro_batch=2)[0]
        relay.use(server.fork(state for layer in pool.path(keys) for state in layer.states))
        relay.recalibrate(keys, [inputs, inputs])
        forked = relay.predict_population([keys, architecture], inputs, micro_batch=5)
        relay.use(server)
        relay.recalibrate(architecture, [inputs])
        after = relay.predict(architecture, inputs, micro_batch=5)[0]
        return [outputs.double().sum().item() for outputs in (before, *(out[0] for out in forked), after)]

    options = {"update": update, "lanes": "threads", "between": between}
    expected = train(pool, RamStorage(), **options)
    assert_equal(train(pool, FileStorage(tmp_path), stress=Stress(), **options), expected)


def test_a_checkpoint_in_the_middle_goes_on_in_either_storage(tmp_path):
    pool = dense_pool()

    def with_save(folder, storage):
        def between(relay, step, architecture):
            if step == 3:
                checkpoint = Checkpoint(folder)
                checkpoint.save(relay.server, extra={"step": 4})
                other = ParamServer(pool, optimizer=AdamW(), seed=1, storage=storage())
                assert checkpoint.load(other) == {"step": 4}
                relay.use(other)

        return between

    def run(name, first, second):
        return train(pool, first, update="exact", lanes="threads", between=with_save(tmp_path / name, second))

    def on_disk():
        return FileStorage(tmp_path / "scratch", frames=2)

    plain = train(pool, RamStorage(), update="exact", lanes="threads")
    assert run("ram", RamStorage(), RamStorage)[0] == plain[0]
    assert run("to file", RamStorage(), on_disk)[0] == plain[0]
    assert run("from file", on_disk(), RamStorage)[0] == plain[0]
    assert run("files", on_disk(), on_disk)[0] == plain[0]
    names = [{path.name for path in (tmp_path / name).iterdir()} for name in ("ram", "to file", "from file", "files")]
    assert names[0] == names[1] == names[2] == names[3]  # files of checkpoints are named by their content


@every_pair(name=[*POOLS], update=["eager", "exact"], cached_bytes=[0, 4000])
def test_states_that_pass_the_page_cache_by_and_some_that_do_not(real_disk, monkeypatch, name, update, cached_bytes):
    pool = POOLS[name]()
    options = {"update": update, "lanes": "threads"}
    expected = train(pool, RamStorage(), **options)
    make_rough(monkeypatch)
    storage = FileStorage(real_disk, frames=2, cached_bytes=cached_bytes)
    assert_equal(train(pool, storage, stress=Stress(), **options), expected)
    records = storage._records.values()
    passing = [record.is_direct for record in records if record.image.end_bytes(Part.ALL)]
    assert any(passing)
    assert all(passing) == (cached_bytes == 0)
    storage.close()


@pytest.mark.parametrize(
    ("optimizer", "volume"), [(AdamW(), 12), (SGD(), 8), (SGD(momentum=0.0), 4)], ids=["adamw", "momentum", "plain"]
)
def test_a_step_writes_each_state_of_its_path_once_and_nothing_else(tmp_path, optimizer, volume):
    pool = dense_pool(width=128)
    storage = FileStorage(tmp_path)
    server = ParamServer(pool, optimizer=optimizer, seed=0, storage=storage)
    relay = Relay(server, device="cpu", lanes="threads")
    architecture = pool.architecture(["dense", "normed", "dense", "twice", "mlp"])
    inputs, targets = random_data(pool, 4, seed=0)
    options = {"objective": SquaredError(), "micro_batch": 2, "lr": 0.1}
    for step in range(3):
        written = storage.bytes_written
        relay.train_step(architecture, inputs, targets, step=step, **options)
        relay.drain()
    states = [state for layer in pool.path(architecture) for state in layer.states]
    parameters = sum(server.layout(state).num_parameters for state in states)
    buffers = sum(server.layout(state).buffer_bytes for state in states)
    got = storage.bytes_written - written - 2 * buffers  # once by themselves, once with the rest
    assert volume * parameters <= got <= 1.01 * volume * parameters  # with padding and step counts
    relay.close()


def frames_given_away_while_written(monkeypatch) -> None:
    monkeypatch.setattr("l2l_nas.eps.frames.Frame.is_idle", property(lambda frame: not frame.readers))


def writes_not_waited_for(monkeypatch) -> None:
    real = FileStorage._write_back

    def later(storage, frame, record, part):
        copy = Frame(frame.block.clone(), state=frame.state)
        record.visits, record.version = frame.state.visits, frame.state.version
        timer = threading.Timer(1.0, write, (storage, copy, record, part))  # a busy machine reads no later
        timer.daemon = True
        timer.start()

    def write(*late):
        with contextlib.suppress(StorageError):  # all is over
            real(*late)

    monkeypatch.setattr(FileStorage, "_write_back", later)


def states_used_while_filled(monkeypatch) -> None:
    def hold(storage, key, *, writes):
        frame = storage._table.find(key) or storage._table.assign(key)
        return frame, storage._records[key]

    monkeypatch.setattr(FileStorage, "_hold", hold)


FAULTS = {
    fault.__name__: fault
    for fault in (frames_given_away_while_written, writes_not_waited_for, states_used_while_filled)
}
SHOWN = (AssertionError, L2LError, KeyError, ValueError, RuntimeError)


def train_without_waiting(folder: str, fault: str | None) -> None:
    """Return if the fault shows, and raise if it does not; the other way round without one."""
    pool = repeated_pool()
    options = {"update": "eager", "lanes": "threads", "steps": 12}
    expected = train(pool, RamStorage(), **options)
    with pytest.MonkeyPatch.context() as monkeypatch:
        make_rough(monkeypatch, longest_delay_s=0.01)
        signal.alarm(60)  # a thread may wait for ever for one that took its frame
        with pytest.raises(SHOWN) if fault else contextlib.nullcontext():
            if fault:
                FAULTS[fault](monkeypatch)
            assert_equal(train(pool, FileStorage(Path(folder), frames=2), stress=Stress(), **options), expected)


@pytest.fixture(scope="module")
def nursery():
    nursery = Nursery(__name__)
    yield nursery
    nursery.close()


@pytest.mark.slow
@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_a_storage_that_does_not_wait_does_not_train_the_same(tmp_path, nursery, fault):
    code = nursery.wait(nursery.start(train_without_waiting, str(tmp_path), fault))
    assert code in ((0, -signal.SIGALRM) if fault else (0,))
