"""Worker processes: what they do, and what becomes of it when they are killed or fail."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace

import pytest
import torch

from l2l_nas.cost.closed_form import path_states
from l2l_nas.errors import L2LError, NonFiniteError, WorkerError
from l2l_nas.nas.evaluation.evaluator import Training
from l2l_nas.nas.evaluation.messages import error_of
from l2l_nas.nas.evaluation.process_executor import ProcessExecutor
from l2l_nas.nas.evaluation.worker import describe
from l2l_nas.nas.evaluation.worker_pool import WorkerPool
from l2l_nas.nas.retries import ATTEMPTS, why_given_up
from tests.nas.executors import Hall, Watcher, hall


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with hall(tmp_path_factory.mktemp("executor") / "flag", warmup_steps=30, trials=8, steps_per_trial=3) as found:
        yield found


def all_done(executor: ProcessExecutor) -> list:
    found: list = []
    while done := executor.finished():
        found += done
    return found


def keep_busy(executor: ProcessExecutor, place: Hall) -> None:
    while True:
        executor.submit(place.job("tanh", "tanh"))
        executor.finished()


@pytest.mark.slow
def test_trials_train_the_shared_weights_and_say_what_they_were_scored_with(place):
    executor = place.executor()
    before = place.visits("stem/linear")
    jobs = [place.job(a, b, ordinal=n) for n, (a, b) in enumerate([("tanh", "relu"), ("relu", "tanh")] * 3)]
    assert executor.size == 4
    for job in jobs:
        executor.submit(job)
    found = all_done(executor)
    assert {id(job) for job, _ in found} == {id(job) for job in jobs}
    assert {outcome.worker for _, outcome in found} <= {1, 2}
    for job, outcome in found:
        assert (outcome.state, outcome.shared_steps) == ("complete", 3)
        assert outcome.metrics.keys() == {"accuracy", "loss"}
        count = len(path_states(place.pool, job.architecture))
        assert len(outcome.weights["visits"]) == count
        assert len(outcome.weights["crc32"]) == 8 * count
    assert place.visits("stem/linear") == before + 3 * len(jobs)
    # the last to finish saw all updates of the stem, if none was lost
    assert max(outcome.weights["visits"][0] for _, outcome in found) == place.visits("stem/linear")


def test_a_trial_whose_worker_is_killed_is_evaluated_by_another(place):
    watch = Watcher()
    executor = place.executor(watch)
    for job in (jobs := [place.job("fragile", "tanh"), place.job("tanh", "tanh"), place.job("relu", "relu")]):
        executor.submit(job)
    found = all_done(executor)
    assert len(found) == len(jobs)
    assert all(outcome.state == "complete" for _, outcome in found)
    (loss,) = watch.losses
    assert loss["ended"] == "was killed by SIGKILL"
    assert loss["again"]
    assert jobs[0].architecture.digest in loss["task"]
    assert place.recovered == [loss["worker"]]
    assert len(place.workers.members) == 2
    assert max(member.process for member in place.workers.members.values()) > 2


@pytest.mark.slow
def test_a_trial_that_kills_too_many_workers_has_failed_and_the_others_go_on(place):
    watch = Watcher()
    executor = place.executor(watch)
    jobs = [place.job("tanh", "deadly"), *(place.job("tanh", "relu", ordinal=n) for n in range(3))]
    for job in jobs:
        executor.submit(job)
    found = {id(job): outcome for job, outcome in all_done(executor)}
    assert found[id(jobs[0])].state == "failed"
    assert found[id(jobs[0])].reason == why_given_up(ATTEMPTS, "was killed by SIGKILL")
    assert [found[id(job)].state for job in jobs[1:]] == ["complete"] * 3
    assert [loss["again"] for loss in watch.losses] == [True] * (ATTEMPTS - 1) + [False]


def test_finalists_trained_side_by_side_are_those_trained_one_after_the_other(place):
    architectures = [place.job(*names).architecture for names in (("tanh", "normed"), ("relu", "tanh"))]
    steps = []
    trainings = [
        Training.of_finalist(one, index, place.spend, spend=place.spend.rounds[0])
        for index, one in enumerate(architectures)
    ]
    trainings.append(Training("from first weights", architectures[0], "scratch", 7, 9, 0.02))
    ours = sorted(place.executor().train_alone(trainings, after_step=steps.append), key=lambda one: one.index)
    assert len(steps) == 2 * place.spend.finalist_steps + 9
    for one, training in zip(ours, trainings, strict=True):
        scores, server = place.evaluator.train_alone(training, after_step=lambda step, loss: None)
        assert one.scores == scores
        assert scores.keys() == {"validation", "test"}
        assert one.server.visited == server.visited
        for key in server.visited:
            for name, tensor in server.state(key).tensors().items():
                assert torch.equal(one.server.state(key).tensors()[name], tensor), (key, name)
            assert one.server.state(key).visits == server.state(key).visits


def test_a_network_goes_on_in_a_worker_with_the_weights_that_it_had(place):
    architecture = place.job("tanh", "normed").architecture
    first = Training("first", architecture, "fork", 11, 4, 0.02, is_tested=False)
    (once,) = place.executor().train_alone([first], after_step=lambda loss: None)
    assert once.scores.keys() == {"validation"}
    before = once.server.fork(once.server.visited)
    then = replace(first, name="then", start=20, server=once.server, is_tested=True)
    (twice,) = place.executor().train_alone([then], after_step=lambda loss: None)
    scores, server = place.evaluator.train_alone(replace(then, server=before), after_step=lambda step, loss: None)
    assert twice.scores == scores
    for key in server.visited:
        for name, tensor in server.state(key).tensors().items():
            assert torch.equal(twice.server.state(key).tensors()[name], tensor), (key, name)
        assert twice.server.state(key).visits == server.state(key).visits >= 8


@pytest.mark.slow
def test_a_finalist_that_is_not_finite_or_deadly_is_refused_and_the_others_are_trained(place):
    architectures = [place.job(*names).architecture for names in (("poison", "tanh"), ("deadly", "tanh"))]
    architectures.append(place.job("tanh", "tanh").architecture)
    trainings = [
        Training.of_finalist(one, index, place.spend, spend=place.spend.rounds[0])
        for index, one in enumerate(architectures)
    ]
    found = {one.index: one for one in place.executor().train_alone(trainings, after_step=lambda loss: None)}
    assert isinstance(found[0].refused, NonFiniteError)
    assert isinstance(found[1].refused, WorkerError)
    assert found[2].scores["validation"].values["accuracy"] > 0


def test_a_stop_lets_running_trials_end_and_drops_the_rest(place):
    begun = place.visits("stem/linear")
    watch = Watcher(lambda: place.visits("stem/linear") > begun)
    executor = place.executor(watch)
    for number in range(8):
        executor.submit(place.job("tanh", "tanh", ordinal=number))
    found = executor.finished()
    assert 1 <= len(found) < 8
    assert all(outcome.state == "complete" for _, outcome in found)
    assert place.visits("stem/linear") == begun + 3 * len(found)
    executor.submit(place.job("tanh", "tanh"))
    with pytest.raises(InterruptedError):
        executor.finished()
    assert place.visits("stem/linear") == begun + 3 * len(found)


def test_an_error_in_a_worker_is_raised_here(place):
    executor = place.executor()
    executor.submit(place.job("tanh", "refused"))
    with pytest.raises(L2LError, match=r"^broken in two$"):
        executor.finished()


def test_a_layer_that_raises_in_a_worker_fails_its_trial_alone(place):
    executor = place.executor()
    executor.submit(place.job("tanh", "broken"))
    executor.submit(place.job("tanh", "tanh"))
    found = [outcome for _, outcome in executor.finished()]
    found += [outcome for _, outcome in (executor.finished() if len(found) < 2 else ())]
    assert {outcome.state.value for outcome in found} == {"failed", "complete"}
    assert any("its layer raised RuntimeError: broken in two" in outcome.reason for outcome in found)


@pytest.mark.slow
def test_a_worker_that_builds_another_problem_is_refused(place):
    os.kill(place.workers.members[1].popen.pid, signal.SIGKILL)
    executor = place.executor(pool="another")
    with pytest.raises(WorkerError, match="builds another pool in a worker process than here"):
        keep_busy(executor, place)


def test_workers_that_cannot_even_start_end_the_search_with_a_line(place, capfd):
    with WorkerPool("tests.nas.no_such_module", size=2, hello=lambda worker, process: {"op": "hello"}) as workers:
        executor = ProcessExecutor(workers, place.server, budget=place.spend, watch=Watcher(), identity={})
        executor.submit(place.job("tanh", "tanh"))
        with pytest.raises(WorkerError, match="ended with exit code 1 before it was ready"):
            executor.finished()
    assert "No module named 'tests.nas.no_such_module'" in capfd.readouterr().err


@pytest.mark.slow
def test_workers_end_when_nobody_talks_to_them_any_more(tmp_path):
    with hall(tmp_path / "flag", size=1) as place:
        place.executor().train_alone([], after_step=lambda loss: None)
        member = place.workers.members[1]
        member.connection.close()
        started = time.monotonic()
        assert member.popen.wait(60) in (0, 1)
        assert time.monotonic() - started < 60


def test_a_mistake_of_ours_in_a_worker_says_how_to_look_for_it():
    error = error_of(describe(ValueError("no luck")))
    assert isinstance(error, WorkerError)
    assert str(error) == "a worker process raised ValueError: no luck; search.workers=1 shows where"
