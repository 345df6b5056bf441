"""Segments on executors: what workers do, and what becomes of it when they are killed or fail."""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import MagicMock

import cloudpickle
import pytest
import torch

from l2l_nas.cost.closed_form import path_states
from l2l_nas.errors import L2LError, NonFiniteError, WorkerError
from l2l_nas.nas.evaluation import remote
from l2l_nas.nas.evaluation.engines import Dask, Engine, Processes, Ray, Submitit
from l2l_nas.nas.evaluation.futures import ATTEMPTS
from l2l_nas.nas.evaluation.remote import (
    LACKS,
    Workplace,
    error_content,
    error_of,
    run_segment,
    unpicklable,
    with_named,
)
from l2l_nas.nas.evaluation.segment import ScoredOn, Segment
from tests.nas.executors import all_done, place_of

LOCK = threading.Lock()
SPEND = {"trials": 8, "steps_per_trial": 3}


@dataclass(slots=True)
class Slotted:
    lock: threading.Lock


@dataclass(frozen=True)
class Building:
    """A recipe that leaves a file for each time that it is built, and at the first times kills its process.

    It waits for a file of the name `held` to go, where there is one.
    """

    recipe: bytes
    place: Path
    deaths: int = 0

    def build(self) -> Workplace:
        for number in range(100):
            with contextlib.suppress(FileExistsError), (self.place / f"built{number}").open("x"):
                if number < self.deaths:
                    os.kill(os.getpid(), signal.SIGKILL)
                break
        wait_for(lambda: not (self.place / "held").exists())
        return cloudpickle.loads(self.recipe).build()


def building(place, engine=Processes, **about):
    return lambda recipe, workers: engine(cloudpickle.dumps(Building(recipe, place, **about)), workers)


def on(executor):
    """The engine of an executor of the caller's own."""
    return lambda recipe, *_: Engine(executor, recipe)


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture(scope="module")
def forked(tmp_path_factory):
    with place_of(tmp_path_factory.mktemp("executor") / "flag", **SPEND) as found:
        yield found


@pytest.fixture
def place(forked):
    forked.watch.losses.clear()
    return forked


def same(ours, server):
    assert ours.visited == server.visited
    for key in server.visited:
        for name, tensor in server.state(key).tensors().items():
            assert torch.equal(ours.state(key).tensors()[name], tensor), (key, name)
        assert ours.state(key).visits == server.state(key).visits


@pytest.mark.slow
def test_trials_train_weights_of_their_own_and_say_what_they_were_scored_with(place):
    trials = [place.trial(a, b, ordinal=n) for n, (a, b) in enumerate([("tanh", "relu"), ("relu", "tanh")] * 3)]
    assert place.executor.size == 2
    for trial in trials:
        place.executor.submit(trial)
    found = all_done(place.executor)
    assert {id(segment) for segment, _ in found} == {id(trial) for trial in trials}
    assert {result.worker for _, result in found} <= {1, 2}
    for segment, result in found:
        assert (result.error, result.steps) == (None, 0)
        assert result.metrics.keys() == {"accuracy", "loss"}
        count = len(path_states(place.pool, segment.architecture))
        assert result.provenance["visits"] == [3] * count
        assert len(result.provenance["crc32"]) == 8 * count
    assert place.server.visited == ()


@pytest.mark.slow
def test_a_trial_whose_worker_is_killed_is_done_again(place):
    trials = [place.trial("fragile", "tanh"), place.trial("tanh", "tanh"), place.trial("relu", "relu")]
    for trial in trials:
        place.executor.submit(trial)
    found = all_done(place.executor)
    assert len(found) == len(trials)
    assert all(result.error is None for _, result in found)
    assert any(trials[0].architecture.digest in loss["task"] for loss in place.watch.losses)
    assert all(loss["again"] for loss in place.watch.losses)


@pytest.mark.long
@pytest.mark.slow
def test_a_trial_that_kills_too_many_workers_has_failed_and_the_others_go_on(place):
    trials = [place.trial("tanh", "deadly"), *(place.trial("tanh", "relu", ordinal=n) for n in range(3))]
    for trial in trials:
        place.executor.submit(trial)
    found = {id(segment): result for segment, result in all_done(place.executor)}
    assert isinstance(found[id(trials[0])].error, WorkerError)
    assert f"ended {ATTEMPTS} times without a result" in str(found[id(trials[0])].error)
    assert all(found[id(trial)].error is None for trial in trials[1:])
    own_losses = [loss["again"] for loss in place.watch.losses if trials[0].architecture.digest in loss["task"]]
    assert own_losses == [True] * (ATTEMPTS - 1) + [False]


@pytest.mark.long
@pytest.mark.slow
def test_a_worker_that_is_killed_while_it_has_nothing_to_do_costs_one_trial_a_try_at_most(place):
    place.executor.submit(place.trial("tanh", "tanh"))
    assert len(all_done(place.executor)) == 1
    pool = place.executor.open()._executor
    os.kill(next(iter(pool._processes)), signal.SIGKILL)
    wait_for(lambda: pool._flags.broken is not None)
    for number in range(3):
        place.executor.submit(place.trial("tanh", "relu", ordinal=number))
    assert [result.error for _, result in all_done(place.executor)] == [None] * 3
    assert len(place.watch.losses) <= 1


@pytest.mark.slow
def test_finalists_trained_side_by_side_are_those_trained_one_after_the_other(place):
    steps = []
    segments = [place.finalist(0, "tanh", "normed"), place.finalist(1, "relu", "tanh")]
    segments.append(Segment("from first weights", segments[0].architecture, "scratch", 7, 9, 0.02))
    for segment in segments:
        place.executor.submit(segment, after_step=steps.append)
    ours = {id(segment): result for segment, result in all_done(place.executor)}
    assert len(steps) == 2 * place.spend.finalist_steps + 9
    for segment in segments:
        alone, result = place.evaluator.run(segment), ours[id(segment)]
        assert result.scores == alone.scores
        assert alone.scores.keys() == {"validation", "test"}
        same(result.server, alone.server)


def test_a_network_goes_on_in_a_worker_with_the_weights_that_it_had(place):
    architecture = place.finalist(0, "tanh", "normed").architecture
    first = Segment("first", architecture, "fork", 11, 4, 0.02, scored_on=ScoredOn.ERRORS)
    place.executor.submit(first)
    ((_, once),) = all_done(place.executor)
    assert once.scores.keys() == {"validation"}
    before = once.server.fork(once.server.visited)
    then = replace(first, name="then", start=20, server=once.server, scored_on=ScoredOn.TEST)
    place.executor.submit(then)
    ((_, twice),) = all_done(place.executor)
    alone = place.evaluator.run(replace(then, server=before))
    assert twice.scores == alone.scores
    same(twice.server, alone.server)
    assert all(alone.server.state(key).visits >= 8 for key in alone.server.visited)


def test_a_network_that_is_not_finite_or_raises_fails_alone(place):
    names = [("poison", "tanh"), ("tanh", "broken"), ("tanh", "tanh")]
    segments = [place.finalist(index, *pair) for index, pair in enumerate(names)]
    for segment in segments:
        place.executor.submit(segment)
    found = {id(segment): result for segment, result in all_done(place.executor)}
    assert isinstance(found[id(segments[0])].error, NonFiniteError)
    assert "its layer raised RuntimeError: broken in two" in str(found[id(segments[1])].error)
    assert found[id(segments[2])].metrics["accuracy"] > 0


def test_a_stop_gives_what_is_done_and_drops_the_rest(tmp_path):
    pool, counts = concurrent.futures.ThreadPoolExecutor(1), []
    with place_of(tmp_path / "flag", workers=1, engine=on(pool)) as place:
        place.executor.counted = counts.append
        place.watch.stop_when = lambda: bool(counts)
        for ordinal in range(3):
            place.executor.submit(place.trial("tanh", "tanh", ordinal=ordinal))
        assert [result.error for _, result in place.executor.finished()] == [None]
        with pytest.raises(InterruptedError):
            place.executor.finished()
    pool.shutdown()
    assert len(counts) == 1


def test_an_error_that_is_not_the_architectures_is_raised_here(place):
    place.executor.submit(place.trial("tanh", "refused"))
    with pytest.raises(L2LError, match=r"^broken in two$"):
        place.executor.finished()


@pytest.mark.slow
def test_a_worker_that_builds_another_problem_is_refused(tmp_path):
    with place_of(tmp_path / "flag", identity={"pool": "another"}, **SPEND) as place:
        place.executor.submit(place.trial("tanh", "tanh"))
        with pytest.raises(WorkerError, match="builds another pool in a worker process than here"):
            place.executor.finished()


def test_workers_that_cannot_even_start_end_the_search_with_a_line(tmp_path):
    class Broken(concurrent.futures.Executor):
        def submit(self, fn, /, *args, **kwargs):
            future = concurrent.futures.Future()
            future.set_exception(concurrent.futures.BrokenExecutor("no worker"))
            return future

    with place_of(tmp_path / "flag", engine=on(Broken()), **SPEND) as place:
        place.executor.submit(place.trial("tanh", "tanh"))
        with pytest.raises(WorkerError, match=r"end before they are ready \(no worker\); try executor=inline"):
            place.executor.finished()


@pytest.mark.slow
def test_workers_build_while_the_search_does_something_else(tmp_path):
    (tmp_path / "held").touch()
    with place_of(tmp_path / "flag", engine=building(tmp_path), trial_weights="scratch") as place:
        place.executor.open()  # returns, though no worker can have been built
        wait_for(lambda: len(list(tmp_path.glob("built*"))) == 2)
        (tmp_path / "held").unlink()
        place.executor.submit(place.trial("tanh", "tanh"))
        assert all_done(place.executor)[0][1].error is None
    assert len(list(tmp_path.glob("built*"))) == 2


def test_a_thread_of_the_search_builds_when_there_is_work_and_once(tmp_path):
    pool = concurrent.futures.ThreadPoolExecutor(2)
    with place_of(tmp_path / "flag", engine=building(tmp_path, on(pool)), trial_weights="fork") as place:
        place.executor.open()
        pool.submit(int).result()
        assert not list(tmp_path.glob("built*"))
        place.executor.submit(place.finalist(0, "tanh", "tanh"))
        assert all_done(place.executor)[0][1].error is None
    assert len(list(tmp_path.glob("built*"))) == 1


@pytest.mark.long
@pytest.mark.slow
def test_a_worker_that_is_killed_while_it_builds_is_started_again(tmp_path):
    with place_of(tmp_path / "flag", engine=building(tmp_path, deaths=1), trial_weights="scratch") as place:
        place.executor.open()
        wait_for(lambda: any(future.done() for future in place.executor._greetings))
        place.executor.submit(place.trial("tanh", "tanh"))
        assert all_done(place.executor)[0][1].error is None
    assert not place.watch.losses  # no trial was running


@pytest.mark.slow
def test_workers_that_are_killed_whenever_they_build_end_the_search_with_a_line(tmp_path):
    with place_of(tmp_path / "flag", workers=1, engine=building(tmp_path, deaths=99), trial_weights="scratch") as place:
        place.executor.open()
        place.executor.submit(place.trial("tanh", "tanh"))
        with pytest.raises(WorkerError, match=r"end before they are ready \(.*\); try executor=inline"):
            place.executor.finished()
    assert len(list(tmp_path.glob("built*"))) == ATTEMPTS


@pytest.mark.timeout(60)  # were the third trial kept, the wait for it would have no end
def test_a_stop_reaches_what_a_thread_of_the_search_is_doing_and_drops_what_waits(tmp_path):
    pool = concurrent.futures.ThreadPoolExecutor(1)
    with place_of(tmp_path / "flag", engine=on(pool), trial_weights="fork", steps_per_trial=10**6) as place:
        for ordinal in range(3):  # more than there are workers
            place.executor.submit(place.trial("tanh", "tanh", ordinal=ordinal))
        place.watch.stop_when = lambda: bool(place.executor._running)
        with pytest.raises(InterruptedError):
            place.executor.finished()
    pool.shutdown()  # waits for the thread


@pytest.mark.long
@pytest.mark.slow
def test_jobs_that_are_dropped_are_cancelled(tmp_path):
    pytest.importorskip("submitit")
    about = {"folder": str(tmp_path / "jobs"), "cluster": "local", "parameters": {"timeout_min": 5}}
    engine = Submitit(b"recipe", 1, **about)
    future = engine.submit(lambda recipe: time.sleep(600))
    engine.cancel(future)
    assert isinstance(future.exception(timeout=60), engine.lost)


def test_a_cluster_that_lost_what_it_was_called_with_is_called_again_after_a_moment(tmp_path, monkeypatch):
    pool, done = concurrent.futures.ThreadPoolExecutor(1), []

    class Losing(concurrent.futures.Executor):
        def submit(self, fn, /, *args, **kwargs):
            done.append("called")
            if done.count("called") > 2:
                return pool.submit(fn, *args, **kwargs)
            future = concurrent.futures.Future()
            future.set_exception(concurrent.futures.CancelledError())
            return future

    with place_of(tmp_path / "flag", workers=1, engine=on(Losing()), trial_weights="fork") as place:
        monkeypatch.setattr(place.executor, "_pause", lambda: done.append("a moment"))
        place.executor.submit(place.trial("tanh", "tanh"))
        assert all_done(place.executor)[0][1].error is None
    assert done[:5] == ["called", "a moment", "called", "a moment", "called"]


def test_what_is_done_is_taken_before_what_was_lost_with_it(tmp_path):
    pool, lost, asked = concurrent.futures.ThreadPoolExecutor(1), concurrent.futures.Future(), []

    class Breaking(Engine):
        """Loses its first task once the second is done."""

        breaks = True

        def _submit(self, function, *args):
            future = super()._submit(function, *args)
            if args[1] is not run_segment:
                return future
            asked.append(future)
            if len(asked) == 2:
                future.result()
                lost.set_exception(concurrent.futures.BrokenExecutor("gone"))
            return lost if len(asked) == 1 else future

    with place_of(tmp_path / "flag", engine=lambda recipe, _: Breaking(pool, recipe), trial_weights="fork") as place:
        for names in (("tanh", "relu"), ("relu", "tanh")):
            place.executor.submit(place.trial(*names))
        assert [result.error for _, result in all_done(place.executor)] == [None, None]
        assert len(place.watch.losses) == 1
    assert len(asked) == 3


@pytest.mark.parametrize("is_open", [False, True])
def test_ray_is_shut_down_where_it_was_started_here(monkeypatch, is_open):
    ray = MagicMock()
    ray.is_initialized.return_value = is_open
    monkeypatch.setitem(sys.modules, "ray", ray)
    Ray(b"", 1, address="", cpus=1.0, gpus=0.0).end()
    assert (ray.init.called, ray.shutdown.called) == (not is_open, not is_open)


def test_a_process_whose_parents_cannot_be_read_does_not_watch_another_ones_search(monkeypatch):
    watches = MagicMock()
    monkeypatch.setattr(remote, "threading", watches)
    monkeypatch.delenv(remote.DRIVER, raising=False)
    monkeypatch.setattr(os, "getppid", lambda: 1 << 40)  # whose number no process has
    remote.ends_with(2)
    assert not watches.Thread.called


def test_an_executor_that_was_shut_down_ends_the_search_with_a_line(tmp_path):
    pool = concurrent.futures.ThreadPoolExecutor(1)
    pool.shutdown()
    with place_of(tmp_path / "flag", engine=on(pool), trial_weights="fork") as place:
        place.executor.submit(place.trial("tanh", "tanh"))
        with pytest.raises(WorkerError, match=r"takes no more work \(RuntimeError: .*\); go on with a new one"):
            place.executor.finished()


@pytest.mark.slow
def test_an_own_pool_that_breaks_ends_the_search_and_no_trial_has_failed(tmp_path):
    pool = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    with place_of(tmp_path / "flag", workers=1, engine=on(pool), trial_weights="scratch") as place:
        place.executor.submit(place.trial("tanh", "deadly"))
        with pytest.raises(WorkerError, match=r"takes no more work \(BrokenProcessPool"):
            place.executor.finished()
    assert [loss["again"] for loss in place.watch.losses] == [True]


def test_a_stop_ends_the_wait_for_workers_and_what_waits_in_an_own_executor_is_cancelled(tmp_path, monkeypatch):
    monkeypatch.setattr("l2l_nas.nas.evaluation.futures._PATIENCE_S", 0.2)
    futures = []

    class Busy(concurrent.futures.Executor):
        def submit(self, fn, /, *args, **kwargs):
            futures.append(concurrent.futures.Future())
            return futures[-1]

    with place_of(tmp_path / "flag", engine=on(Busy()), trial_weights="fork") as place:
        place.watch.stop_when = lambda: len(place.watch.waited) == 2
        place.executor.submit(place.trial("tanh", "tanh"))
        with pytest.raises(InterruptedError):
            place.executor.finished()
    assert place.watch.waited == ["0 of 2 workers are ready"] * 2
    assert all(future.cancelled() for future in futures)


@pytest.mark.parametrize(
    ("whole", "name"),
    [
        ({"data": [1, threading.Lock()]}, "data.1"),
        (partial(print, {"file": threading.Lock()}), "args.0.file"),
        (lambda lock=LOCK: lock, "__defaults__.0"),
        ((lambda lock: lambda: lock)(threading.Lock()), "lock"),
        (Slotted(threading.Lock()), "lock"),
        (threading.Lock(), "lock"),
    ],
)
def test_what_cannot_be_sent_to_workers_is_named(whole, name):
    assert unpicklable(whole) == name


@pytest.mark.slow
def test_workers_end_when_their_search_is_over(tmp_path):
    with place_of(tmp_path / "flag", workers=1, trial_weights="scratch") as place:
        place.executor.submit(place.finalist(0, "tanh", "tanh"))
        assert all_done(place.executor)
        (pid,) = (int(name.rpartition(":")[2]) for name in place.executor._names)
        assert os.path.exists(f"/proc/{pid}")
    deadline = time.monotonic() + 30
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not os.path.exists(f"/proc/{pid}")


@pytest.mark.parametrize("name", ["thread", "process", "dask", pytest.param("ray", marks=pytest.mark.cluster)])
@pytest.mark.slow
def test_any_executor_runs_what_this_process_does(tmp_path, name):
    context = multiprocessing.get_context("spawn")
    engines = {
        "thread": on(concurrent.futures.ThreadPoolExecutor(2)),
        "process": on(concurrent.futures.ProcessPoolExecutor(2, context)),
        "dask": partial(Dask, address=""),
        "ray": partial(Ray, address="", cpus=1.0, gpus=0.0),
    }
    if name in ("dask", "ray"):
        pytest.importorskip({"dask": "distributed"}.get(name, name))
    with place_of(tmp_path / "flag", engine=engines[name], trial_weights="fork", warmup_steps=5) as place:
        segments = [place.finalist(0, "tanh", "normed"), place.trial("relu", "tanh", ordinal=1)]
        for segment in segments:
            place.executor.submit(segment)
        found = {id(segment): result for segment, result in all_done(place.executor)}
        for segment in segments:
            alone = place.evaluator.run(segment)
            assert found[id(segment)].scores == alone.scores
            assert found[id(segment)].provenance == alone.provenance


@pytest.mark.long
@pytest.mark.slow
def test_tasks_whose_dask_workers_are_all_killed_run_again_with_their_recipe():
    distributed = pytest.importorskip("distributed")
    about = {"n_workers": 2, "threads_per_worker": 1, "silence_logs": 50}
    about["scheduler_kwargs"] = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}

    def kept(recipe):
        time.sleep(0.3)
        return recipe

    with distributed.LocalCluster(**about) as cluster, distributed.Client(cluster) as client:
        engine = Dask(b"recipe", 2, address=cluster.scheduler_address)
        for pause in (0.0, 0.1, 0.4):
            client.wait_for_workers(2, timeout=60)
            tasks = [engine.submit(kept) for _ in range(2)]
            time.sleep(pause)
            for nanny in cluster.workers.values():
                os.kill(nanny.process.pid, signal.SIGKILL)
            assert [task.result(timeout=180) for task in tasks] == [b"recipe"] * 2
        engine.end()


def test_a_process_that_lacks_a_named_recipe_says_so_and_keeps_the_last_one():
    assert with_named("a", None, len) == LACKS
    assert with_named("a", b"four", len) == with_named("a", None, len) == 4
    assert with_named("b", b"three", len) == 5
    assert with_named("a", None, len) == LACKS


def test_a_mistake_of_ours_in_a_worker_says_how_to_look_for_it():
    error = error_of(error_content(ValueError("no luck")))
    assert isinstance(error, WorkerError)
    assert "ValueError: no luck; executor=inline shows where" in str(error)
