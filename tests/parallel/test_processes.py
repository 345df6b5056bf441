"""What one process can tell of another."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

from l2l_nas.parallel.processes import Life, Process


def test_the_life_of_a_process():
    own = "json.dumps(Process.own().as_content())"
    code = f"import json, sys; from l2l_nas.parallel.processes import Process; print({own}, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as one:
        try:
            content = one.stdout.readline()
            other = Process(**json.loads(content))
            assert other.pid == one.pid
            assert other.life() is Life.RUNS
            assert other.described() == f"{Process.own().host}, pid {one.pid}"
            one.send_signal(signal.SIGSTOP)
            until(other, Life.STOPPED)
            one.send_signal(signal.SIGCONT)
            until(other, Life.RUNS)
            one.kill()
            until(other, Life.ENDED)  # a zombie, which nobody has waited for
        finally:
            one.kill()
    assert other.life() is Life.ENDED


def until(process, life):
    end = time.monotonic() + 10
    while process.life() is not life:
        assert time.monotonic() < end, process.life()
        time.sleep(0.01)


def test_another_process_with_the_same_number_is_another_one():
    own = Process.own()
    assert own.pid == os.getpid()
    assert own.life() is Life.RUNS
    assert dataclasses.replace(own, began=own.began + 1).life() is Life.ENDED


def test_nothing_is_known_of_a_process_elsewhere():
    own = Process.own()
    assert dataclasses.replace(own, machine="another").life() is Life.UNKNOWN
