"""How jobs are handed to launchers. The launchers here run plain functions: what counts is what they are handed, and
what they raise; real ones are in test_launchers.py.
"""

from __future__ import annotations

import threading
import time

import pytest
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import ConfigCompositionException

from l2l_nas.cli.jobs import Apart, Batches, Job, OneByOne, policy_of
from l2l_nas.errors import L2LError

BASIC = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
JOBLIB = "hydra_plugins.hydra_joblib_launcher.joblib_launcher.JoblibLauncher"
SUBMITIT = "hydra_plugins.hydra_submitit_launcher.submitit_launcher.LocalLauncher"


class Recorder:
    """Runs `work` for each job in this process, and remembers the batches."""

    def __init__(self, work):
        self.work = work
        self.batches = []

    def launch(self, job_overrides, initial_job_idx):
        self.batches.append([" ".join(words) for words in job_overrides])
        return [self.one(words) for words in job_overrides]

    def one(self, words):
        result = JobReturn(status=JobStatus.COMPLETED)
        try:
            result.return_value = self.work(int(words[0].removeprefix("n=")), words)
        except ArithmeticError as error:
            result.status, result.return_value = JobStatus.FAILED, error
        return result


class Jobs:
    """Jobs 0 to `count` - 1, and what became of them."""

    def __init__(self, folder, count):
        self.folder = folder
        self.left = list(range(count))
        self.done = {}

    def ask(self):
        if not self.left:
            return None
        number = self.left.pop(0)
        return Job(number, (f"n={number}",), self.folder / str(number), ("again",))

    def tell(self, job, outcome):
        assert job.number not in self.done
        self.done[job.number] = outcome.error


def test_each_launcher_has_its_policy():
    assert isinstance(policy_of(BASIC, jobs=3), OneByOne)
    assert policy_of(JOBLIB, jobs=3) == Batches(3)
    assert policy_of(SUBMITIT, jobs=3) == Apart(3)
    assert policy_of("hydra_plugins.hydra_ray_launcher.ray_launcher.RayLauncher", jobs=0) == Batches(0)


def fails_at_1(number, words):
    if number == 1:
        raise ArithmeticError("one is\nodd")


@pytest.mark.parametrize(
    ("policy", "batches"),
    [(OneByOne(), [1, 1, 1, 1, 1]), (Batches(2), [2, 2, 1]), (Batches(0), [5]), (Apart(2), [1, 1, 1, 1, 1])],
    ids=lambda value: type(value).__name__ if not isinstance(value, list) else str(len(value)),
)
def test_a_job_that_fails_takes_no_other_along(tmp_path, policy, batches):
    jobs, launcher = Jobs(tmp_path, 5), Recorder(fails_at_1)
    policy.run(launcher, jobs.ask, jobs.tell)
    assert jobs.done == {0: "", 1: "one is odd", 2: "", 3: "", 4: ""}
    assert [len(batch) for batch in launcher.batches] == batches
    # folders are named by a job's own number, whatever the launcher counts
    assert sorted(word for batch in launcher.batches for word in batch) == [
        f"n={number} hydra.sweep.subdir={number}" for number in range(5)
    ]


def dies_at_1(folder):
    def work(number, words):
        (folder / str(number)).mkdir(exist_ok=True)
        if number == 1:
            raise RuntimeError("the process is gone")

    return work


@pytest.mark.parametrize("policy", [OneByOne(), Batches(3), Apart(2)], ids=lambda policy: type(policy).__name__)
def test_a_job_that_takes_its_process_down_is_the_only_one_that_fails(tmp_path, policy):
    jobs, launcher = Jobs(tmp_path, 4), Recorder(dies_at_1(tmp_path))
    policy.run(launcher, jobs.ask, jobs.tell)
    assert jobs.done.keys() == {0, 1, 2, 3}
    assert jobs.done.pop(1) == "its process ended without a result (RuntimeError)"
    assert set(jobs.done.values()) == {""}
    if isinstance(policy, Batches):  # those that had begun go on by themselves, in their folders
        assert launcher.batches == [
            [f"n={number} hydra.sweep.subdir={number}" for number in (0, 1, 2)],
            ["n=0 again hydra.sweep.subdir=0"],
            ["n=1 again hydra.sweep.subdir=1"],
            ["n=2 hydra.sweep.subdir=2"],
            ["n=3 hydra.sweep.subdir=3"],
        ]


@pytest.mark.parametrize("policy", [OneByOne(), Batches(2), Apart(2)], ids=lambda policy: type(policy).__name__)
def test_a_launcher_that_does_not_work_ends_the_sweep(tmp_path, policy):
    def refuse(number, words):
        raise RuntimeError("sbatch: command not found")

    jobs = Jobs(tmp_path, 4)
    with pytest.raises(L2LError, match=r"hydra/launcher: Recorder cannot launch .*sbatch: command not found"):
        policy.run(Recorder(refuse), jobs.ask, jobs.tell)
    assert jobs.done == {}


@pytest.mark.parametrize("policy", [OneByOne(), Batches(2), Apart(2)], ids=lambda policy: type(policy).__name__)
def test_settings_that_cannot_be_composed_are_a_job_that_fails(tmp_path, policy):
    def compose(number, words):
        if number == 2:
            raise ConfigCompositionException("no such\nthing")

    jobs = Jobs(tmp_path, 4)
    policy.run(Recorder(compose), jobs.ask, jobs.tell)
    assert jobs.done == {0: "", 1: "", 2: "no such thing", 3: ""}


def test_jobs_that_run_apart_do_not_wait_for_the_slowest(tmp_path):
    at_once, most, lock = 0, 0, threading.Lock()
    slow = threading.Event()

    def work(number, words):
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        if number == 0:
            assert slow.wait(30)  # until all others are done
        with lock:
            at_once -= 1

    jobs = Jobs(tmp_path, 5)

    def tell(job, outcome):
        jobs.tell(job, outcome)
        if len(jobs.done) == 4:
            slow.set()

    Apart(2).run(Recorder(work), jobs.ask, tell)
    assert list(jobs.done)[-1] == 0
    assert set(jobs.done.values()) == {""}
    assert most == 2


def test_an_interrupt_does_not_wait_for_jobs_that_run_apart(tmp_path):
    ended = threading.Event()

    def work(number, words):
        ended.wait(30)

    def interrupt():
        raise KeyboardInterrupt

    jobs = Jobs(tmp_path, 1)
    asked = iter([jobs.ask, interrupt])
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        Apart(2).run(Recorder(work), lambda: next(asked)(), jobs.tell)
    assert time.monotonic() - began < 10
    ended.set()
