"""Lanes: order, waits, errors that reach the caller, and threads that end."""

from __future__ import annotations

import contextlib
import gc
import itertools
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from torch import nn

from l2l_nas.errors import DataError, LaneError
from l2l_nas.relay.device import Cpu
from l2l_nas.relay.lanes import CancelToken, Future, Label, Lanes
from tests.relay.steps import OTHER, PATH, chain_pool, in_time, lane_threads, relay_of, train
from tests.relay.stress import Stress, StressedLanes
from tests.toys import dense_pool

LABEL = Label("load", "layer0/dense", 3)

ROOT = Path(__file__).parents[2]


class Fails:
    """Work that raises; it suffices where only the way of the error matters."""

    def __init__(self, error):
        self.error = error

    def __call__(self):
        raise self.error


@pytest.fixture(params=[True, False], ids=["threads", "inline"])
def lanes(request):
    lanes = Lanes(Cpu(), threads=request.param)
    yield lanes
    lanes.close()


@pytest.fixture
def threaded():
    lanes = Lanes(Cpu(), threads=True)
    yield lanes
    lanes.close()


def submit(lanes, lane, do, *after, cancel=None):
    return lanes.submit(lane, do, after=after, label=LABEL, cancel=cancel or CancelToken())


def wait_for_end(count=0):
    """Work under way holds the relay, so that it may be garbage only once that is over."""
    deadline = time.monotonic() + 10
    while len(lane_threads()) > count and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.005)
    return len(lane_threads())


def test_work_of_one_lane_is_done_in_order(lanes):
    done = []
    futures = [submit(lanes, "up", lambda i=i: (time.sleep(0.0005 * (i % 3)), done.append(i))) for i in range(60)]
    in_time(lambda: lanes.wait(futures))
    assert done == list(range(60))


def test_work_waits_for_work_of_other_lanes(lanes):
    done = []
    first = submit(lanes, "up", lambda: (time.sleep(0.03), done.append("up")))
    second = submit(lanes, "down", lambda: done.append("down"), first)
    third = submit(lanes, "host", lambda: done.append("host"), second)
    in_time(lambda: lanes.compute(lambda: done.append("compute"), after=[third], label=LABEL, cancel=CancelToken()))
    assert done == ["up", "down", "host", "compute"]


def test_lanes_work_side_by_side(threaded):
    meeting = threading.Barrier(3)  # would break if one lane waited for another
    futures = [submit(threaded, lane, lambda: meeting.wait(10)) for lane in ("up", "down", "host")]
    in_time(lambda: threaded.wait(futures))


def test_an_error_reaches_whoever_waits_with_operation_layer_and_cause(lanes):
    cause = ZeroDivisionError("by zero")
    future = submit(lanes, "up", Fails(cause))
    with pytest.raises(LaneError, match="load of 'layer0/dense' failed: ZeroDivisionError: by zero") as caught:
        in_time(lambda: lanes.wait([future]))
    assert (caught.value.op, caught.value.layer, caught.value.__cause__) == ("load", "layer0/dense", cause)


def test_an_error_of_our_own_stays_as_it_is(lanes):
    error = DataError("no such thing")
    future = submit(lanes, "host", Fails(error))
    with pytest.raises(DataError) as caught:
        in_time(lambda: lanes.wait([future]))
    assert caught.value is error


def test_an_error_passes_through_all_that_waits_for_it(lanes):
    done = []
    failed = submit(lanes, "up", Fails(OSError("gone")))
    middle = submit(lanes, "down", lambda: done.append(1), failed)
    last = submit(lanes, "host", lambda: done.append(2), middle)
    with pytest.raises(LaneError, match="gone"):
        in_time(lambda: lanes.compute(lambda: done.append(3), after=[last], label=LABEL, cancel=CancelToken()))
    assert done == []


def test_after_an_error_nothing_under_the_same_cancel_token_begins(lanes):
    done, cancel = [], CancelToken()
    in_time(submit(lanes, "up", Fails(OSError("gone")), cancel=cancel).wait)
    refused = submit(lanes, "down", lambda: done.append(1), cancel=cancel)
    other = submit(lanes, "down", lambda: done.append(2))
    in_time(lambda: lanes.wait([other]))
    with pytest.raises(LaneError, match="gone"):
        in_time(lambda: lanes.wait([refused]))
    assert done == [2]


def test_a_lane_goes_on_after_an_error(lanes):
    in_time(submit(lanes, "up", Fails(SystemExit(1))).wait)  # even after one that would end a thread
    done = []
    in_time(lambda: lanes.wait([submit(lanes, "up", lambda: done.append(1))]))
    assert done == [1]


def test_what_compute_raises_is_raised_as_it_is(lanes):
    with pytest.raises(ZeroDivisionError):
        lanes.compute(Fails(ZeroDivisionError()), after=(), label=LABEL, cancel=CancelToken())


def test_waiting_takes_all_of_them_to_their_end_before_it_raises(threaded):
    done = []
    failed = submit(threaded, "up", Fails(OSError("gone")))
    slow = submit(threaded, "down", lambda: (time.sleep(0.05), done.append(1)))
    with pytest.raises(LaneError):
        in_time(lambda: threaded.wait([failed, slow]))
    assert done == [1]


def test_a_future_lets_many_wait():
    future = Future()
    waiting = [threading.Thread(target=future.wait, daemon=True) for _ in range(8)]
    for thread in waiting:
        thread.start()
    future.finish()
    for thread in waiting:
        thread.join(10)
    assert not any(thread.is_alive() for thread in waiting)


def test_work_is_over_once_it_is_done_without_an_error():
    over, failed = Future(), Future()
    assert not over.is_over()
    over.finish()
    failed.finish(error=RuntimeError("no"))
    assert (over.is_over(), failed.is_over()) == (True, False)


def test_without_threads_there_are_none():
    before = len(lane_threads())
    relay = relay_of(dense_pool(), lanes="inline")
    train(relay, PATH)
    assert len(lane_threads()) == before


def test_closing_ends_the_threads_after_the_work_they_have():
    before = wait_for_end()
    lanes, done = Lanes(Cpu(), threads=True), []
    for lane in ("up", "down"):
        submit(lanes, lane, lambda: (time.sleep(0.03), done.append(1)))
    assert len(lane_threads()) == before + 2
    lanes.close()
    lanes.close()
    assert wait_for_end(before) == before
    assert done == [1, 1]


def test_a_relay_that_is_used_after_it_was_closed_can_be_closed_again():
    before = wait_for_end()
    relay = relay_of(dense_pool(), lanes="threads")
    for step in range(2):
        train(relay, PATH, step=step)
        relay.close()
    assert wait_for_end(before) == before


def test_threads_end_when_the_relay_is_forgotten():
    before = wait_for_end()
    relay = relay_of(dense_pool(), lanes="threads", update="exact")
    train(relay, PATH, upcoming=OTHER)
    assert len(lane_threads()) > before
    del relay
    assert wait_for_end(before) == before


def test_fifty_relays_leave_no_thread():
    before, pool = wait_for_end(), chain_pool(partial(nn.Linear, 6, 2))
    for number in range(50):
        relay = relay_of(pool, lanes="threads")
        train(relay, ["c"], batch=2)
        if number % 2:
            relay.close()
        del relay
        if number % 25 == 24:
            assert wait_for_end(before) == before
    assert wait_for_end(before) == before


INTERRUPTED = """
    import os, signal, sys, threading, time
    import torch
    torch.set_num_threads(1)
    from tests.relay.stress import Stress
    from tests.relay.steps import PATH, is_same, relay_of, tensors, train
    from tests.toys import dense_pool

    def interrupted(slow, update):
        options = {"lanes": "threads", "update": update, "slots": 2, "stress": Stress(is_poisoning=False)}
        relay, other = (relay_of(dense_pool(), **options) for _ in range(2))
        for one in (relay, other):
            train(one, PATH)
            before = tensors(one.server)
        relay.lanes.stress = Stress(0, 0.0, {slow: 0.15})
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            train(relay, PATH, step=1)
            relay.drain()
        except KeyboardInterrupt:
            pass
        else:
            sys.exit("it was not interrupted")
        assert not relay.server.gradients.waiting, relay.server.gradients.waiting
        relay.lanes.stress = None
        if update != "eager":  # the step was refused as a whole
            assert is_same(relay.server, before)
            for step in (2, 3):
                assert train(relay, PATH, step=step) == train(other, PATH, step=step)
            assert is_same(relay.server, tensors(other.server))
        train(relay, PATH, step=4)
        relay.close()

    for slow, update in (("load", "exact"), ("send", "exact"), ("send", "eager")):
        interrupted(slow, update)
        print(slow, update, flush=True)
"""


@pytest.mark.slow
def test_ctrl_c_while_a_lane_is_slow_refuses_the_step_and_training_goes_on():
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(INTERRUPTED)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, output.split("\n")[-2:]) == (0, ["send eager", ""]), errors
    assert process.returncode != -signal.SIGINT


@pytest.mark.slow
def test_a_process_that_ends_while_lanes_work_ends_in_good_order(tmp_path):
    # a daemon thread that the interpreter's end meets inside torch aborts the process
    script = (
        "from l2l_nas.eps.file_storage import FileStorage\n"
        "from l2l_nas import AdamW, ParamServer, Relay\n"
        "from tests.relay.stress import Stress, StressedRelay\n"
        "from tests.toys import SquaredError, dense_pool, random_data\n"
        "pool = dense_pool()\n"
        f"server = ParamServer(pool, optimizer=AdamW(), seed=0, storage=FileStorage({str(tmp_path / 'pool')!r}))\n"
        "relay = StressedRelay(server, lanes='threads', stress=Stress(slow={'update': 0.02}))\n"
        "inputs, targets = random_data(pool, 4, seed=0)\n"
        "for step in range(3):\n"
        "    relay.train_step(pool.architecture(['dense'] * 4 + ['mlp']), inputs, targets,\n"
        "                     objective=SquaredError(), micro_batch=2, lr=0.1, step=step)\n"
    )
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


class Streams(Cpu):
    """A device whose delays are on streams, so that they hold up no thread; counts them by stream."""

    def __init__(self):
        self.current, self.delayed = "", []

    @contextlib.contextmanager
    def stream(self, lane):
        self.current = lane
        yield

    def delay(self, seconds):
        self.delayed.append(self.current)


def test_stress_delays_each_lane_where_its_work_is_done(monkeypatch):
    device, slept = Streams(), []
    monkeypatch.setattr("tests.relay.stress.time.sleep", slept.append)
    lanes = StressedLanes(Stress(longest_delay_s=0.0, slow={"load": 0.05}), device, threads=False)
    for lane in ("up", "down"):
        submit(lanes, lane, lambda: None)
    assert device.delayed == ["up", "down"]
    assert slept == []
    submit(lanes, "host", lambda: None)
    assert 0 < sum(slept) <= 0.05  # on no stream: its work is done in a thread
    assert device.delayed == ["up", "down"]


def test_of_updates_that_may_begin_the_first_layer_s_goes_first_and_a_check_before_them():
    lanes, done, begin = Lanes(Cpu(), threads=True), [], threading.Event()

    def submit(name, rank, after=()):
        work = partial(done.append, name)
        return lanes.submit("host", work, after=after, label=Label("update", name), cancel=CancelToken(), rank=rank)

    started = lanes.submit("host", begin.wait, after=(), label=Label("update"), cancel=CancelToken())
    late = lanes.submit("up", partial(time.sleep, 0.2), after=(started,), label=Label("load"), cancel=CancelToken())
    futures = [submit("third", 3), submit("second", 2), submit("late", 1, (late,)), submit("first", 1)]
    futures += [submit("check", 0), submit("behind", 1)]
    begin.set()
    lanes.wait(futures)
    assert done == ["check", "first", "behind", "second", "third", "late"]
    lanes.close()


class Failed(Cpu):
    """A device that raises whenever it is asked."""

    def is_over(self, mark):
        raise RuntimeError("an assertion of a kernel")

    wait = is_over


def test_the_error_of_a_device_reaches_who_waits_for_work_that_was_to_be_chosen_by_it():
    lanes, begin = Lanes(Failed(), threads=True), threading.Event()
    first = submit(lanes, "host", begin.wait)
    futures = [submit(lanes, "host", int, first) for _ in range(2)]
    begin.set()
    for future in futures:
        in_time(future.wait)
        assert "an assertion of a kernel" in str(future.error)
    lanes.close()


class Following(Cpu):
    """A CPU with marks, each a number, that records which of them each lane's stream is to wait for."""

    def __init__(self):
        super().__init__(copies=True)
        self.count = itertools.count()
        self.follows = []

    def mark(self, *, timed=False):
        return next(self.count)

    def stream_wait(self, mark):
        self.follows.append(mark)


def test_a_stream_waits_for_the_last_mark_of_each_other_lane_alone():
    device = Following()
    lanes = Lanes(device, threads=False)
    up = [submit(lanes, "up", int) for _ in range(3)]  # marks 0 to 2
    computed = [lanes.compute(int, after=(), label=LABEL, cancel=CancelToken()) for _ in range(2)]  # 3 and 4
    down = submit(lanes, "down", int, *up, *reversed(computed))
    assert sorted(device.follows) == [2, 4]
    device.follows.clear()
    submit(lanes, "down", int, down, up[1])
    assert device.follows == [1]
    device.follows.clear()
    lanes.compute(
        int, after=computed, label=LABEL, cancel=CancelToken()
    )  # on what may be another stream of the caller's
    assert device.follows == [4]
